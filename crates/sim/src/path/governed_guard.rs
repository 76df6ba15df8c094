//! Plimsoll's own path: early discard where packets are received, and a governor
//! that lengthens the holdoff, or lets a bounded thread poll, under overload.
//!
//! **Rules.** Each packet is demultiplexed first, and discarded on the spot if its
//! consumer cannot take it ([`EarlyDiscard`]). All others are processed up to their
//! sockets, at software interrupt level.
//! - At light load the host's own interrupts start that work, after the host's own
//!   holdoff: no latency is added.
//! - Under overload interrupts are off, and a timer starts the work anew each time a
//!   holdoff has passed since the last. With the strategy `thread` it is a thread per
//!   CPU that then works, ahead of all processes, until it has used up its part of a
//!   period ([`CpuLimit`]); then it waits for the next, or for an idle CPU.
//!
//! When to change between the two, and how long the holdoff is, also so that a CPU
//! limit is kept without threads, is decided by the core's governor ([`Governing`]).
//!
//! **Where excess is dropped.** By early discard, for the price of receiving and
//! demultiplexing; beyond the discard capacity on the ring. With `lazy` half of a flood is
//! dropped on the ring as well while it is alone.

use std::time::Duration;

use plimsoll_core::config::Fraction;
use plimsoll_core::cpu_limit::{Change, CpuLimit, CpuLimitConfig, POLLING_PERIOD};
use plimsoll_core::time::Instant;

use super::early_discard::{EarlyDiscard, part};
use super::governing::{Governing, Polled};
use super::sources::Sources;
use super::stages::{Behind, receive_from_socket, receive_queues};
use super::{Parts, Path, Received};
use crate::Error;
use crate::engine::agenda::NEVER;
use crate::host::{Body, Cx, Host, LineKind, Step, Thread, or_never};
use crate::outcome::Place;
use crate::packet::Packet;
use crate::scenario::GovernedGuardConfig;
use crate::source::nanos;

/// The timer that asks the governor; CPUs have lower numbers.
const TIMER_GOVERN: usize = 32;

/// Costs of the guard, in ns.
#[derive(Clone, Copy, Debug)]
struct GuardCosts {
    receive: u64,
    demux: u64,
    discard: u64,
    poll_pass: u64,
    poll_start: u64,
    enter: u64,
    exit: u64,
    soft_dispatch: u64,
}

impl GuardCosts {
    /// What every packet costs.
    fn seen(&self) -> u64 {
        self.receive + self.demux
    }

    /// What a discarded packet costs.
    fn discarded(&self) -> u64 {
        self.seen() + self.discard
    }
}

/// A visit to the receive queues of a CPU: round and round until all are empty.
#[derive(Clone, Copy, Debug, Default)]
struct Visit {
    running: bool,
    /// Of this CPU's queues.
    queue: usize,
    /// Packets of this queue in this round.
    taken: u32,
    /// Frames of the visit.
    frames: u32,
}

/// One CPU's part.
#[derive(Debug)]
struct PerCpu {
    queues: Vec<(usize, usize)>,
    visit: Visit,
    polled: Polled,
    thread: usize,
    limit: CpuLimit,
    /// The limit counts.
    entered: bool,
}

/// The path. Its timers are numbered by CPU: they end holdoffs and periods.
#[derive(Debug)]
pub(super) struct GovernedGuard {
    costs: GuardCosts,
    quota: u32,
    /// The host's own holdoff.
    own_holdoff_ns: u64,
    behind: Behind,
    /// By line: steps of the handler done.
    handlers: Vec<u8>,
    cpus: Vec<PerCpu>,
    governing: Governing,
    /// The ring may overflow while a flood is alone.
    lazy: bool,
    discard: EarlyDiscard,
}

