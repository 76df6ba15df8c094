//! Plimsoll's own path: early discard where packets are received, and a governor
//! that chooses between interrupts and a bounded polling thread.
//!
//! **Rules.** Each packet is demultiplexed first; one for a consumer whose queue
//! is nearly full is discarded on the spot, with hysteresis ([`Feedback`], one
//! queue per consumer). All others are processed up to their sockets.
//! - At light load interrupts start that work, at software interrupt level: no
//!   latency is added.
//! - Under overload a thread per CPU polls. It runs ahead of all processes, so
//!   that it sees every packet, but sleeps between visits as long as its share
//!   of the CPU demands ([`LoadTarget`]), never so long that the ring overflows
//!   with packets there would have been time for, and not at all once it has used
//!   up its share of a period ([`CpuLimit`]).
//! - What cannot be had for the share is shed in proportion, so that nobody's
//!   flood takes what others need ([`Shedder`]).
//!
//! **Governor.** Once per interval it looks at the CPU time that packets took. A
//! saturated CPU with packets taking more than half of the allowed share means
//! polling; an idle CPU, or a quarter of the share, for [`DWELL`] intervals means
//! interrupts again.
//!
//! **Where excess is dropped.** By early discard, for the price of receiving and
//! demultiplexing; beyond the discard capacity on the ring.

use std::time::Duration;

use plimsoll_core::charge::{Class, ConsumerId, Shedder, ShedderConfig};
use plimsoll_core::config::Fraction;
use plimsoll_core::cpu_limit::{CpuLimit, CpuLimitConfig};
use plimsoll_core::feedback::{Change, Feedback, FeedbackConfig, QueueId, Watermarks};
use plimsoll_core::holdoff::{HoldoffConfig, HoldoffRange, LoadTarget, Turn};
use plimsoll_core::poll::{SourceId, SourceSet};
use plimsoll_core::time::Instant;

use super::stages::{Behind, Costs, receive_from_socket};
use super::{Path, Received};
use crate::Error;
use crate::host::{Body, Cx, Host, LineKind, Queued, Step, Thread, or_never};
use crate::outcome::Place;
use crate::packet::{Kind, Packet};
use crate::profile::Profile;
use crate::scenario::PathConfig;

/// Costs of the guard, in ns.
#[derive(Clone, Copy, Debug)]
struct GuardCosts {
    receive: u64,
    demux: u64,
    discard: u64,
    poll_pass: u64,
    enter: u64,
    exit: u64,
    soft_dispatch: u64,
}

/// Who works on packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Interrupts,
    Polling,
}

/// A pass over the receive queues of a CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    /// Of this CPU's queues.
    queue: usize,
    taken: u32,
    running: bool,
}

/// One CPU's part.
#[derive(Debug)]
struct PerCpu {
    mode: Mode,
    queues: Vec<(usize, usize)>,
    pass: Pass,
    thread: usize,
    limit: CpuLimit,
    holdoff: LoadTarget,
    entered: u64,
    /// The longest sleep that has lately left room on the rings, in ns.
    gap_max: u64,
    /// CPU time on packets, and idle time, in this interval.
    worked: u64,
    idle_before: u64,
    calm: u32,
    changes: u64,
}

/// The path.
#[derive(Debug)]
pub(super) struct GovernedGuard {
    costs: GuardCosts,
    quota: u32,
    share: f64,
    interval: u64,
    behind: Behind,
    handlers: Vec<u8>,
    cpus: Vec<PerCpu>,
    feedback: Feedback,
    /// By consumer.
    queues: Vec<Option<QueueId>>,
    discarding: SourceSet,
    shedder: Shedder,
    polled_ns: u64,
    mode_since: u64,
    measured_from: u64,
}

/// Intervals of calm before interrupts come back.
const DWELL: u32 = 5;
/// The shortest sleep of the polling thread: a timer's resolution.
const GAP_MIN_NS: u64 = 5_000;
/// The longest.
const GAP_MAX_NS: u64 = 500_000;
/// First of the timers that govern, one per CPU; those below wake the threads.
const TIMER_GOVERN: usize = 32;
/// Feedback knows this many consumers; further ones are discarded when full.
const CONSUMERS_MAX: usize = SourceId::COUNT_MAX;

