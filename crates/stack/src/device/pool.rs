//! The memory that frames live in, and who may touch which part of it.
//!
//! A pool is one mapping cut into chunks of equal size. A chunk is in one place
//! at a time: on the free list, in the hands of whoever owns its [`Frame`], or
//! lent to the kernel by an index in a ring. Frames move by ownership, so the
//! giver of a frame cannot touch it any more (Tracey & Banerji, section 3.5:
//! TB-41, TB-45, TB-46), and no copy is needed for that. A thread may keep some
//! of them at hand ([`Allocator`]: TB-44).
//!
//! **Hostile rings.** The kernel hands chunks back by numbers in memory that it
//! shares with us. [`Pool::take_back`] is the only way from such a number to a
//! [`Frame`]. It refuses a range that leaves its chunk, a chunk that does not
//! exist, and a chunk that is not lent in that direction: so no entry, however
//! wrong, yields memory that somebody else owns.

#![allow(unsafe_code, reason = "chunks of one mapping have different owners")]

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crossbeam_queue::ArrayQueue;
use memmap2::{Advice, MmapOptions, MmapRaw};

mod allocator;

pub use self::allocator::Allocator;

/// Room before a new frame's first byte, for headers that are put in front
/// later; also what the kernel leaves in AF_XDP (`XDP_PACKET_HEADROOM`).
pub const HEADROOM_BYTES: usize = 256;

/// In which direction a chunk is lent to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Lent {
    /// To be received into.
    Receive = 1,
    /// To be sent.
    Transmit = 2,
}

/// The chunk is on the free list or in a [`Frame`].
const OURS: u8 = 0;

/// A fixed number of chunks of memory.
pub struct Pool {
    memory: MmapRaw,
    /// A power of two: whose it is is asked for every frame, and dividing takes longer.
    chunk_bytes: usize,
    chunk_shift: u32,
    /// Per chunk [`OURS`] or [`Lent`].
    states: Box<[AtomicU8]>,
    free: ArrayQueue<u32>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("chunks", &self.states.len())
            .field("chunk_bytes", &self.chunk_bytes)
            .field("free", &self.free.len())
            .finish()
    }
}

impl Pool {
    /// Memory for `chunks` frames of up to `chunk_bytes` each, headroom
    /// included. All of it is taken now.
    ///
    /// Children of this process do not inherit it (`MADV_DONTFORK`), and must not touch a frame:
    /// fork(2) would copy each chunk that the kernel holds, and this process's threads wait
    /// meanwhile if they fault.
    ///
    /// # Errors
    ///
    /// There is not that much memory.
    ///
    /// # Panics
    ///
    /// If `chunks` is 0 or does not fit 32 bits, or `chunk_bytes` is no power of
    /// two above [`HEADROOM_BYTES`].
    pub fn new(chunks: usize, chunk_bytes: usize) -> io::Result<Arc<Self>> {
        assert!(chunk_bytes.is_power_of_two() && chunk_bytes > HEADROOM_BYTES);
        let count = u32::try_from(chunks).expect("chunks are numbered by 32 bits");
        assert!(count > 0, "a pool without chunks");
        let mut options = MmapOptions::new();
        options.len(chunks * chunk_bytes);
        // Miri maps nothing with a flag for it, and takes no advice.
        if cfg!(not(miri)) {
            options.populate();
        }
        let map = options.map_anon()?;
        if cfg!(not(miri)) {
            map.advise(Advice::DontFork)?;
        }
        let free = ArrayQueue::new(chunks);
        for chunk in 0..count {
            let _ = free.push(chunk);
        }
        Ok(Arc::new(Self {
            memory: map.into(),
            chunk_bytes,
            chunk_shift: chunk_bytes.trailing_zeros(),
            states: (0..chunks).map(|_| AtomicU8::new(OURS)).collect(),
            free,
        }))
    }

    /// An empty frame behind the usual headroom, if there is a free chunk.
    #[inline]
    pub fn take(self: &Arc<Self>) -> Option<Frame> {
        let chunk = self.free.pop()?;
        Some(Frame {
            pool: Arc::clone(self),
            chunk,
            start: HEADROOM_BYTES as u32,
            end: HEADROOM_BYTES as u32,
        })
    }

