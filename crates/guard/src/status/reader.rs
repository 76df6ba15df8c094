//! Turns readings of the counters into answers: rates between two readings,
//! and order.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use plimsoll_core::demux::Kind;

use super::document::{
    ChannelStatus, ClassStatus, Condition, KindStatus, Request, Sort, SourcesStatus, Status,
};
use crate::by_channel::ByChannel;
use crate::counters::{Channel, Counters, Outcome, Packets};
use crate::ledger::Ledger;
use crate::program::SourcesReader;
use crate::sources::{Class, Judged, Sources};

/// Version of the answer's form.
const SCHEMA: u32 = 1;
/// Rates over less than this would jump about.
const INTERVAL_MIN: Duration = Duration::from_millis(400);

/// Packets and the CPU time charged for them.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    packets: Packets,
    charged_ns: u64,
    known: Judged,
    unknown: Judged,
}

impl Count {
    fn of(channel: &Channel) -> Self {
        let sources = channel.sources.as_ref();
        let judged = |class: fn(&Sources) -> Class| sources.map(class).unwrap_or_default().judged;
        Self {
            packets: channel.packets,
            charged_ns: channel.charged_ns,
            known: judged(|sources| sources.known),
            unknown: judged(|sources| sources.unknown),
        }
    }

    fn of_kinds(counters: &Counters) -> [Self; Kind::ALL.len()] {
        std::array::from_fn(|i| Self {
            packets: counters.totals[i],
            charged_ns: counters.charged_ns[i],
            ..Self::default()
        })
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(&earlier.packets),
            charged_ns: self.charged_ns.saturating_sub(earlier.charged_ns),
            known: self.known.since(&earlier.known),
            unknown: self.unknown.since(&earlier.unknown),
        }
    }
}

/// Counts at one time, as far as rates need them.
#[derive(Debug)]
struct Reading {
    at: Instant,
    kinds: [Count; Kind::ALL.len()],
    channels: ByChannel<Count>,
}

/// What a guard tells of itself at one time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What the interface is called now, if it was renamed since the start.
    pub renamed: Option<String>,
    /// All counters.
    pub counters: Counters,
    /// Packets that passed whatever their outcome, because it was observed only.
    pub observed: Packets,
    /// What finds out who sends to these channels; `None`: the counters tell.
    pub sources: Option<SourcesReader>,
    /// What it does.
    pub condition: Condition,
}

impl Snapshot {
    /// What the interface is called now, that was called so at the start.
    pub(crate) fn name(&self, at_start: &str) -> String {
        self.renamed.as_deref().unwrap_or(at_start).to_owned()
    }
}

/// What was read at one time.
#[derive(Clone, Debug)]
pub(crate) struct Latest {
    pub(crate) at: Instant,
    pub(crate) snapshot: Snapshot,
    pub(crate) ledger: Ledger,
}

#[cfg(test)]
impl Snapshot {
    /// A calm guard with these channels and nothing else.
    pub(crate) fn sample(channels: Vec<Channel>) -> Self {
        Self {
            renamed: None,
            counters: Counters::sample(channels),
            observed: Packets::default(),
            sources: None,
            condition: Condition {
                observe: true,
                shedding: false,
                standing_by: false,
                attachments: 1,
                governor: crate::governor::Status {
                    mode: "interrupts".into(),
                    reason: "calm".into(),
                    holdoff_us: 0.0,
                    network_share: 0.25,
                    switches: 2,
                },
                syn_cookies: Some(crate::SynCookies::DRIVER),
                unguarded: std::collections::BTreeSet::new(),
            },
        }
    }
}

/// What is remembered between two answers.
#[derive(Debug)]
pub(crate) struct Reader {
    interface: String,
    started: Instant,
    /// The readings rates are between: the latest one old enough.
    earlier: Reading,
    later: Option<Reading>,
}

impl Reader {
    /// Rates are since `started` at first.
    pub(crate) fn new(interface: &str, started: Instant) -> Self {
        Self {
            interface: interface.to_owned(),
            started,
            earlier: Reading {
                at: started,
                kinds: [Count::default(); Kind::ALL.len()],
                channels: ByChannel::default(),
            },
            later: None,
        }
    }

