//! Sending calls: headers are written, and the device called, in them.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_core::time::Instant;
use smoltcp::wire::IpProtocol;

use super::UdpSocket;
use crate::clock;
use crate::device::{Allocator, Batch, Frame, Mac};
use crate::error::TooLong;
use crate::socket::addresses::first;
use crate::socket::buffer::SendBuffer;
use crate::wire::datagram::{Datagram, Payload};
use crate::wire::{UDP_BYTES, emit, fragments, packet};

/// How long a call without a timeout waits for a buffer: whoever holds them may be its own thread.
const BUFFERS_WAIT: Duration = Duration::from_secs(1);
/// Between two tries to send into a full ring.
const RETRY_SEND: Duration = Duration::from_micros(50);

impl UdpSocket {
    /// Sends a datagram; to a neighbour that is not known yet, once it answers.
    ///
    /// # Errors
    ///
    /// `InvalidInput` or `ENETUNREACH`: no way there. `EHOSTUNREACH`: the device shares the kernel's
    /// address, and nothing was heard of the receiver yet; nobody can be asked. Or it is the stack's own. `EMSGSIZE`: longer
    /// than a datagram can be. [`TooLong`]: it would be cut, and the socket was told not to. What an ICMP error told. `WouldBlock`: the device has no room or no buffer, and the
    /// socket is non-blocking or the write timeout is over. `ENOBUFS`: all buffers were in use for a
    /// second; the program may hold them itself.
    pub fn send_to(&self, payload: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let to = first(to)?;
        self.send_batch([(payload, to)])?;
        Ok(payload.len())
    }

