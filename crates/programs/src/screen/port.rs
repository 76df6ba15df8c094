//! An interface of the firewall: all its receive queues.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use plimsoll_kernel::knobs::{self, Keeper};
use plimsoll_stack::device::packet::Promiscuous;
use plimsoll_stack::device::xdp::{WholeQueue, XdpConfig, open_whole_by};
use plimsoll_stack::device::{Batch, Device};

use super::Error;
use super::carrier::Carrier;
use super::memory::{Constants, Program};

/// Frames of memory for each receive queue, at least.
const CHUNKS: usize = 8192;
/// Some of them, kept for sending.
const SEND_FRAMES: usize = 2048;
/// A burst that arrives while input is inhibited for a tick.
const RING_FRAMES: u32 = 2048;
/// Frames on their way between rings and queue, which are in neither.
const UNDERWAY: usize = 1024;
/// Tries to send what finds no room.
const TRIES: usize = 3;

#[derive(Debug)]
pub(super) struct Port {
    queues: Vec<WholeQueue>,
    /// Of protected frames, one for each queue; none if nothing is protected.
    protected: Vec<WholeQueue>,
    carrier: Carrier,
    /// Frames are for the hosts behind the other interface.
    _promiscuous: Promiscuous,
    /// What decides in the driver.
    pub(super) program: Program,
}

impl Port {
    /// Takes an interface, whose queue to the screen holds so many frames. Its keeper keeps
    /// closed what was.
    pub(super) fn open(
        interface: &str,
        queue_frames: u32,
        constants: Constants<'_>,
        keeper: Option<&mut Keeper>,
    ) -> Result<Self, Error> {
        let config = XdpConfig {
            chunks: chunks(queue_frames),
            send_frames: SEND_FRAMES,
            ring_frames: RING_FRAMES,
            ..XdpConfig::default()
        };
        let program = Program::load(constants)?;
        // What a killed one left closed stays so in between.
        let earlier = knobs::take_over(interface, program.as_fd(), keeper)?;
        let sockets = &program.sockets;
        let queues = open_whole_by(interface, &config, program.as_fd(), sockets, earlier)?;
        let beside = |queue: &WholeQueue| queue.beside(&program.chosen_sockets);
        let protected = match constants.protected {
            Some(_) => queues.iter().map(beside).collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        Ok(Self {
            queues,
            protected,
            carrier: Carrier::of(interface),
            _promiscuous: Promiscuous::begin(interface)?,
            program,
        })
    }

    /// Up to `quota` frames of each queue.
    pub(super) fn receive(&self, batch: &mut Batch, quota: usize) -> io::Result<usize> {
        receive(&self.queues, batch, quota)
    }

    /// The same of protected frames.
    pub(super) fn receive_protected(&self, batch: &mut Batch, quota: usize) -> io::Result<usize> {
        receive(&self.protected, batch, quota)
    }

    /// Sends copies of `frames`; returns how many left. Each interface has memory of its
    /// own, so a frame cannot change over. While the link is down none is sent.
    pub(super) fn transmit(&self, frames: &[&[u8]]) -> io::Result<usize> {
        if frames.is_empty() || self.carrier.is_down() {
            return Ok(0);
        }
        let out = &self.queues[0];
        let mut batch = Batch::with_capacity(frames.len());
        for frame in frames {
            let Some(mut copy) = out.pool().take() else {
                break;
            };
            if copy.copy_from(frame) {
                batch.push_back(copy);
            }
        }
        let mut sent = 0;
        for _ in 0..TRIES {
            sent += out.transmit(&mut batch)?;
            if batch.is_empty() {
                break;
            }
        }
        Ok(sent)
    }

    pub(super) fn readiness(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(Device::readiness)
    }

    /// The same of protected frames.
    pub(super) fn protected_readiness(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.protected.iter().map(Device::readiness)
    }

    /// Does what is due although nothing arrives; when to do so again.
    pub(super) fn tend(&self) -> io::Result<Option<Duration>> {
        let mut soonest = None;
        for queue in self.queues.iter().chain(&self.protected) {
            soonest = soonest.into_iter().chain(queue.tend()?).min();
        }
        Ok(soonest)
    }

    /// Frames that were dropped before anybody saw them.
    pub(super) fn dropped(&self) -> u64 {
        let queues = self.queues.iter().chain(&self.protected);
        let drops = queues.map(Device::drops);
        drops
            .map(|drops| drops.ring_full + drops.no_buffer + drops.invalid)
            .sum()
    }
}

fn receive(queues: &[WholeQueue], batch: &mut Batch, quota: usize) -> io::Result<usize> {
    let mut received = 0;
    for queue in queues {
        received += queue.receive(batch, quota)?;
    }
    Ok(received)
}

/// Enough that a full ring and a full queue of frames that wait for the screen leave room for
/// as many that do not.
fn chunks(queue_frames: u32) -> usize {
    let rings = 2 * RING_FRAMES as usize;
    CHUNKS.max(SEND_FRAMES + rings + queue_frames as usize + UNDERWAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_leaves_protected_frames_their_room() {
        assert_eq!(chunks(256), CHUNKS);
        let ring = RING_FRAMES as usize;
        for queue in [4, 256, 4096, 65_536] {
            let others = SEND_FRAMES + ring + queue as usize;
            assert!(chunks(queue) >= others + ring, "{queue}");
        }
    }
}
