//! Plimsoll's early discard: which packets the guard still takes.
//!
//! A packet for a consumer whose queue is over the guard's high watermark is discarded,
//! down to the low one ([`QueueFeedback`], one queue per consumer), and so is a
//! connection request for a listener beyond its backlog. While receiving takes more of
//! a CPU than it may, each consumer has so many packets per tick on each CPU admitted as
//! the core says ([`Shedding`]), so that nobody's flood takes what others need. Both
//! count packets as the guard's BPF program does. With `fair`, or a limit for each source,
//! it also matters whose a packet is ([`Sources`]).

use std::time::Duration;

use plimsoll_core::charge::shedding::{
    CpuLoad, Demand, INTERVAL_MIN, Order, PacketCosts, Shedding, SheddingConfig,
};
use plimsoll_core::config::Fraction;
use plimsoll_core::fairness::Budget;
use plimsoll_core::feedback::{Change, FeedbackConfig, SocketWatermarks, Watermarks};
use plimsoll_core::governor::{Company, CpuObservation};
use plimsoll_core::poll::{SourceId, SourceSet};
use plimsoll_core::time::{Instant, TICK};

use super::queue_feedback::QueueFeedback;
use super::sources::{Sources, is_datagram};
use crate::Error;
use crate::host::{Host, Queued};
use crate::packet::{Kind, Packet};
use crate::scenario::GovernedGuardConfig;
use crate::source::nanos;

/// What a queued packet takes of a socket's buffer: a page each, as on veth with XDP.
pub(super) const PACKET_BYTES: u32 = 4096;
/// Feedback knows this many consumers; further ones are discarded when full.
const CONSUMERS_MAX: usize = SourceId::COUNT_MAX;

/// So many percent as a part.
pub(super) fn part(percent: f64) -> Fraction {
    Fraction::from_ppm((percent * 1e4) as u32)
}

/// Which packets are discarded.
#[derive(Debug)]
pub(super) struct EarlyDiscard {
    feedback: QueueFeedback,
    /// Consumers, as sources of the feedback, for whom nothing is taken.
    discarding: SourceSet,
    sources: Sources,
    shedding: Shedding,
    /// Packets are admitted by their consumer's share.
    is_shedding: bool,
    ticks: Ticks,
    /// By consumer: packets per tick and CPU.
    shares: Vec<u32>,
    cpus: Vec<PerCpu>,
}

/// What one CPU did in this interval, and in this tick.
#[derive(Debug)]
struct PerCpu {
    elapsed: Duration,
    network: Duration,
    admitted: u64,
    discarded: u64,
    /// By consumer.
    demands: Vec<Demand>,
    budgets: Vec<Budget>,
}

impl EarlyDiscard {
    /// As `settings` say; a discarded packet costs `discarded`.
    pub(super) fn new(
        host: &Host,
        sources: Sources,
        settings: &GovernedGuardConfig,
        discarded: Duration,
    ) -> Result<Self, Error> {
        let consumers = host.endpoints.len();
        let socket = SocketWatermarks {
            high: part(settings.high_pct),
            low: part(settings.low_pct),
            drained_bytes_max: settings.drained_kib * 1024,
            ..SocketWatermarks::DEFAULT
        };
        let config = FeedbackConfig {
            // A consumer that takes nothing is no reason to receive for it.
            timeout: Duration::from_secs(3600),
            ..FeedbackConfig::default()
        };
        let shedding = SheddingConfig {
            limit: part(settings.share_pct),
            aim: part(settings.aim_pct),
            costs: costs(discarded),
            demands_max: consumers,
            ..SheddingConfig::DEFAULT
        };
        let mut made = Self {
            feedback: QueueFeedback::new(config, host)?,
            discarding: SourceSet::EMPTY,
            sources,
            shedding: Shedding::new(shedding).map_err(Error::core("shedding"))?,
            is_shedding: false,
            ticks: Ticks {
                tick_ns: nanos(settings.tick_us),
            },
            shares: vec![0; consumers],
            cpus: (0..host.cpus.len())
                .map(|_| PerCpu::new(consumers))
                .collect(),
        };
        for (to, endpoint) in host.endpoints.iter().enumerate().take(CONSUMERS_MAX) {
            let source = SourceId::from_index(to).map_err(Error::core("the feedback"))?;
            let length = endpoint.queue.limit() as u32;
            let marks = Watermarks::of_socket(socket, length, PACKET_BYTES);
            made.feedback
                .watch(to, marks, SourceSet::EMPTY.with(source))?;
        }
        Ok(made)
    }

