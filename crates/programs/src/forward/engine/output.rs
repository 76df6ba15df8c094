//! An output queue: frames that wait for a device to take them.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use plimsoll_core::time::Instant;
use plimsoll_stack::device::{Batch, Device, Frame};

use crate::sent::Transmitted;

/// Frames of an output queue.
pub(super) const FRAMES: usize = 512;
/// A device that takes nothing for so long is down or gone, and what waits for it is old.
const PATIENCE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Output {
    frames: Batch,
    /// Since when the device has taken nothing.
    refused_since: Option<Instant>,
}

impl Output {
    pub(super) fn new() -> Self {
        Self {
            frames: VecDeque::with_capacity(FRAMES),
            refused_since: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Puts a frame at the end; false if there is no room, and it is dropped.
    pub(super) fn push(&mut self, frame: Frame, counts: &mut Transmitted) -> bool {
        if self.frames.len() == FRAMES {
            counts.dropped += 1;
            return false;
        }
        self.frames.push_back(frame);
        true
    }

    /// Has `device` take up to `quota` frames; returns how many it took. What waits for a
    /// device that has taken nothing for long is dropped, and at once if its interface was
    /// deleted. `batch` is empty before and after.
    pub(super) fn send(
        &mut self,
        device: &impl Device,
        quota: usize,
        batch: &mut Batch,
        now: Instant,
        counts: &mut Transmitted,
    ) -> io::Result<usize> {
        let take = self.frames.len().min(quota);
        batch.extend(self.frames.drain(..take));
        // Also without frames: it takes completions in.
        let sent = match device.transmit(batch) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                batch.clear();
                counts.dropped += take as u64;
                self.drop_all(counts);
                return Ok(0);
            }
            sent => sent?,
        };
        while let Some(frame) = batch.pop_back() {
            self.frames.push_front(frame);
        }
        counts.sent += sent as u64;
        if sent > 0 || self.frames.is_empty() {
            self.refused_since = None;
        } else if now.saturating_since(*self.refused_since.get_or_insert(now)) >= PATIENCE {
            self.drop_all(counts);
        }
        Ok(sent)
    }

    /// What waits goes nowhere.
    pub(super) fn drop_all(&mut self, counts: &mut Transmitted) {
        counts.dropped += self.frames.len() as u64;
        self.frames.clear();
        self.refused_since = None;
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
    use plimsoll_stack::device::{Capabilities, Drops, Pool};

    use super::*;

    /// A device that takes nothing while it is down, and fails once it is gone.
    #[derive(Debug)]
    struct Cable {
        end: SimulatedDevice,
        down: AtomicBool,
        gone: AtomicBool,
    }

    impl Cable {
        fn new(down: bool, gone: bool) -> Self {
            let (end, _far) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
            Self {
                end,
                down: AtomicBool::new(down),
                gone: AtomicBool::new(gone),
            }
        }
    }

    impl Device for Cable {
        fn capabilities(&self) -> Capabilities {
            self.end.capabilities()
        }
        fn pool(&self) -> &Arc<Pool> {
            self.end.pool()
        }
        fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
            self.end.receive(batch, max)
        }
        fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
            if self.gone.load(Ordering::Relaxed) {
                // As the ring of an AF_XDP socket: its kernel is told of frames that it has.
                batch.pop_front();
                return Err(io::ErrorKind::NotFound.into());
            }
            match self.down.load(Ordering::Relaxed) {
                true => Ok(0),
                false => self.end.transmit(batch),
            }
        }
        fn readiness(&self) -> BorrowedFd<'_> {
            self.end.readiness()
        }
        fn drops(&self) -> Drops {
            self.end.drops()
        }
    }

    /// The queue of a port that was deleted kept its frames, and its thread looked every
    /// 100 µs whether they could be sent.
    #[test]
    fn frames_for_a_device_that_takes_nothing_are_dropped_after_a_while() {
        let cable = Cable::new(true, false);
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let (mut output, mut counts) = (Output::new(), Transmitted::default());
        let fill = |output: &mut Output, counts: &mut Transmitted| {
            let mut pushed = 0;
            while output.push(cable.pool().take().unwrap(), counts) {
                pushed += 1;
            }
            pushed
        };
        let mut batch = Batch::new();
        let mut send = |output: &mut Output, counts: &mut Transmitted, ms| {
            output.send(&cable, 32, &mut batch, at(ms), counts).unwrap()
        };

        assert_eq!(fill(&mut output, &mut counts), FRAMES);
        assert_eq!(send(&mut output, &mut counts, 1000), 0);
        assert_eq!(send(&mut output, &mut counts, 1099), 0);
        assert_eq!(output.len(), FRAMES, "it may be busy");
        assert_eq!(send(&mut output, &mut counts, 1100), 0);
        assert!(output.is_empty());
        // One found no room.
        assert_eq!(counts.dropped, FRAMES as u64 + 1);

        assert_eq!(fill(&mut output, &mut counts), FRAMES);
        assert_eq!(
            send(&mut output, &mut counts, 2000),
            0,
            "patience begins anew"
        );
        cable.down.store(false, Ordering::Relaxed);
        assert_eq!(send(&mut output, &mut counts, 2099), 32);
        cable.down.store(true, Ordering::Relaxed);
        assert_eq!(send(&mut output, &mut counts, 2150), 0, "it took some");
        assert_eq!(output.len(), FRAMES - 32);
        let offered = 2 * FRAMES as u64 + 2;
        let accounted = counts.sent + counts.dropped + output.len() as u64;
        assert_eq!(accounted, offered);
    }

    /// A deleted interface ended the thread that forwards, and so between all others.
    #[test]
    fn frames_for_a_device_that_is_gone_are_dropped_at_once() {
        let cable = Cable::new(false, true);
        let (mut output, mut counts) = (Output::new(), Transmitted::default());
        for _ in 0..100 {
            output.push(cable.pool().take().unwrap(), &mut counts);
        }
        let mut batch = Batch::new();
        let sent = output.send(&cable, 32, &mut batch, Instant::ZERO, &mut counts);
        assert_eq!(sent.unwrap(), 0);
        assert!(output.is_empty() && batch.is_empty());
        assert_eq!((counts.sent, counts.dropped), (0, 100));
    }
}
