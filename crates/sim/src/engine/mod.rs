//! The event engine: makes time pass.
//!
//! The earliest pending time of the [`agenda`] is the next moment; what it stands for
//! changes the machine; then each CPU concerned runs whatever now is most urgent.
//! A CPU runs one *step* at a time. When it ends, whoever runs is asked for the
//! next; when something of a higher level comes, what is left of the step waits.

pub(crate) mod agenda;

use agenda::NEVER;

use crate::consumer::Process;
use crate::host::cpu::Suspended;
use crate::host::{Body, Cx, Host, LEVEL_DEVICE, LineKind, Mode, Running, Slot, Step, ThreadState};
use crate::packet::Kind;
use crate::path::Path;
use crate::source::Source;
use crate::trace::What;

/// A machine with those who decide what it does.
pub(crate) struct Engine {
    pub(crate) host: Host,
    pub(crate) path: Box<dyn Path>,
    pub(crate) sources: Vec<Source>,
    pub(crate) processes: Vec<Process>,
}

impl Engine {
    /// Lets time pass up to `end`. True if the warm-up ended on the way, and
    /// `end` was not reached: go on after having noted what is not to be measured.
    pub(crate) fn run_until(&mut self, end: u64) -> bool {
        loop {
            let (at, slot) = self.host.agenda.first();
            if at > end {
                self.host.now = end;
                return false;
            }
            self.host.now = at;
            let slot = self.host.slots[slot];
            if let Slot::Measure = slot {
                self.host.agenda.set(self.host.cpus.len(), NEVER);
                return true;
            }
            self.happen(slot);
            while self.host.dirty != 0 {
                let cpu = self.host.dirty.trailing_zeros() as usize;
                self.host.dirty &= self.host.dirty - 1;
                self.drive(cpu);
            }
        }
    }

    #[inline]
    fn happen(&mut self, slot: Slot) {
        let host = &mut self.host;
        match slot {
            Slot::Cpu(cpu) => {
                host.account(cpu);
                host.cpus[cpu].until = None;
                host.dirty |= 1 << cpu;
            }
            Slot::Measure => {}
            Slot::Tick(cpu) => {
                let at = host.now + host.tick_ns;
                host.agenda.set(host.cpus.len() + 1 + cpu, at);
                host.raise(host.cpus[cpu].clock);
            }
            Slot::Source(source) => self.sources[source].on_timer(host),
            Slot::Inbound(adapter) => {
                if let Some(packet) = host.poll_inbound(adapter)
                    && let Some(queue) = host.ring_packet(adapter, packet)
                {
                    self.path.on_arrival(host, adapter, queue);
                }
            }
            Slot::Outbound(adapter) => {
                if let Some(packet) = host.poll_outbound(adapter) {
                    host.ledger.end();
                    if packet.kind != Kind::IcmpError {
                        self.sources[usize::from(packet.source)].on_reply(host, &packet);
                    }
                }
            }
            Slot::Transmitted(adapter) => {
                host.transmission_done(adapter);
                self.path.on_transmitted(host, adapter);
            }
            Slot::Demultiplexed(adapter) => self.path.on_demultiplexed(host, adapter),
            Slot::Path(timer) => {
                host.set_path_timer(timer, NEVER);
                self.path.on_timer(host, timer);
            }
            Slot::Consumer(consumer) => {
                host.set_consumer_timer(consumer, NEVER);
                self.processes[consumer].on_timer(host);
            }
        }
    }

    /// Lets `cpu` run what is most urgent, up to the point where time has to pass.
    fn drive(&mut self, cpu: usize) {
        self.begin_most_urgent(cpu);
        // Steps begin, are interrupted and go on: when the last one ends is noted once.
        let until = self.host.cpus[cpu].until.unwrap_or(NEVER);
        if self.host.agenda.at(cpu) != until {
            self.host.agenda.set(cpu, until);
        }
    }

