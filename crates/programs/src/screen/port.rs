//! An interface of the firewall: all its receive queues.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use plimsoll_stack::device::xdp::{WholeQueue, XdpConfig, open_whole_by};
use plimsoll_stack::device::{Batch, Device};

use super::Error;
use super::memory::Program;

/// Frames of memory for each receive queue, some of them kept for sending.
const CHUNKS: usize = 8192;
const SEND_FRAMES: usize = 2048;
/// A burst that arrives while input is inhibited for a tick.
const RING_FRAMES: u32 = 2048;
/// Tries to send what finds no room.
const TRIES: usize = 3;

#[derive(Debug)]
pub(super) struct Port {
    queues: Vec<WholeQueue>,
    /// What decides in the driver.
    pub(super) program: Program,
}

impl Port {
    /// Takes an interface, of which so many flows are remembered.
    pub(super) fn open(interface: &str, flows: Option<u32>) -> Result<Self, Error> {
        let config = XdpConfig {
            chunks: CHUNKS,
            send_frames: SEND_FRAMES,
            ring_frames: RING_FRAMES,
            ..XdpConfig::default()
        };
        let program = Program::load(flows)?;
        let queues = open_whole_by(interface, &config, program.as_fd(), &program.sockets)?;
        Ok(Self { queues, program })
    }

    /// Up to `quota` frames of each queue.
    pub(super) fn receive(&self, batch: &mut Batch, quota: usize) -> io::Result<usize> {
        let mut received = 0;
        for queue in &self.queues {
            received += queue.receive(batch, quota)?;
        }
        Ok(received)
    }

    /// Sends copies of `frames`; returns how many left. Each interface has memory of its
    /// own, so a frame cannot change over.
    pub(super) fn transmit(&self, frames: &[&[u8]]) -> io::Result<usize> {
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

    /// Frames that were dropped before anybody saw them.
    pub(super) fn dropped(&self) -> u64 {
        let drops = self.queues.iter().map(Device::drops);
        drops
            .map(|drops| drops.ring_full + drops.no_buffer + drops.invalid)
            .sum()
    }
}
