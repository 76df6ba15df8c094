//! `ni-lrp`: the device demultiplexes, and nobody stands in between.
//!
//! Druschel & Banga's network-interface channels (sections 3.1 to 3.3): every
//! bound UDP port has a receive ring of its own, which an XDP program fills in the
//! kernel. A full ring is the early discard; the receiving call takes frames
//! from the ring itself and does IP and UDP on its own thread (LRP-20, LRP-24,
//! LRP-31, LRP-32; the virtual circuit of their prototype, LRP-30, is a port).
//!
//! Listeners and connections of TCP have channels in the program as well, which are counts and no
//! rings (`device::xdp::channels`): their segments come by the main ring, as many as their queues
//! have room for (LRP-38, LRP-39, LRP-42).
//!
//! What the device cannot tell (fragments, ARP, ICMP, groups) comes by the main
//! ring and goes the way of `soft-lrp`; a socket reads its channel as well.

use std::io;
use std::sync::Arc;

use super::soft_lrp::SoftLrp;
use crate::device::{Batch, Device, Endpoint, Frame};
use crate::host::Host;
use crate::outcome::Tally;

/// What happens to frames that the device does not steer.
pub(super) fn rest(frames: usize) -> SoftLrp {
    SoftLrp { frames }
}

/// An endpoint's own receive ring.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) device: Arc<dyn Device>,
    /// Taken from the ring and not yet asked for.
    pub(crate) batch: Batch,
}

/// Frames that are taken from the ring together: they are out of its bound.
const TAKEN_FRAMES: usize = 64;

impl Ring {
    /// `shared`: others may have the same endpoint.
    pub(crate) fn open(host: &Host, endpoint: Endpoint, shared: bool) -> io::Result<Self> {
        let device = match shared {
            false => host.device.open_endpoint(endpoint)?,
            true => host.device.open_member(endpoint)?,
        };
        Ok(Self {
            device,
            batch: Batch::with_capacity(TAKEN_FRAMES),
        })
    }

    /// The next frame, taken from the ring some at a time.
    #[inline]
    pub(crate) fn next(&mut self, tally: &Tally) -> io::Result<Option<Frame>> {
        if self.batch.is_empty() {
            let received = self.device.receive(&mut self.batch, TAKEN_FRAMES)?;
            tally.received(received);
        }
        Ok(self.batch.pop_front())
    }
}
