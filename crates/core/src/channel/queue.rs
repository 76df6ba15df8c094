//! The two halves of a channel: what is admitted, what is taken, and when the
//! receiver is woken.

use alloc::sync::Arc;

use super::codel::{Codel, DelayTarget};
use super::outcome::{Counts, Discard};
use super::shared::Shared;
use crate::config::{ConfigError, Field};
use crate::time::Instant;

/// How a channel is bounded. Lengths are in items (packets).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelConfig {
    /// Places in the ring, at least 1. Memory is taken for all of them.
    pub capacity: u32,
    /// Arrivals are discarded once this many items are queued, at most
    /// `capacity`. Bounds the delay to this many service times.
    pub high_watermark: u32,
    /// Arrivals are accepted again once no more than this many items are queued,
    /// below `high_watermark`. The further below, the longer both the runs of
    /// accepted packets and those of discarded ones.
    pub low_watermark: u32,
    /// Buffers the channel may hold, queued or taken and not yet returned
    /// ([`Consumer::return_buffers`]); at least 1. `None`: not bounded, and
    /// nothing need be returned.
    pub buffers: Option<u32>,
    /// Discards what has queued too long. `None`: only lengths are bounded.
    pub delay_target: Option<DelayTarget>,
}

impl ChannelConfig {
    /// The plain rule of Druschel & Banga (section 3): discard when full, accept
    /// as soon as there is a place.
    #[must_use]
    pub const fn drop_tail(capacity: u32) -> Self {
        Self {
            capacity,
            high_watermark: capacity,
            low_watermark: capacity.saturating_sub(1),
            buffers: None,
            delay_target: None,
        }
    }

    /// Whether a channel can work like this.
    ///
    /// # Errors
    /// Names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Field("capacity", self.capacity).must_be_in(1.., "at least 1")?;
        Field("high_watermark", self.high_watermark)
            .must_be_in(1..=self.capacity, "from 1 to the capacity")?;
        Field("low_watermark", self.low_watermark)
            .must_be_in(..self.high_watermark, "below the high watermark")?;
        if let Some(buffers) = self.buffers {
            Field("buffers", buffers).must_be_in(1.., "at least 1")?;
        }
        self.delay_target.map_or(Ok(()), |target| target.validate())
    }
}

/// What became of a push.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a discarded item's buffer can be used again"]
pub enum Admission<T> {
    /// The item is queued.
    Queued,
    /// Discarded early. The item comes back, so that its buffer can be used again.
    Discarded {
        /// What was pushed.
        item: T,
        /// Why.
        cause: Discard,
    },
}

/// An item taken from a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival<T> {
    /// What was pushed.
    pub item: T,
    /// When it was pushed.
    pub arrived: Instant,
}

/// The answer to [`Consumer::request_interrupt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "sleeping is right only after Pending"]
pub enum InterruptRequest {
    /// The queue is empty; the next burst will ask for an interrupt. Sleep.
    Pending,
    /// Something arrived meanwhile: do not sleep, pop. An interrupt may come
    /// nevertheless, if the producer saw the request before it was withdrawn.
    Ready,
    /// The queue is empty and the producer is gone: nothing will ever come.
    Closed,
}

/// A new channel's two halves.
///
/// # Errors
/// If the config does not [validate](ChannelConfig::validate).
pub fn channel<T>(config: &ChannelConfig) -> Result<(Producer<T>, Consumer<T>), ConfigError> {
    config.validate()?;
    let (ring_in, ring_out) = rtrb::RingBuffer::new(config.capacity as usize);
    let shared = Arc::new(Shared::new(config.high_watermark));
    let producer = Producer {
        ring: ring_in,
        shared: shared.clone(),
        capacity: config.capacity as usize,
        high: config.high_watermark as usize,
        low: config.low_watermark as usize,
        discarding: false,
        room: 0,
        buffers: config.buffers.map(u64::from),
        pushed: 0,
    };
    let consumer = Consumer {
        ring: ring_out,
        shared,
        codel: config.delay_target.map(Codel::new),
        held: 0,
    };
    Ok((producer, consumer))
}

