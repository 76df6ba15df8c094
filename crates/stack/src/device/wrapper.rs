//! Devices around another device.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::{Batch, Capabilities, Channel, CookieAnswers, Device, Drops, Endpoint, Pool, Readers};
use crate::error::Error;

/// A device that may change what it receives and sends. The rest is the inner
/// device's. It steers only if it says so ([`narrow`](Self::narrow)): then an endpoint's own
/// socket must not pass it by ([`around`](Self::around)).
pub trait Wrapper: Send + Sync + fmt::Debug {
    /// The device inside.
    type Inner: Device + ?Sized;

    /// The device inside.
    fn inner(&self) -> &Self::Inner;

    /// What it can do, given what the inner device can do.
    fn narrow(&self, inner: Capabilities) -> Capabilities {
        Capabilities {
            steers: false,
            ..inner
        }
    }

    /// A socket of an endpoint's own that the inner device has opened, with this around it.
    ///
    /// # Errors
    ///
    /// `Unsupported`: it steers nothing.
    fn around(&self, opened: Arc<dyn Device>) -> io::Result<Arc<dyn Device>> {
        let _ = opened;
        Err(io::ErrorKind::Unsupported.into())
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

    /// As [`Device::enqueue`].
    ///
    /// # Errors
    ///
    /// As there.
    fn enqueue_through(&self, batch: &mut Batch) -> io::Result<usize> {
        self.transmit_through(batch)
    }
}

impl<W: Wrapper> Device for W {
    fn capabilities(&self) -> Capabilities {
        self.narrow(self.inner().capabilities())
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

    fn enqueue(&self, batch: &mut Batch) -> io::Result<usize> {
        self.enqueue_through(batch)
    }

    fn has_room(&self) -> bool {
        self.inner().has_room()
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.inner().readiness()
    }

    fn queries(&self) -> Option<BorrowedFd<'_>> {
        self.inner().queries()
    }

    fn receive_query(&self, buffer: &mut [u8]) -> Option<usize> {
        self.inner().receive_query(buffer)
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

    fn open_endpoint(&self, endpoint: Endpoint) -> io::Result<Arc<dyn Device>> {
        self.around(self.inner().open_endpoint(endpoint)?)
    }

    fn open_member(&self, endpoint: Endpoint) -> io::Result<Arc<dyn Device>> {
        self.around(self.inner().open_member(endpoint)?)
    }

    // The frames of TCP's channels come by this device.

    fn open_connection(
        &self,
        ends: (SocketAddr, SocketAddr),
        frames: u32,
    ) -> io::Result<Arc<dyn Channel>> {
        self.inner().open_connection(ends, frames)
    }

    fn open_listener(&self, endpoint: Endpoint) -> io::Result<Arc<dyn Channel>> {
        self.inner().open_listener(endpoint)
    }

    fn open_all_connections(&self) -> io::Result<()> {
        self.inner().open_all_connections()
    }

    fn know_cookies(&self, answers: &CookieAnswers) -> io::Result<()> {
        self.inner().know_cookies(answers)
    }

    fn answers_syns(&self) -> bool {
        self.inner().answers_syns()
    }

    fn answered_syns(&self) -> u64 {
        self.inner().answered_syns()
    }

    fn know_source(&self, source: IpAddr) {
        self.inner().know_source(source);
    }

    fn set_credit(&self, frames: u32) -> bool {
        self.inner().set_credit(frames)
    }

    fn select_vlan(&self, id: u16) -> io::Result<()> {
        self.inner().select_vlan(id)
    }

    fn add_address(&self, address: IpAddr) -> Result<(), Error> {
        self.inner().add_address(address)
    }

    fn add_broadcast(&self, address: Ipv4Addr) -> Result<(), Error> {
        self.inner().add_broadcast(address)
    }

    fn claim(&self, endpoint: Endpoint) -> io::Result<()> {
        self.inner().claim(endpoint)
    }

    fn know_readers(&self, readers: Arc<dyn Readers>) {
        self.inner().know_readers(readers);
    }

    fn owns_address(&self) -> bool {
        self.inner().owns_address()
    }

    fn release(&self, endpoint: Endpoint) {
        self.inner().release(endpoint);
    }
}

/// Several may have the same device: a stack, and who asks it for more than a stack tells.
impl<D: Device + ?Sized> Wrapper for Arc<D> {
    type Inner = D;

    fn inner(&self) -> &D {
        self
    }

    fn narrow(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    fn around(&self, opened: Arc<dyn Device>) -> io::Result<Arc<dyn Device>> {
        Ok(opened)
    }

    fn enqueue_through(&self, batch: &mut Batch) -> io::Result<usize> {
        (**self).enqueue(batch)
    }
}
