//! Protocol work: what a packet costs above device level, and where it goes.

use super::adapter::FLOW_MASK;
use super::ledger::Times;
use super::{Host, ThreadState};
use crate::Error;
use crate::outcome::Place;
use crate::packet::{Fifo, Kind, Packet};
use crate::profile::Profile;
use crate::source::FIRST_REQUEST;
use crate::trace::What;

/// Clients of one source.
pub(crate) const CLIENTS_MAX: usize = FLOW_MASK as usize + 1;

/// What the protocol does with a consumer's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointRole {
    /// Datagrams for a socket.
    Datagram,
    /// Forwarded out of an adapter.
    Forward { out: usize },
    /// To the screening process, and then out of an adapter.
    Screen { out: usize },
    /// To the packet filter's queue.
    Capture,
    /// A listening TCP socket with its connections.
    Tcp,
    /// A UDP port without a socket: an ICMP error answers each datagram.
    Closed,
}

impl EndpointRole {
    fn full(self) -> Place {
        match self {
            Self::Datagram | Self::Tcp | Self::Forward { .. } | Self::Closed => Place::SocketQueue,
            Self::Screen { .. } => Place::ScreeningQueue,
            Self::Capture => Place::FilterQueue,
        }
    }
}

/// A consumer as the kernel sees it.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) role: EndpointRole,
    /// Between protocol and process.
    pub(crate) queue: Fifo,
    /// Its processes' threads.
    pub(crate) threads: Vec<usize>,
    /// Connection requests nobody has accepted.
    pub(crate) backlog: usize,
    pub(crate) backlog_max: usize,
    /// Clients whose request is part of the backlog, by [`client`]: sent again, it
    /// is no second.
    pub(crate) opening: Box<[bool]>,
    pub(crate) delivered: u64,
    pub(crate) frames: u64,
    pub(crate) latency: Times,
    /// Of forwarded packets, until the driver begins to hand them to a transmitter.
    pub(crate) handover: Times,
}

impl Endpoint {
    pub(crate) fn held(&self) -> usize {
        self.queue.len()
    }

    /// A listener that accepts no further connection requests.
    pub(crate) fn is_beyond_backlog(&self) -> bool {
        self.role == EndpointRole::Tcp && self.backlog >= self.backlog_max
    }
}

/// Number of the client of a source that a packet is from, among all sources'.
fn client(packet: &Packet) -> usize {
    usize::from(packet.source) * CLIENTS_MAX + (packet.tag & FLOW_MASK) as usize
}

/// Costs above device level, in ns. What no consumer of the scenario needs is 0.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProtocolCosts {
    pub(crate) input: u64,
    pub(crate) control: u64,
    pub(crate) port_unreachable: u64,
    pub(crate) forward: u64,
    pub(crate) forward_filter: u64,
    pub(crate) forward_output: u64,
    pub(crate) capture_filter: u64,
    pub(crate) transmit: u64,
    pub(crate) transmit_complete: u64,
    pub(crate) tcp_syn: u64,
    pub(crate) tcp_ack: u64,
    pub(crate) tcp_data: u64,
    pub(crate) tcp_output: u64,
    pub(crate) wakeup: u64,
    pub(crate) receive_call: u64,
    pub(crate) send_call: u64,
    pub(crate) eager_penalty: u64,
    pub(crate) screen_call: u64,
    pub(crate) capture_read: u64,
    pub(crate) capture_copy: u64,
    pub(crate) capture_disk: u64,
}

/// What a scenario asks of the protocol, for what it must cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    pub(crate) sockets: bool,
    pub(crate) sends: bool,
    pub(crate) forwards: bool,
    pub(crate) screens: bool,
    pub(crate) captures: bool,
    pub(crate) disk: bool,
    pub(crate) tcp: bool,
    pub(crate) corrupt: bool,
    pub(crate) closed: bool,
}

