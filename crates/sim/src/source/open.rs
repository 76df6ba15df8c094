//! Open loops: they send whatever happens.

use fastrand::Rng;

use crate::engine::agenda::NEVER;
use crate::host::Host;
use crate::packet::Kind;
use crate::scenario::{RateStep, Traffic};

use super::http::FIRST_REQUEST;
use super::{Origin, nanos};

/// An open loop.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pattern: Pattern,
    /// Packets sent.
    sent: u64,
    /// Packets that leave together.
    burst: u32,
    limit: u64,
    kind: Kind,
    rng: Rng,
}

#[derive(Clone, Debug)]
enum Pattern {
    Constant {
        gap: Gap,
        start: u64,
        /// Next regular time, without jitter.
        due: u64,
        /// Largest deviation, in ns.
        jitter: u64,
    },
    Poisson {
        mean_ns: f64,
    },
    Bursts {
        burst: u64,
        spacing: u64,
        rest: u64,
    },
    Steps {
        steps: Vec<RateStep>,
        current: usize,
        gap: Gap,
    },
    Replay {
        times: Vec<u64>,
    },
}

/// A gap between packets, in ns with 32 fractional bits: rates come out exact
/// over any number of packets.
#[derive(Clone, Copy, Debug)]
struct Gap {
    whole: u64,
    fraction: u32,
    carried: u32,
}

impl Gap {
    /// `None` for a rate of nothing.
    fn of_rate(rate_pps: f64) -> Option<Self> {
        let ns = 1e9 / rate_pps;
        (ns.is_finite() && ns < 1e18).then(|| Self {
            whole: ns as u64,
            fraction: ((ns - libm::floor(ns)) * 4_294_967_296.0) as u32,
            carried: 0,
        })
    }

    #[inline]
    fn next(&mut self) -> u64 {
        let (carried, over) = self.carried.overflowing_add(self.fraction);
        self.carried = carried;
        self.whole + u64::from(over)
    }
}

impl Pattern {
    /// The patterns that are given by times instead of a rate.
    fn in_time(traffic: &Traffic) -> Option<Self> {
        match traffic {
            Traffic::Bursts {
                burst,
                spacing_us,
                period_us,
            } => {
                let (spacing, burst) = (nanos(*spacing_us), u64::from(*burst));
                let rest = nanos(*period_us).saturating_sub(spacing * (burst - 1));
                Some(Self::Bursts {
                    burst,
                    spacing,
                    rest,
                })
            }
            Traffic::Steps { steps } => {
                let first = steps.first()?;
                let gap = Gap::of_rate(first.rate_pps).or_else(|| Gap::of_rate(1.0))?;
                Some(Self::Steps {
                    steps: steps.clone(),
                    current: 0,
                    gap,
                })
            }
            Traffic::Replay { times_us } => {
                let times = times_us.iter().map(|us| nanos(*us)).collect();
                Some(Self::Replay { times })
            }
            _ => None,
        }
    }
}

impl Open {
    pub(super) fn new(traffic: &Traffic, rng: Rng) -> Self {
        let never = Pattern::Replay { times: Vec::new() };
        let (pattern, limit) = match traffic {
            Traffic::Constant {
                rate_pps,
                jitter_pct,
                packets,
                start_ms,
                burst,
            } => {
                let start = nanos(start_ms * 1e3);
                let pattern = Gap::of_rate(rate_pps / f64::from(*burst)).map_or(never, |gap| {
                    Pattern::Constant {
                        gap,
                        start,
                        due: start,
                        jitter: (gap.whole as f64 * jitter_pct / 100.0) as u64,
                    }
                });
                (pattern, packets.unwrap_or(u64::MAX))
            }
            Traffic::Poisson { rate_pps, burst }
            | Traffic::SynFlood {
                rate_pps,
                random: true,
                burst,
            } if *rate_pps > 0.0 => {
                let mean_ns = 1e9 * f64::from(*burst) / rate_pps;
                (Pattern::Poisson { mean_ns }, u64::MAX)
            }
            Traffic::SynFlood {
                rate_pps, burst, ..
            } => {
                let pattern = Gap::of_rate(rate_pps / f64::from(*burst)).map_or(never, |gap| {
                    Pattern::Constant {
                        gap,
                        start: 0,
                        due: 0,
                        jitter: gap.whole / 4,
                    }
                });
                (pattern, u64::MAX)
            }
            other => (Pattern::in_time(other).unwrap_or(never), u64::MAX),
        };
        let syn = matches!(traffic, Traffic::SynFlood { .. });
        Self {
            pattern,
            sent: 0,
            burst: together(traffic),
            limit,
            kind: if syn { Kind::Syn } else { Kind::Datagram },
            rng,
        }
    }

