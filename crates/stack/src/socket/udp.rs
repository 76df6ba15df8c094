//! UDP sockets, shaped like [`std::net::UdpSocket`].
//!
//! With the lazy receive paths the receiving call does the protocol processing:
//! it takes a frame from the socket's channel (or ring), checks IP and UDP, joins
//! fragments, and returns the datagram or goes on with the next frame. So a
//! thread that does not run spends nothing on packets.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use parking_lot::{Mutex, RwLock};
use plimsoll_core::demux::{ChannelId, Protocol};
use plimsoll_core::time::Instant;

use self::receiving::Receiving;
use super::addresses::{at_random, first_that_works, on_a_free_port};
use super::options::{Options, waiting_methods};
use crate::account::{Account, Owner};
use crate::clock;
use crate::device::{Batch, Device, Endpoint, Mac};
use crate::host::Host;
use crate::link::egress::Egress;
use crate::link::peers::Peers;
use crate::outcome::Outcome;
use crate::receive::ni_lrp::Ring;
use crate::stack::Stack;
use crate::table::{Bound, Pending};
use crate::wait::Waker;

mod messages;
mod polling;
mod receiving;
mod sending;

/// No time of a refusal.
const NEVER: u64 = u64::MAX;

/// A UDP socket of a [`Stack`].
///
/// Differences from the standard library's: an IPv4 peer of a socket bound to
/// `[::]` has an IPv4 address, not a mapped one. A connected socket's next call returns what
/// an ICMP error told: `ConnectionRefused` (nobody has the port), `HostUnreachable` (also of a
/// neighbour that did not answer) or `NetworkUnreachable`. Anybody who knows both ends can make
/// one up.
///
/// All methods take `&self`; threads may share a socket.
pub struct UdpSocket {
    stack: Stack,
    bound: SocketAddr,
    channel: ChannelId,
    peer: RwLock<Option<Peer>>,
    receiving: Arc<Mutex<Receiving>>,
    sending: Mutex<Batch>,
    account: Arc<Account>,
    peers: Mutex<Peers>,
    groups: Mutex<Vec<IpAddr>>,
    options: Options,
    waker: Arc<Waker>,
    /// Threads that sleep in a receiving call.
    waiting: AtomicUsize,
    trouble: Arc<Pending>,
    /// When a call that sent last found the device without room; `NEVER` since it had some.
    refused: AtomicU64,
    /// Waker and ring, where the device demultiplexes.
    both: Option<Both>,
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpSocket")
            .field("bound", &self.bound)
            .field("peer", &self.remote())
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    /// What the socket is bound to since it is connected.
    local: SocketAddr,
    remote: SocketAddr,
}

/// A socket with a ring of its own is woken by two descriptors.
#[derive(Debug)]
struct Both {
    /// For event loops, who know one descriptor.
    together: Epoll,
    ring: Arc<dyn Device>,
}

/// Whether others are bound to the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Alone,
    /// The first of those that share it.
    First,
    Beside,
}

impl UdpSocket {
    /// Binds to an address of the stack, or to all of them (`0.0.0.0`: those of IPv4, `[::]`:
    /// both); port 0 takes a free one. One socket may have a port at an address, another one at all: the
    /// former gets what is for its address.
    ///
    /// # Errors
    ///
    /// `AddrInUse`: another socket has it. `AddrNotAvailable`: it is no address
    /// of this stack. `OutOfMemory`: all channels are in use. `InvalidInput`: with AF_XDP and `ni-lrp`,
    /// the thread is in another network namespace than the interface.
    pub fn bind(stack: &Stack, at: impl ToSocketAddrs) -> io::Result<Self> {
        first_that_works(at, |at| Self::bind_one(stack, at))
    }

    /// As [`bind`](Self::bind), at an address and port that other sockets bound by this share
    /// with it (`SO_REUSEPORT`). Each has a queue of its own, for a thread of its own: a flow's
    /// datagrams go to one of them, until one comes or goes. Fragments of a datagram go to one
    /// socket, perhaps not to their flow's.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind). `AddrInUse`: a socket has the address alone. `InvalidInput`:
    /// port 0. `OutOfMemory`: 64 sockets share it.
    pub fn bind_shared(stack: &Stack, at: impl ToSocketAddrs) -> io::Result<Self> {
        first_that_works(at, |at| Self::bind_shared_one(stack, at))
    }

    fn bind_shared_one(stack: &Stack, at: SocketAddr) -> io::Result<Self> {
        let host = stack.host();
        let at = host.bindable(at)?;
        let account = host.book.open(Owner::Udp(at));
        let (bound, first) = host.table.lock().bind_shared(at, &account)?;
        let place = if first { Place::First } else { Place::Beside };
        Self::with(stack, at, bound, account, place)
    }

