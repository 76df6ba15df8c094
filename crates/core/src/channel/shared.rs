//! What the two halves of a channel and its monitors share: the state flags and
//! the counters. Everything that two threads touch without owning it is here,
//! and runs under loom.
//!
//! The wake-up handshake. The consumer sets `WANTED` and *then* looks at the
//! ring once more; the producer publishes its items and *then* takes `WANTED`.
//! Both are read-modify-writes of one byte, so one comes first: either the
//! producer finds the flag, or the consumer's write reads from the producer's
//! and thereby sees the items. That is why no sequentially consistent fence is
//! needed, and why a plain load in the producer would not do.

use super::outcome::{Counts, Discard};
use crate::sync::{AtomicU8, AtomicU64, Ordering, OwnLine};

/// The receiver sleeps and wants to be interrupted.
const WANTED: u8 = 1;
/// The producer is gone: what is queued is the last.
const PRODUCER_GONE: u8 = 2;
/// The consumer is gone: nothing more is delivered.
const CONSUMER_GONE: u8 = 4;

/// A counter that one thread writes and any thread may read.
#[derive(Debug, Default)]
pub(super) struct Tally(AtomicU64);

impl Tally {
    /// Only ever called by the one thread that owns this counter; therefore no
    /// read-modify-write.
    pub(super) fn add(&self, amount: u64) {
        let count = self.0.load(Ordering::Relaxed);
        self.0.store(count + amount, Ordering::Release);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Written by the producer only.
#[derive(Debug, Default)]
pub(super) struct ProducerTallies {
    pub(super) offered: Tally,
    full: Tally,
    no_buffer: Tally,
    closed: Tally,
}

/// Written by the consumer only.
#[derive(Debug, Default)]
pub(super) struct ConsumerTallies {
    pub(super) delivered: Tally,
    pub(super) late: Tally,
    /// Items that were queued when the consumer went.
    pub(super) drained: Tally,
    /// Buffers free again, whatever became of their items.
    pub(super) returned: Tally,
}

#[derive(Debug)]
pub(super) struct Shared {
    flags: OwnLine<AtomicU8>,
    /// Items that can be offered and not have ended.
    most: u64,
    pub(super) by_producer: OwnLine<ProducerTallies>,
    pub(super) by_consumer: OwnLine<ConsumerTallies>,
}

impl Shared {
    /// Of a channel that queues up to its high watermark. One more may be on its way in,
    /// and one on its way out.
    pub(super) fn new(high_watermark: u32) -> Self {
        Self {
            flags: OwnLine::default(),
            most: u64::from(high_watermark) + 2,
            by_producer: OwnLine::default(),
            by_consumer: OwnLine::default(),
        }
    }

    /// Producer: takes the receiver's wish for an interrupt, if there is one.
    /// To be called after an item was published.
    pub(super) fn take_request(&self) -> bool {
        self.flags.0.fetch_and(!WANTED, Ordering::AcqRel) & WANTED != 0
    }

    /// Consumer: wishes for an interrupt. To be called before the last look at
    /// the ring. Whether the producer was gone already.
    pub(super) fn request(&self) -> bool {
        self.flags.0.fetch_or(WANTED, Ordering::AcqRel) & PRODUCER_GONE != 0
    }

    /// Consumer: needs no interrupt after all.
    pub(super) fn withdraw_request(&self) {
        self.flags.0.fetch_and(!WANTED, Ordering::AcqRel);
    }

    /// Producer: will not push again. Whether the receiver is to be woken.
    pub(super) fn retire_producer(&self) -> bool {
        self.flags.0.fetch_or(PRODUCER_GONE, Ordering::AcqRel);
        self.take_request()
    }

    /// Consumer: will not pop again, except to drain.
    pub(super) fn retire_consumer(&self) {
        self.flags.0.fetch_or(CONSUMER_GONE, Ordering::AcqRel);
    }

    pub(super) fn is_consumer_gone(&self) -> bool {
        self.flags.0.load(Ordering::Acquire) & CONSUMER_GONE != 0
    }

    /// Either side is gone: nothing more is to be queued.
    pub(super) fn is_closed(&self) -> bool {
        self.flags.0.load(Ordering::Acquire) & (PRODUCER_GONE | CONSUMER_GONE) != 0
    }

    pub(super) fn count_discard(&self, cause: Discard) {
        let tallies = &self.by_producer.0;
        match cause {
            Discard::Full => tallies.full.add(1),
            Discard::NoBuffer => tallies.no_buffer.add(1),
            Discard::Closed => tallies.closed.add(1),
        }
    }

    /// The counts as any thread sees them.
    ///
    /// The consumer's counters and the discards are read before the offered
    /// ones: an item is counted as offered before it can get any further, so the
    /// queue never appears to hold less than nothing. An item on its way in
    /// counts as queued. A thread that stood still between the two readings would
    /// find in the queue all that passed meanwhile; what cannot have been there
    /// counts as not offered yet.
    pub(super) fn counts(&self) -> Counts {
        let (produced, consumed) = (&self.by_producer.0, &self.by_consumer.0);
        let gone = self.is_consumer_gone();
        let delivered = consumed.delivered.get();
        let late = consumed.late.get();
        let drained = consumed.drained.get();
        let full = produced.full.get();
        let no_buffer = produced.no_buffer.get();
        let mut closed = drained + produced.closed.get();
        let offered = produced.offered.get();
        let ended = delivered + late + full + no_buffer + closed;
        assert!(ended <= offered, "{ended} items ended of {offered} offered");
        let mut queued = (offered - ended).min(self.most);
        if gone {
            // Nobody will take them: also the one that a push in flight left
            // behind after the consumer had drained the ring.
            closed += queued;
            queued = 0;
        }
        Counts::new(queued, [delivered, full, no_buffer, late, closed])
    }

    /// Begins a new life; both halves are in the caller's hands. The counters go
    /// on, or a monitor might see half of them reset.
    pub(super) fn reopen(&self) {
        self.flags.0.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::outcome::Outcome;
    use super::*;

    /// As a monitor sees it that read what was taken, stood still while 1,000 items passed,
    /// and then read what was offered.
    #[test]
    fn no_more_is_queued_than_the_queue_holds() {
        let shared = Shared::new(60);
        shared.by_consumer.0.delivered.add(5);
        shared.by_producer.0.offered.add(1005);
        let counts = shared.counts();
        assert_eq!(counts.queued, 62);
        assert_eq!(counts[Outcome::Delivered], 5);
        assert_eq!(counts.offered(), 67);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::super::outcome::Outcome;
    use super::*;

    /// A ring reduced to what matters here: `rtrb` publishes its tail with
    /// Release and reads it with Acquire.
    struct Ring {
        tail: AtomicUsize,
        shared: Shared,
    }

    impl Ring {
        fn new() -> Self {
            Self {
                tail: AtomicUsize::new(0),
                shared: Shared::new(3),
            }
        }

        fn publish(&self, tail: usize) {
            self.shared.by_producer.0.offered.add(1);
            self.tail.store(tail, Ordering::Release);
        }

        /// A burst of one packet and one of two.
        fn publish_bursts(&self) -> bool {
            self.publish(1);
            let first = self.shared.take_request();
            self.publish(2);
            self.publish(3);
            let second = self.shared.take_request();
            first || second
        }
    }

    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let ring = Arc::new(Ring::new());
            let producer = {
                let ring = ring.clone();
                thread::spawn(move || ring.publish_bursts())
            };
            // The receiver: finds nothing, wishes, looks again, sleeps.
            ring.shared.request();
            let seen = ring.tail.load(Ordering::Acquire);
            let woken = producer.join().unwrap();
            assert!(woken || seen == 3, "asleep on a packet it has not seen");
        });
    }

    #[test]
    fn the_last_word_of_a_leaving_producer_arrives() {
        loom::model(|| {
            let ring = Arc::new(Ring::new());
            let producer = {
                let ring = ring.clone();
                thread::spawn(move || {
                    ring.publish(1);
                    ring.shared.retire_producer()
                })
            };
            let gone = ring.shared.request();
            let seen = ring.tail.load(Ordering::Acquire);
            assert!(!gone || seen == 1, "gone, and its last packet unseen");
            let woken = producer.join().unwrap();
            assert!(woken || gone || seen == 1);
        });
    }

    #[test]
    fn a_producer_that_leaves_lets_nobody_sleep() {
        loom::model(|| {
            let shared = Arc::new(Shared::new(2));
            let producer = {
                let shared = shared.clone();
                thread::spawn(move || shared.retire_producer())
            };
            let gone = shared.request();
            let woken = producer.join().unwrap();
            assert!(woken || gone, "asleep for ever");
        });
    }

    /// Both sides in one thread: what matters is what a third one sees of it.
    /// The monitor is the spawned thread because loom tries stale values for
    /// loads that come after the stores, not stores before loads that are past.
    #[test]
    fn a_monitor_never_sees_more_ended_than_offered() {
        loom::model(|| {
            let shared = Arc::new(Shared::new(2));
            let monitor = {
                let shared = shared.clone();
                // Asserts by itself.
                thread::spawn(move || assert!(shared.counts().offered() <= 2))
            };
            shared.by_producer.0.offered.add(1);
            shared.by_consumer.0.delivered.add(1);
            shared.by_producer.0.offered.add(1);
            shared.count_discard(Discard::Full);
            monitor.join().unwrap();
            let counts = shared.counts();
            assert_eq!(counts.offered(), 2);
            assert_eq!(counts[Outcome::Delivered], 1);
            assert_eq!(counts[Outcome::Full], 1);
        });
    }
}
