//! What is known of one address family, and the look-up in it.

use alloc::vec::Vec;
use core::hash::Hasher;
use core::net::{Ipv4Addr, Ipv6Addr};

use siphasher::sip::SipHasher13;
use smoltcp::wire::IpProtocol;

use super::endpoints::{Group, Port, Protocol, Socket};
use super::memory::{Memory, Slot};
use super::parse::{self, Datagram, Part, Ports};
use super::table::{Address, Full, Key, Seed, Table};
use super::{ChannelId, Classified, Demand, DemuxConfig, Kind, Shared};
use crate::time::Instant;

/// How a destination address concerns the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Local,
    /// Multicast or broadcast.
    Many,
}

/// Address and port of a bound socket or of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place<A> {
    pub(super) address: A,
    pub(super) port: Port,
}

/// Both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow<A> {
    pub(super) local: A,
    pub(super) remote: A,
    pub(super) local_port: u16,
    pub(super) remote_port: u16,
}

/// What tells a fragmented datagram from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DatagramKey<A> {
    source: A,
    destination: A,
    id: u32,
    /// 0 in IPv6.
    protocol: u8,
}

impl<A: Address> Key for Place<A> {
    #[inline]
    fn feed(&self, hasher: &mut SipHasher13) {
        self.address.feed_one(self.port.bits(), hasher);
    }
}

impl Key for Port {
    #[inline]
    fn feed(&self, hasher: &mut SipHasher13) {
        hasher.write_u32(self.bits());
    }
}

impl<A: Address> Key for Flow<A> {
    #[inline]
    fn feed(&self, hasher: &mut SipHasher13) {
        let ports = u32::from(self.local_port) << 16 | u32::from(self.remote_port);
        self.local.feed_two(self.remote, ports, hasher);
    }
}

impl<A: Address> Key for DatagramKey<A> {
    #[inline]
    fn feed(&self, hasher: &mut SipHasher13) {
        self.source.feed_two(self.destination, self.id, hasher);
        hasher.write_u8(self.protocol);
    }
}

// As `Demux::memory_bytes` documents them.
const _: () = {
    assert!(size_of::<Slot<DatagramKey<Ipv4Addr>, (Kind, ChannelId)>>() == 40);
    assert!(size_of::<Slot<DatagramKey<Ipv4Addr>, ()>>() == 40);
    assert!(size_of::<Slot<DatagramKey<Ipv6Addr>, (Kind, ChannelId)>>() == 64);
    assert!(size_of::<Slot<DatagramKey<Ipv6Addr>, ()>>() == 64);
    assert!(size_of::<Slot<Flow<Ipv4Addr>, ()>>() == 32);
    assert!(size_of::<Slot<Flow<Ipv6Addr>, ()>>() == 56);
};

/// Addresses, endpoints and memories of one family.
#[derive(Debug)]
pub(super) struct Family<A> {
    /// The host's unicast and broadcast addresses, in order.
    addresses: Vec<(A, Reach)>,
    pub(super) bound: Table<Place<A>, Socket>,
    pub(super) groups: Table<Place<A>, Group>,
    pub(super) udp_connections: Table<Flow<A>, ChannelId>,
    pub(super) tcp_connections: Table<Flow<A>, ChannelId>,
    pub(super) time_wait: Memory<Flow<A>, ()>,
    /// Where the first fragment of a datagram led.
    pub(super) firsts: Memory<DatagramKey<A>, (Kind, ChannelId)>,
    /// Datagrams with later fragments on the fragment channel.
    strays: Memory<DatagramKey<A>, ()>,
}

/// What differs between the families in looking a datagram up.
pub(super) trait Version: Address {
    /// Multicast, or IPv4's limited broadcast.
    fn is_many(self) -> bool;
    /// What of the protocol number tells datagrams apart (RFC 791 and RFC 8200, 4.5).
    fn datagram_protocol(protocol: IpProtocol) -> u8;
    /// The kind of what is neither UDP nor TCP.
    fn other(protocol: IpProtocol, payload: &[u8]) -> Kind;
    /// The socket at a wildcard that takes this family.
    fn wildcard(shared: &Shared, port: Port) -> Option<&Socket>;
}

