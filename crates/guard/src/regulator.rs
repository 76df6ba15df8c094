//! What is regulated several times a second: shedding when receiving takes too
//! much of a CPU, and queue limits by delay targets. Reads the meter and the
//! program, lets the pure parts decide, and tells the program. Has CPU time metered only
//! while it may matter ([`metering`](plimsoll_core::governor::metering)).

mod demands;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use plimsoll_core::charge::contention::Contention;
use plimsoll_core::charge::shedding::{
    CpuLoad, INTERVAL_MIN, Order, PacketCosts, Shedding, SheddingConfig,
};
use plimsoll_core::config::{ConfigError, Fraction};
use plimsoll_core::demux::Kind;
use plimsoll_core::governor::GovernorConfig;
use plimsoll_core::governor::metering::{Attention, Limits, Metering, Signs, Spent};

use crate::counters::{Outcome, Packets};
use crate::delay::{self, Queue};
use crate::error::Error;
use crate::guard::Regulated;
use crate::program::types::limit;
use crate::program::{CpuTotals, Program};
use demands::Counts;
use plimsoll_kernel::meter::{CpuMeter, CpuReading, InstanceReading, Options};

/// How often queue limits follow their consumers.
const DELAY_INTERVAL: Duration = Duration::from_millis(100);
/// Places for demands: one for each slot of the program.
const DEMANDS_MAX: usize = limit::CHANNELS_MAX.0 as usize;

#[derive(Debug)]
pub(crate) struct Regulator {
    meter: CpuMeter,
    metering: Metering,
    started: Instant,
    /// What the interval that ended last showed, until it is decided by.
    signs: Option<Signs>,
    spent: Spent,
    /// Metered while no program judged what came: for no packet that was counted.
    unjudged_ns: u64,
    shedding: Shedding,
    /// By CPU.
    contention: BTreeMap<u32, Contention>,
    before: Option<Before>,
    counts: Counts,
    delay_target: Option<Duration>,
    queues: HashMap<u32, Queue>,
    queues_read: Instant,
    /// A thread of the kernel polls the interface all the time: what it takes of a CPU says nothing of
    /// what comes.
    is_polled_busily: bool,
}

/// The reading before.
#[derive(Debug)]
struct Before {
    at: Instant,
    readings: Vec<CpuReading>,
    totals: Vec<CpuTotals>,
}

impl Regulator {
    pub(crate) fn start(interface: &str) -> Result<Self, Error> {
        Ok(Self {
            meter: CpuMeter::start(Options {
                interface: Some(interface),
                ..Options::default()
            })?,
            metering: Metering::new(limits(SheddingConfig::DEFAULT.limit)),
            started: Instant::now(),
            signs: None,
            spent: Spent::default(),
            unjudged_ns: 0,
            shedding: Shedding::new(SheddingConfig::DEFAULT)?,
            contention: BTreeMap::new(),
            before: None,
            counts: Counts::default(),
            delay_target: None,
            queues: HashMap::new(),
            queues_read: Instant::now(),
            is_polled_busily: false,
        })
    }

    pub(crate) fn configure(
        &mut self,
        shedding: SheddingConfig,
        delay_target: Option<Duration>,
    ) -> Result<(), ConfigError> {
        self.shedding = Shedding::new(SheddingConfig {
            demands_max: DEMANDS_MAX,
            ..shedding
        })?;
        self.metering = Metering::new(limits(shedding.limit));
        self.meter.resume();
        self.before = None;
        self.counts.read.clear();
        self.delay_target = delay_target;
        Ok(())
    }

    pub(crate) fn set_groups(&mut self, groups: HashMap<u32, u64>) {
        self.counts.groups = groups;
    }

    pub(crate) const fn is_shedding(&self) -> bool {
        self.shedding.is_active()
    }

    /// Takes whether the interface is polled all the time. Whether it was otherwise before.
    pub(crate) const fn set_polled_busily(&mut self, is_polled_busily: bool) -> bool {
        std::mem::replace(&mut self.is_polled_busily, is_polled_busily) != is_polled_busily
    }

    pub(crate) const fn is_polled_busily(&self) -> bool {
        self.is_polled_busily
    }

    /// Whether the CPU time that is metered tells what receiving takes.
    fn is_metered(&self) -> bool {
        self.metering.attention().is_metered() && !self.is_polled_busily
    }

    /// All time that receiving has cost on all CPUs, and what packets cost.
    pub(crate) fn network_time(&self) -> Result<(u64, PacketCosts), Error> {
        let readings = self.meter.peek();
        let metered_ns: u64 = readings.iter().map(|reading| reading.network_ns).sum();
        let unmetered_ns = nanos(self.spent.unmetered());
        let judged_ns = metered_ns.saturating_sub(self.unjudged_ns);
        Ok((judged_ns + unmetered_ns, self.shedding.costs()))
    }

