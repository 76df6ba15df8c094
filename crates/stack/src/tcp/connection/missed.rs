//! When a peer is asked to say again how far it has come, and how much it takes.
//!
//! * The connection's full channel has discarded something. It may have been the last
//!   acknowledgement, and nothing more comes then: all would wait for the retransmission timer, a
//!   second at least. There is no need where there is more to send, which is acknowledged as well.
//! * The peer has closed its window while data was on its way. smoltcp probes a closed window only from
//!   the next segment of the peer's on that comes when the retransmission timer has ended.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_core::channel::Outcome;
use plimsoll_core::time::Instant;
use smoltcp::socket::tcp::State;
use smoltcp::wire::{TcpRepr, TcpSeqNumber};

use super::Inner;
use super::ending::owes_for_end;
use crate::host::Host;
use crate::tcp::reset::{framed, instant, plain};

/// Between two questions: as long as nothing was heard.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
const INTERVAL_MAX: Duration = Duration::from_mins(1);

impl Inner {
    /// Whether segments found no room since this was asked.
    pub(super) fn has_missed(&mut self) -> bool {
        let here = self.consumer.as_ref();
        let here = here.map_or(0, |queue| queue.monitor().counts()[Outcome::Full]);
        let in_device = self.in_device.as_ref();
        let missed = here + in_device.map_or(0, |channel| channel.refused());
        std::mem::replace(&mut self.missed, missed) < missed
    }

    /// Asks if data waits and smoltcp has no timer. Returns when it is to be looked again.
    pub(super) fn ask_if_stuck(
        &mut self,
        host: &Host,
        ends: (SocketAddr, SocketAddr),
        now: Instant,
    ) -> Option<Instant> {
        let is_over = matches!(self.socket().state(), State::Closed | State::TimeWait);
        let waits = self.socket().send_queue() > 0 && !is_over && !self.held_up;
        let mut timer = || self.interface.poll_at(instant(now), &self.sockets);
        if !waits || timer().is_some() {
            self.ask_at = None;
            return None;
        }
        if self.ask_at.is_none_or(|at| now >= at) {
            let silent = self.owed_since.map(|since| now.saturating_since(since));
            let interval = silent.unwrap_or_default().clamp(INTERVAL_MIN, INTERVAL_MAX);
            self.ask_at = Some(now + interval);
            self.ask_again(host, ends, now);
        }
        self.ask_at
    }

    /// Has the peer say again how far it has come, if it owes anything: it answers what is old
    /// (RFC 9293, 3.10.7.4), as a question whether it is there.
    pub(super) fn ask_again(
        &mut self,
        host: &Host,
        (local, remote): (SocketAddr, SocketAddr),
        now: Instant,
    ) {
        let state = self.socket().state();
        let owed = self.socket().send_queue() + usize::from(owes_for_end(state));
        let Some(end) = self.sent.end().filter(|_| owed > 0) else {
            return;
        };
        let old = end.0.wrapping_sub(owed as i32).wrapping_sub(1);
        let question = TcpRepr {
            seq_number: TcpSeqNumber(old),
            ack_number: self.sent.acknowledged(),
            window_len: self.sent.window_len(),
            ..plain(local.port(), remote.port())
        };
        let (mac, pool) = (host.egress.mac, host.device.pool());
        if let Some(frame) = framed(&question, (local.ip(), remote.ip()), mac, pool) {
            self.wire.outbound.push_back(frame);
            // Without room it goes with what comes next.
            let _ = self.hand_over(host, remote, now);
        }
    }
}
