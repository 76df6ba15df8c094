//! Whose packets an overloaded consumer takes: anybody's, those within a limit for each
//! source, or those that the core's fairness admits.
//!
//! A source of a scenario is one host, or many (its `from`). What the guard's program
//! keeps for each CPU stands once here: the modelled host has one CPU that receives, in
//! what this is for.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv4Addr};

use fastrand::Rng;
use foldhash::fast::FixedState;
use plimsoll_core::fairness::{
    Budget, Fairness, FairnessConfig, Keys, Queue, Request, Share, Source, Verdict,
};
use plimsoll_core::feedback::{SocketWatermarks, Watermarks};
use plimsoll_core::governor::Company;

use super::early_discard::PACKET_BYTES;
use crate::Error;
use crate::host::Host;
use crate::packet::{Kind, Packet};
use crate::scenario::GovernedGuardConfig;

/// Packets at once within a limit, as `bench guard` tells nftables: those of a tenth of a
/// second, and at least as many as it has if nothing is said. With fewer, polling in batches
/// would let less pass than the limit says.
const LIMIT_BURST: f64 = 5.0;
const LIMIT_BURST_S: f64 = 0.1;
/// Sources that a packet filter's set holds, as there. What does not fit is not limited.
const LIMITED_MAX: usize = 65_535;

/// The rule.
#[derive(Debug)]
pub(super) enum Sources {
    /// Whoever comes while there is room.
    Any,
    /// So many packets a second of each source, at any load.
    Limited(Limits),
    /// By the core's fairness.
    Fair(Box<Fair>),
}

/// A token bucket for each source.
#[derive(Debug)]
pub(super) struct Limits {
    rate_pps: f64,
    /// By address: tokens, and as of when in ns.
    buckets: HashMap<Ipv4Addr, (f64, u64), FixedState>,
}

/// Fairness, and whether a flood is alone.
#[derive(Debug)]
pub(super) struct Fair {
    fairness: Fairness,
    /// By consumer.
    channels: Vec<Channel>,
    /// Packets of no flood.
    others: u64,
}

/// What one consumer had since the governor was last asked.
#[derive(Clone, Copy, Debug, Default)]
struct Channel {
    share: Share,
    flood: u64,
    admitted: u64,
}

impl Sources {
    pub(super) fn new(host: &Host, config: &GovernedGuardConfig) -> Result<Self, Error> {
        if config.source_limit_pps > 0.0 {
            return Ok(Self::Limited(Limits {
                rate_pps: config.source_limit_pps,
                buckets: HashMap::with_capacity_and_hasher(LIMITED_MAX, FixedState::default()),
            }));
        }
        if !config.fair {
            return Ok(Self::Any);
        }
        let fairness = Fairness::new(&FairnessConfig::DEFAULT, keys(host.seed));
        Ok(Self::Fair(Box::new(Fair {
            fairness: fairness.map_err(Error::core("fairness"))?,
            channels: vec![Channel::default(); host.endpoints.len()],
            others: 0,
        })))
    }

    /// Whether a process's datagram is taken; `is_full`: its queue is over the watermark.
    pub(super) fn admit(&mut self, host: &Host, packet: &Packet, is_full: bool) -> bool {
        match self {
            Self::Any => !is_full,
            Self::Limited(limits) => {
                let source = host.claimed[usize::from(packet.source)].address(packet);
                limits.has_token(source, host.now) && !is_full
            }
            Self::Fair(fair) => fair.admit(host, packet),
        }
    }

    /// Whether a packet has a place in its consumer's `budget`, since input is shed.
    ///
    /// Limits: a process's datagrams divide their queue among sources, and not the budget as
    /// well, as the guard's program lets them.
    pub(super) fn admit_shed(&mut self, host: &Host, packet: &Packet, budget: &mut Budget) -> bool {
        match self {
            Self::Fair(fair) if !is_datagram(host, packet) => fair.admit_shed(host, packet, budget),
            _ => budget.take(),
        }
    }

    /// Whether sources divide what no queue bounds.
    pub(super) fn are_fair(&self) -> bool {
        matches!(self, Self::Fair(_))
    }