impl GovernedGuard {
    pub(super) fn new(
        profile: &Profile,
        config: &PathConfig,
        costs: Costs,
        host: &Host,
    ) -> Result<Self, Error> {
        let PathConfig::GovernedGuard {
            share_pct,
            quota,
            interval_ms,
        } = *config
        else {
            unreachable!("made for this path only");
        };
        let cost = |name| profile.cost(name, config.name());
        let consumers = host.endpoints.len();
        let feedback_config = FeedbackConfig {
            // A consumer that takes nothing is no reason to receive for it.
            timeout: Duration::from_secs(3600),
            ..FeedbackConfig::default()
        };
        let feedback = Feedback::new(feedback_config, consumers);
        let mut shedder = Shedder::new(ShedderConfig::new(consumers));
        for consumer in 0..consumers {
            shedder
                .configure(ConsumerId(consumer as u32), Class::BEST_EFFORT, 1)
                .map_err(Error::core("the shedder"))?;
        }
        let mut made = Self {
            costs: GuardCosts {
                receive: costs.receive,
                demux: cost("demux")?,
                discard: cost("discard")?,
                poll_pass: cost("poll_pass")?,
                enter: costs.enter,
                exit: costs.exit,
                soft_dispatch: costs.soft_dispatch,
            },
            quota,
            share: share_pct / 100.0,
            interval: (interval_ms * 1e6) as u64,
            behind: Behind::new(costs),
            handlers: Vec::new(),
            cpus: Vec::new(),
            feedback: feedback.map_err(Error::core("the feedback"))?,
            queues: vec![None; consumers],
            discarding: SourceSet::EMPTY,
            shedder,
            polled_ns: 0,
            mode_since: 0,
            measured_from: 0,
        };
        for cpu in 0..host.cpus.len() {
            made.cpus.push(made.per_cpu(host, cpu)?);
        }
        made.register_queues(host)?;
        Ok(made)
    }

    fn per_cpu(&self, host: &Host, cpu: usize) -> Result<PerCpu, Error> {
        let share = Fraction::from_ppm((self.share * 1e6) as u32);
        let limit = CpuLimitConfig {
            limit: share,
            period: Duration::from_millis(1),
            cpus: 1,
            debt_periods: 10,
        };
        // Half of its share is what the thread aims for; the limit is the limit.
        let holdoff = HoldoffConfig {
            load: Fraction::from_ppm((self.share * 0.5e6) as u32),
            overhead: Duration::from_nanos(self.costs.enter + host.thread_switch_cost),
            range: HoldoffRange {
                min: Duration::ZERO,
                max: Duration::from_nanos(GAP_MAX_NS),
                step: Duration::from_micros(1),
            },
        };
        let all = super::fixed_holdoff::receive_queues(host);
        let mine =
            |&(adapter, queue): &(usize, usize)| host.adapters[adapter].rings[queue].cpu == cpu;
        Ok(PerCpu {
            mode: Mode::Interrupts,
            queues: all.into_iter().filter(mine).collect(),
            pass: Pass::default(),
            thread: 0,
            limit: CpuLimit::new(limit, Instant::ZERO).map_err(Error::core("the CPU limit"))?,
            holdoff: LoadTarget::new(&holdoff).map_err(Error::core("the holdoff"))?,
            entered: 0,
            gap_max: GAP_MAX_NS,
            worked: 0,
            idle_before: 0,
            calm: 0,
            changes: 0,
        })
    }

    fn register_queues(&mut self, host: &Host) -> Result<(), Error> {
        for (to, endpoint) in host.endpoints.iter().enumerate().take(CONSUMERS_MAX) {
            let source = SourceId::from_index(to).map_err(Error::core("the feedback"))?;
            let length = endpoint.queue.limit() as u32;
            // Of a short queue every place is needed.
            let high = (length - length / 8).max(1);
            let marks = Watermarks {
                inhibit_at: high,
                allow_at: Some(high - 1 - (length / 8).min(high - 1)),
            };
            let set = SourceSet::EMPTY.with(source);
            let (queue, _) = self
                .feedback
                .register(marks, set)
                .map_err(Error::core("the feedback's watermarks"))?;
            self.queues[to] = Some(queue);
        }
        Ok(())
    }

