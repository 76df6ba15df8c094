//! What the program counted: every packet in exactly one kind and one outcome.
//!
//! The per-kind totals are exact. Channels are the live sockets among them;
//! what a kind's total holds beyond its channels belongs to sockets that are
//! gone ([`Counters::retired`]), so the sums always agree.

use std::net::{IpAddr, Ipv6Addr};

use plimsoll_core::demux::Kind;
use serde::Serialize;
use serde::ser::SerializeMap;

use crate::program::types;
use crate::sources::Sources;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Outcome {
    /// Handed to the Linux stack.
    Admitted = types::outcome::OUTCOME_ADMITTED.0 as u8,
    /// A SYN past its listener's SYN queue, answered with a SYN cookie.
    SynCookie = types::outcome::OUTCOME_SYN_COOKIE.0 as u8,
    /// Discarded early: the socket's receive queue or the connection's backlog is full, or
    /// the segment is outside of its window.
    SocketQueue = types::outcome::OUTCOME_SOCKET_QUEUE.0 as u8,
    /// A SYN discarded early: the listener's accept queue is full.
    AcceptQueue = types::outcome::OUTCOME_ACCEPT_QUEUE.0 as u8,
    /// A SYN discarded early: the listener's SYN queue is full, and a cookie
    /// is not possible.
    SynQueue = types::outcome::OUTCOME_SYN_QUEUE.0 as u8,
    /// An ACK discarded early: its listener is past its backlog, and it
    /// carries no valid cookie.
    NoCookie = types::outcome::OUTCOME_NO_COOKIE.0 as u8,
    /// Discarded early: beyond its channel's share while input is shed; for a closed UDP
    /// port, beyond what the stack would answer.
    Share = types::outcome::OUTCOME_SHARE.0 as u8,
    /// Discarded early: the channel is overloaded, and the packet's source has had its
    /// fair share of it.
    SourceShare = types::outcome::OUTCOME_SOURCE_SHARE.0 as u8,
}

impl Outcome {
    /// All outcomes, in the program's order.
    pub const ALL: [Self; types::outcome::OUTCOME_COUNT.0 as usize] = [
        Self::Admitted,
        Self::SynCookie,
        Self::SocketQueue,
        Self::AcceptQueue,
        Self::SynQueue,
        Self::NoCookie,
        Self::Share,
        Self::SourceShare,
    ];

    /// The name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::SynCookie => "syn_cookie",
            Self::SocketQueue => "socket_queue",
            Self::AcceptQueue => "accept_queue",
            Self::SynQueue => "syn_queue",
            Self::NoCookie => "no_cookie",
            Self::Share => "share",
            Self::SourceShare => "source_share",
        }
    }

    /// Whether such a packet goes no further and gets no answer.
    #[must_use]
    pub const fn is_discard(self) -> bool {
        match self {
            Self::Admitted | Self::SynCookie => false,
            Self::SocketQueue
            | Self::AcceptQueue
            | Self::SynQueue
            | Self::NoCookie
            | Self::Share
            | Self::SourceShare => true,
        }
    }
}

/// Packets by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packets([u64; Outcome::ALL.len()]);

impl Packets {
    /// Packets with this outcome.
    #[must_use]
    pub const fn count(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize]
    }

    /// Packets with any outcome: what was offered.
    #[must_use]
    pub fn offered(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Packets that went no further and got no answer, whatever the cause.
    #[must_use]
    pub fn discarded(&self) -> u64 {
        let discards = Outcome::ALL.into_iter().filter(|one| one.is_discard());
        discards.map(|discard| self.count(discard)).sum()
    }

    pub(crate) fn add(&mut self, counts: &[u64; Outcome::ALL.len()]) {
        for (sum, count) in self.0.iter_mut().zip(counts) {
            *sum += count;
        }
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        self.add(&other.0);
    }

    pub(crate) fn saturating_sub(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| {
            self.0[i].saturating_sub(other.0[i])
        }))
    }
}

impl Serialize for Packets {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Outcome::ALL.len()))?;
        for outcome in Outcome::ALL {
            map.serialize_entry(outcome.name(), &self.count(outcome))?;
        }
        map.end()
    }
}

