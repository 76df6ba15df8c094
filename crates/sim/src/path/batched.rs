//! Interrupt-driven receiving, one packet per interrupt or as many as there are
//! (BL-01 to 07, 27).
//!
//! **Rules.** The handler runs at device level, does link-level work, appends to
//! the shared IP queue and posts a software interrupt, which outranks every
//! process and takes packets up to the socket queues. With batching the handler
//! goes on until the adapter has none left, packets that arrive meanwhile
//! included (MR-04). In Digital UNIX a kernel thread takes the place of the
//! software interrupt (MR-05), and a driver starts nothing while its transmitter is
//! active, polled or not (MR-66). A vendor's driver costs more for each packet (BL-06).
//!
//! **Where excess is dropped.** On the IP queue while device level takes all of
//! the CPU, on the socket queue while the protocol takes the rest: in both cases
//! after work was spent.

use super::stages::{
    Costs, ProtocolThread, ReceiveHandler, SoftInterrupt, TransmitHandler, to_ip_queue,
};
use super::{Parts, Path};
use crate::Error;
use crate::host::{Cx, Host, LineKind, Step};
use crate::scenario::BatchedInterruptsConfig;

/// How interrupts are handled.
#[derive(Clone, Copy, Debug)]
struct Options {
    /// Packets per interrupt.
    batch: u32,
    /// No transmit interrupt is handled while packets wait (MR-14).
    receive_first: bool,
    /// A kernel thread does the protocol work.
    protocol_thread: bool,
    /// Work that each interrupt spends on finding out that it is not polled, in
    /// ns (BL-27).
    detour: u64,
    /// What a vendor's driver costs in addition for each packet, in ns (BL-06).
    vendor: u64,
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

impl Default for Options {
    /// Plain batching.
    fn default() -> Self {
        Self {
            batch: u32::MAX,
            receive_first: false,
            protocol_thread: false,
            detour: 0,
            vendor: 0,
        }
    }
}

impl Batched {
    /// An interrupt takes all packets that there are.
    pub(super) fn new(parts: &Parts<'_>, config: BatchedInterruptsConfig) -> Self {
        let BatchedInterruptsConfig {
            receive_first,
            protocol_thread,
        } = config;
        let options = Options {
            receive_first,
            protocol_thread,
            ..Options::default()
        };
        Self::of(parts, options)
    }

    /// An interrupt takes one packet.
    pub(super) fn one_by_one(parts: &Parts<'_>) -> Self {
        let options = Options {
            batch: 1,
            ..Options::default()
        };
        Self::of(parts, options)
    }

    /// A vendor's driver.
    pub(super) fn vendor(parts: &Parts<'_>) -> Result<Self, Error> {
        let options = Options {
            vendor: parts.cost("vendor_driver")?,
            ..Options::default()
        };
        Ok(Self::of(parts, options))
    }

    /// The polling thread is there, and not used.
    pub(super) fn unused_polling(parts: &Parts<'_>) -> Result<Self, Error> {
        let options = Options {
            protocol_thread: true,
            detour: parts.cost("poll_pass")?,
            ..Options::default()
        };
        Ok(Self::of(parts, options))
    }

    fn of(parts: &Parts<'_>, options: Options) -> Self {
        let costs = Costs {
            enter: parts.costs.enter + options.detour,
            receive: parts.costs.receive + options.vendor,
            ..parts.costs
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
            for device in &mut host.adapters {
                device.wait_while_active = true;
            }
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
