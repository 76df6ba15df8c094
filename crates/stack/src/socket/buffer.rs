//! Datagrams that are written where the device reads them (TB-48).

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use crate::device::{Frame, HEADROOM_BYTES};

/// The payload of a datagram to be sent, in the device's memory: fill it in, then give it to
/// [`UdpSocket::send_buffers`](crate::UdpSocket::send_buffers). Dropping it gives the memory
/// back.
///
/// ```
/// # use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
/// # use plimsoll_stack::{Stack, StackConfig, UdpSocket};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (here, there) = SimulatedDevice::pair(&SimulatedConfig::default())?;
/// # let stack = Stack::start(here, &StackConfig::at("10.0.0.1/24".parse()?))?;
/// # let other = Stack::start(there, &StackConfig::at("10.0.0.2/24".parse()?))?;
/// # let receiver = UdpSocket::bind(&other, "10.0.0.2:7")?;
/// let socket = UdpSocket::bind(&stack, "10.0.0.1:5")?;
/// let mut batch = Vec::with_capacity(64);
/// for client in ["10.0.0.2:7".parse()?] {
///     let mut buffer = socket.send_buffer(client, 1400)?;
///     buffer[..5].copy_from_slice(b"hello");
///     buffer.truncate(5);
///     batch.push(buffer);
/// }
/// socket.send_buffers(&mut batch)?;
/// # assert_eq!(receiver.recv(&mut [0; 16])?, 5);
/// # Ok(())
/// # }
/// ```
///
/// What it holds at first is left over from other packets of the device: write all of it, or
/// [`truncate`](Self::truncate) it.
#[derive(Debug)]
pub struct SendBuffer {
    pub(super) frame: Frame,
    pub(super) to: SocketAddr,
}

impl SendBuffer {
    /// The caller has checked that a frame of the pool has room.
    pub(super) fn new(mut frame: Frame, to: SocketAddr, bytes: usize) -> Self {
        frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + bytes);
        Self { frame, to }
    }

    /// Whom it is for.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        self.to
    }

    /// Leaves only the first `bytes` of the payload, in bytes; nothing changes if it has no more.
    pub fn truncate(&mut self, bytes: usize) {
        let range = self.frame.range();
        let end = range.end.min(range.start.saturating_add(bytes));
        self.frame.set_range(range.start..end);
    }
}

impl Deref for SendBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.frame
    }
}

impl DerefMut for SendBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.frame
    }
}