    fn bind_one(stack: &Stack, at: SocketAddr) -> io::Result<Self> {
        let host = stack.host();
        let at = host.bindable(at)?;
        let bind = |port| {
            let at = SocketAddr::new(at.ip(), port);
            let account = host.book.open(Owner::Udp(at));
            let bound = host.table.lock().bind(Protocol::Udp, at, &account)?;
            Self::with(stack, at, bound, account, Place::Alone)
        };
        match at.port() {
            0 => on_a_free_port(at_random, bind),
            port => bind(port),
        }
    }

    fn with(
        stack: &Stack,
        at: SocketAddr,
        bound: Bound,
        account: Arc<Account>,
        place: Place,
    ) -> io::Result<Self> {
        let host = stack.host();
        let steered = steer(stack, at, place, &bound.waker).inspect_err(|_| {
            let mut table = host.table.lock();
            table.close(Protocol::Udp, at, None, bound.channel);
        });
        let (ring, both) = steered?;
        let receiving = Arc::new(Mutex::new(Receiving {
            consumer: bound.consumer,
            ring,
            ahead: VecDeque::new(),
            tally: Arc::clone(&account),
            inhibiting: bound.inhibiting,
            by_descriptor: false,
            told: false,
        }));
        if let Some(ahead) = &host.ahead {
            let weak: Weak<Mutex<Receiving>> = Arc::downgrade(&receiving);
            ahead.add(bound.channel, weak);
        }
        Ok(Self {
            bound: at,
            channel: bound.channel,
            peer: RwLock::new(None),
            receiving,
            sending: Mutex::new(Batch::new()),
            account,
            peers: Mutex::new(Peers::new()),
            groups: Mutex::default(),
            options: Options::default(),
            waker: bound.waker,
            waiting: AtomicUsize::new(0),
            trouble: bound.trouble,
            refused: AtomicU64::new(NEVER),
            both,
            stack: stack.clone(),
        })
    }

    /// From now on datagrams come from `to` alone, and [`send`](Self::send) sends there.
    /// [`send_to`](Self::send_to) still sends anywhere. Of several addresses it is the first that works. A socket that
    /// is connected already is connected to another peer.
    ///
    /// # Errors
    ///
    /// Nothing has changed then. It cannot be reached from this socket's address. `InvalidInput`: it shares its address
    /// ([`bind_shared`](Self::bind_shared)).
    pub fn connect(&self, to: impl ToSocketAddrs) -> io::Result<()> {
        first_that_works(to, |to| self.connect_one(to))
    }

    fn connect_one(&self, to: SocketAddr) -> io::Result<()> {
        let mut peer = self.peer.write();
        let before = peer.map(|peer| (peer.local, peer.remote));
        let (local, remote) = self.host().ends(self.bound, to)?;
        let mut table = self.host().table.lock();
        table.connect_udp(self.bound, before, (local, remote), self.channel)?;
        *peer = Some(Peer { local, remote });
        Ok(())
    }

