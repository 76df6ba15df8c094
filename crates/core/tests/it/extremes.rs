//! Whatever a config may hold, and whatever is read of a host: no decision panics. (`release`
//! does not check sums, so there the same would decide by a number that has run over.)

mod charged;
mod timed;

use std::time::Duration;

use plimsoll_core::config::Fraction;
use plimsoll_core::time::Instant;
use proptest::prelude::*;

/// Both ends of a number, what lies beside them, and anything.
pub(crate) fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(2),
        Just(u64::from(u32::MAX)),
        Just(u64::MAX / 2),
        Just(u64::MAX - 1),
        Just(u64::MAX),
        0..1000_u64,
        any::<u64>(),
    ]
}

pub(crate) fn small() -> impl Strategy<Value = u32> {
    number().prop_map(|number| u32::try_from(number).unwrap_or(u32::MAX - (number % 3) as u32))
}

pub(crate) fn span() -> impl Strategy<Value = Duration> {
    prop_oneof![
        number().prop_map(Duration::from_nanos),
        number().prop_map(Duration::from_micros),
        number().prop_map(Duration::from_secs),
        Just(Duration::MAX),
    ]
}

/// As far as any module's range goes.
pub(crate) fn short_span() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0..4_u64).prop_map(Duration::from_nanos),
        (0..4_000_u64).prop_map(Duration::from_millis),
        Just(Duration::from_secs(60)),
        Just(Duration::from_secs(1000)),
        Just(Duration::from_secs(3600)),
        Just(Duration::from_secs(86_400)),
    ]
}

pub(crate) fn part() -> impl Strategy<Value = Fraction> {
    prop_oneof![
        Just(0_u32),
        Just(1),
        Just(500_000),
        Just(999_999),
        Just(1_000_000),
        0..1_000_000_u32,
    ]
    .prop_map(Fraction::from_ppm)
}

pub(crate) fn instant() -> impl Strategy<Value = Instant> {
    number().prop_map(Instant::from_nanos)
}
