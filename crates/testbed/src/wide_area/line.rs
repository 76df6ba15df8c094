//! One direction of a path, as a decision: which frame is dropped, and when each of the
//! others arrives at the end.
//!
//! A bottleneck sends one frame after the other at its rate. Frames that come faster wait
//! in a queue of bounded length, and one that finds it full is dropped. Behind the
//! bottleneck each frame travels for the same time. So a frame's arrival at the end is
//! known when it comes, and frames stay in order.

use std::collections::VecDeque;
use std::time::Duration;

use plimsoll_core::pacing::Rate;
use plimsoll_core::time::Instant;

/// A bottleneck, its queue, and the way behind it.
#[derive(Debug)]
pub(super) struct Line<T> {
    rate: Rate,
    delay: Duration,
    queue_frames: usize,
    /// When the frames that wait, and the one in the bottleneck, will have left it.
    leaving: VecDeque<Instant>,
    /// The bottleneck has sent all that came so far.
    free_at: Instant,
    travelling: VecDeque<Travelling<T>>,
}

/// A frame on its way.
#[derive(Debug)]
pub(super) struct Travelling<T> {
    pub(super) offered: Instant,
    pub(super) due: Instant,
    pub(super) item: T,
}

impl<T> Line<T> {
    /// `queue_frames` wait besides the one that is being sent.
    pub(super) fn new(rate: Rate, delay: Duration, queue_frames: usize) -> Self {
        Self {
            rate,
            delay,
            queue_frames,
            leaving: VecDeque::new(),
            free_at: Instant::ZERO,
            travelling: VecDeque::new(),
        }
    }

    /// A frame of so many bytes came. False: the queue was full, and it is dropped.
    pub(super) fn offer(&mut self, offered: Instant, bytes: u32, item: T) -> bool {
        while self.leaving.front().is_some_and(|left| *left <= offered) {
            self.leaving.pop_front();
        }
        if self.leaving.len() > self.queue_frames {
            return false;
        }
        self.free_at = self.free_at.max(offered) + self.rate.interval(bytes);
        self.leaving.push_back(self.free_at);
        self.travelling.push_back(Travelling {
            offered,
            due: self.free_at + self.delay,
            item,
        });
        true
    }

    /// When the next frame arrives at the end.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.travelling.front().map(|frame| frame.due)
    }

    /// The next frame that has arrived at the end by now.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Travelling<T>> {
        let due = self.next_due()? <= now;
        due.then(|| self.travelling.pop_front()).flatten()
    }

    /// Frames on their way.
    pub(super) fn travelling(&self) -> usize {
        self.travelling.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    /// 100 Mbit/s: 1250 bytes take 100 µs.
    fn line(delay: Duration, queue_frames: usize) -> Line<u32> {
        Line::new(Rate::clamped(100_000_000), delay, queue_frames)
    }

    #[test]
    fn a_burst_leaves_at_the_rate_of_the_bottleneck_and_travels_for_the_delay() {
        let mut line = line(Duration::from_millis(50), 10);
        for number in 0..3 {
            assert!(line.offer(at(7), 1250, number));
        }
        let due: Vec<u64> = std::iter::from_fn(|| line.poll(Instant::MAX))
            .map(|frame| frame.due.as_nanos())
            .collect();
        let first = 7 + 50 * MS + 100_000;
        assert_eq!(due, [first, first + 100_000, first + 200_000]);
    }

    #[test]
    fn one_frame_is_sent_and_so_many_wait_and_the_next_is_dropped() {
        let mut line = line(Duration::from_millis(1), 2);
        assert!((0..3).all(|number| line.offer(at(0), 1250, number)));
        assert!(!line.offer(at(99_999), 1250, 3));
        assert!(
            line.offer(at(100_000), 1250, 4),
            "one has left the bottleneck"
        );
        assert_eq!(line.travelling(), 4);
    }

    #[test]
    fn nothing_arrives_before_it_is_due() {
        let mut line = line(Duration::from_millis(1), 2);
        line.offer(at(0), 1250, 0);
        let due = line.next_due().unwrap();
        assert!(line.poll(at(due.as_nanos() - 1)).is_none());
        assert!(line.poll(due).is_some() && line.next_due().is_none());
    }

    proptest! {
        /// Conservation, order, rate, delay and the bound of the queue, for any traffic.
        #[test]
        fn each_frame_is_dropped_or_arrives_once_in_order_and_in_time(
            gaps in prop::collection::vec((0_u64..300_000, 60_u32..1515), 1..200),
            queue in 0_usize..20,
        ) {
            let delay = Duration::from_millis(5);
            let mut line = line(delay, queue);
            let (mut now, mut accepted, mut bytes_of) = (0, Vec::new(), Vec::new());
            for (number, (gap, bytes)) in gaps.iter().enumerate() {
                now += gap;
                bytes_of.push(*bytes);
                if line.offer(at(now), *bytes, number as u32) {
                    accepted.push(number as u32);
                }
            }
            let arrived: Vec<_> = std::iter::from_fn(|| line.poll(Instant::MAX)).collect();
            let numbers: Vec<u32> = arrived.iter().map(|frame| frame.item).collect();
            prop_assert_eq!(numbers, accepted);
            let longest = Duration::from_nanos(1514 * 80 * (queue as u64 + 2));
            let mut before = Instant::ZERO;
            for frame in &arrived {
                let sending = Duration::from_nanos(u64::from(bytes_of[frame.item as usize]) * 80);
                prop_assert!(frame.due >= frame.offered + delay + sending);
                prop_assert!(frame.due <= frame.offered + delay + longest);
                prop_assert!(before == Instant::ZERO || frame.due >= before + sending);
                before = frame.due;
            }
        }
    }
}
