//! HTTP clients: each makes one transfer at a time.
//!
//! A transfer is a handshake, a request, a response of some segments (every
//! second one is acknowledged), and a close. What is lost is sent again after a
//! timeout that doubles.
//!
//! **Limits.** The response leaves the server at once: no window, so a lost
//! segment of it costs a whole new request.

use std::collections::VecDeque;

use crate::engine::agenda::{Agenda, NEVER};
use crate::host::Host;
use crate::packet::{Kind, Packet};

use super::{Origin, nanos};

/// The bits of a tag that number the client.
const CLIENT_BITS: u32 = 12;
/// Marks the first request of a connection.
pub(crate) const FIRST_REQUEST: u32 = 1 << 31;
/// Retransmission timeouts double up to this power of two.
const BACKOFF_MAX: u32 = 6;
/// Exchange numbers wrap here.
const NUMBER_MASK: u32 = (1 << (31 - CLIENT_BITS)) - 1;

/// The clients of one source.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    clients: Vec<Client>,
    timers: Agenda,
    requests_per_connection: u32,
    /// Segments of a response.
    segments: u32,
    /// A client acknowledges the server's close before its own.
    server_closes: bool,
    timeout: u64,
    machine: Machine,
}

/// The machine of all clients of a source: it does one thing at a time.
#[derive(Clone, Debug, Default)]
struct Machine {
    packet_ns: u64,
    free: u64,
    /// What it is to send, in order of time.
    sends: VecDeque<(u64, Kind, u32)>,
}

impl Machine {
    /// Has received a packet at `now`, or has one to send: when that is done.
    fn work(&mut self, now: u64) -> u64 {
        self.free = self.free.max(now) + self.packet_ns;
        self.free
    }

    /// Sends at `at`, which is not before what is to be sent already.
    fn send(&mut self, host: &mut Host, origin: &Origin, at: u64, kind: Kind, tag: u32) {
        if at <= host.now && self.sends.is_empty() {
            origin.send(host, kind, tag);
        } else {
            self.sends.push_back((at, kind, tag));
        }
    }

    /// Sends what is due.
    fn send_due(&mut self, host: &mut Host, origin: &Origin) {
        while let Some(&(at, kind, tag)) = self.sends.front() {
            if at > host.now {
                return;
            }
            self.sends.pop_front();
            origin.send(host, kind, tag);
        }
    }

    fn next(&self) -> u64 {
        self.sends.front().map_or(NEVER, |(at, ..)| *at)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// About to open a connection.
    Closed,
    /// Waits for the answer to its connection request.
    Opening,
    /// Waits for a response.
    Requested,
}

#[derive(Clone, Copy, Debug)]
struct Client {
    state: State,
    /// Requests left on this connection.
    left: u32,
    /// Segments of the response that arrived, without the last.
    segments: u32,
    began: u64,
    backoff: u32,
    /// Number of the exchange: late packets of earlier ones are ignored.
    number: u32,
}

impl Http {
    /// So many clients; their machine takes `client_us` for each packet.
    pub(super) fn new(
        clients: u32,
        requests_per_connection: u32,
        segments: u32,
        timeout_ms: f64,
        client_us: f64,
    ) -> Self {
        let count = clients as usize;
        let mut timers = Agenda::new(count);
        for client in 0..count {
            // Clients do not begin at the same time.
            timers.set(client, client as u64 * 10_000);
        }
        let client = Client {
            state: State::Closed,
            left: 0,
            segments: 0,
            began: 0,
            backoff: 0,
            number: 0,
        };
        Self {
            clients: vec![client; count],
            timers,
            requests_per_connection,
            segments,
            server_closes: false,
            timeout: nanos(timeout_ms * 1e3),
            machine: Machine {
                packet_ns: nanos(client_us),
                ..Machine::default()
            },
        }
    }

    /// Who closes a connection first.
    pub(super) fn with_server_closing(self, server_closes: bool) -> Self {
        Self {
            server_closes,
            ..self
        }
    }

