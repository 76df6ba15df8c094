//! Interrupts that are switched off when packets take too much of the CPU
//! (BL-09).
//!
//! **Rules.** As batched interrupts; but the time that handlers and software
//! interrupts take is measured, and receive interrupts stay off for the rest of a
//! period in which it exceeds its share ([`CpuLimit`]). On a host without a fine
//! clock the clock interrupt notes what it interrupted instead, and a run of
//! samples in packet processing switches them off ([`SampledLimit`]).
//!
//! **Where excess is dropped.** On the rings while interrupts are off. Processes
//! keep their share; nothing is fair between interfaces, or input and output.

use std::time::Duration;

use plimsoll_core::config::Fraction;
use plimsoll_core::cpu_limit::{
    Change, CpuLimit, CpuLimitConfig, SampledLimit, SampledLimitConfig,
};
use plimsoll_core::time::Instant;

use super::stages::{Behind, ReceiveHandler};
use super::{Parts, Path};
use crate::Error;
use crate::host::{Cx, Host, LineKind, Step, or_never};
use crate::scenario::OverloadDisableConfig;

/// How the time is measured.
#[derive(Debug)]
enum Limit {
    Measured(CpuLimit),
    Sampled(SampledLimit),
}

/// The path.
#[derive(Debug)]
pub(super) struct OverloadDisable {
    handler: ReceiveHandler,
    behind: Behind,
    limit: Limit,
    inhibited: bool,
    /// By CPU: handlers that are in a bracket.
    inside: Vec<bool>,
}

impl OverloadDisable {
    pub(super) fn new(parts: &Parts<'_>, config: &OverloadDisableConfig) -> Result<Self, Error> {
        let cpus = parts.host.cpus.len();
        let limit = match config.samples {
            Some(run) => {
                let config = SampledLimitConfig {
                    run,
                    ..SampledLimitConfig::default()
                };
                let made = SampledLimit::new(config);
                Limit::Sampled(made.map_err(Error::core("the sampled limit"))?)
            }
            None => {
                let config = CpuLimitConfig {
                    limit: Fraction::from_ppm((config.share_pct * 1e4) as u32),
                    period: Duration::from_nanos((config.period_ms * 1e6) as u64),
                    cpus,
                    ..CpuLimitConfig::default()
                };
                let made = CpuLimit::new(config, Instant::ZERO);
                Limit::Measured(made.map_err(Error::core("the CPU limit"))?)
            }
        };
        Ok(Self {
            handler: ReceiveHandler::new(parts.costs),
            behind: Behind::new(parts.costs),
            limit,
            inhibited: false,
            inside: vec![false; cpus],
        })
    }

    fn apply(&mut self, host: &mut Host, change: Change) {
        match change {
            Change::None => {}
            Change::Inhibit => {
                self.inhibited = true;
                for ring in host
                    .adapters
                    .iter_mut()
                    .flat_map(|device| &mut device.rings)
                {
                    ring.enabled = false;
                }
            }
            Change::Allow => {
                self.inhibited = false;
                for adapter in 0..host.adapters.len() {
                    for queue in 0..host.adapters[adapter].rings.len() {
                        host.enable_receive(adapter, queue);
                    }
                }
            }
        }
    }

    /// Counts the time of a handler, step by step: one that never returns must
    /// not escape.
    fn bracket(&mut self, host: &mut Host, cpu: usize, goes_on: bool) {
        let now = host.instant();
        let Limit::Measured(limit) = &mut self.limit else {
            return;
        };
        let mut change = Change::None;
        if std::mem::replace(&mut self.inside[cpu], goes_on) {
            change = limit.on_exit(cpu, now);
        }
        if goes_on {
            limit.on_enter(cpu, now);
        }
        let timeout = or_never(limit.next_timeout());
        self.apply(host, change);
        host.set_path_timer(0, timeout);
    }
}

impl Path for OverloadDisable {
    fn start(&mut self, host: &mut Host) {
        self.handler.start(host);
        self.behind.start(host);
    }

    fn on_timer(&mut self, host: &mut Host, _timer: usize) {
        let now = host.instant();
        if let Limit::Measured(limit) = &mut self.limit {
            let change = limit.poll_timeout(now);
            let timeout = or_never(limit.next_timeout());
            self.apply(host, change);
            host.set_path_timer(0, timeout);
        }
    }

    fn on_tick(&mut self, host: &mut Host, cpu: usize) {
        // What the clock interrupted is what it will return to.
        let interrupted = host.cpus[cpu].suspended.last();
        let hit = interrupted.is_some_and(|suspended| suspended.level > 0);
        if let Limit::Sampled(limit) = &mut self.limit {
            let change = limit.on_tick(hit);
            self.apply(host, change);
        }
    }

    fn idle(&mut self, host: &mut Host, _cpu: usize) -> Step {
        let now = host.instant();
        if let Limit::Measured(limit) = &mut self.limit {
            let change = limit.on_idle(now);
            self.apply(host, change);
        }
        Step::Done
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        let step = match kind {
            LineKind::Receive { adapter, queue } => {
                let batch = if self.inhibited { 0 } else { u32::MAX };
                let at = (adapter, queue);
                let step = self.handler.step_queueing(host, cx, at, batch, |_| ());
                if step == Step::Done && !self.inhibited {
                    host.enable_receive(adapter, queue);
                }
                step
            }
            kind => self.behind.line(host, cx, kind),
        };
        self.bracket(host, cx.cpu, step != Step::Done);
        step
    }
}