impl GovernedGuard {
    pub(super) fn new(parts: &Parts<'_>, config: &GovernedGuardConfig) -> Result<Self, Error> {
        let Parts { costs, host, .. } = *parts;
        let fairness = if config.fair {
            u64::from(config.fairness_ns)
        } else {
            0
        };
        let own = GuardCosts {
            receive: costs.receive,
            demux: parts.cost("demux")? + fairness,
            discard: parts.cost("discard")?,
            poll_pass: parts.cost("poll_pass")?,
            poll_start: parts.cost("poll_start")?,
            enter: costs.enter,
            exit: costs.exit,
            soft_dispatch: costs.soft_dispatch,
        };
        let share = part(config.share_pct);
        let queues = receive_queues(host);
        let per_cpu = |cpu| per_cpu(host, &queues, cpu, share);
        Ok(Self {
            costs: own,
            quota: config.quota,
            own_holdoff_ns: nanos(config.holdoff_us),
            behind: Behind::new(costs),
            handlers: Vec::new(),
            cpus: (0..host.cpus.len())
                .map(per_cpu)
                .collect::<Result<_, _>>()?,
            governing: Governing::new(host, config)?,
            lazy: config.lazy,
            discard: EarlyDiscard::new(
                host,
                Sources::new(host, config)?,
                config,
                Duration::from_nanos(own.discarded()),
            )?,
        })
    }

    /// Work on the packet that was in hand, if any, is done.
    fn finish(&mut self, host: &mut Host, hand: Option<Packet>) {
        if let Some(packet) = hand {
            let queued = host.protocol_done(packet);
            self.discard.on_queued(host, queued);
        }
    }

    /// The next step of the visit of `cpu`, and the packet it puts in hand; `None`
    /// when no queue has a packet left.
    fn visit(&mut self, host: &mut Host, cpu: usize) -> Option<(Step, Option<Packet>)> {
        let per = &mut self.cpus[cpu];
        if !per.visit.running {
            per.visit = Visit {
                running: true,
                ..Visit::default()
            };
            per.polled.runs += 1;
            return Some((self.begin_round(host), None));
        }
        while let Some(&(adapter, queue)) = per.queues.get(per.visit.queue) {
            if per.visit.taken < self.quota
                && let Some(packet) = host.take(adapter, queue)
            {
                per.visit.taken += 1;
                per.visit.frames += 1;
                per.polled.frames += 1;
                per.polled.run_frames_max = per.polled.run_frames_max.max(per.visit.frames);
                return Some(self.judge(host, cpu, packet));
            }
            per.visit.taken = 0;
            per.visit.queue += 1;
        }
        per.visit.queue = 0;
        let is_empty = |&(adapter, queue): &(usize, usize)| {
            host.adapters[adapter].rings[queue].packets.is_empty()
        };
        if per.queues.iter().all(is_empty) {
            per.visit.running = false;
            return None;
        }
        Some((self.begin_round(host), None))
    }

    fn begin_round(&self, host: &mut Host) -> Step {
        host.ledger.counts.polls += 1;
        Step::Kernel(self.costs.poll_pass)
    }

    /// Discards a packet early, or keeps it in hand.
    fn judge(&mut self, host: &mut Host, cpu: usize, mut packet: Packet) -> (Step, Option<Packet>) {
        if self.discard.admits(host, &packet, cpu) {
            let work = host.protocol_cost(&packet);
            return (Step::Kernel(self.costs.seen() + work), Some(packet));
        }
        let discarded = self.costs.discarded();
        packet.work += discarded as u32;
        host.lose(packet, Place::EarlyDiscard);
        (Step::Kernel(discarded), None)
    }

    /// The visit of `cpu` is over, or handed on: what comes now starts the next.
    fn rest(&self, host: &mut Host, cpu: usize) {
        if self.governing.is_overload() {
            let at = host.now + self.governing.holdoff();
            host.set_path_timer(cpu, at);
        } else {
            self.allow_interrupts(host, cpu);
        }
    }

    fn allow_interrupts(&self, host: &mut Host, cpu: usize) {
        if host.path_timer(cpu) != NEVER {
            host.set_path_timer(cpu, NEVER);
        }
        for &(adapter, queue) in &self.cpus[cpu].queues {
            if self.own_holdoff_ns == 0 {
                host.enable_receive(adapter, queue);
            } else {
                let ring = &mut host.adapters[adapter].rings[queue];
                ring.enabled = true;
                if !ring.packets.is_empty() {
                    self.hold_off(host, cpu);
                }
            }
        }
    }

