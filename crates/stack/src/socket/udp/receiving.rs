//! Receiving calls: the protocol work for what they return is done in them.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use plimsoll_core::channel::{InterruptRequest, PooledConsumer};
use plimsoll_core::time::Instant;

use super::UdpSocket;
use crate::account::Account;
use crate::clock;
use crate::device::Frame;
use crate::host::Host;
use crate::outcome::Outcome;
use crate::receive::ahead::{AHEAD_MAX, TURN_FRAMES, WorkAhead};
use crate::receive::ni_lrp::Ring;
use crate::table::Arrived;
use crate::wait;
use crate::wire::datagram::{Datagram, Input};
use crate::wire::packet;

/// What receives: one thread at a time.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) consumer: PooledConsumer<Arrived>,
    pub(super) ring: Option<Ring>,
    /// Processed before anybody asked.
    pub(super) ahead: VecDeque<Datagram>,
    pub(super) tally: Arc<Account>,
    pub(super) inhibiting: Arc<AtomicBool>,
    /// An event loop may wait for the descriptor.
    pub(super) by_descriptor: bool,
    /// The descriptor is readable, since a call left something.
    pub(super) told: bool,
}

/// Frames that one look at the queue may find unfit before the clock is read.
const UNFIT_MAX: usize = 64;

