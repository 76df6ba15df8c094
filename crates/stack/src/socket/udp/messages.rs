//! Payloads that are not one row of bytes: of several parts, and of several packets.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use plimsoll_core::time::Instant;

use super::UdpSocket;
use crate::clock;
use crate::device::{Allocator, Batch, HEADROOM_BYTES};
use crate::socket::addresses::first;
use crate::socket::message::Message;
use crate::wire::{emit, fragments};

impl UdpSocket {
    /// As [`send_to`](Self::send_to), of a payload whose parts lie anywhere. They are copied
    /// straight into the packets, with no buffer in between.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn send_vectored_to(
        &self,
        parts: &[IoSlice<'_>],
        to: impl ToSocketAddrs,
    ) -> io::Result<usize> {
        self.send_parts(parts, first(to)?)
    }

    /// As [`send`](Self::send), of a payload whose parts lie anywhere.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn send_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_parts(parts, self.connected_to()?)
    }

    fn send_parts(&self, parts: &[IoSlice<'_>], to: SocketAddr) -> io::Result<usize> {
        self.trouble.take()?;
        let local = self.local_addr()?;
        self.send_each([parts], |parts, out, now| {
            let ends = self.host().ends(local, to)?;
            let via = self.via(ends.1.ip(), now);
            self.push_parts(ends, via, parts, out, now)
        })?;
        Ok(fragments::bytes_of(parts))
    }

    /// A payload of `bytes` for `to` in chunks of the device's memory, to be written in place and
    /// sent by [`send_messages`](Self::send_messages). It may be as long as a datagram can be.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: longer than a datagram can be. `ENOBUFS`: all memory of the device is in use
    /// now. `InvalidInput` or `ENETUNREACH`: no way there, or the allocator is another stack's.
    pub fn message(
        &self,
        allocator: &mut Allocator,
        to: SocketAddr,
        bytes: usize,
    ) -> io::Result<Message> {
        self.check_allocator(allocator)?;
        let (_, to) = self.host().ends(self.local_addr()?, to)?;
        if bytes > emit::payload_max(to.ip()) {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let mtu = self.egress().mtu_to(to.ip(), clock::now());
        let mut frames = Vec::new();
        for bytes in fragments::layout(to.ip(), mtu, bytes) {
            let mut frame = self.take_frame(|| allocator.take()).inspect_err(|_| {
                let taken = frames.drain(..);
                taken.for_each(|frame| allocator.give(frame));
            })?;
            frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + bytes);
            frames.push(frame);
        }
        Ok(Message::new(frames, to))
    }

    /// Sends messages with one call into the device and without copying them. They are copied
    /// where the path to the receiver has become smaller since they were made, and where they are
    /// another stack's. `batch` is empty afterwards. Returns how many were sent, as
    /// [`reply_batch`](Self::reply_batch).
    ///
    /// # Errors
    ///
    /// As [`send_to`](Self::send_to), if none was sent.
    pub fn send_messages(&self, batch: &mut Vec<Message>) -> io::Result<usize> {
        self.trouble.take()?;
        let local = self.local_addr()?;
        self.send_all(batch.drain(..), |message, out, now| {
            self.push_message(local, message, out, now)
        })
    }

    fn push_message(
        &self,
        local: SocketAddr,
        mut message: Message,
        out: &mut Batch,
        now: Instant,
    ) -> io::Result<()> {
        // The message may be another socket's.
        let ends = self.host().ends(local, message.to)?;
        let to = ends.1.ip();
        let via = self.via(to, now);
        if message.frames.len() == 1 {
            let frame = message.frames.remove(0);
            return self.push_frame(ends, via, frame, out, now);
        }
        let pool = self.host().device.pool();
        let mut frames = message.frames.iter();
        let ours = frames.all(|frame| Arc::ptr_eq(frame.pool(), pool));
        let mtu = self.egress().mtu_to(to, now);
        // Truncated, or for a longer path now, some bytes more may go in one packet.
        let as_it_lies = fragments::are_fragments(&message.frames, to, mtu)
            && !fragments::fits_one(to, mtu, message.len());
        if ours && as_it_lies {
            self.check_length(message.len(), to, now)?;
            return self.within_ttl(to, out, |out| {
                self.egress()
                    .push_fragments(ends, via, message.frames, out, now)
            });
        }
        let parts: Vec<_> = message.chunks().map(IoSlice::new).collect();
        self.push_parts(ends, via, &parts, out, now)
    }

    pub(super) fn check_allocator(&self, allocator: &Allocator) -> io::Result<()> {
        let ours = Arc::ptr_eq(allocator.pool(), self.host().device.pool());
        let why = "the allocator is another stack's";
        ours.then_some(())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, why))
    }
}
