//! Interrupts after a holdoff: one timer per receive queue, which are also the path's
//! timers of these numbers. The device has one interrupt for both directions.

use super::stages::receive_queues;
use crate::engine::agenda::NEVER;
use crate::host::Host;

/// The receive queues of all adapters, with a timer each.
#[derive(Debug, Default)]
pub(super) struct Holdoffs {
    queues: Vec<(usize, usize)>,
    /// By adapter: the number of its first queue.
    first: Vec<usize>,
}

impl Holdoffs {
    pub(super) fn new(host: &Host) -> Self {
        let queues = receive_queues(host);
        let first = |adapter| queues.partition_point(|&(known, _)| known < adapter);
        Self {
            first: (0..host.adapters.len()).map(first).collect(),
            queues,
        }
    }

    /// Adapter and queue of each timer.
    pub(super) fn queues(&self) -> &[(usize, usize)] {
        &self.queues
    }

    pub(super) fn index(&self, adapter: usize, queue: usize) -> usize {
        self.first[adapter] + queue
    }

    /// Begins a holdoff of `ns`, unless one is under way, the interrupt is off, or
    /// nothing waits for it.
    pub(super) fn begin(&self, host: &mut Host, index: usize, ns: u64) {
        let (adapter, queue) = self.queues[index];
        let ring = &host.adapters[adapter].rings[queue];
        let nothing = ring.packets.is_empty() && !completions_wait(host, adapter, queue);
        if !ring.enabled || nothing {
            return;
        }
        if ns == 0 {
            self.expire(host, index);
        } else {
            Self::start_timer(host, index, ns);
        }
    }

    /// Begins a holdoff of `ns` unless one is under way.
    pub(super) fn start_timer(host: &mut Host, index: usize, ns: u64) {
        if host.path_timer(index) == NEVER {
            host.set_path_timer(index, host.now + ns);
        }
    }

    /// A holdoff is over: the device interrupts for what has happened in either
    /// direction.
    pub(super) fn expire(&self, host: &mut Host, index: usize) {
        let (adapter, queue) = self.queues[index];
        host.interrupt_receive(adapter, queue);
        if completions_wait(host, adapter, queue) {
            host.interrupt_transmit(adapter);
        }
    }
}

/// Transmit completions wait for the interrupt of this queue.
fn completions_wait(host: &Host, adapter: usize, queue: usize) -> bool {
    queue == 0 && host.adapters[adapter].completed > 0
}