    /// Chunks that can be taken now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Chunks in all.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.states.len()
    }

    /// Bytes of a chunk, headroom included.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// The mapping, for the kernel's `XDP_UMEM_REG`.
    pub(super) fn memory(&self) -> (*mut u8, usize) {
        (self.memory.as_mut_ptr(), self.memory.len())
    }

    /// Takes a chunk for the kernel to receive into; returns its offset.
    #[inline]
    pub(super) fn lend_empty(&self) -> Option<u64> {
        let chunk = self.free.pop()?;
        self.states[chunk as usize].store(Lent::Receive as u8, Ordering::Relaxed);
        Some(u64::from(chunk) * self.chunk_bytes as u64)
    }

    /// The frame in `length` bytes at `offset`, which the kernel hands back.
    /// Nothing if that is not exactly what was lent `for_what`.
    #[inline]
    pub(super) fn take_back(
        self: &Arc<Self>,
        for_what: Lent,
        offset: u64,
        length: u32,
    ) -> Option<Frame> {
        let offset = usize::try_from(offset).ok()?;
        let (chunk, start) = (offset >> self.chunk_shift, offset & (self.chunk_bytes - 1));
        let end = start.checked_add(length as usize)?;
        let state = self.states.get(chunk)?;
        if end > self.chunk_bytes {
            return None;
        }
        // The ring's index was read with Acquire: what the kernel wrote into
        // the chunk is visible. Only the thread that wins may make a frame.
        state
            .compare_exchange(for_what as u8, OURS, Ordering::Relaxed, Ordering::Relaxed)
            .ok()?;
        Some(Frame {
            pool: Arc::clone(self),
            chunk: chunk as u32,
            start: start as u32,
            end: end as u32,
        })
    }

    fn chunk(&self, chunk: u32) -> *mut u8 {
        let offset = chunk as usize * self.chunk_bytes;
        debug_assert!(offset < self.memory.len());
        self.memory.as_mut_ptr().wrapping_add(offset)
    }
}

/// A frame's bytes, in a chunk that nobody else can touch. Dropping it gives
/// the chunk back.
pub struct Frame {
    pool: Arc<Pool>,
    chunk: u32,
    start: u32,
    end: u32,
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("chunk", &self.chunk)
            .field("range", &(self.start..self.end))
            .finish_non_exhaustive()
    }
}

impl Frame {
    /// All of the chunk, whatever part of it the frame is.
    pub fn chunk_mut(&mut self) -> &mut [u8] {
        // SAFETY: chunks do not overlap, and this frame is the only one of its
        // chunk (see `Pool`), borrowed mutably here. Bytes have no invalid values.
        unsafe { slice::from_raw_parts_mut(self.pool.chunk(self.chunk), self.pool.chunk_bytes) }
    }

    /// Makes `range` of the chunk the frame.
    ///
    /// # Panics
    ///
    /// If the range leaves the chunk.
    pub fn set_range(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.pool.chunk_bytes);
        (self.start, self.end) = (range.start as u32, range.end as u32);
    }

    /// Where in its chunk the frame is.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The bytes of the chunk in front of the frame.
    #[must_use]
    pub fn preceding<const N: usize>(&self) -> Option<&[u8; N]> {
        let start = self.start as usize;
        let at = self
            .pool
            .chunk(self.chunk)
            .wrapping_add(start.checked_sub(N)?);
        // SAFETY: as in `chunk_mut`, for reading: `N` bytes that end where the frame
        // begins, within the chunk. Bytes have no alignment.
        Some(unsafe { &*at.cast::<[u8; N]>() })
    }

    /// Copies `bytes` behind the usual headroom. False: they do not fit.
    pub fn copy_from(&mut self, bytes: &[u8]) -> bool {
        let range = HEADROOM_BYTES..HEADROOM_BYTES + bytes.len();
        let Some(place) = self.chunk_mut().get_mut(range.clone()) else {
            return false;
        };
        place.copy_from_slice(bytes);
        self.set_range(range);
        true
    }

    /// The pool that the chunk belongs to.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Gives the chunk to the kernel and returns the frame's offset in the pool
    /// and its length. The chunk comes back by [`Pool::take_back`] alone.
    #[inline]
    pub(super) fn lend(self) -> (u64, u32) {
        let frame = std::mem::ManuallyDrop::new(self);
        frame.pool.states[frame.chunk as usize].store(Lent::Transmit as u8, Ordering::Relaxed);
        let offset = u64::from(frame.chunk) * frame.pool.chunk_bytes as u64;
        let entry = (offset + u64::from(frame.start), frame.end - frame.start);
        // SAFETY: the frame is not used after this, so the pool is read once.
        drop(unsafe { std::ptr::read(&raw const frame.pool) });
        entry
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let length = (self.end - self.start) as usize;
        let start = self.pool.chunk(self.chunk);
        let start = start.wrapping_add(self.start as usize);
        // SAFETY: as in `chunk_mut`, for reading; `start` and `end` were
        // checked where they were set.
        unsafe { slice::from_raw_parts(start, length) }
    }
}

