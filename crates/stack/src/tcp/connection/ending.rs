//! How a connection ends.

use std::io;
use std::time::Duration;

use plimsoll_core::channel::PooledConsumer;
use plimsoll_core::pacing::FlowId;
use plimsoll_core::time::Instant;
use smoltcp::socket::tcp::{Socket, State};

use super::sending::ACK_DELAY;
use super::{Connection, Event, Inner};
use crate::host::Host;
use crate::table::Arrived;
use crate::tcp::wire;

/// Beyond this a connection that did not come about was given up.
const GIVEN_UP: Duration = Duration::from_secs(15);
/// How long a peer may be silent that owes an acknowledgement (RFC 9293, 3.8.3: R2, at least 100 s;
/// Linux with `tcp_retries2`: 15 minutes).
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// How long a closed connection may go without an acknowledgement (Linux: `tcp_fin_timeout`), and be there where
/// others want its place.
const LINGER: Duration = Duration::from_secs(60);
/// The same where others want its place: some retransmissions were not acknowledged either.
const LINGER_CROWDED: Duration = Duration::from_secs(5);

/// What an ended connection gives back.
#[derive(Debug)]
pub(in crate::tcp) struct Detached {
    pub(in crate::tcp) consumer: Option<PooledConsumer<Arrived>>,
    pub(in crate::tcp) timer: Option<Instant>,
    pub(in crate::tcp) flow: Option<FlowId>,
}

impl Connection {
    /// Why it did not come about, as far as is known.
    pub(in crate::tcp) fn refusal(&self) -> io::Error {
        self.reason(io::ErrorKind::ConnectionRefused.into())
    }

    /// Why reading or writing failed, where that is known better.
    pub(in crate::tcp) fn reason(&self, error: io::Error) -> io::Error {
        let inner = self.inner.lock();
        match inner.trouble {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None if inner.was_given_up(self.began) => io::ErrorKind::TimedOut.into(),
            None => error,
        }
    }

    /// The owner is gone: what was written is sent, then the connection ends. It is reset where something
    /// was received and not read.
    pub(in crate::tcp) fn abandon(&self, host: &Host, now: Instant) {
        let mut inner = self.inner.lock();
        inner.listener = None;
        inner.abandoned_at = Some(now);
        inner.waiters.close();
        inner.owed_since = Some(now);
        inner.socket().close();
        self.after(inner, host, now);
        // It may have ended by this, which the TCP thread finds out.
        host.tcp.ready.push(self.channel);
    }

    /// Whether something that was written before the drop has not been taken, or not even the end
    /// been sent.
    pub(in crate::tcp) fn is_sending(&self, now: Instant) -> bool {
        let mut inner = self.inner.lock();
        let waits = inner.socket().send_queue() > 0 || inner.held_up || inner.is_due(now);
        inner.is_abandoned() && inner.consumer.is_some() && waits
    }

    /// Whether its owner is gone, and it gives way to who has no place: its peer acknowledges nothing, or takes
    /// so long that it may want no more than the place.
    pub(in crate::tcp) fn gives_way(&self, now: Instant) -> bool {
        let inner = self.inner.lock();
        let lasts = |since: Option<Instant>, time| {
            since.is_some_and(|since| now.saturating_since(since) >= time)
        };
        let is_closing = inner.is_abandoned() && inner.consumer.is_some();
        let is_silent = lasts(inner.owed_since, LINGER_CROWDED);
        is_closing && (is_silent || lasts(inner.abandoned_at, LINGER))
    }

    /// The listener is gone before anybody accepted, the stack before all was sent, or others want its
    /// place: a reset.
    pub(in crate::tcp) fn abort(&self, host: &Host, now: Instant) {
        let mut inner = self.inner.lock();
        inner.listener = None;
        inner.socket().abort();
        self.after(inner, host, now);
        host.tcp.ready.push(self.channel);
    }

    /// The device's half of the channel is free for the next connection. Before the table's:
    /// that connection may have the same ends. `time_wait`: the peer's last segments are awaited.
    pub(in crate::tcp) fn leave_device(&self, time_wait: bool) {
        let in_device = self.inner.lock().in_device.take();
        if let Some(channel) = in_device.filter(|_| time_wait) {
            channel.await_last();
        }
    }

    /// The channel, its timer and its departures go; what was received can still be
    /// read.
    pub(in crate::tcp) fn detach(&self) -> Detached {
        let mut inner = self.inner.lock();
        inner.ended_at = Some(crate::clock::now());
        Detached {
            consumer: inner.consumer.take(),
            timer: inner.timer.take(),
            flow: inner.pace.flow.take(),
        }
    }
}

/// Whether the peer has not acknowledged our end.
pub(super) fn owes_for_end(state: State) -> bool {
    matches!(state, State::FinWait1 | State::Closing | State::LastAck)
}

