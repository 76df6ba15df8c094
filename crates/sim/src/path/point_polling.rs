//! Polling at points of code execution: when an interval has passed (BL-14), and
//! FreeBSD's polling at every system call and clock tick (BL-17).
//!
//! **Rules.** Device interrupts are off. A process that makes a system call, the
//! clock, and a CPU without work look at the adapters on the way. Each buffer is
//! free as soon as its packet is taken.
//!
//! **Where excess is dropped.** On the IP queue and the socket queues: looking is
//! so frequent that the rings are nearly empty, and the work of taking and
//! dropping grows with the load.
//!
//! **Limit.** The idle loop is not simulated turn by turn: an idle CPU notices a
//! packet at once.

use plimsoll_core::soft_timer::TriggerSource;

use super::poll_visit::PollVisit;
use super::stages::Behind;
use super::{Parts, Path};
use crate::Error;
use crate::host::{Cx, Host, LineKind, Running, Step};
use crate::scenario::{CodePointPollingConfig, FreebsdPollingConfig};
use crate::source::nanos;

/// When the adapters are looked at.
#[derive(Clone, Copy, Debug)]
struct Options {
    /// Not before so many ns since the last time.
    interval: u64,
    /// At clock ticks, too.
    ticks: bool,
    /// Packets per queue and look.
    burst: u32,
    poll_pass: u64,
}

/// The path.
#[derive(Debug)]
pub(super) struct PointPolling {
    options: Options,
    behind: Behind,
    /// By CPU, with the time of the last look.
    visits: Vec<(u64, PollVisit)>,
}

impl PointPolling {
    /// In system calls and traps, when an interval has passed.
    pub(super) fn in_code(
        parts: &Parts<'_>,
        config: &CodePointPollingConfig,
    ) -> Result<Self, Error> {
        let options = Options {
            interval: nanos(config.interval_us),
            ticks: false,
            burst: u32::MAX,
            poll_pass: parts.cost("poll_pass")?,
        };
        Ok(Self::of(parts, options))
    }

    /// In every system call and at each tick.
    pub(super) fn freebsd(parts: &Parts<'_>, config: &FreebsdPollingConfig) -> Result<Self, Error> {
        let options = Options {
            interval: 0,
            ticks: true,
            burst: config.burst,
            poll_pass: parts.cost("poll_pass")?,
        };
        Ok(Self::of(parts, options))
    }

    fn of(parts: &Parts<'_>, options: Options) -> Self {
        Self {
            options,
            behind: Behind::new(parts.costs),
            visits: Vec::new(),
        }
    }

    fn look(&self, host: &mut Host, cpu: usize) {
        if host.now >= self.visits[cpu].0 + self.options.interval {
            host.raise(host.cpus[cpu].trigger);
        }
    }
}

impl Path for PointPolling {
    fn start(&mut self, host: &mut Host) {
        self.behind.start(host);
        self.visits = vec![Default::default(); host.cpus.len()];
        host.disable_interrupts();
    }

    fn on_arrival(&mut self, host: &mut Host, adapter: usize, queue: usize) {
        let cpu = host.adapters[adapter].rings[queue].cpu;
        if host.cpus[cpu].running == Running::Idle {
            host.raise(host.cpus[cpu].trigger);
        }
    }

    fn on_transmitted(&mut self, host: &mut Host, _adapter: usize) {
        if host.cpus[0].running == Running::Idle {
            host.raise(host.cpus[0].trigger);
        }
    }

    fn on_tick(&mut self, host: &mut Host, cpu: usize) {
        if self.options.ticks {
            self.look(host, cpu);
        }
    }

    fn on_trigger(&mut self, host: &mut Host, cpu: usize, source: TriggerSource) {
        if matches!(source, TriggerSource::SystemCall | TriggerSource::Trap) {
            self.look(host, cpu);
        }
    }

    fn idle(&mut self, host: &mut Host, cpu: usize) -> Step {
        let mut rings = host.adapters.iter().flat_map(|adapter| &adapter.rings);
        if rings.any(|ring| ring.cpu == cpu && !ring.packets.is_empty()) {
            host.raise(host.cpus[cpu].trigger);
        }
        Step::Done
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        if kind != LineKind::Trigger {
            return self.behind.line(host, cx, kind);
        }
        let Options {
            burst, poll_pass, ..
        } = self.options;
        let costs = self.behind.costs;
        let (last, visit) = &mut self.visits[cx.cpu];
        *last = host.now;
        visit.step(host, cx, &costs, burst, poll_pass)
    }
}
