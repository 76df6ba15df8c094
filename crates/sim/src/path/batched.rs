//! Interrupt-driven receiving, one packet per interrupt or as many as there are
//! (BL-01, 02, 03, 05, 07).
//!
//! **Rules.** The handler runs at device level, does link-level work, appends to
//! the shared IP queue and posts a software interrupt, which outranks every
//! process and takes packets up to the socket queues. With batching the handler
//! goes on until the adapter has none left, packets that arrive meanwhile
//! included (MR-04).
//!
//! **Where excess is dropped.** On the IP queue while device level takes all of
//! the CPU, on the socket queue while the protocol takes the rest: in both cases
//! after work was spent.

use super::Path;
use super::stages::{Costs, SoftInterrupt, TransmitService, to_ip_queue};
use crate::host::{Cx, Host, LineKind, Step};

/// How much one interrupt does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Batch {
    /// One packet.
    One,
    /// All there are, transmit completions included.
    All,
    /// All packets; completions only when none is left (MR-14).
    ReceiveFirst,
}

/// Where a handler is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Entry,
    Work,
    Exit,
}

/// The path.
#[derive(Debug)]
pub(super) struct Batched {
    costs: Costs,
    batch: Batch,
    /// By line.
    handlers: Vec<Phase>,
    transmit: Vec<TransmitService>,
    soft: Vec<SoftInterrupt>,
}

impl Batched {
    pub(super) fn new(costs: Costs, batch: Batch) -> Self {
        Self {
            costs,
            batch,
            handlers: Vec::new(),
            transmit: Vec::new(),
            soft: Vec::new(),
        }
    }

    fn receive(&mut self, host: &mut Host, cx: Cx, adapter: usize, queue: usize) -> Step {
        match self.handlers[cx.line] {
            Phase::Entry => {
                host.ledger.counts.interrupts += 1;
                self.handlers[cx.line] = Phase::Work;
                Step::Kernel(self.costs.enter)
            }
            Phase::Work => {
                let first = match host.lines[cx.line].hand.take() {
                    Some(packet) => {
                        to_ip_queue(host, cx.cpu, packet);
                        false
                    }
                    None => true,
                };
                if first || self.batch != Batch::One {
                    let ring = &mut host.adapters[adapter].rings[queue];
                    if let Some(packet) = ring.packets.pop() {
                        host.lines[cx.line].hand = Some(packet);
                        return Step::Kernel(self.costs.receive + self.costs.queue);
                    }
                }
                self.handlers[cx.line] = Phase::Exit;
                Step::Kernel(self.costs.exit)
            }
            Phase::Exit => {
                self.handlers[cx.line] = Phase::Entry;
                // Level-triggered: what is left, or came during the exit,
                // interrupts again.
                host.enable_receive(adapter, queue);
                Step::Done
            }
        }
    }

    fn transmit(&mut self, host: &mut Host, cx: Cx, adapter: usize) -> Step {
        match self.handlers[cx.line] {
            Phase::Entry => {
                host.ledger.counts.interrupts += 1;
                self.handlers[cx.line] = Phase::Work;
                Step::Kernel(self.costs.enter)
            }
            Phase::Work => match self.transmit[adapter].step(host, adapter, cx.line) {
                Step::Done => {
                    self.handlers[cx.line] = Phase::Exit;
                    Step::Kernel(self.costs.exit)
                }
                step => step,
            },
            Phase::Exit => {
                self.handlers[cx.line] = Phase::Entry;
                host.enable_transmit(adapter);
                Step::Done
            }
        }
    }
}

impl Path for Batched {
    fn start(&mut self, host: &mut Host) {
        self.handlers = vec![Phase::Entry; host.lines.len()];
        self.transmit = vec![TransmitService::default(); host.adapters.len()];
        self.soft = vec![SoftInterrupt::default(); host.cpus.len()];
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        match kind {
            LineKind::Receive { adapter, queue } => self.receive(host, cx, adapter, queue),
            LineKind::Transmit { adapter } => self.transmit(host, cx, adapter),
            LineKind::Soft => {
                let dispatch = self.costs.soft_dispatch;
                self.soft[cx.cpu].step(host, cx, dispatch).0
            }
            LineKind::Trigger | LineKind::Timer | LineKind::Clock => Step::Done,
        }
    }
}
