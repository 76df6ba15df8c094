//! Interrupt-driven receiving, one packet per interrupt or as many as there are
//! (BL-01 to 07, 27).
//!
//! **Rules.** The handler runs at device level, does link-level work, appends to
//! the shared IP queue and posts a software interrupt, which outranks every
//! process and takes packets up to the socket queues. With batching the handler
//! goes on until the adapter has none left, packets that arrive meanwhile
//! included (MR-04). In Digital UNIX a kernel thread takes the place of the
//! software interrupt (MR-05). A vendor's driver costs more for each packet (BL-06).
//!
//! **Where excess is dropped.** On the IP queue while device level takes all of
//! the CPU, on the socket queue while the protocol takes the rest: in both cases
//! after work was spent.

use super::Path;
use super::stages::{
    Costs, ProtocolThread, ReceiveHandler, SoftInterrupt, TransmitHandler, to_ip_queue,
};
use crate::host::{Cx, Host, LineKind, Step};

/// How interrupts are handled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// Packets per interrupt.
    pub(super) batch: u32,
    /// No transmit interrupt is handled while packets wait (MR-14).
    pub(super) receive_first: bool,
    /// A kernel thread does the protocol work.
    pub(super) protocol_thread: bool,
    /// Work that each interrupt spends on finding out that it is not polled, in
    /// ns (BL-27).
    pub(super) detour: u64,
    /// What a vendor's driver costs in addition for each packet, in ns (BL-06).
    pub(super) vendor: u64,
}

/// The path.
#[derive(Debug)]
pub(super) struct Batched {
    costs: Costs,
    options: Options,
    receive: ReceiveHandler,
    transmit: TransmitHandler,
    soft: Vec<SoftInterrupt>,
    thread: ProtocolThread,
}

impl Batched {
    pub(super) fn new(costs: Costs, options: Options) -> Self {
        let costs = Costs {
            enter: costs.enter + options.detour,
            receive: costs.receive + options.vendor,
            ..costs
        };
        Self {
            costs,
            options,
            receive: ReceiveHandler::new(costs),
            transmit: TransmitHandler::new(costs),
            soft: Vec::new(),
            thread: ProtocolThread::default(),
        }
    }

    fn receive(&mut self, host: &mut Host, cx: Cx, adapter: usize, queue: usize) -> Step {
        let (batch, cost) = (self.options.batch, self.costs.queue);
        let thread = &self.thread;
        let step = self.receive.step(
            host,
            cx,
            (adapter, queue),
            batch,
            |_, packet| (Some(packet), cost),
            |host, packet| match thread.on(cx.cpu) {
                Some(thread) => ProtocolThread::queue(host, cx.cpu, thread, packet),
                None => to_ip_queue(host, cx.cpu, packet),
            },
        );
        if step == Step::Done {
            // Level-triggered: what is left, or came meanwhile, interrupts again.
            host.enable_receive(adapter, queue);
        }
        step
    }

    /// Some adapter has packets that were not taken.
    fn packets_wait(host: &Host) -> bool {
        let mut rings = host.adapters.iter().flat_map(|adapter| &adapter.rings);
        rings.any(|ring| !ring.packets.is_empty())
    }
}

impl Path for Batched {
    fn start(&mut self, host: &mut Host) {
        self.receive.start(host);
        self.transmit.start(host);
        self.soft = vec![SoftInterrupt::default(); host.cpus.len()];
        if self.options.protocol_thread {
            self.thread.start(host);
        }
    }

    fn on_transmitted(&mut self, host: &mut Host, adapter: usize) {
        if !self.options.receive_first || !Self::packets_wait(host) {
            host.interrupt_transmit(adapter);
        }
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        match kind {
            LineKind::Receive { adapter, queue } => {
                let step = self.receive(host, cx, adapter, queue);
                if self.options.receive_first && step == Step::Done && !Self::packets_wait(host) {
                    (0..host.adapters.len()).for_each(|adapter| host.enable_transmit(adapter));
                }
                step
            }
            LineKind::Transmit { adapter } => self.transmit.step(host, cx, adapter),
            LineKind::Soft => {
                let dispatch = self.costs.soft_dispatch;
                self.soft[cx.cpu].step(host, cx, dispatch).0
            }
            LineKind::Trigger | LineKind::Timer | LineKind::Clock => Step::Done,
        }
    }

    fn thread(&mut self, host: &mut Host, index: usize, thread: usize) -> Step {
        self.thread
            .step(host, index, thread, self.costs.soft_dispatch)
    }
}