    /// The first client in time acts: opens a connection, or sends again.
    pub(super) fn on_timer(&mut self, host: &mut Host, origin: &Origin) {
        self.machine.send_due(host, origin);
        let (at, index) = self.timers.first();
        if at > host.now {
            host.set_source_timer(origin.index, self.next());
            return;
        }
        let client = &mut self.clients[index];
        if client.state == State::Closed {
            client.began = host.now;
            client.backoff = 0;
        } else {
            host.ledger.sources[origin.index].timeouts += 1;
            client.backoff = (client.backoff + 1).min(BACKOFF_MAX);
        }
        match client.state {
            State::Closed | State::Opening => self.open(host, origin, index),
            State::Requested => self.request(host, origin, index),
        }
        host.set_source_timer(origin.index, self.next());
    }

    fn next(&self) -> u64 {
        self.timers.first().0.min(self.machine.next())
    }

    pub(super) fn on_reply(&mut self, host: &mut Host, origin: &Origin, packet: &Packet) {
        let received = self.machine.work(host.now);
        let index = (packet.tag & ((1 << CLIENT_BITS) - 1)) as usize;
        let client = &mut self.clients[index];
        if (packet.tag & !FIRST_REQUEST) >> CLIENT_BITS != client.number & NUMBER_MASK {
            return;
        }
        match (client.state, packet.kind) {
            (State::Opening, Kind::SynAck) => {
                client.left = self.requests_per_connection;
                client.backoff = 0;
                let tag = packet.tag;
                self.machine.send(host, origin, received, Kind::Ack, tag);
                self.request(host, origin, index);
            }
            (State::Requested, Kind::Segment) => {
                client.segments += 1;
                if client.segments.is_multiple_of(2) {
                    let tag = packet.tag;
                    self.machine.send(host, origin, received, Kind::Ack, tag);
                }
            }
            (State::Requested, Kind::LastSegment) if client.segments + 1 >= self.segments => {
                if self.server_closes && client.left == 1 {
                    let tag = packet.tag;
                    self.machine.send(host, origin, received, Kind::Ack, tag);
                }
                self.finish(host, origin, index);
            }
            // The last one alone is no response: the client asks anew.
            _ => {}
        }
        host.set_source_timer(origin.index, self.next());
    }

    /// A client sends.
    fn send(&mut self, host: &mut Host, origin: &Origin, kind: Kind, tag: u32) {
        let at = self.machine.work(host.now);
        self.machine.send(host, origin, at, kind, tag);
    }

    fn open(&mut self, host: &mut Host, origin: &Origin, index: usize) {
        let client = &mut self.clients[index];
        client.state = State::Opening;
        client.number = client.number.wrapping_add(1) & NUMBER_MASK;
        let tag = client.number << CLIENT_BITS | index as u32;
        let timeout = self.timeout << client.backoff;
        self.timers
            .set(index, host.now.saturating_add(timeout).min(NEVER - 1));
        self.send(host, origin, Kind::Syn, tag);
    }

    fn request(&mut self, host: &mut Host, origin: &Origin, index: usize) {
        let client = &mut self.clients[index];
        // Until one is answered the server may not have accepted the connection.
        let first = client.left == self.requests_per_connection;
        client.state = State::Requested;
        client.segments = 0;
        let mark = if first { FIRST_REQUEST } else { 0 };
        let tag = client.number << CLIENT_BITS | index as u32 | mark;
        let timeout = self.timeout << client.backoff;
        self.timers
            .set(index, host.now.saturating_add(timeout).min(NEVER - 1));
        self.send(host, origin, Kind::Request, tag);
    }

    fn finish(&mut self, host: &mut Host, origin: &Origin, index: usize) {
        let client = &mut self.clients[index];
        let took = host.now - client.began;
        host.ledger.sources[origin.index].completed += 1;
        if host.ledger.measuring {
            host.ledger.round_trips[origin.index].add(took);
        }
        client.left = client.left.saturating_sub(1);
        client.backoff = 0;
        client.began = host.now;
        if client.left > 0 {
            client.number = client.number.wrapping_add(1) & NUMBER_MASK;
            self.request(host, origin, index);
            return;
        }
        client.state = State::Closed;
        let tag = client.number << CLIENT_BITS | index as u32;
        self.timers.set(index, host.now);
        self.send(host, origin, Kind::Fin, tag);
    }
}
