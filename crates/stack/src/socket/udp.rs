//! UDP sockets, shaped like [`std::net::UdpSocket`].
//!
//! With the lazy receive paths the receiving call does the protocol processing:
//! it takes a frame from the socket's channel (or ring), checks IP and UDP, joins
//! fragments, and returns the datagram or goes on with the next frame. So a
//! thread that does not run spends nothing on packets.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use parking_lot::{Mutex, RwLock};
use plimsoll_core::channel::{InterruptRequest, PooledConsumer};
use plimsoll_core::demux::{ChannelId, Protocol};
use plimsoll_core::time::Instant;

use super::addresses::{first, first_that_works, on_a_free_port};
use super::options::Options;
use super::peers::Peers;
use crate::account::{Account, Owner};
use crate::clock;
use crate::device::{Batch, Device, Endpoint, Frame, Mac};
use crate::error::TooLong;
use crate::host::Host;
use crate::link::egress::Egress;
use crate::outcome::Outcome;
use crate::receive::ni_lrp::Ring;
use crate::stack::Stack;
use crate::table::{Arrived, Bound, Pending};
use crate::wait::{self, Waker};
use crate::wire::datagram::{Datagram, Input, Payload};
use crate::wire::{UDP_BYTES, emit};

/// A UDP socket of a [`Stack`].
///
/// Differences from the standard library's: an IPv4 peer of a socket bound to
/// `[::]` has an IPv4 address, not a mapped one. A connected socket's next call returns what
/// an ICMP error told: `ConnectionRefused` (nobody has the port), `HostUnreachable` or
/// `NetworkUnreachable`. Anybody who knows both ends can make one up.
///
/// All methods take `&self`; threads may share a socket.
#[derive(Debug)]
pub struct UdpSocket {
    stack: Stack,
    bound: SocketAddr,
    channel: ChannelId,
    peer: RwLock<Option<Peer>>,
    receiving: Mutex<Receiving>,
    sending: Mutex<Batch>,
    account: Arc<Account>,
    peers: Mutex<Peers>,
    groups: Mutex<Vec<IpAddr>>,
    options: Options,
    waker: Arc<Waker>,
    trouble: Arc<Pending>,
    /// Waker and ring, where the device demultiplexes.
    both: Option<Both>,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    /// What the socket is bound to since it is connected.
    local: SocketAddr,
    remote: SocketAddr,
}

/// What receives: one thread at a time.
#[derive(Debug)]
struct Receiving {
    consumer: PooledConsumer<Arrived>,
    ring: Option<Ring>,
    tally: Arc<Account>,
    inhibiting: Arc<AtomicBool>,
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

/// Frames that one look at the queue may find unfit before the clock is read.
const UNFIT_MAX: usize = 64;
/// Between two tries to send into a full ring.
const RETRY_SEND: Duration = Duration::from_micros(50);

impl UdpSocket {
    /// Binds to an address of the stack, or to the wildcard; port 0 takes a free one.
    ///
    /// # Errors
    ///
    /// `AddrInUse`: another socket has it. `AddrNotAvailable`: it is no address
    /// of this stack. `OutOfMemory`: all channels are in use. `Unsupported`:
    /// the receive path is `ni-lrp` and the device cannot steer.
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
        host.check_bindable(at.ip())?;
        let account = host.book.open(Owner::Udp(at));
        let (bound, first) = host.table.lock().bind_shared(at, &account)?;
        let place = if first { Place::First } else { Place::Beside };
        Self::with(stack, at, bound, account, place)
    }

    fn bind_one(stack: &Stack, at: SocketAddr) -> io::Result<Self> {
        let host = stack.host();
        host.check_bindable(at.ip())?;
        let bind = |port| {
            let at = SocketAddr::new(at.ip(), port);
            let account = host.book.open(Owner::Udp(at));
            let bound = host.table.lock().bind(Protocol::Udp, at, &account);
            Ok((at, bound?, account))
        };
        let (at, bound, account) = match at.port() {
            0 => on_a_free_port(bind)?,
            port => bind(port)?,
        };
        Self::with(stack, at, bound, account, Place::Alone)
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
        Ok(Self {
            bound: at,
            channel: bound.channel,
            peer: RwLock::new(None),
            receiving: Mutex::new(Receiving {
                consumer: bound.consumer,
                ring,
                tally: Arc::clone(&account),
                inhibiting: bound.inhibiting,
            }),
            sending: Mutex::new(Batch::new()),
            account,
            peers: Mutex::new(Peers::new()),
            groups: Mutex::default(),
            options: Options::default(),
            waker: bound.waker,
            trouble: bound.trouble,
            both,
            stack: stack.clone(),
        })
    }

