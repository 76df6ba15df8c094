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

use super::poll_visit::PollVisit;
use super::stages::Behind;
use super::{Parts, Path};
use crate::Error;
use crate::host::{Cx, Host, LineKind, Step};
use crate::scenario::{ClockedInterruptsConfig, PeriodicPollingConfig};
use crate::source::nanos;

/// How polling is timed.
#[derive(Clone, Copy, Debug)]
struct Options {
    interval: u64,
    /// Packets per queue and look.
    quota: u32,
    /// Each look is an interrupt.
    interrupts: bool,
    poll_pass: u64,
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
    /// The scheduler looks at the adapters.
    pub(super) fn periodic(
        parts: &Parts<'_>,
        config: &PeriodicPollingConfig,
    ) -> Result<Self, Error> {
        let quota = config.quota.unwrap_or(u32::MAX);
        Self::of(parts, config.interval_us, quota, false)
    }

    /// A timer interrupts.
    pub(super) fn clocked(
        parts: &Parts<'_>,
        config: &ClockedInterruptsConfig,
    ) -> Result<Self, Error> {
        Self::of(parts, 1e6 / config.rate_hz, u32::MAX, true)
    }

    fn of(
        parts: &Parts<'_>,
        interval_us: f64,
        quota: u32,
        interrupts: bool,
    ) -> Result<Self, Error> {
        let options = Options {
            interval: nanos(interval_us).max(1),
            quota,
            interrupts,
            poll_pass: parts.cost("poll_pass")?,
        };
        Ok(Self {
            options,
            behind: Behind::new(parts.costs),
            visits: Vec::new(),
        })
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