impl ProtocolCosts {
    /// Costs of `profile` for what is needed.
    pub(crate) fn load(profile: &Profile, needs: Needs) -> Result<Self, Error> {
        let get = |needed: bool, name, user: &str| {
            if needed {
                profile.cost(name, user)
            } else {
                Ok(0)
            }
        };
        let sockets = "a consumer with a socket";
        let output = needs.sends || needs.forwards || needs.screens || needs.tcp || needs.closed;
        let (web, screen) = ("a TCP consumer", "a screening process");
        let process = needs.sockets || needs.screens || needs.captures || needs.tcp;
        Ok(Self {
            input: get(needs.sockets || needs.closed, "protocol_input", sockets)?,
            eager_penalty: get(needs.sockets, "eager_penalty", sockets)?,
            receive_call: get(needs.sockets, "receive_call", sockets)?,
            wakeup: get(process, "wakeup", "a process")?,
            send_call: get(needs.sends, "send_call", "a consumer that answers")?,
            control: get(
                needs.corrupt,
                "protocol_control",
                "a source of corrupt packets",
            )?,
            port_unreachable: profile.cost_or_zero("port_unreachable"),
            forward: get(needs.forwards, "forward", "forwarding")?,
            forward_filter: get(needs.screens, "forward_filter", screen)?,
            forward_output: get(needs.screens, "forward_output", screen)?,
            screen_call: get(needs.screens, "screen_call", screen)?,
            capture_filter: get(needs.captures, "capture_filter", "a capture")?,
            capture_read: get(needs.captures, "capture_read", "a capture")?,
            capture_copy: get(needs.captures, "capture_copy", "a capture")?,
            capture_disk: get(needs.disk, "capture_disk", "a capture to disk")?,
            transmit: get(output, "driver_transmit", "whoever sends")?,
            transmit_complete: get(output, "transmit_complete", "whoever sends")?,
            tcp_syn: get(needs.tcp, "tcp_syn", web)?,
            tcp_ack: get(needs.tcp, "tcp_ack", web)?,
            tcp_data: get(needs.tcp, "tcp_data", web)?,
            tcp_output: get(needs.tcp, "tcp_output", web)?,
        })
    }
}

/// Where protocol work left a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queued {
    /// On the queue of this consumer, or lost because it was full.
    At(usize),
    /// Sent on, absorbed, or lost without being queued.
    Nowhere,
}

impl Host {
    /// What protocol work on `packet` costs, in ns.
    #[inline]
    pub(crate) fn protocol_cost(&self, packet: &Packet) -> u64 {
        let costs = &self.protocol;
        let endpoint = &self.endpoints[usize::from(packet.to)];
        match (packet.kind, endpoint.role) {
            (Kind::Corrupt, _) => costs.control,
            (Kind::Syn, _) if endpoint.is_beyond_backlog() => costs.tcp_syn,
            (Kind::Syn, _) => costs.tcp_syn + costs.transmit,
            (Kind::Ack | Kind::Fin, _) => costs.tcp_ack,
            (Kind::SecondFin, _) => costs.tcp_ack + costs.tcp_output + self.reply_cost(packet),
            (Kind::Request, _) => costs.tcp_data + self.wakeup_cost(endpoint),
            (_, EndpointRole::Datagram) => costs.input + self.wakeup_cost(endpoint),
            (_, EndpointRole::Forward { out }) => costs.forward + self.start_cost(out),
            (_, EndpointRole::Screen { .. }) => costs.forward_filter + self.wakeup_cost(endpoint),
            (_, EndpointRole::Capture) => costs.capture_filter + self.wakeup_cost(endpoint),
            (_, EndpointRole::Tcp) => costs.control,
            (_, EndpointRole::Closed) => {
                costs.input + costs.port_unreachable + self.reply_cost(packet)
            }
        }
    }

    /// What handing a packet to `adapter` costs now; one that is queued pays when
    /// it is taken from the queue.
    pub(crate) fn start_cost(&self, adapter: usize) -> u64 {
        if self.starts_at_once(adapter) {
            self.protocol.transmit
        } else {
            0
        }
    }

    /// What handing an answer to `packet` to an adapter costs now.
    pub(crate) fn reply_cost(&self, packet: &Packet) -> u64 {
        self.start_cost(self.source_adapters[usize::from(packet.source)])
    }

    /// What waking a process of `endpoint` costs, if one sleeps.
    #[inline]
    fn wakeup_cost(&self, endpoint: &Endpoint) -> u64 {
        let sleeps = |&thread: &usize| self.threads[thread].state == ThreadState::Blocked;
        if endpoint.threads.iter().any(sleeps) {
            self.protocol.wakeup
        } else {
            0
        }
    }