    /// From now on datagrams come from and go to `to` alone.
    ///
    /// # Errors
    ///
    /// It cannot be reached from this socket's address, or the socket is
    /// connected already.
    pub fn connect(&self, to: impl ToSocketAddrs) -> io::Result<()> {
        let to = first(to)?;
        let mut peer = self.peer.write();
        if peer.is_some() {
            return Err(io::Error::from_raw_os_error(libc::EISCONN));
        }
        let (local, remote) = self.host().ends(self.bound, to)?;
        let mut table = self.host().table.lock();
        table.connect(Protocol::Udp, (self.bound, local), remote, self.channel)?;
        *peer = Some(Peer { local, remote });
        Ok(())
    }

    /// From now on the socket also gets what is sent to this multicast group at its port.
    /// Answers to it come from an address of the stack.
    ///
    /// The device must hear the group: an adapter that filters is told by
    /// `ip maddress add 01:00:5e:… dev IFACE`.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: no multicast address. `AddrInUse`: this socket or another of the
    /// same port is in the group.
    pub fn join_multicast(&self, group: IpAddr) -> io::Result<()> {
        let group = group.to_canonical();
        if !group.is_multicast() {
            let why = format!("{group} is no multicast address");
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
        host.egress.join(group)
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
        host.egress.leave(group);
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

    /// Receives a datagram into `buffer`; what does not fit is discarded.
    /// Returns its length there and who sent it.
    ///
    /// # Errors
    ///
    /// `WouldBlock`: nothing there, and the socket is non-blocking or the read
    /// timeout is over. `BrokenPipe`: the device has failed.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let datagram = self.recv_datagram()?;
        let payload = datagram.payload();
        let length = payload.len().min(buffer.len());
        buffer[..length].copy_from_slice(&payload[..length]);
        let mut peers = self.peers.lock();
        peers.remember(datagram.source.ip(), datagram.via, clock::now());
        Ok((length, datagram.source))
    }

    /// As [`recv_from`](Self::recv_from), for connected sockets.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(buffer)?.0)
    }

    /// Receives a datagram without copying it.
    ///
    /// # Errors
    ///
    /// As [`recv_from`](Self::recv_from).
    pub fn recv_datagram(&self) -> io::Result<Datagram> {
        self.receive_some(|receiving, now| {
            let mut one = None;
            self.take(receiving, self.remote(), now, |datagram| {
                one = Some(datagram);
            })?;
            Ok(one)
        })
    }

    /// Appends up to `max` datagrams to `batch`, without copying them, and waits
    /// for the first only. Returns how many.
    ///
    /// # Errors
    ///
    /// As [`recv_from`](Self::recv_from).
    pub fn recv_batch(&self, batch: &mut Vec<Datagram>, max: usize) -> io::Result<usize> {
        self.receive_some(|receiving, now| {
            let (before, remote) = (batch.len(), self.remote());
            while batch.len() - before < max
                && self.take(receiving, remote, now, |datagram| batch.push(datagram))?
            {}
            let received = batch.len() - before;
            Ok((received > 0 || max == 0).then_some(received))
        })
    }

