//! Packet to channel: early demultiplexing.
//!
//! A host under overload must know whom a packet is for before it spends
//! anything on it: only then can it discard what its consumer cannot take, and
//! charge the rest to who causes it. [`Demux::classify`] looks at one Ethernet
//! frame and says which channel it goes on and what [`Kind`] it is. It reads
//! headers and looks keys up; it checks no checksum, keeps no packet, waits for
//! nothing and allocates nothing. So it can run wherever frames first appear:
//! on an adapter, in an interrupt handler, in a polling loop.
//!
//! Source: Druschel and Banga, Lazy Receiver Processing (OSDI 1996), sections
//! 3, 3.1, 3.2, 3.4, 3.5 and 4.2. Covers LRP-11, LRP-19, LRP-22, LRP-24 to
//! LRP-29, LRP-39, LRP-42 to LRP-46, LRP-57 and MR-84. The channels themselves
//! (LRP-10, LRP-12, LRP-18, LRP-20, LRP-21) are the owner's; here they are numbers.
//!
//! # Classification
//!
//! This is the contract. The guard's BPF program classifies by the same rules,
//! and one corpus of frames is run through both. A rule that names a kind ends
//! there: nothing further in the frame is looked at.
//!
//! 1. **Ethernet.** Fewer than 14 bytes are malformed. Up to two VLAN tags
//!    (ethertypes 0x8100 and 0x88a8, in any order) are stripped; a tag whose 4
//!    bytes are not all there is malformed. What is under two tags goes on as
//!    if untagged; a third tag is an unknown ethertype.
//! 2. **Ethertype.** ARP is neighbour, or malformed below 28 bytes. IPv4 and
//!    IPv6 go on. Anything else, 0 included, is other.
//! 3. **IPv4.** Malformed: fewer than 20 bytes, a version that is not 4, a
//!    header length below 5 words, a total length that is less than the header
//!    or more than what is there. Bytes after the total length are Ethernet
//!    padding, cut off. The header checksum is left to the receiver.
//! 4. **IPv6.** Malformed: fewer than 40 bytes, a version that is not 6, a
//!    payload length of more than what is there. Bytes after it are cut off.
//! 5. **Destination.** 224.0.0.0/4 and `ff00::/8` are multicast; 255.255.255.255
//!    and the host's broadcast addresses are broadcast; the host's unicast
//!    addresses are local. Anything else is forward.
//! 6. **IPv6 extension headers.** A payload length of 0 is other (a jumbogram,
//!    or nothing). Hop-by-hop options (0), routing (43), destination options
//!    (60), authentication (51) and fragment (44) headers are walked, in any
//!    order. Then, for the header that is next: 50 (encrypted) and 59 (nothing
//!    follows) are other; any of those five is other if eight have been walked
//!    already; a header that is longer than what is left is malformed, and so
//!    is an authentication header whose length field is 0, which is less than
//!    its fixed part; a routing header with segments left is other, since the
//!    packet is for the next of these; so is a second fragment header. Behind
//!    the fragment header of a later fragment (offset not 0) nothing is walked.
//! 7. **Fragments.** IPv4: "more fragments" or an offset. IPv6: a fragment
//!    header with either; one with neither (an atomic fragment, RFC 6946)
//!    changes nothing.
//!    - A first fragment (offset 0) that is not UDP is fragment. With UDP and
//!      fewer than 8 bytes it is fragment as well. Otherwise rule 8 applies,
//!      but for the comparison of the UDP length with the bytes present. What
//!      comes of it, unless malformed, is remembered for the datagram: IPv4 by
//!      source, destination, identification and protocol (RFC 791), IPv6 by
//!      source, destination and identification (RFC 8200, 4.5). It replaces
//!      what was remembered before, and expires.
//!    - A later fragment whose first is remembered has its kind and channel.
//!      Otherwise it is fragment.
//! 8. **UDP** (17). Malformed: fewer than 8 bytes, a length below 8 or above
//!    the bytes present, destination port 0. To multicast or broadcast it is
//!    multicast, on the channel of group address and port. To a local address
//!    it is for the connected socket of both addresses and ports, else the
//!    socket bound to destination address and port, else the one bound to the
//!    family's wildcard address, else for IPv4 the one bound to the IPv6
//!    wildcard that takes both families: `udp_socket`. With none: `closed_port`.
//! 9. **TCP** (6). Malformed: fewer than 20 bytes, a data offset below 5 words
//!    or beyond the bytes present. To multicast or broadcast it is other. Then
//!    the known connection (in whatever state, TIME_WAIT included) is
//!    `tcp_connection`; a listener, found as a bound UDP socket is, is
//!    `tcp_listener`; with none: `closed_port`.
//! 10. **ICMP** (1, in IPv4 only): malformed below 8 bytes, else icmp.
//!     **ICMPv6** (58, in IPv6 only): malformed below 4 bytes, neighbour for
//!     types 133 to 137, else icmp. To whatever destination class.
//! 11. Any other protocol is other.
//!
//! # Listeners and TIME_WAIT
//!
//! A SYN without ACK, RST and FIN for a listener is new demand. While the owner
//! says that the listener is beyond its backlog, such a SYN is [`Demand::Excess`]
//! and is to be discarded at once; the listener's other packets, such as the
//! ACK that completes a handshake, go on (LRP-39). A connection that enters
//! TIME_WAIT gives its channel back, while the host may hold thousands of them;
//! late packets go to one shared channel ([`Channels::time_wait`], LRP-42).
//!
//! # Limits, and where it departs from the papers
//!
//! - The fragment channel holds later fragments that came before their first.
//!   The paper lets reassembly look there whenever it misses one. Here the first
//!   fragment's [`Classified::earlier_fragments`] says when that is worthwhile.
//! - The paper sends every fragment that lacks its transport header to the
//!   fragment channel; here fragments of TCP and others go there too, since
//!   only UDP is fragmented in practice, and only UDP's first fragments are
//!   worth their room in memory.
//! - The memory of first fragments is bounded. Beyond it (an attacker can send
//!   as many first fragments as he likes) the oldest are forgotten, and their
//!   later fragments go to the fragment channel.
//! - Broadcast is treated as a group that sockets join. On the wire it is one
//!   channel; who of the sockets gets a copy is the owner's matter (LRP-22).
//! - Devices, VLAN ids and network namespaces do not count: one `Demux` serves
//!   hosts whose addresses mean the same on all interfaces.
//! - The forward channel can be split by DSCP (LRP-46); flow labels are not used,
//!   since senders choose them freely.
//! - Soft demultiplexing costs the host some 40 ns a packet, so it moves
//!   livelock far away but does not remove it (LRP-29); and without laziness,
//!   packets that never reach a socket's queue still livelock it (LRP-19).
//!
//! # Choices
//!
//! smoltcp's wire types parse, since the user-space stack uses them as well
//! (a frame that ends at the forward channel takes 9 ns). hashbrown's tables
//! with a reserved capacity hold the endpoints, hashed by SipHash-1-3 under a
//! caller's secret ([`Seed`]): senders choose addresses and ports, so a hash
//! that they can predict lets them make every look-up slow.

