//! The CPU limit: under a flood of work for the kernel alone, network CPU time
//! stays at the limit and a compute-bound process gets the rest (Mogul &
//! Ramakrishnan 1997, section 7 and figure 10).
//!
//! A flood of a port that nobody listens on involves no server, but the kernel
//! moves much of its work into a thread and so leaves a compute-bound process 30 %
//! of the CPU by itself. A flood of a sink leaves 2 %; then the sink and the
//! compute-bound process share the rest. Which loads would exceed a limit is
//! measured with the same guard without one.

use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_report::{Goal, Side, median};
use plimsoll_testbed::blast::Schedule;
use plimsoll_testbed::interrupt;
use serde::Serialize;

use super::{Bench, Measured, Part};
use crate::Error;
use crate::cases::{Case, Cases};
use crate::figures::grouped;
use crate::guard_process::GuardProcess;
use crate::protection::{Protection, Stage};
use crate::traffic::{compute_bound, during, udp_flood};
use crate::udp::{SINK_PORT, start_sink};

const OPTION: &str = "--cpu-limit";
/// The limits that are promised, in percent of the CPU.
pub const CPU_LIMITS: [u32; 3] = [30, 50, 70];
/// The limit that is none.
const NO_LIMIT: u32 = 100;
const FLOODS: [(LimitTarget, u64); 5] = [
    (LimitTarget::ClosedPort, 300_000),
    (LimitTarget::ClosedPort, 1_000_000),
    (LimitTarget::ClosedPort, 3_000_000),
    (LimitTarget::Sink, 1_000_000),
    (LimitTarget::Sink, 3_000_000),
];
/// Nobody listens here.
const CLOSED_PORT: u16 = 11;

/// Where the flood goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitTarget {
    /// A port that nobody listens on.
    ClosedPort,
    /// A server.
    Sink,
}

impl LimitTarget {
    const fn port(self) -> u16 {
        match self {
            Self::ClosedPort => CLOSED_PORT,
            Self::Sink => SINK_PORT,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::ClosedPort => "closed",
            Self::Sink => "sink",
        }
    }
}

/// Network CPU time held at a limit.
#[derive(Clone, Debug, Serialize)]
pub struct CpuLimit {
    /// By limit and load.
    pub cases: Vec<CpuLimitCase>,
}

/// One load under one limit: medians over the runs.
#[derive(Clone, Debug, Serialize)]
pub struct CpuLimitCase {
    /// Percent of the CPU; 100: no limit.
    pub limit_percent: u32,
    /// Where the flood went.
    pub target: LimitTarget,
    /// Flood, packets/s.
    pub offered_pps: f64,
    /// Network's part of the CPU, in percent.
    pub network_percent: f64,
    /// The compute-bound process's part, in percent.
    pub compute_percent: f64,
    /// All processes' part, in percent.
    pub app_percent: f64,
}

/// A limit in percent, and a flood with its rate in packets/s.
type Load = (u32, LimitTarget, u64);

#[derive(Clone, Copy, Debug)]
struct Run {
    offered_pps: f64,
    network_percent: f64,
    compute_percent: f64,
    app_percent: f64,
}

impl Run {
    /// What the applications got that take part, in percent.
    fn rest(&self, target: LimitTarget) -> f64 {
        match target {
            LimitTarget::ClosedPort => self.compute_percent,
            LimitTarget::Sink => self.app_percent,
        }
    }
}

/// Everything this part measured.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    cases: Cases<Load, Run>,
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Outcome, Error> {
    let (stage, plan) = (bench.stage, bench.plan);
    if !GuardProcess::has_option(stage.host(), stage.program, OPTION)? {
        return Err(Error::MissingOption { option: OPTION });
    }
    let limits = [NO_LIMIT].iter().chain(&plan.cpu_limits);
    let loads: Vec<Load> = limits
        .flat_map(|limit| FLOODS.map(|(target, rate)| (*limit, target, rate)))
        .collect();
    let mut cases = Cases::new(&[Protection::Guard], &loads);
    let _sink = start_sink(&stage)?;
    for round in 1..=plan.runs {
        for case in cases.in_round(round) {
            let (limit, target, rate_pps) = case.load;
            let what = format!("limit {limit} %, {rate_pps} packets/s, {}", target.name());
            bench.say(Part::CpuLimit, round, &what);
            case.runs.push(flood(&stage, case.load, plan.window)?);
        }
    }
    Ok(Outcome { cases })
}

