//! The way of packets into the kernel's stack that only user space found not to be
//! plain: an expired TTL, no route, no neighbour, too big, another interface.
//!
//! They go in by a TAP interface, and the kernel routes them as any other packet: it asks
//! for addresses, answers with ICMP errors, fragments. The XDP program passes before
//! what it can tell by the frame, this host's addresses and the switches of the interface, so that
//! ARP and packets for or from own addresses keep the interface they came in by. The TAP interface
//! ends with the process.
//!
//! **Limits.** The kernel sees these packets come in by the TAP interface. Rules by
//! interface do not match them, so with routing rules beyond the default ones user space
//! forwards nothing and everything takes this way. The kernel does not check sources there
//! (`rp_filter`): the routes to them lead to other interfaces.

use std::io;

use plimsoll_kernel::link;
use plimsoll_kernel::routing::switches;
use plimsoll_stack::device::tap::TapDevice;
use plimsoll_stack::device::{Batch, Device, Frame, Mac};

use super::error::Error;

/// Names that are tried.
const NAMES: u32 = 16;
/// Packets that wait at most.
const WAITING: usize = 256;

#[derive(Debug)]
pub(super) struct ToKernel {
    device: TapDevice,
    station: Mac,
    waiting: Batch,
}

/// Whether the kernel takes what enters by such an interface.
pub(super) fn check() -> Result<(), Error> {
    match switches::rp_filter("all") {
        0 => Ok(()),
        _ => Err(Error::ReversePathForAll),
    }
}

impl ToKernel {
    /// Makes the interface, for packets of up to `mtu` bytes.
    pub(super) fn open(mtu: u32) -> Result<Self, Error> {
        check()?;
        let name = (0..NAMES)
            .map(|number| format!("plimsoll{number}"))
            .find(|name| link::index(name).is_err())
            .ok_or_else(|| Error::usage("there are 16 interfaces named plimsoll already"))?;
        let device = TapDevice::open(&name)?;
        let index = link::index(&name)?;
        switches::make_entrance(&name).map_err(Error::os("set up the way to the kernel"))?;
        link::set_up(index, mtu).map_err(Error::os("set up the way to the kernel"))?;
        let state = link::link(index).map_err(Error::os("ask about an interface"))?;
        let station = state.mac.ok_or(Error::NoEthernet { interface: name })?;
        Ok(Self {
            device,
            station,
            waiting: Batch::with_capacity(WAITING),
        })
    }

    /// False: there is no room, and the frame is lost.
    pub(super) fn push(&mut self, mut frame: Frame) -> bool {
        if self.waiting.len() == WAITING {
            return false;
        }
        frame[..6].copy_from_slice(&self.station);
        self.waiting.push_back(frame);
        true
    }

    /// Hands over what waits.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if !self.waiting.is_empty() {
            self.device.transmit(&mut self.waiting)?;
        }
        Ok(())
    }
}
