//! Two counts and a row of places in memory that two sides share, as `AF_XDP`'s rings are.
//!
//! Intuition: one side puts entries and counts them, the other takes them and counts those.
//! Each writes its own count only, so neither needs a lock. Counts have 32 bits and wrap; a
//! place is the count modulo the ring's length, a power of two.
//!
//! An entry is written before the count that shows it (Release, then Acquire), and read before
//! the count that gives its place back. Nothing that the other side writes is believed further
//! than the ring is long: a count beyond that yields nothing. What an entry *means* is for
//! others to check ([`DescriptorRing`](super::DescriptorRing), the stack's pool of frames).
//!
//! When it loses: one producer and one consumer only. Who shares an end needs a lock.

use crate::sync::{AtomicU32, Ordering};

/// The memory of a ring.
pub trait RingMemory {
    /// What stands in a place.
    type Entry: Copy;

    /// Places, a power of two.
    fn length(&self) -> u32;

    /// Entries ever put.
    fn producer(&self) -> &AtomicU32;

    /// Entries ever taken.
    fn consumer(&self) -> &AtomicU32;

    /// Reads the entry at a place below [`length`](Self::length), which the other side has
    /// handed over.
    fn read(&self, place: u32) -> Self::Entry;

    /// Writes to a place below [`length`](Self::length) that the other side has given back.
    fn write(&self, place: u32, entry: Self::Entry);
}

fn place(memory: &impl RingMemory, count: u32) -> u32 {
    count & (memory.length() - 1)
}

/// The end that takes: of a receive or a completion ring.
#[derive(Debug)]
pub struct IncomingRing<M> {
    memory: M,
    /// Entries taken so far, and those known to be there.
    taken: u32,
    seen: u32,
}

impl<M: RingMemory> IncomingRing<M> {
    /// A ring whose counts are 0.
    pub const fn new(memory: M) -> Self {
        Self {
            memory,
            taken: 0,
            seen: 0,
        }
    }

    /// The ring's memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// The next entry. [`release`](Self::release) after the last of a batch.
    #[inline]
    pub fn take(&mut self) -> Option<M::Entry> {
        if self.taken == self.seen {
            let produced = self.memory.producer().load(Ordering::Acquire);
            let there = produced.wrapping_sub(self.taken);
            // More than the ring holds cannot be there: the count is wrong, and so are the
            // entries.
            if there == 0 || there > self.memory.length() {
                return None;
            }
            self.seen = self.taken.wrapping_add(there);
        }
        let entry = self.memory.read(place(&self.memory, self.taken));
        self.taken = self.taken.wrapping_add(1);
        Some(entry)
    }

    /// Places that the other side can fill now.
    pub fn room(&self) -> u32 {
        let produced = self.memory.producer().load(Ordering::Acquire);
        let released = self.memory.consumer().load(Ordering::Relaxed);
        let there = produced.wrapping_sub(released);
        self.memory.length().saturating_sub(there)
    }

    /// Lets the other side use the places of what was taken.
    #[inline]
    pub fn release(&mut self) {
        self.memory.consumer().store(self.taken, Ordering::Release);
    }
}

/// The end that puts: of a fill or a transmit ring.
#[derive(Debug)]
pub struct OutgoingRing<M> {
    memory: M,
    put: u32,
}

impl<M: RingMemory> OutgoingRing<M> {
    /// A ring whose counts are 0.
    pub const fn new(memory: M) -> Self {
        Self { memory, put: 0 }
    }

    /// The ring's memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Entries that can be put now.
    pub fn room(&self) -> u32 {
        self.memory.length().saturating_sub(self.queued())
    }

    /// Entries that the other side has not taken yet.
    pub fn queued(&self) -> u32 {
        let taken = self.memory.consumer().load(Ordering::Acquire);
        self.put.wrapping_sub(taken)
    }

    /// Puts an entry; the caller has asked for [`room`](Self::room).
    #[inline]
    pub fn put(&mut self, entry: M::Entry) {
        self.memory.write(place(&self.memory, self.put), entry);
        self.put = self.put.wrapping_add(1);
    }

    /// Shows the other side what was put.
    #[inline]
    pub fn publish(&mut self) {
        self.memory.producer().store(self.put, Ordering::Release);
    }
}

/// Memory for tests: with loom every interleaving and every stale value is tried.
#[cfg(test)]
mod memory {
    use alloc::sync::Arc;
    use alloc::vec::Vec;

    use super::RingMemory;
    use crate::sync::{AtomicU32, AtomicU64, Ordering};