/// One UDP socket or TCP listener; the members of a reuseport group that are
/// bound to the same address are one channel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Channel {
    /// [`Kind::UdpSocket`] or [`Kind::TcpListener`].
    #[serde(serialize_with = "serialize_kind")]
    pub kind: Kind,
    /// The address the socket is bound to; unspecified means any.
    pub address: IpAddr,
    /// The port the socket is bound to.
    pub port: u16,
    /// Packets by outcome.
    pub packets: Packets,
    /// Over its high watermark (or backlog) at the last packet.
    pub discarding: bool,
    /// Bytes (UDP) or connections (TCP) in the fullest member's queue when it
    /// was last looked at.
    pub occupancy: u32,
    /// That queue's limit, in the same unit.
    pub capacity: u32,
    /// Datagrams in that queue; 0 for listeners.
    pub queued: u32,
    /// CPU time that its packets cost the receiving CPUs so far, in nanoseconds:
    /// its part, by packets, of what the meter measured.
    pub charged_ns: u64,
    /// Who sends to it; `None` as long as none of its packets was judged by source.
    pub sources: Option<Sources>,
}

/// Tells channels apart, in the order of readings.
pub(crate) type Key = (Kind, u16, IpAddr);

impl Channel {
    pub(crate) fn key(&self) -> Key {
        (self.kind, self.port, self.address)
    }
}

#[cfg(test)]
impl Channel {
    /// A UDP socket's channel with so many packets.
    pub(crate) fn sample(port: u16, admitted: u64, discarded: u64) -> Self {
        let mut counts = [0; Outcome::ALL.len()];
        counts[Outcome::Admitted as usize] = admitted;
        counts[Outcome::SocketQueue as usize] = discarded;
        Self {
            kind: Kind::UdpSocket,
            address: "198.18.0.2".parse().expect("an address"),
            port,
            packets: Packets(counts),
            discarding: discarded > 0,
            occupancy: u32::from(port),
            capacity: 100,
            queued: 0,
            charged_ns: 0,
            sources: None,
        }
    }
}

#[cfg(test)]
impl Counters {
    /// Counters that hold these channels and nothing else.
    pub(crate) fn sample(channels: Vec<Channel>) -> Self {
        let mut totals = [Packets::default(); Kind::ALL.len()];
        for channel in &channels {
            totals[channel.kind as usize].add(&channel.packets.0);
        }
        Self {
            totals,
            channels,
            charged_ns: [0; Kind::ALL.len()],
            known_sources: 0,
            unseen: Unseen::default(),
        }
    }
}

/// A reading of all counters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counters {
    /// Exact sums by kind, in the order of [`Kind::ALL`].
    #[serde(serialize_with = "serialize_totals")]
    pub totals: [Packets; Kind::ALL.len()],
    /// The live channels, ordered by kind, port and address.
    pub channels: Vec<Channel>,
    /// CPU time that each kind's packets cost so far, in nanoseconds, in the
    /// order of [`Kind::ALL`]. All together are the network time measured.
    #[serde(serialize_with = "serialize_charges")]
    pub charged_ns: [u64; Kind::ALL.len()],
    /// Sources that are known now, at whatever port: they were served before.
    pub known_sources: u32,
    /// Frames that came while no program was attached, for the ledger.
    #[serde(skip)]
    pub unseen: Unseen,
}

/// Frames that came while no program was attached. Nobody can count at the very moment of an
/// attachment, so there are two bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// So many at least.
    pub least: u64,
    /// So many at most.
    pub most: u64,
}

impl Unseen {
    /// With those of one more time without a program. It began when the driver had received
    /// between `begun.least` and `begun.most` frames, and ended between `ended`.
    pub(crate) fn with(self, begun: Self, ended: (u64, u64)) -> Self {
        let least = ended.0.saturating_sub(begun.most);
        let most = ended.1.saturating_sub(begun.least);
        Self {
            least: self.least.saturating_add(least),
            most: self.most.saturating_add(most),
        }
    }
}

impl Counters {
    /// Exact sum over all packets of a kind.
    #[must_use]
    pub const fn of(&self, kind: Kind) -> &Packets {
        &self.totals[kind as usize]
    }

