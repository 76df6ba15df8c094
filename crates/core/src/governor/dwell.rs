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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn at(span: Duration) -> Instant {
        Instant::ZERO + span
    }

    fn dwell() -> Dwell {
        Dwell::new(&GovernorConfig::default())
    }

    /// In overload since the beginning, at this rate.
    fn entered(rate_pps: u64) -> Dwell {
        let mut dwell = dwell();
        assert!(!dwell.enters(true, rate_pps, Instant::ZERO));
        assert!(dwell.enters(true, rate_pps, at(20 * MS)));
        assert!(!dwell.is_pending());
        dwell
    }

    #[test]
    fn overload_counts_once_it_has_lasted_without_a_break() {
        let mut dwell = dwell();
        assert!(!dwell.enters(true, 1, Instant::ZERO));
        assert!(dwell.is_pending());
        assert!(!dwell.enters(false, 1, at(10 * MS)));
        assert!(!dwell.is_pending());
        assert!(!dwell.enters(true, 1, at(20 * MS)));
        assert!(!dwell.enters(true, 1, at(39 * MS)));
        assert!(dwell.enters(true, 1, at(40 * MS)));
    }

    /// A second at less than half of the highest rate, else four.
    fn calm_of(dwell: &mut Dwell, rate_pps: u64, from: Instant) -> Duration {
        let times = (0..100).map(|n| 100 * MS * n);
        let mut times = times.filter(|passed| dwell.leaves(true, rate_pps, from + *passed));
        times.next().expect("it leaves in the end")
    }

    #[test]
    fn calm_lasts_longer_where_as_much_comes_as_before() {
        let from = at(SECOND);
        assert_eq!(calm_of(&mut entered(1000), 499, from), SECOND);
        assert_eq!(calm_of(&mut entered(1000), 500, from), 4 * SECOND);
        // The highest since overload began counts.
        let mut rising = entered(1000);
        assert!(!rising.leaves(false, 3000, at(500 * MS)));
        assert!(!rising.leaves(false, 10, at(600 * MS)));
        assert_eq!(calm_of(&mut rising, 1499, from), SECOND);
        let mut broken = entered(1000);
        assert!(!broken.leaves(true, 1, from));
        assert!(!broken.leaves(false, 1, from + 900 * MS));
        assert_eq!(calm_of(&mut broken, 1, from + SECOND), SECOND);
    }

    /// Nor does one that did not last.
    #[test]
    fn the_overload_before_says_nothing_of_the_next_one_s_rate() {
        let mut dwell = entered(100_000);
        assert_eq!(calm_of(&mut dwell, 10, at(SECOND)), SECOND);
        for (overloaded, rate, now) in [
            (true, 50_000, 3000),
            (false, 10, 3010),
            (true, 1000, 3020),
            (true, 1000, 3040),
        ] {
            let enters = dwell.enters(overloaded, rate, at(MS * now));
            assert_eq!(enters, now == 3040);
        }
        assert_eq!(calm_of(&mut dwell, 600, at(5 * SECOND)), 4 * SECOND);
    }

    #[test]
    fn a_probe_that_is_taken_back_soon_makes_the_next_one_later() {
        let mut dwell = entered(1000);
        let mut now = at(SECOND);
        let mut probe = |dwell: &mut Dwell, back_after: Duration| {
            let times = (0..1000).map(|n| 100 * MS * n);
            let mut times = times.filter(|passed| dwell.leaves(true, 1000, now + *passed));
            let waited = times.next().expect("it leaves in the end");
            now += waited + back_after;
            assert!(!dwell.enters(true, 1000, now - 20 * MS));
            assert!(dwell.enters(true, 1000, now));
            waited
        };
        let soon = [4, 8, 16, 32, 60, 60].map(|_| probe(&mut dwell, SECOND));
        assert_eq!(soon, [4, 8, 16, 32, 60, 60].map(|n| SECOND * n));
        // Four times as long after it was the load that had come back.
        assert_eq!(probe(&mut dwell, 240 * SECOND), 60 * SECOND);
        assert_eq!(
            probe(&mut dwell, 16 * SECOND - MS),
            4 * SECOND,
            "as at first"
        );
        assert_eq!(probe(&mut dwell, 32 * SECOND), 8 * SECOND);
        assert_eq!(probe(&mut dwell, SECOND), 4 * SECOND);
    }
}
