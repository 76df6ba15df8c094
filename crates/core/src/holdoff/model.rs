//! What a setting of holdoff and buffers does to an overloaded host, and which
//! setting meets a goal.
//!
//! Intuition: per cycle the device waits for the holdoff `P`, the handler is
//! entered (`α`), takes the `N` packets that had buffers (`β` each) and returns
//! (`γ`). Everything else follows (Macpherson & Heiser, section 5, equations 1
//! to 5):
//!
//! ```text
//! (1) r = N / (P + α + βN)                    packets accepted per second
//! (2) l = (P − N/2a) + α + βN/2               mean latency at applied rate a
//! (3) c = (α + βN + γ) / (P + α + βN)         share of the CPU
//! (4) r ≈ N / P        (5) l ≈ P − N/2a       if α + βN is small
//! ```
//!
//! For planning, not for a hot path, hence floating point.
//!
//! Limits: `r` is what the host is offered. If it exceeds what the rest of the
//! host can take, livelock is still possible. Equation 3 counts `γ` as work but
//! not as time, since the next holdoff runs meanwhile; with very short holdoffs
//! it exceeds 1, which means that the handler never pauses.
//!
//! Departure: equation 2 holds if the buffers fill within the holdoff
//! (`aP ≥ N`). Below that only `aP` packets share an interrupt, and
//! [`Model::latency`] uses this number instead of `N`; the two agree at the
//! boundary.

use core::fmt;
use core::time::Duration;

use super::HoldoffRange;
use crate::config::{ConfigError, Field, Fraction};

/// What the handler costs on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// `α`: from the end of the holdoff to the first packet.
    pub enter: Duration,
    /// `β`: taking one packet.
    pub dequeue: Duration,
    /// `γ`: returning from the handler.
    pub leave: Duration,
}

/// A pair that can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// `P`.
    pub holdoff: Duration,
    /// `N`, the receive buffers.
    pub buffers: u32,
}

/// What can be set, and what must not be exceeded (section 5, footnote 1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Holdoffs of the device, at most [`Limits::HOLDOFFS_MAX`] of them.
    pub range: HoldoffRange,
    /// Buffers of the device, at least 1.
    pub buffers_max: u32,
    /// Packets per second that the link can bring; more need not be accepted.
    pub link_pps: f64,
    /// Longest tolerable mean latency.
    pub latency_max: Duration,
}

impl Limits {
    /// All holdoffs are tried, so there must not be too many.
    pub const HOLDOFFS_MAX: u128 = 100_000;

    /// Whether a setting can be looked for within these limits.
    ///
    /// # Errors
    /// Names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.range.validate()?;
        let span = self.range.max - self.range.min;
        Field("range.step", self.range.step).must_be(
            span.as_nanos() / self.range.step.as_nanos() < Self::HOLDOFFS_MAX,
            "such that the range has at most 100000 holdoffs",
        )?;
        Field("buffers_max", self.buffers_max).must_be_in(1.., "at least 1")?;
        Field("link_pps", self.link_pps as u64)
            .must_be(is_positive(self.link_pps), "a finite rate above 0")
    }

    fn holdoffs(&self) -> impl Iterator<Item = Duration> {
        let HoldoffRange { min, max, step } = self.range;
        core::iter::successors(Some(min), move |holdoff| Some(*holdoff + step))
            .take_while(move |holdoff| *holdoff <= max)
    }
}

fn is_positive(rate: f64) -> bool {
    rate.is_finite() && rate > 0.0
}

