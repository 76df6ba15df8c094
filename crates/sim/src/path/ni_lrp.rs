//! NI-LRP (BL-33): lazy receiver processing with an adapter that demultiplexes. With
//! eager threads, a user-level network subsystem on such an adapter (BL-34).
//!
//! **Rules.** The adapter's own processor puts each packet on its consumer's
//! channel or discards it. The host is interrupted only if the channel was empty
//! and its consumer asleep (LRP-31).
//!
//! **Where excess is dropped.** On the adapter, at no cost to the host: there is
//! no livelock. What the adapter's processor cannot keep up with is dropped on
//! its ring.

use super::channels::Pushed;
use super::lazy::{DatagramWork, Lazy};
use super::stages::{Costs, TransmitHandler};
use super::{Parts, Path, Received};
use crate::Error;
use crate::engine::agenda::NEVER;
use crate::host::{Cx, Host, LineKind, Step};
use crate::outcome::Place;

/// Where a handler is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Entry,
    Wake,
    Exit,
}

/// The path.
#[derive(Debug)]
pub(super) struct NiLrp {
    costs: Costs,
    adapter_demux: u64,
    lazy: Lazy,
    handlers: Vec<Phase>,
    transmit: TransmitHandler,
    /// By adapter: its processor is at work.
    busy: Vec<bool>,
    /// Consumers that the next interrupt has to wake.
    to_wake: Vec<usize>,
}

impl NiLrp {
    pub(super) fn new(parts: &Parts<'_>, work: DatagramWork) -> Result<Self, Error> {
        let Parts { costs, host, .. } = *parts;
        Ok(Self {
            costs,
            adapter_demux: parts.cost("adapter_demux")?,
            // The receiver itself takes the packet from the adapter's memory.
            lazy: Lazy::new(host, costs.receive, work)?,
            handlers: Vec::new(),
            transmit: TransmitHandler::new(costs),
            busy: vec![false; host.adapters.len()],
            to_wake: Vec::with_capacity(host.endpoints.len()),
        })
    }

    fn interrupt(&mut self, host: &mut Host, cx: Cx) -> Step {
        match self.handlers[cx.line] {
            Phase::Entry => {
                host.ledger.counts.interrupts += 1;
                self.handlers[cx.line] = Phase::Wake;
                Step::Kernel(self.costs.enter + host.protocol.wakeup)
            }
            Phase::Wake => {
                while let Some(to) = self.to_wake.pop() {
                    self.lazy.wake(host, to);
                }
                self.handlers[cx.line] = Phase::Exit;
                Step::Kernel(self.costs.exit)
            }
            Phase::Exit => {
                self.handlers[cx.line] = Phase::Entry;
                if !self.to_wake.is_empty() {
                    host.raise(cx.line);
                }
                Step::Done
            }
        }
    }

    /// Lets the adapter's processor begin with the next packet.
    fn begin(&mut self, host: &mut Host, adapter: usize) {
        let waiting = host.adapters[adapter].rings.iter();
        self.busy[adapter] = waiting.map(|ring| ring.packets.len()).sum::<usize>() > 0;
        let at = if self.busy[adapter] {
            host.now + self.adapter_demux
        } else {
            NEVER
        };
        host.set_demultiplexed(adapter, at);
    }
}

impl Path for NiLrp {
    fn start(&mut self, host: &mut Host) {
        self.handlers = vec![Phase::Entry; host.lines.len()];
        self.transmit.start(host);
        self.lazy.start(host);
    }

    fn on_arrival(&mut self, host: &mut Host, adapter: usize, _queue: usize) {
        if !self.busy[adapter] {
            self.begin(host, adapter);
        }
    }

    fn on_demultiplexed(&mut self, host: &mut Host, adapter: usize) {
        let mut rings = host.adapters[adapter].rings.iter_mut().enumerate();
        let taken = rings.find_map(|(queue, ring)| Some((queue, ring.packets.pop()?)));
        if let Some((queue, packet)) = taken {
            match self.lazy.channels.push(host, packet) {
                Pushed::Queued(true) => {
                    self.to_wake.push(usize::from(packet.to));
                    host.interrupt_receive(adapter, queue);
                }
                Pushed::Queued(false) => self.lazy.queued(host, usize::from(packet.to)),
                Pushed::Discarded(packet) => host.lose(packet, Place::AdapterChannel),
            }
        }
        self.begin(host, adapter);
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        match kind {
            LineKind::Receive { .. } => self.interrupt(host, cx),
            LineKind::Transmit { adapter } => self.transmit.step(host, cx, adapter),
            _ => Step::Done,
        }
    }

    fn thread(&mut self, host: &mut Host, index: usize, thread: usize) -> Step {
        self.lazy.work(host, index, thread)
    }

    fn receive(&mut self, host: &mut Host, endpoint: usize, thread: usize) -> Received {
        self.lazy.receive(host, endpoint, thread)
    }

    fn idle(&mut self, host: &mut Host, cpu: usize) -> Step {
        self.lazy.on_idle(host, cpu);
        Step::Done
    }

    fn held(&self) -> usize {
        self.lazy.channels.held()
    }
}
