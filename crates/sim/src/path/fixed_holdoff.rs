//! Fixed interrupt holdoff (BL-10): the device waits before it interrupts.
//!
//! **Rules.** The first packet that arrives while the interrupt is enabled starts
//! the holdoff; when it is over the device interrupts, and the driver takes
//! packets until there are none, those included that arrive meanwhile.
//!
//! **Where excess is dropped.** On the receive ring if it fills within a holdoff,
//! and on the kernel's queues. The interrupt rate is bounded, the work is not.

use super::holdoff::Holdoffs;
use super::stages::{Behind, ReceiveHandler};
use super::{Parts, Path};
use crate::host::{Cx, Host, LineKind, Step};
use crate::scenario::FixedHoldoffConfig;
use crate::source::nanos;

/// The path. Its timers are numbered by receive queue.
#[derive(Debug)]
pub(super) struct FixedHoldoff {
    holdoff: u64,
    /// Buffers go back when the handler returns.
    free_late: bool,
    handler: ReceiveHandler,
    behind: Behind,
    holdoffs: Holdoffs,
}

impl FixedHoldoff {
    pub(super) fn new(parts: &Parts<'_>, config: &FixedHoldoffConfig) -> Self {
        Self {
            holdoff: nanos(config.holdoff_us),
            free_late: config.free_late,
            handler: ReceiveHandler::new(parts.costs),
            behind: Behind::new(parts.costs).shared(),
            holdoffs: Holdoffs::default(),
        }
    }
}

impl Path for FixedHoldoff {
    fn start(&mut self, host: &mut Host) {
        self.handler.start(host);
        self.behind.start(host);
        self.holdoffs = Holdoffs::new(host);
    }

    fn on_arrival(&mut self, host: &mut Host, adapter: usize, queue: usize) {
        let index = self.holdoffs.index(adapter, queue);
        self.holdoffs.begin(host, index, self.holdoff);
    }

    fn on_timer(&mut self, host: &mut Host, timer: usize) {
        self.holdoffs.expire(host, timer);
    }

    fn on_transmitted(&mut self, host: &mut Host, adapter: usize) {
        self.on_arrival(host, adapter, 0);
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        let LineKind::Receive { adapter, queue } = kind else {
            return self.behind.line(host, cx, kind);
        };
        let (at, late) = ((adapter, queue), self.free_late);
        let step = self.handler.step_queueing(host, cx, at, u32::MAX, |host| {
            host.adapters[adapter].rings[queue].lent += usize::from(late);
        });
        if step == Step::Done {
            let ring = &mut host.adapters[adapter].rings[queue];
            ring.enabled = true;
            ring.lent = 0;
            self.on_arrival(host, adapter, queue);
        }
        step
    }
}
