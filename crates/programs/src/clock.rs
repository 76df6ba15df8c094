//! The clocks of this machine, in nanoseconds.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Since 1970.
pub(crate) fn utc_ns() -> u64 {
    nanos(ClockId::CLOCK_REALTIME)
}

/// Since 1970, without leap seconds.
pub(crate) fn tai_ns() -> u64 {
    nanos(ClockId::CLOCK_TAI)
}

fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("these clocks are always there");
    Duration::from(time).as_nanos() as u64
}
