//! The way out: addresses, next hops, and frames to the device.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ipnet::IpNet;
use parking_lot::Mutex;
use plimsoll_core::time::Instant;

use super::identification::Identification;
use super::membership::{Memberships, Query};
use super::neighbours::{Neighbours, Resolved, Word};
use super::paths::{self, Paths};
use super::peers::Peers;
use super::resolution::{Builder, solicited_node};
use super::source;
use crate::clock;
use crate::device::{Batch, Device, Frame, Mac};
use crate::error::Error;
use crate::wait::Waker;
use crate::wire::{ETHERNET_BYTES, emit, fragments};

/// Sends for all sockets of a stack, from any thread.
#[derive(Debug)]
pub(crate) struct Egress {
    device: Arc<dyn Device>,
    pub(crate) mac: Mac,
    pub(crate) mtu: usize,
    /// Whoever is at the other end of a link of two.
    peer: Option<Mac>,
    addresses: Box<[IpNet]>,
    /// Our addresses, and those of all hosts of our networks.
    nobodys: Box<[IpAddr]>,
    gateways: Box<[IpAddr]>,
    neighbours: Mutex<Neighbours>,
    /// When a neighbour was last found to have moved, in nanoseconds: where frames came from before that
    /// says nothing any more.
    moved_at: AtomicU64,
    /// On a device that shares the kernel's addresses, where neighbours that are asked answer the
    /// kernel: where they were when they were last heard of, under the addresses of next hops.
    heard: Option<Mutex<Peers>>,
    memberships: Memberships,
    pub(crate) paths: Paths,
    /// Wakes the proxies, who repeat unanswered questions.
    proxies: Arc<Waker>,
    identification: Identification,
    unsent: AtomicU64,
}

