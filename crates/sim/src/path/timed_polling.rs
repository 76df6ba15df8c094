//! Polling by a timer: periodic polling by the scheduler (BL-13) and clocked
//! interrupts (BL-16).
//!
//! **Rules.** Device interrupts are off. A timer expires at fixed intervals and
//! what it calls looks at all adapters. Clocked interrupts pay for an interrupt
//! each time; the scheduler's own calls do not, and may have a quota.
//!
//! **Where excess is dropped.** On the rings, if they fill within an interval;
//! then on the kernel's queues. The rate of interrupts is bounded, latency is at
//! least half an interval.

use super::Path;
use super::stages::{Behind, Costs, PollVisit};
use crate::host::{Cx, Host, LineKind, Step};

/// How polling is timed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) interval: u64,
    /// Packets per queue and look.
    pub(super) quota: u32,
    /// Each look is an interrupt.
    pub(super) interrupts: bool,
    pub(super) poll_pass: u64,
}

/// Where a handler is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Entry,
    Visit,
    Exit,
}

/// The path. Its timers are numbered by CPU.
#[derive(Debug)]
pub(super) struct TimedPolling {
    options: Options,
    behind: Behind,
    /// By CPU.
    visits: Vec<(Phase, PollVisit)>,
}

impl TimedPolling {
    pub(super) fn new(costs: Costs, options: Options) -> Self {
        Self {
            options,
            behind: Behind::new(costs),
            visits: Vec::new(),
        }
    }

    fn visit(&mut self, host: &mut Host, cx: Cx) -> Step {
        let Options {
            quota,
            interrupts,
            poll_pass,
            ..
        } = self.options;
        let costs = self.behind.costs;
        let (phase, visit) = &mut self.visits[cx.cpu];
        let overhead = |ns| if interrupts { ns } else { 0 };
        match phase {
            Phase::Entry => {
                host.ledger.counts.interrupts += u64::from(interrupts);
                *phase = Phase::Visit;
                Step::Kernel(overhead(costs.enter))
            }
            Phase::Visit => match visit.step(host, cx, &costs, quota, poll_pass) {
                Step::Done => {
                    *phase = Phase::Exit;
                    Step::Kernel(overhead(costs.exit))
                }
                step => step,
            },
            Phase::Exit => {
                *phase = Phase::Entry;
                Step::Done
            }
        }
    }
}

impl Path for TimedPolling {
    fn start(&mut self, host: &mut Host) {
        self.behind.start(host);
        self.visits = vec![Default::default(); host.cpus.len()];
        host.disable_interrupts();
        for cpu in 0..host.cpus.len() {
            host.set_path_timer(cpu, self.options.interval);
        }
    }

    fn on_timer(&mut self, host: &mut Host, timer: usize) {
        host.set_path_timer(timer, host.now + self.options.interval);
        host.raise(host.cpus[timer].timer);
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        match kind {
            LineKind::Timer => self.visit(host, cx),
            kind => self.behind.line(host, cx, kind),
        }
    }
}