    fn note(&mut self, change: Change) {
        for source in change.inhibit.iter() {
            self.discarding = self.discarding.with(source);
        }
        if !change.allow.is_empty() {
            let left = self
                .discarding
                .iter()
                .filter(|&source| !change.allow.contains(source));
            self.discarding = left.fold(SourceSet::EMPTY, SourceSet::with);
        }
    }

    fn discards(&self, host: &Host, packet: &Packet) -> bool {
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

    /// Takes the packet in hand to where it goes.
    fn finish(&mut self, host: &mut Host, packet: Packet) {
        if let Queued::At(to) = host.protocol_done(packet)
            && let Some(queue) = self.queues[to]
        {
            let occupancy = host.endpoints[to].queue.len() as u32;
            let change = self.feedback.on_enqueue(queue, occupancy, host.instant());
            self.note(change);
        }
    }

    /// The next step of a visit to the receive queues of `cpu`; `None` when none
    /// has a packet left.
    fn visit(&mut self, host: &mut Host, cpu: usize, hand: &mut Option<Packet>) -> Option<Step> {
        if let Some(packet) = hand.take() {
            self.finish(host, packet);
        }
        let per = &mut self.cpus[cpu];
        if !per.pass.running {
            per.pass = Pass {
                running: true,
                ..Pass::default()
            };
            host.ledger.counts.polls += 1;
            return Some(Step::Kernel(self.costs.poll_pass));
        }
        for _ in 0..=per.queues.len() {
            let Some(&(adapter, queue)) = per.queues.get(per.pass.queue) else {
                break;
            };
            if per.pass.taken < self.quota
                && let Some(packet) = host.take(adapter, queue)
            {
                per.pass.taken += 1;
                return Some(self.judge(host, packet, hand));
            }
            per.pass.taken = 0;
            per.pass.queue += 1;
        }
        per.pass.queue = 0;
        let empty = |&(adapter, queue): &(usize, usize)| {
            host.adapters[adapter].rings[queue].packets.is_empty()
        };
        if per.queues.iter().all(empty) {
            per.pass.running = false;
            return None;
        }
        host.ledger.counts.polls += 1;
        Some(Step::Kernel(self.costs.poll_pass))
    }

    /// Discards a packet early, or keeps it in hand.
    fn judge(&mut self, host: &mut Host, mut packet: Packet, hand: &mut Option<Packet>) -> Step {
        let seen = self.costs.receive + self.costs.demux;
        let work = host.protocol_cost(&packet);
        let consumer = ConsumerId(u32::from(packet.to));
        if self.discards(host, &packet)
            || !self.shedder.admits(consumer, Duration::from_nanos(work))
        {
            packet.work += (seen + self.costs.discard) as u32;
            host.lose(packet, Place::EarlyDiscard);
            return Step::Kernel(seen + self.costs.discard);
        }
        *hand = Some(packet);
        Step::Kernel(seen + work)
    }

    fn enter(&mut self, host: &Host, cpu: usize) {
        let per = &mut self.cpus[cpu];
        per.entered = host.now;
        per.limit.on_enter(0, host.instant());
    }

    /// A visit is over.
    fn exit(&mut self, host: &Host, cpu: usize) {
        let per = &mut self.cpus[cpu];
        let _ = per.limit.on_exit(0, host.instant());
        per.worked += host.now - per.entered;
        let turn = Turn {
            entered: Instant::from_nanos(per.entered),
            returned: host.instant(),
        };
        let _ = per.holdoff.on_turn(turn);
    }

    /// A visit begins: how full the rings became during the last sleep says how
    /// long the next may be.
    fn note_fill(&mut self, host: &Host, cpu: usize) {
        let per = &mut self.cpus[cpu];
        let quarters = per.queues.iter().map(|&(adapter, queue)| {
            let ring = &host.adapters[adapter].rings[queue].packets;
            4 * ring.len() / ring.limit()
        });
        per.gap_max = match quarters.max().unwrap_or(0) {
            0 => (per.gap_max + per.gap_max / 4).min(GAP_MAX_NS),
            1 => per.gap_max,
            _ => (per.gap_max / 2).max(GAP_MIN_NS),
        };
    }

    /// How long the thread sleeps before its next visit.
    fn gap(&self, cpu: usize) -> u64 {
        let per = &self.cpus[cpu];
        let wanted = per.holdoff.holdoff().as_nanos() as u64;
        wanted.min(per.gap_max).max(GAP_MIN_NS)
    }

    fn set_interrupts(&self, host: &mut Host, cpu: usize, on: bool) {
        for &(adapter, queue) in &self.cpus[cpu].queues {
            host.adapters[adapter].rings[queue].enabled = false;
            if on {
                host.enable_receive(adapter, queue);
            }
        }
    }

    fn set_mode(&mut self, host: &mut Host, cpu: usize, mode: Mode) {
        let per = &mut self.cpus[cpu];
        if per.mode == mode {
            return;
        }
        per.mode = mode;
        per.calm = 0;
        per.changes += 1;
        match mode {
            Mode::Polling => {
                let thread = per.thread;
                self.mode_since = host.now;
                self.set_interrupts(host, cpu, false);
                host.wake(thread);
            }
            Mode::Interrupts => {
                self.polled_ns += host.now - self.mode_since.max(self.measured_from);
                self.set_interrupts(host, cpu, true);
            }
        }
    }

    /// An interval is over on `cpu`.
    fn govern(&mut self, host: &mut Host, cpu: usize) {
        let per = &mut self.cpus[cpu];
        let idle = host.cpus[cpu].accounts.idle;
        let was_idle = (idle - per.idle_before) as f64 / self.interval as f64;
        per.idle_before = idle;
        let used = std::mem::take(&mut per.worked) as f64 / self.interval as f64;
        let overloaded = was_idle < 0.05 && used > self.share / 2.0;
        let calm = was_idle > 0.2 || used < self.share / 4.0;
        per.calm = if calm { per.calm + 1 } else { 0 };
        let mode = match per.mode {
            Mode::Interrupts if overloaded => Mode::Polling,
            Mode::Polling if per.calm >= DWELL => Mode::Interrupts,
            same => same,
        };
        // Shedding is for when the share does not suffice for what is admitted.
        let short = used > self.share * 0.95;
        let budget = (self.interval as f64 * self.share / 2.0) as u64;
        self.shedder
            .on_interval(short.then(|| Duration::from_nanos(budget)));
        self.set_mode(host, cpu, mode);
        host.set_path_timer(TIMER_GOVERN + cpu, host.now + self.interval);
    }

    fn interrupt(&mut self, host: &mut Host, cx: Cx, adapter: usize, queue: usize) -> Step {
        let stage = self.handlers[cx.line];
        self.handlers[cx.line] = (stage + 1) % 3;
        match stage {
            0 => {
                host.ledger.counts.interrupts += 1;
                host.adapters[adapter].rings[queue].enabled = false;
                Step::Kernel(self.costs.enter)
            }
            1 => {
                if self.cpus[cx.cpu].mode == Mode::Interrupts {
                    host.raise_soft(cx.cpu);
                }
                Step::Kernel(self.costs.exit)
            }
            _ => Step::Done,
        }
    }

    /// Work on packets at software interrupt level.
    fn soft(&mut self, host: &mut Host, cx: Cx) -> Step {
        if !self.cpus[cx.cpu].pass.running {
            host.ledger.counts.soft_interrupts += 1;
            self.enter(host, cx.cpu);
        }
        let dispatch = self.costs.soft_dispatch;
        let fresh = !self.cpus[cx.cpu].pass.running;
        let mut hand = host.lines[cx.line].hand.take();
        let step = self.visit(host, cx.cpu, &mut hand);
        host.lines[cx.line].hand = hand;
        // The governor took over meanwhile, or the limit is reached: the thread
        // goes on where this left off, once the packet in hand is finished.
        let between = host.lines[cx.line].hand.is_none();
        let taken_over = self.cpus[cx.cpu].mode == Mode::Polling && between;
        match step {
            Some(step) if !taken_over => match step {
                Step::Kernel(ns) if fresh => Step::Kernel(ns + dispatch),
                step => step,
            },
            _ => {
                self.cpus[cx.cpu].pass.running = false;
                self.exit(host, cx.cpu);
                if self.cpus[cx.cpu].mode == Mode::Interrupts {
                    self.set_interrupts(host, cx.cpu, true);
                } else {
                    let thread = self.cpus[cx.cpu].thread;
                    host.wake(thread);
                }
                Step::Done
            }
        }
    }
}

impl Path for GovernedGuard {
    fn start(&mut self, host: &mut Host) {
        self.handlers = vec![0; host.lines.len()];
        self.behind.start(host);
        for cpu in 0..host.cpus.len() {
            let mut thread = Thread::new(format!("guard-{cpu}"), Body::Path(cpu));
            thread.kernel = true;
            thread.cpu = Some(cpu);
            self.cpus[cpu].thread = host.add_thread(thread);
            host.set_path_timer(TIMER_GOVERN + cpu, self.interval);
        }
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        match kind {
            LineKind::Receive { adapter, queue } => self.interrupt(host, cx, adapter, queue),
            LineKind::Soft => self.soft(host, cx),
            kind => self.behind.line(host, cx, kind),
        }
    }

