//! A demultiplexer as plain as can be, to compare the fast one with.
//!
//! etherparse reads the headers, endpoints stand in one list that is searched
//! from the front, and what is remembered stands in lists in the order in which
//! it came. It shares with `plimsoll_core::demux` only the types of the answer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use etherparse::{
    EtherType, Ethernet2HeaderSlice, IpAuthHeaderSlice, IpNumber, Ipv4HeaderSlice,
    Ipv6FragmentHeaderSlice, Ipv6HeaderSlice, Ipv6RawExtHeaderSlice, SingleVlanHeaderSlice,
    TcpHeaderSlice, UdpHeaderSlice,
};
use plimsoll_core::demux::{
    ChannelId, Classified, Demand, DemuxConfig, EndpointError, Kind, Protocol,
};
use plimsoll_core::time::Instant;

/// A demultiplexer without any art.
#[derive(Debug)]
pub struct Model {
    config: DemuxConfig,
    addresses: Vec<(IpAddr, bool)>,
    sockets: Vec<Socket>,
    connections: Vec<(Connection, ChannelId)>,
    groups: Vec<(SocketAddr, ChannelId, u32)>,
    forward: [ChannelId; 64],
    time_wait: [Recent<Connection, ()>; 2],
    firsts: [Recent<Datagram, (Kind, ChannelId)>; 2],
    strays: [Recent<Datagram, ()>; 2],
}

#[derive(Clone, Copy, Debug)]
struct Socket {
    protocol: Protocol,
    at: SocketAddr,
    dual_stack: bool,
    beyond_backlog: bool,
    channel: ChannelId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Connection {
    protocol: Protocol,
    local: SocketAddr,
    remote: SocketAddr,
}

/// Source, destination, identification, and the protocol in IPv4.
type Datagram = (IpAddr, IpAddr, u32, u8);

/// Keys in the order in which they came, at most `capacity`.
#[derive(Debug)]
struct Recent<K, V> {
    entries: Vec<(K, V, Instant)>,
    capacity: usize,
    lifetime: Duration,
}

impl<K: Copy + PartialEq, V: Copy> Recent<K, V> {
    fn new(capacity: usize, lifetime: Duration) -> Self {
        Self {
            entries: Vec::new(),
            capacity,
            lifetime,
        }
    }

    fn get(&self, key: &K, now: Instant) -> Option<V> {
        let found = self.entries.iter().find(|entry| entry.0 == *key);
        found.filter(|entry| now < entry.2).map(|entry| entry.1)
    }

    fn insert(&mut self, key: K, value: V, now: Instant) {
        self.remove(&key);
        if self.entries.len() == self.capacity {
            self.entries.remove(0);
        }
        self.entries.push((key, value, now + self.lifetime));
    }

    fn remove(&mut self, key: &K) {
        self.entries.retain(|entry| entry.0 != *key);
    }
}

/// How far into a datagram a packet's payload begins.
#[derive(Clone, Copy)]
enum Part {
    Whole,
    First(u32),
    Later(u32),
}

impl Part {
    fn new(offset: u16, more: bool, id: u32) -> Self {
        match (offset, more) {
            (0, false) => Self::Whole,
            (0, true) => Self::First(id),
            _ => Self::Later(id),
        }
    }
}

/// An IP packet: everything that its headers say.
struct Packet<'a> {
    source: IpAddr,
    destination: IpAddr,
    dscp: u8,
    part: Part,
    protocol: IpNumber,
    payload: &'a [u8],
}

impl Model {
    /// Knows nothing yet. Of the config, `fragments_max` and `time_wait_max`
    /// are exact here, while `Demux` gives its memories sets of eight: the two
    /// agree at 8 or while nothing has to be forgotten.
    #[must_use]
    pub fn new(config: &DemuxConfig) -> Self {
        let fragments = || Recent::new(config.fragments_max, config.fragment_lifetime);
        let strays = || Recent::new(config.fragments_max, config.fragment_lifetime);
        let time_wait = || Recent::new(config.time_wait_max, config.time_wait_lifetime);
        Self {
            config: config.clone(),
            addresses: Vec::new(),
            sockets: Vec::new(),
            connections: Vec::new(),
            groups: Vec::new(),
            forward: [config.channels.forward; 64],
            time_wait: [time_wait(), time_wait()],
            firsts: [fragments(), fragments()],
            strays: [strays(), strays()],
        }
    }

    /// As `Demux::classify`.
    pub fn classify(&mut self, frame: &[u8], now: Instant) -> Classified {
        let classified = self.look(frame, now);
        classified.unwrap_or_else(|kind| self.unclaimed(kind))
    }