    /// Calls `receive` until it has something, as the options say.
    fn receive_some<T>(
        &self,
        mut receive: impl FnMut(&mut Receiving, Instant) -> io::Result<Option<T>>,
    ) -> io::Result<T> {
        let options = self.options.get();
        let mut now = clock::now();
        let deadline = options.read_timeout.map(|timeout| now + timeout);
        let polling = now + options.busy_poll;
        loop {
            self.host().trigger_state(now);
            self.trouble.take()?;
            let mut receiving = self.receiving.lock();
            let work = self.account.work();
            let received = receive(&mut receiving, now)?;
            drop(work);
            if let Some(received) = received {
                return Ok(received);
            }
            if receiving.has_more() || !options.nonblocking && now < polling {
                // Many were unfit, or something may come at once; look at the clock.
            } else {
                self.waker.clear();
                self.trouble.take()?;
                match receiving.consumer.request_interrupt() {
                    InterruptRequest::Ready => continue,
                    InterruptRequest::Closed => return Err(self.host().failure()),
                    InterruptRequest::Pending => {}
                }
                drop(receiving);
                if options.nonblocking {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let limit = deadline.map(|deadline| deadline.saturating_since(now));
                self.wait(limit)?;
            }
            now = clock::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return self.last_look(receive, now);
            }
        }
    }

    /// Waits for something to receive.
    fn wait(&self, limit: Option<Duration>) -> io::Result<()> {
        let waker = self.waker.as_fd();
        match &self.both {
            // Not for the two of them together: waking through one more descriptor takes longer.
            Some(both) => drop(wait::wait_any([waker, both.ring.readiness()], limit)?),
            None => drop(wait::wait_any([waker], limit)?),
        }
        Ok(())
    }

    /// The time is over; what came meanwhile is received nevertheless.
    fn last_look<T>(
        &self,
        mut receive: impl FnMut(&mut Receiving, Instant) -> io::Result<Option<T>>,
        now: Instant,
    ) -> io::Result<T> {
        let received = receive(&mut self.receiving.lock(), now)?;
        received.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Whom the socket is connected to.
    fn remote(&self) -> Option<SocketAddr> {
        self.peer.read().map(|peer| peer.remote)
    }

    /// Gives the next datagram to `keep`, with its protocol processing if that is still
    /// to be done. False: there is none. `remote`: whom the socket is connected to.
    #[inline]
    fn take(
        &self,
        receiving: &mut Receiving,
        remote: Option<SocketAddr>,
        now: Instant,
        keep: impl FnOnce(Datagram),
    ) -> io::Result<bool> {
        for _ in 0..UNFIT_MAX {
            // A frame of a ring goes straight on: each detour costs a copy of its state.
            let input = match receiving.next_of_ring()? {
                Some(frame) => self.host().udp_input(frame, false, now),
                None => match self.next_of_channel(receiving, now) {
                    Some(input) => input,
                    None => return Ok(false),
                },
            };
            let outcome = match input {
                Input::Datagram(datagram) if self.is_wanted(&datagram, remote) => {
                    receiving.tally.count(Outcome::Delivered);
                    keep(datagram);
                    return Ok(true);
                }
                Input::Datagram(_) => Outcome::OtherPeer,
                Input::Ended(outcome) => outcome,
                Input::Kept => continue,
            };
            receiving.tally.count(outcome);
        }
        Ok(false)
    }

    fn next_of_channel(&self, receiving: &mut Receiving, now: Instant) -> Option<Input> {
        let arrived = receiving.consumer.pop(now)?.item;
        receiving.tell_of_room(self.host());
        Some(match arrived {
            Arrived::Ready(datagram) => Input::Datagram(datagram),
            Arrived::Raw { frame, early } => self.host().udp_input(frame, early, now),
        })
    }

    /// The demultiplexer chose by headers that were not checked yet.
    fn is_wanted(&self, datagram: &Datagram, remote: Option<SocketAddr>) -> bool {
        remote.is_none_or(|remote| remote == datagram.source)
            && datagram.destination.port() == self.bound.port()
    }

    /// Sends a datagram; of a neighbour that is not known yet, once it answers.
    ///
    /// # Errors
    ///
    /// `InvalidInput` or `ENETUNREACH`: no way there. `EMSGSIZE`: longer than a
    /// datagram can be. [`TooLong`](crate::TooLong): it would be cut, and the socket was told
    /// not to. What an ICMP error told. `WouldBlock`: the device has no room, and the socket
    /// is non-blocking or the write timeout is over.
    pub fn send_to(&self, payload: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let to = first(to)?;
        self.send_batch([(payload, to)])?;
        Ok(payload.len())
    }

    /// Sends a datagram to whom the socket is connected.
    ///
    /// # Errors
    ///
    /// `EDESTADDRREQ`: it is not connected. And those of [`send_to`](Self::send_to).
    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        let to = self
            .peer_addr()
            .map_err(|_| io::Error::from_raw_os_error(libc::EDESTADDRREQ))?;
        self.send_batch([(payload, to)])?;
        Ok(payload.len())
    }