    /// Sends a datagram to whom the socket is connected.
    ///
    /// # Errors
    ///
    /// `EDESTADDRREQ`: it is not connected. And those of [`send_to`](Self::send_to).
    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.send_batch([(payload, self.connected_to()?)])?;
        Ok(payload.len())
    }

    pub(super) fn connected_to(&self) -> io::Result<SocketAddr> {
        self.peer_addr()
            .map_err(|_| io::Error::from_raw_os_error(libc::EDESTADDRREQ))
    }

    /// Sends datagrams with one call into the device. Returns how many were sent: fewer than given
    /// if the device has no room, or one cannot be sent. Those after it are not sent either.
    ///
    /// # Errors
    ///
    /// As [`send_to`](Self::send_to), if none was sent.
    pub fn send_batch<'a>(
        &self,
        datagrams: impl IntoIterator<Item = (&'a [u8], SocketAddr)>,
    ) -> io::Result<usize> {
        self.trouble.take()?;
        let local = self.local_addr()?;
        self.send_each(datagrams, |(payload, to), batch, now| {
            self.push(local, payload, to, batch, now)
        })
    }

    /// Sends what is built of each item. Those before the first that fails are sent; its error is
    /// returned if none was.
    pub(super) fn send_each<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        push: impl FnMut(T, &mut Batch, Instant) -> io::Result<()>,
    ) -> io::Result<usize> {
        self.send_some(items, push, |_| false)
    }

    /// The same of items that are gone afterwards: one that cannot be sent for a reason of its own costs
    /// the others nothing.
    pub(super) fn send_all<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        push: impl FnMut(T, &mut Batch, Instant) -> io::Result<()>,
    ) -> io::Result<usize> {
        self.send_some(items, push, concerns_one)
    }

    /// `goes_on`: whether others are sent after one with this error.
    fn send_some<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        mut push: impl FnMut(T, &mut Batch, Instant) -> io::Result<()>,
        goes_on: impl Fn(&io::Error) -> bool,
    ) -> io::Result<usize> {
        let mut batch = self.sending.lock();
        let _work = self.account.work();
        let now = clock::now();
        let (mut built, mut failure) = (0, None);
        for item in items {
            match push(item, &mut batch, now) {
                Ok(()) => built += 1,
                Err(error) => {
                    let ends = !goes_on(&error);
                    failure.get_or_insert(error);
                    if ends {
                        break;
                    }
                }
            }
        }
        let sent = self.flush(&mut batch, built)?;
        match failure {
            Some(error) if sent == 0 => Err(error),
            _ => Ok(sent),
        }
    }

    fn push(
        &self,
        local: SocketAddr,
        payload: &[u8],
        to: SocketAddr,
        batch: &mut Batch,
        now: Instant,
    ) -> io::Result<()> {
        let ends = self.host().ends(local, to)?;
        let via = self.via(ends.1.ip(), now);
        self.push_copy(ends, via, payload, batch, now)
    }

    /// Sends received datagrams back to where they came from, each in its own
    /// memory, with what is in their payload now. `batch` is empty afterwards.
    /// Returns how many were sent: fewer than given if the device has no room, or some cannot be sent. The
    /// others are sent all the same.
    ///
    /// # Errors
    ///
    /// As [`send_to`](Self::send_to), if none was sent.
    pub fn reply_batch(&self, batch: &mut Vec<Datagram>) -> io::Result<usize> {
        self.send_all(batch.drain(..), |datagram, out, now| {
            self.push_reply(datagram, out, now)
        })
    }

    fn push_reply(&self, datagram: Datagram, out: &mut Batch, now: Instant) -> io::Result<()> {
        let (mut source, to) = (datagram.destination, datagram.source);
        if !self.egress().is_local(source.ip()) {
            let ours = self.egress().source_for(to.ip());
            source.set_ip(ours.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))?);
        }
        let (ends, via) = ((source, to), Some(datagram.via));
        match datagram.payload {
            Payload::Frame(frame) => self.push_frame(ends, via, frame, out, now),
            payload @ Payload::Reassembled(_) => {
                let datagram = Datagram {
                    payload,
                    ..datagram
                };
                self.push_copy(ends, via, datagram.payload(), out, now)
            }
        }
    }

    /// A payload of `bytes` for `to`, to be written in place and sent by
    /// [`send_buffers`](Self::send_buffers).
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: more than goes in one packet, which [`payload_max_to`](Self::payload_max_to)
    /// tells. `ENOBUFS`: all memory of the device is in use now. `InvalidInput` or
    /// `ENETUNREACH`: no way there.
    pub fn send_buffer(&self, to: SocketAddr, bytes: usize) -> io::Result<SendBuffer> {
        let pool = self.host().device.pool();
        self.make_buffer(to, bytes, || pool.take())
    }

    /// As [`send_buffer`](Self::send_buffer), of memory that the caller's thread may have at hand
    /// ([`Stack::allocator`](crate::Stack::allocator)).
    ///
    /// # Errors
    ///
    /// As there. `InvalidInput`: the allocator is another stack's.
    pub fn send_buffer_from(
        &self,
        allocator: &mut Allocator,
        to: SocketAddr,
        bytes: usize,
    ) -> io::Result<SendBuffer> {
        self.check_allocator(allocator)?;
        self.make_buffer(to, bytes, || allocator.take())
    }

    fn make_buffer(
        &self,
        to: SocketAddr,
        bytes: usize,
        take: impl FnMut() -> Option<Frame>,
    ) -> io::Result<SendBuffer> {
        let (_, to) = self.host().ends(self.local_addr()?, to)?;
        if bytes > self.payload_max(to.ip(), clock::now()) {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        Ok(SendBuffer::new(self.take_frame(take)?, to, bytes))
    }

    /// A free frame, also one that the device gives back for that.
    pub(super) fn take_frame(&self, mut take: impl FnMut() -> Option<Frame>) -> io::Result<Frame> {
        if let Some(frame) = take() {
            return Ok(frame);
        }
        // The device is to send what it has, and give it back.
        self.egress().push_on()?;
        take().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOBUFS))
    }

    /// Sends datagrams that were written in place, with one call into the device and without
    /// copying them. `batch` is empty afterwards. Returns how many were sent, as
    /// [`reply_batch`](Self::reply_batch).
    ///
    /// # Errors
    ///
    /// As [`send_to`](Self::send_to), if none was sent.
    pub fn send_buffers(&self, batch: &mut Vec<SendBuffer>) -> io::Result<usize> {
        self.trouble.take()?;
        let local = self.local_addr()?;
        self.send_all(batch.drain(..), |buffer, out, now| {
            self.push_buffer(local, buffer, out, now)
        })
    }

    fn push_buffer(
        &self,
        local: SocketAddr,
        buffer: SendBuffer,
        out: &mut Batch,
        now: Instant,
    ) -> io::Result<()> {
        // The buffer may be another socket's.
        let ends = self.host().ends(local, buffer.to)?;
        let via = self.via(ends.1.ip(), now);
        self.push_frame(ends, via, buffer.frame, out, now)
    }

    /// A payload that is a frame becomes the packet, if it may.
    pub(super) fn push_frame(
        &self,
        ends: (SocketAddr, SocketAddr),
        via: Option<Mac>,
        mut frame: Frame,
        out: &mut Batch,
        now: Instant,
    ) -> io::Result<()> {
        let to = ends.1.ip();
        // A frame of another stack is in memory that this device cannot read.
        let ours = Arc::ptr_eq(frame.pool(), self.host().device.pool());
        if !ours || self.payload_max(to, now) < frame.len() {
            return self.push_copy(ends, via, &frame, out, now);
        }
        self.within_ttl(to, out, |out| {
            self.egress().wrap_udp(&mut frame, ends.0, ends.1);
            self.egress().push(frame, to, via, out, now)
        })
    }

    /// What `push` appends, all of it for `to`, goes no farther than this socket's datagrams to a group may.
    pub(crate) fn within_ttl(
        &self,
        to: IpAddr,
        out: &mut Batch,
        push: impl FnOnce(&mut Batch) -> io::Result<()>,
    ) -> io::Result<()> {
        let before = out.len();
        let pushed = push(out);
        if to.is_multicast() {
            let ttl = self.options.get().multicast_ttl;
            let frames = out.iter_mut().skip(before);
            frames.for_each(|frame| emit::set_hop_limit(frame, ttl));
        }
        pushed
    }

    fn push_copy(
        &self,
        ends: (SocketAddr, SocketAddr),
        via: Option<Mac>,
        payload: &[u8],
        out: &mut Batch,
        now: Instant,
    ) -> io::Result<()> {
        self.push_parts(ends, via, &[IoSlice::new(payload)], out, now)
    }

    /// A payload whose parts lie anywhere is copied, once.
    pub(super) fn push_parts(
        &self,
        ends: (SocketAddr, SocketAddr),
        via: Option<Mac>,
        payload: &[IoSlice<'_>],
        out: &mut Batch,
        now: Instant,
    ) -> io::Result<()> {
        self.check_length(fragments::bytes_of(payload), ends.1.ip(), now)?;
        let mut began = None;
        loop {
            let push = |out: &mut Batch| self.egress().push_udp(ends, via, payload, out, now);
            let error = match self.within_ttl(ends.1.ip(), out, push) {
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => error,
                pushed => return pushed,
            };
            // The device is to send what it has and what this call has built, and give it back.
            self.egress().transmit(out)?;
            self.egress().push_on()?;
            match began {
                None => began = Some(clock::now()),
                Some(began) => self.wait_for_buffers(began, error)?,
            }
        }
    }

    /// Waits for a moment, as the options say. `error`: there was no buffer since `began`.
    fn wait_for_buffers(&self, began: Instant, error: io::Error) -> io::Result<()> {
        let options = self.options.get();
        let waited = clock::now().saturating_since(began);
        let over = options.write_timeout.is_some_and(|limit| waited >= limit);
        if options.nonblocking || over {
            return Err(self.would_block());
        }
        if waited >= BUFFERS_WAIT {
            return Err(error);
        }
        std::thread::sleep(RETRY_SEND);
        Ok(())
    }

    /// The longest payload that goes in one packet all the way, as far as is known.
    fn payload_max(&self, to: IpAddr, now: Instant) -> usize {
        let headers = emit::network_bytes(to) + UDP_BYTES;
        self.egress().mtu_to(to, now).saturating_sub(headers)
    }

    /// What is not to be cut must fit.
    pub(super) fn check_length(&self, payload: usize, to: IpAddr, now: Instant) -> io::Result<()> {
        if !self.options.get().dont_fragment {
            return Ok(());
        }
        let payload_max = self.payload_max(to, now);
        let too_long = || TooLong {
            to,
            payload,
            payload_max,
        };
        (payload <= payload_max)
            .then_some(())
            .ok_or_else(|| too_long().into())
    }

    /// The longest payload to `to` that goes there in one packet, as far as is known: what this
    /// link takes, or less where a router has told of a smaller link on the path.
    #[must_use]
    pub fn payload_max_to(&self, to: IpAddr) -> usize {
        self.payload_max(to.to_canonical(), clock::now())
    }

    /// Whether a datagram that does not go in one packet is refused
    /// ([`TooLong`]) instead of being cut into fragments. Default: no.
    pub fn set_dont_fragment(&self, dont_fragment: bool) {
        self.options.set_dont_fragment(dont_fragment);
    }

    /// How many links this socket's datagrams to groups may pass, over IPv4 and IPv6
    /// (`IP_MULTICAST_TTL`, `IPV6_MULTICAST_HOPS`). With 1, the default, they stay on the stack's own.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for 0: the stack's own sockets do not hear them either.
    pub fn set_multicast_ttl(&self, ttl: u8) -> io::Result<()> {
        if ttl == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.options.set_multicast_ttl(ttl);
        Ok(())
    }

    /// How many links they may pass.
    ///
    /// # Errors
    ///
    /// None; as in the standard library.
    pub fn multicast_ttl(&self) -> io::Result<u8> {
        Ok(self.options.get().multicast_ttl)
    }

    /// Sends what is in `batch`, waiting for room as the options say.
    fn flush(&self, batch: &mut Batch, datagrams: usize) -> io::Result<usize> {
        let options = self.options.get();
        let deadline = options.write_timeout.map(|timeout| clock::now() + timeout);
        loop {
            let transmitted = self.egress().transmit(batch);
            // What a broken device does not take is not for the next call.
            transmitted.inspect_err(|_| batch.clear())?;
            if batch.is_empty() {
                return Ok(datagrams);
            }
            let over = deadline.is_some_and(|deadline| clock::now() >= deadline);
            if options.nonblocking || over {
                let unsent = batch.iter().filter(|frame| ends_datagram(frame)).count();
                batch.clear();
                let error = self.would_block();
                return match datagrams.saturating_sub(unsent) {
                    0 => Err(error),
                    sent => Ok(sent),
                };
            }
            std::thread::sleep(RETRY_SEND);
        }
    }
}

/// Whether an error is of one datagram, and says nothing of others: no way to its receiver, or no packet for it.
fn concerns_one(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(number) => matches!(
            number,
            libc::EMSGSIZE | libc::EHOSTUNREACH | libc::ENETUNREACH
        ),
        // A socket cannot send there, or may not cut it.
        None => error.kind() == io::ErrorKind::InvalidInput,
    }
}

/// Whether a frame to be sent is a datagram's only or last packet, and no question to a neighbour.
fn ends_datagram(frame: &Frame) -> bool {
    packet::parse(frame)
        .is_ok_and(|packet| packet.protocol == IpProtocol::Udp && packet.part.is_last())
}
