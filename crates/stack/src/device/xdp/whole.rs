//! A whole interface: every frame of every receive queue, away from the kernel.
//!
//! One XDP program, and per receive queue a socket with memory of its own. The kernel
//! sees nothing of the interface until all queues are dropped; then the program is
//! detached and everything is as before, also after SIGKILL.
//!
//! An adapter that filters receives no frames for other hosts, unless it is told to
//! ([`Promiscuous`](crate::device::packet::Promiscuous)).

use std::fmt;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use plimsoll_kernel::error::bpf;
use plimsoll_kernel::lasting_link::KeptLink;
use plimsoll_kernel::xdp_link::{AttachError, XdpLink};

use super::settings::Settings;
use super::socket::Socket;
use super::{Threaded, XdpConfig, chunk_bytes, program, refused};
use crate::device::wrapper::Wrapper;
use crate::device::{Capabilities, Frame};
use crate::error::Error;
use crate::interface;

include!(concat!(env!("OUT_DIR"), "/take.rs")); // mod skeleton

/// One receive queue of an interface that was taken as a whole.
pub struct WholeQueue {
    // Before the program: the last queue's end detaches it.
    socket: Socket,
    taken: Arc<Taken>,
}

/// Frames of receive queues that have no socket, as one CPU has counted them: who adds some later
/// has nobody of this program see them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnservedFrames {
    /// Since the program was loaded.
    pub frames: u64,
    /// The queue of the last of them.
    pub queue: u64,
}

/// What the queues share.
struct Taken {
    /// Where the program counts frames that have no socket, if it is ours.
    unserved: Option<MapHandle>,
    // While the program is there: some drivers have no polling without it.
    settings: Settings,
    _program: KeptLink,
}

impl fmt::Debug for WholeQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WholeQueue")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// Takes all receive queues of an interface of this network namespace. Of `config` the
/// queue and the owned addresses say nothing here, and [`Threaded::Auto`] is refused.
///
/// # Errors
///
/// As [`XdpInterface::open`](super::XdpInterface::open).
pub fn open_whole(interface: &str, config: &XdpConfig) -> Result<Vec<WholeQueue>, Error> {
    let mut place = MaybeUninit::uninit();
    let open = skeleton::TakeSkelBuilder::default().open(&mut place);
    let open = open.map_err(program::refused)?;
    let loaded = open.load().map_err(program::refused)?;
    let unserved = MapHandle::try_from(&loaded.maps.unserved).map_err(program::refused)?;
    let program = loaded.progs.take.as_fd();
    let attached = |ifindex| KeptLink::attach(program, interface, ifindex);
    open_counting(
        interface,
        config,
        &loaded.maps.sockets,
        attached,
        Some(unserved),
    )
}

/// The same with an XDP program of the caller's, which hands frames to the sockets in this
/// map, by queue. Nothing stands in front of them that it does not put there. It may be
/// attached already (`earlier`).
///
/// # Errors
///
/// As [`open_whole`].
pub fn open_whole_by(
    interface: &str,
    config: &XdpConfig,
    program: BorrowedFd<'_>,
    sockets: &impl MapCore,
    earlier: Option<XdpLink>,
) -> Result<Vec<WholeQueue>, Error> {
    let attached = |ifindex| match earlier {
        Some(link) => KeptLink::of(link, program, interface, ifindex),
        None => KeptLink::attach(program, interface, ifindex),
    };
    open_counting(interface, config, sockets, attached, None)
}