    #[derive(Debug)]
    pub(super) struct Memory {
        producer: AtomicU32,
        consumer: AtomicU32,
        places: Vec<AtomicU64>,
    }

    impl Memory {
        pub(super) fn new(length: u32) -> Arc<Self> {
            Arc::new(Self {
                producer: AtomicU32::new(0),
                consumer: AtomicU32::new(0),
                places: (0..length).map(|_| AtomicU64::new(u64::MAX)).collect(),
            })
        }
    }

    impl RingMemory for Arc<Memory> {
        type Entry = u64;

        fn length(&self) -> u32 {
            self.places.len() as u32
        }

        fn producer(&self) -> &AtomicU32 {
            &self.producer
        }

        fn consumer(&self) -> &AtomicU32 {
            &self.consumer
        }

        // Relaxed: what makes entries visible is the counts' business alone.
        fn read(&self, place: u32) -> u64 {
            self.places[place as usize].load(Ordering::Relaxed)
        }

        fn write(&self, place: u32, entry: u64) {
            self.places[place as usize].store(entry, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::memory::Memory;
    use super::*;

    #[test]
    fn entries_arrive_in_order_across_many_laps_and_the_counts_wrap() {
        let memory = Memory::new(8);
        let mut there = OutgoingRing::new(memory.clone());
        let mut here = IncomingRing::new(memory.clone());
        // Near the end of 32 bits.
        let start = u32::MAX - 20;
        (there.put, here.taken, here.seen) = (start, start, start);
        memory.producer().store(start, Ordering::Relaxed);
        memory.consumer().store(start, Ordering::Relaxed);
        for lap in 0..100_u64 {
            assert_eq!(there.room(), 8);
            for k in 0..5 {
                there.put(lap * 5 + k);
            }
            assert_eq!(here.take(), None, "not published");
            there.publish();
            for k in 0..5 {
                assert_eq!(here.take(), Some(lap * 5 + k));
            }
            assert_eq!((here.take(), there.room()), (None, 3));
            here.release();
        }
    }

    #[test]
    fn hostile_counts_yield_nothing() {
        let memory = Memory::new(8);
        let there = OutgoingRing::new(memory.clone());
        let mut here = IncomingRing::new(memory.clone());
        for produced in [9, u32::MAX, 1 << 31] {
            memory.producer().store(produced, Ordering::Relaxed);
            assert_eq!(here.take(), None, "{produced}");
        }
        memory.producer().store(8, Ordering::Relaxed);
        assert_eq!(core::iter::from_fn(|| here.take()).count(), 8);
        memory.consumer().store(12_345, Ordering::Relaxed);
        assert_eq!(there.room(), 0, "more consumed than was ever put");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::memory::Memory;
    use super::*;

    /// Both sides at work at once, over more than a lap: every entry arrives once, in order,
    /// and none is overwritten before it was read.
    #[test]
    fn entries_arrive_once_and_in_order() {
        const ENTRIES: u64 = 3;
        loom::model(|| {
            let memory = Memory::new(2);
            let mut there = OutgoingRing::new(memory.clone());
            let producer = thread::spawn(move || {
                let mut next = 0;
                while next < ENTRIES {
                    let room = there.room();
                    for _ in 0..room.min((ENTRIES - next) as u32) {
                        there.put(next);
                        next += 1;
                    }
                    there.publish();
                    if room == 0 {
                        thread::yield_now();
                    }
                }
            });
            let mut here = IncomingRing::new(memory);
            let mut expected = 0;
            while expected < ENTRIES {
                if let Some(entry) = here.take() {
                    assert_eq!(entry, expected);
                    expected += 1;
                    here.release();
                } else {
                    thread::yield_now();
                }
            }
            assert_eq!(here.take(), None);
            producer.join().unwrap();
        });
    }

    /// A taker that gives nothing back is never overtaken.
    #[test]
    fn what_was_not_given_back_is_not_overwritten() {
        loom::model(|| {
            let memory = Memory::new(2);
            let mut there = OutgoingRing::new(memory.clone());
            let producer = thread::spawn(move || {
                for entry in 0..3 {
                    if there.room() > 0 {
                        there.put(entry);
                        there.publish();
                    }
                }
                there.queued()
            });
            let mut here = IncomingRing::new(memory);
            let taken: alloc::vec::Vec<u64> = core::iter::from_fn(|| here.take()).collect();
            assert!([0, 1].starts_with(&taken), "{taken:?}");
            assert_eq!(producer.join().unwrap(), 2);
        });
    }
}
