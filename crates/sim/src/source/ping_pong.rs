//! Closed loop of requests and answers: ping-pong, or RPC with several requests
//! under way.

use crate::engine::agenda::Agenda;
use crate::host::Host;
use crate::packet::{Kind, Packet};

use super::{Origin, nanos};

/// Far more answers than a process gives in one quantum.
const PACE_ANSWERS: f64 = 1024.0;
/// The gap before anything is known.
const PACE_FIRST_NS: u64 = 1_000_000;
/// Bits of a tag that number the exchange; the rest number its requests.
const EXCHANGE_BITS: u32 = 12;

/// The exchanges of one source.
#[derive(Clone, Debug)]
pub(crate) struct PingPong {
    exchanges: Vec<Exchange>,
    /// When each times out, or sends.
    timers: Agenda,
    think: u64,
    timeout: u64,
    pace: Option<Pace>,
}

/// Spreads packets evenly over time. The gap between two is that between two
/// answers on average, a little more or less as more or fewer than half of the
/// exchanges wait for an answer.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// When the last packet leaves that has been given a time.
    last: u64,
    /// Of the last answer.
    answered: u64,
    /// Mean time between answers, in ns, over about the last [`PACE_ANSWERS`].
    gap: f64,
    waiting: usize,
}

impl Pace {
    fn on_answer(&mut self, now: u64) {
        let gap = (now - self.answered) as f64;
        self.answered = now;
        self.gap += (gap - self.gap) / PACE_ANSWERS;
        self.waiting -= 1;
    }

    /// When the next packet leaves.
    fn next(&mut self, now: u64, exchanges: usize) -> u64 {
        let filled = self.waiting as f64 / exchanges as f64;
        let gap = (self.gap * (0.5 + filled)) as u64;
        self.last = now.max(self.last + gap);
        self.last
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Exchange {
    /// Number of the request under way: answers to earlier ones are ignored.
    number: u32,
    sent: u64,
    waiting: bool,
}

impl PingPong {
    pub(super) fn new(outstanding: u32, think_us: f64, timeout_ms: f64) -> Self {
        let count = outstanding as usize;
        let mut timers = Agenda::new(count);
        for exchange in 0..count {
            timers.set(exchange, 0);
        }
        Self {
            exchanges: vec![Exchange::default(); count],
            timers,
            think: nanos(think_us),
            timeout: nanos(timeout_ms * 1e3),
            pace: None,
        }
    }

    /// The same with packets that leave evenly.
    pub(super) fn evenly(mut self) -> Self {
        let mut last = 0;
        for exchange in 0..self.exchanges.len() {
            self.timers.set(exchange, last);
            last += PACE_FIRST_NS;
        }
        self.pace = Some(Pace {
            last,
            answered: 0,
            gap: PACE_FIRST_NS as f64,
            waiting: 0,
        });
        self
    }

    /// The first exchange in time acts: it sends, again if an answer is overdue.
    pub(super) fn on_timer(&mut self, host: &mut Host, origin: &Origin) {
        let (_, index) = self.timers.first();
        let exchange = &mut self.exchanges[index];
        if exchange.waiting {
            host.ledger.sources[origin.index].timeouts += 1;
        } else if let Some(pace) = &mut self.pace {
            pace.waiting += 1;
        }
        exchange.number = exchange.number.wrapping_add(1);
        exchange.sent = host.now;
        exchange.waiting = true;
        let tag = exchange.number << EXCHANGE_BITS | index as u32;
        self.timers.set(index, host.now + self.timeout);
        origin.send(host, Kind::Datagram, tag);
        host.set_source_timer(origin.index, self.timers.first().0);
    }

    pub(super) fn on_reply(&mut self, host: &mut Host, origin: &Origin, packet: &Packet) {
        let index = (packet.tag & ((1 << EXCHANGE_BITS) - 1)) as usize;
        let exchange = &mut self.exchanges[index];
        if !exchange.waiting || exchange.number << EXCHANGE_BITS | index as u32 != packet.tag {
            return;
        }
        exchange.waiting = false;
        let took = host.now - exchange.sent;
        let ledger = &mut host.ledger;
        ledger.sources[origin.index].completed += 1;
        if ledger.measuring {
            ledger.round_trips[origin.index].add(took);
        }
        let mut next = host.now + self.think;
        if let Some(pace) = &mut self.pace {
            pace.on_answer(host.now);
            next = pace.next(next, self.exchanges.len());
        }
        self.timers.set(index, next);
        host.set_source_timer(origin.index, self.timers.first().0);
    }
}
