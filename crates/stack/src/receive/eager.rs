//! `eager`: everything at arrival, as in 4.4BSD. It is there to be compared with.
//!
//! Two stages with one queue of fixed length between them, shared by all
//! (Druschel & Banga section 2.1, Mogul & Ramakrishnan sections 4.1 and 6.3). The
//! first, in the place of the hardware interrupt, takes all that the device has
//! and comes before every packet of the second, the software interrupt, which
//! does IP and UDP and finds the socket last. Under the papers' overload the first stage
//! has always more to take: the queue overflows, and then nothing is delivered
//! (MR-02, MR-03, MR-08, LRP-01, LRP-02, LRP-07).
//!
//! Both come before every process. So this thread runs at nice -20, which leaves processes on its
//! CPU a hundredth. At their own level it would share the CPU with them fairly, and they would
//! keep their goodput as BSD's did not. The kernel's polling, which fills the device's ring, is no
//! part of either stage. On a veth under ten times its load this path kept its goodput in two runs and
//! half of it in a third, and other endpoints lost most of their packets (docs/measurements.md, "A
//! whole run" and others).

use std::collections::VecDeque;
use std::io;

use parking_lot::MutexGuard;

use super::{Next, Path, Turn, WAIT_FOR_DEVICE, process_and_push};
use crate::device::Frame;
use crate::outcome::Outcome;

/// `IFQ_MAXLEN` of 4.4BSD, the length of `ipintrq`.
const IP_QUEUE_FRAMES: usize = 50;

#[derive(Debug)]
pub(super) struct Eager {
    frames: usize,
    ip_queue: VecDeque<Frame>,
}

impl Eager {
    pub(super) fn new(frames: usize) -> Self {
        Self {
            frames,
            ip_queue: VecDeque::with_capacity(IP_QUEUE_FRAMES),
        }
    }

    /// The hardware interrupt: what does not fit the shared queue is dropped.
    fn interrupt(&mut self, turn: &mut Turn<'_>) -> io::Result<usize> {
        let received = turn.host.device.receive(turn.batch, self.frames)?;
        turn.tally.received(received);
        for frame in turn.batch.drain(..) {
            if self.ip_queue.len() == IP_QUEUE_FRAMES {
                turn.tally.count(Outcome::IpQueueFull);
            } else {
                self.ip_queue.push_back(frame);
            }
        }
        Ok(received)
    }

    /// The software interrupt, for one packet.
    fn protocol_input(&mut self, turn: &Turn<'_>) {
        let Some(frame) = self.ip_queue.pop_front() else {
            return;
        };
        let mut table = turn.host.table.lock();
        if let Some(to) = table.classify(&frame, turn.tally, turn.now) {
            process_and_push(turn, &mut table, frame, &to);
        }
        table.wake_receivers();
        MutexGuard::unlock_fair(table);
    }
}

impl Path for Eager {
    fn outranks_processes(&self) -> bool {
        true
    }

    fn turn(&mut self, turn: &mut Turn<'_>) -> io::Result<Next> {
        // A turn, so that somebody can stop it: then the interrupt again.
        if self.interrupt(turn)? > 0 {
            return Ok(Next::Again);
        }
        if self.ip_queue.is_empty() {
            return Ok(WAIT_FOR_DEVICE);
        }
        self.protocol_input(turn);
        Ok(Next::Again)
    }
}
