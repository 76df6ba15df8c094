//! A CPU's own pauses are seen on a real one.

use std::time::Duration;

use plimsoll_testbed::Pauses;

use crate::common::create;

#[test]
fn what_was_looked_at_is_what_was_asked_for() {
    let testbed = create();
    let span = Duration::from_millis(500);
    let pauses = Pauses::of(&testbed, span).unwrap();
    assert_eq!(pauses.observed, span);
    // Whatever the machine does: there are the timer's ticks, and time to look.
    assert!(!pauses.lengths.is_empty());
    assert!(pauses.lost_part(Duration::ZERO) < 1.0, "{pauses:?}");
    let (small, large) = (Duration::from_micros(50), Duration::from_millis(1));
    assert!(pauses.lost_part(small) >= pauses.lost_part(large));
}
