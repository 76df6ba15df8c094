//! Where a link of the path takes less than ours.
//!
//! * A router tells (RFC 1191, RFC 8201). All that was on its way in longer packets is lost, and its timer
//!   would tell that a second later at best. So smoltcp is made to believe that it ended now, and sends from
//!   the first byte that was not acknowledged on, in packets that fit. A flight brings as many such errors as
//!   packets: the first one counts.
//! * Nobody tells (RFC 2923: a black hole). A segment that stays unacknowledged however often it comes is then
//!   sent in shorter packets (RFC 4821, 7.7). If the peer acknowledges those, it may have been an outage all the
//!   same. So one packet goes in full again, and the others stay short until its fate is known. Where it is lost
//!   the path counts as told, for all connections to that host.
//!
//! **Limits.** Congestion control takes each for a loss: it begins with a segment, and slow start up to 70 %
//! of the flight. A full packet that is lost for another reason proves the wrong thing, for ten minutes. Who never
//! has some packets to send at once asks nothing, and stays short as long.

use std::net::IpAddr;
use std::time::Duration;

use plimsoll_core::time::Instant;
use smoltcp::socket::tcp::State;
use smoltcp::wire::TcpSeqNumber;

use super::{Connection, Inner};
use crate::device::Batch;
use crate::host::Host;
use crate::link::paths;
use crate::tcp::reset::instant;
use crate::tcp::wire::Payload;
use crate::wire::ETHERNET_BYTES;
use crate::wire::trouble::{Report, Trouble};

/// No timer of smoltcp's ends later (`RTTE_MAX_RTO`).
const TIMEOUT_MAX: Duration = Duration::from_secs(61);
/// Segments on their way when one of them asks, and short packets behind it: by as many the peer tells at once
/// that it is missing (RFC 5681, 3.2). The timer, which has doubled three times by then, would cost eight seconds.
const BEHIND: usize = 3;

/// What a connection knows of its path's longest packet.
#[derive(Debug, Default)]
pub(super) struct Path {
    /// The length when all was sent again, and what was sent up to then.
    told: Option<(usize, TcpSeqNumber)>,
    guess: Option<Guess>,
}

/// That packets above a length are lost without a word.
#[derive(Clone, Copy, Debug)]
struct Guess {
    /// The length that is sent meanwhile.
    mtu: usize,
    /// Bytes of a frame that was lost.
    lost: usize,
    since: Instant,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// From this byte on packets are short.
    Tried(TcpSeqNumber),
    /// Short ones arrive.
    Arrive,
    /// One in full is on its way, from this byte on and up to that.
    Asked(TcpSeqNumber, TcpSeqNumber),
}

impl Path {
    /// The packet that begins at this byte is not to be cut.
    pub(super) fn asks_at(&self) -> Option<TcpSeqNumber> {
        match self.guess?.stage {
            Stage::Asked(begin, _) => Some(begin),
            Stage::Tried(_) | Stage::Arrive => None,
        }
    }

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
        self.path.guess = None;
        // Its timer has ended then, and what it would send finds no room. So nothing else of that time stays.
        self.wire.is_full = true;
        let later = instant(now + TIMEOUT_MAX);
        self.interface
            .poll_egress(later, &mut self.wire, &mut self.sockets);
        self.wire.is_full = false;
        true
    }

    /// The longest packet to the peer that what is to be sent may be in, but for one that
    /// [asks](Path::asks_at).
    pub(super) fn mtu_to(&mut self, host: &Host, to: IpAddr, batch: &Batch, now: Instant) -> usize {
        let known = host.egress.mtu_to(to, now);
        let holds = |guess: &Guess| guess.mtu < known && paths::is_believed(guess.since, now);
        self.path.guess = self.path.guess.filter(holds);
        if self.has_lost_question()
            && let Some(guess) = self.path.guess.take()
        {
            let paths = &host.egress.paths;
            paths.lower(to, Some(guess.mtu), host.egress.mtu, now);
            return host.egress.mtu_to(to, now);
        }
        self.suspect(to, known, batch, now);
        if known == host.egress.mtu {
            self.ask_for_length(batch);
        }
        self.path.guess.map_or(known, |guess| guess.mtu)
    }

    /// Whether the packet that asks was sent again, and nothing before it. If something before it was, it
    /// may have been lost with that: another one is to ask.
    fn has_lost_question(&mut self) -> bool {
        let Some(guess) = &mut self.path.guess else {
            return false;
        };
        let Stage::Asked(begin, _) = guess.stage else {
            return false;
        };
        if self.sent.again().is_none() {
            return false;
        }
        guess.stage = Stage::Arrive;
        self.window.acknowledged().is_some_and(|to| to >= begin)
    }

    /// What was sent again so often seems to be lost for its length.
    fn suspect(&mut self, to: IpAddr, known: usize, batch: &Batch, now: Instant) {
        let shortest = self.path.guess.map_or(known, |guess| guess.mtu);
        let longest = batch.iter().map(|frame| frame.len()).max().unwrap_or(0);
        if let Some((begin, times)) = self.sent.again()
            && let Some(mtu) = paths::suspected(to, times)
            && mtu < shortest
            && longest > ETHERNET_BYTES + mtu
        {
            self.path.guess = Some(Guess {
                mtu,
                lost: longest,
                since: now,
                stage: Stage::Tried(begin),
            });
        }
    }

    /// Has the first packet ask that is as long as what was lost, if enough is on its way and behind it.
    fn ask_for_length(&mut self, batch: &Batch) {
        let Some(guess) = self.path.guess else {
            return;
        };
        let (Stage::Arrive, Some(begin)) = (guess.stage, self.window.acknowledged()) else {
            return;
        };
        let last = begin + self.socket().send_queue();
        let sent = batch.iter().filter_map(Payload::of).map(Payload::end);
        let sent = sent.fold(begin, TcpSeqNumber::max);
        let long = batch.iter().filter(|frame| frame.len() >= guess.lost);
        let may_ask = |one: &Payload| {
            let behind = one.end() + BEHIND * guess.mtu;
            begin + BEHIND * one.bytes() <= sent && behind <= last
        };
        if let Some(one) = long.filter_map(Payload::of).find(may_ask) {
            let stage = Stage::Asked(one.begin(), one.end());
            self.path.guess = Some(Guess { stage, ..guess });
            self.sent.forget_again();
        }
    }

    /// A segment of the peer's came. If it acknowledges what was tried in shorter packets, they arrive; if what
    /// was sent in full, all do.
    pub(super) fn note_path(&mut self) {
        let Some(to) = self.window.acknowledged() else {
            return;
        };
        self.path.told = self.path.told.filter(|(_, end)| *end > to);
        if self.sent.again().is_some_and(|(begin, _)| to > begin) {
            self.sent.forget_again();
        }
        let Some(guess) = self.path.guess else {
            return;
        };
        match guess.stage {
            Stage::Tried(begin) if to > begin => {
                let stage = Stage::Arrive;
                self.path.guess = Some(Guess { stage, ..guess });
            }
            Stage::Asked(_, end) if to >= end => self.path.guess = None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
