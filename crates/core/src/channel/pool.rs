//! A fixed number of channels, lent out and coming home by themselves.
//!
//! Intuition: whoever can make the host create channels (connections, bound
//! ports) can use up its memory, so their number is limited and all of it is
//! taken beforehand (LRP-43, LRP-44: Druschel & Banga section 4.2). Most
//! connections of a busy server are in `TIME_WAIT` and need none; dropping both
//! halves releases a channel for the next connection (LRP-42), from whichever
//! threads the halves are in. Counters go on from life to life, so that no outcome
//! is lost.
//!
//! Limits: all channels of a pool have the same config. A channel is free again
//! only when *both* halves are dropped; a producer learns by
//! [`Producer::is_closed`] that it should be.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, DerefMut};

use crossbeam_queue::ArrayQueue;

use super::outcome::Counts;
use super::queue::{ChannelConfig, Consumer, Monitor, Producer, channel};
use crate::config::{ConfigError, Field};

/// The way back: every half of the pool fits in at once.
type Home<T> = Arc<ArrayQueue<(usize, Half<T>)>>;

#[derive(Debug)]
enum Half<T> {
    Producer(Producer<T>),
    Consumer(Consumer<T>),
}

#[derive(Debug)]
struct Slot<T> {
    producer: Option<Producer<T>>,
    consumer: Option<Consumer<T>>,
    monitor: Monitor,
}

/// A bounded set of channels; see the module's documentation.
pub struct ChannelPool<T> {
    slots: Vec<Slot<T>>,
    /// Slots with both halves at home.
    free: Vec<usize>,
    home: Home<T>,
    refused: u64,
}

impl<T> fmt::Debug for ChannelPool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelPool")
            .field("channels", &self.slots.len())
            .field("free", &self.free.len())
            .finish_non_exhaustive()
    }
}

impl<T> ChannelPool<T> {
    /// Makes `channels` channels, at least 1; nothing is allocated after that.
    ///
    /// # Errors
    /// If `channels` is 0 or the config does not validate.
    pub fn new(config: &ChannelConfig, channels: u32) -> Result<Self, ConfigError> {
        Field("channels", channels).must_be_in(1.., "at least 1")?;
        let slots = (0..channels)
            .map(|_| {
                let (producer, consumer) = channel(config)?;
                let monitor = producer.monitor();
                Ok(Slot {
                    producer: Some(producer),
                    consumer: Some(consumer),
                    monitor,
                })
            })
            .collect::<Result<Vec<_>, ConfigError>>()?;
        Ok(Self {
            free: (0..slots.len()).rev().collect(),
            home: Arc::new(ArrayQueue::new(2 * slots.len())),
            slots,
            refused: 0,
        })
    }

    /// Lends a channel, or `None` (counted) if all are in use.
    pub fn create(&mut self) -> Option<(PooledProducer<T>, PooledConsumer<T>)> {
        self.collect();
        let Some(slot) = self.free.pop() else {
            self.refused += 1;
            return None;
        };
        let halves = &mut self.slots[slot];
        let (producer, consumer) = (halves.producer.take()?, halves.consumer.take()?);
        Some((
            Lent::new(producer, slot, &self.home),
            Lent::new(consumer, slot, &self.home),
        ))
    }

    /// Channels that can be lent now.
    pub fn available(&mut self) -> usize {
        self.collect();
        self.free.len()
    }

    /// How often [`create`](Self::create) had none left.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The items of all channels, in their present and former lives.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let all = self.slots.iter().map(|slot| slot.monitor.counts());
        all.fold(Counts::default(), |sum, counts| sum + counts)
    }

    /// Takes in what came home.
    fn collect(&mut self) {
        while let Some((slot, half)) = self.home.pop() {
            let halves = &mut self.slots[slot];
            match half {
                Half::Producer(producer) => halves.producer = Some(producer),
                Half::Consumer(consumer) => halves.consumer = Some(consumer),
            }
            let (Some(producer), Some(consumer)) = (&mut halves.producer, &mut halves.consumer)
            else {
                continue;
            };
            // A push in flight may have left an item behind the first draining.
            consumer.retire();
            producer.reset();
            consumer.reset();
            self.free.push(slot);
        }
    }
}

/// A producer that belongs to a pool.
pub type PooledProducer<T> = Lent<Producer<T>>;

/// A consumer that belongs to a pool.
pub type PooledConsumer<T> = Lent<Consumer<T>>;

/// A half that belongs to a pool and goes back there when it is dropped.
pub struct Lent<H: Returning> {
    /// `None` only while it is being dropped.
    half: Option<H>,
    slot: usize,
    home: Home<H::Item>,
}

impl<H: Returning + fmt::Debug> fmt::Debug for Lent<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lent").field(&self.half).finish()
    }
}

impl<H: Returning> Lent<H> {
    fn new(half: H, slot: usize, home: &Home<H::Item>) -> Self {
        Self {
            half: Some(half),
            slot,
            home: home.clone(),
        }
    }
}

impl<H: Returning> Deref for Lent<H> {
    type Target = H;

