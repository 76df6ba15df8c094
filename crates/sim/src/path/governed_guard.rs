//! Plimsoll's own path: early discard where packets are received, and a governor
//! that chooses between interrupts and a bounded polling thread.
//!
//! **Rules.** Each packet is demultiplexed first; one for a consumer whose queue
//! is nearly full is discarded on the spot, with hysteresis ([`Feedback`], one
//! queue per consumer). All others are processed up to their sockets.
//! - At light load interrupts start that work, at software interrupt level: no
//!   latency is added.
//! - Under overload a thread per CPU polls. It runs ahead of all processes, so
//!   that it sees every packet, but sleeps for a holdoff between visits, and does
//!   not run at all once it has used up its share of a period ([`CpuLimit`]).
//! - While the share does not suffice, it is divided between the consumers that
//!   packets are for, so that nobody's flood takes what others need
//!   ([`Shedder`]).
//!
//! The core's [`Governor`] says when to change between the two and how long the
//! holdoff is; the path reports what a guard can see of a host.
//!
//! **Where excess is dropped.** By early discard, for the price of receiving and
//! demultiplexing; beyond the discard capacity on the ring.

use std::time::Duration;

use plimsoll_core::charge::{Class, ConsumerId, Shedder, ShedderConfig};
use plimsoll_core::config::Fraction;
use plimsoll_core::cpu_limit::{CpuLimit, CpuLimitConfig};
use plimsoll_core::feedback::{Change, Feedback, FeedbackConfig, QueueId, Watermarks};
use plimsoll_core::governor::{CpuObservation, Governor, GovernorConfig, Losses, Mode, Strategy};
use plimsoll_core::poll::{SourceId, SourceSet};
use plimsoll_core::time::Instant;

use super::stages::{Behind, Costs, receive_from_socket};
use super::{Path, Received};
use crate::Error;
use crate::host::{Body, Cx, Host, LineKind, Queued, Running, Step, Thread, or_never};
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
    queues: Vec<(usize, usize)>,
    pass: Pass,
    thread: usize,
    limit: CpuLimit,
    /// When the visit under way began.
    entered: u64,
    /// For the governor, since it was last asked.
    seen: CpuObservation,
    idle_before: u64,
    /// Frames of the visit under way, or the last one.
    frames: u32,
}

/// What had been lost when the governor was last asked.
#[derive(Clone, Copy, Debug, Default)]
struct LostBefore {
    discarded: u64,
    ring: u64,
}

/// The path.
#[derive(Debug)]
pub(super) struct GovernedGuard {
    costs: GuardCosts,
    quota: u32,
    share: f64,
    behind: Behind,
    handlers: Vec<u8>,
    cpus: Vec<PerCpu>,
    governor: Governor,
    mode: Mode,
    asked: u64,
    lost: LostBefore,
    inhibited: bool,
    feedback: Feedback,
    /// By consumer.
    queues: Vec<Option<QueueId>>,
    discarding: SourceSet,
    shedder: Shedder,
    changes_before: u64,
    polled_ns: u64,
    mode_since: u64,
    measured_from: u64,
}

