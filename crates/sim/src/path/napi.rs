//! How Linux receives: NAPI in softirqs, ksoftirqd, threaded polling, and generic receive
//! offload.
//!
//! **Rules.** The interrupt handler notes its queue, switches the queue's interrupt off and
//! raises the softirq, which runs when the handler returns. A run of the softirq makes
//! rounds. A round visits each noted queue, with at most `weight` packets, and the protocol
//! is called directly; no further visit begins when the round has had its `budget` or its
//! time. A queue with nothing left gets its interrupt back. The others are noted again, for
//! the next round. After so many rounds, or some time, or when a thread should run, what is
//! left is ksoftirqd's: a thread like any other, which makes such runs until nothing is left.
//! Within a run no other thread takes its place. Meanwhile an interrupt, the clock's too, makes
//! a run at once, if ksoftirqd is not in one (since Linux 6.4). So does a receive call, which
//! switches bottom halves off and on again (`local_bh_enable`): under a flood that keeps the
//! softirq busy, its caller gets one packet per run, and is charged for the run as well.
//!
//! With `threaded` each queue has a thread, which visits it until it is empty. With
//! `holdoff_us` a queue that got its interrupt back interrupts so long after its next packet.
//!
//! **Where excess is dropped.** On the adapter's ring while ksoftirqd has to wait for its turn;
//! on the socket queue while it runs, and while a receive call does.
//!
//! **Departures.** Linux counts time in ticks of its clock, and this does in ns.
//! Other calls than receiving run nothing.
//! Completions of sent packets are the business of an interrupt of their own. Merged packets
//! stay packets: each has its place on the socket's queue, as if the list were taken apart
//! there, and is delivered when it was worked on instead of at the end of the visit.

use std::collections::VecDeque;

use super::holdoff::Holdoffs;
use super::stages::{Behind, Costs, receive_from_socket, receive_queues};
use super::{Parts, Path, Received};
use crate::Error;
use crate::host::{Body, Cx, Host, LineKind, Step, Thread};
use crate::packet::{Kind, Packet};
use crate::scenario::NapiConfig;
use crate::source::nanos;

/// A merged packet has at most so many parts.
const MERGED_MAX: u32 = 64;

/// An adapter's queue: adapter, number.
type Queue = (usize, usize);

/// A visit of a queue.
#[derive(Clone, Copy, Debug)]
struct Visit {
    queue: Queue,
    taken: u32,
}

/// What a visit found: source and consumer of each flow, with the parts of its last packet.
#[derive(Clone, Debug, Default)]
struct Flows(Vec<(u16, u16, u32)>);

/// Where the softirq of a CPU is.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// In no run.
    Over,
    /// A round begins.
    Round,
    /// Between two visits of a round.
    Between,
    Visit(Visit),
}

/// The softirq of a CPU.
#[derive(Clone, Debug)]
struct Softirq {
    /// Queues that interrupts noted, or that a round has left.
    noted: VecDeque<Queue>,
    /// Those of the round.
    round: VecDeque<Queue>,
    /// Those that the round found not empty.
    again: VecDeque<Queue>,
    phase: Phase,
    flows: Flows,
    /// When the run should end, and the rounds it has left.
    until: u64,
    rounds: u32,
    /// When the round should end, and the packets it has left.
    round_until: u64,
    budget: u32,
    /// ksoftirqd.
    thread: usize,
}

/// Who works: the softirq after an interrupt, or a thread.
#[derive(Clone, Copy, Debug)]
enum Context {
    Line(usize),
    Thread(usize),
}

impl Context {
    fn hand(self, host: &mut Host) -> &mut Option<Packet> {
        match self {
            Self::Line(line) => &mut host.lines[line].hand,
            Self::Thread(thread) => &mut host.threads[thread].hand,
        }
    }
}

/// A thread that polls one queue.
#[derive(Clone, Debug)]
struct Poller {
    queue: Queue,
    cpu: usize,
    thread: usize,
    visit: Option<Visit>,
    flows: Flows,
}