fn open_counting(
    interface: &str,
    config: &XdpConfig,
    sockets: &impl MapCore,
    attached: impl FnOnce(u32) -> Result<KeptLink, AttachError>,
    unserved: Option<MapHandle>,
) -> Result<Vec<WholeQueue>, Error> {
    config.validate()?;
    if config.threaded == Threaded::Auto {
        return Err(Error::Config {
            field: "threaded",
            given: Threaded::Auto.to_string(),
            allowed: "nice levels, where the interface is taken as a whole: nobody else is there",
        });
    }
    let ifindex = interface::index(interface)?;
    let (mac, mtu) = (interface::mac(interface)?, interface::mtu(interface)?);
    let chunk_bytes = chunk_bytes(interface, mtu)?;
    let link = plimsoll_kernel::link::link(ifindex);
    let link = link.map_err(Error::io(format!("ask about {interface}")))?;
    let queues = link.rx_queues.unwrap_or(1).clamp(1, sockets.max_entries());
    let attached = attached(ifindex).map_err(|error| program::not_attached(interface, error))?;
    let taken = Arc::new(Taken {
        unserved,
        settings: Settings::turn(interface, ifindex, None, config, None)?,
        _program: attached,
    });
    let capabilities = Capabilities {
        checksums_verified: config.trust_checksums,
        ..Capabilities::plain(mac, mtu)
    };
    let mut all = Vec::new();
    for queue in 0..queues {
        let config = XdpConfig {
            queue,
            ..config.clone()
        };
        let socket = match Socket::first(ifindex, &config, capabilities, chunk_bytes) {
            Ok(socket) => socket,
            // A driver may have fewer queues in use than it has room for.
            Err(error) if queue > 0 && error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(refused(interface, &config, error)),
        };
        give(&socket, sockets)?;
        all.push(WholeQueue {
            socket,
            taken: Arc::clone(&taken),
        });
    }
    Ok(all)
}

/// Puts a socket in the program's map.
fn give(socket: &Socket, sockets: &impl MapCore) -> Result<(), Error> {
    let descriptor = socket.as_fd().as_raw_fd().to_ne_bytes();
    let queue = socket.queue().number().to_ne_bytes();
    let added = sockets.update(&queue, &descriptor, MapFlags::ANY);
    Ok(added.map_err(bpf("put a socket in the XDP program's map"))?)
}

/// When a frame of a [`WholeQueue`] arrived: nanoseconds of `CLOCK_TAI`. Any number if
/// the driver left no room for it.
#[must_use]
pub fn arrival_tai(frame: &Frame) -> Option<Duration> {
    let stamp = frame.preceding::<8>()?;
    Some(Duration::from_nanos(u64::from_ne_bytes(*stamp)))
}

impl WholeQueue {
    /// Another socket of the same queue, put in this map, for frames that must not wait behind
    /// others or be lost with them. It has rings of its own, and shares the memory.
    ///
    /// # Errors
    ///
    /// The kernel opens none, or the map does not take it.
    pub fn beside(&self, sockets: &impl MapCore) -> Result<Self, Error> {
        let socket = Socket::sharing(self.socket.queue());
        let socket = socket.map_err(Error::io("open a second AF_XDP socket of a queue"))?;
        give(&socket, sockets)?;
        Ok(Self {
            socket,
            taken: Arc::clone(&self.taken),
        })
    }

    /// Frames of all receive queues of the interface that have no socket, by CPU. A program of the
    /// caller's counts them itself: then there are none here.
    ///
    /// # Errors
    ///
    /// The kernel does not tell.
    pub fn unserved(&self) -> Result<Vec<UnservedFrames>, Error> {
        let Some(map) = &self.taken.unserved else {
            return Ok(Vec::new());
        };
        let cpus = map.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let cpus = cpus.map_err(bpf("read the XDP program's counters"))?;
        Ok(cpus.iter().flatten().map(|cpu| unserved(cpu)).collect())
    }

    /// Why the kernel polls as the interface has it although [`XdpConfig::threaded`] was asked
    /// for: then a flood may take the CPU from this program.
    #[must_use]
    pub fn unthreaded(&self) -> Option<&str> {
        self.taken.settings.unthreaded()
    }
}

/// Of a CPU's counter.
fn unserved(counter: &[u8]) -> UnservedFrames {
    let number = |offset: usize| {
        let bytes = counter.get(offset..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    UnservedFrames {
        frames: number(offset_of!(skeleton::types::unserved, frames)),
        queue: number(offset_of!(skeleton::types::unserved, queue)),
    }
}

impl Wrapper for WholeQueue {
    type Inner = Socket;

    fn inner(&self) -> &Socket {
        &self.socket
    }
}