impl UdpSocket {
    /// Receives a datagram into `buffer`; what does not fit is discarded.
    /// Returns its length there and who sent it.
    ///
    /// # Errors
    ///
    /// `WouldBlock`: nothing there, and the socket is non-blocking or the read
    /// timeout is over. `BrokenPipe`: the device has failed.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let datagram = self.recv_datagram()?;
        let payload = datagram.payload();
        let length = payload.len().min(buffer.len());
        buffer[..length].copy_from_slice(&payload[..length]);
        // Elsewhere it has been remembered already.
        if !self.egress().only_hears() {
            self.remember(slice::from_ref(&datagram), clock::now());
        }
        Ok((length, datagram.source))
    }

    /// As [`recv_from`](Self::recv_from), for connected sockets.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(buffer)?.0)
    }

    /// As [`recv_from`](Self::recv_from); the datagram stays, and the next call receives it.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_some(|receiving, now| {
            let datagram = self.process_next(receiving, self.remote(), now)?;
            Ok(datagram.map(|datagram| {
                if self.egress().only_hears() {
                    self.remember(slice::from_ref(datagram), now);
                }
                let payload = datagram.payload();
                let length = payload.len().min(buffer.len());
                buffer[..length].copy_from_slice(&payload[..length]);
                (length, datagram.source)
            }))
        })
    }

    /// As [`peek_from`](Self::peek_from), for connected sockets.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.peek_from(buffer)?.0)
    }

    /// Receives a datagram without copying it.
    ///
    /// # Errors
    ///
    /// As [`recv_from`](Self::recv_from).
    pub fn recv_datagram(&self) -> io::Result<Datagram> {
        self.receive_some(|receiving, now| {
            let mut one = None;
            self.take(receiving, self.remote(), now, |datagram| {
                one = Some(datagram);
            })?;
            if self.egress().only_hears() {
                self.remember(one.as_slice(), now);
            }
            Ok(one)
        })
    }

    /// Appends up to `max` datagrams to `batch`, without copying them, and waits
    /// for the first only. Returns how many.
    ///
    /// # Errors
    ///
    /// As [`recv_from`](Self::recv_from).
    pub fn recv_batch(&self, batch: &mut Vec<Datagram>, max: usize) -> io::Result<usize> {
        self.receive_some(|receiving, now| {
            let (before, remote) = (batch.len(), self.remote());
            while batch.len() - before < max
                && self.take(receiving, remote, now, |datagram| batch.push(datagram))?
            {}
            let received = batch.len() - before;
            if self.egress().only_hears() {
                self.remember(&batch[before..], now);
            }
            Ok((received > 0 || max == 0).then_some(received))
        })
    }

    /// What goes back to them goes the way that these came.
    fn remember(&self, datagrams: &[Datagram], now: Instant) {
        let mut peers = self.peers.lock();
        for datagram in datagrams {
            let (from, via) = (datagram.source.ip(), datagram.via);
            if peers.remember(from, via, now) {
                self.egress().on_heard(from, via, now);
            }
        }
    }

    /// Calls `receive` until it has something, as the options say.
    fn receive_some<T>(
        &self,
        mut receive: impl FnMut(&mut Receiving, Instant) -> io::Result<Option<T>>,
    ) -> io::Result<T> {
        let options = self.options.get();
        let mut now = clock::now();
        let deadline = options.read_timeout.map(|timeout| now + timeout);
        let polling = now + options.busy_poll;
        loop {
            self.host().trigger_state(now);
            self.trouble.take()?;
            let mut receiving = self.receiving.lock();
            let work = self.account.work();
            let received = receive(&mut receiving, now)?;
            drop(work);
            if let Some(received) = received {
                self.pass_on(&mut receiving);
                return Ok(received);
            }
            if receiving.has_more() || !options.nonblocking && now < polling {
                // Many were unfit, or something may come at once; look at the clock.
            } else {
                if !self.must_wait(&mut receiving)? {
                    continue;
                }
                if options.nonblocking {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let limit = deadline.map(|deadline| deadline.saturating_since(now));
                self.waiting.fetch_add(1, Ordering::Relaxed);
                drop(receiving);
                let waited = self.wait(limit);
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                waited?;
            }
            now = clock::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return self.last_look(receive, now);
            }
        }
    }

    /// Whether the next arrival will wake who waits; otherwise something is there by now.
    fn must_wait(&self, receiving: &mut Receiving) -> io::Result<bool> {
        self.clear(receiving);
        let request = self.trouble.take();
        let request = request.map(|()| receiving.consumer.request_interrupt());
        if !matches!(request, Ok(InterruptRequest::Pending)) {
            // That may have been others' waking, and nothing would wake them again.
            self.waker.wake();
        }
        match request? {
            InterruptRequest::Pending => Ok(true),
            InterruptRequest::Ready => Ok(false),
            InterruptRequest::Closed => Err(self.host().failure()),
        }
    }

    /// Nobody is told any more until the next arrival.
    pub(super) fn clear(&self, receiving: &mut Receiving) {
        receiving.told = false;
        self.waker.clear();
    }

    /// A call is over. If there is more, it is for other threads that wait as well. To event loops a
    /// ring says no more of what was taken from it.
    fn pass_on(&self, receiving: &mut Receiving) {
        let by_descriptor = self.both.is_some() && receiving.by_descriptor && !receiving.told;
        let is_awaited = self.waiting.load(Ordering::Relaxed) > 0 || by_descriptor;
        if is_awaited && receiving.has_more() {
            receiving.told = true;
            self.waker.wake();
        }
    }

    /// Waits for something to receive.
    pub(super) fn wait(&self, limit: Option<Duration>) -> io::Result<()> {
        let waker = self.waker.as_fd();
        match &self.both {
            // Not for the two of them together: waking through one more descriptor takes longer.
            Some(both) => drop(wait::wait_any([waker, both.ring.readiness()], limit)?),
            None => drop(wait::wait_any([waker], limit)?),
        }
        Ok(())
    }

    /// The time is over; what came meanwhile is received nevertheless.
    fn last_look<T>(
        &self,
        mut receive: impl FnMut(&mut Receiving, Instant) -> io::Result<Option<T>>,
        now: Instant,
    ) -> io::Result<T> {
        let mut receiving = self.receiving.lock();
        let received = receive(&mut receiving, now)?;
        self.pass_on(&mut receiving);
        received.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Whom the socket is connected to.
    pub(super) fn remote(&self) -> Option<SocketAddr> {
        self.peer.read().map(|peer| peer.remote)
    }

    /// Gives the next datagram to `keep`, with its protocol processing if that is still
    /// to be done. False: there is none. `remote`: whom the socket is connected to.
    #[inline]
    fn take(
        &self,
        receiving: &mut Receiving,
        remote: Option<SocketAddr>,
        now: Instant,
        keep: impl FnOnce(Datagram),
    ) -> io::Result<bool> {
        for _ in 0..UNFIT_MAX {
            if let Some(datagram) = receiving.next_ahead() {
                if self.is_wanted(&datagram, remote) {
                    receiving.tally.count(Outcome::Delivered);
                    keep(datagram);
                    return Ok(true);
                }
                receiving.tally.count(Outcome::OtherPeer);
                continue;
            }
            let Some(input) = self.next_input(receiving, now)? else {
                return Ok(false);
            };
            let outcome = match input {
                Input::Datagram(datagram) if self.is_wanted(&datagram, remote) => {
                    receiving.tally.count(Outcome::Delivered);
                    keep(datagram);
                    return Ok(true);
                }
                Input::Datagram(datagram) if !self.is_ours(&datagram) => Outcome::Forward,
                Input::Datagram(_) => Outcome::OtherPeer,
                Input::Ended(outcome) => outcome,
                Input::Kept => continue,
            };
            receiving.tally.count(outcome);
        }
        Ok(false)
    }

    /// The next datagram, which stays as one that was processed ahead.
    fn process_next<'a>(
        &self,
        receiving: &'a mut Receiving,
        remote: Option<SocketAddr>,
        now: Instant,
    ) -> io::Result<Option<&'a Datagram>> {
        for _ in 0..UNFIT_MAX {
            match receiving.ahead.front() {
                Some(datagram) if self.is_wanted(datagram, remote) => break,
                Some(_) => {
                    receiving.next_ahead();
                    receiving.tally.count(Outcome::OtherPeer);
                    continue;
                }
                None => {}
            }
            let Some(input) = self.next_input(receiving, now)? else {
                break;
            };
            match input {
                Input::Datagram(datagram) => {
                    receiving.ahead.push_back(datagram);
                    receiving.tally.processed_ahead(1);
                }
                Input::Ended(outcome) => receiving.tally.count(outcome),
                Input::Kept => {}
            }
        }
        let front = receiving.ahead.front();
        Ok(front.filter(|datagram| self.is_wanted(datagram, remote)))
    }

    /// The next frame's processing: a frame of a ring goes straight on, since each detour costs a
    /// copy of its state.
    #[inline(always)]
    fn next_input(&self, receiving: &mut Receiving, now: Instant) -> io::Result<Option<Input>> {
        Ok(match receiving.next_of_ring()? {
            Some(frame) if !packet::is_for(&frame, self.host().capabilities.mac) => {
                Some(Input::Ended(Outcome::OtherMac))
            }
            Some(frame) => Some(self.host().udp_input(frame, false, now)),
            None => self.next_of_channel(receiving, now),
        })
    }

    fn next_of_channel(&self, receiving: &mut Receiving, now: Instant) -> Option<Input> {
        let arrived = receiving.consumer.pop(now)?.item;
        receiving.tell_of_room(self.host());
        Some(match arrived {
            Arrived::Ready(datagram) => Input::Datagram(datagram),
            Arrived::Raw { frame, early } => self.host().udp_input(frame, early, now),
        })
    }

    /// The demultiplexer chose by headers that were not checked yet.
    fn is_wanted(&self, datagram: &Datagram, remote: Option<SocketAddr>) -> bool {
        remote.is_none_or(|remote| remote == datagram.source)
            && datagram.destination.port() == self.bound.port()
            && self.is_ours(datagram)
    }

    /// A frame of a ring has passed no demultiplexer but the device's. Groups come by the channel.
    fn is_ours(&self, datagram: &Datagram) -> bool {
        let address = datagram.destination.ip();
        !self.bound.ip().is_unspecified()
            || address.is_multicast()
            || self.egress().is_local(address)
    }
}

