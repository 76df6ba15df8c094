//! The modelled machine: everything that has state, apart from who decides.
//!
//! Paths and consumers are asked what a CPU does next ([`Step`]); what they do to
//! queues, adapters and threads they do through the methods here. Nothing in
//! here decides when packets are worked on.

pub(crate) mod adapter;
pub(crate) mod cpu;
pub(crate) mod ledger;
pub(crate) mod protocol;
pub(crate) mod thread;
pub(crate) mod wire;

use crate::engine::agenda::{Agenda, NEVER};
use crate::footprint::Footprint;
use crate::outcome::Place;
use crate::packet::{Fifo, Packet};
use crate::profile::{Profile, Scheduler};
use crate::source::Claimed;
use crate::trace::{Recorder, What};

pub(crate) use adapter::Adapter;
pub(crate) use cpu::{Cpu, Running};
pub(crate) use ledger::Ledger;
pub(crate) use protocol::{Endpoint, EndpointRole, ProtocolCosts, Queued};
pub(crate) use thread::{Body, Mode, Thread, ThreadState};

/// Interrupt levels, higher ones first; threads run at level 0.
pub(crate) const LEVEL_SOFT: usize = 1;
/// Trigger-state work interrupts nothing but threads and protocol work.
pub(crate) const LEVEL_TRIGGER: usize = 2;
/// Device interrupts.
pub(crate) const LEVEL_DEVICE: usize = 3;
/// Timers and the clock preempt device interrupts.
pub(crate) const LEVEL_CLOCK: usize = 4;
/// Number of levels, with that of threads.
pub(crate) const LEVELS: usize = 5;
/// Timers a receive path may use: one per receive queue or CPU, or both.
pub(crate) const PATH_TIMERS: usize = 80;

/// What a context does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Works for so many ns; other threads wait until it is over.
    Kernel(u64),
    /// Works for so many ns; other threads may come in between.
    User(u64),
    /// A handler returns; a thread sleeps until it is woken.
    Done,
}

/// An interrupt line: something that makes a CPU run a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// Software interrupt for protocol work.
    Soft,
    /// Software interrupt for work at a trigger state.
    Trigger,
    /// Receive interrupt of a queue of an adapter.
    Receive { adapter: usize, queue: usize },
    /// Transmit interrupt of an adapter.
    Transmit { adapter: usize },
    /// A timer of the receive path.
    Timer,
    /// The clock.
    Clock,
}

/// Number of a line.
pub(crate) type LineId = usize;

/// A line's state.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) kind: LineKind,
    pub(crate) cpu: usize,
    pub(crate) level: usize,
    /// Its place among the lines of its CPU and level.
    place: usize,
    /// The packet its handler works on.
    pub(crate) hand: Option<Packet>,
}

/// Who runs: for the packet in hand and the CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cx {
    pub(crate) cpu: usize,
    pub(crate) line: LineId,
}

/// What a slot of the agenda stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    /// A CPU's step ends.
    Cpu(usize),
    /// The end of the warm-up.
    Measure,
    /// A CPU's clock ticks.
    Tick(usize),
    /// A source does something.
    Source(usize),
    /// The first packet on a wire towards the host arrives.
    Inbound(usize),
    /// The first packet on a wire from the host arrives.
    Outbound(usize),
    /// An adapter has transmitted a packet.
    Transmitted(usize),
    /// An adapter's processor has demultiplexed a packet.
    Demultiplexed(usize),
    /// A timer of the receive path.
    Path(usize),
    /// A consumer's timer.
    Consumer(usize),
}

/// The machine.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) now: u64,
    /// The run's.
    pub(crate) seed: u64,
    pub(crate) agenda: Agenda,
    pub(crate) slots: Vec<Slot>,
    bases: Bases,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) lines: Vec<Line>,
    pub(crate) adapters: Vec<Adapter>,
    /// The adapter that a source's packets come in by and answers leave by.
    pub(crate) source_adapters: Vec<usize>,
    /// By source: where its packets say that they are from.
    pub(crate) claimed: Vec<Claimed>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) endpoints: Vec<Endpoint>,
    /// The shared queue between device and protocol level, one per CPU.
    pub(crate) ip_queues: Vec<Fifo>,
    pub(crate) protocol: ProtocolCosts,
    /// The packet that protocol work was done on last, by source and tag.
    pub(crate) warm: Option<(u16, u32)>,
    pub(crate) ledger: Ledger,
    pub(crate) recorder: Option<Box<Recorder>>,
    /// CPUs that may have to run something else.
    pub(crate) dirty: u64,
    pub(crate) scheduler: Scheduler,
    pub(crate) tick_ns: u64,
    pub(crate) clock_cost: u64,
    pub(crate) switch_cost: u64,
    /// Discarding a packet that found a full queue.
    discard_cost: u64,
    /// Telling the source of one that was to be forwarded; 0: it is not told.
    source_quench: u64,
    /// Work that a step led to, discards and wake-ups: it belongs to the next.
    pub(crate) owed: u64,
    /// To a kernel thread, or back to the process it interrupted.
    pub(crate) thread_switch_cost: u64,
    /// What packet input needs in the caches.
    pub(crate) input: Footprint,
    /// What a device's or timer's interrupt replaces in the caches of the thread it interrupted.
    pub(crate) pollution: Footprint,
    /// What the software interrupt's work on a packet costs the thread it interrupted, in ns.
    pub(crate) soft_pollution: u64,
    /// Time of interrupts counts as used by the interrupted thread (LRP-04).
    pub(crate) charges_interrupted: bool,
    pub(crate) quantum_ns: u64,
    /// Counts turns, so that equal threads alternate.
    pub(crate) turns: u64,
    pub(crate) ticks: u64,
}