impl Egress {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        addresses: &[IpNet],
        gateways: &[IpAddr],
        proxies: Arc<Waker>,
    ) -> Result<Self, Error> {
        let capabilities = device.capabilities();
        let ours = addresses.iter().map(IpNet::addr);
        let nobodys = ours.chain(broadcasts_of(addresses).map(IpAddr::V4));
        Ok(Self {
            nobodys: nobodys.collect(),
            heard: (!device.owns_address()).then(|| Mutex::new(Peers::new())),
            mac: capabilities.mac,
            mtu: capabilities.mtu,
            peer: capabilities.peer,
            addresses: addresses.into(),
            gateways: gateways.into(),
            neighbours: Mutex::default(),
            moved_at: AtomicU64::new(0),
            memberships: memberships_of(&*device, addresses),
            paths: Paths::new()?,
            proxies,
            identification: Identification::default(),
            unsent: AtomicU64::new(0),
            device,
        })
    }

    /// Frames that could not be sent: no room in the device, no neighbour, or not by this link.
    pub(crate) fn unsent(&self) -> u64 {
        self.unsent.load(Ordering::Relaxed) + self.device.unsent()
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(IpNet::addr)
    }

    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|net| net.addr() == address)
    }

    /// Whether it is this host, by an address of the stack's or by one that is every host's own (RFC 1122, 3.2.1.3;
    /// RFC 4291, 2.5.3). Nothing for it may leave.
    fn is_this_host(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.is_local(address)
    }

    /// Whether what comes by the link may be from there: nobody else has an address of ours, and all hosts of
    /// a network send nothing (RFC 1122, 3.2.1.3).
    #[inline]
    pub(crate) fn is_anothers(&self, source: IpAddr) -> bool {
        !self.nobodys.contains(&source)
    }

    /// The address of ours to send from.
    pub(crate) fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        source::source_for(&self.addresses, destination)
    }

    /// The longest packet to `destination` that is not to be cut on its way.
    #[inline]
    pub(crate) fn mtu_to(&self, destination: IpAddr, now: Instant) -> usize {
        let path = self.paths.mtu(destination, now);
        path.map_or(self.mtu, |mtu| mtu.min(self.mtu))
    }

    /// Puts headers in front of a datagram's payload, the frame's range. One that a path might
    /// not take is remembered.
    #[inline]
    pub(crate) fn wrap_udp(&self, frame: &mut Frame, source: SocketAddr, destination: SocketAddr) {
        emit::wrap_udp(frame, self.mac, source, destination);
        self.remember(frame, 0, destination.ip());
    }

    /// `extension`: bytes between the network header and UDP's.
    #[inline]
    fn remember(&self, frame: &[u8], extension: usize, to: IpAddr) {
        if frame.len() <= ETHERNET_BYTES + paths::mtu_min(to) {
            return;
        }
        let at = ETHERNET_BYTES + emit::network_bytes(to) + extension;
        let header = frame.get(at..).and_then(|udp| udp.first_chunk());
        if let Some(header) = header {
            self.paths.on_sent(to, u64::from_be_bytes(*header));
        }
    }

    /// Whether it is handed to `destination` itself: a host of our networks, or of the link alone (RFC 4291, 2.5.6).
    fn is_on_link(&self, destination: IpAddr) -> bool {
        let stays = matches!(destination, IpAddr::V6(address) if address.is_unicast_link_local());
        stays || self.addresses.iter().any(|net| net.contains(&destination))
    }

    /// The neighbour that a packet to `destination` is handed to.
    fn next_hop(&self, destination: IpAddr) -> Option<IpAddr> {
        if self.is_on_link(destination) {
            return Some(destination);
        }
        let same_family = |gateway: &&IpAddr| gateway.is_ipv4() == destination.is_ipv4();
        self.gateways.iter().find(same_family).copied()
    }

    /// Whether nobody can be asked for its Ethernet address.
    #[inline]
    pub(crate) fn only_hears(&self) -> bool {
        self.heard.is_some()
    }

    /// A frame of `address` came from `via`, which is new.
    pub(crate) fn on_heard(&self, address: IpAddr, via: Mac, now: Instant) {
        if let Some(heard) = &self.heard {
            heard.lock().remember(self.heard_as(address), via, now);
        }
    }

    /// Where the way to `address` was when it was last heard of.
    pub(crate) fn last_heard(&self, address: IpAddr) -> Option<Mac> {
        self.heard.as_ref()?.lock().last(self.heard_as(address))
    }

    /// Whoever is not on the link is behind one router, as far as this knows.
    fn heard_as(&self, address: IpAddr) -> IpAddr {
        match address {
            _ if self.is_on_link(address) => address,
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Whether it is known whom to hand a packet to `destination` to.
    pub(crate) fn has_route(&self, destination: IpAddr) -> bool {
        self.next_hop(destination).is_some()
    }

    /// Whether there is a way to `destination`, which is one host.
    ///
    /// # Errors
    ///
    /// `NetworkUnreachable`: there is none, or it is many. `HostUnreachable`: it is this host.
    pub(crate) fn check_route(&self, destination: IpAddr) -> io::Result<()> {
        if self.is_this_host(destination) {
            return Err(host_unreachable());
        }
        let there = self.peer.is_some() || self.has_route(destination);
        match there && self.many(destination).is_none() {
            true => Ok(()),
            false => Err(unreachable()),
        }
    }

    /// Appends the frames of a UDP datagram to `batch`, those of an unknown
    /// neighbour excepted; its payload, wherever its parts lie, is copied. `via`: the Ethernet
    /// address to send to, if known.
    pub(crate) fn push_udp(
        &self,
        (source, destination): (SocketAddr, SocketAddr),
        via: Option<Mac>,
        payload: &[IoSlice<'_>],
        batch: &mut Batch,
        now: Instant,
    ) -> io::Result<()> {
        let (pool, to) = (self.device.pool(), destination.ip());
        let bytes = fragments::bytes_of(payload);
        if bytes > emit::payload_max(to) {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let mtu = self.mtu_to(to, now);
        if fragments::fits_one(to, mtu, bytes) {
            let frame = fragments::copy_one(pool, payload);
            let mut frame = frame.ok_or_else(no_buffers)?;
            self.wrap_udp(&mut frame, source, destination);
            return self.push(frame, to, via, batch, now);
        }
        let frames = fragments::copy(pool, to, mtu, payload).ok_or_else(no_buffers)?;
        self.push_fragments((source, destination), via, frames, batch, now)
    }

    /// Appends the fragments of a UDP datagram, whose payload is laid out in `frames`, to `batch`.
    pub(crate) fn push_fragments(
        &self,
        (source, destination): (SocketAddr, SocketAddr),
        via: Option<Mac>,
        mut frames: Vec<Frame>,
        batch: &mut Batch,
        now: Instant,
    ) -> io::Result<()> {
        let headers = fragments::Headers {
            mac: self.mac,
            source,
            destination,
            id: self.identification.next(source.ip(), destination.ip()),
        };
        headers.write(&mut frames);
        // Over IPv4 any router may cut a fragment once more.
        if let (Some(first), true) = (frames.first(), destination.is_ipv6()) {
            self.remember(first, emit::FRAGMENT_HEADER_BYTES, destination.ip());
        }
        for frame in frames {
            self.push(frame, destination.ip(), via, batch, now)?;
        }
        Ok(())
    }

    /// Gives a frame that is complete but for its link destination its
    /// direction, and appends it to `batch`.
    pub(crate) fn push(
        &self,
        mut frame: Frame,
        destination: IpAddr,
        via: Option<Mac>,
        batch: &mut Batch,
        now: Instant,
    ) -> io::Result<()> {
        if via.is_none() && self.is_this_host(destination) {
            // Nobody answers for an address of ours.
            return Err(host_unreachable());
        }
        let known = via.or(self.peer).or_else(|| self.many(destination));
        let known = known.or_else(|| self.last_heard(destination));
        if let Some(mac) = known {
            emit::set_link_destination(&mut frame, mac);
            batch.push_back(frame);
            return Ok(());
        }
        if self.only_hears() {
            return Err(host_unreachable());
        }
        let next = self.next_hop(destination).ok_or_else(unreachable)?;
        let resolved = self.neighbours.lock().resolve(next, frame, now);
        match resolved {
            Resolved::To {
                mac,
                mut frame,
                ask,
            } => {
                emit::set_link_destination(&mut frame, mac);
                batch.push_back(frame);
                if ask {
                    self.push_question(next, batch);
                }
            }
            Resolved::Kept { ask: true } => {
                self.push_question(next, batch);
                self.proxies.wake();
            }
            Resolved::Kept { ask: false } => {}
            Resolved::Dropped => {
                self.unsent.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// As [`push`](Self::push) to a peer that seemed to be at `via` and has not answered:
    /// to where neighbours say it is. Until one says something, `via` is the best guess.
    pub(crate) fn push_doubting(
        &self,
        mut frame: Frame,
        destination: IpAddr,
        via: Mac,
        batch: &mut Batch,
        now: Instant,
    ) -> io::Result<()> {
        if self.peer.is_some() {
            return self.push(frame, destination, None, batch, now);
        }
        let next = self.next_hop(destination).ok_or_else(unreachable)?;
        let (known, ask) = self.neighbours.lock().doubt(next, now);
        if ask {
            self.push_question(next, batch);
            self.proxies.wake();
        }
        emit::set_link_destination(&mut frame, known.unwrap_or(via));
        batch.push_back(frame);
        Ok(())
    }

    /// The link address of a group or of everybody.
    fn many(&self, destination: IpAddr) -> Option<Mac> {
        let broadcast = match destination {
            IpAddr::V4(address) => {
                address == Ipv4Addr::BROADCAST || self.broadcasts().any(|one| one == address)
            }
            IpAddr::V6(_) => false,
        };
        (broadcast || destination.is_multicast()).then(|| group_mac(destination))
    }

    /// The broadcast addresses of our networks.
    pub(crate) fn broadcasts(&self) -> impl Iterator<Item = Ipv4Addr> {
        broadcasts_of(&self.addresses)
    }

    fn push_question(&self, neighbour: IpAddr, batch: &mut Batch) {
        let from = self.source_for(neighbour);
        batch.extend(from.and_then(|from| self.builder().question(from, neighbour)));
    }

    pub(crate) fn builder(&self) -> Builder<'_> {
        Builder {
            pool: self.device.pool(),
            mac: self.mac,
        }
    }

    /// A neighbour said that it is at `mac`, or where it was: appends the frames that waited for it.
    pub(crate) fn learn(
        &self,
        address: IpAddr,
        mac: Option<Mac>,
        word: Word,
        batch: &mut Batch,
        now: Instant,
    ) {
        // Addresses of ours are ours, whoever claims them.
        if self.is_local(address) {
            return;
        }
        let Some(mac) = mac else {
            return self.neighbours.lock().confirm(address, word, now);
        };
        let mut neighbours = self.neighbours.lock();
        let before = neighbours.known(address);
        let waited = neighbours.learn(address, mac, word, now);
        if before.is_some() && neighbours.known(address) != before {
            self.moved_at.store(now.as_nanos(), Ordering::Relaxed);
        }
        drop(neighbours);
        for mut frame in waited {
            emit::set_link_destination(&mut frame, mac);
            batch.push_back(frame);
        }
    }

    /// When a neighbour was last found to have moved.
    #[inline]
    pub(crate) fn moved_at(&self) -> Instant {
        Instant::from_nanos(self.moved_at.load(Ordering::Relaxed))
    }

    /// Appends what tells neighbours where our addresses are. The other end of a link of two knows it.
    pub(crate) fn push_announcements(&self, batch: &mut Batch) {
        if self.peer.is_none() && !self.only_hears() {
            let all = self.addresses();
            batch.extend(all.filter_map(|address| self.builder().announcement(address)));
        }
    }

    /// Appends the questions that are due. Returns frames that waited for neighbours who do not
    /// answer, and when to ask again.
    pub(crate) fn push_questions(
        &self,
        batch: &mut Batch,
        now: Instant,
    ) -> (Vec<Frame>, Option<Instant>) {
        let mut neighbours = self.neighbours.lock();
        let (unanswered, given_up) = neighbours.poll_questions(now);
        let next = neighbours.next_question();
        drop(neighbours);
        let count = given_up.len() as u64;
        self.unsent.fetch_add(count, Ordering::Relaxed);
        for neighbour in unanswered {
            self.push_question(neighbour, batch);
        }
        (given_up, next)
    }

    /// One more socket is in the group.
    pub(crate) fn join(&self, group: IpAddr, now: Instant) -> io::Result<()> {
        self.memberships.join(group, now);
        self.tell(now)
    }

    /// One socket less is in it.
    pub(crate) fn leave(&self, group: IpAddr, now: Instant) {
        self.memberships.leave(group, now);
        // A router that is not told finds out when it asks.
        let _ = self.tell(now);
    }

    /// A router or a switch asks for members of groups.
    pub(crate) fn on_query(&self, query: &Query, now: Instant) {
        self.memberships.on_query(query, now);
    }

    /// Tells of a change now, and has the proxies tell of it again.
    fn tell(&self, now: Instant) -> io::Result<()> {
        let mut batch = Batch::new();
        self.push_memberships(&mut batch, now);
        self.proxies.wake();
        self.transmit_or_drop(&mut batch)
    }

    /// Appends what is to be told of memberships; returns when to do it again.
    pub(crate) fn push_memberships(&self, batch: &mut Batch, now: Instant) -> Option<Instant> {
        let (tellings, next) = self.memberships.poll(now);
        for telling in &tellings {
            let builder = self.builder();
            builder.tell(telling, self.addresses(), self.mtu, batch);
        }
        next
    }

    /// Sends what is in `batch`; what stays there found no room now.
    pub(crate) fn transmit(&self, batch: &mut Batch) -> io::Result<()> {
        if !batch.is_empty() {
            self.device.transmit(batch)?;
        }
        Ok(())
    }

    /// As [`transmit`](Self::transmit), but frames may wait in the device for
    /// [`push_on`](Self::push_on).
    pub(crate) fn enqueue(&self, batch: &mut Batch) -> io::Result<()> {
        if !batch.is_empty() {
            self.device.enqueue(batch)?;
        }
        Ok(())
    }

    /// Has the device go on with what waits there, and give frames back.
    pub(crate) fn push_on(&self) -> io::Result<()> {
        self.device.transmit(&mut Batch::new()).map(drop)
    }

    /// The same for who has no use for an error: the receiving thread tells that the device is gone.
    pub(crate) fn push_on_if_there(&self) {
        let _ = self.push_on();
    }

    /// As [`transmit`](Self::transmit), and drops what found no room.
    pub(crate) fn transmit_or_drop(&self, batch: &mut Batch) -> io::Result<()> {
        self.transmit(batch)?;
        self.unsent.fetch_add(batch.len() as u64, Ordering::Relaxed);
        batch.clear();
        Ok(())
    }
}

/// The addresses of all hosts of these networks.
fn broadcasts_of(addresses: &[IpNet]) -> impl Iterator<Item = Ipv4Addr> {
    addresses.iter().filter_map(|net| match net {
        IpNet::V4(net) if net.prefix_len() < 31 => Some(net.broadcast()),
        _ => None,
    })
}

/// Neighbours ask at an address's group (RFC 4291, 2.7.1), which switches that snoop deliver to its
/// members alone. What the kernel has as well the kernel reports.
fn memberships_of(device: &dyn Device, addresses: &[IpNet]) -> Memberships {
    let memberships = Memberships::new();
    let addresses = addresses.iter().map(IpNet::addr);
    for address in addresses.filter(|_| device.owns_address()) {
        if let IpAddr::V6(address) = address {
            memberships.join(solicited_node(address).into(), clock::now());
        }
    }
    memberships
}

/// The link address of a multicast group (RFC 1112, RFC 2464) or of everybody.
pub(crate) fn group_mac(group: IpAddr) -> Mac {
    match group {
        IpAddr::V4(address) if address.is_multicast() => {
            let [_, b, c, d] = address.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V4(_) => [0xff; 6],
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

fn no_buffers() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOBUFS)
}

fn host_unreachable() -> io::Error {
    io::Error::from_raw_os_error(libc::EHOSTUNREACH)
}

fn unreachable() -> io::Error {
    io::Error::from_raw_os_error(libc::ENETUNREACH)
}