    /// A packet that is no process's datagram.
    pub(super) fn on_other(&mut self) {
        if let Self::Fair(fair) = self {
            fair.others += 1;
        }
    }

    /// Whose packets came since this was last asked. With several floods, the largest is
    /// the flood, and the others are company.
    pub(super) fn company(&mut self, host: &Host) -> Option<Company> {
        let Self::Fair(fair) = self else {
            return None;
        };
        let mut company = Company {
            others: std::mem::take(&mut fair.others),
            ..Company::default()
        };
        for (to, channel) in fair.channels.iter_mut().enumerate() {
            let flood = std::mem::take(&mut channel.flood);
            let admitted = std::mem::take(&mut channel.admitted);
            if flood > company.flood {
                company.others += company.flood;
                company.flood = flood;
                company.admitted = admitted;
                company.queued = host.endpoints[to].queue.len() as u64;
            } else {
                company.others += flood;
            }
        }
        Some(company)
    }
}

impl Limits {
    fn has_token(&mut self, source: Ipv4Addr, now: u64) -> bool {
        let burst = LIMIT_BURST.max(self.rate_pps * LIMIT_BURST_S);
        let is_full = self.buckets.len() >= LIMITED_MAX;
        let (tokens, at) = match self.buckets.entry(source) {
            Entry::Occupied(bucket) => bucket.into_mut(),
            Entry::Vacant(_) if is_full => return true,
            Entry::Vacant(place) => place.insert((burst, now)),
        };
        let earned = (now - *at) as f64 * self.rate_pps / 1e9;
        *tokens = (*tokens + earned).min(burst);
        *at = now;
        let has_one = *tokens >= 1.0;
        *tokens -= f64::from(u8::from(has_one));
        has_one
    }
}

impl Fair {
    fn admit(&mut self, host: &Host, packet: &Packet) -> bool {
        let to = usize::from(packet.to);
        let request = request(host, packet);
        let queue = queue(&host.endpoints[to].queue);
        let channel = &mut self.channels[to];
        let silent = channel.share.silent();
        let verdict = self
            .fairness
            .judge(&mut channel.share, &request, &queue, host.instant());
        let asks_for_much = channel.share.is_pressed() && channel.share.silent() == silent;
        let is_flood = asks_for_much && !request.known;
        channel.flood += u64::from(is_flood);
        self.others += u64::from(!is_flood);
        let is_admitted = verdict == Verdict::Admitted;
        channel.admitted += u64::from(is_admitted);
        is_admitted
    }

    fn admit_shed(&mut self, host: &Host, packet: &Packet, budget: &mut Budget) -> bool {
        let share = &mut self.channels[usize::from(packet.to)].share;
        let request = request(host, packet);
        let verdict = self
            .fairness
            .judge_shed(share, budget, &request, host.instant());
        verdict == Verdict::Admitted
    }
}

/// Whether the packet is a datagram for a process.
pub(super) fn is_datagram(host: &Host, packet: &Packet) -> bool {
    let is_read = !host.endpoints[usize::from(packet.to)].threads.is_empty();
    packet.kind == Kind::Datagram && is_read
}

fn request(host: &Host, packet: &Packet) -> Request {
    let claimed = &host.claimed[usize::from(packet.source)];
    Request {
        channel: u32::from(packet.to) + 1,
        source: Source::from(IpAddr::from(claimed.address(packet))),
        known: claimed.known,
    }
}

/// The secret of a run's guard. Nobody else draws from this seed.
fn keys(seed: u64) -> Keys {
    let mut drawn = Rng::with_seed(!seed);
    Keys(std::array::from_fn(|_| drawn.u64(..)))
}

/// A consumer's queue in packets, with the guard's watermarks.
fn queue(fifo: &crate::packet::Fifo) -> Queue {
    let limit = fifo.limit() as u32;
    let marks = Watermarks::of_socket(SocketWatermarks::DEFAULT, limit, PACKET_BYTES);
    let high = marks.inhibit_at;
    Queue {
        occupancy: fifo.len() as u32,
        low: marks.allow_at.map_or(high, |last| last + 1),
        high,
        full: (SocketWatermarks::DEFAULT.full.of(limit.into()) as u32).max(high),
        has_room: fifo.len() < limit as usize,
    }
}
