//! The receiving thread: takes frames out of the rings, and has them wait for the screen.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use plimsoll_core::channel::{Admission, Producer};
use plimsoll_core::time::Instant;
use plimsoll_stack::device::{Batch, Frame};

use super::{Shared, WAIT, bytes, now};
use crate::screen::Side;
use crate::screen::counts::add;
use crate::screen::port::Port;

/// Longest wait while an interface is inhibited: a tick.
const TICK: Duration = Duration::from_millis(1);

/// The receiving thread.
pub(super) struct Receiving<'a> {
    shared: &'a Shared<'a>,
    queues: [Producer<Frame>; 2],
    screening: Thread,
    batch: Batch,
    /// Decisions at the last look that found new ones, and when that was.
    decided: u64,
    decided_at: Instant,
    was_hung: bool,
    /// Decisions that feedback knows of.
    told: u64,
}

impl<'a> Receiving<'a> {
    pub(super) fn new(
        shared: &'a Shared<'a>,
        queues: [Producer<Frame>; 2],
        screening: &Thread,
    ) -> Self {
        Self {
            shared,
            queues,
            screening: screening.clone(),
            batch: Batch::with_capacity(4 * shared.config.quota as usize),
            decided: 0,
            decided_at: now(),
            was_hung: false,
            told: 0,
        }
    }

    pub(super) fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let failure = &self.shared.failure;
        while !stop.load(Ordering::Relaxed) && failure.get().is_none() {
            let now = now();
            self.tell_progress(now);
            self.shared.tell(|feedback, _| feedback.poll_timeout(now));
            let mut received = 0;
            for side in Side::ALL {
                received += self.pass_protected(side)?;
                if !self.shared.is_inhibited(side) {
                    received += self.turn(side, now)?;
                }
            }
            if received == 0 {
                self.wait()?;
            }
        }
        Ok(())
    }

    /// A slow screen is no hung one. The screening thread tells of its progress once in a turn,
    /// which may take longer than a tick; feedback would let input go on for many.
    fn tell_progress(&mut self, now: Instant) {
        let decided = self.shared.decided.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.told, decided) == decided {
            return;
        }
        for side in Side::ALL {
            let occupancy = self.queues[side.index()].occupancy() as u32;
            self.shared
                .tell(|feedback, queues| feedback.on_dequeue(queues[side.index()], occupancy, now));
        }
    }

    /// Sends a quota of protected frames on, also while their interface is inhibited.
    fn pass_protected(&mut self, side: Side) -> io::Result<usize> {
        let port = &self.shared.ports[side.index()];
        let quota = self.shared.config.quota as usize;
        let received = port.receive_protected(&mut self.batch, quota)?;
        if received > 0 {
            let frames: Vec<Frame> = self.batch.drain(..).collect();
            let sent = self.shared.send(side, &bytes(&frames))?;
            add(&self.shared.counters(side).protected, sent);
        }
        Ok(received)
    }

    /// Takes a quota of frames from one interface.
    fn turn(&mut self, side: Side, now: Instant) -> io::Result<usize> {
        let port = &self.shared.ports[side.index()];
        let received = port.receive(&mut self.batch, self.shared.config.quota as usize)?;
        if received == 0 {
            return Ok(0);
        }
        let frames: Vec<Frame> = self.batch.drain(..).collect();
        let is_hung = self.is_hung(now);
        if is_hung && !std::mem::replace(&mut self.was_hung, is_hung) {
            self.shared.forget().map_err(io::Error::other)?;
        }
        self.was_hung = is_hung;
        if is_hung {
            self.shared.without_screen(side, &bytes(&frames))?;
        } else {
            self.push(side, frames, now);
        }
        Ok(received)
    }

    fn push(&mut self, side: Side, frames: Vec<Frame>, now: Instant) {
        let queue = &mut self.queues[side.index()];
        let mut refused = 0;
        for frame in frames {
            if let Admission::Discarded { .. } = queue.push(frame, now) {
                refused += 1;
            }
        }
        add(&self.shared.counters(side).queue, refused);
        let occupancy = queue.occupancy() as u32;
        self.shared
            .tell(|feedback, queues| feedback.on_enqueue(queues[side.index()], occupancy, now));
        if queue.interrupt_due() {
            self.screening.unpark();
        }
    }

    /// Whether frames wait and nothing has been decided for too long.
    fn is_hung(&mut self, now: Instant) -> bool {
        let decided = self.shared.decided.load(Ordering::Relaxed);
        let waiting = self.queues.iter().any(|queue| queue.occupancy() > 0);
        if decided != self.decided || !waiting {
            (self.decided, self.decided_at) = (decided, now);
        }
        now.saturating_since(self.decided_at) >= self.shared.config.hang
    }

    /// Until there is something to do. An interface that is gone is a failure.
    fn wait(&self) -> io::Result<()> {
        let mut tended = WAIT;
        for port in self.shared.ports {
            tended = port.tend()?.map_or(tended, |next| next.min(tended));
        }
        let open = Side::ALL
            .into_iter()
            .filter(|&side| !self.shared.is_inhibited(side));
        let readable = open.flat_map(|side| self.shared.ports[side.index()].readiness());
        let ports = self.shared.ports.iter();
        let readable = readable.chain(ports.flat_map(Port::protected_readiness));
        let readable = readable.chain([self.shared.inhibited.descriptor()]);
        let inhibited = Side::ALL
            .into_iter()
            .any(|side| self.shared.is_inhibited(side));
        let timeout = if inhibited { TICK } else { tended.max(TICK) };
        let wanted = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
        let mut wanted: Vec<PollFd<'_>> = readable.map(wanted).collect();
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
        match poll(&mut wanted, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => self.shared.inhibited.forget(),
            Err(error) => Err(error.into()),
        }
    }
}