    fn forbid_interrupts(&self, host: &mut Host, cpu: usize) {
        for &(adapter, queue) in &self.cpus[cpu].queues {
            host.adapters[adapter].rings[queue].enabled = false;
        }
    }

    /// The host's own holdoff, from the first packet on.
    fn hold_off(&self, host: &mut Host, cpu: usize) {
        if host.path_timer(cpu) == NEVER {
            host.set_path_timer(cpu, host.now + self.own_holdoff_ns);
        }
    }

    /// A handler: it only starts a visit.
    fn interrupt(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        let stage = self.handlers[cx.line];
        self.handlers[cx.line] = (stage + 1) % 3;
        match stage {
            0 => {
                host.ledger.counts.interrupts += 1;
                match kind {
                    LineKind::Receive { adapter, queue } => {
                        host.adapters[adapter].rings[queue].enabled = false;
                    }
                    _ => self.forbid_interrupts(host, cx.cpu),
                }
                Step::Kernel(self.costs.enter)
            }
            1 => {
                if self.governing.polls_in_threads() {
                    host.wake(self.cpus[cx.cpu].thread);
                } else {
                    host.raise_soft(cx.cpu);
                }
                Step::Kernel(self.costs.exit)
            }
            _ => Step::Done,
        }
    }

    /// A visit at software interrupt level.
    fn soft(&mut self, host: &mut Host, cx: Cx) -> Step {
        let hand = host.lines[cx.line].hand.take();
        self.finish(host, hand);
        if self.governing.polls_in_threads() {
            // The governor took over: the thread goes on where this leaves off.
            host.wake(self.cpus[cx.cpu].thread);
            return Step::Done;
        }
        let is_new = !self.cpus[cx.cpu].visit.running;
        let Some((step, hand)) = self.visit(host, cx.cpu) else {
            self.rest(host, cx.cpu);
            return Step::Done;
        };
        host.lines[cx.line].hand = hand;
        if let Step::Kernel(ns) = step
            && is_new
        {
            host.ledger.counts.soft_interrupts += 1;
            return Step::Kernel(ns + self.costs.soft_dispatch);
        }
        step
    }

    /// Asks the governor, and does what it says.
    fn govern(&mut self, host: &mut Host) {
        let was = self.governing.is_overload();
        let polled = self.cpus.iter_mut().map(|per| {
            let polled = std::mem::take(&mut per.polled);
            (polled, per.thread)
        });
        let company = self.discard.company(host).filter(|_| self.lazy);
        let seen = self.governing.ask(host, polled, company);
        self.discard.on_interval(seen);
        let interval = self.governing.interval();
        host.set_path_timer(TIMER_GOVERN, host.now + interval.as_nanos() as u64);
        let is = self.governing.is_overload();
        for cpu in 0..self.cpus.len() {
            match (was, is) {
                (false, true) => self.enter_overload(host, cpu),
                (true, false) if !self.cpus[cpu].visit.running => self.rest(host, cpu),
                _ => {}
            }
        }
    }

    fn enter_overload(&self, host: &mut Host, cpu: usize) {
        self.forbid_interrupts(host, cpu);
        if self.governing.polls_in_threads() {
            host.wake(self.cpus[cpu].thread);
        } else if !self.cpus[cpu].visit.running && host.path_timer(cpu) == NEVER {
            self.rest(host, cpu);
        }
    }

    /// Books the time that the thread of `cpu` has worked, and says whether it may
    /// go on.
    fn limit_allows(&mut self, host: &Host, cpu: usize) -> bool {
        self.leave(host, cpu);
        let per = &mut self.cpus[cpu];
        if per.limit.inhibited() {
            return false;
        }
        per.limit.on_enter(0, host.instant());
        per.entered = true;
        true
    }

    fn leave(&mut self, host: &Host, cpu: usize) {
        let per = &mut self.cpus[cpu];
        if std::mem::take(&mut per.entered) {
            let _ = per.limit.on_exit(0, host.instant());
        }
    }

