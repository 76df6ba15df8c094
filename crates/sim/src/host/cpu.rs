//! A CPU: what runs, what it interrupted, and what is waiting to interrupt it.

use super::{LEVELS, LineId, LineKind, Mode};

/// What a CPU runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Running {
    #[default]
    Idle,
    /// A handler.
    Line(LineId),
    /// The change to a thread.
    Switch(usize),
    Thread(usize),
}

/// A handler or thread that was interrupted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspended {
    pub(crate) running: Running,
    pub(crate) level: usize,
    pub(crate) mode: Mode,
    /// What is left of its step, in ns; `None` if it was between two.
    pub(crate) rest: Option<u64>,
}

/// CPU time by account, in ns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Accounts {
    pub(crate) interrupt: u64,
    pub(crate) soft: u64,
    pub(crate) clock: u64,
    pub(crate) timer: u64,
    pub(crate) switch: u64,
    pub(crate) idle: u64,
    pub(crate) threads: u64,
}

impl Accounts {
    pub(crate) fn total(&self) -> u64 {
        self.interrupt
            + self.soft
            + self.clock
            + self.timer
            + self.switch
            + self.idle
            + self.threads
    }
}

/// A CPU.
#[derive(Clone, Debug)]
pub(crate) struct Cpu {
    pub(crate) running: Running,
    pub(crate) level: usize,
    pub(crate) mode: Mode,
    /// Since when what runs has not been accounted for.
    pub(crate) since: u64,
    /// What its next step takes longer, in ns: packets were discarded.
    pub(crate) owed: u64,
    /// When its step ends; `None` between steps.
    pub(crate) until: Option<u64>,
    /// What was interrupted, innermost last.
    pub(crate) suspended: Vec<Suspended>,
    /// The thread it runs, interrupted or not.
    pub(crate) thread: Option<usize>,
    /// The last thread that ran: changing to it costs nothing.
    pub(crate) last_thread: Option<usize>,
    /// The last process that ran, if it has not slept since: it is still there
    /// when kernel threads are done.
    pub(crate) last_process: Option<usize>,
    /// When it was put aside.
    pub(crate) left_process: u64,
    /// When it last worked on packet input, and its idle time until then, in ns.
    pub(crate) left_input: (u64, u64),
    /// What it takes to fetch again what software interrupts have replaced in the caches, in ns,
    /// since a thread ran.
    pub(crate) displaced: u64,
    /// When a device's interrupt last replaced a thread's code and data in the caches, in ns
    /// of work.
    pub(crate) disturbed: Option<u64>,
    /// Another thread may have to run.
    pub(crate) reschedule: bool,
    /// The thread that runs is in a softirq: no other one runs before that is over.
    pub(crate) in_softirq: bool,
    /// Among equals, another one is to run.
    pub(crate) rotate: bool,
    pub(crate) turn_began: u64,
    pub(crate) accounts: Accounts,
    pub(crate) soft: LineId,
    pub(crate) trigger: LineId,
    pub(crate) timer: LineId,
    pub(crate) clock: LineId,
    /// The clock's handler has begun.
    pub(crate) in_tick: bool,
    /// Lines that wait, by level: bits are places in `lines`.
    pending: [u64; LEVELS],
    /// Lines by level.
    lines: [Vec<LineId>; LEVELS],
    /// The place after the line served last, by level: lines take turns.
    next: [u32; LEVELS],
    /// Levels with waiting lines.
    waiting: u32,
}

impl Default for Cpu {
    fn default() -> Self {
        Self {
            running: Running::Idle,
            level: 0,
            mode: Mode::User,
            since: 0,
            owed: 0,
            until: None,
            suspended: Vec::with_capacity(LEVELS),
            thread: None,
            last_thread: None,
            last_process: None,
            left_process: 0,
            left_input: (0, 0),
            displaced: 0,
            disturbed: None,
            reschedule: false,
            in_softirq: false,
            rotate: false,
            turn_began: 0,
            accounts: Accounts::default(),
            soft: 0,
            trigger: 0,
            timer: 0,
            clock: 0,
            in_tick: false,
            pending: [0; LEVELS],
            lines: Default::default(),
            next: [0; LEVELS],
            waiting: 0,
        }
    }
}

impl Cpu {
    /// Registers a line; returns its place.
    pub(crate) fn add_line(&mut self, line: LineId, level: usize) -> usize {
        self.lines[level].push(line);
        self.lines[level].len() - 1
    }

    #[inline]
    pub(crate) fn raise(&mut self, place: usize, level: usize) {
        self.pending[level] |= 1 << place;
        self.waiting |= 1 << level;
    }

    /// The highest level with a waiting line; 0 if there is none.
    #[inline]
    pub(crate) fn waiting_level(&self) -> usize {
        (31u32.saturating_sub(self.waiting.leading_zeros())) as usize
            * usize::from(self.waiting > 0)
    }

    /// Takes the next waiting line of `level`, in turn.
    pub(crate) fn take_line(&mut self, level: usize) -> LineId {
        let pending = self.pending[level];
        let later = pending >> self.next[level] << self.next[level];
        let place = if later == 0 { pending } else { later }.trailing_zeros();
        self.pending[level] &= !(1 << place);
        self.next[level] = (place + 1) % 64;
        if self.pending[level] == 0 {
            self.waiting &= !(1 << level);
        }
        self.lines[level][place as usize]
    }

    /// The account that `kind`'s handlers use.
    pub(crate) fn account(&mut self, kind: LineKind) -> &mut u64 {
        match kind {
            LineKind::Soft => &mut self.accounts.soft,
            LineKind::Receive { .. } | LineKind::Transmit { .. } => &mut self.accounts.interrupt,
            LineKind::Trigger | LineKind::Timer => &mut self.accounts.timer,
            LineKind::Clock => &mut self.accounts.clock,
        }
    }
}
