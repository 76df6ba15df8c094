//! Polling watchdog (BL-15): software polls loosely, and the adapter interrupts
//! only if it was not looked at in time.
//!
//! **Rules.** A packet's arrival starts the adapter's timer; being polled stops
//! it; when it expires the adapter interrupts and its handler takes what there
//! is. Service within the interval is guaranteed.
//!
//! **Where excess is dropped.** On the rings and the kernel's queues, as with a
//! fixed holdoff of the interval.

use super::holdoff::Holdoffs;
use super::poll_visit::PollVisit;
use super::stages::{Behind, ReceiveHandler};
use super::{Parts, Path};
use crate::Error;
use crate::engine::agenda::NEVER;
use crate::host::{Cx, Host, LineKind, Step};
use crate::scenario::PollingWatchdogConfig;
use crate::source::nanos;

/// The path. Its first timers are those of the receive queues' adapters, then
/// follows one per CPU.
#[derive(Debug)]
pub(super) struct PollingWatchdog {
    interval: u64,
    poll: u64,
    poll_pass: u64,
    handler: ReceiveHandler,
    behind: Behind,
    holdoffs: Holdoffs,
    visits: Vec<PollVisit>,
}

impl PollingWatchdog {
    pub(super) fn new(parts: &Parts<'_>, config: &PollingWatchdogConfig) -> Result<Self, Error> {
        Ok(Self {
            interval: nanos(config.interval_us),
            poll: nanos(config.poll_us),
            poll_pass: parts.cost("poll_pass")?,
            handler: ReceiveHandler::new(parts.costs),
            behind: Behind::new(parts.costs),
            holdoffs: Holdoffs::default(),
            visits: Vec::new(),
        })
    }
}

impl Path for PollingWatchdog {
    fn start(&mut self, host: &mut Host) {
        self.handler.start(host);
        self.behind.start(host);
        self.holdoffs = Holdoffs::new(host);
        self.visits = vec![PollVisit::default(); host.cpus.len()];
        for cpu in 0..host.cpus.len() {
            host.set_path_timer(self.holdoffs.queues().len() + cpu, self.poll);
        }
    }

    fn on_arrival(&mut self, host: &mut Host, adapter: usize, queue: usize) {
        let index = self.holdoffs.index(adapter, queue);
        Holdoffs::start_timer(host, index, self.interval);
    }

    fn on_timer(&mut self, host: &mut Host, timer: usize) {
        if let Some(&(adapter, queue)) = self.holdoffs.queues().get(timer) {
            host.interrupt_receive(adapter, queue);
            return;
        }
        let cpu = timer - self.holdoffs.queues().len();
        host.set_path_timer(timer, host.now + self.poll);
        host.raise(host.cpus[cpu].trigger);
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        match kind {
            LineKind::Trigger => {
                let costs = self.behind.costs;
                let pass = self.poll_pass;
                let step = self.visits[cx.cpu].step(host, cx, &costs, u32::MAX, pass);
                if step == Step::Done {
                    // Looked at in time.
                    for (index, &(adapter, queue)) in self.holdoffs.queues().iter().enumerate() {
                        let ring = &host.adapters[adapter].rings[queue];
                        if ring.cpu == cx.cpu && ring.packets.is_empty() {
                            host.set_path_timer(index, NEVER);
                        }
                    }
                }
                step
            }
            LineKind::Receive { adapter, queue } => {
                let at = (adapter, queue);
                let step = self.handler.step_queueing(host, cx, at, u32::MAX, |_| ());
                if step == Step::Done {
                    let ring = &mut host.adapters[adapter].rings[queue];
                    ring.enabled = true;
                    if !ring.packets.is_empty() {
                        self.on_arrival(host, adapter, queue);
                    }
                }
                step
            }
            kind => self.behind.line(host, cx, kind),
        }
    }
}
