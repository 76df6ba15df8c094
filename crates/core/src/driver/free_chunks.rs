//! Which chunks of a shared heap are free, for any number of threads.
//!
//! Intuition: a heap that several allocators share costs each of them an exchange of one
//! shared word. A batch costs no more than a single chunk if the free chunks are linked, the
//! word names the first, and a batch is the beginning of that row. So an allocator of one
//! thread's own takes some chunks at a time, and seldom touches what others touch (TB-44; no
//! lock, at one cost for every size: TB-45, TB-46).
//!
//! The word also holds how often it was changed. A row that was read while others changed it
//! is thereby found out, and read again. Chunks are numbers here, and links are checked
//! numbers: nothing that is read too early leads anywhere.
//!
//! The chunk that was given last is taken first, since it is the likeliest to be in a cache.
//!
//! When it loses: all threads change one word. Whoever takes and gives single chunks from
//! several threads at once waits for it more often than at the two ends of a queue.

use alloc::boxed::Box;

use crate::sync::{AtomicU64, Ordering};

/// The free chunks of a heap.
#[derive(Debug)]
pub struct FreeChunks {
    /// The first free chunk, or [`NONE`], and above it how often this was changed.
    first: AtomicU64,
    /// For each free chunk: the next one or [`NONE`], and above it how many the row has from
    /// here on.
    links: Box<[AtomicU64]>,
}

/// No chunk.
const NONE: u32 = u32::MAX;