    /// Whether `packet`, which `cpu` has received, is taken.
    pub(super) fn admits(&mut self, host: &Host, packet: &Packet, cpu: usize) -> bool {
        let is_full = self.is_full(host, packet);
        let has_place = if is_datagram(host, packet) {
            self.sources.admit(host, packet, is_full)
        } else {
            self.sources.on_other();
            !is_full
        };
        let admitted = has_place && self.has_share(host, packet, cpu);
        let cpu = &mut self.cpus[cpu];
        if admitted {
            cpu.admitted += 1;
        } else {
            cpu.discarded += 1;
        }
        admitted
    }

    /// A packet asks for its place in its consumer's budget. What no queue bounds is due in
    /// parts of a tick, as the guard's program has it: all at once would come faster than it is
    /// worked on.
    fn has_share(&mut self, host: &Host, packet: &Packet, cpu: usize) -> bool {
        let to = usize::from(packet.to);
        let cpu = &mut self.cpus[cpu];
        cpu.demands[to].packets += 1;
        if !self.is_shedding {
            return true;
        }
        let budget = &mut cpu.budgets[to];
        let (packets, now) = self.ticks.share(self.shares[to], host.now);
        let is_unbounded = host.endpoints[to].threads.is_empty();
        match self.sources.are_fair() && is_unbounded {
            true => budget.allow_in_parts(packets, now),
            false => budget.allow(packets, now),
        }
        self.sources.admit_shed(host, packet, budget)
    }

    /// Whose packets came since this was last asked, if sources are told apart.
    pub(super) fn company(&mut self, host: &Host) -> Option<Company> {
        self.sources.company(host)
    }

    fn is_full(&self, host: &Host, packet: &Packet) -> bool {
        let to = usize::from(packet.to);
        let endpoint = &host.endpoints[to];
        match packet.kind {
            Kind::Syn => endpoint.is_beyond_backlog(),
            Kind::Datagram | Kind::Request if endpoint.threads.is_empty() => {
                // Forwarded, or read by nobody.
                endpoint.queue.is_full()
            }
            Kind::Datagram | Kind::Request => match SourceId::from_index(to) {
                Ok(source) => self.discarding.contains(source),
                Err(_) => endpoint.queue.is_full(),
            },
            _ => false,
        }
    }

    /// A packet is on a consumer's queue, or went elsewhere.
    pub(super) fn on_queued(&mut self, host: &Host, queued: Queued) {
        let change = self.feedback.on_queued(host, queued);
        self.note(change);
    }

    /// Consumer `to` has taken a packet off its queue.
    pub(super) fn on_read(&mut self, host: &Host, to: usize) {
        let change = self.feedback.on_read(host, to);
        self.note(change);
    }

    /// The governor has seen the CPUs do this.
    pub(super) fn on_interval(&mut self, seen: &[CpuObservation]) {
        for (cpu, seen) in self.cpus.iter_mut().zip(seen) {
            cpu.elapsed += seen.elapsed;
            cpu.network += seen.network;
        }
        if self.cpus.iter().any(|cpu| cpu.elapsed < INTERVAL_MIN) {
            return;
        }
        let loads = self.cpus.iter().map(PerCpu::load);
        match self.shedding.on_interval(loads) {
            Order::Keep => {}
            Order::Stop => self.is_shedding = false,
            Order::Shed { others, slots } => {
                self.is_shedding = true;
                self.shares.fill(others);
                for share in slots {
                    self.shares[share.slot as usize] = share.packets;
                }
            }
        }
        self.cpus.iter_mut().for_each(PerCpu::begin_interval);
    }

