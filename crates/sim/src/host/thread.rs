//! Threads and who of them runs.
//!
//! **Decay usage** (4.3BSD and 4.4BSD): a thread's priority falls with the CPU time it has
//! used, and that time is forgotten with a speed that grows with the load. A
//! process that was asleep runs ahead of those in user mode until its system call
//! returns; a receive path's thread that works for a process makes no call, and has its
//! priority (LRP, section 3.4). Time of interrupts counts as used by the thread they interrupted,
//! whoever caused them (LRP-04).
//!
//! Threads wait in run queues of four priorities each, first come, first served. Whoever is
//! woken makes the running process choose again (`need_resched` of `wakeup`), at once if that is
//! in user mode, and else when its call returns there (`userret`): it goes to the end of its
//! queue, and the first thread of the best queue runs. The same happens at fixed times, a quantum
//! apart (`roundrobin`), and once a second (`schedcpu`), and at no other time.
//! (4.4BSD-Lite, `kern_synch.c` and `trap.c`; Leffler et al., The Design and Implementation of the
//! 4.3BSD UNIX Operating System, section 4.4.)
//!
//! **Fair share** (Linux): the thread with the least weighted run time runs; one
//! that was asleep is not far behind the others when it wakes. Interrupts count
//! for nobody. Kernel threads stand for a real-time class: they run ahead of all
//! processes under every scheduler.
//!
//! **Departures.** Use is counted in nanoseconds instead of by samples, and the
//! load is the number of runnable threads at the moment instead of its average.

use super::Host;
use crate::packet::Packet;
use crate::profile::Scheduler;

/// Priority of processes without recent use in 4.4BSD (`PUSER`).
const PRIORITY_USER: u64 = 50;
/// Lowest priority (`MAXPRI`).
const PRIORITY_LAST: u64 = 127;
/// Priority while a woken process is still in the kernel (`PSOCK`).
const PRIORITY_WOKEN: u64 = 26;
/// Priority of kernel threads.
const PRIORITY_KERNEL: u64 = 10;
/// So many priorities share a run queue (`PPQ`).
const PRIORITIES_PER_QUEUE: u64 = 4;
/// 4.4BSD counts use in ticks of 10 ms and lowers priority by one per four.
const USAGE_PER_PRIORITY_NS: u64 = 40_000_000;
/// Use beyond this is not counted (`UCHAR_MAX` ticks).
const USAGE_MAX_NS: u64 = 255 * 10_000_000;
/// Fair share: how far a thread may run ahead before others get their turn.
const FAIR_SLICE_NS: u64 = 3_000_000;
/// Fair share: a woken thread preempts one that is ahead of it by more than this.
const FAIR_WAKEUP_NS: u64 = 1_000_000;

/// Whether other threads may come in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Kernel,
    User,
}

/// What a thread executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// A process of this consumer, and which of its processes.
    Consumer(usize, usize),
    /// A thread of the receive path.
    Path(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadState {
    Blocked,
    Ready,
    Running(usize),
}

/// A thread.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) name: String,
    pub(crate) body: Body,
    /// The only CPU it may run on.
    pub(crate) cpu: Option<usize>,
    pub(crate) state: ThreadState,
    /// What is left of a step that another thread came in between.
    pub(crate) rest: u64,
    /// The packet it works on.
    pub(crate) hand: Option<Packet>,
    pub(crate) used_ns: u64,
    /// What it will have used when it has fetched again what it found gone from the caches, in ns.
    pub(crate) complete_at: u64,
    /// Kernel thread: ahead of all processes.
    pub(crate) kernel: bool,
    /// Of the kernel, but scheduled like a process: it has no address space of its own, so
    /// that changing to it is as cheap as to a kernel thread.
    pub(crate) borrows_space: bool,
    /// Of minimal priority: runs where nobody else wants to.
    pub(crate) idle: bool,
    pub(crate) nice: i32,
    /// For fixed priorities, larger first.
    pub(crate) priority: u32,
    /// CPU time charged that is not forgotten (decay usage), in ns.
    usage_ns: u64,
    /// Weighted CPU time (fair share), in ns.
    virtual_ns: u64,
    /// Has not returned to user mode since it was woken.
    pub(crate) boosted: bool,
    /// Among equals, the lowest turn runs.
    turn: u64,
}

impl Thread {
    pub(crate) fn new(name: String, body: Body) -> Self {
        Self {
            name,
            body,
            cpu: None,
            state: ThreadState::Blocked,
            rest: 0,
            hand: None,
            used_ns: 0,
            complete_at: 0,
            kernel: false,
            borrows_space: false,
            idle: false,
            nice: 0,
            priority: 0,
            usage_ns: 0,
            virtual_ns: 0,
            boosted: false,
            turn: 0,
        }
    }

