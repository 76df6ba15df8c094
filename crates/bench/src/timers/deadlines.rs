//! What deadlines cost (section 5.9): the server of [`super::slowdown`] with a soft event
//! every 20 µs, and a timer of the kernel that fires those which no trigger state fired
//! in time. Compared with the same events without deadlines.

use std::time::Duration;

use plimsoll_testbed::periodic::{By, Work};

use super::Plan;
use super::slices::{self, Kind, Slowdown};
use crate::Error;

const WITHOUT: Kind = Kind::new("no-deadline", By::Soft, 20, Work::Empty);

const fn within(name: &'static str, slack_us: u64) -> Kind {
    let slack = Duration::from_micros(slack_us);
    Kind::new(name, By::SoftWithin { slack }, 20, Work::Empty)
}

const KINDS: [Kind; 6] = [
    // What equal slices differ by.
    WITHOUT,
    within("deadline-1000", 1000),
    within("deadline-100", 100),
    within("deadline-50", 50),
    within("deadline-20", 20),
    within("deadline-10", 10),
];

pub(super) fn measure(plan: &Plan, progress: &mut impl FnMut(&str)) -> Result<Slowdown, Error> {
    slices::measure(plan, &WITHOUT, &KINDS, |run| {
        progress(&format!("run {run}, deadlines"));
    })
}
