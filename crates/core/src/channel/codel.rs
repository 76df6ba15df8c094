//! `CoDel`: discards at the head of a queue whose delay stays above a target.
//!
//! Intuition (RFC 8289, sections 3 and 4): a queue that empties within every
//! interval is a good queue, however long it was for a moment. If the sojourn
//! time has been above the target for a whole interval, items are discarded at
//! a rate that grows with the square root of their number until it is not.
//!
//! Departure: the RFC's `deque` loop is turned inside out, one question per
//! item, so that the caller owns the queue. The decisions are the same ones; a
//! test compares them with the RFC's loop on the same queue.

use core::time::Duration;

use crate::config::{ConfigError, Field, NANOSECOND};
use crate::time::{Instant, span_nanos};

const INTERVAL_MAX: Duration = Duration::from_secs(1000);
/// A discarding phase that ended less than this many intervals ago is resumed
/// at its old rate (RFC 8289 section 5.4).
const RESUME_INTERVALS: u32 = 16;

/// The sojourn time a channel aims for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayTarget {
    /// Acceptable standing delay. RFC 8289 section 4.3: 5 to 10 % of the interval.
    pub target: Duration,
    /// How long the delay may stay above the target before the first discard:
    /// about the senders' worst round-trip time. At most 1000 s.
    pub interval: Duration,
}

impl Default for DelayTarget {
    /// 5 ms within 100 ms, as RFC 8289 section 4.4 recommends for the Internet.
    fn default() -> Self {
        Self {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
        }
    }
}

impl DelayTarget {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        Field("delay_target.interval", self.interval)
            .must_be_in(NANOSECOND..=INTERVAL_MAX, "from 1 ns to 1000 s")?;
        Field("delay_target.target", self.target)
            .must_be_in(NANOSECOND..=self.interval, "from 1 ns to the interval")
    }
}

#[derive(Debug)]
pub(super) struct Codel {
    config: DelayTarget,
    /// When the sojourn time will have been above the target for an interval.
    above_until: Option<Instant>,
    discarding: bool,
    /// In the discarding phase: when the next discard is due.
    next: Instant,
    /// Whether `next` still has to be moved on for the latest discard.
    next_is_stale: bool,
    /// Discards in this phase, and at the start of the last one.
    count: u32,
    count_at_entry: u32,
}

impl Codel {
    pub(super) fn new(config: DelayTarget) -> Self {
        Self {
            config,
            above_until: None,
            discarding: false,
            next: Instant::ZERO,
            next_is_stale: false,
            count: 0,
            count_at_entry: 0,
        }
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(self.config);
    }

    /// The queue is empty, so there is no delay.
    pub(super) fn on_empty(&mut self) {
        self.above_until = None;
        self.leave();
    }

    /// Whether the item just taken from the head, after `sojourn`, is to be
    /// discarded and the next one judged instead. `is_last`: the queue is empty
    /// without it.
    pub(super) fn is_late(&mut self, now: Instant, sojourn: Duration, is_last: bool) -> bool {
        let above = self.has_stayed_above(now, sojourn, is_last);
        if !above {
            self.leave();
            return false;
        }
        if !self.discarding {
            self.enter(now);
            return true;
        }
        if self.next_is_stale {
            self.next += self.gap();
            self.next_is_stale = false;
        }
        if now < self.next {
            return false;
        }
        self.count = self.count.saturating_add(1);
        self.next_is_stale = true;
        true
    }

    fn has_stayed_above(&mut self, now: Instant, sojourn: Duration, is_last: bool) -> bool {
        if sojourn < self.config.target || is_last {
            self.above_until = None;
            return false;
        }
        match self.above_until {
            Some(until) => now >= until,
            None => {
                self.above_until = Some(now + self.config.interval);
                false
            }
        }
    }

    fn enter(&mut self, now: Instant) {
        let recent = now.saturating_since(self.next) < self.config.interval * RESUME_INTERVALS;
        let grown = self.count.saturating_sub(self.count_at_entry);
        self.count = if recent && grown > 1 { grown } else { 1 };
        self.count_at_entry = self.count;
        self.discarding = true;
        self.next = now + self.gap();
    }

    fn leave(&mut self) {
        self.discarding = false;
        self.next_is_stale = false;
    }

