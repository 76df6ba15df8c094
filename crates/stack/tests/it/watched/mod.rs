//! A device that notes where the frames that are sent lie in memory.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use plimsoll_stack::device::simulated::SimulatedDevice;
use plimsoll_stack::device::{Batch, Capabilities, Device, Drops, Pool};

/// Where frames end in memory that were sent, call by call.
pub(crate) type Sent = Arc<Mutex<Vec<Vec<usize>>>>;

/// A device that notes it.
#[derive(Clone, Debug)]
pub(crate) struct Watched(pub(crate) Arc<SimulatedDevice>, pub(crate) Sent);

impl Device for Watched {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn pool(&self) -> &Arc<Pool> {
        self.0.pool()
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        self.0.receive(batch, max)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        let ends = batch.iter().map(|frame| end_of(frame));
        self.1.lock().unwrap().push(ends.collect());
        self.0.transmit(batch)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.0.readiness()
    }

    fn drops(&self) -> Drops {
        self.0.drops()
    }
}

pub(crate) fn end_of(bytes: &[u8]) -> usize {
    bytes.as_ptr_range().end as usize
}
