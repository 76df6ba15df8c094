//! Whether a silent peer is still there (RFC 1122, 4.2.3.6). smoltcp asks; when it is given up is
//! decided here.

use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

use plimsoll_core::time::Instant;

use super::Connection;
use crate::host::Host;

/// Questions without an answer until a peer is given up, as with Linux (`tcp_keepalive_probes`).
const QUESTIONS_MAX: u32 = 9;
/// As with Linux (`TCP_KEEPINTVL`).
const INTERVALS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(32_767);

/// How a connection asks.
#[derive(Debug, Default)]
pub(super) struct Keepalive {
    interval: Option<Duration>,
    /// Questions since the peer was last heard.
    unanswered: u32,
    /// When the last of them left.
    asked_at: Instant,
}

impl Keepalive {
    pub(super) fn on_heard(&mut self) {
        self.unanswered = 0;
    }

    /// A question was sent. What is one too many gives the peer no more time.
    pub(super) fn on_question(&mut self, now: Instant) {
        if self.interval.is_some() && self.unanswered < QUESTIONS_MAX {
            self.unanswered += 1;
            self.asked_at = now;
        }
    }

    /// After the last question the peer has an interval to answer.
    pub(super) fn given_up_at(&self) -> Option<Instant> {
        let interval = self.interval?;
        (self.unanswered == QUESTIONS_MAX).then(|| self.asked_at + interval)
    }
}

impl Connection {
    pub(in crate::tcp) fn set_keepalive(
        &self,
        host: &Host,
        now: Instant,
        interval: Option<Duration>,
    ) -> io::Result<()> {
        if interval.is_some_and(|interval| !INTERVALS.contains(&interval)) {
            let why = "a peer is asked every 1 to 32,767 s";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mut inner = self.inner.lock();
        if interval.is_none() {
            // Who is not asked any more owes no answer.
            inner.keepalive.on_heard();
        }
        inner.keepalive.interval = interval;
        let every = interval.map(smoltcp::time::Duration::from);
        inner.socket().set_keep_alive(every);
        self.after(inner, host, now);
        Ok(())
    }

    pub(in crate::tcp) fn keepalive(&self) -> Option<Duration> {
        self.inner.lock().keepalive.interval
    }
}
