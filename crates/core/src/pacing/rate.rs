//! Rates, as configs and reports give them and as the pacer counts with them.

use core::time::Duration;

use crate::config::ConfigError;
use crate::time::NANOS_PER_SECOND;

/// A rate in bits per second, from one byte per second to one terabit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// One byte per second.
    pub const MIN: Self = Self(8);
    /// One terabit per second.
    pub const MAX: Self = Self(1_000_000_000_000);

    /// A rate as a config gives it.
    ///
    /// # Errors
    ///
    /// Outside [`Self::MIN`] to [`Self::MAX`].
    pub const fn from_bits_per_second(bits_per_second: u64) -> Result<Self, ConfigError> {
        if bits_per_second < Self::MIN.0 || bits_per_second > Self::MAX.0 {
            return Err(ConfigError {
                field: "bits_per_second",
                given: bits_per_second,
                allowed: "at least 8 and at most 1000000000000",
            });
        }
        Ok(Self(bits_per_second))
    }

    /// The rate nearest to `bits_per_second` that can be kept.
    #[must_use]
    pub fn clamped(bits_per_second: u64) -> Self {
        Self(bits_per_second).clamp(Self::MIN, Self::MAX)
    }

    /// The rate of `bytes` every `interval`, rounded down; the highest rate if
    /// the interval is nothing.
    #[must_use]
    pub fn from_interval(bytes: u64, interval: Duration) -> Self {
        let bit_nanos = u128::from(bytes) * 8 * u128::from(NANOS_PER_SECOND);
        let bits_per_second = bit_nanos
            .checked_div(interval.as_nanos())
            .unwrap_or(Self::MAX.0.into());
        Self::clamped(u64::try_from(bits_per_second).unwrap_or(u64::MAX))
    }

    /// Bits per second.
    #[must_use]
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// The time that `bytes` take, rounded up to the nanosecond.
    #[must_use]
    pub fn interval(self, bytes: u32) -> Duration {
        let bit_nanos = u128::from(bytes) * 8 * u128::from(NANOS_PER_SECOND);
        // At the lowest rate a second per byte: four billion seconds fit.
        Duration::from_nanos(bit_nanos.div_ceil(self.0.into()) as u64)
    }

    pub(super) fn pace(self) -> Pace {
        let fine = (u128::from(8 * NANOS_PER_SECOND) << Fine::PART_BITS).div_ceil(self.0.into());
        // At the lowest rate a billion ns per byte, which leaves two bits free.
        Pace(fine as u64)
    }
}

/// The inverse of a rate: time per byte in 2⁻³² ns, rounded up, so that a paced
/// flow is never faster than its rate and at most one part in 30 million
/// slower (at a terabit per second; less the slower the rate).
///
/// Turns the division by a rate in each decision into a multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace(u64);

impl Pace {
    /// The time that `bytes` take.
    pub(super) fn cost(self, bytes: u32) -> Fine {
        let fine = u128::from(self.0) * u128::from(bytes);
        Fine {
            whole: (fine >> Fine::PART_BITS) as u64,
            parts: fine as u32,
        }
    }
}

/// Time in nanoseconds and 2⁻³² parts of one: what is below a nanosecond for one
/// packet adds up in a long train.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fine {
    pub(super) whole: u64,
    pub(super) parts: u32,
}

impl Fine {
    const PART_BITS: u32 = u32::BITS;

    pub(super) fn saturating_add(self, other: Self) -> Self {
        let (parts, carry) = self.parts.overflowing_add(other.parts);
        Self {
            whole: self
                .whole
                .saturating_add(other.whole)
                .saturating_add(carry.into()),
            parts,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_size_packet_takes_what_the_line_takes() {
        let gigabit = Rate::from_bits_per_second(1_000_000_000).unwrap();
        assert_eq!(gigabit.interval(1500), Duration::from_micros(12));
        let hundred = Rate::from_bits_per_second(100_000_000).unwrap();
        assert_eq!(hundred.interval(1500), Duration::from_micros(120));
        assert_eq!(
            Rate::from_interval(1500, Duration::from_micros(12)),
            gigabit
        );
    }

    #[test]
    fn the_extremes_are_rates_and_what_is_beyond_is_refused() {
        assert_eq!(Rate::MIN.interval(1), Duration::from_secs(1));
        assert_eq!(
            Rate::MIN.interval(u32::MAX),
            Duration::from_secs(u32::MAX.into())
        );
        assert_eq!(Rate::MAX.interval(125), Duration::from_nanos(1));
        assert!(Rate::from_bits_per_second(7).is_err());
        assert!(Rate::from_bits_per_second(Rate::MAX.0 + 1).is_err());
        assert_eq!(Rate::from_interval(1, Duration::ZERO), Rate::MAX);
        assert_eq!(Rate::from_interval(1, Duration::MAX), Rate::MIN);
    }

    proptest! {
        #[test]
        fn a_pace_is_never_faster_and_hardly_slower_than_its_rate(
            rate in Rate::MIN.0..=Rate::MAX.0,
            bytes in 1..65_536_u32,
        ) {
            let fine = Rate(rate).pace().cost(bytes);
            let paced = (u128::from(fine.whole) << 32) + u128::from(fine.parts);
            // rate × paced against bits × seconds, both in 2⁻³² ns.
            let exact = (u128::from(bytes) * 8 * u128::from(NANOS_PER_SECOND)) << 32;
            let given = paced * u128::from(rate);
            prop_assert!(given >= exact);
            prop_assert!(given - exact <= exact / 30_000_000);
        }
    }
}