impl Version for Ipv4Addr {
    fn is_many(self) -> bool {
        self.is_multicast() || self.is_broadcast()
    }

    fn datagram_protocol(protocol: IpProtocol) -> u8 {
        protocol.into()
    }

    fn other(protocol: IpProtocol, payload: &[u8]) -> Kind {
        match protocol {
            IpProtocol::Icmp => parse::icmpv4(payload),
            _ => Kind::Other,
        }
    }

    fn wildcard(shared: &Shared, port: Port) -> Option<&Socket> {
        let sockets = shared.wildcards.get(&port)?;
        let dual_stack = sockets.v6.as_ref().filter(|socket| socket.dual_stack);
        sockets.v4.as_ref().or(dual_stack)
    }
}

impl Version for Ipv6Addr {
    fn is_many(self) -> bool {
        self.is_multicast()
    }

    fn datagram_protocol(_: IpProtocol) -> u8 {
        0
    }

    fn other(protocol: IpProtocol, payload: &[u8]) -> Kind {
        match protocol {
            IpProtocol::Icmpv6 => parse::icmpv6(payload),
            _ => Kind::Other,
        }
    }

    fn wildcard(shared: &Shared, port: Port) -> Option<&Socket> {
        shared.wildcards.get(&port)?.v6.as_ref()
    }
}

impl<A: Version> Family<A> {
    pub(super) fn new(config: &DemuxConfig, seed: Seed) -> Self {
        let (fragments, lifetime) = (config.fragments_max, config.fragment_lifetime);
        Self {
            addresses: Vec::with_capacity(config.addresses_max),
            bound: Table::new(config.sockets_max, seed),
            groups: Table::new(config.groups_max, seed),
            udp_connections: Table::new(config.udp_connections_max, seed),
            tcp_connections: Table::new(config.tcp_connections_max, seed),
            time_wait: Memory::new(config.time_wait_max, config.time_wait_lifetime, seed),
            firsts: Memory::new(fragments, lifetime, seed),
            strays: Memory::new(fragments, lifetime, seed),
        }
    }

    /// How `address` concerns the host; nothing if it does not.
    pub(super) fn reach(&self, address: A) -> Option<Reach> {
        if address.is_many() {
            return Some(Reach::Many);
        }
        let found = self
            .addresses
            .binary_search_by_key(&address, |known| known.0);
        found.ok().map(|place| self.addresses[place].1)
    }

    /// Adds an address, or gives a known one another reach.
    pub(super) fn add_address(&mut self, address: A, reach: Reach) -> Result<(), Full> {
        match self
            .addresses
            .binary_search_by_key(&address, |known| known.0)
        {
            Ok(place) => self.addresses[place].1 = reach,
            Err(_) if self.addresses.len() == self.addresses.capacity() => return Err(Full),
            Err(place) => self.addresses.insert(place, (address, reach)),
        }
        Ok(())
    }

    pub(super) fn remove_address(&mut self, address: A) -> bool {
        let found = self
            .addresses
            .binary_search_by_key(&address, |known| known.0);
        found.is_ok_and(|place| {
            self.addresses.remove(place);
            true
        })
    }

    /// Rules 7 to 11 for a datagram that concerns the host.
    pub(super) fn classify(
        &mut self,
        shared: &Shared,
        reach: Reach,
        datagram: &Datagram<'_, A>,
        now: Instant,
    ) -> Result<Classified, Kind> {
        match (datagram.part, datagram.protocol) {
            (Part::Whole, IpProtocol::Udp) => {
                let ports = parse::udp(datagram.payload)?;
                self.udp(shared, reach, datagram, ports)
            }
            (Part::Whole, IpProtocol::Tcp) => self.tcp(shared, reach, datagram, now),
            (Part::Whole, protocol) => Err(A::other(protocol, datagram.payload)),
            (Part::First(id), IpProtocol::Udp) => {
                self.first_fragment(shared, reach, datagram, id, now)
            }
            (Part::First(_), _) => Err(Kind::Fragment),
            (Part::Later(id), _) => self.later_fragment(datagram, id, now),
        }
    }