/// The path.
#[derive(Debug)]
pub(super) struct Napi {
    costs: Costs,
    poll_pass: u64,
    config: NapiConfig,
    budget_ns: u64,
    holdoff_ns: u64,
    /// Its timers are numbered by receive queue.
    holdoffs: Holdoffs,
    behind: Behind,
    cpus: Vec<Softirq>,
    pollers: Vec<Poller>,
    /// By line: the handler has begun.
    begun: Vec<bool>,
    /// Runs that left something to ksoftirqd, and packets that were merged.
    left: u64,
    merged: u64,
}

impl Napi {
    pub(super) fn new(parts: &Parts<'_>, config: &NapiConfig) -> Result<Self, Error> {
        let ticks = 2 * parts.host.tick_ns;
        Ok(Self {
            costs: parts.costs,
            poll_pass: parts.cost("poll_pass")?,
            config: *config,
            budget_ns: config.budget_us.map_or(ticks, |us| (us * 1e3) as u64),
            holdoff_ns: nanos(config.holdoff_us),
            holdoffs: Holdoffs::default(),
            behind: Behind::new(parts.costs),
            cpus: Vec::new(),
            pollers: Vec::new(),
            begun: Vec::new(),
            left: 0,
            merged: 0,
        })
    }

    /// The receive interrupt's handler.
    fn interrupt(&mut self, host: &mut Host, cx: Cx, queue: Queue) -> Step {
        let (adapter, number) = queue;
        if !std::mem::replace(&mut self.begun[cx.line], true) {
            host.ledger.counts.interrupts += 1;
            host.adapters[adapter].rings[number].enabled = false;
            return Step::Kernel(self.costs.enter + self.costs.exit);
        }
        self.begun[cx.line] = false;
        if self.config.threaded {
            let poller = self.pollers.iter().find(|one| one.queue == queue);
            if let Some(poller) = poller {
                host.wake(poller.thread);
            }
            return Step::Done;
        }
        self.cpus[cx.cpu].noted.push_back(queue);
        self.after_interrupt(host, cx.cpu);
        Step::Done
    }

    /// An interrupt is over: a run begins, unless it came into one.
    fn after_interrupt(&self, host: &mut Host, cpu: usize) {
        let softirq = &self.cpus[cpu];
        if matches!(softirq.phase, Phase::Over) && !softirq.noted.is_empty() {
            host.raise_soft(cpu);
        }
    }

    /// The next step of a run; [`Step::Done`] when it is over.
    fn run(&mut self, host: &mut Host, cpu: usize, context: Context) -> Step {
        self.finish(host, context);
        loop {
            let softirq = &mut self.cpus[cpu];
            match &mut softirq.phase {
                Phase::Over if softirq.noted.is_empty() => return Step::Done,
                Phase::Over => {
                    host.ledger.counts.soft_interrupts += 1;
                    softirq.until = host.now + (self.config.rounds_us * 1e3) as u64;
                    softirq.rounds = self.config.rounds;
                    softirq.phase = Phase::Round;
                    return Step::Kernel(self.costs.soft_dispatch);
                }
                Phase::Round => {
                    softirq.budget = self.config.budget;
                    softirq.round_until = host.now + self.budget_ns;
                    std::mem::swap(&mut softirq.round, &mut softirq.noted);
                    softirq.phase = Phase::Between;
                }
                Phase::Between => {
                    let may = softirq.budget > 0 && host.now < softirq.round_until;
                    if may && let Some(queue) = softirq.round.pop_front() {
                        softirq.phase = Phase::Visit(Visit::of(queue));
                        host.ledger.counts.polls += 1;
                        return Step::Kernel(self.poll_pass);
                    }
                    if self.end_round(host, cpu) {
                        return Step::Done;
                    }
                }
                Phase::Visit(visit) => {
                    let flows = &mut softirq.flows;
                    let taken = take(&self.costs, &self.config, host, cpu, visit, flows);
                    if let Some((packet, ns, merged)) = taken {
                        self.merged += u64::from(merged);
                        *context.hand(host) = Some(packet);
                        return Step::Kernel(ns);
                    }
                    let (queue, had) = (visit.queue, visit.taken);
                    softirq.budget = softirq.budget.saturating_sub(had);
                    softirq.phase = Phase::Between;
                    host.leave_input(cpu);
                    if had < self.config.weight {
                        self.enable(host, queue);
                    } else {
                        softirq.again.push_back(queue);
                    }
                }
            }
        }
    }