/// The compute-bound process lives no longer than the flood: beside it a guard starts and
/// ends at half the pace.
fn flood(
    stage: &Stage<'_>,
    (limit, target, rate_pps): Load,
    window: Duration,
) -> Result<Run, Error> {
    let guard = stage.guard(&[OPTION.to_owned(), limit.to_string()])?;
    let mut meter = stage.host().cpu_meter()?;
    let computing = compute_bound(stage.host())?;
    meter.watch(computing.pid());
    let spec = udp_flood(stage, target.port(), Schedule::Fixed { rate_pps });
    let (flood, cpu) = during(stage, Some(&spec), || {
        let before = meter.snapshot();
        interrupt::sleep(window)?;
        Ok(meter.snapshot().since(&before))
    })?;
    drop(computing);
    guard.stop()?;
    let computed = cpu
        .processes
        .first()
        .map_or(Duration::ZERO, |process| process.cpu);
    Ok(Run {
        offered_pps: flood.map_or(0.0, |report| report.offered_pps),
        network_percent: 100.0 * cpu.share(cpu.network),
        compute_percent: 100.0 * cpu.share(computed),
        app_percent: 100.0 * cpu.share(cpu.app),
    })
}

impl Outcome {
    /// Floods whose network work would take more than the limit if it might.
    fn exceeding(&self, limit: u32) -> impl Iterator<Item = (LimitTarget, u64)> {
        FLOODS.into_iter().filter(move |&(target, rate)| {
            let load = (NO_LIMIT, target, rate);
            let unlimited = self
                .cases
                .values(Protection::Guard, load, |run| run.network_percent);
            median(&unlimited).is_some_and(|percent| percent > f64::from(limit))
        })
    }

    /// By run, the largest of a figure over all floods that would exceed the
    /// limit.
    fn worst(&self, limit: u32, figure: &dyn Fn(LimitTarget, &Run) -> f64) -> Vec<f64> {
        let floods = self.exceeding(limit).map(|(target, rate)| {
            let load = (limit, target, rate);
            self.cases
                .values(Protection::Guard, load, |run| figure(target, run))
        });
        let larger = |left: Vec<f64>, right: Vec<f64>| {
            left.into_iter()
                .zip(right)
                .map(|(left, right)| left.max(right))
                .collect()
        };
        floods.reduce(larger).unwrap_or_default()
    }
}

impl Measured for Outcome {
    type Section = CpuLimit;

    fn section(&self) -> CpuLimit {
        CpuLimit {
            cases: self.cases.0.iter().map(summary).collect(),
        }
    }

    fn goals(&self) -> Vec<Goal> {
        let goals = |limit: u32| {
            let percent = f64::from(limit);
            let off = self.worst(limit, &|_, run| (run.network_percent - percent).abs());
            let kept_from = self.worst(limit, &|target, run| 100.0 - percent - run.rest(target));
            [
                Goal::new(
                    format!("cpu-limit/{limit}/network"),
                    format!("distance of network CPU time from the limit of {limit} %, worst load"),
                    Side::AtMost,
                    3.0,
                    "points",
                    off,
                ),
                Goal::new(
                    format!("cpu-limit/{limit}/rest"),
                    format!(
                        "what applications miss of the other {} %, worst load",
                        100 - limit
                    ),
                    Side::AtMost,
                    3.0,
                    "points",
                    kept_from,
                ),
            ]
        };
        CPU_LIMITS.into_iter().flat_map(goals).collect()
    }
}

fn summary(case: &Case<Load, Run>) -> CpuLimitCase {
    CpuLimitCase {
        limit_percent: case.load.0,
        target: case.load.1,
        offered_pps: case.middle(|run| run.offered_pps),
        network_percent: case.middle(|run| run.network_percent),
        compute_percent: case.middle(|run| run.compute_percent),
        app_percent: case.middle(|run| run.app_percent),
    }
}

impl CpuLimit {
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "CPU limit, flood of a closed port or of a sink beside a compute-bound process\n\
             {:>10}{:>8}{:>12}{:>11}{:>11}{:>11}\n",
            "limit", "flood", "offered/s", "network", "compute", "all apps"
        );
        for case in &self.cases {
            let _ = writeln!(
                text,
                "{:>10}{:>8}{:>12}{:>10.1}%{:>10.1}%{:>10.1}%",
                format!("{}%", case.limit_percent),
                case.target.name(),
                grouped(case.offered_pps),
                case.network_percent,
                case.compute_percent,
                case.app_percent,
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_floods_that_would_exceed_a_limit_count_against_it() {
        let case = |limit, rate, network_percent, compute_percent| Case {
            protection: Protection::Guard,
            load: (limit, LimitTarget::ClosedPort, rate),
            runs: vec![Run {
                offered_pps: 1.0,
                network_percent,
                compute_percent,
                app_percent: 100.0,
            }],
        };
        let outcome = Outcome {
            cases: Cases(vec![
                case(NO_LIMIT, 300_000, 20.0, 0.0),
                case(NO_LIMIT, 1_000_000, 60.0, 0.0),
                case(30, 300_000, 10.0, 50.0),
                case(30, 1_000_000, 31.0, 68.0),
            ]),
        };
        let goals = outcome.goals();
        assert_eq!(goals[0].runs, [1.0]);
        assert_eq!(goals[1].runs, [2.0]);
        // No flood would exceed 70 %.
        assert_eq!(goals[4].met, None);
    }
}
