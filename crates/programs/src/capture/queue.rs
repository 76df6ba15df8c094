//! The bounded queue between capture and disk: a fixed number of segments of memory.
//!
//! The capturing thread fills a segment with blocks and ships it; the writing thread
//! gives it back. A segment that came back last is used first, while the caches still
//! have it. Without a free segment the capture has nowhere to write to: what arrives
//! then is lost here, and counted.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::pcapng::Standing;

/// Bytes of a segment. Small, so that few packets are on their way; large beside the
/// cost of handing one over.
pub(super) const SEGMENT_BYTES: usize = 1 << 18;

/// What is gone with some blocks that could not be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) packets: u64,
    /// Losses that these packets tell.
    pub(super) told: u64,
}

/// Blocks on their way to the disk.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) bytes: Vec<u8>,
    pub(super) content: Content,
    /// As of the last packet in it.
    pub(super) standing: Standing,
}

#[derive(Debug)]
struct Shared {
    /// Their memory.
    free: Mutex<Vec<Vec<u8>>>,
    /// Segments that are not free.
    taken: AtomicUsize,
    segments: usize,
    segment_bytes: usize,
    /// Packets that could not be written.
    disk: AtomicU64,
    /// Losses that such packets told, and no later one.
    untold: AtomicU64,
    /// No more will be written.
    over: AtomicBool,
}

/// The capture's end.
#[derive(Debug)]
pub(super) struct Filler {
    shared: Arc<Shared>,
    to_writer: Sender<Segment>,
}

/// The disk's end.
#[derive(Debug)]
pub(super) struct Drainer {
    shared: Arc<Shared>,
    from_capture: Receiver<Segment>,
}

/// A queue of about `bytes`, in segments of up to `segment_bytes`.
pub(super) fn queue(bytes: usize, segment_bytes: usize) -> (Filler, Drainer) {
    let segments = (bytes / segment_bytes).max(4);
    let free = (0..segments).map(|_| Vec::with_capacity(segment_bytes));
    let shared = Arc::new(Shared {
        free: Mutex::new(free.collect()),
        taken: AtomicUsize::new(0),
        segments,
        segment_bytes,
        disk: AtomicU64::new(0),
        untold: AtomicU64::new(0),
        over: AtomicBool::new(false),
    });
    let (to_writer, from_capture) = channel();
    let filler = Filler {
        shared: Arc::clone(&shared),
        to_writer,
    };
    (
        filler,
        Drainer {
            shared,
            from_capture,
        },
    )
}

impl Shared {
    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Filler {
    /// Empty memory of a segment, if one is free.
    pub(super) fn take(&self) -> Option<Vec<u8>> {
        let memory = self.shared.free().pop()?;
        self.shared.taken.fetch_add(1, Ordering::Relaxed);
        Some(memory)
    }

    /// Hands a segment over. False: the writer is gone.
    pub(super) fn ship(&self, segment: Segment) -> bool {
        self.to_writer.send(segment).is_ok()
    }

    /// Segments in use, and how many there are.
    pub(super) fn occupancy(&self) -> (usize, usize) {
        let taken = self.shared.taken.load(Ordering::Relaxed);
        (taken, self.shared.segments)
    }

    pub(super) fn segment_bytes(&self) -> usize {
        self.shared.segment_bytes
    }

    /// Packets that could not be written so far.
    pub(super) fn disk(&self) -> u64 {
        self.shared.disk.load(Ordering::Relaxed)
    }

    /// Losses that are to be told again.
    pub(super) fn take_untold(&self) -> u64 {
        self.shared.untold.swap(0, Ordering::Relaxed)
    }

    /// No more will be written: segments are taken and lost.
    pub(super) fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Relaxed)
    }
}

impl Drainer {
    /// The next segment; an error when there is none in time, or no capture any more.
    pub(super) fn next(&self, timeout: Duration) -> Result<Segment, RecvTimeoutError> {
        self.from_capture.recv_timeout(timeout)
    }

    /// Gives a segment's memory back.
    pub(super) fn give_back(&self, mut memory: Vec<u8>) {
        memory.clear();
        self.shared.free().push(memory);
        self.shared.taken.fetch_sub(1, Ordering::Relaxed);
    }

    /// These packets could not be written.
    pub(super) fn lose(&self, content: Content) {
        self.shared
            .disk
            .fetch_add(content.packets, Ordering::Relaxed);
        self.shared
            .untold
            .fetch_add(content.told, Ordering::Relaxed);
    }

    /// Packets that could not be written so far.
    pub(super) fn disk(&self) -> u64 {
        self.shared.disk.load(Ordering::Relaxed)
    }

    /// The capture is to end, since no more can be written. What it ships until then is still to
    /// be taken, and lost.
    pub(super) fn end(&self) {
        self.shared.over.store(true, Ordering::Relaxed);
    }

    /// Whether it was told to end.
    pub(super) fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Counts;

    fn segment(bytes: Vec<u8>) -> Segment {
        let standing = Standing {
            now: Duration::ZERO,
            began: Duration::ZERO,
            counts: Counts::default(),
        };
        Segment {
            bytes,
            content: Content::default(),
            standing,
        }
    }

    #[test]
    fn segments_are_bounded_and_come_back_empty() {
        let (filler, drainer) = queue(4096, 1024);
        let mut taken: Vec<_> = std::iter::from_fn(|| filler.take()).collect();
        assert_eq!((taken.len(), filler.occupancy()), (4, (4, 4)));
        let mut one = taken.pop().unwrap();
        one.extend([1, 2, 3]);
        assert!(filler.ship(segment(one)));
        let arrived = drainer.next(Duration::ZERO).unwrap();
        assert_eq!(arrived.bytes, [1, 2, 3]);
        drainer.give_back(arrived.bytes);
        assert_eq!(filler.occupancy(), (3, 4));
        assert!(filler.take().is_some_and(|memory| memory.is_empty()));
        let content = Content {
            packets: 5,
            told: 7,
        };
        drainer.lose(content);
        assert_eq!((filler.disk(), drainer.disk()), (5, 5));
        assert_eq!((filler.take_untold(), filler.take_untold()), (7, 0));
        drop(drainer);
        assert!(!filler.ship(segment(Vec::new())));
    }
}
