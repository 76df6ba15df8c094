//! Mogul & Ramakrishnan's polling thread (BL-22 to 26, 29, 30): interrupts only
//! start polling, and each ingredient can be left out. With a clock in place of
//! interrupts at high rates it is the 4.3BSD terminal driver (BL-19).
//!
//! **Rules.** The handler notes that its device wants service, wakes the polling
//! thread of its CPU, and returns with the interrupt off. The thread goes round
//! all devices and both directions, at most a quota of packets each, calls the
//! protocol directly, and lets an interrupt on again when nothing is left. Queues
//! that fill up stop the input ([`QueueFeedback`]), and so does too much CPU time
//! ([`CycleLimits`]). All of that is decided by the core, as by [`Poller`] and
//! [`Quota`].
//!
//! **Where excess is dropped.** On the adapter's ring, before any work; without
//! feedback also on the queue of whoever gets no CPU.

use std::time::Duration;

use plimsoll_core::cpu_limit::Change as LimitChange;
use plimsoll_core::feedback::Change;
use plimsoll_core::poll::{
    Direction, Directions, Driver, Initiation, Interrupts, Poller, PollerConfig, Response,
    SourceId, Turn,
};
use plimsoll_core::quota::{Quota, QuotaConfig};

use super::cycle_limits::CycleLimits;
use super::queue_feedback::QueueFeedback;
use super::stages::{Costs, TransmitService, receive_from_socket};
use super::{Parts, Path, Received};
use crate::Error;
use crate::engine::agenda::NEVER;
use crate::host::{Body, Cx, Host, LineKind, Queued, Step, Thread, or_never};
use crate::scenario::{PollingThreadConfig, RateSwitchedConfig};

/// Path timers: feedback, limits per CPU, tuning.
const TIMER_FEEDBACK: usize = 0;
const TIMER_TUNE: usize = 1;
const TIMER_LIMIT: usize = 2;
const TIMER_WAKE: usize = TIMER_LIMIT + 32;
/// The rate is judged over this span.
const RATE_WINDOW: Duration = Duration::from_millis(10);
/// The tuner compares intervals of this length.
const TUNE_INTERVAL_NS: u64 = 20_000_000;

/// A direction of an adapter as the poller of a CPU knows it.
#[derive(Clone, Copy, Debug)]
struct Source {
    adapter: usize,
    queue: usize,
    /// This queue's source also does the adapter's transmit work.
    transmits: bool,
}

/// Where the thread of a CPU is.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Sleeps; when it wakes, polling starts.
    Asleep,
    /// About to ask the poller.
    Ask,
    /// In a turn.
    Turn { turn: Turn, handled: u32 },
}

/// One CPU's polling.
#[derive(Debug)]
struct PerCpu {
    poller: Poller,
    sources: Vec<Source>,
    /// Feedback has stopped the input.
    inhibited: bool,
    thread: usize,
    phase: Phase,
    transmit: TransmitService,
}

/// The path.
#[derive(Debug)]
pub(super) struct PollingThread {
    costs: Costs,
    poll_pass: u64,
    poll_start: u64,
    quota: Option<u32>,
    initiation: Initiation,
    wait_while_active: bool,
    cpus: Vec<PerCpu>,
    /// By line: steps of the handler done.
    handlers: Vec<u8>,
    feedback: Option<QueueFeedback>,
    limits: CycleLimits,
    tuner: Option<Tuner>,
}

/// Finds the quota.
#[derive(Debug)]
struct Tuner {
    quota: Quota,
    delivered: u64,
    idle: bool,
}

impl PollingThread {
    pub(super) fn new(parts: &Parts<'_>, config: &PollingThreadConfig) -> Result<Self, Error> {
        Self::of(parts, config, Initiation::Interrupt)
    }

    /// A clock starts the polling while many packets come.
    pub(super) fn switched(parts: &Parts<'_>, config: &RateSwitchedConfig) -> Result<Self, Error> {
        let initiation = Initiation::ClockAboveRate {
            period: Duration::from_nanos((config.interval_us * 1e3) as u64),
            window: RATE_WINDOW,
            packets: ((config.threshold_pps * RATE_WINDOW.as_secs_f64()) as u32).max(1),
        };
        let plain = PollingThreadConfig {
            queue_while_active: true,
            ..PollingThreadConfig::default()
        };
        Self::of(parts, &plain, initiation)
    }