mod endpoints;
mod family;
mod kind;
mod memory;
mod parse;
mod table;
#[cfg(test)]
mod tests;

use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use self::endpoints::{Port, Sockets};
use self::family::Family;
use self::parse::Link;
use self::table::Table;
use crate::config::{ConfigError, Field, NANOSECOND};
use crate::time::Instant;

pub use self::endpoints::{EndpointError, Protocol};
pub use self::kind::Kind;
pub use self::table::Seed;

/// VLAN tags of a frame that are looked behind: one service and one customer tag.
pub const VLAN_TAGS_MAX: usize = 2;
/// Extension headers of an IPv6 packet that are looked behind: more than any sane packet has.
pub const EXTENSIONS_MAX: usize = 8;
/// How long a first fragment is remembered, in seconds, as Linux gives reassembly
/// (`ipfrag_time`).
pub const FRAGMENT_LIFETIME_S: u64 = 30;

/// Number of a channel, given by the owner of the channels and handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u32);

/// The channels of what belongs to no socket: those of the proxies, who do the
/// work and are charged for it (LRP-45), and special ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Later fragments whose first is unknown, and fragments of anything but UDP.
    pub fragment: ChannelId,
    /// UDP to groups and broadcast addresses that no socket joined.
    pub multicast: ChannelId,
    /// Late packets of connections in TIME_WAIT, and new SYNs for them.
    pub time_wait: ChannelId,
    /// ICMP and ICMPv6.
    pub icmp: ChannelId,
    /// ARP and IPv6 neighbour discovery.
    pub neighbour: ChannelId,
    /// Packets to be forwarded; see [`Demux::set_forward_channel`].
    pub forward: ChannelId,
    /// Packets to be answered by a reset or "port unreachable".
    pub closed_port: ChannelId,
    /// Everything else that is well formed.
    pub other: ChannelId,
    /// Frames that are best discarded, and counted.
    pub malformed: ChannelId,
}

