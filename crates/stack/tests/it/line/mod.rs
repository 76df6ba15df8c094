//! A cable with a bottleneck: what is sent leaves it at a rate, some time later.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_stack::device::simulated::SimulatedDevice;
use plimsoll_stack::device::{Batch, Device, Frame};
use plimsoll_stack::device::{Capabilities, Drops, Pool};

/// What the bottleneck does with frames for which its queue has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// They are lost, as on a path.
    Lost,
    /// They stay with the sender, as with an adapter's ring.
    Kept,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) frame_time: Duration,
    pub(crate) delay: Duration,
    pub(crate) queue_frames: usize,
    pub(crate) beyond: Beyond,
}

/// The device of the end that sends through the bottleneck.
#[derive(Debug)]
pub(crate) struct Line(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shape: Shape,
    device: SimulatedDevice,
    queue: Mutex<Queue>,
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    /// With the time at which each leaves the bottleneck.
    frames: VecDeque<(Instant, Frame)>,
    free_at: Option<Instant>,
}

/// How often it is looked what is due.
const LOOK: Duration = Duration::from_micros(200);

impl Line {
    pub(crate) fn new(device: SimulatedDevice, shape: Shape) -> Self {
        let inner = Arc::new(Inner {
            shape,
            device,
            queue: Mutex::default(),
            lost: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&inner);
        thread::spawn(move || {
            while let Some(inner) = weak.upgrade() {
                inner.let_out();
                drop(inner);
                thread::sleep(LOOK);
            }
        });
        Self(inner)
    }

    /// What tells how many frames were lost.
    pub(crate) fn losses(&self) -> impl Fn() -> u64 + use<> {
        let inner = Arc::clone(&self.0);
        move || inner.lost.load(Ordering::Relaxed)
    }
}

impl Inner {
    fn let_out(&self) {
        let due = {
            let mut queue = self.queue.lock().unwrap();
            let now = Instant::now();
            let ended = |(at, _): &(Instant, Frame)| *at + self.shape.delay <= now;
            let count = queue.frames.iter().take_while(|one| ended(one)).count();
            let due = queue.frames.drain(..count);
            due.map(|(_, frame)| frame).collect::<Batch>()
        };
        let mut due = due;
        self.device.transmit(&mut due).unwrap();
    }

    /// False: there is no place for it.
    fn has_place(&self, queue: &Queue, now: Instant) -> bool {
        let left = |(at, _): &&(Instant, Frame)| *at > now;
        queue.frames.iter().rev().take_while(left).count() < self.shape.queue_frames
    }
}

impl Device for Line {
    fn capabilities(&self) -> Capabilities {
        self.0.device.capabilities()
    }

    fn pool(&self) -> &Arc<Pool> {
        self.0.device.pool()
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        self.0.device.receive(batch, max)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        let mut queue = self.0.queue.lock().unwrap();
        let (now, before) = (Instant::now(), batch.len());
        while !batch.is_empty() {
            let place = self.0.has_place(&queue, now);
            if !place && self.0.shape.beyond == Beyond::Kept {
                break;
            }
            let frame = batch.pop_front().expect("it is not empty");
            if !place {
                self.0.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let begins = queue.free_at.map_or(now, |free| free.max(now));
            let leaves = begins + self.0.shape.frame_time;
            queue.free_at = Some(leaves);
            queue.frames.push_back((leaves, frame));
        }
        Ok(before - batch.len())
    }

    fn readiness(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.device.readiness()
    }

    fn drops(&self) -> Drops {
        self.0.device.drops()
    }
}