    fn look(&mut self, frame: &[u8], now: Instant) -> Result<Classified, Kind> {
        let (ethertype, payload) = ethernet(frame)?;
        let mut packet = match ethertype {
            EtherType::ARP if payload.len() < 28 => return Err(Kind::Malformed),
            EtherType::ARP => return Err(Kind::Neighbour),
            EtherType::IPV4 => ipv4(payload)?,
            EtherType::IPV6 => ipv6(payload)?,
            _ => return Err(Kind::Other),
        };
        let Some(local) = self.is_local(packet.destination) else {
            let channel = self.forward[usize::from(packet.dscp)];
            return Ok(answer(Kind::Forward, channel));
        };
        if packet.destination.is_ipv6() {
            packet = extensions(packet)?;
        }
        match packet.part {
            Part::Whole => self.whole(&packet, local, now),
            Part::First(id) => self.first(&packet, local, id, now),
            Part::Later(id) => self.later(&packet, id, now),
        }
    }

    fn whole(&self, packet: &Packet<'_>, local: bool, now: Instant) -> Result<Classified, Kind> {
        let v4 = packet.destination.is_ipv4();
        let length = packet.payload.len();
        match packet.protocol {
            IpNumber::UDP => {
                let udp = UdpHeaderSlice::from_slice(packet.payload);
                let udp = udp.map_err(|_| Kind::Malformed)?;
                if udp.length() < 8 || usize::from(udp.length()) > length {
                    return Err(Kind::Malformed);
                }
                self.udp(packet, local, &udp)
            }
            IpNumber::TCP => self.tcp(packet, local, now),
            IpNumber::ICMP if v4 && length < 8 => Err(Kind::Malformed),
            IpNumber::ICMP if v4 => Err(Kind::Icmp),
            IpNumber::IPV6_ICMP if !v4 && length < 4 => Err(Kind::Malformed),
            IpNumber::IPV6_ICMP if !v4 => Err(match packet.payload[0] {
                133..=137 => Kind::Neighbour,
                _ => Kind::Icmp,
            }),
            _ => Err(Kind::Other),
        }
    }

    fn udp(
        &self,
        packet: &Packet<'_>,
        local: bool,
        udp: &UdpHeaderSlice<'_>,
    ) -> Result<Classified, Kind> {
        let to = SocketAddr::new(packet.destination, udp.destination_port());
        let from = SocketAddr::new(packet.source, udp.source_port());
        if to.port() == 0 {
            return Err(Kind::Malformed);
        }
        if !local {
            let group = self.groups.iter().find(|group| group.0 == to);
            let channel = group.ok_or(Kind::Multicast)?.1;
            return Ok(answer(Kind::Multicast, channel));
        }
        let connection = Connection {
            protocol: Protocol::Udp,
            local: to,
            remote: from,
        };
        let channel = self
            .connection(&connection)
            .or_else(|| self.socket(Protocol::Udp, to).map(|socket| socket.channel));
        Ok(answer(Kind::UdpSocket, channel.ok_or(Kind::ClosedPort)?))
    }

    fn tcp(&self, packet: &Packet<'_>, local: bool, now: Instant) -> Result<Classified, Kind> {
        let tcp = TcpHeaderSlice::from_slice(packet.payload).map_err(|_| Kind::Malformed)?;
        if !local {
            return Err(Kind::Other);
        }
        let connection = Connection {
            protocol: Protocol::Tcp,
            local: SocketAddr::new(packet.destination, tcp.destination_port()),
            remote: SocketAddr::new(packet.source, tcp.source_port()),
        };
        if let Some(channel) = self.connection(&connection) {
            return Ok(answer(Kind::TcpConnection, channel));
        }
        let family = family(packet.destination);
        if self.time_wait[family].get(&connection, now).is_some() {
            return Err(Kind::TcpConnection);
        }
        let listener = self.socket(Protocol::Tcp, connection.local);
        let listener = listener.ok_or(Kind::ClosedPort)?;
        let asks = tcp.syn() && !tcp.ack() && !tcp.rst() && !tcp.fin();
        let mut classified = answer(Kind::TcpListener, listener.channel);
        if asks && listener.beyond_backlog {
            classified.demand = Demand::Excess;
        } else if asks {
            classified.demand = Demand::New;
        }
        Ok(classified)
    }

