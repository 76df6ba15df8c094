//! AF_XDP: frames of a real interface in memory shared with the kernel.
//!
//! An [`XdpInterface`] is the receive queues of an interface with their UMEM and an
//! XDP program that decides which frames are ours. The stack either shares
//! addresses with the kernel, and gets only the ports that are bound there, or
//! owns addresses, and gets all that is for them ([`XdpConfig::owned`]). A port that
//! is bound at any address is bound at those of the stack, not at all of the kernel's.
//! Everything else goes to the kernel as before.
//!
//! `ring` and `sys` are the rings and system calls, `socket` a queue's shared memory and its
//! sockets, `endpoint` a socket for one endpoint, `closing` its end, `queues` one for each queue, `numbers` how the
//! program names them, `program` the steering, `room` what it is told of full rings, `reserve`
//! what the driver keeps where nothing is copied, `claims` endpoints without a socket, `answering` whether the program answers SYNs, `company` what the program counts beside a
//! flood, `polling` where the kernel polls because of that, `settings` what is turned of it,
//! `whole` an interface with all its queues ([`open_whole`]). Sockets of their own for single
//! endpoints ([`Device::open_endpoint`]), and `channels` of TCP, are what `ni-lrp`
//! stands on.
//!
//! **Trap.** A sender on this machine (the other end of a veth pair) leaves
//! transport checksums to an adapter that does not exist: turn that off there
//! (`ethtool -K PEER tx off`), or set [`XdpConfig::trust_checksums`].

pub(crate) mod answering;
mod bare;
mod channels;
mod claims;
mod closing;
mod company;
pub(crate) mod completions;
mod config;
mod endpoint;
mod numbers;
mod polling;
mod program;
mod queues;
mod reserve;
mod ring;
mod room;
mod settings;
mod socket;
pub(crate) mod steering;
#[cfg(test)]
mod strays_tests;
mod sys;
#[cfg(test)]
mod trial;
mod whole;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_core::demux::Protocol;
use plimsoll_kernel::error::bpf;
/// A process that puts a killed program's settings of an interface back. It must be started
/// before any other thread.
pub use plimsoll_kernel::knobs::Keeper;

pub use self::bare::BareQueue;
use self::channels::{XdpConnection, XdpListener};
use self::claims::Claims;
use self::closing::Closing;
pub use self::config::{BusyPoll, CopyMode, XdpConfig};
use self::config::{CHUNK_BYTES, LEVELS_MAX, chunk_bytes, chunk_bytes_for};
use self::endpoint::XdpEndpoint;
use self::numbers::Numbers;
use self::program::{Program, cookie_segment, steer_limit};
use self::queues::Sockets;
use self::settings::Settings;
pub use self::settings::Threaded;
use self::socket::{Queue, Socket};
pub use self::sys::wait_for_deliveries;
pub use self::whole::{UnservedFrames, WholeQueue, arrival_tai, open_whole, open_whole_by};
use super::packet::{Hearing, Overhearing};
use super::simulated::ETHERNET_BYTES_MAX;
use super::{
    Batch, Capabilities, Channel, CookieAnswers, Device, Drops, Endpoint, Mac, Pool, Readers,
};
use crate::clock;
use crate::error::Error;
use crate::interface::{self, KernelBeside};

/// The remedy for an owned address that the kernel has on the interface.
const SHARE: &str = "leave it out (`--address`, in a program `XdpConfig::owned`) to share it by ports, or take another";

/// What all sockets of a queue share.
#[derive(Debug)]
struct Shared {
    program: Program,
    /// The first is the one that frames are sent by.
    queues: Vec<Arc<Queue>>,
    all_queues: bool,
    /// Of sockets.
    numbers: Arc<Numbers>,
    /// Of connections' channels.
    channels: Arc<Numbers>,
    /// Sockets that were dropped.
    closing: Closing,
    /// Of endpoints without a socket; `None` where nobody asks who is flooded.
    claims: Option<Arc<Claims>>,
}