    fn thread(&mut self, host: &mut Host, cpu: usize, thread: usize) -> Step {
        let between = host.threads[thread].hand.is_none();
        if self.cpus[cpu].mode == Mode::Interrupts && between {
            if self.cpus[cpu].pass.running {
                self.cpus[cpu].pass.running = false;
                self.exit(host, cpu);
            }
            self.set_interrupts(host, cpu, true);
            return Step::Done;
        }
        if !self.cpus[cpu].pass.running {
            self.note_fill(host, cpu);
            self.enter(host, cpu);
        } else if between && self.cpus[cpu].pass.taken == 0 {
            // Between two queues or rounds the limit is looked at.
            self.exit(host, cpu);
            if self.cpus[cpu].limit.inhibited() {
                self.cpus[cpu].pass.running = false;
                let at = or_never(self.cpus[cpu].limit.next_timeout());
                host.set_path_timer(cpu, at.max(host.now + GAP_MIN_NS));
                return Step::Done;
            }
            self.enter(host, cpu);
        }
        let mut hand = host.threads[thread].hand.take();
        let step = self.visit(host, cpu, &mut hand);
        host.threads[thread].hand = hand;
        if let Some(step) = step {
            return step;
        }
        self.exit(host, cpu);
        let gap = self.gap(cpu);
        host.set_path_timer(cpu, host.now + gap);
        Step::Done
    }