    /// Call after each interval, when the governor has decided. Has CPU time metered in
    /// the next, or not.
    pub(crate) fn attend(&mut self, is_strained: bool) {
        // An interval too short to decide by goes on.
        let Some(signs) = self.signs.take() else {
            return;
        };
        let signs = Signs {
            is_strained: is_strained || self.shedding.is_strained(),
            ..signs
        };
        let now = plimsoll_core::time::Instant::from_nanos(nanos(self.started.elapsed()));
        if self.metering.on_interval(signs, now).is_metered() {
            self.meter.resume();
        } else {
            self.meter.pause();
        }
    }

    /// Has the meter attached or not, while no program is.
    pub(crate) fn watch(&mut self, is_needed: bool) -> Result<(), Error> {
        if !is_needed {
            self.meter.detach();
            self.before = None;
            // Who waited a while ago says nothing of the next look.
            self.contention.clear();
            return Ok(());
        }
        if !self.meter.is_attached() {
            self.begin_metering()?;
        }
        self.attend(true);
        Ok(())
    }

    /// Call when a program is attached.
    pub(crate) fn begin_metering(&mut self) -> Result<(), Error> {
        self.before = None;
        Ok(self.meter.attach()?)
    }

    /// Whether load has just risen: the next interval should be short.
    pub(crate) fn is_alarmed(&self) -> bool {
        self.metering.attention() == Attention::Alarm
    }

    /// What each NAPI instance has brought.
    pub(crate) fn instances(&self) -> impl Iterator<Item = InstanceReading> {
        self.meter.instances()
    }

    /// Only looks, while no program is attached.
    pub(crate) fn stand_by(&mut self) -> Regulated {
        let later = Before {
            at: Instant::now(),
            readings: self.meter.read(),
            totals: Vec::new(),
        };
        let seen = Regulated {
            readings: later.readings.clone(),
            is_metered: self.meter.is_attached() && self.is_metered(),
            ..Regulated::nothing()
        };
        let is_due = |before: &Before| later.at - before.at >= INTERVAL_MIN;
        match self.before.take() {
            Some(before) if !is_due(&before) => self.before = Some(before),
            before => {
                if let Some(before) = before {
                    let network: Duration = loads(&before, &later).map(|load| load.network).sum();
                    self.unjudged_ns += nanos(network);
                    self.contend(&before, &later);
                    self.signs = Some(Signs {
                        frames_pps: frames_pps(&before, &later),
                        ..Signs::default()
                    });
                }
                self.before = Some(later);
            }
        }
        Regulated {
            wanted: self.wanted(),
            ..seen
        }
    }

    /// CPUs that others want.
    fn wanted(&self) -> Vec<u32> {
        let wanted = self.contention.iter().filter(|(_, cpu)| cpu.is_wanted());
        wanted.map(|(cpu, _)| *cpu).collect()
    }

    /// Looks and acts.
    pub(crate) fn on_interval(&mut self, program: &mut Program<'_>) -> Result<Regulated, Error> {
        let now = Instant::now();
        let readings = self.meter.read();
        if self.delay_target.is_some() && now - self.queues_read >= DELAY_INTERVAL {
            self.limit_delays(program, now);
        }
        let is_due = self
            .before
            .as_ref()
            .is_none_or(|before| now - before.at >= INTERVAL_MIN);
        let totals = program.totals_by_cpu()?;
        let kinds = totals.iter().flat_map(|totals| &totals.kinds);
        let discarded = kinds.map(Packets::discarded).sum();
        let closed_ports = totals
            .iter()
            .map(|totals| totals.kinds[Kind::ClosedPort as usize].offered())
            .sum();
        let is_metered = self.is_metered();
        if is_due {
            let later = Before {
                at: now,
                readings: readings.clone(),
                totals,
            };
            if let Some(before) = self.before.take() {
                self.see(&before, &later);
                if is_metered {
                    self.shed(program, &before, &later);
                }
            }
            self.before = Some(later);
        }
        Ok(Regulated {
            at: now,
            readings,
            wanted: self.wanted(),
            is_metered,
            discarded,
            closed_ports,
        })
    }