const fn pack(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

const fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl FreeChunks {
    /// A heap of `chunks` chunks, numbered from 0, of which none is free yet.
    ///
    /// # Panics
    /// If they cannot be numbered by 32 bits, one number being kept for none.
    #[must_use]
    pub fn none_of(chunks: usize) -> Self {
        assert!(u32::try_from(chunks).is_ok_and(|count| count < NONE));
        let link = |_| AtomicU64::new(pack(NONE, 0));
        Self {
            first: AtomicU64::new(pack(NONE, 0)),
            links: (0..chunks).map(link).collect(),
        }
    }

    /// Chunks in all, free or not.
    pub fn chunks(&self) -> usize {
        self.links.len()
    }

    /// Free chunks; while others take and give, only about that many.
    pub fn available(&self) -> usize {
        match unpack(self.first.load(Ordering::Acquire)).0 {
            NONE => 0,
            first => self.link(first).1 as usize,
        }
    }

    /// Takes as many chunks as there are places, or as are free; how many. They are the
    /// caller's alone, with everything that those wrote who had them before.
    #[inline]
    pub fn take(&self, places: &mut [u32]) -> usize {
        let mut seen = self.first.load(Ordering::Acquire);
        loop {
            let (mut next, changes) = unpack(seen);
            let mut taken = 0;
            while taken < places.len() && next != NONE {
                places[taken] = next;
                taken += 1;
                next = self.link(next).0;
            }
            if taken == 0 {
                return 0;
            }
            let rest = pack(next, changes.wrapping_add(1));
            match self.exchange(seen, rest) {
                Ok(_) => return taken,
                // The row has changed meanwhile.
                Err(now) => seen = now,
            }
        }
    }

    /// Makes chunks free that are the caller's alone. The last is the next to be taken.
    ///
    /// # Panics
    /// If one is no chunk of this heap.
    #[inline]
    pub fn give(&self, chunks: &[u32]) {
        let Some(last) = chunks.last() else { return };
        let mut seen = self.first.load(Ordering::Acquire);
        loop {
            let (mut next, changes) = unpack(seen);
            let mut count = match next {
                NONE => 0,
                first => self.link(first).1,
            };
            for chunk in chunks {
                count = count.wrapping_add(1);
                self.links[*chunk as usize].store(pack(next, count), Ordering::Relaxed);
                next = *chunk;
            }
            match self.exchange(seen, pack(*last, changes.wrapping_add(1))) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Release: what was written into chunks and links is seen by whoever takes them. All
    /// changes of the word are exchanges, so that also holds for chunks further down.
    fn exchange(&self, seen: u64, new: u64) -> Result<u64, u64> {
        self.first
            .compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Acquire)
    }

    fn link(&self, chunk: u32) -> (u32, u32) {
        unpack(self.links[chunk as usize].load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use alloc::vec;
    use alloc::vec::Vec;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use proptest::prelude::{Strategy, any};
    use proptest::{prop_assert_eq, prop_oneof, proptest};

    use super::*;

    fn all_free(chunks: u32) -> FreeChunks {
        let heap = FreeChunks::none_of(chunks as usize);
        heap.give(&(0..chunks).collect::<Vec<_>>());
        heap
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(usize),
        /// So many of those that are held, from a place among them on.
        Give(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..9usize).prop_map(Step::Take),
            (0..9usize, any::<usize>()).prop_map(|(count, from)| Step::Give(count, from)),
        ]
    }

    proptest! {
        /// TB-44, TB-46: it is the stack of chunks that it says it is, in batches of any size.
        #[test]
        fn batches_come_and_go_as_from_a_plain_stack(
            chunks in 1..20u32, steps in proptest::collection::vec(step(), 0..60),
        ) {
            let heap = all_free(chunks);
            let mut model: Vec<u32> = (0..chunks).collect();
            let mut held = Vec::new();
            for step in steps {
                match step {
                    Step::Take(count) => {
                        let mut places = vec![u32::MAX; count];
                        let taken = heap.take(&mut places);
                        let expected = model.split_off(model.len() - count.min(model.len()));
                        let expected: Vec<_> = expected.into_iter().rev().collect();
                        prop_assert_eq!(&places[..taken], &expected[..]);
                        held.extend(expected);
                    }
                    Step::Give(count, from) => {
                        let from = from % (held.len() + 1);
                        let given: Vec<_> = held
                            .drain(from..(from + count).min(held.len()))
                            .collect();
                        heap.give(&given);
                        model.extend(given);
                    }
                }
                prop_assert_eq!(heap.available(), model.len());
            }
        }
    }

    #[test]
    #[should_panic(expected = "index out of bounds")]
    fn a_chunk_of_another_heap_is_refused() {
        all_free(4).give(&[4]);
    }

    /// TB-45.
    #[test]
    fn no_chunk_has_two_owners_and_none_is_lost() {
        /// Miri takes a second for each.
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 20_000 };
        const CHUNKS: u32 = 16;
        let heap = all_free(CHUNKS);
        let owned: Vec<_> = (0..CHUNKS).map(|_| AtomicBool::new(false)).collect();
        let work = |batch: usize| {
            for _ in 0..ROUNDS {
                let mut places = vec![0; batch];
                let taken = heap.take(&mut places);
                for chunk in &places[..taken] {
                    assert!(!owned[*chunk as usize].swap(true, Ordering::Relaxed));
                }
                for chunk in &places[..taken] {
                    owned[*chunk as usize].store(false, Ordering::Relaxed);
                }
                heap.give(&places[..taken]);
            }
        };
        thread::scope(|scope| {
            for batch in [1, 3, 7] {
                scope.spawn(move || work(batch));
            }
        });
        assert_eq!(heap.available(), CHUNKS as usize);
        let mut places = [0; CHUNKS as usize];
        assert_eq!(heap.take(&mut places), CHUNKS as usize);
        places.sort_unstable();
        assert!(places.into_iter().eq(0..CHUNKS));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use alloc::sync::Arc;
    use alloc::vec::Vec;

    use loom::cell::UnsafeCell;
    use loom::thread;

    use super::*;

    /// A heap and what its chunks hold, which only the owner may touch.
    struct Heap {
        free: FreeChunks,
        memory: Vec<UnsafeCell<u8>>,
    }

    impl Heap {
        fn new(chunks: u32) -> Arc<Self> {
            let free = FreeChunks::none_of(chunks as usize);
            free.give(&(0..chunks).collect::<Vec<_>>());
            let memory = (0..chunks).map(|_| UnsafeCell::new(0)).collect();
            Arc::new(Self { free, memory })
        }

        /// Takes up to `batch` chunks, writes into each (loom notices a second owner, and what
        /// is not handed over), and gives them back together or one by one.
        fn use_some(&self, batch: usize, together: bool) -> usize {
            let mut places = [0; 3];
            let taken = self.free.take(&mut places[..batch]);
            let touch = |chunk: &u32| self.memory[*chunk as usize].with_mut(|_| ());
            places[..taken].iter().for_each(touch);
            if together {
                self.free.give(&places[..taken]);
                return taken;
            }
            for chunk in &places[..taken] {
                touch(chunk);
                self.free.give(&[*chunk]);
            }
            taken
        }
    }

    fn beside_two(batch: usize, together: bool) {
        loom::model(move || {
            let heap = Heap::new(3);
            let other = Arc::clone(&heap);
            let thread = thread::spawn(move || other.use_some(2, together));
            heap.use_some(batch, true);
            thread.join().unwrap();
            assert_eq!(heap.free.available(), 3);
            assert_eq!(heap.use_some(3, true), 3);
        });
    }

    /// TB-45: a chunk has one owner at a time, who sees what the owner before wrote. The first
    /// chunk is there again, and the one behind it is not, while both are read.
    #[test]
    fn a_chunk_has_one_owner() {
        beside_two(1, false);
    }

    /// The row is changed while a batch of it is read.
    #[test]
    fn a_batch_is_what_it_was_when_it_is_taken() {
        beside_two(2, true);
    }
}
