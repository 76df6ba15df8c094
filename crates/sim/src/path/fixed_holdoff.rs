//! Fixed interrupt holdoff (BL-10): the device waits before it interrupts.
//!
//! **Rules.** The first packet that arrives while the interrupt is enabled starts
//! the holdoff; when it is over the device interrupts, and the driver takes
//! packets until there are none, those included that arrive meanwhile.
//!
//! **Where excess is dropped.** On the receive ring if it fills within a holdoff,
//! and on the kernel's queues. The interrupt rate is bounded, the work is not.

use super::Path;
use super::stages::{Behind, Costs, ReceiveHandler, receive_queues, to_ip_queue};
use crate::agenda::NEVER;
use crate::host::{Cx, Host, LineKind, Step};

/// The path. Its timers are numbered by receive queue.
#[derive(Debug)]
pub(super) struct FixedHoldoff {
    holdoff: u64,
    /// Buffers go back when the handler returns.
    free_late: bool,
    handler: ReceiveHandler,
    behind: Behind,
    /// Receive queues: adapter and queue.
    queues: Vec<(usize, usize)>,
}

impl FixedHoldoff {
    pub(super) fn new(costs: Costs, holdoff: u64, free_late: bool) -> Self {
        Self {
            holdoff,
            free_late,
            handler: ReceiveHandler::new(costs),
            behind: Behind::new(costs).shared(),
            queues: Vec::new(),
        }
    }

    fn hold_off(&self, host: &mut Host, index: usize) {
        let (adapter, queue) = self.queues[index];
        let ring = &host.adapters[adapter].rings[queue];
        let nothing = ring.packets.is_empty() && !completions_wait(host, adapter, queue);
        if !ring.enabled || nothing {
            return;
        }
        if self.holdoff == 0 {
            interrupt(host, adapter, queue);
        } else if host.path_timer(index) == NEVER {
            host.set_path_timer(index, host.now + self.holdoff);
        }
    }
}

/// The number of a receive queue in that list.
pub(super) fn index_of(queues: &[(usize, usize)], adapter: usize, queue: usize) -> usize {
    let found = queues.iter().position(|&known| known == (adapter, queue));
    found.expect("the list has all queues")
}

/// Transmit completions wait for the interrupt of this queue.
pub(super) fn completions_wait(host: &Host, adapter: usize, queue: usize) -> bool {
    queue == 0 && host.adapters[adapter].completed > 0
}

/// The device's one interrupt, for what has happened in either direction.
pub(super) fn interrupt(host: &mut Host, adapter: usize, queue: usize) {
    host.interrupt_receive(adapter, queue);
    if completions_wait(host, adapter, queue) {
        host.interrupt_transmit(adapter);
    }
}

impl Path for FixedHoldoff {
    fn start(&mut self, host: &mut Host) {
        self.handler.start(host);
        self.behind.start(host);
        self.queues = receive_queues(host);
    }

    fn on_arrival(&mut self, host: &mut Host, adapter: usize, queue: usize) {
        let index = index_of(&self.queues, adapter, queue);
        self.hold_off(host, index);
    }

    fn on_timer(&mut self, host: &mut Host, timer: usize) {
        let (adapter, queue) = self.queues[timer];
        interrupt(host, adapter, queue);
    }

    fn on_transmitted(&mut self, host: &mut Host, adapter: usize) {
        let index = index_of(&self.queues, adapter, 0);
        self.hold_off(host, index);
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        let LineKind::Receive { adapter, queue } = kind else {
            return self.behind.line(host, cx, kind);
        };
        let (cost, late) = (self.behind.costs.queue, self.free_late);
        let step = self.handler.step(
            host,
            cx,
            (adapter, queue),
            u32::MAX,
            |host, packet| {
                host.adapters[adapter].rings[queue].lent += usize::from(late);
                (Some(packet), cost)
            },
            |host, packet| to_ip_queue(host, cx.cpu, packet),
        );
        if step == Step::Done {
            let ring = &mut host.adapters[adapter].rings[queue];
            ring.enabled = true;
            ring.lent = 0;
            let index = index_of(&self.queues, adapter, queue);
            self.hold_off(host, index);
        }
        step
    }
}