    fn of(
        parts: &Parts<'_>,
        config: &PollingThreadConfig,
        initiation: Initiation,
    ) -> Result<Self, Error> {
        let host = parts.host;
        let mut made = Self {
            costs: parts.costs,
            poll_pass: parts.cost("poll_pass")?,
            poll_start: parts.cost("poll_start")?,
            quota: config.quota,
            initiation,
            wait_while_active: !config.queue_while_active,
            cpus: Vec::new(),
            handlers: Vec::new(),
            feedback: config
                .feedback
                .map(|settings| QueueFeedback::of_processes(settings, host))
                .transpose()?,
            limits: CycleLimits::new(config.cycle_limit, host.cpus.len())?,
            tuner: None,
        };
        for _ in 0..host.cpus.len() {
            made.cpus.push(made.per_cpu(host)?);
        }
        if config.tune_quota {
            let config = QuotaConfig {
                initial: config.quota.unwrap_or(8),
                ..QuotaConfig::default()
            };
            let quota = Quota::new(config).map_err(Error::core("the quota"))?;
            made.tuner = Some(Tuner {
                quota,
                delivered: 0,
                idle: false,
            });
        }
        Ok(made)
    }

    fn per_cpu(&self, host: &Host) -> Result<PerCpu, Error> {
        let config = PollerConfig {
            receive_quota: self.quota.unwrap_or(u32::MAX),
            transmit_quota: self.quota.unwrap_or(u32::MAX),
            initiation: self.initiation,
            ..PollerConfig::default()
        };
        let poller = Poller::new(config, host.instant()).map_err(Error::core("the poller"))?;
        Ok(PerCpu {
            poller,
            sources: Vec::new(),
            inhibited: false,
            thread: 0,
            phase: Phase::Asleep,
            transmit: TransmitService::default(),
        })
    }

    /// Finds what a receive or transmit line belongs to.
    fn source_of(&self, cpu: usize, kind: LineKind) -> Option<(SourceId, Directions)> {
        let sources = &self.cpus[cpu].sources;
        let (index, directions) = match kind {
            LineKind::Receive { adapter, queue } => {
                let found = sources
                    .iter()
                    .position(|s| s.adapter == adapter && s.queue == queue);
                (found?, Directions::RECEIVE)
            }
            LineKind::Transmit { adapter } => {
                let found = sources
                    .iter()
                    .position(|s| s.adapter == adapter && s.transmits);
                (found?, Directions::TRANSMIT)
            }
            _ => return None,
        };
        Some((SourceId::from_index(index).ok()?, directions))
    }

    /// The handler: notes the request and returns with the interrupt off.
    fn interrupt(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        let stage = self.handlers[cx.line];
        self.handlers[cx.line] = (stage + 1) % 3;
        match stage {
            0 => {
                host.ledger.counts.interrupts += 1;
                self.enter_interrupt(host, cx.cpu);
                Step::Kernel(self.costs.enter)
            }
            1 => {
                if let Some((source, directions)) = self.source_of(cx.cpu, kind) {
                    match kind {
                        LineKind::Receive { adapter, queue } => {
                            host.adapters[adapter].rings[queue].enabled = false;
                        }
                        LineKind::Transmit { adapter } => {
                            host.adapters[adapter].transmit_enabled = false;
                        }
                        _ => {}
                    }
                    let per = &mut self.cpus[cx.cpu];
                    if per.poller.on_interrupt(source, directions) == Response::Wake {
                        let thread = per.thread;
                        host.wake(thread);
                    }
                }
                Step::Kernel(self.costs.exit)
            }
            _ => {
                self.exit_interrupt(host, cx.cpu);
                Step::Done
            }
        }
    }

    fn enter_interrupt(&mut self, host: &Host, cpu: usize) {
        if self.limits.count_interrupts {
            self.limits.on_enter(cpu, host.instant());
        }
    }

    fn exit_interrupt(&mut self, host: &mut Host, cpu: usize) {
        if self.limits.count_interrupts {
            self.exit(host, cpu);
        }
    }

    /// A CPU ends its work on packets; input stops if it was too much.
    fn exit(&mut self, host: &mut Host, cpu: usize) {
        let change = self.limits.on_exit(cpu, host.instant());
        self.apply_limits(host, self.limits.number(cpu), change);
    }