    fn begin_most_urgent(&mut self, cpu: usize) {
        loop {
            let state = &self.host.cpus[cpu];
            let waiting = state.waiting_level();
            if waiting > state.level {
                self.host.begin_line(cpu, waiting);
            } else if state.level == 0 && state.reschedule && !state.in_softirq {
                self.host.reschedule(cpu);
            }
            if self.host.cpus[cpu].until.is_some() {
                return;
            }
            let next = self.next_step(cpu);
            self.host.cpus[cpu].owed += std::mem::take(&mut self.host.owed);
            let (step, mode) = match next {
                Step::Kernel(ns) => (ns, Mode::Kernel),
                Step::User(ns) => (ns, Mode::User),
                Step::Done => {
                    if self.done(cpu) {
                        return;
                    }
                    continue;
                }
            };
            self.host.begin_step(cpu, step, mode);
        }
    }

    #[inline]
    fn next_step(&mut self, cpu: usize) -> Step {
        let host = &mut self.host;
        match host.cpus[cpu].running {
            Running::Line(line) => match host.lines[line].kind {
                LineKind::Clock => self.clock(cpu),
                kind => self.path.line(host, Cx { cpu, line }, kind),
            },
            Running::Thread(thread) => match host.threads[thread].body {
                Body::Consumer(consumer, process) => {
                    let path = self.path.as_mut();
                    self.processes[consumer].step(host, path, process, thread)
                }
                Body::Path(index) => self.path.thread(host, index, thread),
            },
            Running::Switch(thread) => {
                host.cpus[cpu].running = Running::Thread(thread);
                // Its cold caches are part of the change.
                host.cpus[cpu].displaced = 0;
                host.resume_thread(cpu, thread);
                // Goes on with the rest of its step, if there is one.
                Step::Kernel(0)
            }
            Running::Idle => self.path.idle(host, cpu),
        }
    }

    /// The clock's handler: one step, and then what the clock is for.
    fn clock(&mut self, cpu: usize) -> Step {
        let host = &mut self.host;
        if !std::mem::replace(&mut host.cpus[cpu].in_tick, true) {
            return Step::Kernel(host.clock_cost);
        }
        host.cpus[cpu].in_tick = false;
        host.schedule_tick(cpu);
        self.path.on_tick(host, cpu);
        Step::Done
    }

    /// What runs is done. True if the CPU has nothing to do for now.
    fn done(&mut self, cpu: usize) -> bool {
        let host = &mut self.host;
        match host.cpus[cpu].running {
            Running::Line(_) => {
                host.end_line(cpu);
                false
            }
            Running::Thread(thread) => {
                host.block(cpu, thread);
                false
            }
            Running::Switch(_) | Running::Idle => true,
        }
    }
}

impl Host {
    /// Books the time since the last booking on whoever ran.
    #[inline]
    pub(crate) fn account(&mut self, cpu: usize) {
        let state = &mut self.cpus[cpu];
        let spent = self.now - state.since;
        if spent == 0 {
            return;
        }
        state.since = self.now;
        match state.running {
            Running::Idle => state.accounts.idle += spent,
            Running::Switch(_) => state.accounts.switch += spent,
            Running::Thread(thread) => {
                state.accounts.threads += spent;
                self.threads[thread].used_ns += spent;
                self.charge(thread, spent);
            }
            Running::Line(line) => {
                let kind = self.lines[line].kind;
                *state.account(kind) += spent;
                if let Some(thread) = state.thread
                    && self.charges_interrupted
                {
                    self.charge(thread, spent);
                }
            }
        }
    }

    /// The running context works for `ns`.
    #[inline]
    fn begin_step(&mut self, cpu: usize, ns: u64, mode: Mode) {
        let state = &mut self.cpus[cpu];
        if state.until.is_none() {
            // Else a thread goes on with what was left, in the mode it was left in.
            state.mode = mode;
        }
        let hand = match state.running {
            Running::Line(line) => &mut self.lines[line].hand,
            Running::Thread(thread) => {
                if mode == Mode::User {
                    self.threads[thread].boosted = false;
                }
                &mut self.threads[thread].hand
            }
            Running::Switch(_) | Running::Idle => &mut None,
        };
        if let Some(packet) = hand {
            packet.work = packet.work.saturating_add(ns as u32);
        }
        let state = &mut self.cpus[cpu];
        if ns > 0 && state.until.is_none() {
            let ns = ns + std::mem::take(&mut state.owed);
            state.until = Some(self.now + ns);
        }
    }