    /// Sends datagrams with one call into the device. Returns how many; fewer
    /// than given only if the device has no room.
    ///
    /// # Errors
    ///
    /// As [`send_to`](Self::send_to), for the first that cannot be sent; those
    /// before it are.
    pub fn send_batch<'a>(
        &self,
        datagrams: impl IntoIterator<Item = (&'a [u8], SocketAddr)>,
    ) -> io::Result<usize> {
        self.trouble.take()?;
        let mut batch = self.sending.lock();
        let _work = self.account.work();
        let now = clock::now();
        let local = self.local_addr()?;
        let (mut built, mut failure) = (0, None);
        for (payload, to) in datagrams {
            if let Err(error) = self.push(local, payload, to, &mut batch, now) {
                failure = Some(error);
                break;
            }
            built += 1;
        }
        let sent = self.flush(&mut batch, built)?;
        match failure {
            Some(error) if sent == 0 => Err(error),
            _ => Ok(sent),
        }
    }

    fn push(
        &self,
        local: SocketAddr,
        payload: &[u8],
        to: SocketAddr,
        batch: &mut Batch,
        now: Instant,
    ) -> io::Result<()> {
        let ends = self.host().ends(local, to)?;
        if self.options.get().dont_fragment {
            self.check_length(payload, ends.1.ip(), now)?;
        }
        let via = self.via(ends.1.ip(), now);
        self.egress().push_udp(ends, via, payload, batch, now)
    }