    /// Exact sum over all packets.
    #[must_use]
    pub fn all(&self) -> Packets {
        sum(self.totals.iter())
    }

    /// Packets of a kind that no live channel holds: of sockets that are gone,
    /// or beyond the limit of channels.
    #[must_use]
    pub fn retired(&self, kind: Kind) -> Packets {
        let live = sum(self
            .channels
            .iter()
            .filter(|c| c.kind == kind)
            .map(|c| &c.packets));
        self.of(kind).saturating_sub(&live)
    }
}

pub(crate) fn sum<'a>(packets: impl Iterator<Item = &'a Packets>) -> Packets {
    let mut all = Packets::default();
    packets.for_each(|p| all.add(&p.0));
    all
}

fn serialize_kind<S: serde::Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}

fn serialize_totals<S: serde::Serializer>(
    totals: &[Packets; Kind::ALL.len()],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(totals.len()))?;
    for (kind, packets) in Kind::ALL.iter().zip(totals) {
        map.serialize_entry(kind.name(), packets)?;
    }
    map.end()
}

fn serialize_charges<S: serde::Serializer>(
    charged_ns: &[u64; Kind::ALL.len()],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(charged_ns.len()))?;
    for (kind, ns) in Kind::ALL.iter().zip(charged_ns) {
        map.serialize_entry(kind.name(), ns)?;
    }
    map.end()
}

/// An address as the program stores it: IPv6, or IPv4 as `::ffff:a.b.c.d`.
pub(crate) fn from_mapped(octets: [u8; 16]) -> IpAddr {
    let address = Ipv6Addr::from(octets);
    address
        .to_ipv4_mapped()
        .map_or(IpAddr::V6(address), IpAddr::V4)
}

/// The inverse of [`from_mapped`].
pub(crate) fn to_mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retired_is_what_live_channels_do_not_hold() {
        let mut totals = [Packets::default(); Kind::ALL.len()];
        totals[Kind::UdpSocket as usize] = Packets([10, 0, 5, 0, 0, 0, 0, 0]);
        let channel = Channel {
            kind: Kind::UdpSocket,
            address: "0.0.0.0".parse().unwrap(),
            port: 53,
            packets: Packets([7, 0, 5, 0, 0, 0, 0, 0]),
            discarding: false,
            occupancy: 0,
            capacity: 0,
            queued: 0,
            charged_ns: 0,
            sources: None,
        };
        let counters = Counters {
            totals,
            channels: vec![channel],
            charged_ns: [0; Kind::ALL.len()],
            known_sources: 0,
            unseen: Unseen::default(),
        };
        assert_eq!(
            counters.retired(Kind::UdpSocket),
            Packets([3, 0, 0, 0, 0, 0, 0, 0])
        );
        assert_eq!(counters.all().offered(), 15);
        assert_eq!(counters.all().discarded(), 5);
    }

    #[test]
    fn the_dashboard_counts_as_discarded_what_is() {
        let dashboard = include_str!("../../../dashboards/guard.json");
        let left_out = dashboard.split("outcome!~\\\"").skip(1);
        let left_out: Vec<_> = left_out
            .filter_map(|rest| rest.split('\\').next())
            .collect();
        let others = Outcome::ALL.into_iter().filter(|one| !one.is_discard());
        let others = others.map(Outcome::name).collect::<Vec<_>>().join("|");
        assert_eq!(left_out, [others.as_str(); 2]);
    }

    /// It added up what all hosts had that a Prometheus server watches.
    #[test]
    fn the_dashboard_shows_the_hosts_that_are_chosen() {
        let dashboard = include_str!("../../../dashboards/guard.json");
        let asked = dashboard.matches("plimsoll_guard_").count();
        let chosen = |series: &str| dashboard.matches(series).count();
        // The choice itself lists all of them.
        assert_eq!(chosen("{instance=~\\\"$instance\\\"") + 1, asked);
        assert!(chosen("label_values(plimsoll_guard_uptime_seconds, instance)") > 0);
    }

    #[test]
    fn addresses_survive_the_mapped_form() {
        for text in ["0.0.0.0", "198.18.0.2", "::", "2001:db8::1"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(from_mapped(to_mapped(address)), address);
        }
    }
}
