//! What a turn of the handler costs beyond its two time samples.
//!
//! Intuition: trap, return and refilled caches cannot be timed from inside the
//! handler, but the interrupted program feels them. So a program that does
//! known work runs twice at start-up: once undisturbed, once while interrupts
//! come. The work it then lacks, less the time the handlers admit to, divided by
//! their number, is the overhead. Macpherson & Heiser (section 6.2) found 12 µs
//! by hand and proposed to find it at start-up.
//!
//! The estimate is the median over several windows: one that was disturbed by
//! something else says too much, one whose clock frequency rose says too little,
//! and neither moves the median. At least
//! [`WINDOWS_MIN`](OverheadCalibration::WINDOWS_MIN) windows are needed; the last
//! [`WINDOWS_MAX`](OverheadCalibration::WINDOWS_MAX) count.
//!
//! Limits: the program should touch about as much memory as the applications
//! will, or the refill that it feels is not theirs. The clock frequency must be
//! the same in both runs.

use core::time::Duration;

/// What was observed while the reference program ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Time from start to end.
    pub elapsed: Duration,
    /// Units of reference work done meanwhile, at least 1.
    pub work: u64,
    /// Turns of the handler meanwhile.
    pub turns: u64,
    /// Their time by their own samples.
    pub in_handler: Duration,
}

/// Why a window says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalibrationError {
    /// No work was done or no time passed: measure longer.
    Empty,
    /// The undisturbed window had interrupts: find a quieter moment.
    Disturbed,
    /// The window had no interrupts: cause some.
    NoTurns,
}

impl core::fmt::Display for CalibrationError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Empty => "no work was done in this window: measure longer",
            Self::Disturbed => "interrupts came in the undisturbed window: find a quieter moment",
            Self::NoTurns => "no interrupt came in this window: cause some",
        })
    }
}

impl core::error::Error for CalibrationError {}

/// Estimates the overhead from windows; see the module's documentation.
#[derive(Debug)]
pub struct OverheadCalibration {
    quiet_nanos: u128,
    quiet_work: u128,
    /// Overheads per turn in ns, a ring once it is full.
    estimates: [u64; OverheadCalibration::WINDOWS_MAX],
    windows: usize,
}

impl OverheadCalibration {
    /// Windows needed for an estimate.
    pub const WINDOWS_MIN: usize = 3;
    /// Windows remembered.
    pub const WINDOWS_MAX: usize = 31;

    /// Starts with a window without interrupts.
    ///
    /// # Errors
    /// If the window is empty or was disturbed.
    pub fn new(quiet: Window) -> Result<Self, CalibrationError> {
        if quiet.work == 0 || quiet.elapsed.is_zero() {
            return Err(CalibrationError::Empty);
        }
        if quiet.turns > 0 {
            return Err(CalibrationError::Disturbed);
        }
        Ok(Self {
            quiet_nanos: quiet.elapsed.as_nanos(),
            quiet_work: quiet.work.into(),
            estimates: [0; Self::WINDOWS_MAX],
            windows: 0,
        })
    }

    /// Adds a window with interrupts.
    ///
    /// # Errors
    /// If the window is empty or had no interrupts.
    pub fn on_window(&mut self, window: Window) -> Result<(), CalibrationError> {
        if window.work == 0 || window.elapsed.is_zero() {
            return Err(CalibrationError::Empty);
        }
        if window.turns == 0 {
            return Err(CalibrationError::NoTurns);
        }
        let needed = u128::from(window.work)
            .saturating_mul(self.quiet_nanos)
            .div_ceil(self.quiet_work);
        let lost = window.elapsed.as_nanos().saturating_sub(needed);
        let hidden = lost.saturating_sub(window.in_handler.as_nanos());
        let per_turn = hidden / u128::from(window.turns);
        self.estimates[self.windows % Self::WINDOWS_MAX] =
            u64::try_from(per_turn).unwrap_or(u64::MAX);
        self.windows += 1;
        Ok(())
    }

    /// The overhead of one turn, or `None` before enough windows were added.
    #[must_use]
    pub fn overhead(&self) -> Option<Duration> {
        if self.windows < Self::WINDOWS_MIN {
            return None;
        }
        let mut sorted = self.estimates;
        let known = &mut sorted[..self.windows.min(Self::WINDOWS_MAX)];
        known.sort_unstable();
        Some(Duration::from_nanos(known[known.len() / 2]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Window = Window {
        elapsed: Duration::from_millis(10),
        work: 1_000_000,
        turns: 0,
        in_handler: Duration::ZERO,
    };

    /// 10 ms in which `turns` turns took 5 µs by their own samples and cost
    /// `cost_us` each.
    fn window(turns: u64, cost_us: u64) -> Window {
        let lost_ns = turns * cost_us * 1000;
        Window {
            work: (10_000_000 - lost_ns) / 10,
            turns,
            in_handler: Duration::from_micros(5 * turns),
            ..QUIET
        }
    }

    #[test]
    fn what_the_handler_does_not_admit_is_the_overhead() {
        let mut calibration = OverheadCalibration::new(QUIET).unwrap();
        for turns in [50, 100] {
            calibration.on_window(window(turns, 17)).unwrap();
        }
        assert_eq!(calibration.overhead(), None, "two windows are not enough");
        calibration.on_window(window(200, 17)).unwrap();
        assert_eq!(calibration.overhead(), Some(Duration::from_micros(12)));
    }

    #[test]
    fn disturbed_windows_do_not_move_the_median() {
        let mut calibration = OverheadCalibration::new(QUIET).unwrap();
        for cost_us in [17, 90, 17, 80, 3, 3, 17] {
            calibration.on_window(window(100, cost_us)).unwrap();
        }
        assert_eq!(calibration.overhead(), Some(Duration::from_micros(12)));
        // Old windows are forgotten.
        for _ in 0..OverheadCalibration::WINDOWS_MAX {
            calibration.on_window(window(100, 9)).unwrap();
        }
        assert_eq!(calibration.overhead(), Some(Duration::from_micros(4)));
        // The newest half and one more decide.
        for _ in 0..=OverheadCalibration::WINDOWS_MAX / 2 {
            calibration.on_window(window(100, 21)).unwrap();
        }
        assert_eq!(calibration.overhead(), Some(Duration::from_micros(16)));
    }

    #[test]
    fn useless_windows_are_refused() {
        let refused = |window| OverheadCalibration::new(window).unwrap_err();
        assert_eq!(
            refused(Window { work: 0, ..QUIET }),
            CalibrationError::Empty
        );
        assert_eq!(refused(window(1, 9)), CalibrationError::Disturbed);
        let mut calibration = OverheadCalibration::new(QUIET).unwrap();
        assert_eq!(calibration.on_window(QUIET), Err(CalibrationError::NoTurns));
        let empty = [
            Window {
                work: 0,
                ..window(1, 9)
            },
            Window {
                elapsed: Duration::ZERO,
                ..window(1, 9)
            },
        ];
        for window in empty {
            assert_eq!(calibration.on_window(window), Err(CalibrationError::Empty));
        }
    }
}
