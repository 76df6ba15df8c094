//! The way back of sent frames over a ring in this process, for benches: with the lazy watchdog
//! and optimistic protection, as AF_XDP has it, and without each of them.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::super::ring::{Incoming, Outgoing, Shared};
use super::{Completions, drain};
use crate::clock;
use crate::device::Pool;

/// Frames of the memory, and places of the ring.
const FRAMES: u32 = 1024;

/// A queue's completions, and a kernel that has sent what it is given at once.
#[derive(Debug)]
pub struct Returning {
    pool: Arc<Pool>,
    completions: Completions,
    kernel: Mutex<Outgoing<u64>>,
}

impl Returning {
    /// With all frames free.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new() -> io::Result<Self> {
        let (ours, kernels) = Shared::pair(FRAMES)?;
        Ok(Self {
            pool: Pool::new(FRAMES as usize, 2048)?,
            completions: Completions::new(Incoming::new(ours)),
            kernel: Mutex::new(Outgoing::new(kernels)),
        })
    }

    /// The bookkeeping of a call that sends so many frames: the last one's come back, these are
    /// lent.
    pub fn send(&self, frames: usize) {
        let now = clock::now();
        self.completions.reclaim(&self.pool, now);
        self.completions.on_lent(frames, now);
        self.lend(frames);
    }

    /// The same without the watchdog, which alone wants to know the time.
    pub fn send_unwatched(&self, frames: usize) {
        self.reclaim_unwatched();
        self.lend(frames);
    }

    /// Takes back what was sent, or leaves it to whoever does so just now.
    pub fn reclaim_unwatched(&self) {
        if let Some(mut ring) = self.completions.ring.try_lock() {
            drain(&mut ring, &self.pool);
        }
    }

    /// The same behind a plain lock: waits for whoever does so just now.
    pub fn reclaim_waiting(&self) {
        drain(&mut self.completions.ring.lock(), &self.pool);
    }

    /// Frames are lent, and the kernel gives them back.
    pub fn lend(&self, frames: usize) {
        let mut kernel = self.kernel.lock();
        for _ in 0..frames {
            if let Some(frame) = self.pool.take() {
                kernel.put(frame.lend().0);
            }
        }
        kernel.publish();
    }

    /// Frames that are not lent.
    #[must_use]
    pub fn available(&self) -> usize {
        self.pool.available()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Way = (&'static str, fn(&Returning));

    /// Each way takes the same frames back, or the benches would compare nothing.
    #[test]
    fn all_ways_take_all_frames_back() {
        let ways: [Way; 3] = [
            ("watched", |returning| returning.send(0)),
            ("unwatched", Returning::reclaim_unwatched),
            ("waiting", Returning::reclaim_waiting),
        ];
        for (name, way) in ways {
            let returning = Returning::new().unwrap();
            for _ in 0..40 {
                returning.lend(64);
                assert_eq!(returning.available(), FRAMES as usize - 64, "{name}");
                way(&returning);
                assert_eq!(returning.available(), FRAMES as usize, "{name}");
            }
        }
    }
}