/// The demultiplexer's half.
///
/// Dropping it closes the channel from this side: what is queued can still be
/// taken. Where the receiver may be asleep, use [`close`](Self::close).
#[derive(Debug)]
pub struct Producer<T> {
    ring: rtrb::Producer<Arrival<T>>,
    shared: Arc<Shared>,
    capacity: usize,
    high: usize,
    low: usize,
    /// Between the watermarks, on the way down.
    discarding: bool,
    /// Pushes that fit for certain: the consumer can only make more room, so
    /// the shared cache lines are looked at only when this is used up.
    room: usize,
    buffers: Option<u64>,
    /// Items ever queued.
    pushed: u64,
}

impl<T> Producer<T> {
    /// Offers an item that arrived at `now`. After the last push of a burst ask
    /// [`interrupt_due`](Self::interrupt_due), or the receiver may sleep on.
    #[inline]
    pub fn push(&mut self, item: T, now: Instant) -> Admission<T> {
        self.shared.by_producer.0.offered.add(1);
        if let Some(cause) = self.reason_to_discard() {
            self.shared.count_discard(cause);
            return Admission::Discarded { item, cause };
        }
        let arrival = Arrival { item, arrived: now };
        if let Err(rtrb::PushError::Full(arrival)) = self.ring.push(arrival) {
            unreachable!(
                "no place for an item of {:?} below the watermark of {}",
                arrival.arrived, self.high
            );
        }
        self.pushed += 1;
        Admission::Queued
    }

    /// Whether the receiver must be interrupted now: the queue was empty, it
    /// asked, and something was pushed since. To be asked after every burst of
    /// pushes (a single one is a burst, too), and true at most once per request.
    ///
    /// Separate from [`push`](Self::push) because it has to wait until the push
    /// is visible to the other CPU, which costs more than the push itself.
    #[must_use = "a sleeping receiver has to be woken"]
    pub fn interrupt_due(&mut self) -> bool {
        self.shared.take_request()
    }

    /// `None` admits, and uses up one of the pushes known to fit.
    #[inline]
    fn reason_to_discard(&mut self) -> Option<Discard> {
        if self.shared.is_closed() {
            return Some(Discard::Closed);
        }
        if self.room == 0
            && let Err(cause) = self.make_room()
        {
            return Some(cause);
        }
        self.room -= 1;
        None
    }

    /// Looks at what the consumer has done since: how many pushes fit now?
    #[cold]
    fn make_room(&mut self) -> Result<(), Discard> {
        let occupancy = self.occupancy();
        let limit = if self.discarding {
            self.low + 1
        } else {
            self.high
        };
        self.discarding = occupancy >= limit;
        if self.discarding {
            return Err(Discard::Full);
        }
        self.room = self.high - occupancy;
        if let Some(buffers) = self.buffers {
            let in_use = self.pushed - self.shared.by_consumer.0.returned.get();
            let free = buffers - in_use;
            self.room = self.room.min(usize::try_from(free).unwrap_or(usize::MAX));
        }
        if self.room == 0 {
            return Err(Discard::NoBuffer);
        }
        Ok(())
    }

    /// Items queued now; it may be fewer by the time you read it.
    #[must_use]
    pub fn occupancy(&self) -> usize {
        self.capacity - self.ring.slots()
    }

    /// Whether the last push met a queue above its watermarks.
    #[must_use]
    pub fn is_discarding(&self) -> bool {
        self.discarding
    }

    /// Whether the consumer is gone, so that the channel can be released.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_consumer_gone()
    }

    /// Nothing more will be queued; further pushes are discarded. Whether the
    /// receiver asked for an interrupt and must get it, in order to learn that.
    #[must_use = "a sleeping receiver has to be woken"]
    pub fn close(&mut self) -> bool {
        self.shared.retire_producer()
    }

    /// A view of the counters for any thread.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor(self.shared.clone())
    }

    pub(super) fn retire(&mut self) {
        self.shared.retire_producer();
    }

    pub(super) fn reset(&mut self) {
        self.discarding = false;
        self.room = 0;
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.retire();
    }
}

/// The receiver's half. Dropping it closes the channel: what is queued is
/// discarded and counted, and so is every later arrival.
#[derive(Debug)]
pub struct Consumer<T> {
    ring: rtrb::Consumer<Arrival<T>>,
    shared: Arc<Shared>,
    codel: Option<Codel>,
    /// Buffers taken and not returned.
    held: u64,
}