    /// Takes the interval's signs, and what its packets have cost.
    fn see(&mut self, before: &Before, later: &Before) {
        self.contend(before, later);
        let loads: Vec<CpuLoad<'_>> = loads(before, later).collect();
        let discarded = loads.iter().map(|load| load.discarded).sum();
        self.signs = Some(Signs {
            frames_pps: frames_pps(before, later),
            discarded_pps: per_second(discarded, later.at - before.at),
            is_strained: false,
        });
        let costs = self.shedding.costs();
        let weight = |load: &CpuLoad<'_>| {
            let discarded = costs.discarded.as_nanos() * u128::from(load.discarded);
            costs.admitted.as_nanos() * u128::from(load.admitted) + discarded
        };
        let weight: u128 = loads.iter().map(weight).sum();
        let weight = Duration::from_nanos(u64::try_from(weight).unwrap_or(u64::MAX));
        if self.is_metered() {
            let network = loads.iter().map(|load| load.network).sum();
            self.spent.on_metered(network, weight);
        } else {
            self.spent.on_unmetered(weight);
        }
    }

    fn contend(&mut self, before: &Before, later: &Before) {
        let elapsed = later.at - before.at;
        for reading in &later.readings {
            if let Some(earlier) = before.of(reading) {
                let spent = reading.since(earlier);
                let contention = self.contention.entry(reading.cpu).or_default();
                contention.on_interval(elapsed, spent.network, spent.contended);
            }
        }
    }

    fn shed(&mut self, program: &mut Program<'_>, before: &Before, later: &Before) {
        let (now, readings) = (later.at, &later.readings);
        let mut loads: Vec<CpuLoad<'_>> = loads(before, later).collect();
        for (reading, load) in readings.iter().zip(&mut loads) {
            let contention = self.contention.get(&reading.cpu);
            load.contended = contention.is_some_and(Contention::is_wanted);
        }
        if self.shedding.is_active() {
            let received = readings.iter().zip(&loads);
            let received =
                received.map(|(reading, load)| (reading.cpu, load.admitted + load.discarded > 0));
            self.counts
                .read_all(program, received, now, now - before.at);
            for (reading, load) in readings.iter().zip(&mut loads) {
                load.demands = self.counts.of(reading.cpu);
            }
        }
        let was_active = self.shedding.is_active();
        match self.shedding.on_interval(loads) {
            Order::Keep => {}
            Order::Stop => program.set_shares(None),
            Order::Shed { others, slots } => {
                let slots: BTreeMap<u32, u32> = slots
                    .iter()
                    .map(|share| (share.slot, share.packets))
                    .collect();
                program.set_shares(Some((others, &slots)));
            }
        }
        if !self.shedding.is_active() {
            self.counts.read.clear();
        } else if !was_active {
            // From here on demands are counted.
            let cpus = readings.iter().map(|reading| reading.cpu);
            self.counts.begin(program, cpus, now);
        }
    }

    fn limit_delays(&mut self, program: &mut Program<'_>, now: Instant) {
        let passed = now - self.queues_read;
        self.queues_read = now;
        let Some(target) = self.delay_target else {
            return;
        };
        let queues: HashMap<u32, Queue> = program.queues().collect();
        for (slot, queue) in &queues {
            let before = self.queues.get(slot).copied().unwrap_or_default();
            if let Some(bytes) = delay::limit(&before, queue, passed, target) {
                program.set_limit(*slot, bytes);
            }
        }
        self.queues = queues;
        program.set_delay_targets(true);
    }
}

impl Before {
    fn of(&self, later: &CpuReading) -> Option<&CpuReading> {
        self.readings
            .iter()
            .find(|earlier| earlier.cpu == later.cpu)
    }
}

fn per_second(count: u64, elapsed: Duration) -> u64 {
    let nanos = elapsed.as_nanos().max(1);
    u64::try_from(u128::from(count) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

/// Frames per second of the CPU that polled most from the interface.
fn frames_pps(before: &Before, later: &Before) -> u64 {
    let frames = later.readings.iter().map(|reading| {
        let earlier = before.of(reading).map_or(0, |earlier| earlier.frames);
        reading.frames.saturating_sub(earlier)
    });
    per_second(frames.max().unwrap_or(0), later.at - before.at)
}

/// What each CPU did between two readings.
fn loads<'a>(before: &'a Before, later: &'a Before) -> impl Iterator<Item = CpuLoad<'static>> + 'a {
    let readings = later.readings.iter();
    readings.map(|reading| load(reading, before, later))
}

/// What one CPU did between two readings. What it did not book is time in which nothing
/// happened there.
fn load(reading: &CpuReading, before: &Before, later: &Before) -> CpuLoad<'static> {
    let Some(earlier) = before.of(reading) else {
        return CpuLoad::default();
    };
    let of = |totals: &[CpuTotals]| {
        totals
            .get(reading.cpu as usize)
            .copied()
            .unwrap_or_default()
    };
    let sum = |totals: &CpuTotals| {
        let mut all = Packets::default();
        totals.kinds.iter().for_each(|packets| all.add_all(packets));
        all
    };
    let (before_all, later_all) = (of(&before.totals), of(&later.totals));
    let new = sum(&later_all).saturating_sub(&sum(&before_all));
    let admitted = new.count(Outcome::Admitted);
    let spent = reading.since(earlier);
    CpuLoad {
        elapsed: later.at - before.at,
        network: spent.network,
        admitted,
        discarded: new.offered() - admitted,
        connections: later_all.established.saturating_sub(before_all.established),
        forward: later_all.forwarded().saturating_sub(before_all.forwarded()),
        contended: false,
        demands: None,
    }
}