impl DerefMut for Frame {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let range = self.range();
        &mut self.chunk_mut()[range]
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        let returned = self.pool.free.push(self.chunk);
        debug_assert!(returned.is_ok(), "more chunks came back than there are");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Arc<Pool> {
        Pool::new(4, 2048).unwrap()
    }

    /// TB-45: any thread takes and gives back, without a lock.
    #[test]
    fn chunks_come_back_when_frames_are_dropped() {
        let pool = pool();
        let frames: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((frames.len(), pool.available()), (4, 0));
        drop(frames);
        assert_eq!(pool.available(), 4);
    }

    /// A child that the kernel made copies of the pool's chunks for held up all threads that
    /// faulted meanwhile, for 10 ms of two routers.
    #[test]
    #[cfg_attr(miri, ignore = "Miri takes no advice about memory")]
    fn children_do_not_inherit_a_pool() {
        let pool = pool();
        let address = pool.memory.as_ptr() as u64;
        let mappings = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_its = false;
        let flags = mappings.lines().find_map(|line| {
            if let Some((start, rest)) = line.split_once('-')
                && let Ok(start) = u64::from_str_radix(start, 16)
            {
                let end = rest.split(' ').next().unwrap();
                is_its = (start..u64::from_str_radix(end, 16).unwrap()).contains(&address);
            }
            line.strip_prefix("VmFlags:").filter(|_| is_its)
        });
        let flags = flags.expect("the pool is mapped");
        assert!(flags.split(' ').any(|flag| flag == "dc"), "{flags}");
    }

    /// TB-46: each takes one chunk from the same list, so no size costs more than another.
    #[test]
    fn frames_of_all_sizes_take_the_same() {
        let pool = pool();
        for bytes in [1, 60, 2048 - HEADROOM_BYTES] {
            let mut frame = pool.take().unwrap();
            assert!(frame.copy_from(&vec![7; bytes]));
            assert_eq!(pool.available(), 3, "{bytes} bytes");
        }
    }

    #[test]
    fn a_frame_holds_what_was_written_and_nobody_elses_bytes() {
        let pool = pool();
        let (mut one, mut other) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(one.copy_from(b"one") && other.copy_from(b"other"));
        other.chunk_mut().fill(0xff);
        assert_eq!(&one[..], b"one");
        assert!(!one.copy_from(&[0; 2048 - HEADROOM_BYTES + 1]));
        assert!(one.copy_from(&[0; 2048 - HEADROOM_BYTES]));
        one.chunk_mut()[HEADROOM_BYTES - 2..HEADROOM_BYTES].copy_from_slice(&[6, 7]);
        assert_eq!(one.preceding(), Some(&[6, 7]));
        assert_eq!(one.preceding::<{ HEADROOM_BYTES + 1 }>(), None);
    }

    /// TB-41: a frame that was handed over is out of the giver's reach.
    #[test]
    fn what_was_lent_comes_back_once_and_as_it_was() {
        let pool = pool();
        let mut frame = pool.take().unwrap();
        frame.copy_from(b"answer");
        let (offset, length) = frame.lend();
        assert_eq!(pool.available(), 3, "the kernel has it");
        let back = pool.take_back(Lent::Transmit, offset, length).unwrap();
        assert_eq!(&back[..], b"answer");
        assert!(pool.take_back(Lent::Transmit, offset, length).is_none());
        drop(back);
        assert_eq!(pool.available(), 4);
    }

    #[test]
    fn hostile_entries_yield_no_frame() {
        let pool = pool();
        let offset = pool.lend_empty().unwrap();
        let chunk = pool.chunk_bytes() as u64;
        for (at, length) in [
            (offset + chunk - 1, 2),             // runs over its end
            (offset, chunk as u32 + 1),          // longer than a chunk
            (offset, u32::MAX),                  // wraps
            (4 * chunk, 1),                      // behind the pool
            (u64::MAX, u32::MAX),                // far behind
            (u64::MAX - 5, 60),                  // wraps in 64 bits
            ((offset + chunk) % (4 * chunk), 1), // not lent
        ] {
            let frame = pool.take_back(Lent::Receive, at, length);
            assert!(frame.is_none(), "{at} {length}");
        }
        assert!(pool.take_back(Lent::Transmit, offset, 1).is_none());
        assert!(pool.take_back(Lent::Receive, offset + 256, 60).is_some());
        assert!(pool.take_back(Lent::Receive, offset + 256, 60).is_none());
    }
}
