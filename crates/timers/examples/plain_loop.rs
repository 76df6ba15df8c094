//! A loop that polls: one packet every 40 µs beside work of another kind.

use std::hint::black_box;

use plimsoll_timers::{SoftTimerConfig, Timers};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut left = 100;
    let mut timers = Timers::new(SoftTimerConfig::default())?;
    // At least 40 µs from now.
    timers.schedule_soft_event(40, "packet")?;
    while left > 0 {
        work();
        // A trigger state.
        if let Some(now) = timers.check() {
            while let Some(event) = timers.poll_event(now) {
                send(event.payload);
                left -= 1;
                timers.reschedule(now, 40, event.payload)?;
            }
        }
    }
    Ok(())
}

/// The loop's own work.
fn work() {
    black_box((0..100_u64).fold(1, |work, turn| black_box(work ^ turn)));
}

/// Where the packet would leave.
fn send(packet: &str) {
    black_box(packet);
}