/// How much a [`Demux`] may know at a time. All of it is allocated at
/// construction; [`Demux::memory_bytes`] tells how much that is.
#[derive(Clone, Debug)]
pub struct DemuxConfig {
    /// Where packets go that are for no socket.
    pub channels: Channels,
    /// Unicast and broadcast addresses of the host, in each family. Default: 64.
    /// A look-up halves the list per step, so hundreds do no harm.
    pub addresses_max: usize,
    /// Bound UDP sockets and listeners at specific addresses, in each family,
    /// and as many ports bound at wildcards. Default: 4096.
    pub sockets_max: usize,
    /// Connected UDP sockets in each family. Default: 1024.
    pub udp_connections_max: usize,
    /// TCP connections in each family, TIME_WAIT not counted (LRP-44). Default: 16,384.
    pub tcp_connections_max: usize,
    /// Pairs of group and port in each family. Default: 256.
    pub groups_max: usize,
    /// Fragmented datagrams to remember in each family; some are forgotten
    /// early when more than half of this is in use. Default: 1024.
    pub fragments_max: usize,
    /// How long a first fragment is remembered. Default: [`FRAGMENT_LIFETIME_S`].
    pub fragment_lifetime: Duration,
    /// Connections in TIME_WAIT to remember in each family; as above. What is
    /// forgotten early is a closed port to late packets. Default: 8192.
    pub time_wait_max: usize,
    /// How long TIME_WAIT lasts. Default: 60 s, as in Linux.
    pub time_wait_lifetime: Duration,
}

impl DemuxConfig {
    /// More of anything is a mistake: its memory would be counted in gigabytes.
    pub const LIMIT_MAX: usize = 1 << 24;

    /// The defaults with the given channels.
    #[must_use]
    pub fn new(channels: Channels) -> Self {
        Self {
            channels,
            addresses_max: 64,
            sockets_max: 4096,
            udp_connections_max: 1024,
            tcp_connections_max: 16_384,
            groups_max: 256,
            fragments_max: 1024,
            fragment_lifetime: Duration::from_secs(FRAGMENT_LIFETIME_S),
            time_wait_max: 8192,
            time_wait_lifetime: Duration::from_secs(60),
        }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let limit = |field, given: usize| {
            Field(field, given).must_be_in(1..=Self::LIMIT_MAX, "from 1 to 16,777,216")
        };
        limit("addresses_max", self.addresses_max)?;
        limit("sockets_max", self.sockets_max)?;
        limit("udp_connections_max", self.udp_connections_max)?;
        limit("tcp_connections_max", self.tcp_connections_max)?;
        limit("groups_max", self.groups_max)?;
        limit("fragments_max", self.fragments_max)?;
        limit("time_wait_max", self.time_wait_max)?;
        Field("fragment_lifetime", self.fragment_lifetime)
            .must_be_in(NANOSECOND.., "longer than nothing")?;
        Field("time_wait_lifetime", self.time_wait_lifetime)
            .must_be_in(NANOSECOND.., "longer than nothing")
    }
}

/// What a frame is and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Classified {
    /// What it is.
    pub kind: Kind,
    /// Where it goes.
    pub channel: ChannelId,
    /// Whether it asks a listener for a connection.
    pub demand: Demand,
    /// This is a first fragment, and later fragments of its datagram came
    /// before it: reassembly finds them on the fragment channel. It may be
    /// false although some did, once more datagrams were begun than can be
    /// remembered.
    pub earlier_fragments: bool,
}

/// What a packet wants of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// No new connection, or it is not for a listener at all.
    Known,
    /// A new connection, and there is room for it.
    New,
    /// A new connection, but the listener is beyond its backlog: to be
    /// discarded here (LRP-39).
    Excess,
}

/// Knows a host's addresses and endpoints, and which channel each one has.
#[derive(Debug)]
pub struct Demux {
    v4: Family<Ipv4Addr>,
    v6: Family<Ipv6Addr>,
    shared: Shared,
}

