//! Interrupts at light load, polling from the forwarding thread under overload.
//!
//! At light load the host's settings are untouched: the kernel polls a device when it
//! interrupts, and wakes us. Once every turn was full for a millisecond, the devices'
//! interrupts are deferred for longer than this thread stays away (the kernel's
//! `Documentation/networking/napi.rst`, "busy polling"), and the thread polls them. When
//! nothing came for a millisecond, the host's settings come back.
//!
//! Since 6.13 the kernel polls from system calls only for sockets without copies. For
//! others interrupts are deferred for as long as this thread has work ([`Pace`]).
//!
//! Turning costs some system calls and a file in `/run` each way, so the thread stays
//! in polling for a while.

use std::time::Duration;

use plimsoll_core::time::Instant;
use plimsoll_kernel::knobs::{DEFER_MARK, Knobs, Queues};

use super::pace::{Pace, Step};
use crate::forward::error::Error;

/// Full turns for this long are overload.
const FULL: Duration = Duration::from_millis(1);
/// Nothing for this long is its end.
const QUIET: Duration = Duration::from_millis(1);
/// After turning, it stays so at least this long.
const DWELL: Duration = Duration::from_millis(20);
/// Above the longest time that the CPU limit keeps this thread away (its period and
/// the debt of a turn), and below what a stalled thread may cost in lost wake-ups.
const HOLDOFF: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Regime {
    knobs: Vec<Knobs>,
    mode: Mode,
    /// Since when every turn was full.
    full_since: Option<Instant>,
    /// When the last frame came.
    frames_at: Instant,
    turned_at: Instant,
    /// Some driver has no such setting: interrupts stay.
    is_refused: bool,
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    /// As the host has it.
    Interrupts,
    /// This thread polls the devices.
    Polling,
    /// Devices are polled by the kernel, now and then.
    Paced(Pace),
}

impl Regime {
    pub(super) fn new(interfaces: &[String]) -> Result<Self, Error> {
        let knobs = interfaces.iter().map(|name| Knobs::open(name));
        Ok(Self {
            knobs: knobs.collect::<Result<_, _>>()?,
            mode: Mode::Interrupts,
            full_since: None,
            frames_at: Instant::ZERO,
            turned_at: Instant::ZERO,
            is_refused: false,
        })
    }

    pub(super) const fn is_polling(&self) -> bool {
        matches!(self.mode, Mode::Polling)
    }

    /// A turn found so many frames, perhaps all that it could take. True once it is time for
    /// [`Regime::overload`].
    pub(super) fn on_turn(&mut self, found: usize, is_full: bool, now: Instant) -> bool {
        if found > 0 {
            self.frames_at = now;
        }
        if let Mode::Paced(pace) = &mut self.mode {
            pace.on_frames(found as u64);
        }
        if !is_full {
            self.full_since = None;
            return false;
        }
        let since = *self.full_since.get_or_insert(now);
        let is_due = now.saturating_since(since) >= FULL && self.has_dwelt(now);
        is_due && matches!(self.mode, Mode::Interrupts) && !self.is_refused
    }

    /// Defers interrupts. `is_pollable`: the devices can be polled from this thread.
    /// `lost`: frames lost in our rings so far.
    pub(super) fn overload(&mut self, is_pollable: bool, lost: u64, now: Instant) {
        self.turned_at = now;
        self.full_since = None;
        let pace = Pace::new(lost, now);
        let (mode, holdoff) = match is_pollable {
            true => (Mode::Polling, HOLDOFF),
            false => (Mode::Paced(pace), pace.holdoff()),
        };
        self.mode = mode;
        self.defer(holdoff, now);
    }

    /// Whether devices are to be looked at again although nothing was found.
    pub(super) fn goes_on_polling(&mut self, now: Instant) -> bool {
        if !self.is_polling() {
            return false;
        }
        let is_quiet = now.saturating_since(self.frames_at) >= QUIET;
        if is_quiet && self.has_dwelt(now) {
            self.restore(now);
        }
        self.is_polling()
    }

    /// The thread had nothing to do for this long.
    pub(super) fn on_rest(&mut self, time: Duration) {
        if let Mode::Paced(pace) = &mut self.mode {
            pace.on_rest(time);
        }
    }

    /// Looks after the pace. `lost` as in [`Regime::overload`].
    pub(super) fn look(&mut self, lost: impl FnOnce() -> u64, now: Instant) {
        let Mode::Paced(pace) = &mut self.mode else {
            return;
        };
        if !pace.is_due(now) {
            return;
        }
        match pace.step(lost(), now) {
            Step::Stay => {}
            Step::Set(holdoff) => self.defer(holdoff, now),
            Step::End => self.restore(now),
        }
    }

    fn has_dwelt(&self, now: Instant) -> bool {
        now.saturating_since(self.turned_at) >= DWELL
    }

    fn defer(&mut self, holdoff: Duration, now: Instant) {
        let mut all_turned = true;
        for knobs in &mut self.knobs {
            let turned = knobs.set_holdoff(Queues::All, DEFER_MARK, holdoff);
            all_turned &= turned.is_ok();
        }
        if !all_turned {
            // Some are turned, maybe. All go back, and nothing is tried again.
            self.is_refused = true;
            self.restore(now);
        }
    }

    fn restore(&mut self, now: Instant) {
        self.mode = Mode::Interrupts;
        self.turned_at = now;
        self.full_since = None;
        for knobs in &mut self.knobs {
            // What cannot be restored stays on record.
            let _ = knobs.restore();
        }
    }
}