    /// Carries out what a limit decided.
    fn apply_limits(&mut self, host: &mut Host, number: usize, change: LimitChange) {
        for cpu in self.limits.cpus(number) {
            self.apply_limit(host, cpu, change);
        }
        let timeout = self.limits.next_timeout(number);
        if timeout != host.path_timer(TIMER_LIMIT + number) {
            host.set_path_timer(TIMER_LIMIT + number, timeout);
        }
    }

    fn apply_limit(&mut self, host: &mut Host, cpu: usize, change: LimitChange) {
        let per = &mut self.cpus[cpu];
        match change {
            LimitChange::None => {}
            LimitChange::Inhibit => {
                for source in per.poller.inhibit_all_input().iter() {
                    let Source { adapter, queue, .. } = per.sources[source.index()];
                    host.adapters[adapter].rings[queue].enabled = false;
                }
            }
            LimitChange::Allow => {
                if per.poller.allow_all_input() {
                    host.wake(per.thread);
                }
            }
        }
    }

    /// Carries out what feedback decided; its sources are CPUs.
    fn apply_feedback(&mut self, host: &mut Host, change: Change) {
        for cpu in change.inhibit.iter() {
            let per = &mut self.cpus[cpu.index()];
            per.inhibited = true;
            for (index, source) in per.sources.iter().enumerate() {
                let Ok(id) = SourceId::from_index(index) else {
                    continue;
                };
                if per.poller.inhibit_input(id).receive {
                    host.adapters[source.adapter].rings[source.queue].enabled = false;
                }
            }
        }
        for cpu in change.allow.iter() {
            let per = &mut self.cpus[cpu.index()];
            per.inhibited = false;
            let mut wake = false;
            for index in 0..per.sources.len() {
                let Ok(id) = SourceId::from_index(index) else {
                    continue;
                };
                wake |= per.poller.allow_input(id);
            }
            if wake {
                host.wake(per.thread);
            }
        }
        if let Some(feedback) = &self.feedback {
            host.set_path_timer(TIMER_FEEDBACK, feedback.next_timeout());
        }
    }

    fn on_queued(&mut self, host: &mut Host, queued: Queued) {
        if let Some(feedback) = &mut self.feedback {
            let change = feedback.on_queued(host, queued);
            self.apply_feedback(host, change);
        }
    }

    /// The next step of a turn; `None` when it is over.
    fn turn(&mut self, host: &mut Host, cpu: usize, turn: Turn, handled: u32) -> Option<Step> {
        let per = &mut self.cpus[cpu];
        let (thread, source) = (per.thread, per.sources[turn.source.index()]);
        if turn.direction == Direction::Transmit {
            let mut hand = host.threads[thread].hand.take();
            let step = per
                .transmit
                .step(host, source.adapter, &mut hand, turn.quota);
            host.threads[thread].hand = hand;
            return (step != Step::Done).then_some(step);
        }
        if let Some(packet) = host.threads[thread].hand.take() {
            let queued = host.protocol_done(packet);
            self.on_queued(host, queued);
        }
        // What would be received now would be discarded (MR-51).
        if handled >= turn.quota || self.cpus[cpu].inhibited {
            return None;
        }
        let packet = host.take(source.adapter, source.queue)?;
        let cost = self.costs.receive + host.protocol_cost(&packet);
        host.threads[thread].hand = Some(packet);
        let handled = handled + 1;
        self.cpus[cpu].phase = Phase::Turn { turn, handled };
        Some(Step::Kernel(cost))
    }

    fn end_turn(&mut self, host: &mut Host, cpu: usize, turn: Turn, handled: u32) {
        let per = &mut self.cpus[cpu];
        per.phase = Phase::Ask;
        let source = per.sources[turn.source.index()];
        let device = &host.adapters[source.adapter];
        let (handled, more) = match turn.direction {
            Direction::Receive => (handled, !device.rings[source.queue].packets.is_empty()),
            Direction::Transmit => (per.transmit.released, device.completed > 0),
        };
        per.transmit.reset();
        let enable = per.poller.on_turn_done(turn, handled, more);
        if enable.receive {
            host.enable_receive(source.adapter, source.queue);
        }
        if enable.transmit && source.transmits {
            host.enable_transmit(source.adapter);
        }
        self.exit(host, cpu);
    }

    fn tune(&mut self, host: &mut Host) {
        let Some(tuner) = &mut self.tuner else {
            return;
        };
        let delivered = host.ledger.counts.delivered;
        let saturated = !std::mem::take(&mut tuner.idle);
        tuner
            .quota
            .on_interval(delivered - tuner.delivered, saturated);
        tuner.delivered = delivered;
        let packets = tuner.quota.packets();
        for per in &mut self.cpus {
            per.poller.set_receive_quota(packets);
        }
        host.set_path_timer(TIMER_TUNE, host.now + TUNE_INTERVAL_NS);
    }
}

