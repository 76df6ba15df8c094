//! HTTP clients: each makes one transfer at a time.
//!
//! A transfer is a handshake, a request, a response of some segments, and a
//! close. A client acknowledges when it reads two segments or more; its machine
//! receives before any client reads or sends (ST A.3, figure 5). What is lost is
//! sent again after a timeout that doubles.
//!
//! **Limits.** The response leaves the server at once: no window, so a lost
//! segment of it costs a whole new request. So nobody waits for an acknowledgement,
//! and clients delay none by a timer.

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

/// The machine of all clients of a source: it does one thing at a time. Receiving
/// comes first, by interrupts; what clients do waits, in their order.
#[derive(Clone, Debug, Default)]
struct Machine {
    packet_ns: u64,
    /// What it receives, and when it has received it.
    receiving: VecDeque<(u64, Packet)>,
    tasks: VecDeque<Task>,
    /// Up to when `tasks` have had their time.
    clock: u64,
}

/// What a client is about to do.
#[derive(Clone, Copy, Debug)]
struct Task {
    /// What it takes yet.
    left_ns: u64,
    what: Work,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// Reads all that has come of its response.
    Read {
        client: usize,
        number: u32,
    },
    Send {
        kind: Kind,
        tag: u32,
    },
}

impl Machine {
    fn receive(&mut self, now: u64, packet: &Packet) {
        self.run(now);
        let begins = self.receiving.back().map_or(now, |(done, _)| *done);
        self.receiving.push_back((begins + self.packet_ns, *packet));
    }

    fn read(&mut self, now: u64, client: usize, number: u32) {
        self.run(now);
        let what = Work::Read { client, number };
        self.tasks.push_back(Task { left_ns: 0, what });
    }

    fn send(&mut self, now: u64, kind: Kind, tag: u32) {
        self.run(now);
        self.tasks.push_back(Task {
            left_ns: self.packet_ns,
            what: Work::Send { kind, tag },
        });
    }

    /// Gives the clients the time until `now`, unless it was for receiving.
    fn run(&mut self, now: u64) {
        if self.receiving.is_empty()
            && let Some(task) = self.tasks.front_mut()
        {
            task.left_ns = task.left_ns.saturating_sub(now - self.clock);
        }
        self.clock = now;
    }

    /// The next packet that it has received by `now`.
    fn received(&mut self, now: u64) -> Option<Packet> {
        self.run(now);
        let &(done, packet) = self.receiving.front()?;
        if done > now {
            return None;
        }
        self.receiving.pop_front();
        Some(packet)
    }

    /// What a client has done by `now`.
    fn done(&mut self, now: u64) -> Option<Work> {
        self.run(now);
        let &task = self.tasks.front()?;
        if task.left_ns > 0 || !self.receiving.is_empty() {
            return None;
        }
        self.tasks.pop_front();
        Some(task.what)
    }

    fn next(&self) -> u64 {
        let task = self.tasks.front().map(|task| self.clock + task.left_ns);
        let receiving = self.receiving.front().map(|(done, _)| *done);
        receiving.or(task).unwrap_or(NEVER)
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
    /// Segments that came since it last acknowledged what it had read.
    unread: u32,
    /// The whole response has come.
    complete: bool,
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
            unread: 0,
            complete: false,
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
        self.work(host, origin);
        let (at, index) = self.timers.first();
        if at > host.now {
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
            State::Closed | State::Opening => self.open(host.now, index),
            State::Requested => self.request(host.now, index),
        }
        self.work(host, origin);
    }

    fn next(&self) -> u64 {
        self.timers.first().0.min(self.machine.next())
    }

    pub(super) fn on_reply(&mut self, host: &mut Host, origin: &Origin, packet: &Packet) {
        self.machine.receive(host.now, packet);
        self.work(host, origin);
    }

    /// The machine does what it can have done by now.
    fn work(&mut self, host: &mut Host, origin: &Origin) {
        loop {
            if let Some(packet) = self.machine.received(host.now) {
                self.received(host, origin, &packet);
            } else if let Some(work) = self.machine.done(host.now) {
                match work {
                    Work::Send { kind, tag } => origin.send(host, kind, tag),
                    Work::Read { client, number } => self.read(host, origin, client, number),
                }
            } else {
                break;
            }
        }
        host.set_source_timer(origin.index, self.next());
    }

    /// A packet is received, in its interrupt.
    fn received(&mut self, host: &mut Host, origin: &Origin, packet: &Packet) {
        let index = (packet.tag & ((1 << CLIENT_BITS) - 1)) as usize;
        let client = &mut self.clients[index];
        if (packet.tag & !FIRST_REQUEST) >> CLIENT_BITS != client.number & NUMBER_MASK {
            return;
        }
        match (client.state, packet.kind) {
            (State::Opening, Kind::SynAck) => {
                client.left = self.requests_per_connection;
                client.backoff = 0;
                origin.send(host, Kind::Ack, packet.tag);
                self.request(host.now, index);
            }
            (State::Requested, Kind::Segment) => {
                client.segments += 1;
                client.unread += 1;
                self.machine.read(host.now, index, client.number);
            }
            (State::Requested, Kind::LastSegment) if client.segments + 1 >= self.segments => {
                client.unread += 1;
                client.complete = true;
                if self.server_closes && client.left == 1 {
                    origin.send(host, Kind::Ack, packet.tag);
                }
                self.machine.read(host.now, index, client.number);
            }
            // The last one alone is no response: the client asks anew.
            _ => {}
        }
    }

    /// A client reads what has come: two segments or more make TCP tell of the room.
    fn read(&mut self, host: &mut Host, origin: &Origin, index: usize, number: u32) {
        let client = &mut self.clients[index];
        if client.number != number || client.state != State::Requested {
            return;
        }
        if client.unread >= 2 {
            client.unread = 0;
            let tag = number << CLIENT_BITS | index as u32;
            origin.send(host, Kind::Ack, tag);
        }
        if client.complete {
            self.finish(host, origin, index);
        }
    }

    fn open(&mut self, now: u64, index: usize) {
        let client = &mut self.clients[index];
        client.state = State::Opening;
        client.number = client.number.wrapping_add(1) & NUMBER_MASK;
        let tag = client.number << CLIENT_BITS | index as u32;
        let timeout = self.timeout << client.backoff;
        self.timers
            .set(index, now.saturating_add(timeout).min(NEVER - 1));
        self.machine.send(now, Kind::Syn, tag);
    }

    fn request(&mut self, now: u64, index: usize) {
        let client = &mut self.clients[index];
        // Until one is answered the server may not have accepted the connection.
        let first = client.left == self.requests_per_connection;
        client.state = State::Requested;
        client.segments = 0;
        client.unread = 0;
        client.complete = false;
        let mark = if first { FIRST_REQUEST } else { 0 };
        let tag = client.number << CLIENT_BITS | index as u32 | mark;
        let timeout = self.timeout << client.backoff;
        self.timers
            .set(index, now.saturating_add(timeout).min(NEVER - 1));
        self.machine.send(now, Kind::Request, tag);
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
            self.request(host.now, index);
            return;
        }
        client.state = State::Closed;
        let tag = client.number << CLIENT_BITS | index as u32;
        self.timers.set(index, host.now);
        let kind = if self.server_closes {
            Kind::SecondFin
        } else {
            Kind::Fin
        };
        self.machine.send(host.now, kind, tag);
    }
}
