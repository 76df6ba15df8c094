//! Where a link of the path takes less than ours.
//!
//! * A router tells (RFC 1191, RFC 8201). All that was on its way in longer packets is lost, and its timer
//!   would tell that a second later at best. So smoltcp is made to believe that it ended now, and sends from
//!   the first byte that was not acknowledged on, in packets that fit. A flight brings as many such errors as
//!   packets: the first one counts.
//! * Nobody tells (RFC 2923: a black hole). A segment that stays unacknowledged however often it comes is then
//!   sent in shorter packets (RFC 4821, 7.7). If the peer acknowledges those, it counts as told.
//!
//! **Limits.** Congestion control takes it for a loss: it begins with a segment, and slow start up to 70 %
//! of the flight. A short outage looks like a black hole, and costs shorter packets to that host for ten
//! minutes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use plimsoll_core::time::Instant;
use smoltcp::socket::tcp::State;
use smoltcp::wire::TcpSeqNumber;

use super::{Connection, Inner};
use crate::device::Batch;
use crate::host::Host;
use crate::link::paths;
use crate::tcp::reset::instant;
use crate::wire::ETHERNET_BYTES;
use crate::wire::trouble::{Report, Trouble};

/// No timer of smoltcp's ends later (`RTTE_MAX_RTO`).
const TIMEOUT_MAX: Duration = Duration::from_secs(61);

/// What a connection knows of its path's longest packet.
#[derive(Debug, Default)]
pub(super) struct Path {
    /// The length when all was sent again, and what was sent up to then.
    told: Option<(usize, TcpSeqNumber)>,
    /// A length that is tried since longer packets seem to be lost, and the first byte in such.
    tried: Option<(usize, TcpSeqNumber)>,
}

impl Path {
    /// Whether what begins at `begin` was lost for a cause that nothing was done about yet: it was
    /// sent since, or the path takes even less.
    fn is_news(&self, mtu: usize, begin: TcpSeqNumber) -> bool {
        let told = self.told;
        told.is_none_or(|(before, end)| mtu < before || begin >= end)
    }
}

impl Connection {
    /// The network tells of a segment of ours. Only one that is on its way is believed (RFC
    /// 5927), and a connection that is there does not end by it.
    pub(in crate::tcp) fn on_trouble(&self, host: &Host, report: &Report, now: Instant) {
        let mut inner = self.inner.lock();
        let queued = inner.socket().send_queue();
        if !inner.sent.covers(report.after_ports, queued) {
            return;
        }
        let connecting = inner.socket().state() == State::SynSent;
        match (report.trouble, report.trouble.errno()) {
            (Trouble::TooBig(mtu), _) => {
                let bytes = report.bytes.min(host.egress.mtu);
                let to = self.remote.ip();
                let mtu = host.egress.paths.lower(to, mtu, bytes, now);
                if mtu.is_some_and(|mtu| inner.lose_flight(mtu, report.after_ports, now)) {
                    self.after(inner, host, now);
                }
            }
            (_, Some(errno)) if connecting => {
                inner.trouble = Some(errno);
                inner.socket().abort();
                self.after(inner, host, now);
                // The TCP thread finds out that it has ended.
                host.tcp.ready.push(self.channel);
            }
            _ => {}
        }
    }
}

impl Inner {
    /// The segment that begins at `begin` was too long for a path that takes `mtu`. True: all that
    /// is not acknowledged is to be sent again.
    fn lose_flight(&mut self, mtu: usize, begin: u32, now: Instant) -> bool {
        let begin = TcpSeqNumber(begin.cast_signed());
        let sends = matches!(
            self.socket().state(),
            State::Established
                | State::CloseWait
                | State::FinWait1
                | State::Closing
                | State::LastAck
        );
        let Some(end) = self.sent.end() else {
            return false;
        };
        if !sends || !self.path.is_news(mtu, begin) {
            return false;
        }
        self.path.told = Some((mtu, end));
        // Its timer has ended then, and what it would send finds no room. So nothing else of that time stays.
        self.wire.is_full = true;
        let later = instant(now + TIMEOUT_MAX);
        self.interface
            .poll_egress(later, &mut self.wire, &mut self.sockets);
        self.wire.is_full = false;
        true
    }

    /// The longest packet to the peer that what is to be sent may be in.
    pub(super) fn mtu_to(&mut self, host: &Host, to: IpAddr, batch: &Batch, now: Instant) -> usize {
        let mtu = host.egress.mtu_to(to, now);
        if let Some((begin, times)) = self.sent.again()
            && let Some(shorter) = paths::suspected(to, times).filter(|shorter| *shorter < mtu)
            && batch.iter().any(|one| one.len() > ETHERNET_BYTES + shorter)
        {
            self.path.tried = Some((shorter, begin));
        }
        self.path.tried.map_or(mtu, |(tried, _)| tried.min(mtu))
    }

    /// A segment of the peer's came. If it acknowledges what was tried in shorter packets, longer ones were
    /// lost for their length.
    pub(super) fn note_path(&mut self, host: &Host, remote: SocketAddr, now: Instant) {
        let Some(to) = self.window.acknowledged() else {
            return;
        };
        self.path.told = self.path.told.filter(|(_, end)| *end > to);
        if let Some((mtu, _)) = self.path.tried.filter(|(_, begin)| to > *begin) {
            self.path.tried = None;
            let paths = &host.egress.paths;
            paths.lower(remote.ip(), Some(mtu), host.egress.mtu, now);
        }
    }
}

#[cfg(test)]
mod tests;
