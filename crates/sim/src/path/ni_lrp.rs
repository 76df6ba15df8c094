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

use super::Parts;
use super::channels::Pushed;
use super::lazy::{DatagramWork, Demultiplexer, Lazy, LazyPath};
use super::stages::Costs;
use crate::Error;
use crate::engine::agenda::NEVER;
use crate::host::{Cx, Host, Step};
use crate::outcome::Place;

/// Where a handler is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Entry,
    Wake,
    Exit,
}

/// The adapter's demultiplexing.
#[derive(Debug)]
pub(super) struct NiLrp {
    costs: Costs,
    adapter_demux: u64,
    handlers: Vec<Phase>,
    /// By adapter: its processor is at work.
    busy: Vec<bool>,
    /// Consumers that the next interrupt has to wake.
    to_wake: Vec<usize>,
}

impl NiLrp {
    pub(super) fn path(parts: &Parts<'_>, work: DatagramWork) -> Result<LazyPath<Self>, Error> {
        let Parts { costs, host, .. } = *parts;
        let demultiplexer = Self {
            costs,
            adapter_demux: parts.cost("adapter_demux")?,
            handlers: Vec::new(),
            busy: vec![false; host.adapters.len()],
            to_wake: Vec::with_capacity(host.endpoints.len()),
        };
        // The receiver itself takes the packet from the adapter's memory.
        let lazy = Lazy::new(host, costs.receive, work)?;
        Ok(LazyPath::new(parts, demultiplexer, lazy))
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

impl Demultiplexer for NiLrp {
    fn start(&mut self, host: &mut Host) {
        self.handlers = vec![Phase::Entry; host.lines.len()];
    }

    fn on_arrival(&mut self, host: &mut Host, adapter: usize, _queue: usize) {
        if !self.busy[adapter] {
            self.begin(host, adapter);
        }
    }

    fn on_demultiplexed(&mut self, lazy: &mut Lazy, host: &mut Host, adapter: usize) {
        let mut rings = host.adapters[adapter].rings.iter_mut().enumerate();
        let taken = rings.find_map(|(queue, ring)| Some((queue, ring.packets.pop()?)));
        if let Some((queue, packet)) = taken {
            match lazy.channels.push(host, packet) {
                Pushed::Queued(true) => {
                    self.to_wake.push(usize::from(packet.to));
                    host.interrupt_receive(adapter, queue);
                }
                Pushed::Queued(false) => lazy.queued(host, usize::from(packet.to)),
                Pushed::Discarded(packet) => host.lose(packet, Place::AdapterChannel),
            }
        }
        self.begin(host, adapter);
    }

    fn interrupt(
        &mut self,
        lazy: &mut Lazy,
        host: &mut Host,
        cx: Cx,
        _from: (usize, usize),
    ) -> Step {
        match self.handlers[cx.line] {
            Phase::Entry => {
                host.ledger.counts.interrupts += 1;
                self.handlers[cx.line] = Phase::Wake;
                Step::Kernel(self.costs.enter + host.protocol.wakeup)
            }
            Phase::Wake => {
                while let Some(to) = self.to_wake.pop() {
                    lazy.wake(host, to);
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
}