    fn key(&self, scheduler: Scheduler) -> (u64, u64) {
        let first = match scheduler {
            _ if self.idle => u64::MAX,
            Scheduler::FairShare if self.kernel => 0,
            Scheduler::FairShare => self.virtual_ns + 1,
            Scheduler::FixedPriority if self.kernel => PRIORITY_KERNEL,
            Scheduler::FixedPriority => u64::from(u32::MAX - self.priority),
            Scheduler::DecayUsage => self.decayed_priority() / PRIORITIES_PER_QUEUE,
        };
        (first, self.turn)
    }

    /// 4.4BSD's priority; smaller is better.
    fn decayed_priority(&self) -> u64 {
        if self.kernel {
            return PRIORITY_KERNEL;
        }
        if self.is_in_call() {
            return PRIORITY_WOKEN;
        }
        let nice = i64::from(self.nice) * 2;
        let used = (self.usage_ns / USAGE_PER_PRIORITY_NS) as i64;
        let priority = PRIORITY_USER as i64 + used + nice;
        priority.clamp(PRIORITY_USER as i64 - 40, PRIORITY_LAST as i64) as u64
    }

    /// A process that was woken and is still in its system call: no other process runs before
    /// it is back in user mode.
    fn is_in_call(&self) -> bool {
        self.boosted && matches!(self.body, Body::Consumer(..))
    }

    fn weight(&self) -> f64 {
        libm::pow(1.25, f64::from(-self.nice))
    }
}

impl Host {
    /// Adds a thread; it sleeps.
    pub(crate) fn add_thread(&mut self, thread: Thread) -> usize {
        assert!(
            thread.cpu.is_none_or(|cpu| cpu < self.cpus.len()),
            "a thread's CPU exists"
        );
        self.threads.push(thread);
        self.threads.len() - 1
    }

    /// Makes a sleeping thread runnable.
    pub(crate) fn wake(&mut self, thread: usize) {
        if self.threads[thread].state != ThreadState::Blocked {
            return;
        }
        let fair_floor = self.fair_floor();
        self.turns += 1;
        let woken = &mut self.threads[thread];
        woken.state = ThreadState::Ready;
        woken.boosted = true;
        woken.turn = self.turns;
        woken.virtual_ns = woken
            .virtual_ns
            .max(fair_floor.saturating_sub(FAIR_SLICE_NS));
        let pinned = woken.cpu;
        let cpu = pinned.or_else(|| self.cpu_for(thread));
        if let Some(cpu) = cpu {
            self.cpus[cpu].reschedule = true;
            self.cpus[cpu].rotate |= self.scheduler == Scheduler::DecayUsage;
            self.dirty |= 1 << cpu;
        }
    }

    /// The CPU that has most reason to run `thread`: an idle one that nobody else was
    /// woken for, or the one whose thread is least urgent.
    fn cpu_for(&self, thread: usize) -> Option<usize> {
        let is_free = |&cpu: &usize| self.cpus[cpu].thread.is_none() && !self.cpus[cpu].reschedule;
        let free = (0..self.cpus.len()).filter(is_free);
        // Rather one without a handler to finish first.
        let free = free.min_by_key(|&cpu| self.cpus[cpu].level);
        free.or_else(|| {
            let scheduler = self.scheduler;
            let running = |cpu: &super::Cpu| cpu.thread.map(|t| self.threads[t].key(scheduler));
            let least = (0..self.cpus.len()).max_by_key(|&cpu| running(&self.cpus[cpu]))?;
            let current = self.cpus[least].thread?;
            let asks = scheduler == Scheduler::DecayUsage || self.preempts(thread, current);
            asks.then_some(least)
        })
    }

    /// The least virtual time of threads that want to run.
    fn fair_floor(&self) -> u64 {
        if self.scheduler != Scheduler::FairShare {
            return 0;
        }
        let processes = || self.threads.iter().filter(|t| !t.kernel);
        let wanting = processes().filter(|t| t.state != ThreadState::Blocked);
        wanting.map(|t| t.virtual_ns).min().unwrap_or_else(|| {
            // Nobody: the newcomer starts where the last left off.
            processes().map(|t| t.virtual_ns).max().unwrap_or(0)
        })
    }

    /// Whether `other`, which is ready, runs instead of `current`.
    pub(crate) fn preempts(&self, other: usize, current: usize) -> bool {
        let (other, current) = (&self.threads[other], &self.threads[current]);
        let (a, b) = (other.key(self.scheduler), current.key(self.scheduler));
        match self.scheduler {
            _ if other.idle || current.idle => current.idle && !other.idle,
            Scheduler::FairShare if other.kernel => !current.kernel,
            Scheduler::FairShare => a.0 + FAIR_WAKEUP_NS < b.0,
            _ => a.0 < b.0,
        }
    }

