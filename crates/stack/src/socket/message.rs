//! Datagrams of several packets that are written where the device reads them (TB-47).

use std::net::SocketAddr;

use crate::device::{Allocator, Frame};
use crate::wire::datagram::{Datagram, Payload};

/// The payload of a datagram of any length, in the device's memory: fill it in, then give it to
/// [`UdpSocket::send_messages`](crate::UdpSocket::send_messages). Dropping it gives the memory
/// back.
///
/// It lies in chunks, each as long as a packet of the link takes. So none of it is copied when
/// it is sent: each chunk becomes a fragment where it lies. What fits one packet is one chunk.
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
/// // One for each thread.
/// let mut allocator = stack.allocator(64);
/// let mut message = socket.message(&mut allocator, "10.0.0.2:7".parse()?, 4000)?;
/// message.write_at(0, b"head");
/// for chunk in message.chunks_mut().skip(1) {
///     chunk.fill(7);
/// }
/// socket.send_messages(&mut vec![message])?;
/// # assert_eq!(receiver.recv(&mut [0; 5000])?, 4000);
/// # Ok(())
/// # }
/// ```
///
/// What it holds at first is left over from other packets of the device: write all of it, or
/// [`truncate`](Self::truncate) it.
#[derive(Debug)]
pub struct Message {
    /// Never none.
    pub(super) frames: Vec<Frame>,
    pub(super) to: SocketAddr,
}

impl Message {
    /// The caller has laid the frames out.
    pub(super) fn new(frames: Vec<Frame>, to: SocketAddr) -> Self {
        Self { frames, to }
    }

    /// Whom it is for.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        self.to
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks().map(<[u8]>::len).sum()
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is in it, chunk by chunk.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.frames.iter().map(|frame| &frame[..])
    }

    /// As [`chunks`](Self::chunks), to be written.
    pub fn chunks_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.frames.iter_mut().map(|frame| &mut frame[..])
    }

    /// Copies `bytes` to a place in the message, wherever chunks begin and end.
    ///
    /// # Panics
    ///
    /// If they do not fit there.
    pub fn write_at(&mut self, place: usize, mut bytes: &[u8]) {
        let mut skipped = place;
        for chunk in self.chunks_mut() {
            let from = skipped.min(chunk.len());
            skipped -= from;
            let count = bytes.len().min(chunk.len() - from);
            chunk[from..from + count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
        }
        assert!(
            skipped == 0 && bytes.is_empty(),
            "behind the end of the message"
        );
    }

    /// Leaves only the first `bytes`; nothing changes if it has no more.
    pub fn truncate(&mut self, bytes: usize) {
        let (mut left, mut chunks) = (bytes, 0);
        for frame in &mut self.frames {
            let range = frame.range();
            let kept = range.len().min(left);
            frame.set_range(range.start..range.start + kept);
            left -= kept;
            chunks += usize::from(kept > 0);
        }
        // The first stays, also without a byte.
        self.frames.truncate(chunks.max(1));
    }
}

impl Allocator {
    /// Keeps the memory of datagrams that were worked off, for the next answers. `datagrams` is
    /// empty afterwards.
    pub fn recycle(&mut self, datagrams: &mut Vec<Datagram>) {
        for datagram in datagrams.drain(..) {
            if let Payload::Frame(frame) = datagram.payload {
                self.give(frame);
            }
        }
    }
}
