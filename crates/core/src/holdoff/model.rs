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
                let shortest = Duration::from_secs_f64(latency);
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
            shortest: Duration::from_secs_f64(shortest),
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
mod tests {
    extern crate std;
    use std::string::ToString;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const US: Duration = Duration::from_micros(1);
    const COSTS: Costs = Costs {
        enter: US,
        dequeue: Duration::from_nanos(50),
        leave: US,
    };
    const LIMITS: Limits = Limits {
        range: HoldoffRange::FINE,
        buffers_max: 256,
        link_pps: 1_488_095.0,
        latency_max: Duration::from_millis(1),
    };

    fn setting(holdoff_us: u64, buffers: u32) -> Setting {
        Setting {
            holdoff: Duration::from_micros(holdoff_us),
            buffers,
        }
    }

    fn near(left: f64, right: f64) -> bool {
        (left - right).abs() <= right.abs() * 1e-9
    }

    #[test]
    fn the_equations_by_hand() {
        let model = Model::new(COSTS);
        let at = setting(200, 20);
        // Cycle: 200 + 1 + 20 · 0.05 = 202 µs.
        assert!(near(model.rate_pps(at), 20.0 / 202e-6));
        assert!(near(model.cpu_share(at), 3.0 / 202.0));
        // At 500,000 packets/s the 20 arrive within 40 µs, on average 20 µs
        // after the first.
        assert!(near(model.latency(at, 5e5), 200e-6 - 20e-6 + 1e-6 + 0.5e-6));
        assert!(near(Model::approximate_rate_pps(at), 1e5));
        assert!(near(Model::approximate_latency(at, 5e5), 180e-6));
        assert!(near(Model::interrupts_per_second_max(US * 100), 10_000.0));
        // Only 10 arrive within the holdoff: they wait half of it.
        assert!(near(model.latency(at, 5e4), 100e-6 + 1e-6 + 0.25e-6));
    }

    /// The surface of figure 2, from N/P.
    #[test]
    fn the_rates_of_figure_2() {
        for (buffers, at_100, at_1000) in [(4, 40e3, 4e3), (16, 160e3, 16e3), (64, 640e3, 64e3)] {
            assert!(near(
                Model::approximate_rate_pps(setting(100, buffers)),
                at_100
            ));
            assert!(near(
                Model::approximate_rate_pps(setting(1000, buffers)),
                at_1000
            ));
        }
    }

    #[test]
    fn the_shortest_holdoff_that_makes_the_rate() {
        let model = Model::new(COSTS);
        let five_percent = Fraction::from_percent(5);
        let found = model.for_rate(&LIMITS, 200e3, five_percent, 1e6).unwrap();
        let rate = model.rate_pps(found);
        assert!((190e3..=200e3).contains(&rate), "{found:?}: {rate}");
        // At 10 µs two buffers make 180,180/s, at 20 µs four make 188,679/s: not
        // near enough.
        assert_eq!(found, setting(30, 6));
    }

    #[test]
    fn the_longest_holdoff_within_the_latency() {
        let model = Model::new(COSTS);
        let limits = Limits {
            latency_max: US * 300,
            ..LIMITS
        };
        let found = model.for_latency(&limits, 200e3, 1e6).unwrap();
        assert_eq!(found, setting(330, 66));
        assert!(model.latency(found, 1e6) <= 300e-6);
        assert!(model.rate_pps(found) <= 200e3);
    }

