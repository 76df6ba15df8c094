//! How long devices wait between two polls where they cannot be polled from here.
//!
//! The kernel's polling comes before this thread, so it must not find more than the
//! thread works off until the next time: what it finds and nobody takes was received in
//! vain. What waits in the adapter's ring meanwhile overflows there, at no cost. So the
//! holdoff grows by the part that was lost in our ring, and shrinks by the time in which
//! the thread rested.
//!
//! **Limits.** A packet may wait for a holdoff. The steps suppose that the load stays for
//! some tens of milliseconds.

use std::time::Duration;

use plimsoll_core::time::Instant;

/// The holdoff is looked at so often: each time costs some system calls.
const PERIOD: Duration = Duration::from_millis(20);
/// About what an adapter waits by itself before its interrupt.
const SHORTEST: Duration = Duration::from_micros(100);
/// A ring of 256 lasts so long at 12,800 frames per second.
const LONGEST: Duration = Duration::from_millis(20);
/// Resting for more than this part of a period, the thread could do more.
const SPARE: f64 = 0.1;
/// The holdoff grows by at least this factor and at most that.
const GROWTH: (f64, f64) = (1.05, 4.0);
/// It shrinks to no less than this part.
const SHRINKING: f64 = 0.5;

/// The holdoff while overload lasts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    holdoff: Duration,
    looked_at: Instant,
    /// Time without work in this period.
    rested: Duration,
    /// Frames taken in this period.
    taken: u64,
    /// Frames lost in our rings, as last seen.
    lost: u64,
}

/// What becomes of the holdoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It stays.
    Stay,
    /// It is this from now on.
    Set(Duration),
    /// Overload is over.
    End,
}

impl Pace {
    pub(super) const fn new(lost: u64, now: Instant) -> Self {
        Self {
            holdoff: Duration::from_millis(1),
            looked_at: now,
            rested: Duration::ZERO,
            taken: 0,
            lost,
        }
    }

    pub(super) const fn holdoff(&self) -> Duration {
        self.holdoff
    }

    pub(super) fn on_frames(&mut self, count: u64) {
        self.taken += count;
    }

    pub(super) fn on_rest(&mut self, time: Duration) {
        self.rested += time;
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        now.saturating_since(self.looked_at) >= PERIOD
    }

    /// A period is over, in which the frames lost so far became `lost`.
    pub(super) fn step(&mut self, lost: u64, now: Instant) -> Step {
        let period = now.saturating_since(self.looked_at);
        let rested = self.rested.div_duration_f64(period.max(PERIOD));
        let lost_now = lost.saturating_sub(self.lost);
        let before = self.holdoff;
        if lost_now > 0 {
            let factor = 1.0 + lost_now as f64 / self.taken.max(1) as f64;
            let factor = factor.clamp(GROWTH.0, GROWTH.1);
            self.holdoff = before.mul_f64(factor).min(LONGEST);
        } else if rested > SPARE && before == SHORTEST {
            return Step::End;
        } else if rested > SPARE {
            let factor = (1.0 - rested).max(SHRINKING);
            self.holdoff = before.mul_f64(factor).max(SHORTEST);
        }
        *self = Self {
            holdoff: self.holdoff,
            ..Self::new(lost, now)
        };
        match self.holdoff == before {
            true => Step::Stay,
            false => Step::Set(self.holdoff),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING_FRAMES: f64 = 256.0;

    /// A flood that fills the adapter's ring in each holdoff, and a thread that takes so
    /// many frames a second.
    fn settled(takes_pps: f64) -> Duration {
        let mut pace = Pace::new(0, Instant::ZERO);
        let (mut now, mut lost) = (Instant::ZERO, 0);
        // A tenth of a second.
        for _ in 0..5 {
            now += PERIOD;
            let found_pps = RING_FRAMES / pace.holdoff().as_secs_f64();
            let taken_pps = found_pps.min(takes_pps);
            pace.on_frames((taken_pps * PERIOD.as_secs_f64()) as u64);
            pace.on_rest(PERIOD.mul_f64(1.0 - taken_pps / takes_pps));
            lost += ((found_pps - taken_pps) * PERIOD.as_secs_f64()) as u64;
            pace.step(lost, now);
        }
        pace.holdoff()
    }

    #[test]
    fn as_much_is_found_as_the_thread_takes() {
        for takes_pps in [50_000.0, 300_000.0, 1_500_000.0] {
            let found_pps = RING_FRAMES / settled(takes_pps).as_secs_f64();
            let part = found_pps / takes_pps;
            assert!((0.85..=1.15).contains(&part), "{found_pps} of {takes_pps}");
        }
        assert_eq!(settled(1_000.0), LONGEST);
    }

    #[test]
    fn when_nothing_comes_any_more_it_ends() {
        let mut pace = Pace::new(7, Instant::ZERO);
        let mut now = Instant::ZERO;
        let mut steps = 0;
        loop {
            now += PERIOD;
            pace.on_rest(PERIOD);
            steps += 1;
            if pace.step(7, now) == Step::End {
                break;
            }
        }
        assert!(steps < 20, "{steps} periods");
    }
}