    fn first(
        &mut self,
        packet: &Packet<'_>,
        local: bool,
        id: u32,
        now: Instant,
    ) -> Result<Classified, Kind> {
        if packet.protocol != IpNumber::UDP {
            return Err(Kind::Fragment);
        }
        let udp = UdpHeaderSlice::from_slice(packet.payload).map_err(|_| Kind::Fragment)?;
        if udp.length() < 8 {
            return Err(Kind::Malformed);
        }
        let mut classified = match self.udp(packet, local, &udp) {
            Err(Kind::Malformed) => return Err(Kind::Malformed),
            Err(kind) => self.unclaimed(kind),
            Ok(classified) => classified,
        };
        let (family, key) = datagram(packet, id);
        classified.earlier_fragments = self.strays[family].get(&key, now).is_some();
        self.strays[family].remove(&key);
        let value = (classified.kind, classified.channel);
        self.firsts[family].insert(key, value, now);
        Ok(classified)
    }

    fn later(&mut self, packet: &Packet<'_>, id: u32, now: Instant) -> Result<Classified, Kind> {
        let (family, key) = datagram(packet, id);
        if let Some((kind, channel)) = self.firsts[family].get(&key, now) {
            return Ok(answer(kind, channel));
        }
        self.strays[family].insert(key, (), now);
        Err(Kind::Fragment)
    }

    /// Whether it is a unicast address of the host; nothing if it is foreign.
    fn is_local(&self, address: IpAddr) -> Option<bool> {
        if address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Some(false);
        }
        let found = self.addresses.iter().find(|known| known.0 == address);
        found.map(|known| known.1)
    }

    fn connection(&self, wanted: &Connection) -> Option<ChannelId> {
        let found = self.connections.iter().find(|known| known.0 == *wanted);
        found.map(|known| known.1)
    }

    /// The most specific socket that takes packets to `to`.
    fn socket(&self, protocol: Protocol, to: SocketAddr) -> Option<&Socket> {
        let takes = |socket: &&Socket| {
            let at = socket.at.ip();
            let same_family = at.is_ipv4() == to.is_ipv4();
            socket.protocol == protocol
                && socket.at.port() == to.port()
                && (at == to.ip() || at.is_unspecified() && (same_family || socket.dual_stack))
        };
        self.sockets.iter().filter(takes).max_by_key(|socket| {
            let at = socket.at.ip();
            (!at.is_unspecified(), at.is_ipv4() == to.is_ipv4())
        })
    }

    fn unclaimed(&self, kind: Kind) -> Classified {
        let channels = &self.config.channels;
        let channel = match kind {
            Kind::Fragment => channels.fragment,
            Kind::Multicast => channels.multicast,
            Kind::TcpConnection => channels.time_wait,
            Kind::Icmp => channels.icmp,
            Kind::Neighbour => channels.neighbour,
            Kind::ClosedPort => channels.closed_port,
            Kind::Other => channels.other,
            Kind::Malformed => channels.malformed,
            Kind::UdpSocket | Kind::TcpListener | Kind::Forward => {
                unreachable!("{kind} has a channel")
            }
        };
        answer(kind, channel)
    }
}

/// The same calls as `Demux` has, for endpoints that are suitable: addresses
/// are unicast, unspecified or groups where they should be, ports are not 0.
impl Model {
    /// Adds a unicast address, or a broadcast address.
    ///
    /// # Errors
    ///
    /// [`EndpointError::Full`].
    pub fn add_address(&mut self, address: IpAddr, local: bool) -> Result<(), EndpointError> {
        let family = |known: &&(IpAddr, bool)| known.0.is_ipv4() == address.is_ipv4();
        let used = self.addresses.iter().filter(family).count();
        if let Some(known) = self.addresses.iter_mut().find(|known| known.0 == address) {
            known.1 = local;
        } else if used == self.config.addresses_max {
            return Err(EndpointError::Full);
        } else {
            self.addresses.push((address, local));
        }
        Ok(())
    }

    /// Removes an address.
    pub fn remove_address(&mut self, address: IpAddr) -> bool {
        let before = self.addresses.len();
        self.addresses.retain(|known| known.0 != address);
        self.addresses.len() < before
    }

