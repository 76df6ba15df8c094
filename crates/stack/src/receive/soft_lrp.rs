//! `soft-lrp`: frames are put where they belong, and nothing else is done.
//!
//! Druschel & Banga, section 3.3: the interrupt handler demultiplexes, a full
//! channel discards early, and the receiving call does IP and UDP (LRP-11,
//! LRP-12, LRP-15, LRP-31, LRP-32). Demultiplexing is paid for every frame, so
//! livelock is far away and not impossible (LRP-29).

use std::io;

use parking_lot::MutexGuard;
use plimsoll_core::time::Instant;

use super::{Next, Path, Turn, WAIT_FOR_DEVICE};
use crate::device::Batch;
use crate::host::Host;
use crate::outcome::Tally;
use crate::table::Arrived;

#[derive(Debug)]
pub(super) struct SoftLrp {
    pub(super) frames: usize,
}

impl Path for SoftLrp {
    fn turn(&mut self, turn: &mut Turn<'_>) -> io::Result<Next> {
        let received = turn.host.device.receive(turn.batch, self.frames)?;
        if received == 0 {
            return Ok(WAIT_FOR_DEVICE);
        }
        turn.tally.received(received);
        demultiplex(turn.host, turn.batch, turn.tally, turn.now);
        Ok(Next::Again)
    }
}

/// Puts the frames of a batch where they belong, and empties it.
pub(super) fn demultiplex(host: &Host, batch: &mut Batch, tally: &Tally, now: Instant) {
    let mut table = host.table.lock();
    for frame in batch.drain(..) {
        if let Some(to) = table.classify(&frame, tally, now) {
            let early = to.earlier_fragments;
            table.push(to.channel, Arrived::Raw { frame, early }, tally, now);
        }
    }
    table.wake_receivers();
    MutexGuard::unlock_fair(table);
}
