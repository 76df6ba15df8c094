//! Devices around another device.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::{Batch, Capabilities, Device, Drops, Endpoint, Pool};

/// A device that may change what it receives and sends. The rest is the inner
/// device's. It steers nothing: an endpoint's own socket would pass it by.
pub trait Wrapper: Send + Sync + fmt::Debug {
    /// The device inside.
    type Inner: Device;

    /// The device inside.
    fn inner(&self) -> &Self::Inner;

    /// What it can do, given what the inner device can do.
    fn narrow(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    /// As [`Device::receive`].
    ///
    /// # Errors
    ///
    /// As there.
    fn receive_through(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        self.inner().receive(batch, max)
    }

    /// As [`Device::transmit`].
    ///
    /// # Errors
    ///
    /// As there.
    fn transmit_through(&self, batch: &mut Batch) -> io::Result<usize> {
        self.inner().transmit(batch)
    }
}

impl<W: Wrapper> Device for W {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            steers: false,
            ..self.narrow(self.inner().capabilities())
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        self.inner().pool()
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        self.receive_through(batch, max)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        self.transmit_through(batch)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.inner().readiness()
    }

    fn tend(&self) -> io::Result<Option<Duration>> {
        self.inner().tend()
    }

    fn drops(&self) -> Drops {
        self.inner().drops()
    }

    fn unsent(&self) -> u64 {
        self.inner().unsent()
    }

    fn set_credit(&self, frames: u32) -> bool {
        self.inner().set_credit(frames)
    }

    fn select_vlan(&self, id: u16) -> io::Result<()> {
        self.inner().select_vlan(id)
    }

    fn add_address(&self, address: IpAddr) -> io::Result<()> {
        self.inner().add_address(address)
    }

    fn claim(&self, endpoint: Endpoint) -> io::Result<()> {
        self.inner().claim(endpoint)
    }

    fn owns_address(&self) -> bool {
        self.inner().owns_address()
    }

    fn release(&self, endpoint: Endpoint) {
        self.inner().release(endpoint);
    }
}
