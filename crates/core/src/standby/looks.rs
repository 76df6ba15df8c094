//! When CPU time is metered while no program is attached: in short looks, with longer and longer
//! rests between them. To meter costs as well.

use core::time::Duration;

use crate::time::Instant;

/// To begin metering takes the kernel longer than a reading, so it is kept up between bursts.
pub(super) const KEPT: Duration = Duration::from_secs(10);
/// A look ends after so many metered readings in which no CPU was full: half a second.
const LOOK: u32 = 5;
/// The first rest. From the first look to the second a third of the time is metered, and one part
/// in 33 with the longest rest.
pub(super) const REST: Duration = Duration::from_secs(1);
/// Each rest is twice as long as the one before, up to this.
pub(super) const REST_LONGEST: Duration = Duration::from_secs(16);

/// A reading, as far as looks are concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// What the CPUs do would tell more.
    pub(super) is_suspicious: bool,
    /// Whether receiving took the limit of a CPU, and what came may be the cause; `None` if it
    /// was not metered.
    pub(super) is_full: Option<bool>,
    /// Packets of a second that do not slow down by themselves. Those that go on count: whether
    /// others want the CPU meanwhile, a look would tell.
    pub(super) pressing_pps: u64,
}

/// Whether to look now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looks {
    /// When CPU time was last worth metering.
    suspicious: Option<Instant>,
    /// Readings that are left of this look; 0 in a rest.
    left: u32,
    /// When this rest began.
    ended: Instant,
    rest: Duration,
    /// The most that pressed in the last look.
    looked_pps: u64,
}

impl Looks {
    pub(super) const NONE: Self = Self {
        suspicious: None,
        left: 0,
        ended: Instant::ZERO,
        rest: Duration::ZERO,
        looked_pps: 0,
    };

    pub(super) const fn is_due(&self) -> bool {
        self.left > 0
    }

    pub(super) fn on_reading(&mut self, seen: Seen, now: Instant) {
        if !self.is_worth(seen.is_suspicious, now) {
            *self = Self::NONE;
        } else if self.left == 0 {
            self.rest(seen, now);
        } else {
            self.look(seen, now);
        }
    }

    /// Whether CPU time was worth metering a moment ago.
    fn is_worth(&mut self, is_suspicious: bool, now: Instant) -> bool {
        if is_suspicious {
            self.suspicious = Some(now);
        }
        let since = |at| now.saturating_since(at);
        self.suspicious.is_some_and(|at| since(at) < KEPT)
    }

    fn rest(&mut self, seen: Seen, now: Instant) {
        let is_over = now.saturating_since(self.ended) >= self.rest;
        let is_more = seen.pressing_pps > self.looked_pps.saturating_mul(2);
        if !seen.is_suspicious || !(is_over || is_more) {
            return;
        }
        self.rest = match is_more {
            true => REST,
            false => (self.rest * 2).clamp(REST, REST_LONGEST),
        };
        self.looked_pps = seen.pressing_pps;
        self.left = LOOK;
    }

    fn look(&mut self, seen: Seen, now: Instant) {
        self.looked_pps = self.looked_pps.max(seen.pressing_pps);
        match seen.is_full {
            Some(true) => self.left = LOOK,
            Some(false) if seen.is_suspicious => self.left -= 1,
            // Between two bursts there is nothing to see.
            _ => {}
        }
        self.ended = now;
    }
}