    /// Registers a bound socket.
    ///
    /// # Errors
    ///
    /// [`EndpointError::Taken`], [`EndpointError::Full`].
    pub fn bind(
        &mut self,
        protocol: Protocol,
        at: SocketAddr,
        dual_stack: bool,
        channel: ChannelId,
    ) -> Result<(), EndpointError> {
        if self.exact(protocol, at).is_some() {
            return Err(EndpointError::Taken);
        }
        // At a wildcard, both families share the room for one port.
        let mut rivals = self.sockets.clone();
        if at.ip().is_unspecified() {
            rivals.retain(|socket| socket.at.ip().is_unspecified());
            let port = |socket: &Socket| (socket.protocol, socket.at.port());
            rivals.sort_by_key(port);
            rivals.dedup_by_key(|socket| port(socket));
            rivals.retain(|socket| port(socket) != (protocol, at.port()));
        } else {
            rivals.retain(|socket| {
                !socket.at.ip().is_unspecified() && socket.at.is_ipv4() == at.is_ipv4()
            });
        }
        if rivals.len() == self.config.sockets_max {
            return Err(EndpointError::Full);
        }
        self.sockets.push(Socket {
            protocol,
            at,
            dual_stack,
            beyond_backlog: false,
            channel,
        });
        Ok(())
    }

    /// Removes a bound socket.
    pub fn unbind(&mut self, protocol: Protocol, at: SocketAddr) -> Option<ChannelId> {
        let socket = self.sockets.remove(self.exact(protocol, at)?);
        if protocol == Protocol::Udp {
            self.forget(socket.channel);
        }
        Some(socket.channel)
    }

    /// Sets a listener's backlog state.
    pub fn set_beyond_backlog(&mut self, at: SocketAddr, beyond: bool) -> bool {
        let Some(place) = self.exact(Protocol::Tcp, at) else {
            return false;
        };
        self.sockets[place].beyond_backlog = beyond;
        true
    }

    /// Registers a connection.
    ///
    /// # Errors
    ///
    /// [`EndpointError::Taken`], [`EndpointError::Full`].
    pub fn connect(
        &mut self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
        channel: ChannelId,
    ) -> Result<(), EndpointError> {
        let connection = Connection {
            protocol,
            local,
            remote,
        };
        if self.connection(&connection).is_some() {
            return Err(EndpointError::Taken);
        }
        let limit = match protocol {
            Protocol::Udp => self.config.udp_connections_max,
            Protocol::Tcp => self.config.tcp_connections_max,
        };
        let rivals = self.connections.iter().filter(|(known, _)| {
            known.protocol == protocol && known.local.is_ipv4() == local.is_ipv4()
        });
        if rivals.count() == limit {
            return Err(EndpointError::Full);
        }
        self.connections.push((connection, channel));
        self.time_wait[family(local.ip())].remove(&connection);
        Ok(())
    }