    fn deref(&self) -> &H {
        let Some(half) = &self.half else {
            unreachable!("used while being dropped")
        };
        half
    }
}

impl<H: Returning> DerefMut for Lent<H> {
    fn deref_mut(&mut self) -> &mut H {
        let Some(half) = &mut self.half else {
            unreachable!("used while being dropped")
        };
        half
    }
}

impl<H: Returning> Drop for Lent<H> {
    fn drop(&mut self) {
        if let Some(mut half) = self.half.take() {
            half.retire_half();
            let returned = self.home.push((self.slot, half.into_half()));
            assert!(returned.is_ok(), "more halves came home than were lent");
        }
    }
}

/// What [`Lent`] needs of a half. Implemented by [`Producer`] and [`Consumer`].
pub trait Returning: sealed::Half {}

mod sealed {
    /// Closes the channel from this side, and puts the half into its place.
    pub trait Half {
        type Item;
        fn retire_half(&mut self);
        #[allow(private_interfaces)]
        fn into_half(self) -> super::Half<Self::Item>;
    }
}

impl<T> Returning for Producer<T> {}
impl<T> Returning for Consumer<T> {}

impl<T> sealed::Half for Producer<T> {
    type Item = T;

    fn retire_half(&mut self) {
        self.retire();
    }

    #[allow(private_interfaces)]
    fn into_half(self) -> Half<T> {
        Half::Producer(self)
    }
}

impl<T> sealed::Half for Consumer<T> {
    type Item = T;

    fn retire_half(&mut self) {
        self.retire();
    }

    #[allow(private_interfaces)]
    fn into_half(self) -> Half<T> {
        Half::Consumer(self)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use std::thread;

    use super::super::{Admission, Outcome};
    use super::*;
    use crate::time::Instant;

    const NOW: Instant = Instant::ZERO;

    fn pool(channels: u32) -> ChannelPool<u32> {
        ChannelPool::new(&ChannelConfig::drop_tail(4), channels).unwrap()
    }

    #[test]
    fn the_number_of_channels_is_bounded_and_refusals_are_counted() {
        let mut pool = pool(2);
        let first = pool.create().unwrap();
        let second = pool.create().unwrap();
        assert!(pool.create().is_none());
        assert_eq!(pool.refused(), 1);
        drop(first);
        assert!(pool.create().is_some());
        drop(second);
        assert_eq!(pool.available(), 2);
        let none = ChannelPool::<u32>::new(&ChannelConfig::drop_tail(4), 0);
        assert_eq!(none.unwrap_err().field, "channels");
    }

    #[test]
    fn a_channel_released_in_time_wait_serves_the_next_connection() {
        let mut pool = pool(1);
        let (mut producer, mut consumer) = pool.create().unwrap();
        for k in 0..6 {
            let _ = producer.push(k, NOW);
        }
        consumer.pop(NOW).unwrap();
        drop(consumer);
        assert_eq!(pool.available(), 0, "the demultiplexer still has its half");
        assert!(matches!(
            producer.push(9, NOW),
            Admission::Discarded { item: 9, .. }
        ));
        drop(producer);
        // The next connection finds nothing of the former one.
        let (mut producer, mut consumer) = pool.create().unwrap();
        assert_eq!(consumer.pop(NOW), None);
        assert_eq!(producer.push(7, NOW), Admission::Queued);
        // But what became of the former one's packets is still known.
        let counts = pool.counts();
        assert_eq!((counts.offered(), counts.queued), (8, 1));
        assert_eq!(counts[Outcome::Delivered], 1);
        assert_eq!(counts[Outcome::Full], 2);
        assert_eq!(counts[Outcome::Closed], 4);
    }

    #[test]
    fn buffers_held_by_a_vanished_receiver_are_free_in_the_next_life() {
        let config = ChannelConfig {
            buffers: Some(2),
            ..ChannelConfig::drop_tail(4)
        };
        let mut pool = ChannelPool::new(&config, 1).unwrap();
        for _ in 0..3 {
            let (mut producer, mut consumer) = pool.create().unwrap();
            assert_eq!(producer.push(1, NOW), Admission::Queued);
            assert_eq!(producer.push(2, NOW), Admission::Queued);
            consumer.pop(NOW).unwrap();
            assert_ne!(producer.push(3, NOW), Admission::Queued);
        }
    }

    #[test]
    fn halves_come_home_from_other_threads() {
        /// Miri takes a second for each.
        const ROUNDS: u64 = if cfg!(miri) { 3 } else { 100 };
        let mut pool = pool(3);
        for _ in 0..ROUNDS {
            let (mut producer, mut consumer) = pool.create().unwrap();
            thread::scope(|scope| {
                scope.spawn(move || {
                    for k in 0..20 {
                        let _ = producer.push(k, NOW);
                    }
                });
                scope.spawn(move || {
                    for _ in 0..10 {
                        consumer.pop(NOW);
                    }
                });
            });
        }
        assert_eq!(pool.available(), 3);
        let counts = pool.counts();
        assert_eq!((counts.offered(), counts.queued), (20 * ROUNDS, 0));
        assert_eq!(pool.refused(), 0);
    }
}
