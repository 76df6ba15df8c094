//! Interrupt holdoff and receive-buffer credit, adapted to the load.
//!
//! Intuition: a device that waits before it interrupts lets several packets
//! share one interrupt, and what exceeds its receive buffers meanwhile is
//! dropped by the hardware at no cost to the host. So two numbers control what a
//! host has to do: the holdoff sets how much of the CPU the handler takes, the
//! number of buffers how many packets it may bring (Macpherson & Heiser 2004,
//! UNSW-CSE-TR-0412, sections 4 to 6).
//!
//! | part | decides | ids |
//! | --- | --- | --- |
//! | [`LoadTarget`] | the holdoff after each turn of the handler | MH-07, MH-08, MH-10, MH-13 to MH-15, MH-26, MH-27, MH-29 |
//! | [`OverheadCalibration`] | what a turn costs beyond the two time samples | MH-11, MH-12 |
//! | [`BufferCredit`] | how many buffers the device may have | MH-09, MH-16 to MH-21 |
//! | [`BufferLedger`] | when buffers go back to the device | MH-22 to MH-24 |
//! | [`Model`] | rate, latency and CPU share under overload; settings for a goal | MH-03 to MH-06 |
//!
//! One *turn* is one run of the handler: from its entry, which ends a holdoff,
//! to its return, which starts the next.
//!
//! Limits: holdoff bounds what the *handler* takes. If what it hands on costs
//! more than the rest of the CPU, only the credit helps, and that reacts to
//! drops, so some work is lost before it does.
//!
//! When it loses: at light load any holdoff is added latency (the target load
//! decides how much); a bursty load makes one long turn be followed by one long
//! holdoff, since the next turn is assumed to be like the last (MH-14). With a
//! responsive sender the drops it relies on are the sender's signal, too.
//!
//! Departures, each explained where it is made: clamping and error-free
//! quantisation of the holdoff, a calibrated overhead instead of 12 µs,
//! proportional decrease of the credit, tolerated loss with a bounded memory,
//! and an idle CPU as evidence against overload. The values of LOAD, BACKOFF,
//! buffer step and limits are not published; the defaults here are ours.

mod credit;
mod ledger;
mod load_target;
mod model;
mod overhead;

pub use credit::{BufferCredit, CreditConfig, TurnDrops};
pub use ledger::BufferLedger;
pub use load_target::{HoldoffConfig, HoldoffRange, LoadTarget, Turn};
pub use model::{Costs, Infeasible, Limits, Model, Setting};
pub use overhead::{CalibrationError, OverheadCalibration, Window};

use core::time::Duration;

/// No span that a holdoff is computed from is longer; keeps every product of a
/// span and parts per million within 63 bits.
const SPAN_MAX: Duration = Duration::from_secs(1000);

/// Whole nanoseconds of a span, at most [`SPAN_MAX`].
fn capped_nanos(span: Duration) -> i64 {
    i64::try_from(span.min(SPAN_MAX).as_nanos()).unwrap_or(i64::MAX)
}
