//! Early-Demux (BL-31): demultiplexing and discard in the interrupt handler, and
//! then eager protocol work as in 4.4BSD.
//!
//! **Rules.** The handler asks the core whose a packet is. If that socket's queue is
//! full the packet is discarded; otherwise it goes to the shared IP queue, and
//! the software interrupt does the protocol work (without looking the socket up
//! again).
//!
//! **Where excess is dropped.** Before protocol work, if it is for a socket whose
//! queue is full. Packets that never enter a socket queue are not stopped, and
//! livelock the host (LRP-19).

use super::classes::Classes;
use super::stages::{Costs, ReceiveHandler, SoftInterrupt, TransmitHandler, to_ip_queue};
use super::{Parts, Path};
use crate::Error;
use crate::host::{Cx, Host, LineKind, Step};
use crate::outcome::Place;
use crate::packet::Kind;

/// The path.
#[derive(Debug)]
pub(super) struct EarlyDemux {
    costs: Costs,
    classes: Classes,
    demux: u64,
    /// Protocol work saved, in ns.
    lookup: u64,
    handler: ReceiveHandler,
    transmit: TransmitHandler,
    soft: Vec<SoftInterrupt>,
}

impl EarlyDemux {
    pub(super) fn new(parts: &Parts<'_>) -> Result<Self, Error> {
        Ok(Self {
            costs: parts.costs,
            classes: Classes::new(parts.host)?,
            demux: parts.cost("demux")?,
            lookup: parts.cost("protocol_lookup")?,
            handler: ReceiveHandler::new(parts.costs),
            transmit: TransmitHandler::new(parts.costs),
            soft: Vec::new(),
        })
    }

    fn receive(&mut self, host: &mut Host, cx: Cx, adapter: usize, queue: usize) -> Step {
        let (demux, queued) = (self.demux, self.demux + self.costs.queue);
        let (classes, discarded) = (&self.classes, self.costs.receive + demux);
        let step = self.handler.step(
            host,
            cx,
            (adapter, queue),
            u32::MAX,
            |host, mut packet| {
                let endpoint = &host.endpoints[classes.of(&packet).0];
                if packet.kind != Kind::Datagram || !endpoint.queue.is_full() {
                    return (Some(packet), queued);
                }
                packet.work += discarded as u32;
                host.lose(packet, Place::Channel);
                (None, demux)
            },
            |host, packet| to_ip_queue(host, cx.cpu, packet),
        );
        if step == Step::Done {
            host.enable_receive(adapter, queue);
        }
        step
    }
}

impl Path for EarlyDemux {
    fn start(&mut self, host: &mut Host) {
        self.handler.start(host);
        self.transmit.start(host);
        self.soft = vec![SoftInterrupt::default(); host.cpus.len()];
        host.protocol.input = host.protocol.input.saturating_sub(self.lookup);
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        match kind {
            LineKind::Receive { adapter, queue } => self.receive(host, cx, adapter, queue),
            LineKind::Transmit { adapter } => self.transmit.step(host, cx, adapter),
            LineKind::Soft => {
                let dispatch = self.costs.soft_dispatch;
                self.soft[cx.cpu].step(host, cx, dispatch).0
            }
            LineKind::Trigger | LineKind::Timer | LineKind::Clock => Step::Done,
        }
    }
}
