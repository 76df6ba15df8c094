//! What a connection sends, as far as the device takes it.
//!
//! smoltcp's socket counts a segment as sent once it was given a frame for it. So it gets
//! none that cannot be sent: a device without room holds the socket up, and what waits is
//! tried again a millisecond later. Dropping it instead would look like loss on the path,
//! of a whole flight at once, for which TCP would slow down.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_core::demux::ChannelId;
use plimsoll_core::time::Instant;
use smoltcp::socket::tcp::{Socket, State};

use super::Inner;
use crate::device::Mac;
use crate::host::Host;
use crate::tcp::reset::instant;
use crate::tcp::segmentation;
use crate::tcp::wire::{Payload, WAITING_MAX};

/// A timer is not set nearer than this: what is due now was just tried.
const TIMER_MIN: Duration = Duration::from_millis(1);
/// smoltcp's default.
pub(super) const ACK_DELAY: Duration = Duration::from_millis(10);
/// Segments that are sent before the lock is given back, in batches for the device.
const BATCHES_MAX: usize = 1024 / WAITING_MAX;

impl Inner {
    /// Sends what is due.
    pub(super) fn send(&mut self, host: &Host, remote: SocketAddr, now: Instant) {
        if let Some(flow) = self.gate() {
            if self.is_due(now) {
                host.tcp.request_departure(flow, now);
            } else {
                self.pace.on_nothing_due();
            }
            self.held_up = !self.hand_over(host, remote, now);
            return;
        }
        // An acknowledgement waits for more to acknowledge, but that of the peer's end is the last
        // thing that this connection sends.
        let state = self.sockets.get::<Socket<'_>>(self.handle).state();
        let sent_at = match state {
            State::TimeWait => now + ACK_DELAY,
            _ => now,
        };
        for _ in 0..BATCHES_MAX {
            while self.emit(sent_at).is_some() {}
            let nothing = self.wire.outbound.is_empty();
            self.held_up = !self.hand_over(host, remote, now);
            if self.held_up || nothing {
                break;
            }
        }
        if !self.held_up && host.device.pool().available() == 0 && self.is_due(now) {
            // The device is to give back what it has sent.
            host.egress.push_on_if_there();
            self.held_up = true;
        }
    }

    /// Gives the device what is complete, which waits there until the connection's lock is given
    /// back. False: it has no room for all of it now.
    pub(super) fn hand_over(&mut self, host: &Host, remote: SocketAddr, now: Instant) -> bool {
        if self.wire.outbound.is_empty() {
            return true;
        }
        let mut batch = std::mem::take(&mut self.wire.outbound);
        self.repeats += u32::from(self.sent.take_repeated());
        let via = self.way(host, remote);
        let mtu = self.mtu_to(host, remote.ip(), &batch, now);
        if mtu < host.egress.mtu {
            segmentation::cut_all(&mut batch, mtu, self.path.asks_at(), host.device.pool());
        }
        for _ in 0..batch.len() {
            if let Some(frame) = batch.pop_front() {
                let (egress, to) = (&host.egress, remote.ip());
                // What cannot be sent now TCP sends again.
                let _ = match via {
                    Some(via) if self.doubted => {
                        egress.push_doubting(frame, to, via, &mut batch, now)
                    }
                    via => egress.push(frame, to, via, &mut batch, now),
                };
            }
        }
        // A connection that is over has no timer to try again.
        let sent = match self.consumer {
            Some(_) => host.egress.enqueue(&mut batch),
            None => host.egress.transmit_or_drop(&mut batch),
        };
        if sent.is_err() {
            // The device is gone, which the receiving thread reports.
            batch.clear();
        }
        self.wire.outbound = batch;
        self.wire.outbound.is_empty()
    }

    /// Where its peer is on the link, as far as is known. On a shared address nobody can be asked:
    /// what is sent again goes by turns where its segments came from, and where others of its way
    /// were heard of last. Those may be behind another router.
    fn way(&self, host: &Host, remote: SocketAddr) -> Option<Mac> {
        match self.repeats {
            repeats if repeats > 0 && repeats.is_multiple_of(2) => {
                host.egress.last_heard(remote.ip()).or(self.via)
            }
            _ => self.via,
        }
    }

    /// One segment, if one is due and there is room. Returns its frame's length.
    pub(super) fn emit(&mut self, now: Instant) -> Option<usize> {
        if self.is_over() {
            return None;
        }
        let before = self.wire.outbound.len();
        let (wire, sockets) = (&mut self.wire, &mut self.sockets);
        self.interface.poll_egress(instant(now), wire, sockets);
        // As many as there are sockets.
        let frame = self.wire.outbound.get(before)?;
        let length = frame.len();
        self.sent.on_frame(frame);
        if let Some(payload) = Payload::of(frame) {
            let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
            if socket.send_queue() == 0 {
                // Nothing of the stream: it is asked whether it is there.
                self.keepalive.on_question(now);
            }
            self.pace.on_sent(payload, socket, now);
        }
        Some(length)
    }

    /// Both sides have ended it, and late segments are answered without it. smoltcp would forget the socket
    /// some seconds later, together with what nobody has read yet.
    fn is_over(&self) -> bool {
        let socket = self.sockets.get::<Socket<'_>>(self.handle);
        self.consumer.is_none() && socket.state() == State::TimeWait
    }

    /// For what is due, and for `look`.
    pub(super) fn set_timer(
        &mut self,
        host: &Host,
        channel: ChannelId,
        look: Option<Instant>,
        now: Instant,
    ) {
        let due = self.interface.poll_at(instant(now), &self.sockets);
        // What is due now and paced has a departure.
        let due = due.filter(|at| *at > instant(now) || self.gate().is_none());
        let due = due.map(|at| {
            let nanos = u64::try_from(at.total_micros())
                .unwrap_or(0)
                .saturating_mul(1000);
            Instant::from_nanos(nanos).max(now + TIMER_MIN)
        });
        let again = self.held_up.then_some(now + TIMER_MIN);
        let others = again.into_iter().chain(self.given_up_at()).chain(look);
        let Some(due) = due.into_iter().chain(others).min() else {
            return;
        };
        // A timer that comes too early is set again; one too late would not do.
        if self.timer.is_none_or(|set| due < set) {
            host.tcp.set_timer(channel, self.timer, due);
            self.timer = Some(due);
        }
    }
}
