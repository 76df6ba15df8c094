//! The loss ledger: from the adapter's counters to the application, every
//! packet in exactly one named place.
//!
//! An operator who sees a packet missing wants to know where it ended, and the
//! host's own counters say so in a dozen files. The ledger puts them in the
//! order a packet meets them, as five stages. What enters a stage ends in one
//! of its places or goes on to the next; the difference is shown as
//! `unaccounted`, never explained away. Counts are since the ledger was begun.
//!
//! | stage | enters | ends there |
//! | --- | --- | --- |
//! | adapter | all frames the adapter knows of | bad frames, receive ring full, no memory |
//! | guard | what the program saw, and what came while it stood by | discarded early, answered with a cookie |
//! | host | admitted, and what other interfaces received | another host's frames, no handler, ARP, merged by GRO, backlog queue |
//! | ip | IPv4 and IPv6 input | errors, no route, fragments, forwarded, multicast nobody joined |
//! | protocols | delivered by IP, and what waited before | TCP, UDP and ICMP: lost by cause, waiting, delivered |
//!
//! `between` is pure computation; `sources` reads the counters.
//!
//! # Limits
//!
//! - The stack's counters are of the network namespace, so what the other
//!   interfaces received joins at `host`. Their ARP is `unaccounted`: the
//!   kernel does not count it. So is the interface's own while the guard stands by.
//! - Counters are read one after the other. What cannot be told from packets
//!   that moved meanwhile is `in_motion`; with no traffic it is 0.
//! - A full receive ring is known to the sender only on veth: from the `tx_dropped`
//!   of the other end where that can be asked, else not at all.
//! - What another interface lost (`rx_dropped`), or its XDP program took (another guard's, for
//!   one), is missing from what joined, and nobody counts how much of that it had counted as
//!   received. Where there is such a thing, what is missing at `host` beyond the interface's own
//!   `rx_dropped` is `undivided`. A program that came and went there between two looks is not known.
//! - `rx_dropped` says that a packet was dropped, not where. It is put where
//!   packets are missing.
//! - Merging (GRO) has no counter. It explains a difference up to what the
//!   kernel counted in segments (ECN counters) beyond packets; local bulk TCP
//!   raises that bound. IPv6 multicast that nobody joined has none either: up to
//!   all of it.
//! - `unaccounted` at `ip` is mostly a packet filter; at `protocols`, protocols
//!   without counters, tunnels, and datagrams of a socket that was closed. One
//!   packet for several sockets (multicast) makes it negative.

mod between;
mod causes;
mod sources;

use serde::{Deserialize, Serialize};

pub use sources::{Begun, LedgerReader};

/// What became of the packets in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// Lost: the host or the adapter could not or would not take them.
    Lost,
    /// Discarded early by the guard.
    Discarded,
    /// Answered by the guard's program.
    Answered,
    /// Now part of another packet that is counted further on.
    Merged,
    /// For another host, sent on or left alone.
    Passed,
    /// Ended on another interface of the network namespace, or on this one: the kernel's counters
    /// cannot be divided.
    Undivided,
    /// Waiting to be taken.
    Waiting,
    /// Taken by an application, or by the kernel for itself.
    Delivered,
}

impl Fate {
    /// The name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Discarded => "discarded",
            Self::Answered => "answered",
            Self::Merged => "merged",
            Self::Passed => "passed",
            Self::Undivided => "undivided",
            Self::Waiting => "waiting",
            Self::Delivered => "delivered",
        }
    }
}

/// Where packets ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Unique in its stage.
    pub name: String,
    /// What became of them.
    pub fate: Fate,
    /// How many.
    pub packets: u64,
    /// The counters this comes from.
    pub from: String,
}

/// One part of a packet's way: `entered + joined` is the sum of all places,
/// `in_motion`, `unaccounted` and `went_on`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Unique in the ledger.
    pub name: String,
    /// Packets that came from the stage before.
    pub entered: u64,
    /// Packets that came from elsewhere: other interfaces, or waiting before.
    pub joined: u64,
    /// Where packets ended.
    pub places: Vec<Place>,
    /// Packets that moved while counters were read. Below 0 if they were seen
    /// twice.
    pub in_motion: i64,
    /// What no counter explains. Below 0 if packets were counted twice.
    pub unaccounted: i64,
    /// Packets that the next stage counted.
    pub went_on: u64,
}

/// Where all packets went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// In the order that a packet meets them.
    pub stages: Vec<Stage>,
    /// The sum over all stages.
    pub unaccounted: i64,
    /// Counters that this host does not have, and what that hides.
    pub not_visible: Vec<String>,
    /// Counters that began anew: what they held before is missing.
    pub began_anew: Vec<String>,
}

impl Ledger {
    /// All packets that ended this way.
    #[must_use]
    pub fn packets(&self, fate: Fate) -> u64 {
        let places = self.stages.iter().flat_map(|stage| &stage.places);
        places
            .filter(|place| place.fate == fate)
            .map(|place| place.packets)
            .sum()
    }

    /// A place by the names of its stage and itself.
    #[must_use]
    pub fn place(&self, stage: &str, name: &str) -> Option<&Place> {
        let stage = self.stages.iter().find(|s| s.name == stage)?;
        stage.places.iter().find(|place| place.name == name)
    }
}

#[cfg(test)]
impl Ledger {
    /// One stage that does not add up.
    pub(crate) fn sample() -> Self {
        let ring = Place {
            name: "receive_ring".to_owned(),
            fate: Fate::Lost,
            packets: 7,
            from: "rx_missed_errors".to_owned(),
        };
        let adapter = Stage {
            name: "adapter".to_owned(),
            entered: 107,
            joined: 0,
            places: vec![ring],
            in_motion: 1,
            unaccounted: -3,
            went_on: 102,
        };
        Self {
            stages: vec![adapter],
            unaccounted: -3,
            ..Self::default()
        }
    }
}
