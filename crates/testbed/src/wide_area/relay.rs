//! The thread that carries frames from one interface to the other, both ways.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use plimsoll_core::time::Instant;
use plimsoll_stack::device::packet::PacketDevice;
use plimsoll_stack::device::{Batch, Device, Frame};
use plimsoll_timers::{Backup, TimerFd};

use super::line::{Line, Travelling};
use super::report::{Direction, Passage};
use super::{PathConfig, Report};
use crate::interrupt;

/// Frames that are taken from a ring before those that are due are let out: a few
/// microseconds of copying. The ring hands over what came in some milliseconds at once.
const BATCH: usize = 4;
/// The thread does not block if a frame is due so soon: the kernel takes about that long
/// to wake it.
const WAKE_UP: Duration = Duration::from_micros(50);
/// Between two looks at the flags that end it.
const LOOK_MS: u8 = 50;

/// Both directions and the timer between them.
#[derive(Debug)]
pub(super) struct Relay {
    ways: [Way; 2],
    timer: TimerFd,
}

impl Relay {
    /// Between two interfaces: `near`'s frames are `there` in the report.
    pub(super) fn new(
        path: &PathConfig,
        near: PacketDevice,
        far: PacketDevice,
    ) -> io::Result<Self> {
        let (near, far) = (Arc::new(near), Arc::new(far));
        Ok(Self {
            ways: [Way::new(path, &near, &far), Way::new(path, &far, &near)],
            timer: TimerFd::new()?,
        })
    }

    /// Carries frames until it is told to stop.
    pub(super) fn run(mut self, stop: &AtomicBool) -> io::Result<Report> {
        while !stop.load(Ordering::Relaxed) && !interrupt::requested() {
            for way in &mut self.ways {
                way.take_in();
            }
            for way in &mut self.ways {
                way.let_out()?;
            }
            self.wait_for_next()?;
        }
        let [there, back] = self.ways.map(Way::into_direction);
        Ok(Report { there, back })
    }

    /// Blocks until frames came or one is due. The thread itself waits for the last
    /// microseconds, which a sleep would overrun.
    fn wait_for_next(&mut self) -> io::Result<()> {
        let due = self.ways.iter().filter_map(|way| way.line.next_due()).min();
        if let Some(due) = due {
            let left = due.saturating_since(wall_clock());
            if left <= WAKE_UP {
                std::hint::spin_loop();
                return Ok(());
            }
            self.timer.arm(left - WAKE_UP)?;
        }
        let [there, back] = &self.ways;
        for way in [there, back] {
            // What it asks for is later than the next look.
            way.from.tend()?;
        }
        let sources = [
            there.from.readiness(),
            back.from.readiness(),
            self.timer.as_fd(),
        ];
        let mut ready = sources.map(|source| PollFd::new(source, PollFlags::POLLIN));
        match poll(&mut ready, PollTimeout::from(LOOK_MS)) {
            Ok(_) | Err(Errno::EINTR) => self.timer.clear(),
            Err(error) => Err(error.into()),
        }
    }
}

/// One direction.
#[derive(Debug)]
struct Way {
    from: Arc<PacketDevice>,
    to: Arc<PacketDevice>,
    line: Line<Frame>,
    direction: Direction,
    passages_max: usize,
    batch: Batch,
}

impl Way {
    fn new(path: &PathConfig, from: &Arc<PacketDevice>, to: &Arc<PacketDevice>) -> Self {
        Self {
            from: Arc::clone(from),
            to: Arc::clone(to),
            line: Line::new(path.rate, path.delay, path.queue_frames),
            direction: Direction::new(path.passages_max),
            passages_max: path.passages_max,
            batch: Batch::with_capacity(1),
        }
    }

    /// What came counts from the moment at which the kernel saw it, whenever its ring
    /// is read.
    fn take_in(&mut self) {
        let (line, direction) = (&mut self.line, &mut self.direction);
        self.from.receive_stamped(BATCH, |at_ns, frame| {
            let bytes = frame.len() as u32;
            direction.offered += 1;
            if !line.offer(Instant::from_nanos(at_ns), bytes, frame) {
                direction.queue_full += 1;
            }
        });
    }

    fn let_out(&mut self) -> io::Result<()> {
        loop {
            let now = wall_clock();
            let Some(frame) = self.line.poll(now) else {
                return Ok(());
            };
            let Travelling { offered, due, item } = frame;
            let bytes = item.len() as u32;
            self.batch.push_back(item);
            self.to.transmit(&mut self.batch)?;
            if !self.batch.is_empty() {
                self.batch.clear();
                self.direction.refused += 1;
                continue;
            }
            self.direction.delivered += 1;
            let late = now.saturating_since(due);
            self.direction.count_lateness(late);
            if self.direction.passages.len() < self.passages_max {
                self.direction.passages.push(Passage {
                    offered_ns: offered.as_nanos(),
                    due_ns: due.as_nanos(),
                    delivered_ns: now.as_nanos(),
                    bytes,
                });
            }
        }
    }

    fn into_direction(mut self) -> Direction {
        let drops = self.from.drops();
        self.direction.travelling = self.line.travelling() as u64;
        self.direction.unreceived = drops.ring_full + drops.early + drops.no_buffer + drops.invalid;
        self.direction
    }
}

/// The clock of the kernel's stamps. A path lives for seconds or minutes; if the clock is
/// set meanwhile, what travels then is early or late by as much.
fn wall_clock() -> Instant {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let nanos = since.map_or(0, |since| since.as_nanos());
    Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