    /// Removes a connection.
    pub fn disconnect(
        &mut self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<ChannelId> {
        let connection = Connection {
            protocol,
            local,
            remote,
        };
        let channel = self.connection(&connection)?;
        self.connections.retain(|known| known.0 != connection);
        if protocol == Protocol::Udp {
            self.forget(channel);
        }
        Some(channel)
    }

    /// A connection enters TIME_WAIT.
    pub fn enter_time_wait(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> Option<ChannelId> {
        let channel = self.disconnect(Protocol::Tcp, local, remote)?;
        let connection = Connection {
            protocol: Protocol::Tcp,
            local,
            remote,
        };
        self.time_wait[family(local.ip())].insert(connection, (), now);
        Some(channel)
    }

    /// A socket joins a group.
    ///
    /// # Errors
    ///
    /// [`EndpointError::Full`], or that the address is none of a group.
    pub fn join(
        &mut self,
        group: SocketAddr,
        channel: ChannelId,
    ) -> Result<ChannelId, EndpointError> {
        if self.is_local(group.ip()) != Some(false) {
            return Err(EndpointError::Unsuitable(
                "a group is a multicast or broadcast address",
            ));
        }
        let of_family = self
            .groups
            .iter()
            .filter(|known| known.0.is_ipv4() == group.is_ipv4());
        let used = of_family.count();
        if let Some(known) = self.groups.iter_mut().find(|known| known.0 == group) {
            known.2 += 1;
            return Ok(known.1);
        }
        if used == self.config.groups_max {
            return Err(EndpointError::Full);
        }
        self.groups.push((group, channel, 1));
        Ok(channel)
    }

    /// A socket leaves a group.
    pub fn leave(&mut self, group: SocketAddr) -> Option<ChannelId> {
        let place = self.groups.iter().position(|known| known.0 == group)?;
        self.groups[place].2 -= 1;
        if self.groups[place].2 > 0 {
            return None;
        }
        let channel = self.groups.remove(place).1;
        self.forget(channel);
        Some(channel)
    }

    /// Gives a class of forwarded packets a channel.
    pub fn set_forward_channel(&mut self, dscp: u8, channel: ChannelId) {
        self.forward[usize::from(dscp % 64)] = channel;
    }

    fn exact(&self, protocol: Protocol, at: SocketAddr) -> Option<usize> {
        let mut sockets = self.sockets.iter();
        sockets.position(|socket| socket.protocol == protocol && socket.at == at)
    }

    fn forget(&mut self, channel: ChannelId) {
        for firsts in &mut self.firsts {
            firsts.entries.retain(|first| first.1.1 != channel);
        }
    }
}

fn answer(kind: Kind, channel: ChannelId) -> Classified {
    Classified {
        kind,
        channel,
        demand: Demand::Known,
        earlier_fragments: false,
    }
}

fn family(address: IpAddr) -> usize {
    usize::from(address.is_ipv6())
}

fn datagram(packet: &Packet<'_>, id: u32) -> (usize, Datagram) {
    let family = family(packet.destination);
    let protocol = if family == 0 { packet.protocol.0 } else { 0 };
    (family, (packet.source, packet.destination, id, protocol))
}

fn ethernet(frame: &[u8]) -> Result<(EtherType, &[u8]), Kind> {
    let header = Ethernet2HeaderSlice::from_slice(frame).map_err(|_| Kind::Malformed)?;
    let mut ethertype = header.ether_type();
    let mut payload = &frame[14..];
    for _ in 0..2 {
        if ![0x8100, 0x88a8].contains(&ethertype.0) {
            break;
        }
        let tag = SingleVlanHeaderSlice::from_slice(payload).map_err(|_| Kind::Malformed)?;
        ethertype = tag.ether_type();
        payload = &payload[4..];
    }
    Ok((ethertype, payload))
}

fn ipv4(bytes: &[u8]) -> Result<Packet<'_>, Kind> {
    let header = Ipv4HeaderSlice::from_slice(bytes).map_err(|_| Kind::Malformed)?;
    let total = usize::from(header.total_len());
    let payload = bytes
        .get(header.slice().len()..total)
        .ok_or(Kind::Malformed)?;
    let offset = header.fragments_offset().value();
    let id = u32::from(header.identification());
    Ok(Packet {
        source: header.source_addr().into(),
        destination: header.destination_addr().into(),
        dscp: header.dcp().value(),
        part: Part::new(offset, header.more_fragments(), id),
        protocol: header.protocol(),
        payload,
    })
}

fn ipv6(bytes: &[u8]) -> Result<Packet<'_>, Kind> {
    let header = Ipv6HeaderSlice::from_slice(bytes).map_err(|_| Kind::Malformed)?;
    let end = 40 + usize::from(header.payload_length());
    Ok(Packet {
        source: header.source_addr().into(),
        destination: header.destination_addr().into(),
        dscp: header.traffic_class() >> 2,
        part: Part::Whole,
        protocol: header.next_header(),
        payload: bytes.get(40..end).ok_or(Kind::Malformed)?,
    })
}

fn extensions(mut packet: Packet<'_>) -> Result<Packet<'_>, Kind> {
    if packet.payload.is_empty() {
        return Err(Kind::Other);
    }
    let mut walked = Vec::new();
    loop {
        match packet.protocol.0 {
            50 | 59 => return Err(Kind::Other),
            0 | 43 | 44 | 51 | 60 => {}
            _ => return Ok(packet),
        }
        if walked.len() == 8 {
            return Err(Kind::Other);
        }
        let (next, bytes) = extension(&mut packet)?;
        if packet.protocol.0 == 44 && walked.contains(&44) {
            return Err(Kind::Other);
        }
        walked.push(packet.protocol.0);
        packet.protocol = next;
        packet.payload = &packet.payload[bytes..];
        if let Part::Later(_) = packet.part {
            return Ok(packet);
        }
    }
}

/// What follows the header at the front of the payload, and its length.
fn extension(packet: &mut Packet<'_>) -> Result<(IpNumber, usize), Kind> {
    let payload = packet.payload;
    match packet.protocol {
        IpNumber::AUTHENTICATION_HEADER => {
            let header = IpAuthHeaderSlice::from_slice(payload).map_err(|_| Kind::Malformed)?;
            Ok((header.next_header(), header.slice().len()))
        }
        IpNumber::IPV6_FRAGMENTATION_HEADER => {
            let header = Ipv6FragmentHeaderSlice::from_slice(payload);
            let header = header.map_err(|_| Kind::Malformed)?;
            let offset = header.fragment_offset().value();
            packet.part = Part::new(offset, header.more_fragments(), header.identification());
            Ok((header.next_header(), 8))
        }
        _ => {
            let header = Ipv6RawExtHeaderSlice::from_slice(payload);
            let header = header.map_err(|_| Kind::Malformed)?;
            Ok((header.next_header(), header.slice().len()))
        }
    }
}