    /// A waiting line of `level` interrupts what runs.
    fn begin_line(&mut self, cpu: usize, level: usize) {
        self.account(cpu);
        let now = self.now;
        let state = &mut self.cpus[cpu];
        let rest = state.until.take().map(|until| until - now);
        let line = state.take_line(level);
        state.suspended.push(Suspended {
            running: state.running,
            level: state.level,
            mode: state.mode,
            rest,
        });
        self.note_end(cpu);
        let state = &mut self.cpus[cpu];
        state.running = Running::Line(line);
        state.level = level;
        state.mode = Mode::Kernel;
        self.note_begin(cpu);
    }

    /// The handler that runs returns to what it interrupted.
    fn end_line(&mut self, cpu: usize) {
        self.note_end(cpu);
        let now = self.now;
        let state = &mut self.cpus[cpu];
        let Some(suspended) = state.suspended.pop() else {
            unreachable!("a handler interrupted something, if only idleness");
        };
        let disturbs = state.level >= LEVEL_DEVICE && suspended.level == 0;
        state.running = suspended.running;
        state.level = suspended.level;
        state.mode = suspended.mode;
        if let Some(rest) = suspended.rest {
            let pollution = match suspended.running {
                Running::Thread(thread) => {
                    let device = if disturbs { self.pollute(cpu) } else { 0 };
                    device + self.refetch(cpu, thread, u64::MAX)
                }
                _ => 0,
            };
            self.cpus[cpu].until = Some(now + rest + pollution);
        }
        self.note_begin(cpu);
    }

    /// What a device's interrupt has cost the thread that it interrupted on `cpu`, in ns: the less,
    /// the sooner it came after another.
    fn pollute(&mut self, cpu: usize) -> u64 {
        if self.pollution.is_none() {
            return 0;
        }
        let state = &mut self.cpus[cpu];
        let worked = self.now - state.accounts.idle;
        let last = state.disturbed.replace(worked);
        self.pollution
            .refill(last.map_or(u64::MAX, |last| worked - last))
    }

    /// What `thread`, which goes on on `cpu`, has to fetch into the caches again, in ns, `most` at
    /// most. It cannot lose more than it has fetched, and its work fetches no faster than it goes
    /// on: at worst it runs at half of its speed.
    #[inline]
    fn refetch(&mut self, cpu: usize, thread: usize, most: u64) -> u64 {
        let displaced = std::mem::take(&mut self.cpus[cpu].displaced).min(most);
        if displaced == 0 {
            return 0;
        }
        let thread = &mut self.threads[thread];
        let lost = displaced.min(thread.used_ns.saturating_sub(thread.complete_at));
        thread.complete_at = thread.used_ns.max(thread.complete_at) + lost;
        lost
    }

    /// The thread that runs sleeps; another one, or nobody, follows.
    fn block(&mut self, cpu: usize, thread: usize) {
        self.note_end(cpu);
        self.threads[thread].state = ThreadState::Blocked;
        let state = &mut self.cpus[cpu];
        state.thread = None;
        state.running = Running::Idle;
        state.reschedule = true;
        if state.last_process == Some(thread) {
            state.last_process = None;
        }
    }

    /// Chooses the thread to run on `cpu`, at thread level.
    fn reschedule(&mut self, cpu: usize) {
        let state = &self.cpus[cpu];
        let within_kernel = state.mode == Mode::Kernel && state.until.is_some();
        let busy = state.running != Running::Idle || state.until.is_some();
        if busy && within_kernel && state.thread.is_some() {
            // Looked at again when the step is over.
            return;
        }
        let best = self.best_ready(cpu);
        if let (Some(best), Some(current)) = (best, self.cpus[cpu].thread)
            && self.waits_for_return(best, current)
        {
            // Looked at again when its call returns.
            return;
        }
        self.cpus[cpu].reschedule = false;
        let rotate = std::mem::take(&mut self.cpus[cpu].rotate);
        let Some(best) = best else {
            return;
        };
        if let Some(current) = self.cpus[cpu].thread {
            let in_turn = rotate && !self.preempts(current, best);
            if !in_turn && !self.preempts(best, current) {
                return;
            }
            self.put_aside(cpu, current);
        }
        self.switch_to(cpu, best);
    }

