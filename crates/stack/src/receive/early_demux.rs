//! `early-demux`: the socket is known first, the work is done at once.
//!
//! The control group of Druschel & Banga's section 4: early demultiplexing and
//! early discard without laziness. What is admitted is processed before any
//! application runs, so packets that no channel refuses (corrupted ones, those
//! of a socket that keeps up) still take the applications' time (LRP-19).

use std::io;

use parking_lot::MutexGuard;

use super::{Next, Path, Turn, WAIT_FOR_DEVICE, process_and_push};
use crate::table::Arrived;

#[derive(Debug)]
pub(super) struct EarlyDemux {
    pub(super) frames: usize,
}

impl Path for EarlyDemux {
    fn turn(&mut self, turn: &mut Turn<'_>) -> io::Result<Next> {
        let received = turn.host.device.receive(turn.batch, self.frames)?;
        if received == 0 {
            return Ok(WAIT_FOR_DEVICE);
        }
        turn.tally.received(received);
        let mut table = turn.host.table.lock();
        while let Some(frame) = turn.batch.pop_front() {
            let Some(to) = table.classify(&frame, turn.tally, turn.now) else {
                continue;
            };
            if table.is_full(to.channel) {
                // Discarded there; if the receiver made room meanwhile it has
                // this one to process itself.
                let early = to.earlier_fragments;
                table.push(
                    to.channel,
                    Arrived::Raw { frame, early },
                    turn.tally,
                    turn.now,
                );
            } else {
                process_and_push(turn, &mut table, frame, &to);
            }
        }
        table.wake_receivers();
        MutexGuard::unlock_fair(table);
        Ok(Next::Again)
    }
}
