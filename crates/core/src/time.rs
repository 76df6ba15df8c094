//! Points in time and spans, in nanoseconds of whatever clock the caller reads.
//!
//! The crate never reads a clock, so time is an argument everywhere. A span is
//! [`core::time::Duration`]; a point is [`Instant`], which has no epoch of its
//! own: guard and stack pass the monotonic clock, the simulated host its
//! virtual one, tests move it by hand.

use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

pub(crate) const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// What is counted for a while, such as packets of a share, is counted in ticks of this many
/// nanoseconds, as a power of two: a BPF program finds the tick by shifting its clock. Longer
/// ticks let longer bursts through, in shorter ones small shares round to nothing.
pub const TICK_SHIFT: u32 = 22;
/// A tick: about 4.2 ms.
pub const TICK: Duration = Duration::from_nanos(1 << TICK_SHIFT);

/// A point in time: nanoseconds since an origin that the caller chooses.
///
/// 64 bits hold 584 years; arithmetic saturates instead of wrapping, so that
/// "never" can be written as [`Instant::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// Later than everything: "never".
    pub const MAX: Self = Self(u64::MAX);

    /// The point `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A span in whole nanoseconds; spans beyond 584 years become 584 years.
pub(crate) fn span_nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span_nanos(span)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span_nanos(span)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let second = Duration::from_secs(1);
        assert_eq!(Instant::MAX + second, Instant::MAX);
        assert_eq!(Instant::ZERO - second, Instant::ZERO);
        assert_eq!(Instant::ZERO.saturating_since(Instant::MAX), Duration::ZERO);
        assert_eq!(
            (Instant::ZERO + second).saturating_since(Instant::ZERO),
            second
        );
    }
}