    /// The running thread becomes ready; what is left of its step is kept.
    fn put_aside(&mut self, cpu: usize, thread: usize) {
        self.account(cpu);
        let now = self.now;
        let state = &mut self.cpus[cpu];
        let rest = state.until.take().map_or(0, |until| until - now);
        let switching = matches!(state.running, Running::Switch(_));
        if state.last_process == Some(thread) {
            state.left_process = now;
        }
        self.requeue(thread);
        let thread = &mut self.threads[thread];
        thread.state = ThreadState::Ready;
        if !switching {
            thread.rest = rest;
        }
        let pinned = thread.cpu.is_some();
        // A CPU that has nothing to run does not wait for the next one to wake up.
        if let Some(idle) = self.cpus.iter().position(|cpu| cpu.thread.is_none())
            && !pinned
        {
            self.cpus[idle].reschedule = true;
            self.dirty |= 1 << idle;
        }
    }

    fn switch_to(&mut self, cpu: usize, thread: usize) {
        self.account(cpu);
        self.note_end(cpu);
        self.threads[thread].state = ThreadState::Running(cpu);
        let now = self.now;
        let state = &mut self.cpus[cpu];
        // Polling of an idle CPU ends here.
        state.until = None;
        state.thread = Some(thread);
        state.turn_began = now;
        let changes = state.last_thread != Some(thread);
        state.last_thread = Some(thread);
        // Others replace a process's caches about as fast as it fills them again:
        // who was away for as long as a full change takes has lost them.
        let warm =
            state.last_process == Some(thread) && now - state.left_process < self.switch_cost;
        let of_kernel = self.threads[thread].kernel || self.threads[thread].borrows_space;
        let light = of_kernel || warm;
        let cost = if light {
            self.thread_switch_cost
        } else {
            self.switch_cost
        };
        if !of_kernel {
            state.last_process = Some(thread);
        }
        if changes && cost > 0 {
            self.ledger.counts.switches += 1;
            self.cpus[cpu].running = Running::Switch(thread);
            self.note_begin(cpu);
            self.begin_step(cpu, cost, Mode::Kernel);
        } else {
            self.cpus[cpu].running = Running::Thread(thread);
            // It slept: at most it is as cold as after a change.
            self.cpus[cpu].owed += self.refetch(cpu, thread, self.switch_cost);
            self.note_begin(cpu);
            self.resume_thread(cpu, thread);
        }
    }

    /// Continues a thread's interrupted step.
    fn resume_thread(&mut self, cpu: usize, thread: usize) {
        let rest = std::mem::take(&mut self.threads[thread].rest);
        if rest > 0 {
            let state = &mut self.cpus[cpu];
            state.mode = Mode::User;
            state.until = Some(self.now + rest);
        }
    }

    /// The CPU that `thread` runs on.
    pub(crate) fn cpu_of(&self, thread: usize) -> usize {
        match self.threads[thread].state {
            ThreadState::Running(cpu) => cpu,
            ThreadState::Blocked | ThreadState::Ready => 0,
        }
    }

    fn note_begin(&mut self, cpu: usize) {
        if self.recorder.is_some() {
            let (cpu8, actor) = (cpu as u8, self.actor(cpu));
            self.record(What::Begin { cpu: cpu8, actor }, 0, 0);
        }
    }

    fn note_end(&mut self, cpu: usize) {
        if self.recorder.is_some() {
            let (cpu8, actor) = (cpu as u8, self.actor(cpu));
            self.record(What::End { cpu: cpu8, actor }, 0, 0);
        }
    }

    /// The number of who runs on `cpu`, in a trace's list of names.
    fn actor(&self, cpu: usize) -> u16 {
        let lines = self.lines.len();
        let index = match self.cpus[cpu].running {
            Running::Idle => 0,
            Running::Switch(_) => 1,
            Running::Line(line) => 2 + line,
            Running::Thread(thread) => 2 + lines + thread,
        };
        index as u16
    }
}