    /// interval / sqrt(count), the control law.
    fn gap(&self) -> Duration {
        // Fixed point with 16 fractional bits; 1000 s in ns take 40.
        let root = (u64::from(self.count) << 32).isqrt();
        Duration::from_nanos((span_nanos(self.config.interval) << 16) / root)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::VecDeque;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_burst_that_drains_within_the_interval_loses_nothing() {
        let mut codel = Codel::new(DelayTarget::default());
        // 90 packets at once, one taken per ms: the last waits 90 ms.
        for k in 0..90 {
            assert!(!codel.is_late(Instant::ZERO + MS * k, MS * k, k == 89));
        }
    }

    #[test]
    fn a_standing_queue_is_thinned_ever_faster() {
        let mut codel = Codel::new(DelayTarget::default());
        let discards: Vec<u32> = (0..1000)
            .filter(|k| codel.is_late(Instant::ZERO + MS * *k, MS * 20, false))
            .collect();
        // First after an interval, then 100, 100/sqrt(2), 100/sqrt(3) ms later.
        assert_eq!(&discards[..4], &[100, 200, 271, 329]);
        assert!(discards.len() > 20);
        // One good sojourn ends it.
        assert!(!codel.is_late(Instant::ZERO + MS * 1000, MS, false));
        assert!(!codel.is_late(Instant::ZERO + MS * 1001, MS * 20, false));
    }

    /// The loop of RFC 8289 section 5, over a queue of arrival times.
    struct Rfc {
        queue: VecDeque<Instant>,
        config: DelayTarget,
        first_above: Option<Instant>,
        drop_next: Instant,
        count: u32,
        last_count: u32,
        dropping: bool,
    }

    impl Rfc {
        fn law(&self, from: Instant) -> Instant {
            let root = (u64::from(self.count) << 32).isqrt();
            from + Duration::from_nanos((span_nanos(self.config.interval) << 16) / root)
        }

        fn head(&mut self, now: Instant) -> (Option<Instant>, bool) {
            let Some(arrived) = self.queue.pop_front() else {
                self.first_above = None;
                return (None, false);
            };
            let below = now.saturating_since(arrived) < self.config.target;
            if below || self.queue.is_empty() {
                self.first_above = None;
                return (Some(arrived), false);
            }
            let until = *self.first_above.get_or_insert(now + self.config.interval);
            (Some(arrived), now >= until)
        }

        fn deque(&mut self, now: Instant) -> Option<Instant> {
            let (mut item, mut ok_to_drop) = self.head(now);
            if self.dropping {
                self.dropping = ok_to_drop;
                while self.dropping && now >= self.drop_next {
                    self.count += 1;
                    (item, ok_to_drop) = self.head(now);
                    self.dropping = ok_to_drop;
                    if ok_to_drop {
                        self.drop_next = self.law(self.drop_next);
                    }
                }
            } else if ok_to_drop {
                (item, _) = self.head(now);
                self.dropping = true;
                let delta = self.count.saturating_sub(self.last_count);
                let recent = now.saturating_since(self.drop_next) < self.config.interval * 16;
                self.count = if delta > 1 && recent { delta } else { 1 };
                self.drop_next = self.law(now);
                self.last_count = self.count;
            }
            item
        }
    }

    proptest! {
        #[test]
        fn decides_as_the_loop_of_the_rfc(steps in prop::collection::vec((0_u64..40, 0_u32..4), 1..400)) {
            let config = DelayTarget { target: MS * 5, interval: MS * 20 };
            let mut rfc = Rfc {
                queue: VecDeque::new(), config, first_above: None, drop_next: Instant::ZERO,
                count: 0, last_count: 0, dropping: false,
            };
            let mut codel = Codel::new(config);
            let mut queue: VecDeque<Instant> = VecDeque::new();
            let mut now = Instant::ZERO;
            for (gap, arrivals) in steps {
                now += MS * u32::try_from(gap).unwrap() / 4;
                for _ in 0..arrivals {
                    queue.push_back(now);
                    rfc.queue.push_back(now);
                }
                let taken = loop {
                    let Some(arrived) = queue.pop_front() else {
                        codel.on_empty();
                        break None;
                    };
                    if !codel.is_late(now, now.saturating_since(arrived), queue.is_empty()) {
                        break Some(arrived);
                    }
                };
                prop_assert_eq!(taken, rfc.deque(now));
                prop_assert_eq!(queue.len(), rfc.queue.len());
            }
        }
    }
}
