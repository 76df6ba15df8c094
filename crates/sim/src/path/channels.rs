//! One channel per consumer: the bounded queue between demultiplexing and
//! whoever does the protocol work (LRP-10 to LRP-12).
//!
//! Whose a packet is, the queue, what it discards and when its consumer wants to be
//! interrupted are the core's.

use plimsoll_core::channel::{
    Admission, ChannelConfig, Consumer, InterruptRequest, Producer, channel,
};

use super::classes::Classes;
use crate::Error;
use crate::host::{EndpointRole, Host};
use crate::packet::Packet;

/// A channel's two ends, in one place: the model is a single thread.
#[derive(Debug)]
struct Channel {
    producer: Producer<Packet>,
    consumer: Consumer<Packet>,
}

impl Channel {
    fn new(capacity: u32) -> Result<Self, Error> {
        let config = ChannelConfig::drop_tail(capacity);
        let (producer, consumer) = channel(&config).map_err(Error::core("a channel"))?;
        Ok(Self { producer, consumer })
    }
}

/// The channels of all consumers.
#[derive(Debug)]
pub(super) struct Channels {
    classes: Classes,
    /// By consumer.
    data: Vec<Channel>,
    /// By consumer: connection requests for its listening socket.
    requests: Vec<Channel>,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pushed {
    /// Queued; `true` if its consumer wants to be interrupted.
    Queued(bool),
    /// The channel was full.
    Discarded(Packet),
}

impl Channels {
    /// Channels as long as `host`'s socket queues.
    pub(super) fn new(host: &Host) -> Result<Self, Error> {
        let made = |length: fn(&crate::host::Endpoint) -> u32| {
            let all = host.endpoints.iter().map(length);
            all.map(Channel::new).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            classes: Classes::new(host)?,
            data: made(|endpoint| endpoint.queue.limit() as u32)?,
            requests: made(|endpoint| endpoint.backlog_max.max(1) as u32)?,
        })
    }

    /// Puts a packet on its channel.
    pub(super) fn push(&mut self, host: &Host, packet: Packet) -> Pushed {
        let (to, request) = self.classes.of(&packet);
        let channel = if request {
            &mut self.requests[to]
        } else {
            &mut self.data[to]
        };
        match channel.producer.push(packet, host.instant()) {
            Admission::Queued => Pushed::Queued(channel.producer.interrupt_due()),
            Admission::Discarded { item, .. } => Pushed::Discarded(item),
        }
    }

    /// Takes the next packet of a consumer: of its connections first, then
    /// connection requests, unless its listening socket is beyond its backlog
    /// (LRP-39).
    pub(super) fn pop(&mut self, host: &Host, to: usize) -> Option<Packet> {
        let now = host.instant();
        if let Some(arrival) = self.data[to].consumer.pop(now) {
            return Some(arrival.item);
        }
        let endpoint = &host.endpoints[to];
        if endpoint.role != EndpointRole::Tcp || endpoint.is_beyond_backlog() {
            return None;
        }
        self.requests[to]
            .consumer
            .pop(now)
            .map(|arrival| arrival.item)
    }

    /// The consumer found nothing, sleeps, and wants to be interrupted.
    pub(super) fn request_interrupt(&mut self, to: usize) {
        let data = self.data[to].consumer.request_interrupt();
        // Connection requests may wait: then the backlog is full, and what makes
        // room in it wakes.
        let requests = self.requests[to].consumer.request_interrupt();
        debug_assert!(data == InterruptRequest::Pending && requests != InterruptRequest::Closed);
    }

    /// Connection requests wait for room in the backlog.
    pub(super) fn requests_wait(&self, to: usize) -> bool {
        self.requests[to].producer.occupancy() > 0
    }

    /// Packets of its connections, or datagrams, wait for consumer `to`.
    pub(super) fn data_waits(&self, to: usize) -> bool {
        self.data[to].producer.occupancy() > 0
    }

    pub(super) fn held(&self) -> usize {
        let all = self.data.iter().chain(&self.requests);
        all.map(|channel| channel.producer.occupancy()).sum()
    }
}