    fn note(&mut self, change: Change) {
        if change == Change::NONE {
            return;
        }
        for source in change.inhibit.iter() {
            self.discarding = self.discarding.with(source);
        }
        if !change.allow.is_empty() {
            let left = self.discarding.iter();
            let left = left.filter(|&source| !change.allow.contains(source));
            self.discarding = left.fold(SourceSet::EMPTY, SourceSet::with);
        }
    }
}

/// The time of budgets: the core's, unless ticks of another length are looked at.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    tick_ns: u64,
}

impl Ticks {
    /// The packets of the tick of `now`, and that time as budgets know it; the core gives `share`
    /// packets in each of its own ticks. Over all ticks nothing is lost by rounding.
    fn share(self, share: u32, now: u64) -> (u32, Instant) {
        let own = u128::from(self.tick_ns);
        let scaled = u128::from(now) * TICK.as_nanos() / own;
        let until = |tick: u128| tick * own * u128::from(share) / TICK.as_nanos();
        let tick = u128::from(now) / own;
        let packets = (until(tick + 1) - until(tick)) as u32;
        (packets, Instant::from_nanos(scaled as u64))
    }
}

impl PerCpu {
    fn new(consumers: usize) -> Self {
        let demand = |slot| Demand {
            slot,
            packets: 0,
            group: None,
            protected: false,
        };
        Self {
            elapsed: Duration::ZERO,
            network: Duration::ZERO,
            admitted: 0,
            discarded: 0,
            demands: (0..consumers as u32).map(demand).collect(),
            budgets: vec![Budget::default(); consumers],
        }
    }

    fn load(&self) -> CpuLoad<'_> {
        CpuLoad {
            elapsed: self.elapsed,
            network: self.network,
            admitted: self.admitted,
            discarded: self.discarded,
            // No transfer in the model is faster than its host.
            connections: 0,
            // Whether anybody waits is not modelled: somebody always does.
            forward: 0,
            contended: true,
            demands: Some(&self.demands),
        }
    }

    fn begin_interval(&mut self) {
        self.elapsed = Duration::ZERO;
        self.network = Duration::ZERO;
        self.admitted = 0;
        self.discarded = 0;
        for demand in &mut self.demands {
            demand.packets = 0;
        }
    }
}

/// What packets are taken to cost where discarding one costs `discarded`: a slower
/// machine is slower at everything.
fn costs(discarded: Duration) -> PacketCosts {
    let default = SheddingConfig::DEFAULT.costs;
    let slower = discarded.as_secs_f64() / default.discarded.as_secs_f64();
    PacketCosts {
        admitted: default.admitted.mul_f64(slower),
        discarded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What passes of a packet per microsecond in a tick of `tick_ns`, and what of it in the first
    /// eighth.
    fn taken(tick_ns: u64, in_parts: bool) -> (usize, usize) {
        const SHARE: u32 = 1600;
        let (ticks, mut budget) = (Ticks { tick_ns }, Budget::default());
        let (begin, end) = (3 * tick_ns, 4 * tick_ns);
        let times = (begin..end).step_by(1000);
        let passed = times.filter(|now| {
            let (packets, now) = ticks.share(SHARE, *now);
            match in_parts {
                true => budget.allow_in_parts(packets, now),
                false => budget.allow(packets, now),
            }
            budget.take()
        });
        let passed: Vec<u64> = passed.collect();
        let first = passed.iter().filter(|now| **now < begin + tick_ns / 8);
        (passed.len(), first.count())
    }

    /// All of a tick's packets passed at its beginning, and the ring overflowed.
    #[test]
    fn what_no_queue_bounds_passes_in_parts_of_a_tick() {
        let tick_ns = TICK.as_nanos() as u64;
        assert_eq!(taken(tick_ns, false), (1600, 525));
        assert_eq!(taken(tick_ns, true), (1600, 328));
        // Of a tick half as long half as many.
        assert_eq!(taken(tick_ns / 2, true), (800, 228));
    }
}
