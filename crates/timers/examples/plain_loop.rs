//! A loop that polls: one packet every 40 µs beside work of another kind.

use plimsoll_timers::{SoftTimerConfig, Timers};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut timers = Timers::new(SoftTimerConfig::default())?;
    let (mut sent, mut work) = (0, 0_u64);
    timers.schedule_soft_event(40, "packet")?;
    while sent < 100 {
        work = work.wrapping_mul(31).wrapping_add(7); // the loop's own work
        if let Some(now) = timers.check() {
            while let Some(event) = timers.poll_event(now) {
                sent += 1; // send event.payload
                timers.schedule_soft_event(40, event.payload)?;
            }
        }
    }
    println!("sent {sent} packets, did {work} units of work");
    Ok(())
}