    fn udp(
        &self,
        shared: &Shared,
        reach: Reach,
        datagram: &Datagram<'_, A>,
        ports: Ports,
    ) -> Result<Classified, Kind> {
        let place = Place {
            address: datagram.destination,
            port: Port::new(Protocol::Udp, ports.destination),
        };
        let channel = match reach {
            Reach::Many => {
                let group = self.groups.get(&place).ok_or(Kind::Multicast)?;
                return Ok(Classified::new(Kind::Multicast, group.channel));
            }
            Reach::Local => match self.udp_connections.get(&flow(datagram, ports)) {
                Some(channel) => *channel,
                None => self.socket(shared, &place).ok_or(Kind::ClosedPort)?.channel,
            },
        };
        Ok(Classified::new(Kind::UdpSocket, channel))
    }

    fn tcp(
        &self,
        shared: &Shared,
        reach: Reach,
        datagram: &Datagram<'_, A>,
        now: Instant,
    ) -> Result<Classified, Kind> {
        let (ports, asks) = parse::tcp(datagram.payload)?;
        if reach == Reach::Many {
            return Err(Kind::Other);
        }
        let flow = flow(datagram, ports);
        if let Some(channel) = self.tcp_connections.get(&flow) {
            return Ok(Classified::new(Kind::TcpConnection, *channel));
        }
        if self.time_wait.get(&flow, now).is_some() {
            return Err(Kind::TcpConnection);
        }
        let place = Place {
            address: datagram.destination,
            port: Port::new(Protocol::Tcp, ports.destination),
        };
        let listener = self.socket(shared, &place).ok_or(Kind::ClosedPort)?;
        let demand = match (asks, listener.beyond_backlog) {
            (false, _) => Demand::Known,
            (true, false) => Demand::New,
            (true, true) => Demand::Excess,
        };
        Ok(Classified {
            demand,
            ..Classified::new(Kind::TcpListener, listener.channel)
        })
    }

    /// The socket bound to this address, else the one at the wildcard.
    pub(super) fn socket<'a>(&'a self, shared: &'a Shared, place: &Place<A>) -> Option<&'a Socket> {
        let bound = self.bound.get(place);
        bound.or_else(|| A::wildcard(shared, place.port))
    }

    fn first_fragment(
        &mut self,
        shared: &Shared,
        reach: Reach,
        datagram: &Datagram<'_, A>,
        id: u32,
        now: Instant,
    ) -> Result<Classified, Kind> {
        let ports = parse::udp_first(datagram.payload)?;
        let classified = self
            .udp(shared, reach, datagram, ports)
            .unwrap_or_else(|kind| shared.unclaimed(kind));
        let key = datagram_key(datagram, id);
        self.firsts
            .insert(key, (classified.kind, classified.channel), now);
        Ok(Classified {
            earlier_fragments: self
                .strays
                .forget(&key)
                .is_some_and(|expires| now < expires),
            ..classified
        })
    }

    fn later_fragment(
        &mut self,
        datagram: &Datagram<'_, A>,
        id: u32,
        now: Instant,
    ) -> Result<Classified, Kind> {
        let key = datagram_key(datagram, id);
        let Some((kind, channel)) = self.firsts.get(&key, now) else {
            self.strays.insert(key, (), now);
            return Err(Kind::Fragment);
        };
        Ok(Classified::new(kind, channel))
    }

    pub(super) fn fragments_forgotten(&self) -> u64 {
        self.firsts.displaced()
    }

    pub(super) fn time_wait_forgotten(&self) -> u64 {
        self.time_wait.displaced()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.addresses.capacity() * size_of::<(A, Reach)>()
            + self.bound.memory_bytes()
            + self.groups.memory_bytes()
            + self.udp_connections.memory_bytes()
            + self.tcp_connections.memory_bytes()
            + self.time_wait.memory_bytes()
            + self.firsts.memory_bytes()
            + self.strays.memory_bytes()
    }
}

fn flow<A: Copy>(datagram: &Datagram<'_, A>, ports: Ports) -> Flow<A> {
    Flow {
        local: datagram.destination,
        remote: datagram.source,
        local_port: ports.destination,
        remote_port: ports.source,
    }
}

fn datagram_key<A: Version>(datagram: &Datagram<'_, A>, id: u32) -> DatagramKey<A> {
    DatagramKey {
        source: datagram.source,
        destination: datagram.destination,
        id,
        protocol: A::datagram_protocol(datagram.protocol),
    }
}