    /// Whether `other` has to wait until `current` is back in user mode. Kernel threads do not:
    /// those of the papers preempt (MR, section 8.2.1).
    pub(crate) fn waits_for_return(&self, other: usize, current: usize) -> bool {
        self.scheduler == Scheduler::DecayUsage
            && self.threads[current].is_in_call()
            && !self.threads[other].kernel
    }

    /// `thread` is put aside: in 4.4BSD it goes to the end of its run queue.
    pub(crate) fn requeue(&mut self, thread: usize) {
        if self.scheduler == Scheduler::DecayUsage {
            self.turns += 1;
            self.threads[thread].turn = self.turns;
        }
    }

    /// Whether another thread is to run on `cpu` than the one that does, or one at all
    /// (Linux's `need_resched`).
    pub(crate) fn wants_other(&self, cpu: usize) -> bool {
        let state = &self.cpus[cpu];
        if !state.reschedule {
            return false;
        }
        let Some(best) = self.best_ready(cpu) else {
            return false;
        };
        state.thread.is_none_or(|current| {
            self.preempts(best, current) || state.rotate && !self.preempts(current, best)
        })
    }

    /// The ready thread that should run on `cpu` next.
    pub(crate) fn best_ready(&self, cpu: usize) -> Option<usize> {
        let mut best: Option<(usize, (u64, u64))> = None;
        for (index, thread) in self.threads.iter().enumerate() {
            if thread.state != ThreadState::Ready || thread.cpu.is_some_and(|pin| pin != cpu) {
                continue;
            }
            let key = thread.key(self.scheduler);
            if best.is_none_or(|(_, least)| key < least) {
                best = Some((index, key));
            }
        }
        best.map(|(index, _)| index)
    }

    /// Charges CPU time to `thread`'s priority.
    #[inline]
    pub(crate) fn charge(&mut self, thread: usize, ns: u64) {
        let scheduler = self.scheduler;
        let thread = &mut self.threads[thread];
        match scheduler {
            Scheduler::DecayUsage => {
                thread.usage_ns = (thread.usage_ns + ns).min(USAGE_MAX_NS);
            }
            Scheduler::FixedPriority => {}
            Scheduler::FairShare if thread.nice == 0 => thread.virtual_ns += ns,
            Scheduler::FairShare => {
                thread.virtual_ns += (ns as f64 / thread.weight()) as u64;
            }
        }
    }

    /// What the clock does for the scheduler.
    pub(crate) fn schedule_tick(&mut self, cpu: usize) {
        self.ticks += u64::from(cpu == 0);
        let every = |ns: u64| self.ticks.is_multiple_of((ns / self.tick_ns).max(1));
        let (second, round) = (every(1_000_000_000), every(self.quantum_ns));
        if cpu == 0 && second {
            self.forget_usage();
        }
        let Some(thread) = self.cpus[cpu].thread else {
            return;
        };
        let over = self.now.saturating_sub(self.cpus[cpu].turn_began) >= self.quantum_ns;
        let rotate = match self.scheduler {
            Scheduler::FairShare => {
                let current = &self.threads[thread];
                let others = self.best_ready(cpu).map(|t| self.threads[t].virtual_ns);
                let late = others.is_some_and(|v| v + FAIR_SLICE_NS < current.virtual_ns);
                late && !current.kernel
            }
            Scheduler::FixedPriority => over,
            Scheduler::DecayUsage => round,
        };
        if rotate {
            self.turns += 1;
            self.threads[thread].turn = self.turns;
            self.cpus[cpu].turn_began = self.now;
            self.cpus[cpu].rotate = true;
        }
        if self.scheduler != Scheduler::DecayUsage || rotate || second {
            self.cpus[cpu].reschedule = true;
            self.dirty |= 1 << cpu;
        }
    }

    /// Once a second: old use is forgotten, the slower the more threads want to
    /// run.
    fn forget_usage(&mut self) {
        let wanting = self
            .threads
            .iter()
            .filter(|t| t.state != ThreadState::Blocked);
        let load = wanting.count() as u64;
        for thread in &mut self.threads {
            let nice = u64::try_from(thread.nice).unwrap_or(0) * 10_000_000;
            let kept = thread.usage_ns * 2 * load / (2 * load + 1);
            thread.usage_ns = (kept + nice).min(USAGE_MAX_NS);
        }
    }
}