    #[test]
    fn what_cannot_be_met_is_said() {
        let model = Model::new(COSTS);
        let tenth = Fraction::from_percent(10);
        let solve = |limits: Limits, rate| model.for_rate(&limits, rate, tenth, 1e6).unwrap_err();
        assert_eq!(
            solve(LIMITS, 2e6).to_string(),
            "the link brings no more than 1488095 packets/s"
        );
        assert_eq!(
            solve(LIMITS, 500.0).to_string(),
            "one buffer and the longest holdoff accept 999 packets/s"
        );
        let few = Limits {
            buffers_max: 2,
            range: HoldoffRange::DP83820,
            ..LIMITS
        };
        assert_eq!(
            solve(few, 300e3).to_string(),
            "the nearest rate that can be set is 19782 packets/s"
        );
        let hasty = Limits {
            latency_max: US * 5,
            ..LIMITS
        };
        assert!(matches!(
            solve(hasty, 200e3),
            Infeasible::LatencyTooShort { .. }
        ));
        assert!(matches!(
            model.for_latency(&hasty, 20e3, 1e6),
            Err(Infeasible::LatencyTooShort { .. })
        ));
        assert!(matches!(
            solve(LIMITS, f64::NAN),
            Infeasible::NotARate { .. }
        ));
        let endless = Limits {
            range: HoldoffRange {
                step: Duration::from_nanos(1),
                ..HoldoffRange::FINE
            },
            ..LIMITS
        };
        assert_eq!(
            solve(endless, 1e5).to_string(),
            "range.step = 1: must be such that the range has at most 100000 holdoffs"
        );
    }

    proptest! {
        /// The solvers find what trying every pair finds.
        #[test]
        fn no_pair_is_better(
            (alpha, beta, gamma) in (0_u32..20_000, 0_u32..2_000, 0_u32..20_000),
            (steps, step_us, buffers_max) in (0_u32..12, 1_u32..200, 1_u32..40),
            rate in 1e3_f64..2e6,
            applied in 1e3_f64..2e6,
            latency_us in 1_u32..2_000,
            precision in 0_u32..500_000,
        ) {
            let model = Model::new(Costs {
                enter: Duration::from_nanos(alpha.into()),
                dequeue: Duration::from_nanos(beta.into()),
                leave: Duration::from_nanos(gamma.into()),
            });
            let step = US * step_us;
            let limits = Limits {
                range: HoldoffRange { min: step, max: step * (steps + 1), step },
                buffers_max, link_pps: 1.5e6, latency_max: US * latency_us,
            };
            let all: Vec<Setting> = (1..=steps + 1)
                .flat_map(|k| (1..=buffers_max).map(move |buffers| Setting { holdoff: step * k, buffers }))
                .collect();
            // Of every holdoff only the most buffers within the rate.
            let fullest = |limit: f64| -> Vec<Setting> {
                let within = |s: &Setting| model.rate_pps(*s) <= limit;
                let more = |s: &Setting| Setting { buffers: s.buffers + 1, ..*s };
                all.iter().copied().filter(within)
                    .filter(|s| s.buffers == buffers_max || !within(&more(s)))
                    .collect()
            };
            let soon = |s: &Setting| model.latency(*s, applied) <= limits.latency_max.as_secs_f64();

            let precision = Fraction::from_ppm(precision);
            let least = rate * f64::from(precision.complement().as_ppm()) / 1e6;
            let wanted = fullest(rate).into_iter()
                .filter(|s| rate <= limits.link_pps && model.rate_pps(*s) >= least && soon(s))
                .map(|s| model.latency(s, applied))
                .reduce(f64::min);
            let found = model.for_rate(&limits, rate, precision, applied).ok();
            prop_assert_eq!(found.map(|s| model.latency(s, applied)), wanted);

            let wanted = fullest(rate.min(limits.link_pps)).into_iter().rfind(soon);
            prop_assert_eq!(model.for_latency(&limits, rate, applied).ok(), wanted);
        }

        /// Equations 4 and 5 agree with 1 and 2 within 2 % where the handler
        /// takes a hundredth of the holdoff.
        #[test]
        fn the_approximations_are_good_where_they_claim_to_be(buffers in 1_u32..100, holdoff_us in 600_u64..2_000) {
            let at = setting(holdoff_us, buffers);
            let model = Model::new(COSTS);
            let applied = 2.0 * model.rate_pps(at);
            let rate = Model::approximate_rate_pps(at) / model.rate_pps(at);
            prop_assert!((1.0..1.02).contains(&rate));
            let latency = Model::approximate_latency(at, applied) / model.latency(at, applied);
            prop_assert!((0.98..1.02).contains(&latency));
        }
    }
}