/// 584 years, at most.
fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// From which load on time is metered, if receiving may take `most` of a CPU.
fn limits(most: Fraction) -> Limits {
    let governor = GovernorConfig::default();
    Limits::new(most.min(governor.overload_share), governor.discard_share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::test_host::with_guard;

    const INTERVAL: Duration = Duration::from_millis(20);

    #[test]
    fn who_waited_before_a_look_says_nothing_of_the_next() {
        let mut regulator = Regulator::start("lo").expect("tracepoints need root");
        let contention = regulator.contention.entry(0).or_default();
        contention.on_interval(INTERVAL, INTERVAL, INTERVAL);
        assert_eq!(regulator.wanted(), [0]);
        regulator.watch(false).unwrap();
        assert!(regulator.wanted().is_empty());
    }

    /// Such a thread fills its CPU. So input was shed that the host had time for, and its governor saw
    /// overload for ever.
    #[test]
    fn cpu_time_tells_nothing_where_a_thread_polls_all_the_time() {
        with_guard(|guard| {
            let mut regulator = Regulator::start("lo").expect("tracepoints need root");
            regulator.begin_metering().unwrap();
            let mut is_metered = |is_polled_busily| {
                regulator.set_polled_busily(is_polled_busily);
                let judged = regulator.on_interval(&mut guard.program).unwrap();
                assert_eq!(regulator.stand_by().is_metered, judged.is_metered);
                judged.is_metered
            };
            assert!(is_metered(false));
            assert!(!is_metered(true));
            assert!(is_metered(false));
        });
    }

    /// Shedding goes by it: a transfer that filled a CPU was shed before, and collapsed.
    #[test]
    fn a_load_says_what_is_of_established_connections_and_on_which_cpu() {
        let reading = |cpu| {
            let mut reading = CpuReading::default();
            reading.cpu = cpu;
            reading
        };
        let at = Instant::now();
        let looked = |at, established: [u64; 2]| Before {
            at,
            readings: vec![reading(0), reading(1)],
            totals: established
                .map(|established| {
                    let mut totals = CpuTotals {
                        established,
                        ..CpuTotals::default()
                    };
                    let mut counts = [0; Outcome::ALL.len()];
                    counts[Outcome::Admitted as usize] = established + 100;
                    totals.kinds[Kind::TcpConnection as usize].add(&counts);
                    totals
                })
                .into(),
        };
        let (before, later) = (looked(at, [10, 20]), looked(at + INTERVAL, [15, 90]));
        let found: Vec<_> = loads(&before, &later)
            .map(|load| (load.connections, load.admitted))
            .collect();
        assert_eq!(found, [(5, 5), (70, 70)]);
    }

    /// Packets for tunnels that end in the kernel go on as those for other hosts do, and so do
    /// those that are translated.
    #[test]
    fn a_load_says_what_goes_on_to_other_hosts_and_to_tunnels() {
        let at = Instant::now();
        let looked = |at, packets: [u64; 3]| {
            let [_, tunnelled, translated] = packets;
            let mut totals = CpuTotals {
                tunnelled,
                translated,
                ..CpuTotals::default()
            };
            let kinds = [Kind::Forward, Kind::Other, Kind::ClosedPort];
            for (kind, packets) in kinds.into_iter().zip(packets) {
                let mut counts = [0; Outcome::ALL.len()];
                counts[Outcome::Admitted as usize] = packets;
                totals.kinds[kind as usize].add(&counts);
            }
            Before {
                at,
                readings: vec![CpuReading::default()],
                totals: vec![totals],
            }
        };
        let before = looked(at, [10, 20, 32]);
        let later = looked(at + INTERVAL, [15, 90, 96]);
        let found: Vec<_> = loads(&before, &later)
            .map(|load| (load.forward, load.admitted))
            .collect();
        assert_eq!(found, [(139, 139)]);
    }
}
