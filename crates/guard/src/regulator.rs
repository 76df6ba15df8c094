//! What is regulated several times a second: shedding when receiving takes too
//! much of a CPU, and queue limits by delay targets. Reads the meter and the
//! program, lets the pure parts decide, and tells the program.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use plimsoll_core::charge::shedding::{
    CpuLoad, Demand, INTERVAL_MIN, Order, PacketCosts, Shedding, SheddingConfig, TICK,
};
use plimsoll_core::config::ConfigError;
use plimsoll_core::demux::Kind;
use plimsoll_core::feedback::SocketWatermarks;

use crate::counters::{Outcome, Packets};
use crate::delay::{self, Queue};
use crate::error::Error;
use crate::guard::Regulated;
use crate::program::types::limit;
use crate::program::{Program, SLOT_PROTECTED};
use plimsoll_kernel::meter::{CpuMeter, CpuReading, Options};

// The program counts and drains as the decisions in core say.
const _: () = assert!(TICK.as_nanos() == 1 << limit::SHARE_TICK_SHIFT.0);
const _: () = assert!(SocketWatermarks::DEFAULT.drained_bytes_max == limit::DRAINED_BYTES_MAX.0);

/// How often queue limits follow their consumers.
const DELAY_INTERVAL: Duration = Duration::from_millis(100);
/// What a CPU's demands were longer ago than this says nothing about them now.
const COUNTS_AGE_MAX: Duration = Duration::from_secs(1);
/// Places for demands: one for each slot of the program.
const DEMANDS_MAX: usize = limit::CHANNELS_MAX.0 as usize;

type Totals = [Packets; Kind::ALL.len()];

#[derive(Debug)]
pub(crate) struct Regulator {
    meter: CpuMeter,
    shedding: Shedding,
    before: Option<Before>,
    counts: Counts,
    delay_target: Option<Duration>,
    queues: HashMap<u32, Queue>,
    queues_read: Instant,
}

/// The reading before.
#[derive(Debug)]
struct Before {
    at: Instant,
    readings: Vec<CpuReading>,
    totals: Vec<Totals>,
}

/// The program's counts of packets that asked for a share, of CPUs that have decided
/// about shedding.
#[derive(Debug, Default)]
struct Counts {
    /// By CPU: when they were read, and by slot.
    read: HashMap<u32, (Instant, HashMap<u32, u64>)>,
    /// Sockets whose slots share a group's share.
    groups: HashMap<u32, u64>,
    /// Those of the CPU that was read last.
    demands: Vec<Demand>,
}

impl Regulator {
    pub(crate) fn start(interface: &str) -> Result<Self, Error> {
        Ok(Self {
            meter: CpuMeter::start(Options {
                interface: Some(interface),
                ..Options::default()
            })?,
            shedding: Shedding::new(SheddingConfig::DEFAULT)?,
            before: None,
            counts: Counts::default(),
            delay_target: None,
            queues: HashMap::new(),
            queues_read: Instant::now(),
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

    /// All time that receiving has cost on all CPUs, and what packets cost.
    pub(crate) fn network_time(&self) -> Result<(u64, PacketCosts), Error> {
        let readings = self.meter.peek();
        let network_ns = readings.iter().map(|reading| reading.network_ns).sum();
        Ok((network_ns, self.shedding.costs()))
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
        let discarded = totals.iter().flatten().map(Packets::discarded).sum();
        let closed_ports = totals
            .iter()
            .map(|kinds| kinds[Kind::ClosedPort as usize].offered())
            .sum();
        if is_due {
            self.shed(program, now, &readings, totals);
        }
        Ok(Regulated {
            readings,
            discarded,
            closed_ports,
        })
    }

    fn shed(
        &mut self,
        program: &mut Program<'_>,
        now: Instant,
        readings: &[CpuReading],
        totals: Vec<Totals>,
    ) {
        let later = Before {
            at: now,
            readings: readings.to_vec(),
            totals,
        };
        let Some(before) = self.before.take() else {
            self.before = Some(later);
            return;
        };
        let mut loads: Vec<CpuLoad<'_>> = readings
            .iter()
            .map(|reading| load(reading, &before, &later.totals))
            .collect();
        if self.shedding.is_active() {
            let place = self
                .shedding
                .choose_cpu(loads.iter().map(|load| load.network));
            if let (Some(reading), Some(load)) = (readings.get(place), loads.get_mut(place)) {
                load.demands = self.counts.read(program, reading.cpu, now, now - before.at);
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
        } else if let Some(reading) = readings.get(self.shedding.deciding_cpu())
            && !was_active
        {
            // From here on its demands are counted.
            self.counts.read(program, reading.cpu, now, Duration::ZERO);
        }
        self.before = Some(later);
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

impl Counts {
    /// What asked for a share on `cpu` in an interval as long as the one that ends
    /// `now`, if it was read not too long ago.
    fn read(
        &mut self,
        program: &mut Program<'_>,
        cpu: u32,
        now: Instant,
        interval: Duration,
    ) -> Option<&[Demand]> {
        let counts: HashMap<u32, u64> = program.demands(cpu).collect();
        let (read_at, before) = self.read.insert(cpu, (now, counts))?;
        let counts = &self.read.get(&cpu)?.1;
        let passed = now - read_at;
        if passed > COUNTS_AGE_MAX {
            return None;
        }
        let in_interval = |packets: u64| {
            let part = u128::from(packets) * interval.as_nanos() / passed.as_nanos().max(1);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let demands = counts.iter().map(|(slot, packets)| Demand {
            slot: *slot,
            packets: in_interval(packets.saturating_sub(before.get(slot).copied().unwrap_or(0))),
            group: self.groups.get(slot).copied(),
            protected: *slot == SLOT_PROTECTED,
        });
        self.demands.clear();
        self.demands
            .extend(demands.filter(|demand| demand.packets > 0 || demand.protected));
        Some(&self.demands)
    }
}

/// What one CPU did since the reading before.
fn load(later: &CpuReading, before: &Before, totals: &[Totals]) -> CpuLoad<'static> {
    let same = |earlier: &&CpuReading| earlier.cpu == later.cpu;
    let Some(earlier) = before.readings.iter().find(same) else {
        return CpuLoad::default();
    };
    let sum = |totals: &[Totals]| {
        let mut all = Packets::default();
        if let Some(kinds) = totals.get(later.cpu as usize) {
            kinds.iter().for_each(|packets| all.add_all(packets));
        }
        all
    };
    let new = sum(totals).saturating_sub(&sum(&before.totals));
    let admitted = new.count(Outcome::Admitted);
    let since = |later: u64, earlier: u64| Duration::from_nanos(later.saturating_sub(earlier));
    CpuLoad {
        elapsed: since(later.total_ns(), earlier.total_ns()),
        network: since(later.network_ns, earlier.network_ns),
        admitted,
        discarded: new.offered() - admitted,
        demands: None,
    }
}
