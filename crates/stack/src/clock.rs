//! The monotonic clock, as core's decisions want it.

use std::sync::OnceLock;
use std::time;

use plimsoll_core::time::Instant;

static ORIGIN: OnceLock<time::Instant> = OnceLock::new();

/// Nanoseconds since the first call in this process.
pub(crate) fn now() -> Instant {
    let origin = *ORIGIN.get_or_init(time::Instant::now);
    Instant::from_nanos(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
}
