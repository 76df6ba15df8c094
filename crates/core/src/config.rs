//! What the configs of all modules share: the error that names field, value and
//! allowed range, the form in which their rules are written, and [`Fraction`]. Also
//! what is said when a table that a config has sized is full ([`TableFull`]).

use core::fmt;
use core::ops::RangeBounds;
use core::time::Duration;

use crate::time::span_nanos;

/// The shortest [`Duration`] above zero, where the range of most spans begins.
pub(crate) const NANOSECOND: Duration = Duration::from_nanos(1);
/// The smallest [`Fraction`] above nothing, likewise.
pub(crate) const PPM: Fraction = Fraction(1);
/// As many CPUs as Linux can have.
pub(crate) const CPUS_MAX: usize = 8192;

/// A config value that its module cannot work with.
///
/// Durations are given in nanoseconds, fractions in parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The config's field, as it is written in the struct.
    pub field: &'static str,
    /// The value that was given.
    pub given: u64,
    /// What would be accepted, as the end of the sentence "must be …".
    pub allowed: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} = {}: must be {}",
            self.field, self.given, self.allowed
        )
    }
}

impl core::error::Error for ConfigError {}

/// Every place of a table is taken. The config was right: one place has to be given
/// back first, or the table made larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull {
    /// What has no place, in the plural.
    pub entries: &'static str,
    /// How many there are places for.
    pub places: usize,
}

impl fmt::Display for TableFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entries, places } = self;
        write!(f, "no place for more {entries}: all {places} are taken")
    }
}

impl core::error::Error for TableFull {}

/// A config's field and the value it was given, to be held to a rule.
///
/// A rule reads as its error does: `Field("quota", quota).must_be_in(1.., "at least 1")`.
/// `const` functions cannot use it and write the error out.
pub(crate) struct Field<T>(pub(crate) &'static str, pub(crate) T);

impl<T: Given> Field<T> {
    /// Refuses what is outside of `range`, which `allowed` puts into words.
    pub(crate) fn must_be_in(
        self,
        range: impl RangeBounds<T>,
        allowed: &'static str,
    ) -> Result<(), ConfigError> {
        let holds = range.contains(&self.1);
        self.must_be(holds, allowed)
    }

    /// Refuses the value unless the rule `holds`, which `allowed` puts into words.
    pub(crate) fn must_be(self, holds: bool, allowed: &'static str) -> Result<(), ConfigError> {
        if holds {
            Ok(())
        } else {
            Err(self.refused(allowed))
        }
    }

    /// The error about it.
    pub(crate) fn refused(self, allowed: &'static str) -> ConfigError {
        ConfigError {
            field: self.0,
            given: self.1.given(),
            allowed,
        }
    }
}

/// What a field can hold.
pub(crate) trait Given: Copy + PartialOrd {
    /// The value as [`ConfigError::given`] has it.
    fn given(self) -> u64;
}

impl Given for u32 {
    fn given(self) -> u64 {
        self.into()
    }
}

impl Given for u64 {
    fn given(self) -> u64 {
        self
    }
}

impl Given for usize {
    fn given(self) -> u64 {
        self as u64
    }
}

impl Given for Duration {
    fn given(self) -> u64 {
        span_nanos(self)
    }
}

impl Given for Fraction {
    fn given(self) -> u64 {
        self.as_ppm().into()
    }
}

/// A part of a whole, from nothing to all of it, in parts per million.
///
/// An integer, so that shares add up exactly and the crate needs no floating
/// point in a hot path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fraction(u32);

impl Fraction {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The whole.
    pub const WHOLE: Self = Self(1_000_000);

    /// `parts` of a million; more than a million is the whole.
    #[must_use]
    pub const fn from_ppm(parts: u32) -> Self {
        Self(if parts > Self::WHOLE.0 {
            Self::WHOLE.0
        } else {
            parts
        })
    }

    /// `percent` of a hundred; more than a hundred is the whole.
    #[must_use]
    pub const fn from_percent(percent: u32) -> Self {
        Self::from_ppm(percent.saturating_mul(10_000))
    }

    /// Parts per million.
    #[must_use]
    pub const fn as_ppm(self) -> u32 {
        self.0
    }

    /// Percent, rounded down.
    #[must_use]
    pub const fn as_percent(self) -> u32 {
        self.0 / 10_000
    }

    /// What is left of the whole.
    #[must_use]
    pub const fn complement(self) -> Self {
        Self(Self::WHOLE.0 - self.0)
    }

    /// This fraction of `amount`, rounded down.
    #[must_use]
    pub const fn of(self, amount: u64) -> u64 {
        // Split so that no product overflows.
        let whole = Self::WHOLE.0 as u64;
        (amount / whole) * self.0 as u64 + (amount % whole) * self.0 as u64 / whole
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use super::*;

    #[test]
    fn a_fraction_of_anything_never_overflows() {
        assert_eq!(Fraction::WHOLE.of(u64::MAX), u64::MAX);
        assert_eq!(Fraction::from_percent(75).of(32), 24);
        assert_eq!(Fraction::from_percent(250), Fraction::WHOLE);
        assert_eq!(Fraction::from_percent(30).as_percent(), 30);
        assert_eq!(Fraction::from_ppm(19_999).as_percent(), 1);
        assert_eq!(Fraction::from_ppm(1).of(999_999), 0);
        assert_eq!(
            Fraction::from_percent(30).complement(),
            Fraction::from_percent(70)
        );
    }

    #[test]
    fn an_error_reads_as_a_sentence() {
        let error = ConfigError {
            field: "quota",
            given: 0,
            allowed: "at least 1",
        };
        assert_eq!(error.to_string(), "quota = 0: must be at least 1");
    }

    #[test]
    fn a_full_table_is_no_wrong_setting() {
        let full = TableFull {
            entries: "sources",
            places: 64,
        };
        let text = "no place for more sources: all 64 are taken";
        assert_eq!(full.to_string(), text);
    }

    #[test]
    fn a_rule_refuses_what_is_outside_in_the_unit_of_its_kind() {
        let given = |rule: Result<(), ConfigError>| rule.map_err(|error| error.given);
        assert_eq!(given(Field("", 0_u32).must_be_in(1.., "")), Err(0));
        assert_eq!(given(Field("", 7_usize).must_be_in(..7, "")), Err(7));
        assert_eq!(given(Field("", 7_u64).must_be(false, "")), Err(7));
        assert_eq!(given(Field("", 7_u64).must_be(true, "")), Ok(()));
        let whole = Field("", Fraction::WHOLE).must_be_in(PPM..Fraction::WHOLE, "");
        assert_eq!(given(whole), Err(1_000_000));
        let long = Field("", Duration::MAX).must_be_in(NANOSECOND..=Duration::from_secs(1), "");
        assert_eq!(given(long), Err(u64::MAX));
        assert_eq!(
            given(Field("", NANOSECOND).must_be_in(NANOSECOND.., "")),
            Ok(())
        );
    }
}