/// First slot of each kind.
#[derive(Clone, Copy, Debug)]
struct Bases {
    source: usize,
    inbound: usize,
    outbound: usize,
    transmitted: usize,
    demultiplexed: usize,
    path: usize,
    consumer: usize,
}

/// How many of everything there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) cpus: usize,
    pub(crate) sources: usize,
    pub(crate) adapters: usize,
    pub(crate) consumers: usize,
}

impl Host {
    /// A machine with nothing on it yet.
    pub(crate) fn new(
        profile: &Profile,
        scheduler: Scheduler,
        sizes: Sizes,
    ) -> Result<Self, crate::Error> {
        let (slots, bases) = slots(sizes);
        let ip_queue = profile
            .queues
            .get("ip_queue")
            .map_or(50, |queue| queue.packets) as usize;
        let tick_ns = 1_000_000_000 / u64::from(profile.clock_hz);
        let mut host = Self {
            now: 0,
            seed: 0,
            // Few paths use many timers; a small agenda is a fast one.
            agenda: Agenda::new(bases.path),
            slots,
            bases,
            cpus: (0..sizes.cpus).map(|_| Cpu::default()).collect(),
            lines: Vec::new(),
            adapters: Vec::new(),
            source_adapters: Vec::new(),
            claimed: Vec::new(),
            threads: Vec::new(),
            endpoints: Vec::new(),
            ip_queues: (0..sizes.cpus).map(|_| Fifo::new(ip_queue)).collect(),
            protocol: ProtocolCosts::default(),
            warm: None,
            ledger: Ledger::new(sizes.sources),
            recorder: None,
            dirty: 0,
            scheduler,
            tick_ns,
            clock_cost: profile.cost("clock_tick", "the clock")?,
            switch_cost: profile.cost("context_switch", "the scheduler")?,
            discard_cost: profile.cost("discard", "a full queue")?,
            source_quench: profile.cost_or_zero("source_quench"),
            owed: 0,
            thread_switch_cost: profile
                .cost("thread_switch", "the scheduler")
                .or_else(|_| profile.cost("context_switch", "the scheduler"))?,
            input: Footprint::of_input(profile),
            pollution: Footprint::of_interrupts(profile),
            soft_pollution: profile.cost_or_zero("soft_pollution"),
            charges_interrupted: scheduler == Scheduler::DecayUsage,
            quantum_ns: (profile.quantum_ms * 1e6) as u64,
            turns: 0,
            ticks: 0,
        };
        for cpu in 0..sizes.cpus {
            host.cpus[cpu].soft = host.add_line(LineKind::Soft, cpu, LEVEL_SOFT);
            host.cpus[cpu].trigger = host.add_line(LineKind::Trigger, cpu, LEVEL_TRIGGER);
            host.cpus[cpu].timer = host.add_line(LineKind::Timer, cpu, LEVEL_CLOCK);
            host.cpus[cpu].clock = host.add_line(LineKind::Clock, cpu, LEVEL_CLOCK);
            // CPUs do not tick at the same time.
            let phase = tick_ns * (cpu as u64 + 1) / (sizes.cpus as u64 + 1);
            host.agenda.set(tick_slot(sizes, cpu), phase);
        }
        Ok(host)
    }

    /// Adds an interrupt line of `cpu`.
    pub(crate) fn add_line(&mut self, kind: LineKind, cpu: usize, level: usize) -> LineId {
        let line = self.lines.len();
        let place = self.cpus[cpu].add_line(line, level);
        assert!(place < 64, "a CPU has at most 64 lines per level");
        self.lines.push(Line {
            kind,
            cpu,
            level,
            place,
            hand: None,
        });
        line
    }

    /// The time, as the core wants it.
    #[inline]
    pub(crate) fn instant(&self) -> plimsoll_core::time::Instant {
        plimsoll_core::time::Instant::from_nanos(self.now)
    }

    /// Makes the CPU of `line` run its handler as soon as its level allows.
    #[inline]
    pub(crate) fn raise(&mut self, line: LineId) {
        let Line {
            cpu, level, place, ..
        } = self.lines[line];
        self.cpus[cpu].raise(place, level);
        self.dirty |= 1 << cpu;
    }