impl<T> Consumer<T> {
    /// Takes the next item, if there is one. Items that have queued too long for
    /// the delay target are discarded on the way.
    #[inline]
    pub fn pop(&mut self, now: Instant) -> Option<Arrival<T>> {
        while let Ok(arrival) = self.ring.pop() {
            if self.is_late(&arrival, now) {
                let tallies = &self.shared.by_consumer.0;
                tallies.late.add(1);
                tallies.returned.add(1);
                continue;
            }
            self.shared.by_consumer.0.delivered.add(1);
            self.held += 1;
            return Some(arrival);
        }
        if let Some(codel) = &mut self.codel {
            codel.on_empty();
        }
        None
    }

    #[inline]
    fn is_late(&mut self, arrival: &Arrival<T>, now: Instant) -> bool {
        let Some(codel) = &mut self.codel else {
            return false;
        };
        let sojourn = now.saturating_since(arrival.arrived);
        codel.is_late(now, sojourn, self.ring.is_empty())
    }

    /// Returns the buffers of `count` taken items; more than are held counts as
    /// all that are held.
    pub fn return_buffers(&mut self, count: u64) {
        let count = count.min(self.held);
        self.held -= count;
        self.shared.by_consumer.0.returned.add(count);
    }

    /// Asks to be interrupted at the next arrival. To be called when
    /// [`pop`](Self::pop) found nothing and before going to sleep.
    pub fn request_interrupt(&mut self) -> InterruptRequest {
        let producer_gone = self.shared.request();
        if !self.ring.is_empty() {
            self.shared.withdraw_request();
            InterruptRequest::Ready
        } else if producer_gone {
            self.shared.withdraw_request();
            InterruptRequest::Closed
        } else {
            InterruptRequest::Pending
        }
    }

    /// Items queued now; it may be more by the time you read it.
    #[must_use]
    pub fn occupancy(&self) -> usize {
        self.ring.slots()
    }

    /// A view of the counters for any thread.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor(self.shared.clone())
    }

    pub(super) fn retire(&mut self) {
        self.shared.retire_consumer();
        while self.ring.pop().is_ok() {
            let tallies = &self.shared.by_consumer.0;
            tallies.drained.add(1);
            tallies.returned.add(1);
        }
    }

    /// Begins a new life; the producer is in the caller's hands too.
    pub(super) fn reset(&mut self) {
        self.return_buffers(self.held);
        if let Some(codel) = &mut self.codel {
            codel.reset();
        }
        self.shared.reopen();
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.retire();
    }
}

/// The counters of a channel, readable from any thread at any time.
#[derive(Clone, Debug)]
pub struct Monitor(Arc<Shared>);

impl Monitor {
    /// The items so far, by outcome.
    ///
    /// # Panics
    /// Never, unless the channel has miscounted: the sums are checked.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.counts()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::super::outcome::Outcome;
    use super::*;

    /// The ring is not loom's, so this tries interleavings of the real halves;
    /// the weakly ordered loads are tried in `shared`, on a ring reduced to its
    /// published index.
    #[test]
    fn a_receiver_sleeps_only_on_an_empty_queue() {
        loom::model(|| {
            let (mut producer, mut consumer) = channel(&ChannelConfig::drop_tail(2)).unwrap();
            let pushing = thread::spawn(move || {
                assert_eq!(producer.push(1, Instant::ZERO), Admission::Queued);
                producer.interrupt_due()
            });
            let asleep = consumer.request_interrupt() == InterruptRequest::Pending;
            let woken = pushing.join().unwrap();
            assert!(woken || !asleep);
        });
    }

    #[test]
    fn an_item_that_meets_a_closing_consumer_is_counted_once() {
        loom::model(|| {
            let (mut producer, consumer) = channel(&ChannelConfig::drop_tail(2)).unwrap();
            let monitor = producer.monitor();
            let pushing = thread::spawn(move || {
                let _ = producer.push(1, Instant::ZERO);
                let _ = producer.push(2, Instant::ZERO);
            });
            drop(consumer);
            pushing.join().unwrap();
            let counts = monitor.counts();
            assert_eq!((counts.offered(), counts[Outcome::Closed]), (2, 2));
        });
    }
}
