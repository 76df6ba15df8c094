//! Stages that several paths are made of: a driver's handler, the software
//! interrupt behind it, and the receive call that ends at a socket queue.

use super::Received;
use crate::Error;
use crate::host::{Cx, Host, Queued, Step};
use crate::outcome::Place;
use crate::profile::Profile;

/// Costs of the stages, in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    pub(super) enter: u64,
    pub(super) exit: u64,
    pub(super) receive: u64,
    pub(super) queue: u64,
    pub(super) soft_dispatch: u64,
}

impl Costs {
    pub(super) fn load(profile: &Profile, user: &str) -> Result<Self, Error> {
        Ok(Self {
            enter: profile.cost("interrupt_enter", user)?,
            exit: profile.cost("interrupt_exit", user)?,
            receive: profile.cost("driver_receive", user)?,
            queue: profile.cost("queue_packet", user)?,
            soft_dispatch: profile.cost("soft_dispatch", user)?,
        })
    }
}

/// The receive call of a kernel that has done the protocol work already.
pub(super) fn receive_from_socket(host: &mut Host, endpoint: usize, thread: usize) -> Received {
    match host.endpoints[endpoint].queue.pop() {
        Some(packet) => {
            host.threads[thread].hand = Some(packet);
            Received::Packet(host.protocol.receive_call + host.protocol.eager_penalty)
        }
        None => Received::Nothing,
    }
}

/// Appends a packet to the shared IP queue of `cpu` and posts its software
/// interrupt.
#[inline]
pub(super) fn to_ip_queue(host: &mut Host, cpu: usize, packet: crate::packet::Packet) {
    if host.ip_queues[cpu].push(packet) {
        host.raise_soft(cpu);
    } else {
        host.lose(packet, Place::IpQueue);
    }
}

/// The software interrupt of 4.4BSD: takes packets from the IP queue and does all
/// protocol work on them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SoftInterrupt {
    running: bool,
}

impl SoftInterrupt {
    /// Its next step, and the consumer that it has just queued a packet for.
    #[inline]
    pub(super) fn step(&mut self, host: &mut Host, cx: Cx, dispatch: u64) -> (Step, Queued) {
        if !self.running {
            self.running = true;
            host.ledger.counts.soft_interrupts += 1;
            return (Step::Kernel(dispatch), Queued::Nowhere);
        }
        let queued = match host.lines[cx.line].hand.take() {
            Some(packet) => host.protocol_done(packet),
            None => Queued::Nowhere,
        };
        match host.ip_queues[cx.cpu].pop() {
            Some(packet) => {
                let cost = host.protocol_cost(&packet);
                host.lines[cx.line].hand = Some(packet);
                (Step::Kernel(cost), queued)
            }
            None => {
                self.running = false;
                (Step::Done, queued)
            }
        }
    }
}

/// The transmit half of a driver's handler: releases completed descriptors and
/// refills the transmitter from the output queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TransmitService {
    releasing: bool,
}

impl TransmitService {
    /// Its next step; [`Step::Done`] when nothing is left. `hand` is where it
    /// keeps the packet it starts.
    pub(super) fn step(&mut self, host: &mut Host, adapter: usize, line: usize) -> Step {
        if let Some(packet) = host.lines[line].hand.take() {
            host.start_transmit(adapter, packet);
        }
        if std::mem::take(&mut self.releasing) {
            host.release_descriptor(adapter);
        }
        if host.adapters[adapter].completed > 0 {
            self.releasing = true;
            return Step::Kernel(host.protocol.transmit_complete);
        }
        match host.next_output(adapter) {
            Some(packet) => {
                host.lines[line].hand = Some(packet);
                Step::Kernel(host.protocol.transmit)
            }
            None => Step::Done,
        }
    }
}
