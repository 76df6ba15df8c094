//! The form of questions and answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::governor;
use crate::hidden::Unguarded;
use crate::ledger::Ledger;
use crate::owner::Owner;
use crate::sources::Heaviest;
use crate::syn_cookies::SynCookies;

/// What to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Channels with most of this come first.
    pub sort: Sort,
    /// Channels told at most.
    pub limit: usize,
}

/// An order of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// By packets offered per second.
    Offered,
    /// By packets discarded per second, then since the start.
    Discarded,
    /// By the CPU time charged for their packets.
    Charged,
    /// By how full the queue is.
    Occupancy,
}

/// What a guard does at one time. Status, log, `--json` and metrics all take it from here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// Outcomes are counted only: everything passes.
    pub observe: bool,
    /// Input is being shed by shares.
    pub shedding: bool,
    /// No program is attached: the guard waits for signs of overload.
    #[serde(default)]
    pub standing_by: bool,
    /// How often the program was attached since the start.
    #[serde(default)]
    pub attachments: u64,
    /// What the governor does.
    pub governor: governor::Status,
    /// Who answers SYNs past a full SYN queue with cookies; `None` unless attached, and of a guard
    /// that does not tell.
    #[serde(default)]
    pub syn_cookies: Option<SynCookies>,
    /// The protocols of which no socket is guarded; empty of a guard that does not tell.
    #[serde(default)]
    pub unguarded: BTreeSet<Unguarded>,
}

/// The state of a running guard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of this form.
    pub schema: u32,
    /// The guarded interface.
    pub interface: String,
    /// The guard's process.
    pub pid: u32,
    /// Seconds since the guard started.
    pub uptime_s: f64,
    /// What it does.
    #[serde(flatten)]
    pub condition: Condition,
    /// Seconds that the rates are of.
    pub interval_s: f64,
    /// All packets by kind; kinds without a packet are left out.
    pub kinds: Vec<KindStatus>,
    /// Live channels, told or not.
    pub channels_total: usize,
    /// The channels asked for.
    pub channels: Vec<ChannelStatus>,
    /// The channel with most packets offered per second, whether asked for or
    /// not; none without a packet.
    pub most_offered: Option<ChannelStatus>,
    /// Where all packets went since the start.
    pub ledger: Ledger,
    /// Sources that are known now, at whatever port: they were served before.
    #[serde(default)]
    pub known_sources: u32,
}

/// All packets of a kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindStatus {
    /// The kind's name.
    pub kind: String,
    /// Since the start, by outcome.
    pub packets: BTreeMap<String, u64>,
    /// Packets offered per second.
    pub offered_pps: f64,
    /// Packets discarded early per second.
    pub discarded_pps: f64,
    /// CPU time charged for them: 1 is one whole CPU.
    pub charged_cpus: f64,
}

/// One channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChannelStatus {
    /// The kind's name.
    pub kind: String,
    /// Where the socket is bound; unspecified means any.
    pub address: IpAddr,
    /// The port it is bound to.
    pub port: u16,
    /// Since the start, by outcome.
    pub packets: BTreeMap<String, u64>,
    /// Packets offered per second.
    pub offered_pps: f64,
    /// Packets discarded early per second.
    pub discarded_pps: f64,
    /// Packets per second by outcome.
    pub outcome_pps: BTreeMap<String, f64>,
    /// CPU time charged for its packets: 1 is one whole CPU.
    pub charged_cpus: f64,
    /// Over its high watermark (or backlog) at the last packet.
    pub discarding: bool,
    /// Bytes or connections in its queue when last looked at.
    pub occupancy: u32,
    /// The queue's limit, in the same unit.
    pub capacity: u32,
    /// Who has the socket, if that is known. Left to the one who asks, so that
    /// the guard needs no right to look into other processes.
    pub owner: Option<Owner>,
    /// Who sends to it; none as long as none of its packets was judged by source.
    pub sources: Option<SourcesStatus>,
}

/// The sources of a channel. Packets are those that came while it was overloaded; while
/// outcomes are counted only, `discarded` is what would be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourcesStatus {
    /// Those that were served before the overload.
    pub known: ClassStatus,
    /// All others.
    pub unknown: ClassStatus,
    /// There are more sources than can be told apart: `seen` is a lower bound.
    pub at_least: bool,
    /// The heaviest prefix of each level, from hosts to networks. Empty in calm, and
    /// where no prefix stands out.
    pub heaviest: Vec<Heaviest>,
}

/// The known or the unknown sources of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassStatus {
    /// Hosts that sent something in the last four seconds.
    pub seen: u32,
    /// Their packets that were admitted, since the start.
    pub admitted: u64,
    /// Their packets that were discarded, since the start.
    pub discarded: u64,
    /// Packets admitted per second.
    pub admitted_pps: f64,
    /// Packets discarded per second.
    pub discarded_pps: f64,
}