/// The main socket's number.
const MAIN_SOCKET: u32 = steer_limit::MAIN_SOCKET.0;
const SOCKETS_MAX: u32 = steer_limit::SOCKETS_MAX.0;
const QUEUES_MAX: u32 = steer_limit::QUEUES_MAX.0;
const PLACES_OF_SOCKETS: u32 = steer_limit::PLACES_OF_SOCKETS.0;
const CONNECTIONS_MAX: u32 = steer_limit::CONNECTIONS_MAX.0;
const GIVEN_TO_QUEUES: u32 = steer_limit::GIVEN_TO_QUEUES.0;

/// What a SYN cookie consists of: the program knows it too.
pub(crate) const COOKIE_HASH_BITS: u32 = steer_limit::COOKIE_HASH_BITS.0;
pub(crate) const COOKIE_CLASS_BITS: u32 = steer_limit::COOKIE_CLASS_BITS.0;
pub(crate) const COOKIE_UNIT: Duration = Duration::from_secs(steer_limit::COOKIE_UNIT_S.0 as u64);
pub(crate) const COOKIE_UNITS: u32 = steer_limit::COOKIE_UNITS.0;
pub(crate) const COOKIE_SEGMENTS: [u16; 8] = [
    cookie_segment::COOKIE_SEGMENT_0.0 as u16,
    cookie_segment::COOKIE_SEGMENT_1.0 as u16,
    cookie_segment::COOKIE_SEGMENT_2.0 as u16,
    cookie_segment::COOKIE_SEGMENT_3.0 as u16,
    cookie_segment::COOKIE_SEGMENT_4.0 as u16,
    cookie_segment::COOKIE_SEGMENT_5.0 as u16,
    cookie_segment::COOKIE_SEGMENT_6.0 as u16,
    cookie_segment::COOKIE_SEGMENT_7.0 as u16,
];

impl Shared {
    /// Where the program's maps have a socket of this queue.
    fn place(&self, queue: &Queue, number: u32) -> u32 {
        u32::from(self.all_queues) * queue.number() * SOCKETS_MAX + number
    }

    /// Whatever waits in rings, the driver of a main socket's queue keeps some chunks. In copy
    /// mode it has memory of its own.
    fn reserving(&self, main: Socket) -> Socket {
        if !main.capabilities().zero_copy {
            return main;
        }
        let queue = u32::from(self.all_queues) * main.queue().number();
        main.queue()
            .keep_reserve(self.program.room(GIVEN_TO_QUEUES + queue));
        let place = self.place(main.queue(), MAIN_SOCKET);
        main.telling(self.program.room(place))
    }

    /// Frames for the number go to these sockets from now on.
    fn give(&self, number: u32, sockets: &Sockets) -> libbpf_rs::Result<()> {
        sockets.all().iter().try_for_each(|socket| {
            let place = self.place(socket.queue(), number);
            self.program.add_socket(place, socket.as_fd())
        })
    }

    /// Frames for the endpoint go to the main socket from now on.
    fn claim(&self, endpoint: Endpoint) -> libbpf_rs::Result<()> {
        let is_judged = endpoint.protocol == Protocol::Udp && !endpoint.local.ip().is_multicast();
        let claims = self.claims.as_ref().filter(|_| is_judged);
        // Without a number its frames are company.
        let Some((claims, number)) = claims.zip(self.numbers.take()) else {
            return self.program.add_endpoint(endpoint, MAIN_SOCKET);
        };
        self.program.add_claimed(endpoint, number.get())?;
        claims.add(endpoint, number);
        Ok(())
    }

    fn release(&self, endpoint: Endpoint) {
        self.program.remove_endpoint(endpoint);
        let number = self
            .claims
            .as_ref()
            .and_then(|claims| claims.remove(endpoint));
        if let Some(number) = number {
            self.program.remove_entry(number.get());
        }
    }

