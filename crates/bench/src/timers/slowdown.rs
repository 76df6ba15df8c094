//! What an event every 20 µs costs a saturated server: by soft timers and by timers of
//! the kernel, with a handler that does nothing (ST-59) and one that touches cache lines
//! (ST-61); and the most events that there can be (ST-60).

use plimsoll_report::{Goal, Side};
use plimsoll_testbed::periodic::{By, Work};

use super::Plan;
use super::slices::{self, Kind, NOTHING, Slowdown};
use crate::Error;

/// What is promised, in percent.
const GOAL: f64 = 1.0;

/// Signals every 20 µs leave the server no time at all where one takes as long, as on a virtual
/// machine. What one costs does not depend on how often it comes (section 5.1), so they come
/// every 100 µs.
const SIGNAL_US: u64 = 100;

const KINDS: [Kind; 11] = [
    // What equal slices differ by.
    NOTHING,
    Kind::new("checks-alone", By::CheckAlone, 0, Work::Empty),
    Kind::new("soft-each-state", By::SoftEach, 0, Work::Empty),
    Kind::new("soft-20-empty", By::Soft, 20, Work::Empty),
    Kind::new("timerfd-20-empty", By::TimerFd, 20, Work::Empty),
    Kind::new("signal-100-empty", By::Signal, SIGNAL_US, Work::Empty),
    Kind::new("soft-20-lines", By::Soft, 20, Work::Lines),
    Kind::new("timerfd-20-lines", By::TimerFd, 20, Work::Lines),
    Kind::new("signal-100-lines", By::Signal, SIGNAL_US, Work::Lines),
    Kind::new("soft-10-lines", By::Soft, 10, Work::Lines),
    Kind::new("timerfd-10-lines", By::TimerFd, 10, Work::Lines),
];

pub(super) fn measure(plan: &Plan, progress: &mut impl FnMut(&str)) -> Result<Slowdown, Error> {
    slices::measure(plan, &NOTHING, &KINDS, |run| {
        progress(&format!("run {run}, slowdown"));
    })
}

pub(super) fn goals(measured: &Slowdown) -> Vec<Goal> {
    let goal = |name: &str| {
        let of = |runs| {
            Goal::new(
                format!("slowdown_{name}"),
                format!("a saturated HTTP server with {name}: requests lost"),
                Side::AtMost,
                GOAL,
                "%",
                runs,
            )
        };
        match measured.judged(name, NOTHING.name, GOAL) {
            Ok(runs) => of(runs),
            Err(why) => of(Vec::new()).because(why),
        }
    };
    ["soft-20-empty", "soft-20-lines"].map(goal).into()
}