/// What both families need.
#[derive(Debug)]
struct Shared {
    channels: Channels,
    /// By DSCP.
    forward: [ChannelId; 64],
    /// Sockets at wildcard addresses.
    wildcards: Table<Port, Sockets>,
}

impl Shared {
    /// The channel of a kind without an endpoint.
    fn unclaimed(&self, kind: Kind) -> Classified {
        let channels = &self.channels;
        let channel = match kind {
            Kind::Fragment => channels.fragment,
            Kind::Multicast => channels.multicast,
            Kind::TcpConnection => channels.time_wait,
            Kind::Icmp => channels.icmp,
            Kind::Neighbour => channels.neighbour,
            Kind::Forward => channels.forward,
            Kind::UdpSocket | Kind::TcpListener | Kind::ClosedPort => channels.closed_port,
            Kind::Other => channels.other,
            Kind::Malformed => channels.malformed,
        };
        Classified::new(kind, channel)
    }

    fn forward(&self, dscp: u8) -> Classified {
        Classified::new(Kind::Forward, self.forward[usize::from(dscp & 63)])
    }
}

impl Classified {
    fn new(kind: Kind, channel: ChannelId) -> Self {
        Self {
            kind,
            channel,
            demand: Demand::Known,
            earlier_fragments: false,
        }
    }
}

impl Demux {
    /// Knows no address and no endpoint yet: every IP packet is to be forwarded.
    ///
    /// # Errors
    ///
    /// If a limit is 0 or above [`DemuxConfig::LIMIT_MAX`], or a lifetime is zero.
    pub fn new(config: &DemuxConfig, seed: Seed) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            v4: Family::new(config, seed),
            v6: Family::new(config, seed),
            shared: Shared {
                channels: config.channels,
                forward: [config.channels.forward; 64],
                wildcards: Table::new(config.sockets_max, seed),
            },
        })
    }

    /// Says what a frame is and which channel it goes on. `frame` begins with
    /// the Ethernet header and has no check sequence. Any bytes will do.
    pub fn classify(&mut self, frame: &[u8], now: Instant) -> Classified {
        let classified = match parse::link(frame) {
            Ok(Link::Arp) => Err(Kind::Neighbour),
            Ok(Link::Ipv4(packet)) => self.classify_ipv4(packet, now),
            Ok(Link::Ipv6(packet)) => self.classify_ipv6(packet, now),
            Err(kind) => Err(kind),
        };
        classified.unwrap_or_else(|kind| self.shared.unclaimed(kind))
    }

    fn classify_ipv4(&mut self, packet: &[u8], now: Instant) -> Result<Classified, Kind> {
        let datagram = parse::ipv4(packet)?;
        let Some(reach) = self.v4.reach(datagram.destination) else {
            return Ok(self.shared.forward(datagram.dscp));
        };
        self.v4.classify(&self.shared, reach, &datagram, now)
    }

    fn classify_ipv6(&mut self, packet: &[u8], now: Instant) -> Result<Classified, Kind> {
        let mut datagram = parse::ipv6(packet)?;
        let Some(reach) = self.v6.reach(datagram.destination) else {
            return Ok(self.shared.forward(datagram.dscp));
        };
        parse::extensions(&mut datagram)?;
        self.v6.classify(&self.shared, reach, &datagram, now)
    }

    /// Datagrams that were forgotten before their time, because more were
    /// begun than [`DemuxConfig::fragments_max`] allows for.
    #[must_use]
    pub fn fragments_forgotten(&self) -> u64 {
        self.v4.fragments_forgotten() + self.v6.fragments_forgotten()
    }

    /// Connections in TIME_WAIT that were forgotten before their time, because
    /// there were more than [`DemuxConfig::time_wait_max`] allows for.
    #[must_use]
    pub fn time_wait_forgotten(&self) -> u64 {
        self.v4.time_wait_forgotten() + self.v6.time_wait_forgotten()
    }

    /// Bytes of heap memory in use, the same from construction to drop.
    ///
    /// A table has between 2.3 and 4.6 slots per key it may hold. A slot takes
    /// 17 bytes for an IPv4 connection (so 39 to 78 bytes per connection), 41
    /// for an IPv6 one, 17 or 29 for a socket bound to an address, 21 for a
    /// port bound at a wildcard. A remembered datagram takes 80 (IPv4) or 128
    /// bytes, a connection in TIME_WAIT 32 or 56.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.v4.memory_bytes() + self.v6.memory_bytes() + self.shared.wildcards.memory_bytes()
    }
}