    fn take_back(&self, number: u32) {
        self.program.remove_entry(number);
        for queue in &self.queues {
            self.program.remove_socket(self.place(queue, number));
        }
    }
}

/// An interface's queues, and their main sockets as a device.
#[derive(Debug)]
pub struct XdpInterface {
    // While the program is there: some drivers have no polling without it.
    settings: Settings,
    // Before the rest: the program must not deliver to a socket that is gone.
    sockets: Sockets,
    shared: Arc<Shared>,
    ifindex: u32,
    owned: Box<[IpAddr]>,
    kernel: KernelBeside,
    hearing: Hearing,
    overhearing: Overhearing,
}

impl XdpInterface {
    /// Opens an interface of this network namespace: all its receive queues, or one
    /// ([`XdpConfig::all_queues`]).
    ///
    /// # Errors
    ///
    /// Each names its remedy: a missing capability, interface or queue, more than 16 queues, an MTU
    /// beyond one buffer, another program on the interface or its queue, an owned address
    /// that the kernel has, a driver without native XDP or zero-copy, too little lockable memory.
    pub fn open(interface: &str, config: &XdpConfig) -> Result<Self, Error> {
        config.validate()?;
        let ifindex = interface::index(interface)?;
        for address in &config.owned {
            interface::refuse_kernels(interface, *address, SHARE)?;
        }
        let (mac, mtu) = (interface::mac(interface)?, interface::mtu(interface)?);
        let chunk_bytes = chunk_bytes(interface, mtu)?;
        check_queue(interface, ifindex, config.queue)?;
        let program = Program::attach(interface, ifindex, config)?;
        let capabilities = Capabilities {
            checksums_verified: config.trust_checksums,
            ..Capabilities::plain(mac, mtu)
        };
        let sockets = queues::open(interface, ifindex, config, capabilities, chunk_bytes)?;
        let queues: Vec<_> = sockets
            .iter()
            .map(|socket| Arc::clone(socket.queue()))
            .collect();
        let failed = bpf("put sockets and addresses in the XDP program's maps");
        let shared = Shared {
            program,
            queues,
            all_queues: config.all_queues,
            numbers: Numbers::new(MAIN_SOCKET + 1, SOCKETS_MAX),
            channels: Numbers::new(0, CONNECTIONS_MAX),
            closing: Closing::default(),
            claims: is_watched(config, sockets.len()).then(Arc::default),
        };
        let sockets = sockets.into_iter().map(|main| shared.reserving(main));
        let sockets =
            Sockets::new(sockets.collect()).map_err(Error::io("wait for several sockets"))?;
        shared.give(MAIN_SOCKET, &sockets).map_err(&failed)?;
        let (hearing, overhearing) = (Hearing::open(ifindex)?, Overhearing::open(ifindex)?);
        for address in &config.owned {
            shared.program.own(*address).map_err(&failed)?;
            hearing.add_address(*address)?;
            if address.is_ipv6() {
                // Its solicited-node group is reported.
                overhearing.begin()?;
            }
        }
        let settings = turn_settings(interface, ifindex, config, &shared)?;
        Ok(Self {
            settings,
            sockets,
            shared: Arc::new(shared),
            ifindex,
            owned: config.owned.as_slice().into(),
            kernel: KernelBeside::of(interface),
            hearing,
            overhearing,
        })
    }

    /// Why the kernel polls as the interface has it although [`XdpConfig::threaded`] was asked
    /// for: then a flood may take the CPU from this program.
    #[must_use]
    pub fn unthreaded(&self) -> Option<&str> {
        self.settings.unthreaded()
    }

    /// The interface's Ethernet address.
    #[must_use]
    pub fn mac(&self) -> Mac {
        self.sockets.capabilities().mac
    }
}

