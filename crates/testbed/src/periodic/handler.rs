//! What happens when an event fires: nothing (ST-59), or work on cache lines (ST-61).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// A handler's work (ST-59, ST-61).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// None: the facility alone costs.
    Empty,
    /// It touches 50 cache lines of four pages, each time others. (The paper's handler had
    /// also two lines of instructions, on pages of their own; a compiler places code as it
    /// likes.)
    Lines,
}

/// Lines that one run touches.
const TOUCHED: usize = 50;
/// Those of four pages.
const LINES: usize = 4 * 4096 / 64;

#[derive(Debug)]
#[repr(align(64))]
struct Line(AtomicU64);

/// One thread runs it, or a signal that interrupts this thread. So counting needs no
/// atomic addition, which would cost more than all else here.
#[derive(Debug)]
pub(super) struct Handler {
    runs: AtomicU64,
    next: AtomicUsize,
    /// Empty without work.
    lines: Vec<Line>,
}

impl Handler {
    pub(super) fn new(work: Work) -> Self {
        let lines = match work {
            Work::Empty => 0,
            Work::Lines => LINES,
        };
        Self {
            runs: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            lines: (0..lines).map(|_| Line(AtomicU64::new(0))).collect(),
        }
    }

    /// Safe inside a signal: it takes no lock and no memory.
    #[inline]
    pub(super) fn run(&self) {
        self.runs.store(self.runs.load(Relaxed) + 1, Relaxed);
        if self.lines.is_empty() {
            return;
        }
        let first = self.next.load(Relaxed);
        for place in first..first + TOUCHED {
            let line = &self.lines[place % LINES].0;
            line.store(line.load(Relaxed) + 1, Relaxed);
        }
        self.next.store((first + TOUCHED) % LINES, Relaxed);
    }

    pub(super) fn runs(&self) -> u64 {
        self.runs.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_touches_other_lines_until_all_had_their_turn() {
        let handler = Handler::new(Work::Lines);
        for _ in 0..LINES {
            handler.run();
        }
        assert_eq!(handler.runs(), LINES as u64);
        let touched: Vec<u64> = handler
            .lines
            .iter()
            .map(|line| line.0.load(Relaxed))
            .collect();
        assert!(
            touched.iter().all(|&times| times == TOUCHED as u64),
            "{touched:?}"
        );
    }
}