    /// From now on the socket also gets what is sent to this multicast group at its port.
    /// Answers to it come from an address of the stack. What other sockets of this stack send to the group it
    /// does not hear (with the kernel's sockets: `IP_MULTICAST_LOOP`).
    ///
    /// An adapter that filters is told to hear the group, on AF_XDP and AF_PACKET.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: no multicast address, or of the family that the socket is not bound for. `AddrInUse`: this socket or another of the
    /// same port is in the group.
    pub fn join_multicast(&self, group: IpAddr) -> io::Result<()> {
        let group = group.to_canonical();
        if !group.is_multicast() {
            let why = format!("{group} is no multicast address");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let hears = match self.bound.ip() {
            IpAddr::V4(_) => group.is_ipv4(),
            IpAddr::V6(address) => group.is_ipv6() || address.is_unspecified(),
        };
        if !hears {
            let why = format!("a socket bound to {} hears nothing of {group}", self.bound);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let at = SocketAddr::new(group, self.bound.port());
        let host = self.host();
        let mut groups = self.groups.lock();
        if groups.contains(&group) {
            return Err(crate::error::address_in_use(at));
        }
        host.table.lock().join(at, self.channel)?;
        if let Err(error) = host.claim(Protocol::Udp, at) {
            host.table.lock().leave(at);
            return Err(error);
        }
        groups.push(group);
        host.egress.join(group, clock::now())
    }

    /// Ends what [`join_multicast`](Self::join_multicast) began. Closing the socket does too.
    ///
    /// # Errors
    ///
    /// `AddrNotAvailable`: the socket is not in the group.
    pub fn leave_multicast(&self, group: IpAddr) -> io::Result<()> {
        let group = group.to_canonical();
        let mut groups = self.groups.lock();
        let place = groups.iter().position(|joined| *joined == group);
        let place = place.ok_or(io::ErrorKind::AddrNotAvailable)?;
        groups.swap_remove(place);
        self.leave(group);
        Ok(())
    }

    fn leave(&self, group: IpAddr) {
        let at = SocketAddr::new(group, self.bound.port());
        let host = self.host();
        host.release(Protocol::Udp, at);
        host.table.lock().leave(at);
        host.egress.leave(group, clock::now());
    }

    /// The address the socket is bound to.
    ///
    /// # Errors
    ///
    /// None; as in the standard library.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let peer = *self.peer.read();
        Ok(peer.map_or(self.bound, |peer| peer.local))
    }

    /// Whom the socket is connected to.
    ///
    /// # Errors
    ///
    /// `NotConnected`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.remote()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// A receiving call that finds nothing looks again for so long before it sleeps
    /// (as `SO_BUSY_POLL` has the kernel do): the CPU pays for what waking the thread would
    /// take. It is worth it with the receive path `ni-lrp`, where nobody stands between the
    /// device and this call. Default: not at all.
    pub fn set_busy_poll(&self, busy_poll: Duration) {
        self.options.set_busy_poll(busy_poll);
    }

    /// What an ICMP error told, which the next call would return otherwise.
    ///
    /// # Errors
    ///
    /// None; as in the standard library.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.trouble.take().err())
    }

    /// Where a peer's datagrams came from on the link.
    pub(super) fn via(&self, peer: IpAddr, now: Instant) -> Option<Mac> {
        self.peers.lock().get(peer, self.egress().moved_at(), now)
    }

    pub(super) fn host(&self) -> &Host {
        self.stack.host()
    }

    pub(super) fn egress(&self) -> &Egress {
        &self.host().egress
    }
}

waiting_methods!(UdpSocket);

/// Readable when something is there as the descriptor is taken, or comes from then on, until a call returns `WouldBlock`:
/// receive until that, then wait for this descriptor, with poll(2) or an event loop. It stays readable while calls leave
/// something. It tells nothing of room to send: that is [`UdpSocket::poll`]'s. It is one descriptor, open as long as the socket is there.
impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tell_of_arrivals();
        match &self.both {
            Some(both) => both.together.0.as_fd(),
            None => self.waker.as_fd(),
        }
    }
}

impl AsRawFd for UdpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        let peer = *self.peer.read();
        let (local, remote) =
            peer.map_or((self.bound, None), |peer| (peer.local, Some(peer.remote)));
        for group in std::mem::take(self.groups.get_mut()) {
            self.leave(group);
        }
        let host = self.stack.host();
        self.both = None;
        if let Some(ahead) = &host.ahead {
            ahead.remove(self.channel);
        }
        let mut receiving = self.receiving.lock();
        receiving.close_ahead();
        if let Some(ring) = receiving.ring.take() {
            let unread = ring.batch.len() as u64;
            receiving.tally.add(Outcome::Closed, unread);
        }
        drop(receiving);
        // Both at once: a socket that joins meanwhile must not lose the address.
        let mut table = host.table.lock();
        if !table.has_others(self.channel) {
            host.release(Protocol::Udp, self.bound);
        }
        table.close(Protocol::Udp, local, remote, self.channel);
    }
}

/// Has the device steer the endpoint's frames: to a ring of its own, or to us
/// at all.
fn steer(
    stack: &Stack,
    at: SocketAddr,
    place: Place,
    waker: &Waker,
) -> io::Result<(Option<Ring>, Option<Both>)> {
    let host = stack.host();
    let endpoint = Endpoint {
        protocol: Protocol::Udp,
        local: at,
    };
    if !stack.device_demultiplexes() {
        if place != Place::Beside {
            host.claim(endpoint.protocol, endpoint.local)?;
        }
        return Ok((None, None));
    }
    let ring = Ring::open(host, endpoint, place != Place::Alone)?;
    let together = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let readable = EpollEvent::new(EpollFlags::EPOLLIN, 0);
    together.add(waker, readable)?;
    together.add(ring.device.readiness(), readable)?;
    let both = Both {
        together,
        ring: Arc::clone(&ring.device),
    };
    Ok((Some(ring), Some(both)))
}
