//! A demultiplexer as plain as can be, to compare the fast one with.
//!
//! etherparse reads the headers, endpoints stand in one list that is searched
//! from the front, and what is remembered stands in lists in the order in which
//! it came. It shares with `plimsoll_core::demux` only the types of the answer.

mod endpoints;
mod headers;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use etherparse::{EtherType, IpNumber, TcpHeaderSlice, UdpHeaderSlice};
use plimsoll_core::demux::{ChannelId, Classified, Demand, DemuxConfig, Kind, Protocol};
use plimsoll_core::time::Instant;

use self::headers::{Packet, Part, ethernet, extensions, ipv4, ipv6};

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
