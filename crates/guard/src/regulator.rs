//! What is regulated several times a second: shedding when receiving takes too
//! much of a CPU, and queue limits by delay targets. Reads the meter and the
//! program, lets the pure parts decide, and tells the program.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use plimsoll_core::demux::Kind;

use crate::counters::{Outcome, Packets};
use crate::delay::{self, Queue};
use crate::error::Error;
use crate::guard::Regulated;
use crate::program::types::limit;
use crate::program::{Program, SLOT_PROTECTED};
use crate::shedding::{Demand, Load, Order, Shedding, SheddingConfig};
use plimsoll_kernel::meter::{CpuMeter, CpuReading, Options};

/// The program's tick: shares are packets per tick.
const TICK_NS: u64 = 1 << limit::SHARE_TICK_SHIFT.0;
/// How often queue limits follow their consumers.
const DELAY_INTERVAL: Duration = Duration::from_millis(100);
/// Shorter intervals than this tell too little about packets per tick.
const SHEDDING_INTERVAL: Duration = Duration::from_millis(15);

type Totals = [Packets; Kind::ALL.len()];

#[derive(Debug)]
pub(crate) struct Regulator {
    meter: CpuMeter,
    shedding: Shedding,
    before: Option<Before>,
    /// Sockets whose slots share a group's share.
    groups: HashMap<u32, u64>,
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
    demands: HashMap<u32, u64>,
    cpu: u32,
}

impl Regulator {
    pub(crate) fn start(interface: &str) -> Result<Self, Error> {
        Ok(Self {
            meter: CpuMeter::start(Options {
                interface: Some(interface),
                ..Options::default()
            })?,
            shedding: Shedding::new(SheddingConfig::default()),
            before: None,
            groups: HashMap::new(),
            delay_target: None,
            queues: HashMap::new(),
            queues_read: Instant::now(),
        })
    }

    pub(crate) fn configure(&mut self, shedding: SheddingConfig, delay_target: Option<Duration>) {
        self.shedding = Shedding::new(shedding);
        self.delay_target = delay_target;
    }

    pub(crate) fn set_groups(&mut self, groups: HashMap<u32, u64>) {
        self.groups = groups;
    }

    pub(crate) const fn is_shedding(&self) -> bool {
        self.shedding.is_active()
    }

    /// All time that receiving has cost on all CPUs, and what packets cost.
    pub(crate) fn network_time(&self) -> Result<(u64, (f64, f64)), Error> {
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
            .is_none_or(|before| now - before.at >= SHEDDING_INTERVAL);
        let totals = program.totals_by_cpu()?;
        let discarded = totals.iter().flatten().map(Packets::discarded).sum();
        if is_due {
            self.shed(program, now, &readings, totals);
        }
        Ok(Regulated {
            readings,
            discarded,
        })
    }

    fn shed(
        &mut self,
        program: &mut Program<'_>,
        now: Instant,
        readings: &[CpuReading],
        totals: Vec<Totals>,
    ) {
        let cpu = self.busiest(readings);
        let demands: HashMap<u32, u64> = if self.shedding.is_active() {
            program.demands(cpu).collect()
        } else {
            HashMap::new()
        };
        if let Some(before) = &self.before {
            let load = load(before, readings, &totals, cpu);
            let claims = self.claims(before, &demands, cpu);
            match self.shedding.on_interval(&load, &claims) {
                Order::Keep => {}
                Order::Stop => program.set_shares(None),
                Order::Shed { others, slots } => {
                    let slots = slots
                        .into_iter()
                        .map(|(slot, rate)| (slot, per_tick(rate)))
                        .collect();
                    program.set_shares(Some((per_tick(others), &slots)));
                }
            }
        }
        self.before = Some(Before {
            at: now,
            readings: readings.to_vec(),
            totals,
            demands,
            cpu,
        });
    }

    /// The CPU on which receiving took most since the reading before.
    fn busiest(&self, readings: &[CpuReading]) -> u32 {
        let before = self.before.as_ref().map_or(&[][..], |b| &b.readings);
        let spent = |reading: &CpuReading| {
            let earlier = before.iter().find(|earlier| earlier.cpu == reading.cpu);
            reading.network_ns - earlier.map_or(0, |earlier| earlier.network_ns)
        };
        readings
            .iter()
            .max_by_key(|reading| spent(reading))
            .map_or(0, |reading| reading.cpu)
    }

    fn claims(&self, before: &Before, demands: &HashMap<u32, u64>, cpu: u32) -> Vec<Demand> {
        if before.cpu != cpu {
            return Vec::new();
        }
        demands
            .iter()
            .map(|(slot, packets)| Demand {
                slot: *slot,
                packets: packets.saturating_sub(before.demands.get(slot).copied().unwrap_or(0)),
                group: self.groups.get(slot).copied(),
                protected: *slot == SLOT_PROTECTED,
            })
            .filter(|demand| demand.packets > 0 || demand.protected)
            .collect()
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

fn per_tick(rate: u64) -> u32 {
    let packets = u128::from(rate) * u128::from(TICK_NS) / 1_000_000_000;
    u32::try_from(packets).unwrap_or(u32::MAX).max(1)
}

/// What one CPU did since the reading before.
fn load(before: &Before, readings: &[CpuReading], totals: &[Totals], cpu: u32) -> Load {
    let find = |readings: &[CpuReading]| readings.iter().find(|r| r.cpu == cpu).copied();
    let (Some(earlier), Some(later)) = (find(&before.readings), find(readings)) else {
        return Load::default();
    };
    let index = cpu as usize;
    let sum = |totals: &[Totals]| {
        let mut all = Packets::default();
        if let Some(kinds) = totals.get(index) {
            kinds.iter().for_each(|packets| all.add_all(packets));
        }
        all
    };
    let new = sum(totals).saturating_sub(&sum(&before.totals));
    let admitted = new.count(Outcome::Admitted);
    Load {
        elapsed_ns: later.total_ns().saturating_sub(earlier.total_ns()),
        network_ns: later.network_ns.saturating_sub(earlier.network_ns),
        admitted,
        discarded: new.offered() - admitted,
    }
}
