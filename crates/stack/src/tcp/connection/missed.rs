//! What a connection's full channel has discarded.
//!
//! It may have been the peer's last acknowledgement, and nothing more comes then: all would wait for
//! the retransmission timer, a second at least. But here it is known that something is missing. So
//! the peer is asked to say it again, unless there is more to send, which it acknowledges as well.

use std::net::SocketAddr;

use plimsoll_core::channel::Outcome;
use plimsoll_core::time::Instant;
use smoltcp::wire::{TcpRepr, TcpSeqNumber};

use super::Inner;
use super::ending::owes_for_end;
use crate::host::Host;
use crate::tcp::reset::{framed, plain};

impl Inner {
    /// Whether segments found no room since this was asked.
    pub(super) fn has_missed(&mut self) -> bool {
        let here = self.consumer.as_ref();
        let here = here.map_or(0, |queue| queue.monitor().counts()[Outcome::Full]);
        let in_device = self.in_device.as_ref();
        let missed = here + in_device.map_or(0, |channel| channel.refused());
        std::mem::replace(&mut self.missed, missed) < missed
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
