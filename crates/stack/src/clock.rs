//! The monotonic clock, as core's decisions want it.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{self, Duration};

use plimsoll_core::time::Instant;

static ORIGIN: OnceLock<time::Instant> = OnceLock::new();

thread_local! {
    /// How far ahead of others' this thread's clock is. Only whoever drives a stack by hand moves it.
    static AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Nanoseconds since the first call in this process.
pub(crate) fn now() -> Instant {
    let origin = *ORIGIN.get_or_init(time::Instant::now);
    let elapsed = origin.elapsed() + AHEAD.get();
    Instant::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}

/// Moves this thread's clock.
pub(crate) fn set_ahead(time: Duration) {
    AHEAD.set(time);
}