    /// A queue with nothing left gets its interrupt back.
    fn enable(&self, host: &mut Host, queue: Queue) {
        if self.holdoff_ns == 0 {
            return host.enable_receive(queue.0, queue.1);
        }
        host.adapters[queue.0].rings[queue.1].enabled = true;
        let index = self.holdoffs.index(queue.0, queue.1);
        self.holdoffs.begin(host, index, self.holdoff_ns);
    }

    /// A round is over. True if the run is as well; what is left is ksoftirqd's then.
    fn end_round(&mut self, host: &mut Host, cpu: usize) -> bool {
        let softirq = &mut self.cpus[cpu];
        // First those that it did not come to, then new ones, then those it found busy.
        while let Some(queue) = softirq.round.pop_back() {
            softirq.noted.push_front(queue);
        }
        softirq.noted.append(&mut softirq.again);
        softirq.rounds -= 1;
        let goes_on = softirq.rounds > 0 && host.now < softirq.until && !host.wants_other(cpu);
        if !softirq.noted.is_empty() && goes_on {
            softirq.phase = Phase::Round;
            return false;
        }
        softirq.phase = Phase::Over;
        if !softirq.noted.is_empty() {
            self.left += 1;
            host.wake(softirq.thread);
        }
        true
    }

    /// The packet in hand has been worked on.
    fn finish(&self, host: &mut Host, context: Context) {
        if let Some(packet) = context.hand(host).take() {
            host.protocol_done(packet);
        }
    }

    /// The next step of ksoftirqd: run after run.
    fn ksoftirqd(&mut self, host: &mut Host, cpu: usize, thread: usize) -> Step {
        let step = self.run(host, cpu, Context::Thread(thread));
        host.cpus[cpu].in_softirq = step != Step::Done;
        if step == Step::Done && !self.cpus[cpu].noted.is_empty() {
            // Others may come in between here.
            return Step::Kernel(0);
        }
        step
    }

    /// The next step of a thread that polls a queue.
    fn poll(&mut self, host: &mut Host, index: usize, thread: usize) -> Step {
        self.finish(host, Context::Thread(thread));
        let poller = &mut self.pollers[index];
        let (queue, cpu) = (poller.queue, poller.cpu);
        let Some(visit) = &mut poller.visit else {
            poller.visit = Some(Visit::of(queue));
            host.cpus[cpu].in_softirq = true;
            host.ledger.counts.polls += 1;
            return Step::Kernel(self.poll_pass);
        };
        if let Some((packet, ns, merged)) = take(
            &self.costs,
            &self.config,
            host,
            cpu,
            visit,
            &mut poller.flows,
        ) {
            self.merged += u64::from(merged);
            host.threads[thread].hand = Some(packet);
            return Step::Kernel(ns);
        }
        let had = visit.taken;
        poller.visit = None;
        host.cpus[cpu].in_softirq = false;
        host.leave_input(cpu);
        if had < self.config.weight {
            self.enable(host, queue);
            return Step::Done;
        }
        Step::Kernel(0)
    }
}

impl Visit {
    fn of(queue: Queue) -> Self {
        Self { queue, taken: 0 }
    }
}

impl Flows {
    /// Whether `packet` becomes part of one that the visit found before.
    fn merges(&mut self, packet: &Packet) -> bool {
        if packet.kind != Kind::Datagram {
            return false;
        }
        let of = |flow: &&mut (u16, u16, u32)| (flow.0, flow.1) == (packet.source, packet.to);
        let Some((.., parts)) = self.0.iter_mut().find(of) else {
            self.0.push((packet.source, packet.to, 1));
            return false;
        };
        *parts = *parts % MERGED_MAX + 1;
        *parts > 1
    }
}