/// Whether it is asked who is flooded.
fn is_watched(config: &XdpConfig, queues: usize) -> bool {
    config.threaded == Threaded::Auto && queues == 1
}

fn addresses_known(added: libbpf_rs::Result<()>) -> Result<(), Error> {
    let added = added.map_err(io::Error::other);
    added.map_err(Error::io("have the XDP program know the addresses"))
}

/// How the kernel is to poll, for the queues that are served.
fn turn_settings(
    interface: &str,
    ifindex: u32,
    config: &XdpConfig,
    shared: &Shared,
) -> Result<Settings, Error> {
    let several = shared.queues.len() > 1;
    let queue = (!several).then_some(config.queue);
    if several && config.threaded == Threaded::Auto {
        let off = XdpConfig {
            threaded: Threaded::Off,
            ..config.clone()
        };
        let settings = Settings::turn(interface, ifindex, queue, &off, None)?;
        return Ok(settings.without_threads(format!(
            "one receive queue is needed to see who is alone: `ethtool -L {interface} combined 1`"
        )));
    }
    let claims = shared.claims.as_ref();
    let watched = claims.map(|claims| shared.program.watched(claims));
    Settings::turn(interface, ifindex, queue, config, watched.transpose()?)
}

fn check_queue(interface: &str, ifindex: u32, queue: u32) -> Result<(), Error> {
    let link = plimsoll_kernel::link::link(ifindex);
    let queues = link
        .map_err(Error::io(format!("ask about {interface}")))?
        .rx_queues;
    if queues.is_some_and(|queues| queue >= queues) {
        return Err(Error::NoSuchQueue {
            interface: interface.to_owned(),
            queue,
        });
    }
    Ok(())
}

/// What the kernel's answers to opening the first socket mean.
fn refused(interface: &str, config: &XdpConfig, error: io::Error) -> Error {
    let queue = config.queue;
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::NotPermitted {
            action: "open an AF_XDP socket",
            capability: "CAP_NET_RAW",
        },
        Some(libc::EBUSY) => Error::Busy {
            what: format!("queue {queue} of {interface}"),
            remedy: "another AF_XDP socket is bound to it; end that program, or take another queue"
                .to_owned(),
        },
        Some(libc::EAFNOSUPPORT) => Error::Unsupported {
            what: "this kernel".to_owned(),
            feature: "AF_XDP",
            remedy: "it must be built with CONFIG_XDP_SOCKETS",
        },
        Some(libc::EOPNOTSUPP) => Error::Unsupported {
            what: format!("the driver of {interface}"),
            feature: "zero-copy AF_XDP",
            remedy: "take the copy mode",
        },
        Some(libc::ENOBUFS) => Error::Unsupported {
            what: "the limit of locked memory of this process".to_owned(),
            feature: "that many frames",
            remedy: "raise it (`ulimit -l`), or take fewer chunks",
        },
        _ => Error::io(format!("open an AF_XDP socket on {interface}"))(error),
    }
}

