//! The core's limits of the CPU time that packets may use: one for each CPU, or one for
//! the host.

use std::ops::Range;
use std::time::Duration;

use plimsoll_core::config::Fraction;
use plimsoll_core::cpu_limit::{Change, CpuLimit, CpuLimitConfig};
use plimsoll_core::time::Instant;

use crate::Error;
use crate::host::or_never;
use crate::scenario::CycleLimit;

/// The limits, if there are any.
#[derive(Debug)]
pub(super) struct CycleLimits {
    /// One per CPU, one for all, or none.
    limits: Vec<CpuLimit>,
    per_host: bool,
    cpus: usize,
    /// Interrupt handlers count.
    pub(super) count_interrupts: bool,
}

impl CycleLimits {
    pub(super) fn new(settings: Option<CycleLimit>, cpus: usize) -> Result<Self, Error> {
        let per_host = settings.is_some_and(|settings| settings.per_host);
        let (count, share) = if per_host { (1, cpus) } else { (cpus, 1) };
        let made = |settings| (0..count).map(move |_| cpu_limit(settings, share));
        let limits = settings.into_iter().flat_map(made);
        Ok(Self {
            limits: limits.collect::<Result<_, _>>()?,
            per_host,
            cpus,
            count_interrupts: settings.is_some_and(|settings| settings.count_interrupts),
        })
    }

    /// The number of the limit that `cpu` is subject to.
    pub(super) fn number(&self, cpu: usize) -> usize {
        if self.per_host { 0 } else { cpu }
    }

    /// The CPUs that limit `number` is for.
    pub(super) fn cpus(&self, number: usize) -> Range<usize> {
        if self.per_host {
            0..self.cpus
        } else {
            number..number + 1
        }
    }

    /// `cpu` begins to work on packets.
    pub(super) fn on_enter(&mut self, cpu: usize, now: Instant) {
        let (number, place) = self.place(cpu);
        if let Some(limit) = self.limits.get_mut(number) {
            limit.on_enter(place, now);
        }
    }

    /// It ends its work on packets.
    pub(super) fn on_exit(&mut self, cpu: usize, now: Instant) -> Change {
        let (number, place) = self.place(cpu);
        let limit = self.limits.get_mut(number);
        limit.map_or(Change::None, |limit| limit.on_exit(place, now))
    }

    /// It has nothing to run.
    pub(super) fn on_idle(&mut self, cpu: usize, now: Instant) -> Change {
        let number = self.number(cpu);
        let limit = self.limits.get_mut(number);
        limit.map_or(Change::None, |limit| limit.on_idle(now))
    }

    pub(super) fn poll_timeout(&mut self, number: usize, now: Instant) -> Change {
        let limit = self.limits.get_mut(number);
        limit.map_or(Change::None, |limit| limit.poll_timeout(now))
    }

    /// When [`poll_timeout`](Self::poll_timeout) has something to do.
    pub(super) fn next_timeout(&self, number: usize) -> u64 {
        or_never(self.limits.get(number).and_then(CpuLimit::next_timeout))
    }

    /// Limit and number of `cpu` within it.
    fn place(&self, cpu: usize) -> (usize, usize) {
        if self.per_host { (0, cpu) } else { (cpu, 0) }
    }
}

fn cpu_limit(settings: CycleLimit, cpus: usize) -> Result<CpuLimit, Error> {
    let config = CpuLimitConfig {
        limit: Fraction::from_ppm((settings.share_pct * 1e4) as u32),
        period: Duration::from_nanos((settings.period_ms * 1e6) as u64),
        cpus,
        // The paper forgets what a turn used beyond the limit.
        debt_periods: if settings.count_interrupts { 10 } else { 0 },
    };
    CpuLimit::new(config, Instant::ZERO).map_err(Error::core("the cycle limit"))
}