/// Takes the next packet of a visit: what work on it takes, and whether it was merged.
fn take(
    costs: &Costs,
    config: &NapiConfig,
    host: &mut Host,
    cpu: usize,
    visit: &mut Visit,
    flows: &mut Flows,
) -> Option<(Packet, u64, bool)> {
    if visit.taken >= config.weight {
        return None;
    }
    let packet = host.take(visit.queue.0, visit.queue.1)?;
    if visit.taken == 0 {
        flows.0.clear();
    }
    let refill = host.refill_input(cpu, visit.taken);
    visit.taken += 1;
    let merge_ns = config.gro_ns.filter(|_| flows.merges(&packet));
    let protocol = merge_ns.map_or_else(|| host.protocol_cost(&packet), u64::from);
    let ns = costs.receive + refill + protocol;
    Some((packet, ns, merge_ns.is_some()))
}

/// A thread of the kernel's that the scheduler treats like a process.
fn kernel_thread(name: String, index: usize, cpu: usize) -> Thread {
    let mut thread = Thread::new(name, Body::Path(index));
    thread.cpu = Some(cpu);
    thread.borrows_space = true;
    thread
}

impl Path for Napi {
    fn start(&mut self, host: &mut Host) {
        host.charges_interrupted |= self.config.charged;
        self.behind.start(host);
        self.holdoffs = Holdoffs::new(host);
        self.begun = vec![false; host.lines.len()];
        for cpu in 0..host.cpus.len() {
            let name = format!("ksoftirqd-{cpu}");
            self.cpus.push(Softirq {
                noted: VecDeque::new(),
                round: VecDeque::new(),
                again: VecDeque::new(),
                phase: Phase::Over,
                flows: Flows::default(),
                until: 0,
                rounds: 0,
                round_until: 0,
                budget: 0,
                thread: host.add_thread(kernel_thread(name, cpu, cpu)),
            });
        }
        if !self.config.threaded {
            return;
        }
        for (index, (adapter, queue)) in receive_queues(host).into_iter().enumerate() {
            let index = host.cpus.len() + index;
            let cpu = host.adapters[adapter].rings[queue].cpu;
            let name = format!("napi-{adapter}-{queue}");
            self.pollers.push(Poller {
                queue: (adapter, queue),
                cpu,
                thread: host.add_thread(kernel_thread(name, index, cpu)),
                visit: None,
                flows: Flows::default(),
            });
        }
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        match kind {
            LineKind::Receive { adapter, queue } => self.interrupt(host, cx, (adapter, queue)),
            LineKind::Soft => self.run(host, cx.cpu, Context::Line(cx.line)),
            kind => self.behind.line(host, cx, kind),
        }
    }

    fn thread(&mut self, host: &mut Host, index: usize, thread: usize) -> Step {
        match index.checked_sub(self.cpus.len()) {
            None => self.ksoftirqd(host, index, thread),
            Some(poller) => self.poll(host, poller, thread),
        }
    }

    fn on_arrival(&mut self, host: &mut Host, adapter: usize, queue: usize) {
        let index = self.holdoffs.index(adapter, queue);
        self.holdoffs.begin(host, index, self.holdoff_ns);
    }

    fn on_timer(&mut self, host: &mut Host, timer: usize) {
        let (adapter, queue) = self.holdoffs.queues()[timer];
        host.interrupt_receive(adapter, queue);
    }

    fn on_tick(&mut self, host: &mut Host, cpu: usize) {
        self.after_interrupt(host, cpu);
    }

    fn receive(&mut self, host: &mut Host, endpoint: usize, thread: usize) -> Received {
        let received = receive_from_socket(host, endpoint, thread);
        if self.config.in_calls && received != Received::Nothing {
            let cpu = host.cpu_of(thread);
            self.after_interrupt(host, cpu);
        }
        received
    }

    fn on_measure(&mut self, _host: &Host) {
        (self.left, self.merged) = (0, 0);
    }

    fn figures(&self, _host: &Host, list: &mut Vec<(String, f64)>) {
        list.push(("softirqs_left".to_owned(), self.left as f64));
        list.push(("merged_packets".to_owned(), self.merged as f64));
    }
}