impl Device for XdpInterface {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            steers: true,
            ..self.sockets.capabilities()
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        self.sockets.pool()
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        self.sockets.receive(batch, max)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        self.sockets.transmit(batch)
    }

    fn enqueue(&self, batch: &mut Batch) -> io::Result<usize> {
        self.sockets.enqueue(batch)
    }

    fn has_room(&self) -> bool {
        self.sockets.has_room()
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.sockets.readiness()
    }

    fn queries(&self) -> Option<BorrowedFd<'_>> {
        Some(self.overhearing.as_fd())
    }

    fn receive_query(&self, buffer: &mut [u8]) -> Option<usize> {
        self.overhearing.receive(buffer)
    }

    fn tend(&self) -> io::Result<Option<Duration>> {
        self.shared.program.answers.tend(clock::now());
        self.sockets.tend()
    }

    fn unsent(&self) -> u64 {
        self.sockets.unsent()
    }

    fn drops(&self) -> Drops {
        let Shared {
            program, channels, ..
        } = &*self.shared;
        let drops = self.sockets.drops();
        let strays = program.strays();
        Drops {
            stray: strays.dropped,
            early: drops.early + strays.beyond_backlog + program.discarded(channels.used()),
            ..drops
        }
    }

    fn open_endpoint(&self, endpoint: Endpoint) -> io::Result<Arc<dyn Device>> {
        let opened = XdpEndpoint::open(&self.shared, endpoint, false)?;
        Ok(Arc::new(opened))
    }

    fn open_member(&self, endpoint: Endpoint) -> io::Result<Arc<dyn Device>> {
        let opened = XdpEndpoint::open(&self.shared, endpoint, true)?;
        Ok(Arc::new(opened))
    }

    fn open_connection(
        &self,
        ends: (SocketAddr, SocketAddr),
        frames: u32,
    ) -> io::Result<Arc<dyn Channel>> {
        Ok(Arc::new(XdpConnection::open(&self.shared, ends, frames)?))
    }

    fn open_listener(&self, endpoint: Endpoint) -> io::Result<Arc<dyn Channel>> {
        Ok(Arc::new(XdpListener::open(&self.shared, endpoint)?))
    }

    fn set_credit(&self, frames: u32) -> bool {
        let queues = &self.shared.queues;
        let each = frames.div_ceil(queues.len() as u32);
        queues.iter().for_each(|queue| queue.set_credit(each));
        true
    }

    fn select_vlan(&self, id: u16) -> io::Result<()> {
        let selected = self.shared.program.select_vlan(id);
        selected.map_err(io::Error::other)?;
        self.overhearing.select_vlan(id).map_err(io::Error::other)
    }

    fn add_address(&self, address: IpAddr) -> Result<(), Error> {
        if !self.owned.contains(&address) {
            self.kernel.require(address)?;
        }
        let shared = self.shared.program.share(address);
        addresses_known(shared)
    }

    fn add_broadcast(&self, address: Ipv4Addr) -> Result<(), Error> {
        let added = self.shared.program.add_broadcast(address);
        addresses_known(added)
    }

    fn open_all_connections(&self) -> io::Result<()> {
        let told = self.shared.program.all_connections_have_channels();
        told.map_err(io::Error::other)
    }

    fn know_cookies(&self, answers: &CookieAnswers) -> io::Result<()> {
        let program = &self.shared.program;
        let told = program.know_cookies(answers, self.mac());
        told.map_err(io::Error::other)?;
        if answers.are_given && !self.capabilities().zero_copy {
            program.answer(self.ifindex);
        }
        Ok(())
    }

    fn answers_syns(&self) -> bool {
        self.shared.program.answers.are_given()
    }

    fn answered_syns(&self) -> u64 {
        self.shared.program.answers.given()
    }

    fn know_source(&self, source: IpAddr) {
        self.shared.program.know_source(source);
    }

    fn claim(&self, endpoint: Endpoint) -> io::Result<()> {
        let claimed = self.shared.claim(endpoint);
        claimed.map_err(|error| program::not_added(endpoint, error))?;
        let group = endpoint.local.ip();
        if group.is_multicast() {
            let begun = self.overhearing.begin().map_err(io::Error::other);
            let heard = begun.and_then(|()| self.hearing.join(group));
            return heard.inspect_err(|_| self.shared.release(endpoint));
        }
        Ok(())
    }

    fn know_readers(&self, readers: Arc<dyn Readers>) {
        if let Some(claims) = &self.shared.claims {
            claims.know_readers(readers);
        }
    }

    fn owns_address(&self) -> bool {
        !self.owned.is_empty()
    }

    fn release(&self, endpoint: Endpoint) {
        self.shared.release(endpoint);
        let group = endpoint.local.ip();
        if group.is_multicast() {
            self.hearing.leave(group);
        }
    }
}