    /// Sends received datagrams back to where they came from, each in its own
    /// memory, with what is in their payload now. `batch` is empty afterwards.
    /// Returns how many were sent.
    ///
    /// # Errors
    ///
    /// As [`send_to`](Self::send_to).
    pub fn reply_batch(&self, batch: &mut Vec<Datagram>) -> io::Result<usize> {
        let mut out = self.sending.lock();
        let _work = self.account.work();
        let now = clock::now();
        let count = batch.len();
        for datagram in batch.drain(..) {
            let (mut source, to) = (datagram.destination, datagram.source);
            if source.ip().is_multicast() {
                let ours = self.egress().source_for(to.ip());
                source.set_ip(ours.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))?);
            }
            let via = Some(datagram.via);
            match datagram.payload {
                Payload::Frame(mut frame) if self.payload_max(to.ip(), now) >= frame.len() => {
                    self.egress().wrap_udp(&mut frame, source, to);
                    self.egress().push(frame, to.ip(), via, &mut out, now)?;
                }
                payload => {
                    let datagram = Datagram {
                        payload,
                        ..datagram
                    };
                    let bytes = datagram.payload();
                    if self.options.get().dont_fragment {
                        self.check_length(bytes, to.ip(), now)?;
                    }
                    let ends = (source, to);
                    self.egress().push_udp(ends, via, bytes, &mut out, now)?;
                }
            }
        }
        self.flush(&mut out, count)
    }

    /// The longest payload that goes in one packet all the way, as far as is known.
    fn payload_max(&self, to: IpAddr, now: Instant) -> usize {
        let headers = emit::network_bytes(to) + UDP_BYTES;
        self.egress().mtu_to(to, now).saturating_sub(headers)
    }

    fn check_length(&self, payload: &[u8], to: IpAddr, now: Instant) -> io::Result<()> {
        let payload_max = self.payload_max(to, now);
        let fits = payload.len() <= payload_max;
        let too_long = || TooLong {
            to,
            payload: payload.len(),
            payload_max,
        };
        fits.then_some(()).ok_or_else(|| too_long().into())
    }

    /// The longest payload to `to` that goes there in one packet, as far as is known: what this
    /// link takes, or less where a router has told of a smaller link on the path.
    #[must_use]
    pub fn payload_max_to(&self, to: IpAddr) -> usize {
        self.payload_max(to.to_canonical(), clock::now())
    }

    /// Whether a datagram that does not go in one packet is refused
    /// ([`TooLong`](crate::TooLong)) instead of being cut into fragments. Default: no.
    pub fn set_dont_fragment(&self, dont_fragment: bool) {
        self.options.set_dont_fragment(dont_fragment);
    }

    /// Sends what is in `batch`, waiting for room as the options say.
    fn flush(&self, batch: &mut Batch, datagrams: usize) -> io::Result<usize> {
        let options = self.options.get();
        let deadline = options.write_timeout.map(|timeout| clock::now() + timeout);
        loop {
            self.egress().transmit(batch)?;
            if batch.is_empty() {
                return Ok(datagrams);
            }
            let over = deadline.is_some_and(|deadline| clock::now() >= deadline);
            if options.nonblocking || over {
                let unsent = batch.len();
                batch.clear();
                return match datagrams.saturating_sub(unsent) {
                    0 => Err(io::ErrorKind::WouldBlock.into()),
                    sent => Ok(sent),
                };
            }
            std::thread::sleep(RETRY_SEND);
        }
    }

    /// Whether calls wait, or return `WouldBlock`.
    ///
    /// # Errors
    ///
    /// None; as in the standard library.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.options.set_nonblocking(nonblocking);
        Ok(())
    }

    /// A receiving call that finds nothing looks again for so long before it sleeps
    /// (as `SO_BUSY_POLL` has the kernel do): the CPU pays for what waking the thread would
    /// take. It is worth it with the receive path `ni-lrp`, where nobody stands between the
    /// device and this call. Default: not at all.
    pub fn set_busy_poll(&self, busy_poll: Duration) {
        self.options.set_busy_poll(busy_poll);
    }

    /// How long receiving waits; none: for ever.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for zero, as in the standard library.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.options.set_read_timeout(timeout)
    }

    /// How long sending waits for room in the device; none: for ever.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for zero, as in the standard library.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.options.set_write_timeout(timeout)
    }

    /// Where a peer's datagrams came from on the link.
    pub(super) fn via(&self, peer: IpAddr, now: Instant) -> Option<Mac> {
        self.peers.lock().get(peer, now)
    }

    pub(super) fn host(&self) -> &Host {
        self.stack.host()
    }

    pub(super) fn egress(&self) -> &Egress {
        &self.host().egress
    }
}

/// Readable when something has come since a call returned `WouldBlock`: receive
/// until that, then wait for this descriptor, with poll(2) or an event loop.
impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.both {
            Some(both) => both.together.0.as_fd(),
            None => self.waker.as_fd(),
        }
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
        let receiving = self.receiving.get_mut();
        if let Some(ring) = receiving.ring.take() {
            let unread = ring.batch.len() as u64;
            receiving.tally.add(Outcome::Closed, unread);
        }
        // Both at once: a socket that joins meanwhile must not lose the address.
        let mut table = host.table.lock();
        if !table.has_others(self.channel) {
            host.release(Protocol::Udp, self.bound);
        }
        table.close(Protocol::Udp, local, remote, self.channel);
    }
}

impl Receiving {
    /// The next frame of the socket's own ring, if it has one.
    #[inline]
    fn next_of_ring(&mut self) -> io::Result<Option<Frame>> {
        let ring = self.ring.as_mut();
        ring.map_or(Ok(None), |ring| ring.next(&self.tally))
    }

    fn has_more(&self) -> bool {
        let in_ring = self.ring.as_ref().map_or(0, |ring| ring.batch.len());
        in_ring + self.consumer.occupancy() > 0
    }

    /// If this channel inhibits input, its poller wants to know what was taken.
    fn tell_of_room(&self, host: &Host) {
        if self.inhibiting.load(Ordering::Relaxed) && self.consumer.occupancy() == 0 {
            host.attention.wake();
        }
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
