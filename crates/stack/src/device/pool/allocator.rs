//! One thread's part of a pool (Tracey & Banerji, section 3.5: TB-44).

use std::sync::Arc;

use super::{Frame, HEADROOM_BYTES, Pool};

/// An allocator of one thread's own over the memory that all share.
///
/// It keeps some frames at hand, so that taking and giving back touch nothing that other
/// threads touch: no lock, no exchange. When it has none left it takes several from the shared
/// memory at once, and when it has too many it gives several back at once. A frame may be
/// handed to another thread, which gives it to an allocator of its own, or drops it.
///
/// Cost: what it keeps nobody else can take. Dropping it gives all back.
#[derive(Debug)]
pub struct Allocator {
    pool: Arc<Pool>,
    /// The last is taken next.
    kept: Vec<Frame>,
    frames_max: usize,
}

impl Allocator {
    /// Keeps at most `frames_max` frames of `pool`; 64 are plenty for batches of 32. It begins
    /// with none. With 0 it is the shared memory itself.
    #[must_use]
    pub fn new(pool: &Arc<Pool>, frames_max: usize) -> Self {
        Self {
            pool: Arc::clone(pool),
            kept: Vec::with_capacity(frames_max.max(1)),
            frames_max,
        }
    }

    /// An empty frame behind the usual headroom. Nothing: here is none, and no chunk is free.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        if self.kept.is_empty() {
            let free = std::iter::from_fn(|| self.pool.take());
            self.kept.extend(free.take(self.batch()));
        }
        self.kept.pop()
    }

    /// Keeps a frame for [`take`](Self::take), whoever took it; its content is left behind.
    /// One of another pool goes back there.
    #[inline]
    pub fn give(&mut self, mut frame: Frame) {
        if self.frames_max == 0 || !Arc::ptr_eq(frame.pool(), &self.pool) {
            return;
        }
        if self.kept.len() >= self.frames_max {
            // Those that were given longest ago.
            self.kept.drain(..self.batch());
        }
        frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES);
        self.kept.push(frame);
    }

    /// Frames that are at hand.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// The memory that all share.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Half of what it may keep, so that neither the next to be taken nor the next to be given
    /// needs the shared memory again.
    fn batch(&self) -> usize {
        self.frames_max.div_ceil(2).max(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc;
    use std::thread;

    use proptest::prelude::{Strategy, any};
    use proptest::{prop_assert, prop_assert_eq, prop_oneof, proptest};

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Take,
        /// The frame at a place among those that are held.
        Give(usize),
        Drop(usize),
    }

    /// With the allocator that does it.
    fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
        let step = prop_oneof![
            3 => any::<bool>().prop_map(|_| Step::Take),
            2 => any::<usize>().prop_map(Step::Give),
            1 => any::<usize>().prop_map(Step::Drop),
        ];
        proptest::collection::vec((0..2usize, step), 0..120)
    }

    proptest! {
        /// TB-44: whatever two allocators do, each frame has one place and holds what its owner
        /// wrote, an allocator keeps no more than it may, and only what it keeps is withheld.
        #[test]
        fn frames_are_in_one_place_and_as_they_were_written(
            chunks in 1..40usize, limits in [0..9usize, 0..9], steps in steps(),
        ) {
            let pool = Pool::new(chunks, 1024).unwrap();
            let mut allocators = limits.map(|limit| Allocator::new(&pool, limit));
            let (mut held, mut mark) = (Vec::new(), 0u32);
            for (which, step) in steps {
                let free = pool.available();
                let allocator = &mut allocators[which];
                match step {
                    Step::Take => {
                        let there = allocator.kept() + free > 0;
                        let frame = allocator.take();
                        prop_assert_eq!(frame.is_some(), there);
                        if let Some(mut frame) = frame {
                            prop_assert!(frame.is_empty());
                            mark += 1;
                            frame.copy_from(&mark.to_ne_bytes());
                            held.push((frame, mark));
                        }
                    }
                    Step::Give(place) if !held.is_empty() => {
                        let (frame, _) = held.swap_remove(place % held.len());
                        allocator.give(frame);
                    }
                    Step::Drop(place) if !held.is_empty() => {
                        drop(held.swap_remove(place % held.len()));
                    }
                    Step::Give(_) | Step::Drop(_) => {}
                }
                let mut kept = 0;
                for (allocator, limit) in allocators.iter().zip(limits) {
                    prop_assert!(allocator.kept() <= limit);
                    kept += allocator.kept();
                }
                prop_assert_eq!(pool.available() + kept + held.len(), chunks);
                let written = |(frame, mark): &(Frame, u32)| frame[..] == mark.to_ne_bytes();
                prop_assert!(held.iter().all(written));
            }
            drop((allocators, held));
            prop_assert_eq!(pool.available(), chunks);
        }
    }

    #[test]
    fn a_thread_that_takes_and_gives_by_turns_leaves_the_shared_memory_alone() {
        let pool = Pool::new(100, 2048).unwrap();
        let mut allocator = Allocator::new(&pool, 16);
        let first = allocator.take().unwrap();
        assert_eq!((allocator.kept(), pool.available()), (7, 92), "one batch");
        allocator.give(first);
        for _ in 0..if cfg!(miri) { 20 } else { 1000 } {
            let frames: Vec<_> = (0..8).map(|_| allocator.take().unwrap()).collect();
            let numbers: BTreeSet<_> = frames.iter().map(|frame| frame.chunk).collect();
            assert_eq!(numbers.len(), 8);
            frames.into_iter().for_each(|frame| allocator.give(frame));
            assert_eq!(pool.available(), 92);
        }
        // Frames that others took are kept up to the limit.
        for frame in std::iter::from_fn(|| pool.take()).collect::<Vec<_>>() {
            allocator.give(frame);
        }
        assert_eq!(allocator.kept() + pool.available(), 100);
        assert!((9..=16).contains(&allocator.kept()), "{allocator:?}");
    }

    #[test]
    fn a_frame_of_another_pool_goes_home() {
        let (here, there) = (Pool::new(4, 1024).unwrap(), Pool::new(4, 2048).unwrap());
        let mut allocator = Allocator::new(&here, 4);
        allocator.give(there.take().unwrap());
        assert_eq!((allocator.kept(), there.available()), (0, 4));
    }

    /// TB-45: the receiver of a frame returns it to an allocator of its own.
    #[test]
    fn frames_wander_from_thread_to_thread_and_none_is_lost() {
        /// Through a pool of a few, so that each goes round often.
        const FRAMES: u32 = if cfg!(miri) { 50 } else { 20_000 };
        let pool = Pool::new(40, 1024).unwrap();
        let (sender, receiver) = mpsc::sync_channel::<Frame>(8);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut allocator = Allocator::new(&pool, 8);
                for (number, frame) in (0..FRAMES).zip(receiver) {
                    assert_eq!(frame[..], number.to_ne_bytes());
                    allocator.give(frame);
                }
            });
            let mut allocator = Allocator::new(&pool, 8);
            for number in 0..FRAMES {
                let mut frame = loop {
                    match allocator.take() {
                        Some(frame) => break frame,
                        None => thread::yield_now(),
                    }
                };
                frame.copy_from(&number.to_ne_bytes());
                sender.send(frame).unwrap();
            }
            drop(sender);
        });
        assert_eq!(pool.available(), 40);
    }
}