    /// The thread sleeps until the next period, the visit half done.
    fn inhibit(&mut self, host: &mut Host, cpu: usize) {
        self.governing.inhibited = true;
        let per = &mut self.cpus[cpu];
        per.visit.running = false;
        let at = or_never(per.limit.next_timeout());
        host.set_path_timer(cpu, at.max(host.now + 1));
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
        let interval = self.governing.interval().as_nanos() as u64;
        host.set_path_timer(TIMER_GOVERN, interval);
    }

    fn on_arrival(&mut self, host: &mut Host, adapter: usize, queue: usize) {
        let ring = &host.adapters[adapter].rings[queue];
        if self.own_holdoff_ns == 0 {
            host.interrupt_receive(adapter, queue);
        } else if ring.enabled {
            self.hold_off(host, ring.cpu);
        }
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        match kind {
            LineKind::Receive { .. } | LineKind::Timer => self.interrupt(host, cx, kind),
            LineKind::Soft => self.soft(host, cx),
            kind => self.behind.line(host, cx, kind),
        }
    }

    fn thread(&mut self, host: &mut Host, cpu: usize, thread: usize) -> Step {
        let hand = host.threads[thread].hand.take();
        self.finish(host, hand);
        if !self.governing.polls_in_threads() {
            // Calm again: what is left is the next interrupt's.
            self.cpus[cpu].visit.running = false;
            self.leave(host, cpu);
            self.rest(host, cpu);
            return Step::Done;
        }
        let per = &self.cpus[cpu];
        // Looked at between two rounds.
        let asks = per.visit.taken == 0 || !per.entered;
        if asks && !self.limit_allows(host, cpu) {
            self.inhibit(host, cpu);
            return Step::Done;
        }
        let is_new = !self.cpus[cpu].visit.running;
        let Some((step, hand)) = self.visit(host, cpu) else {
            self.leave(host, cpu);
            self.rest(host, cpu);
            return Step::Done;
        };
        host.threads[thread].hand = hand;
        match step {
            Step::Kernel(ns) if is_new => Step::Kernel(ns + self.costs.poll_start),
            step => step,
        }
    }

    fn receive(&mut self, host: &mut Host, endpoint: usize, thread: usize) -> Received {
        let received = receive_from_socket(host, endpoint, thread);
        if received != Received::Nothing {
            self.discard.on_read(host, endpoint);
        }
        received
    }

    fn on_timer(&mut self, host: &mut Host, timer: usize) {
        if timer == TIMER_GOVERN {
            self.govern(host);
            return;
        }
        let _ = self.cpus[timer].limit.poll_timeout(host.instant());
        host.raise(host.cpus[timer].timer);
    }

    fn idle(&mut self, host: &mut Host, cpu: usize) -> Step {
        let per = &mut self.cpus[cpu];
        if per.limit.on_idle(host.instant()) == Change::Allow {
            // Nobody else wants the CPU.
            host.set_path_timer(cpu, NEVER);
            host.wake(per.thread);
        }
        Step::Done
    }

    fn on_measure(&mut self, host: &Host) {
        self.governing.on_measure(host.now);
    }

    fn figures(&self, host: &Host, list: &mut Vec<(String, f64)>) {
        self.governing.figures(host.now, list);
    }
}

fn per_cpu(
    host: &Host,
    queues: &[(usize, usize)],
    cpu: usize,
    share: Fraction,
) -> Result<PerCpu, Error> {
    let limit = CpuLimitConfig {
        limit: share,
        period: POLLING_PERIOD,
        ..CpuLimitConfig::default()
    };
    let is_mine =
        |&(adapter, queue): &(usize, usize)| host.adapters[adapter].rings[queue].cpu == cpu;
    Ok(PerCpu {
        queues: queues.iter().copied().filter(is_mine).collect(),
        visit: Visit::default(),
        polled: Polled::default(),
        thread: 0,
        limit: CpuLimit::new(limit, Instant::ZERO).map_err(Error::core("the CPU limit"))?,
        entered: false,
    })
}