impl WorkAhead for Mutex<Receiving> {
    fn work_ahead(&self, host: &Host) -> bool {
        // Who is receiving does the work.
        let Some(mut receiving) = self.try_lock() else {
            return false;
        };
        let now = clock::now();
        let account = Arc::clone(&receiving.tally);
        let _work = account.work();
        for _ in 0..TURN_FRAMES {
            if receiving.ahead.len() == AHEAD_MAX {
                return false;
            }
            let arrived = receiving.consumer.pop(now).map(|arrival| arrival.item);
            let input = match arrived {
                None => return false,
                Some(Arrived::Ready(datagram)) => Input::Datagram(datagram),
                Some(Arrived::Raw { frame, early }) => host.udp_input(frame, early, now),
            };
            match input {
                Input::Datagram(datagram) => {
                    receiving.ahead.push_back(datagram);
                    account.processed_ahead(1);
                }
                Input::Ended(outcome) => account.count(outcome),
                Input::Kept => {}
            }
        }
        true
    }
}

impl Receiving {
    /// The next frame of the socket's own ring, if it has one.
    #[inline]
    fn next_of_ring(&mut self) -> io::Result<Option<Frame>> {
        let ring = self.ring.as_mut();
        ring.map_or(Ok(None), |ring| ring.next(&self.tally))
    }

    pub(super) fn has_more(&self) -> bool {
        let in_ring = self.ring.as_ref().map_or(0, |ring| ring.batch.len());
        in_ring + self.ahead.len() + self.consumer.occupancy() > 0
    }

    /// The next datagram that was processed ahead.
    #[inline]
    fn next_ahead(&mut self) -> Option<Datagram> {
        let datagram = self.ahead.pop_front()?;
        self.tally.processed_ahead(-1);
        Some(datagram)
    }

    /// Nobody will take what was processed ahead.
    pub(super) fn close_ahead(&mut self) {
        while self.next_ahead().is_some() {
            self.tally.count(Outcome::Closed);
        }
    }

    /// If this channel inhibits input, its poller wants to know what was taken.
    fn tell_of_room(&self, host: &Host) {
        if self.inhibiting.load(Ordering::Relaxed) && self.consumer.occupancy() == 0 {
            host.attention.wake();
        }
    }
}
