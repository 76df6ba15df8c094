//! Closed loop of requests and answers: ping-pong, or RPC with several requests
//! under way.

use crate::agenda::Agenda;
use crate::host::Host;
use crate::packet::{Kind, Packet};

use super::{Origin, nanos};

/// The exchanges of one source.
#[derive(Clone, Debug)]
pub(crate) struct PingPong {
    exchanges: Vec<Exchange>,
    /// When each times out, or sends.
    timers: Agenda,
    think: u64,
    timeout: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Exchange {
    /// Number of the request under way: answers to earlier ones are ignored.
    number: u32,
    sent: u64,
    waiting: bool,
}

/// Bits of a tag that number the exchange; the rest number its requests.
const EXCHANGE_BITS: u32 = 12;

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
        }
    }

    /// The first exchange in time acts: it sends, again if an answer is overdue.
    pub(super) fn on_timer(&mut self, host: &mut Host, origin: &Origin) {
        let (_, index) = self.timers.first();
        let exchange = &mut self.exchanges[index];
        if exchange.waiting {
            host.ledger.sources[origin.index].timeouts += 1;
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
        self.timers.set(index, host.now + self.think);
        host.set_source_timer(origin.index, self.timers.first().0);
    }
}