impl Inner {
    /// Its owner is gone.
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned_at.is_some()
    }

    /// Nobody will read any more. What waits to be read, or comes yet, is lost, so the peer must not take
    /// it for delivered (RFC 1122, 4.2.2.13; RFC 2525, 2.17).
    pub(super) fn reset_if_unread(&mut self) {
        if self.is_abandoned() && self.consumer.is_some() && self.socket().recv_queue() > 0 {
            self.socket().abort();
        }
    }

    /// Notes whether the peer owes an acknowledgement: of data, or of our end.
    pub(super) fn note_owed(&mut self, now: Instant) {
        let socket = self.sockets.get::<Socket<'_>>(self.handle);
        self.owed_since = match owes_for_end(socket.state()) || socket.send_queue() > 0 {
            true => self.owed_since.or(Some(now)),
            false => None,
        };
    }

    /// The peer is there. Who keeps its window closed is waited for as long as there is an owner.
    pub(super) fn on_heard(&mut self, acknowledged: bool, now: Instant) {
        if acknowledged || !self.is_abandoned() {
            self.owed_since = self.owed_since.map(|_| now);
        }
        self.keepalive.on_heard();
    }

    /// Whether a segment may go on to smoltcp, which lets a reset anywhere in the window end the
    /// connection, and knows nothing to say to a SYN. Only a reset that begins exactly where more
    /// is expected ends it (RFC 5961, 3.2). Another one, or a SYN (4.2), becomes what is answered by
    /// an acknowledgement, once a second at most. If it was the peer's, that answers with a reset
    /// that fits: it has lost its state.
    pub(super) fn may_change_state(&mut self, segment: &mut [u8], now: Instant) -> bool {
        let state = self.socket().state();
        let unknown = matches!(state, State::Closed | State::Listen | State::SynSent);
        if !unknown && state != State::SynReceived && wire::is_first_syn(segment) {
            self.sent.make_questionable(segment);
            return true;
        }
        let begins = wire::reset_at(segment);
        if begins.is_none() || unknown || begins == self.sent.acknowledged() {
            return true;
        }
        // An acknowledgement that waits for more would tell how much is expected. Not where it would
        // leave before its departure: there the question tells, and the peer answers that.
        while self.gate().is_none() && self.emit(now + ACK_DELAY).is_some() {}
        if begins == self.sent.acknowledged() {
            return true;
        }
        if state != State::SynReceived {
            self.sent.make_questionable(segment);
        }
        state != State::SynReceived
    }

    /// A reset was brought in. smoltcp ignores one that begins before data that was not acknowledged yet, and
    /// one that is no answer to our SYN.
    pub(super) fn on_reset(&mut self, before: State) {
        if self.socket().state() == State::Closed {
            self.trouble = match before {
                State::Closed | State::Listen => self.trouble,
                State::SynSent => Some(libc::ECONNREFUSED),
                _ => Some(libc::ECONNRESET),
            };
        }
    }

    /// Whether nobody has answered a handshake, for as long as it is tried. smoltcp does not tell that from an
    /// end that was wanted here.
    fn was_given_up(&self, began: Instant) -> bool {
        let ended_at = self.ended_at.unwrap_or_else(crate::clock::now);
        // The handshake's own timeout goes when it is done.
        let socket = self.sockets.get::<Socket<'_>>(self.handle);
        let is_undone = socket.state() == State::Closed && socket.timeout().is_some();
        is_undone && ended_at.saturating_since(began) > GIVEN_UP
    }

    /// Whether a segment counts as a sign of the peer: after the handshake one that acknowledges what
    /// may be on its way. Who is not on the way does not know that, and guesses.
    pub(super) fn seems_the_peers(&mut self, segment: &[u8]) -> bool {
        let state = self.socket().state();
        // Our end is a number more than what is queued.
        let queued = self.socket().send_queue() + usize::from(owes_for_end(state));
        let begins = matches!(state, State::Listen | State::SynSent | State::SynReceived);
        begins || self.sent.is_acknowledged_by(segment, queued)
    }

    /// Looks how far the peer's window reaches by now. Its scale is the handshake's; and who does
    /// not know what was sent does not know the peer either.
    pub(super) fn look_at_window(&mut self, segment: &[u8]) {
        let (state, queued) = (self.socket().state(), self.socket().send_queue());
        if matches!(state, State::Listen | State::SynSent) {
            self.window.take_scale(segment);
            let capacity = self.socket().recv_capacity();
            self.sent.on_first(segment, capacity);
        }
        if self.sent.is_acknowledged_by(segment, queued) {
            self.window.on_segment(segment);
        }
    }

    /// When the connection ends unless something is heard of the peer.
    pub(super) fn given_up_at(&self) -> Option<Instant> {
        let patience = if self.is_abandoned() {
            LINGER
        } else {
            PATIENCE
        };
        match self.owed_since {
            Some(since) => Some(since + patience),
            None => self.keepalive.given_up_at(),
        }
    }

    /// Its place goes to another.
    pub(super) fn given_up(&mut self) -> Event {
        Event::Ended {
            time_wait: false,
            half_open: self.listener.take(),
        }
    }

    /// What the connection has come to.
    pub(super) fn event(&mut self) -> Event {
        if self.consumer.is_none() {
            return Event::None;
        }
        let abandoned = self.is_abandoned();
        match self.socket().state() {
            // Nothing is left to send, and nobody reads: that the peer takes its time is no reason
            // to keep a place for it.
            State::FinWait2 if abandoned => Event::Ended {
                time_wait: true,
                half_open: self.listener.take(),
            },
            State::TimeWait => Event::Ended {
                time_wait: true,
                half_open: self.listener.take(),
            },
            // A listening socket that was reset in its handshake listens again.
            State::Closed | State::Listen => self.given_up(),
            State::SynSent | State::SynReceived => Event::None,
            _ => {
                // That was the handshake's.
                self.socket().set_timeout(None);
                let listener = self.listener.take();
                listener.map_or(Event::None, Event::Established)
            }
        }
    }
}
