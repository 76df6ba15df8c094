//! The polling limit, kept on each CPU by the holdoff of what is polled there.
//!
//! **Intuition.** A CPU at its limit needs a long holdoff, up to [`LIMIT_HOLDOFF_MAX`]. The
//! rings that another CPU polls would overflow within it, although that CPU has time for
//! what they hold. So each CPU has a controller and a holdoff of its own: the paper's rule
//! ([`LoadTarget`]) on its mean turn.
//!
//! Limits: a CPU that nobody else wants has none. The time it left would be nobody's.

use alloc::vec::Vec;
use core::time::Duration;

use super::CpuObservation;
use crate::config::{ConfigError, Fraction};
use crate::holdoff::{HoldoffConfig, HoldoffRange, LoadTarget, Turn};
use crate::time::Instant;

/// A holdoff that keeps the polling limit is never longer: the longest that a
/// bystander waits.
const LIMIT_HOLDOFF_MAX: Duration = Duration::from_millis(10);

/// All CPUs' holdoffs.
#[derive(Debug)]
pub(super) struct Limits {
    /// As each CPU begins.
    new: LoadTarget,
    cpus: Vec<Limited>,
}

#[derive(Debug)]
struct Limited {
    cpu: u32,
    target: LoadTarget,
    /// When the turns reported to `target` have got to.
    time: Instant,
    /// `None`: the CPU needs none for its limit.
    holdoff: Option<Duration>,
}

impl Limits {
    /// With `load` of the time of each of `cpus` CPUs, by holdoffs that begin with the
    /// shortest of `range`.
    pub(super) fn new(
        load: Fraction,
        cpus: usize,
        range: HoldoffRange,
    ) -> Result<Self, ConfigError> {
        let new = LoadTarget::new(&HoldoffConfig {
            load,
            overhead: Duration::ZERO,
            range: HoldoffRange {
                max: LIMIT_HOLDOFF_MAX,
                step: Duration::from_nanos(1),
                ..range
            },
        })?;
        Ok(Self {
            new,
            cpus: Vec::with_capacity(cpus),
        })
    }

    /// Takes what the CPUs that receive did in an interval of overload.
    pub(super) fn on_interval(&mut self, cpus: &[CpuObservation]) {
        let wanted = || cpus.iter().filter(|cpu| cpu.contended);
        for limited in &mut self.cpus {
            if !wanted().any(|cpu| cpu.cpu == limited.cpu) {
                // It learns from turns between which it held off.
                limited.target.begin_anew();
                limited.holdoff = None;
            }
        }
        for cpu in wanted() {
            if let Some(limited) = self.at(cpu.cpu) {
                limited.on_interval(cpu);
            }
        }
    }

    /// No CPU needs a holdoff until the next interval.
    pub(super) fn pause(&mut self) {
        for limited in &mut self.cpus {
            limited.holdoff = None;
        }
    }

    /// The holdoff that a CPU needs, if any.
    pub(super) fn of(&self, cpu: u32) -> Option<Duration> {
        let limited = self.cpus.iter().find(|limited| limited.cpu == cpu);
        limited.and_then(|limited| limited.holdoff)
    }

    /// The holdoff that is enough for every CPU.
    pub(super) fn longest(&self) -> Option<Duration> {
        self.cpus.iter().filter_map(|limited| limited.holdoff).max()
    }

    fn at(&mut self, cpu: u32) -> Option<&mut Limited> {
        let place = self.cpus.iter().position(|limited| limited.cpu == cpu);
        let place = place.unwrap_or(self.cpus.len());
        if place == self.cpus.len() && place < self.cpus.capacity() {
            self.cpus.push(Limited {
                cpu,
                target: self.new.clone(),
                time: Instant::ZERO,
                holdoff: None,
            });
        }
        self.cpus.get_mut(place)
    }
}

impl Limited {
    fn on_interval(&mut self, cpu: &CpuObservation) {
        // A run that did not end is one turn as well.
        let turns = u32::try_from(cpu.runs.max(1)).unwrap_or(u32::MAX);
        let returned = self.time + cpu.elapsed / turns;
        self.time = returned;
        self.holdoff = Some(self.target.on_turn(Turn {
            entered: returned - cpu.network / turns,
            returned,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that polls all the time.
    fn polled(cpu: u32, contended: bool) -> CpuObservation {
        let elapsed = Duration::from_millis(10);
        CpuObservation {
            cpu,
            elapsed,
            network: elapsed,
            contended,
            runs: 10,
            ..CpuObservation::default()
        }
    }

    fn limits(cpus: usize) -> Limits {
        let range = crate::governor::GovernorConfig::default().holdoff;
        Limits::new(Fraction::from_percent(50), cpus, range).unwrap()
    }

    #[test]
    fn a_cpu_that_nobody_wants_any_more_is_held_off_for_no_limit() {
        let mut limits = limits(2);
        for _ in 0..10 {
            limits.on_interval(&[polled(3, true), polled(5, true)]);
        }
        assert!(limits.of(3) > Some(Duration::from_micros(100)));
        limits.on_interval(&[polled(3, false), polled(5, true)]);
        assert_eq!(limits.of(3), None);
        assert_eq!(limits.longest(), limits.of(5));
        assert!(limits.longest().is_some());
        limits.pause();
        assert_eq!(limits.longest(), None);
    }

    #[test]
    fn there_are_no_more_cpus_than_were_said() {
        let mut limits = limits(1);
        let capacity = limits.cpus.capacity();
        for _ in 0..3 {
            limits.on_interval(&[polled(3, true), polled(5, true)]);
        }
        assert!(limits.of(3).is_some());
        assert_eq!(limits.of(5), None);
        assert_eq!(limits.cpus.capacity(), capacity, "nothing allocated");
    }
}