    fn receive(&mut self, host: &mut Host, endpoint: usize, thread: usize) -> Received {
        let received = receive_from_socket(host, endpoint, thread);
        if let Some(queue) = self.queues[endpoint]
            && received != Received::Nothing
        {
            let occupancy = host.endpoints[endpoint].queue.len() as u32;
            let change = self.feedback.on_dequeue(queue, occupancy, host.instant());
            if change != Change::NONE {
                self.note(change);
            }
        }
        received
    }

    fn on_timer(&mut self, host: &mut Host, timer: usize) {
        if timer >= TIMER_GOVERN {
            self.govern(host, timer - TIMER_GOVERN);
            return;
        }
        let _ = self.cpus[timer].limit.poll_timeout(host.instant());
        host.wake(self.cpus[timer].thread);
    }

    fn idle(&mut self, host: &mut Host, cpu: usize) -> Step {
        let _ = self.cpus[cpu].limit.on_idle(host.instant());
        Step::Done
    }

    fn on_measure(&mut self, host: &Host) {
        self.polled_ns = 0;
        self.measured_from = host.now;
        for per in &mut self.cpus {
            per.changes = 0;
        }
    }

    fn figures(&self, host: &Host, list: &mut Vec<(String, f64)>) {
        let changes: u64 = self.cpus.iter().map(|per| per.changes).sum();
        list.push(("mode_changes".into(), changes as f64));
        let polling = self.cpus.iter().any(|per| per.mode == Mode::Polling);
        let since = self.mode_since.max(self.measured_from);
        let now = if polling { host.now - since } else { 0 };
        let span = (host.now - self.measured_from).max(1);
        let share = (self.polled_ns + now) as f64 * 100.0 / span as f64;
        list.push(("polling_pct".into(), share));
    }
}