    /// Answers from what was read.
    pub(crate) fn status(&mut self, latest: &Latest, request: Request) -> Status {
        let Latest {
            at: now,
            snapshot,
            ledger,
        } = latest;
        let now = *now;
        let counters = &snapshot.counters;
        self.move_on(counters, now);
        let interval = now.duration_since(self.earlier.at);
        let rate = |count: u64| count as f64 / interval.as_secs_f64().max(1e-3);
        let rows = self.earlier.channels.with(&counters.channels);
        let mut rows: Vec<(&Channel, Count)> = rows
            .map(|(channel, before)| (channel, new_of(channel, before)))
            .collect();
        let most_offered = rows.iter().max_by_key(|(_, new)| new.packets.offered());
        let most_offered = most_offered
            .filter(|(_, new)| new.packets.offered() > 0)
            .map(|row| channel_status(row, rate));
        sort(&mut rows, request);
        Status {
            schema: SCHEMA,
            interface: snapshot.name(&self.interface),
            pid: std::process::id(),
            condition: snapshot.condition.clone(),
            uptime_s: now.duration_since(self.started).as_secs_f64(),
            interval_s: interval.as_secs_f64(),
            kinds: self.kinds(counters, rate),
            channels_total: counters.channels.len(),
            channels: rows.iter().map(|row| channel_status(row, rate)).collect(),
            most_offered,
            ledger: ledger.clone(),
            known_sources: counters.known_sources,
        }
    }

    /// The kinds that had a packet.
    fn kinds(&self, counters: &Counters, rate: impl Fn(u64) -> f64) -> Vec<KindStatus> {
        let kinds = Kind::ALL
            .iter()
            .zip(Count::of_kinds(counters))
            .zip(&self.earlier.kinds);
        let kinds = kinds.filter(|((_, count), _)| count.packets.offered() > 0);
        let kinds = kinds.map(|((kind, count), before)| {
            let new = count.since(before);
            KindStatus {
                kind: kind.name().to_owned(),
                packets: by_outcome(&count.packets),
                offered_pps: rate(new.packets.offered()),
                discarded_pps: rate(new.packets.discarded()),
                charged_cpus: rate(new.charged_ns) / 1e9,
            }
        });
        kinds.collect()
    }

    /// Remembers this reading, and takes the one before as the earlier end of
    /// rates once it is old enough.
    fn move_on(&mut self, counters: &Counters, now: Instant) {
        let old_enough = |reading: &Reading| now.duration_since(reading.at) >= INTERVAL_MIN;
        if self.later.as_ref().is_some_and(old_enough)
            && let Some(later) = self.later.take()
        {
            self.earlier = later;
        }
        self.later.get_or_insert_with(|| {
            let mut channels = ByChannel::default();
            channels.carry(&counters.channels, |channel, _| Count::of(channel));
            Reading {
                at: now,
                kinds: Count::of_kinds(counters),
                channels,
            }
        });
    }
}

/// What is new of a channel. One not known before, or one whose place another
/// socket took, has all its packets new.
fn new_of(channel: &Channel, before: Option<Count>) -> Count {
    let count = Count::of(channel);
    match before {
        Some(before) if before.packets.offered() <= count.packets.offered() => count.since(&before),
        _ => count,
    }
}

fn channel_status((channel, new): &(&Channel, Count), rate: impl Fn(u64) -> f64) -> ChannelStatus {
    ChannelStatus {
        kind: channel.kind.name().to_owned(),
        address: channel.address,
        port: channel.port,
        packets: by_outcome(&channel.packets),
        offered_pps: rate(new.packets.offered()),
        discarded_pps: rate(new.packets.discarded()),
        charged_cpus: rate(new.charged_ns) / 1e9,
        outcome_pps: Outcome::ALL
            .iter()
            .map(|outcome| (outcome.name().to_owned(), rate(new.packets.count(*outcome))))
            .collect(),
        discarding: channel.discarding,
        occupancy: channel.occupancy,
        capacity: channel.capacity,
        owner: None,
        sources: channel
            .sources
            .as_ref()
            .map(|sources| sources_status(sources, new, rate)),
    }
}

fn sources_status(sources: &Sources, new: &Count, rate: impl Fn(u64) -> f64) -> SourcesStatus {
    let class = |Class { seen, judged }: Class, new: &Judged| ClassStatus {
        seen,
        admitted: judged.admitted,
        discarded: judged.discarded,
        admitted_pps: rate(new.admitted),
        discarded_pps: rate(new.discarded),
    };
    SourcesStatus {
        known: class(sources.known, &new.known),
        unknown: class(sources.unknown, &new.unknown),
        at_least: sources.at_least,
        heaviest: sources.heaviest.clone(),
    }
}