/// Why no setting meets a goal. Rates are in packets per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Infeasible {
    /// The limits themselves are wrong.
    Limits(ConfigError),
    /// A wanted or applied rate was not a finite rate above 0.
    NotARate {
        /// What was given.
        given: f64,
    },
    /// More was wanted than the link can bring.
    AboveLink {
        /// What the link can bring.
        link_pps: f64,
    },
    /// Even one buffer and the longest holdoff accept more.
    RateTooLow {
        /// The lowest rate that can be set.
        lowest_pps: f64,
    },
    /// No setting comes as close as wanted.
    RateNotMet {
        /// The nearest rate below the wanted one that can be set.
        nearest_pps: f64,
    },
    /// The rate can be met, the latency cannot.
    LatencyTooShort {
        /// The shortest that can be had.
        shortest: Duration,
    },
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limits(error) => error.fmt(f),
            Self::NotARate { given } => write!(f, "{given} is not a rate: must be above 0"),
            Self::AboveLink { link_pps } => {
                write!(f, "the link brings no more than {link_pps:.0} packets/s")
            }
            Self::RateTooLow { lowest_pps } => write!(
                f,
                "one buffer and the longest holdoff accept {lowest_pps:.0} packets/s"
            ),
            Self::RateNotMet { nearest_pps } => write!(
                f,
                "the nearest rate that can be set is {nearest_pps:.0} packets/s"
            ),
            Self::LatencyTooShort { shortest } => {
                write!(f, "the mean latency is at least {shortest:?}")
            }
        }
    }
}

impl core::error::Error for Infeasible {}

/// The model of one host.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    enter: f64,
    dequeue: f64,
    leave: f64,
}

impl Model {
    /// The model of a host with these costs.
    #[must_use]
    pub fn new(costs: Costs) -> Self {
        Self {
            enter: costs.enter.as_secs_f64(),
            dequeue: costs.dequeue.as_secs_f64(),
            leave: costs.leave.as_secs_f64(),
        }
    }

    /// Equation 1: packets accepted per second under overload. Infinite if
    /// neither holdoff nor handler takes any time.
    #[must_use]
    pub fn rate_pps(&self, setting: Setting) -> f64 {
        f64::from(setting.buffers) / self.cycle(setting)
    }

    /// Equation 2: mean latency in seconds at `applied_pps` arrivals per second.
    #[must_use]
    pub fn latency(&self, setting: Setting, applied_pps: f64) -> f64 {
        let holdoff = setting.holdoff.as_secs_f64();
        let packets = f64::from(setting.buffers).min(applied_pps * holdoff);
        let waited = approximate_latency(holdoff, packets, applied_pps);
        waited + self.enter + self.dequeue / 2.0 * packets
    }

    /// Equation 3: share of the CPU that the handler takes under overload.
    #[must_use]
    pub fn cpu_share(&self, setting: Setting) -> f64 {
        let handler = self.enter + self.dequeue * f64::from(setting.buffers) + self.leave;
        handler / self.cycle(setting)
    }

    /// Equation 4, which needs no knowledge of the host.
    #[must_use]
    pub fn approximate_rate_pps(setting: Setting) -> f64 {
        f64::from(setting.buffers) / setting.holdoff.as_secs_f64()
    }

    /// Equation 5, in seconds, which needs no knowledge of the host.
    #[must_use]
    pub fn approximate_latency(setting: Setting, applied_pps: f64) -> f64 {
        let holdoff = setting.holdoff.as_secs_f64();
        approximate_latency(holdoff, f64::from(setting.buffers), applied_pps)
    }

    /// No more interrupts per second than this, whatever the load (section
    /// 3.5.1). Infinite without holdoff.
    #[must_use]
    pub fn interrupts_per_second_max(holdoff: Duration) -> f64 {
        1.0 / holdoff.as_secs_f64()
    }