impl Path for PollingThread {
    fn start(&mut self, host: &mut Host) {
        self.handlers = vec![0; host.lines.len()];
        for adapter in 0..host.adapters.len() {
            host.adapters[adapter].wait_while_active = self.wait_while_active;
            for queue in 0..host.adapters[adapter].rings.len() {
                let cpu = host.adapters[adapter].rings[queue].cpu;
                let per = &mut self.cpus[cpu];
                let registered = per.poller.register(Driver::Polled(Interrupts::Separate));
                registered.expect("16 adapters of 32 queues are spread over their CPUs");
                per.sources.push(Source {
                    adapter,
                    queue,
                    transmits: queue == 0,
                });
            }
        }
        for cpu in 0..self.cpus.len() {
            let mut thread = Thread::new(format!("polling-{cpu}"), Body::Path(cpu));
            thread.kernel = true;
            thread.cpu = Some(cpu);
            self.cpus[cpu].thread = host.add_thread(thread);
        }
        if self.tuner.is_some() {
            host.set_path_timer(TIMER_TUNE, TUNE_INTERVAL_NS);
        }
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        match kind {
            LineKind::Receive { .. } | LineKind::Transmit { .. } => self.interrupt(host, cx, kind),
            _ => Step::Done,
        }
    }

    fn thread(&mut self, host: &mut Host, cpu: usize, _thread: usize) -> Step {
        loop {
            match self.cpus[cpu].phase {
                Phase::Asleep => {
                    self.cpus[cpu].phase = Phase::Ask;
                    return Step::Kernel(self.poll_start);
                }
                Phase::Ask => {
                    let Some(turn) = self.cpus[cpu].poller.poll_next(host.instant()) else {
                        let wakeup = or_never(self.cpus[cpu].poller.next_wakeup());
                        if wakeup != NEVER {
                            host.set_path_timer(TIMER_WAKE + cpu, wakeup.max(host.now + 1));
                        }
                        self.cpus[cpu].phase = Phase::Asleep;
                        return Step::Done;
                    };
                    self.limits.on_enter(cpu, host.instant());
                    self.cpus[cpu].phase = Phase::Turn { turn, handled: 0 };
                    host.ledger.counts.polls += 1;
                    return Step::Kernel(self.poll_pass);
                }
                Phase::Turn { turn, handled } => {
                    if let Some(step) = self.turn(host, cpu, turn, handled) {
                        return step;
                    }
                    self.end_turn(host, cpu, turn, handled);
                }
            }
        }
    }

    fn receive(&mut self, host: &mut Host, endpoint: usize, thread: usize) -> Received {
        let received = receive_from_socket(host, endpoint, thread);
        if let Some(feedback) = &mut self.feedback
            && received != Received::Nothing
        {
            let change = feedback.on_read(host, endpoint);
            if change != Change::NONE {
                self.apply_feedback(host, change);
            }
        }
        received
    }

    fn idle(&mut self, host: &mut Host, cpu: usize) -> Step {
        let change = self.limits.on_idle(cpu, host.instant());
        if change != LimitChange::None {
            self.apply_limits(host, self.limits.number(cpu), change);
        }
        if let Some(tuner) = &mut self.tuner {
            tuner.idle = true;
        }
        Step::Done
    }

    fn on_timer(&mut self, host: &mut Host, timer: usize) {
        match timer {
            TIMER_FEEDBACK => {
                if let Some(feedback) = &mut self.feedback {
                    let change = feedback.poll_timeout(host);
                    self.apply_feedback(host, change);
                }
            }
            TIMER_TUNE => self.tune(host),
            TIMER_WAKE.. => host.wake(self.cpus[timer - TIMER_WAKE].thread),
            _ => {
                let number = timer - TIMER_LIMIT;
                let change = self.limits.poll_timeout(number, host.instant());
                self.apply_limits(host, number, change);
            }
        }
    }

    fn figures(&self, _host: &Host, list: &mut Vec<(String, f64)>) {
        if let Some(tuner) = &self.tuner {
            let quota = f64::from(tuner.quota.settled());
            list.push(("quota_packets".into(), quota));
        }
    }
}
