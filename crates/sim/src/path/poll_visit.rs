//! A visit to all adapters: what the paths that poll from a handler share.

use super::stages::{Costs, TransmitService, to_ip_queue};
use crate::host::{Cx, Host, Step};

/// A visit to all adapters by a handler that was not called for by their
/// interrupts: takes packets to the IP queue and does transmit work.
#[derive(Clone, Debug, Default)]
pub(super) struct PollVisit {
    stage: VisitStage,
    transmit: TransmitService,
    /// Packets found in this visit.
    pub(super) found: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum VisitStage {
    #[default]
    Begin,
    /// About to look at an adapter.
    Look {
        adapter: usize,
    },
    /// At a queue of an adapter, after so many packets of it.
    Ring {
        adapter: usize,
        queue: usize,
        taken: u32,
    },
    Transmit {
        adapter: usize,
    },
}

impl PollVisit {
    /// Its next step. Takes at most `quota` packets per queue of the CPU of `cx`; to look at an
    /// adapter with such a queue takes `poll_pass`.
    /// [`Step::Done`]: the visit is over, and the next call begins another.
    pub(super) fn step(
        &mut self,
        host: &mut Host,
        cx: Cx,
        costs: &Costs,
        quota: u32,
        poll_pass: u64,
    ) -> Step {
        loop {
            match self.stage {
                VisitStage::Begin => {
                    host.ledger.counts.polls += 1;
                    self.found = 0;
                    self.stage = VisitStage::Look { adapter: 0 };
                }
                VisitStage::Look { adapter } => {
                    self.stage = VisitStage::Ring {
                        adapter,
                        queue: 0,
                        taken: 0,
                    };
                    let mut rings = host.adapters[adapter].rings.iter();
                    if rings.any(|ring| ring.cpu == cx.cpu) {
                        return Step::Kernel(poll_pass);
                    }
                }
                VisitStage::Ring {
                    adapter,
                    queue,
                    taken,
                } => {
                    let place = (adapter, queue, taken);
                    if let Some(step) = self.take(host, cx, costs, quota, place) {
                        return step;
                    }
                    self.stage = after(host, adapter, queue);
                    if self.found > 0 {
                        host.leave_input(cx.cpu);
                    }
                }
                VisitStage::Transmit { adapter } => {
                    if adapter >= host.adapters.len() || cx.cpu != 0 {
                        self.stage = VisitStage::Begin;
                        return Step::Done;
                    }
                    let mut hand = host.lines[cx.line].hand.take();
                    let step = self.transmit.step(host, adapter, &mut hand, u32::MAX);
                    host.lines[cx.line].hand = hand;
                    if step != Step::Done {
                        return step;
                    }
                    self.transmit.reset();
                    self.stage = VisitStage::Transmit {
                        adapter: adapter + 1,
                    };
                }
            }
        }
    }

    /// Queues the packet that was just handled, and takes the next one of a ring (adapter,
    /// queue, how many so far), if the quota allows it.
    fn take(
        &mut self,
        host: &mut Host,
        cx: Cx,
        costs: &Costs,
        quota: u32,
        (adapter, queue, taken): (usize, usize, u32),
    ) -> Option<Step> {
        if let Some(packet) = host.lines[cx.line].hand.take() {
            to_ip_queue(host, cx.cpu, packet);
        }
        if taken >= quota || host.adapters[adapter].rings[queue].cpu != cx.cpu {
            return None;
        }
        let packet = host.take(adapter, queue)?;
        host.lines[cx.line].hand = Some(packet);
        let refill = host.refill_input(cx.cpu, self.found);
        self.found += 1;
        self.stage = VisitStage::Ring {
            adapter,
            queue,
            taken: taken + 1,
        };
        Some(Step::Kernel(costs.receive + costs.queue + refill))
    }
}

/// What is visited after a queue.
fn after(host: &Host, adapter: usize, queue: usize) -> VisitStage {
    if queue + 1 < host.adapters[adapter].rings.len() {
        VisitStage::Ring {
            adapter,
            queue: queue + 1,
            taken: 0,
        }
    } else if adapter + 1 < host.adapters.len() {
        VisitStage::Look {
            adapter: adapter + 1,
        }
    } else {
        VisitStage::Transmit { adapter: 0 }
    }
}