    /// When the first packet is sent.
    pub(super) fn first(&mut self) -> u64 {
        let rng = &mut self.rng;
        match &self.pattern {
            Pattern::Constant { gap, start, .. } => start + rng.u64(..=gap.whole),
            Pattern::Poisson { mean_ns } => exponential(rng, *mean_ns),
            Pattern::Bursts { rest, .. } => rng.u64(..=*rest),
            Pattern::Steps { steps, .. } => nanos(steps[0].at_ms * 1e3),
            Pattern::Replay { times } => times.first().copied().unwrap_or(NEVER),
        }
    }

    #[inline]
    pub(super) fn send(&mut self, host: &mut Host, origin: &Origin) {
        let silent = matches!(&self.pattern, Pattern::Steps { steps, current, .. }
            if steps[*current].rate_pps <= 0.0);
        if !silent {
            let spoofed = if self.kind == Kind::Syn {
                FIRST_REQUEST
            } else {
                0
            };
            for _ in 0..self.burst {
                origin.send(host, self.kind, self.sent as u32 | spoofed);
                self.sent += 1;
                if self.sent >= self.limit {
                    break;
                }
            }
        }
    }

    /// When the packet after the one sent `now` is sent.
    #[inline]
    pub(super) fn next(&mut self, now: u64) -> u64 {
        let rng = &mut self.rng;
        if self.sent >= self.limit {
            return NEVER;
        }
        match &mut self.pattern {
            Pattern::Constant {
                gap, due, jitter, ..
            } => {
                if self.sent <= u64::from(self.burst) {
                    *due = now;
                }
                *due += gap.next();
                if *jitter == 0 {
                    return *due;
                }
                let early = *due - (*jitter).min(*due) / 2;
                (early + rng.u64(..=*jitter)).max(now)
            }
            Pattern::Poisson { mean_ns } => now + exponential(rng, *mean_ns),
            Pattern::Bursts {
                burst,
                spacing,
                rest,
            } => {
                let within = !self.sent.is_multiple_of(*burst);
                now + if within { *spacing } else { *rest }
            }
            Pattern::Steps {
                steps,
                current,
                gap,
            } => step(steps, current, gap, now),
            Pattern::Replay { times } => {
                let index = usize::try_from(self.sent).unwrap_or(usize::MAX);
                times.get(index).copied().unwrap_or(NEVER)
            }
        }
    }
}

/// How many packets of `traffic` leave together.
fn together(traffic: &Traffic) -> u32 {
    match traffic {
        Traffic::Constant { burst, .. }
        | Traffic::Poisson { burst, .. }
        | Traffic::SynFlood { burst, .. } => *burst,
        _ => 1,
    }
}

/// The next time within a load that changes: the next packet's, or the next
/// change's if that comes first.
fn step(steps: &[RateStep], current: &mut usize, gap: &mut Gap, now: u64) -> u64 {
    let change = |index: usize| {
        steps
            .get(index)
            .map_or(NEVER, |step| nanos(step.at_ms * 1e3))
    };
    while change(*current + 1) <= now {
        *current += 1;
        if let Some(new) = Gap::of_rate(steps[*current].rate_pps) {
            *gap = new;
        }
    }
    if steps[*current].rate_pps <= 0.0 {
        return change(*current + 1);
    }
    (now + gap.next()).min(change(*current + 1).max(now + 1))
}

/// An exponentially distributed time in ns.
fn exponential(rng: &mut Rng, mean_ns: f64) -> u64 {
    // Never of zero: `f64` yields values below one.
    (-mean_ns * libm::log(1.0 - rng.f64())) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_divides_no_second_is_kept_exactly() {
        let mut gap = Gap::of_rate(7_380.0).expect("a rate");
        let total: u64 = (0..7_380_000).map(|_| gap.next()).sum();
        assert!(total.abs_diff(1_000_000_000_000) < 10_000, "{total}");
        assert!(Gap::of_rate(0.0).is_none());
    }

    #[test]
    fn exponential_gaps_have_their_mean() {
        let mut rng = Rng::with_seed(3);
        let sum: u64 = (0..100_000).map(|_| exponential(&mut rng, 1e4)).sum();
        assert!(sum.abs_diff(1_000_000_000) < 20_000_000, "{sum}");
    }
}