    /// Raises the software interrupt of `cpu`.
    #[inline]
    pub(crate) fn raise_soft(&mut self, cpu: usize) {
        self.raise(self.cpus[cpu].soft);
    }

    /// What packet input on `cpu` has to fetch into the caches, in ns, after `taken` packets
    /// of this visit: only the first pays.
    #[inline]
    pub(crate) fn refill_input(&self, cpu: usize, taken: u32) -> u64 {
        if taken > 0 || self.input.is_none() {
            return 0;
        }
        let (at, idle) = self.cpus[cpu].left_input;
        let slept = self.cpus[cpu].accounts.idle - idle;
        self.input.refill((self.now - at).saturating_sub(slept))
    }

    /// Packet input on `cpu` is over for now.
    #[inline]
    pub(crate) fn leave_input(&mut self, cpu: usize) {
        let state = &mut self.cpus[cpu];
        state.left_input = (self.now, state.accounts.idle);
    }

    /// Sets, or with [`NEVER`] stops, a timer of the receive path.
    pub(crate) fn set_path_timer(&mut self, timer: usize, at: u64) {
        assert!(timer < PATH_TIMERS, "a path has {PATH_TIMERS} timers");
        let slot = self.bases.path + timer;
        self.agenda.make_room(slot + 1);
        self.agenda.set(slot, at);
    }

    /// When a timer of the receive path expires.
    pub(crate) fn path_timer(&self, timer: usize) -> u64 {
        self.agenda.at(self.bases.path + timer)
    }

    pub(crate) fn set_source_timer(&mut self, source: usize, at: u64) {
        self.agenda.set(self.bases.source + source, at);
    }

    pub(crate) fn set_consumer_timer(&mut self, consumer: usize, at: u64) {
        self.agenda.set(self.bases.consumer + consumer, at);
    }

    /// When an adapter's own processor is done with a packet.
    pub(crate) fn set_demultiplexed(&mut self, adapter: usize, at: u64) {
        self.set_slot(|bases| bases.demultiplexed, adapter, at);
    }

    fn set_slot(&mut self, base: impl Fn(&Bases) -> usize, index: usize, at: u64) {
        self.agenda.set(base(&self.bases) + index, at);
    }

    /// A packet is lost.
    #[inline]
    pub(crate) fn lose(&mut self, mut packet: Packet, place: Place) {
        if place.is_full_queue() {
            self.owed += self.discard_cost;
            packet.work = packet.work.saturating_add(self.discard_cost as u32);
        }
        self.ledger.lose(&packet, place);
        self.record(What::Lost(place), packet.tag, packet.source);
    }

    /// Notes an event of the trace, if one is being recorded.
    #[inline]
    pub(crate) fn record(&mut self, what: What, tag: u32, source: u16) {
        if let Some(recorder) = &mut self.recorder {
            recorder.note(self.now, what, tag, source);
        }
    }

    /// Packets that have not come to an end, wherever they are.
    pub(crate) fn held(&self) -> u64 {
        let queues = self.ip_queues.iter().map(Fifo::len).sum::<usize>();
        let adapters = self.adapters.iter().map(Adapter::held).sum::<usize>();
        let endpoints = self.endpoints.iter().map(Endpoint::held).sum::<usize>();
        let lines = self.lines.iter().filter(|line| line.hand.is_some()).count();
        let threads = self.threads.iter().filter(|thread| thread.hand.is_some());
        (queues + adapters + endpoints + lines + threads.count()) as u64
    }
}

fn tick_slot(sizes: Sizes, cpu: usize) -> usize {
    sizes.cpus + 1 + cpu
}

fn slots(sizes: Sizes) -> (Vec<Slot>, Bases) {
    let mut slots: Vec<Slot> = (0..sizes.cpus).map(Slot::Cpu).collect();
    slots.push(Slot::Measure);
    slots.extend((0..sizes.cpus).map(Slot::Tick));
    let mut add = |count: usize, slot: fn(usize) -> Slot| {
        let base = slots.len();
        slots.extend((0..count).map(slot));
        base
    };
    let bases = Bases {
        source: add(sizes.sources, Slot::Source),
        inbound: add(sizes.adapters, Slot::Inbound),
        outbound: add(sizes.adapters, Slot::Outbound),
        transmitted: add(sizes.adapters, Slot::Transmitted),
        demultiplexed: add(sizes.adapters, Slot::Demultiplexed),
        consumer: add(sizes.consumers, Slot::Consumer),
        path: add(PATH_TIMERS, Slot::Path),
    };
    (slots, bases)
}

/// The slot of the end of the warm-up.
pub(crate) fn measure_slot(sizes: Sizes) -> usize {
    sizes.cpus
}

/// `at`, or never.
pub(crate) fn or_never(at: Option<plimsoll_core::time::Instant>) -> u64 {
    at.map_or(NEVER, plimsoll_core::time::Instant::as_nanos)
}
