//! How long a state must last before the mode follows it.

use core::time::Duration;

use super::GovernorConfig;
use super::config::DWELL_MAX;
use crate::time::Instant;

/// A probe that had to be taken back within this many of its dwells came too early.
const SOON_DWELLS: u32 = 4;
/// The first probe, in leave dwells.
const PROBE_LEAVE_DWELLS: u32 = 4;

/// The clocks of both ways.
#[derive(Debug)]
pub(super) struct Dwell {
    enter: Duration,
    leave: Duration,
    probe_min: Duration,
    /// Calm that a probe needs now.
    probe: Duration,
    /// Since when the state that would change the mode has lasted.
    since: Option<Instant>,
    /// The highest rate since overload began, of the intervals that showed it.
    entry_pps: u64,
    /// When the last probe was made, until it is known how it went.
    probed: Option<Instant>,
}

impl Dwell {
    pub(super) fn new(config: &GovernorConfig) -> Self {
        let probe_min = (config.leave_dwell * PROBE_LEAVE_DWELLS).min(DWELL_MAX);
        Self {
            enter: config.enter_dwell,
            leave: config.leave_dwell,
            probe_min,
            probe: probe_min,
            since: None,
            entry_pps: 0,
            probed: None,
        }
    }

    /// A change is under way.
    pub(super) fn is_pending(&self) -> bool {
        self.since.is_some()
    }

    /// Overload was seen or not, in interrupt mode: whether it has lasted.
    pub(super) fn enters(&mut self, overloaded: bool, rate_pps: u64, now: Instant) -> bool {
        if !overloaded {
            self.since = None;
            self.entry_pps = 0;
            return false;
        }
        self.entry_pps = self.entry_pps.max(rate_pps);
        let since = *self.since.get_or_insert(now);
        if now.saturating_since(since) < self.enter {
            return false;
        }
        self.judge_probe(now);
        self.since = None;
        true
    }

    /// Calm was seen or not, in overload mode: whether it has lasted.
    pub(super) fn leaves(&mut self, calm: bool, rate_pps: u64, now: Instant) -> bool {
        if !calm {
            self.since = None;
            self.entry_pps = self.entry_pps.max(rate_pps);
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let is_lighter = rate_pps < self.entry_pps / 2;
        let needed = if is_lighter { self.leave } else { self.probe };
        if now.saturating_since(since) < needed {
            return false;
        }
        self.probed = (!is_lighter).then_some(now);
        self.since = None;
        self.entry_pps = 0;
        true
    }

    /// Overload is back: soon after a probe, the next one waits twice as long.
    fn judge_probe(&mut self, now: Instant) {
        let soon = |probed: Instant| now.saturating_since(probed) < self.probe * SOON_DWELLS;
        match self.probed.take() {
            Some(probed) if soon(probed) => self.probe = (self.probe * 2).min(DWELL_MAX),
            _ => self.probe = self.probe_min,
        }
    }
}