    /// Protocol work on `packet` is over: it goes where it is for.
    pub(crate) fn protocol_done(&mut self, packet: Packet) -> Queued {
        self.record(What::Protocol, packet.tag, packet.source);
        self.warm = Some((packet.source, packet.tag));
        let to = usize::from(packet.to);
        match (packet.kind, self.endpoints[to].role) {
            (Kind::Corrupt, _) => self.lose(packet, Place::Protocol),
            (Kind::Syn, EndpointRole::Tcp) => self.connection_request(packet),
            (Kind::Ack | Kind::Fin, EndpointRole::Tcp) => self.ledger.end(),
            (Kind::SecondFin, EndpointRole::Tcp) => {
                self.ledger.end();
                self.send_reply(Packet {
                    kind: Kind::Ack,
                    work: 0,
                    ..packet
                });
            }
            (_, EndpointRole::Forward { out }) => self.send(out, packet),
            (Kind::Datagram, EndpointRole::Closed) => {
                self.lose(packet, Place::Protocol);
                self.send_icmp_error(&packet);
            }
            (Kind::Request, EndpointRole::Tcp)
            | (
                Kind::Datagram,
                EndpointRole::Datagram | EndpointRole::Screen { .. } | EndpointRole::Capture,
            ) => {
                self.queue_for(to, packet);
                return Queued::At(to);
            }
            _ => self.lose(packet, Place::Protocol),
        }
        Queued::Nowhere
    }

    /// Appends to a consumer's queue and wakes it.
    pub(crate) fn queue_for(&mut self, to: usize, packet: Packet) {
        let endpoint = &mut self.endpoints[to];
        if endpoint.queue.push(packet) {
            self.wake_one(to);
        } else {
            let place = endpoint.role.full();
            self.lose(packet, place);
        }
    }

    /// Wakes a sleeping thread of a consumer, if it has one.
    #[inline]
    pub(crate) fn wake_one(&mut self, endpoint: usize) {
        let threads = &self.endpoints[endpoint].threads;
        let sleeps = |&&thread: &&usize| self.threads[thread].state == ThreadState::Blocked;
        if let Some(&thread) = threads.iter().find(sleeps) {
            self.wake(thread);
        }
    }

    fn connection_request(&mut self, packet: Packet) {
        let endpoint = &mut self.endpoints[usize::from(packet.to)];
        let spoofed = packet.tag & FIRST_REQUEST != 0;
        let client = client(&packet);
        let again = !spoofed && endpoint.opening[client];
        if !again {
            if endpoint.is_beyond_backlog() {
                self.lose(packet, Place::Backlog);
                return;
            }
            endpoint.backlog += 1;
            endpoint.opening[client] |= !spoofed;
        }
        self.ledger.end();
        let reply = Packet {
            kind: Kind::SynAck,
            work: 0,
            ..packet
        };
        self.send_reply(reply);
    }

    /// The web server accepts the connection of a first request, if it has not.
    pub(crate) fn accept(&mut self, endpoint: usize, request: &Packet) -> bool {
        let endpoint = &mut self.endpoints[endpoint];
        let opening = &mut endpoint.opening[client(request)];
        let first = request.tag & FIRST_REQUEST != 0 && std::mem::take(opening);
        endpoint.backlog -= usize::from(first);
        first
    }

    /// A consumer has finished with `packet`.
    #[inline]
    pub(crate) fn deliver(&mut self, packet: &Packet) {
        let latency = self.now - packet.arrived;
        self.ledger.deliver(packet, latency);
        let endpoint = &mut self.endpoints[usize::from(packet.to)];
        endpoint.delivered += 1;
        if self.ledger.measuring {
            endpoint.latency.add(latency);
        }
        self.record(What::Delivered, packet.tag, packet.source);
    }

    /// A transmitter has been given `packet`, which is forwarded: the call that does so took
    /// `driver_transmit`, and counts from its beginning, as in the papers' traces.
    #[inline]
    pub(crate) fn hand_over(&mut self, packet: &Packet) {
        let latency = (self.now - packet.arrived).saturating_sub(self.protocol.transmit);
        self.ledger.hand_over(packet, latency);
        if self.ledger.measuring {
            self.endpoints[usize::from(packet.to)].handover.add(latency);
        }
    }
}
