//! How a connection ends.

use std::io;
use std::time::Duration;

use plimsoll_core::pacing::FlowId;
use plimsoll_core::time::Instant;
use smoltcp::socket::tcp::State;

use super::{Connection, Event, Inner};
use crate::host::Host;

/// Beyond this a connection that did not come about was not refused, but given up.
const GIVEN_UP: Duration = Duration::from_secs(15);
/// How long a closed connection may take to end (Linux: `tcp_fin_timeout`).
const LINGER: Duration = Duration::from_secs(60);

impl Connection {
    /// Why it did not come about, as far as is known. smoltcp does not tell a refusal from
    /// giving up.
    pub(in crate::tcp) fn refusal(&self) -> io::Error {
        let inner = self.inner.lock();
        let ended_at = inner.ended_at.unwrap_or_else(crate::clock::now);
        match inner.trouble {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None if ended_at.saturating_since(self.began) > GIVEN_UP => {
                io::ErrorKind::TimedOut.into()
            }
            None => io::ErrorKind::ConnectionRefused.into(),
        }
    }

    /// The owner is gone: what was written is sent, then the connection ends.
    pub(in crate::tcp) fn abandon(&self, host: &Host, now: Instant) {
        let mut inner = self.inner.lock();
        inner.listener = None;
        inner.abandoned_at = Some(now + LINGER);
        inner.socket().close();
        self.after(&mut inner, host, now);
        drop(inner);
        // It may have ended by this, which the TCP thread finds out.
        host.tcp.ready.push(self.channel);
    }

    /// The listener is gone before anybody accepted: a reset.
    pub(in crate::tcp) fn abort(&self, host: &Host, now: Instant) {
        let mut inner = self.inner.lock();
        inner.listener = None;
        inner.socket().abort();
        self.after(&mut inner, host, now);
        drop(inner);
        host.tcp.ready.push(self.channel);
    }

    /// The device's half of the channel is free for the next connection. Before the table's:
    /// that connection may have the same ends.
    pub(in crate::tcp) fn leave_device(&self) {
        self.inner.lock().in_device = None;
    }

    /// The channel, its timer and its departures go; what was received can still be
    /// read.
    pub(in crate::tcp) fn detach(&self) -> (Option<Instant>, Option<FlowId>) {
        let mut inner = self.inner.lock();
        inner.consumer = None;
        inner.ended_at = Some(crate::clock::now());
        (inner.timer.take(), inner.pace.flow.take())
    }
}

impl Inner {
    /// What the connection has come to.
    pub(super) fn event(&mut self) -> Event {
        if self.consumer.is_none() {
            return Event::None;
        }
        let abandoned = self.abandoned_at.is_some();
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
            State::Closed | State::Listen => Event::Ended {
                time_wait: false,
                half_open: self.listener.take(),
            },
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