/// The timer that asks the governor; those below wake the threads.
const TIMER_GOVERN: usize = 32;
/// A period of the CPU limit.
const LIMIT_PERIOD: Duration = Duration::from_millis(1);
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
            behind: Behind::new(costs),
            handlers: Vec::new(),
            cpus: Vec::new(),
            governor: governor(host, interval_ms)?,
            mode: Mode::Interrupts,
            asked: 0,
            lost: LostBefore::default(),
            inhibited: false,
            feedback: feedback(consumers)?,
            queues: vec![None; consumers],
            discarding: SourceSet::EMPTY,
            shedder: shedder(consumers)?,
            changes_before: 0,
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
        let limit = CpuLimitConfig {
            limit: Fraction::from_ppm((self.share * 1e6) as u32),
            period: LIMIT_PERIOD,
            cpus: 1,
            debt_periods: 10,
        };
        let all = super::fixed_holdoff::receive_queues(host);
        let mine =
            |&(adapter, queue): &(usize, usize)| host.adapters[adapter].rings[queue].cpu == cpu;
        Ok(PerCpu {
            queues: all.into_iter().filter(mine).collect(),
            pass: Pass::default(),
            thread: 0,
            limit: CpuLimit::new(limit, Instant::ZERO).map_err(Error::core("the CPU limit"))?,
            entered: 0,
            seen: CpuObservation::default(),
            idle_before: 0,
            frames: 0,
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
                per.frames += 1;
                per.seen.frames += 1;
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

    /// A CPU begins a visit, or goes on with one.
    fn enter(&mut self, host: &Host, cpu: usize) {
        let per = &mut self.cpus[cpu];
        if !per.pass.running {
            per.frames = 0;
            per.seen.runs += 1;
        }
        per.entered = host.now;
        per.limit.on_enter(0, host.instant());
    }

    /// It ends one, or looks at its limit on the way.
    fn exit(&mut self, host: &Host, cpu: usize) {
        let per = &mut self.cpus[cpu];
        let _ = per.limit.on_exit(0, host.instant());
        per.seen.network += Duration::from_nanos(host.now - per.entered);
        per.seen.run_frames_max = per.seen.run_frames_max.max(per.frames);
    }

    fn set_interrupts(&self, host: &mut Host, cpu: usize, on: bool) {
        for &(adapter, queue) in &self.cpus[cpu].queues {
            host.adapters[adapter].rings[queue].enabled = false;
            if on {
                host.enable_receive(adapter, queue);
            }
        }
    }

    /// Asks the governor.
    fn govern(&mut self, host: &mut Host) {
        let elapsed = host.now - self.asked;
        self.asked = host.now;
        let span = Duration::from_nanos(elapsed);
        for cpu in 0..self.cpus.len() {
            if self.cpus[cpu].pass.running {
                // A visit that does not end is seen as well.
                self.exit(host, cpu);
                self.enter(host, cpu);
            }
        }
        let mut seen = Vec::with_capacity(self.cpus.len());
        for (cpu, per) in self.cpus.iter_mut().enumerate() {
            let mut idle = host.cpus[cpu].accounts.idle;
            if host.cpus[cpu].running == Running::Idle {
                idle += host.now - host.cpus[cpu].since;
            }
            let observed = CpuObservation {
                elapsed: span,
                idle: Duration::from_nanos(idle - per.idle_before),
                ..std::mem::take(&mut per.seen)
            };
            per.idle_before = idle;
            seen.push(observed);
        }
        let lost = &host.ledger.counts.lost;
        let now = LostBefore {
            discarded: lost[Place::EarlyDiscard as usize],
            ring: lost[Place::Interface as usize],
        };
        let losses = Losses {
            discarded: now.discarded - self.lost.discarded,
            ring: now.ring - self.lost.ring,
            inhibited: std::mem::take(&mut self.inhibited),
        };
        self.lost = now;
        let setting = self.governor.on_interval(&seen, losses, host.instant());
        self.set_mode(host, setting.mode);
        let most = seen.iter().map(|cpu| cpu.network).max().unwrap_or_default();
        self.shed(span, most);
        let interval = self.governor.interval().as_nanos() as u64;
        host.set_path_timer(TIMER_GOVERN, host.now + interval);
    }

    /// Shares are needed when receiving takes nearly all it may: half of it then
    /// goes to work on what is admitted.
    fn shed(&mut self, span: Duration, network: Duration) {
        let short = network > span.mul_f64(self.share * 0.95);
        let budget = self.governor.interval().mul_f64(self.share / 2.0);
        self.shedder.on_interval(short.then_some(budget));
    }

    fn set_mode(&mut self, host: &mut Host, mode: Mode) {
        if self.mode == mode {
            return;
        }
        self.mode = mode;
        for cpu in 0..self.cpus.len() {
            match mode {
                Mode::Overload => {
                    self.set_interrupts(host, cpu, false);
                    host.wake(self.cpus[cpu].thread);
                }
                Mode::Interrupts => self.set_interrupts(host, cpu, true),
            }
        }
        if mode == Mode::Overload {
            self.mode_since = host.now;
        } else {
            self.polled_ns += host.now - self.mode_since.max(self.measured_from);
        }
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
                if self.mode == Mode::Interrupts {
                    host.raise_soft(cx.cpu);
                }
                Step::Kernel(self.costs.exit)
            }
            _ => Step::Done,
        }
    }

    /// Work on packets at software interrupt level.
    fn soft(&mut self, host: &mut Host, cx: Cx) -> Step {
        let fresh = !self.cpus[cx.cpu].pass.running;
        let mut hand = host.lines[cx.line].hand.take();
        if self.mode == Mode::Overload && hand.is_none() {
            // The governor took over: its thread goes on where this leaves off.
            if !fresh {
                self.cpus[cx.cpu].pass.running = false;
                self.exit(host, cx.cpu);
            }
            let thread = self.cpus[cx.cpu].thread;
            host.wake(thread);
            return Step::Done;
        }
        if fresh {
            host.ledger.counts.soft_interrupts += 1;
            self.enter(host, cx.cpu);
        }
        let dispatch = self.costs.soft_dispatch;
        let step = self.visit(host, cx.cpu, &mut hand);
        host.lines[cx.line].hand = hand;
        match step {
            Some(Step::Kernel(ns)) if fresh => Step::Kernel(ns + dispatch),
            Some(step) => step,
            None => {
                self.exit(host, cx.cpu);
                if self.mode == Mode::Interrupts {
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
        }
        let interval = self.governor.interval().as_nanos() as u64;
        host.set_path_timer(TIMER_GOVERN, interval);
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
        if self.mode == Mode::Interrupts && between {
            if self.cpus[cpu].pass.running {
                self.cpus[cpu].pass.running = false;
                self.exit(host, cpu);
            }
            self.set_interrupts(host, cpu, true);
            return Step::Done;
        }
        if !self.cpus[cpu].pass.running {
            self.enter(host, cpu);
        } else if between && self.cpus[cpu].pass.taken == 0 {
            // Between two queues or rounds the limit is looked at.
            self.exit(host, cpu);
            if self.cpus[cpu].limit.inhibited() {
                self.inhibited = true;
                self.cpus[cpu].pass.running = false;
                let at = or_never(self.cpus[cpu].limit.next_timeout());
                host.set_path_timer(cpu, at.max(host.now + 1));
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
        let holdoff = self.governor.setting().holdoff.as_nanos() as u64;
        host.set_path_timer(cpu, host.now + holdoff);
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
        if timer == TIMER_GOVERN {
            self.govern(host);
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
        self.changes_before = self.governor.switches();
    }

    fn figures(&self, host: &Host, list: &mut Vec<(String, f64)>) {
        let changes = self.governor.switches() - self.changes_before;
        list.push(("mode_changes".into(), changes as f64));
        let polling = self.mode == Mode::Overload;
        let holdoff = self.governor.setting().holdoff.as_nanos() as f64;
        list.push(("holdoff_us".into(), holdoff / 1e3));
        let since = self.mode_since.max(self.measured_from);
        let now = if polling { host.now - since } else { 0 };
        let span = (host.now - self.measured_from).max(1);
        let share = (self.polled_ns + now) as f64 * 100.0 / span as f64;
        list.push(("polling_pct".into(), share));
    }
}

/// The governor as the guard uses it, for the smallest ring.
fn governor(host: &Host, interval_ms: f64) -> Result<Governor, Error> {
    let rings = host.adapters.iter().flat_map(|device| &device.rings);
    let ring = rings.map(|ring| ring.packets.limit()).min().unwrap_or(0);
    let busy_interval = Duration::from_nanos((interval_ms * 1e6) as u64);
    let default = GovernorConfig::default();
    let config = GovernorConfig {
        strategy: Strategy::Thread,
        ring_frames: ring as u32,
        busy_interval,
        rest_interval: default.rest_interval.max(busy_interval),
        enter_dwell: default.enter_dwell.max(busy_interval),
        ..default
    };
    Governor::new(config).map_err(Error::core("the governor"))
}

/// Early discard: as long as a queue is nearly full.
fn feedback(consumers: usize) -> Result<Feedback, Error> {
    let config = FeedbackConfig {
        // A consumer that takes nothing is no reason to receive for it.
        timeout: Duration::from_secs(3600),
        ..FeedbackConfig::default()
    };
    Feedback::new(config, consumers).map_err(Error::core("the feedback"))
}

/// Equal shares.
fn shedder(consumers: usize) -> Result<Shedder, Error> {
    let mut shedder = Shedder::new(ShedderConfig::new(consumers));
    for consumer in 0..consumers {
        shedder
            .configure(ConsumerId(consumer as u32), Class::BEST_EFFORT, 1)
            .map_err(Error::core("the shedder"))?;
    }
    Ok(shedder)
}