    /// The setting that accepts `wanted_pps`, at most `precision` of it less and
    /// no more, with the lowest latency.
    ///
    /// # Errors
    /// Says which limit is in the way and what would be possible.
    pub fn for_rate(
        &self,
        limits: &Limits,
        wanted_pps: f64,
        precision: Fraction,
        applied_pps: f64,
    ) -> Result<Setting, Infeasible> {
        check(limits, &[wanted_pps, applied_pps])?;
        if wanted_pps > limits.link_pps {
            let link_pps = limits.link_pps;
            return Err(Infeasible::AboveLink { link_pps });
        }
        let least_pps = wanted_pps * f64::from(precision.complement().as_ppm()) / 1e6;
        let (mut nearest_pps, mut best) = (0.0, None);
        for setting in self.at_most(limits, wanted_pps) {
            let rate = self.rate_pps(setting);
            nearest_pps = rate.max(nearest_pps);
            let latency = self.latency(setting, applied_pps);
            if rate >= least_pps && best.is_none_or(|(shortest, _)| latency < shortest) {
                best = Some((latency, setting));
            }
        }
        match best {
            Some((latency, _)) if latency > limits.latency_max.as_secs_f64() => {
                let shortest = span(latency);
                Err(Infeasible::LatencyTooShort { shortest })
            }
            Some((_, setting)) => Ok(setting),
            None if nearest_pps > 0.0 => Err(Infeasible::RateNotMet { nearest_pps }),
            None => Err(self.rate_too_low(limits)),
        }
    }

    /// The setting that accepts at most `rate_max_pps` within the tolerable
    /// latency: the longest such holdoff, since it costs the host least.
    ///
    /// # Errors
    /// Says which limit is in the way and what would be possible.
    pub fn for_latency(
        &self,
        limits: &Limits,
        rate_max_pps: f64,
        applied_pps: f64,
    ) -> Result<Setting, Infeasible> {
        check(limits, &[rate_max_pps, applied_pps])?;
        let latency_max = limits.latency_max.as_secs_f64();
        let (mut shortest, mut longest) = (f64::INFINITY, None);
        for setting in self.at_most(limits, rate_max_pps.min(limits.link_pps)) {
            let latency = self.latency(setting, applied_pps);
            shortest = latency.min(shortest);
            if latency <= latency_max {
                longest = Some(setting);
            }
        }
        if shortest.is_infinite() {
            return Err(self.rate_too_low(limits));
        }
        longest.ok_or_else(|| Infeasible::LatencyTooShort {
            shortest: span(shortest),
        })
    }

    /// For every holdoff, shortest first, as many buffers as accept at most
    /// `rate_pps`. Holdoffs at which one buffer is too many are left out.
    fn at_most(&self, limits: &Limits, rate_pps: f64) -> impl Iterator<Item = Setting> {
        limits.holdoffs().filter_map(move |holdoff| {
            let at = |buffers| Setting { holdoff, buffers };
            // Equation 1 solved for N; the rate grows with N towards 1/β.
            let slack = 1.0 - rate_pps * self.dequeue;
            let exact = rate_pps * (holdoff.as_secs_f64() + self.enter) / slack;
            let mut buffers = if slack > 0.0 && exact < f64::from(limits.buffers_max) {
                exact as u32
            } else {
                limits.buffers_max
            };
            // The division may have been rounded either way.
            while buffers > 0 && self.rate_pps(at(buffers)) > rate_pps {
                buffers -= 1;
            }
            while buffers < limits.buffers_max && self.rate_pps(at(buffers + 1)) <= rate_pps {
                buffers += 1;
            }
            (buffers > 0).then_some(at(buffers))
        })
    }

    fn rate_too_low(&self, limits: &Limits) -> Infeasible {
        Infeasible::RateTooLow {
            lowest_pps: self.rate_pps(Setting {
                holdoff: limits.range.max,
                buffers: 1,
            }),
        }
    }

    /// From one interrupt to the next under overload, in seconds.
    fn cycle(&self, setting: Setting) -> f64 {
        setting.holdoff.as_secs_f64() + self.enter + self.dequeue * f64::from(setting.buffers)
    }
}

/// So many seconds; the longest span there is if they are more.
fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

fn approximate_latency(holdoff: f64, packets: f64, applied_pps: f64) -> f64 {
    holdoff - packets / (2.0 * applied_pps)
}

fn check(limits: &Limits, rates: &[f64]) -> Result<(), Infeasible> {
    limits.validate().map_err(Infeasible::Limits)?;
    match rates.iter().find(|rate| !is_positive(**rate)) {
        Some(given) => Err(Infeasible::NotARate { given: *given }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
