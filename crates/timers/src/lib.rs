//! Soft timers for any program: events at microsecond granularity without an
//! interrupt, a system call or a context switch each.
//!
//! A running program often passes moments in which a handler could be called
//! for the price of a function call: a turn of its loop, the return from a
//! call, the end of a batch. In these *trigger states* it asks [`Timers::check`]
//! whether an event is due: one reading of the processor's counter and one
//! comparison. Only a thread that blocks needs a timer of the kernel, the
//! *backup*.
//!
//! Source: Aron and Druschel, "Soft Timers", ACM TOCS 18(3), 2000. Which events
//! fire is decided by [`plimsoll_core::soft_timer`]; this crate gives it a clock,
//! a backup and a place in four kinds of program:
//!
//! | program | takes |
//! | --- | --- |
//! | a loop that polls | [`Timers::check`] in each turn |
//! | a loop around `epoll` or `poll` | the same, [`IdleRule`] and [`TimerFd`] |
//! | threads that park | the same, [`IdleRule`] and [`AlarmThread`] |
//! | a tokio runtime | `tokio::SoftTime` (feature `tokio`) |
//!
//! ```
//! use plimsoll_timers::{SoftTimerConfig, Timers};
//!
//! let mut timers = Timers::new(SoftTimerConfig::default())?;
//! timers.schedule_soft_event(40, "send the next packet")?;
//! let handled = loop {
//!     // ... a turn of the program's own work ...
//!     if let Some(now) = timers.check() {
//!         if let Some(event) = timers.poll_event(now) {
//!             break event.payload;
//!         }
//!     }
//! };
//! assert_eq!(handled, "send the next packet");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **How exact, and how dear.** In a program that works, an event costs a check (some
//! nanoseconds) and is late by the time between two checks. A blocked thread is late by the
//! time that the kernel takes to wake it. A tokio runtime that never parks and in which nobody
//! checks ends sleeps at their deadline, a millisecond late by default. The figures are in
//! `docs/measurements.md` ("An event in an idle program").
//!
//! **Bounds.** An event fires later than T ticks after it was scheduled, always.
//! It fires in the first check after that: less than T + X + 1 ticks after it
//! was scheduled if the thread checks at least every X ticks while it runs, and
//! blocks by the [`IdleRule`]. The time for which the scheduler runs somebody
//! else comes on top, and with [`Until::Deadline`] the time in which the kernel
//! wakes a thread.
//!
//! **Threads.** [`Timers`] belong to one thread, and a check takes no lock. They
//! may move to another thread as a whole. A program with several threads has
//! one each.
//!
//! **No root** is needed, and no capability.

#![forbid(unsafe_code)]

mod backup;
mod clock;
// Only tokio shares events; loom checks how.
#[cfg(any(feature = "tokio", all(loom, test)))]
mod earliest;
mod facility;
mod pacer;
// tokio has no hooks under loom.
#[cfg(all(feature = "tokio", not(loom)))]
pub mod tokio;

pub use backup::{Alarm, AlarmThread, Backup, IdleRule, TimerFd, Until};
pub use clock::{Clock, CycleClock, MovedClock};
pub use facility::Timers;

/// Paced sending: the rates and flows of [`plimsoll_core::pacing`], with a clock.
pub mod pacing {
    pub use plimsoll_core::pacing::{
        CatchUp, FlowError, FlowId, FlowRates, PacerConfig, Rate, Train,
    };

    pub use crate::pacer::Pacer;
}

pub use plimsoll_core::soft_timer::{
    EventId, Facility, FiredEvent, IdleAction, SoftTimerConfig, TimersFull,
};
pub use plimsoll_core::time::Instant;
