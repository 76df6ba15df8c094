//! The receiver's half of lazy receiver processing, the same whoever
//! demultiplexes (LRP-13 to 17, 32, 35 to 41, 45).
//!
//! **Datagrams.** The receive call takes the packet from its channel and does
//! the protocol work itself: at the receiver's priority, on its account, and not
//! at all for what nobody asks for.
//!
//! **TCP, forwarding, packet filter.** What cannot wait for a receive call is
//! done by a thread per consumer with that consumer's priority. The prototype of
//! the paper has one process for all of TCP; the paper proposes the thread per
//! process that is modelled here.

use super::Received;
use super::channels::Channels;
use crate::Error;
use crate::host::{Body, EndpointRole, Host, Step, Thread};
use crate::packet::Kind;

/// The channels with those who take from them.
#[derive(Debug)]
pub(super) struct Lazy {
    pub(super) channels: Channels,
    /// By consumer: the thread that does its protocol work.
    workers: Vec<Option<usize>>,
    /// What the receive call pays in addition for each packet, in ns.
    take: u64,
}

impl Lazy {
    pub(super) fn new(host: &Host, take: u64) -> Result<Self, Error> {
        Ok(Self {
            channels: Channels::new(host)?,
            workers: vec![None; host.endpoints.len()],
            take,
        })
    }

    /// Creates the threads; path threads are numbered by consumer.
    pub(super) fn start(&mut self, host: &mut Host) {
        for to in 0..host.endpoints.len() {
            if host.endpoints[to].role == EndpointRole::Datagram {
                continue;
            }
            let process = host.endpoints[to].threads.first().copied();
            let name = process.map_or_else(
                || format!("proxy-{to}"),
                |process| format!("{}-protocol", host.threads[process].name),
            );
            let mut thread = Thread::new(name, Body::Path(to));
            if let Some(process) = process {
                thread.nice = host.threads[process].nice;
                thread.priority = host.threads[process].priority;
                thread.cpu = host.threads[process].cpu;
            }
            let thread = host.add_thread(thread);
            self.workers[to] = Some(thread);
            // It goes to sleep in good order, asking for an interrupt.
            host.wake(thread);
        }
    }

    /// A packet is on the channel of `to`, and its consumer wants to know.
    pub(super) fn wake(&self, host: &mut Host, to: usize) {
        match self.workers[to] {
            Some(worker) => host.wake(worker),
            None => host.wake_one(to),
        }
    }

    /// See [`Path::receive`](super::Path::receive).
    pub(super) fn receive(&mut self, host: &mut Host, to: usize, thread: usize) -> Received {
        if let Some(worker) = self.workers[to] {
            if self.channels.requests_wait(to) && !host.endpoints[to].is_beyond_backlog() {
                host.wake(worker);
            }
            let Some(packet) = host.endpoints[to].queue.pop() else {
                return Received::Nothing;
            };
            host.threads[thread].hand = Some(packet);
            return Received::Packet(host.protocol.receive_call);
        }
        if let Some(invalid) = host.threads[thread].hand.take() {
            host.protocol_done(invalid);
        }
        let Some(packet) = self.channels.pop(host, to) else {
            self.channels.request_interrupt(to);
            return Received::Nothing;
        };
        host.threads[thread].hand = Some(packet);
        if packet.kind == Kind::Datagram {
            let costs = &host.protocol;
            return Received::Packet(costs.receive_call + costs.input + self.take);
        }
        Received::Work(host.protocol.control + self.take)
    }

    /// The next step of the thread that works for consumer `to`.
    pub(super) fn work(&mut self, host: &mut Host, to: usize, thread: usize) -> Step {
        if let Some(packet) = host.threads[thread].hand.take() {
            host.protocol_done(packet);
        }
        match self.channels.pop(host, to) {
            Some(packet) => {
                let cost = host.protocol_cost(&packet) + self.take;
                host.threads[thread].hand = Some(packet);
                Step::Kernel(cost)
            }
            None => {
                self.channels.request_interrupt(to);
                Step::Done
            }
        }
    }
}
