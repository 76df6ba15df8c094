//! What became of every frame.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::memory::Enforced;

/// Frames of one interface, each in one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortCounts {
    /// Dropped before they were seen: ring full, no buffer, no frame.
    pub ring: u64,
    /// The queue to the screen was full.
    pub queue: u64,
    /// The screen refused them.
    pub discarded: u64,
    /// Discarded undecided, since the screen had died or hung, or was at its end; or, where it
    /// fails closed, since their receive queue was added later and has no socket.
    pub failed: u64,
    /// The other interface could not take them, was down, or had no carrier.
    pub output: u64,
    /// They left by the other interface.
    pub accepted: u64,
    /// Of these: protected, not decided on.
    pub protected: u64,
    /// Of these: passed undecided, since the screen had died or hung.
    pub passed: u64,
    /// Of those that were discarded or accepted, or that the other interface could not
    /// take: decided in the driver, by a remembered verdict.
    pub remembered: u64,
    /// How often input was inhibited.
    pub inhibited: u64,
}

impl PortCounts {
    pub(super) fn add(&mut self, enforced: Enforced) {
        self.discarded += enforced.discarded;
        self.accepted += enforced.accepted;
        self.output += enforced.output;
        self.remembered += enforced.discarded + enforced.accepted + enforced.output;
    }

    /// All frames that arrived.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.ring + self.queue + self.discarded + self.failed + self.output + self.accepted
    }
}

/// Frames of both interfaces.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    /// Those that came from inside.
    pub inside: PortCounts,
    /// Those that came from outside.
    pub outside: PortCounts,
    /// How often rules were read anew.
    pub reloads: u64,
    /// The screen died.
    pub screen_died: bool,
}

/// The same while both threads count.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) queue: AtomicU64,
    pub(super) discarded: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) output: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) protected: AtomicU64,
    pub(super) passed: AtomicU64,
    pub(super) inhibited: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn read(&self, ring: u64) -> PortCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PortCounts {
            ring,
            queue: read(&self.queue),
            discarded: read(&self.discarded),
            failed: read(&self.failed),
            output: read(&self.output),
            accepted: read(&self.accepted),
            protected: read(&self.protected),
            passed: read(&self.passed),
            remembered: 0,
            inhibited: read(&self.inhibited),
        }
    }
}