/// Puts the rows asked for first, in order, and drops the others.
fn sort(rows: &mut Vec<(&Channel, Count)>, request: Request) {
    let weight = |(channel, new): &(&Channel, Count)| match request.sort {
        Sort::Offered => (new.packets.offered(), channel.packets.offered()),
        Sort::Discarded => (new.packets.discarded(), channel.packets.discarded()),
        Sort::Charged => (new.charged_ns, channel.charged_ns),
        Sort::Occupancy => (
            u64::from(channel.occupancy) * 1_000_000 / u64::from(channel.capacity.max(1)),
            channel.packets.offered(),
        ),
    };
    let order = |row: &(&Channel, Count)| Reverse((weight(row), Reverse(row.0.key())));
    if request.limit < rows.len() {
        rows.select_nth_unstable_by_key(request.limit, order);
        rows.truncate(request.limit);
    }
    rows.sort_by_key(order);
}

pub(crate) fn by_outcome(packets: &Packets) -> BTreeMap<String, u64> {
    Outcome::ALL
        .iter()
        .map(|outcome| (outcome.name().to_owned(), packets.count(*outcome)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(channels: &[Channel], at: Instant) -> Latest {
        Latest {
            at,
            snapshot: Snapshot::sample(channels.to_vec()),
            ledger: Ledger::default(),
        }
    }

    fn ports(status: &Status) -> Vec<u16> {
        status.channels.iter().map(|channel| channel.port).collect()
    }

    const ALL: Request = Request {
        sort: Sort::Discarded,
        limit: 100,
    };

    #[test]
    fn rates_are_between_readings_far_enough_apart() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut reader = Reader::new("v0", start);
        let first = reader.status(&counters(&[Channel::sample(1, 1000, 0)], at(1000)), ALL);
        assert_eq!(first.channels[0].offered_pps, 1000.0, "since the start");
        let soon = reader.status(&counters(&[Channel::sample(1, 1100, 0)], at(1100)), ALL);
        assert_eq!(soon.interval_s, 1.1, "too soon for a new interval");
        let later = reader.status(&counters(&[Channel::sample(1, 1100, 500)], at(2000)), ALL);
        assert_eq!(later.interval_s, 1.0);
        assert_eq!(later.channels[0].offered_pps, 600.0);
        assert_eq!(later.channels[0].discarded_pps, 500.0);
        assert_eq!(later.channels[0].outcome_pps["socket_queue"], 500.0);
        assert_eq!(later.kinds[0].discarded_pps, 500.0);
        assert_eq!(later.kinds[0].packets["admitted"], 1100);
    }

    #[test]
    fn a_channel_in_new_hands_starts_anew() {
        let start = Instant::now();
        let mut reader = Reader::new("v0", start);
        let one = start + Duration::from_secs(1);
        reader.status(&counters(&[Channel::sample(1, 1000, 0)], one), ALL);
        let two = start + Duration::from_secs(2);
        let status = reader.status(&counters(&[Channel::sample(1, 10, 0)], two), ALL);
        assert_eq!(status.channels[0].offered_pps, 10.0);
    }

    #[test]
    fn the_channels_asked_for_come_in_their_order() {
        let start = Instant::now();
        let now = start + Duration::from_secs(1);
        let channels = [
            Channel::sample(1, 5, 9),
            Channel::sample(2, 50, 3),
            Channel::sample(3, 0, 7),
        ];
        let latest = counters(&channels, now);
        let ask = |sort, limit| {
            let mut reader = Reader::new("v0", start);
            reader.status(&latest, Request { sort, limit })
        };
        assert_eq!(ports(&ask(Sort::Discarded, 9)), [1, 3, 2]);
        assert_eq!(ports(&ask(Sort::Offered, 9)), [2, 1, 3]);
        assert_eq!(ports(&ask(Sort::Occupancy, 9)), [3, 2, 1]);
        let few = ask(Sort::Discarded, 2);
        let told = ask(Sort::Occupancy, 1).most_offered.map(|c| c.port);
        assert_eq!(told, Some(2), "asked for or not");
        assert_eq!(ports(&few), [1, 3]);
        assert_eq!(few.channels_total, 3);
        assert_eq!(ports(&ask(Sort::Discarded, 0)), [0; 0]);
    }
}
