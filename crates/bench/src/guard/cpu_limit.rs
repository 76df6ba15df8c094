//! The CPU limit: under a flood of work for the kernel alone, network CPU time
//! stays at the limit and a compute-bound process gets the rest (Mogul &
//! Ramakrishnan 1997, section 7 and figure 10).
//!
//! The flood goes to a port that nobody listens on, so that no server takes
//! part. Which loads would exceed a limit is measured with the same guard
//! without one.

use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_report::{Goal, Side, median};
use plimsoll_testbed::blast::Schedule;
use plimsoll_testbed::cpu_meter::CpuMeter;
use plimsoll_testbed::interrupt;
use serde::Serialize;

use super::{Bench, Measured, Part};
use crate::Error;
use crate::cases::{Case, Cases};
use crate::figures::grouped;
use crate::guard_process::GuardProcess;
use crate::protection::{Protection, Stage};
use crate::traffic::{compute_bound, during, udp_flood};

const OPTION: &str = "--cpu-limit";
/// Percent of the CPU.
const LIMITS: [u32; 3] = [30, 50, 70];
const RATES_PPS: [u64; 3] = [300_000, 1_000_000, 3_000_000];
/// At nice 0 the scheduler alone would give the process 30 % beside the kernel's
/// own softirq thread. The limit must hold without its help.
const COMPUTE_NICE: i8 = 19;
/// Nobody listens here.
const CLOSED_PORT: u16 = 11;

/// Network CPU time held at a limit.
#[derive(Clone, Debug, Serialize)]
pub struct CpuLimit {
    /// By limit and load.
    pub cases: Vec<CpuLimitCase>,
}

/// One load under one limit: medians over the runs.
#[derive(Clone, Debug, Serialize)]
pub struct CpuLimitCase {
    /// Percent of the CPU; none: the guard without a limit.
    pub limit_percent: Option<u32>,
    /// Flood, packets/s.
    pub offered_pps: f64,
    /// Network's part of the CPU, in percent.
    pub network_percent: f64,
    /// The compute-bound process's part, in percent.
    pub compute_percent: f64,
}

/// A limit in percent, if any, and a rate in packets/s.
type Load = (Option<u32>, u64);

#[derive(Clone, Copy, Debug)]
struct Run {
    offered_pps: f64,
    network_percent: f64,
    compute_percent: f64,
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
    let limits = [None].into_iter().chain(LIMITS.map(Some));
    let loads: Vec<Load> = limits
        .flat_map(|limit| RATES_PPS.map(|rate| (limit, rate)))
        .collect();
    let mut cases = Cases::new(&[Protection::Guard], &loads);
    let computing = compute_bound(&stage, COMPUTE_NICE)?;
    let mut meter = CpuMeter::start(stage.host().cpu())?;
    meter.watch(computing.pid())?;
    for round in 1..=plan.runs {
        for case in &mut cases.0 {
            let (limit, rate_pps) = case.load;
            let limit_name = limit.map_or("no limit".to_owned(), |limit| format!("{limit} %"));
            bench.say(
                Part::CpuLimit,
                round,
                &format!("{limit_name}, {rate_pps} packets/s"),
            );
            case.runs
                .push(flood(&stage, &meter, case.load, plan.window)?);
        }
    }
    Ok(Outcome { cases })
}

fn flood(
    stage: &Stage<'_>,
    meter: &CpuMeter,
    (limit, rate_pps): Load,
    window: Duration,
) -> Result<Run, Error> {
    let arguments = limit.map(|limit| [OPTION.to_owned(), limit.to_string()]);
    let guard = stage.guard(arguments.as_slice().as_flattened())?;
    let spec = udp_flood(stage, CLOSED_PORT, Schedule::Fixed { rate_pps });
    let (flood, cpu) = during(stage, Some(&spec), || {
        let before = meter.snapshot();
        interrupt::sleep(window)?;
        Ok(meter.snapshot().since(&before))
    })?;
    guard.stop()?;
    let computing = cpu
        .processes
        .first()
        .map_or(Duration::ZERO, |process| process.cpu);
    Ok(Run {
        offered_pps: flood.map_or(0.0, |report| report.offered_pps),
        network_percent: 100.0 * cpu.share(cpu.network),
        compute_percent: 100.0 * cpu.share(computing),
    })
}

impl Outcome {
    /// Rates whose network work would take more than the limit if it might.
    fn exceeding(&self, limit: u32) -> impl Iterator<Item = u64> {
        RATES_PPS.into_iter().filter(move |&rate| {
            let load = (None, rate);
            let unlimited = self
                .cases
                .values(Protection::Guard, load, |run| run.network_percent);
            median(&unlimited).is_some_and(|percent| percent > f64::from(limit))
        })
    }

    /// By run, the largest of a figure over all loads that would exceed the
    /// limit.
    fn worst(&self, limit: u32, figure: &dyn Fn(&Run) -> f64) -> Vec<f64> {
        let loads = self.exceeding(limit).map(|rate| (Some(limit), rate));
        let all = loads.map(|load| self.cases.values(Protection::Guard, load, figure));
        let larger = |left: Vec<f64>, right: Vec<f64>| {
            left.into_iter()
                .zip(right)
                .map(|(left, right)| left.max(right))
                .collect()
        };
        all.reduce(larger).unwrap_or_default()
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
            let off = self.worst(limit, &|run| (run.network_percent - percent).abs());
            let kept_from = self.worst(limit, &|run| 100.0 - percent - run.compute_percent);
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
                        "what a compute-bound process misses of the other {} %",
                        100 - limit
                    ),
                    Side::AtMost,
                    3.0,
                    "points",
                    kept_from,
                ),
            ]
        };
        LIMITS.into_iter().flat_map(goals).collect()
    }
}

fn summary(case: &Case<Load, Run>) -> CpuLimitCase {
    CpuLimitCase {
        limit_percent: case.load.0,
        offered_pps: case.middle(|run| run.offered_pps),
        network_percent: case.middle(|run| run.network_percent),
        compute_percent: case.middle(|run| run.compute_percent),
    }
}

impl CpuLimit {
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "CPU limit, flood of a closed port beside a compute-bound process\n\
             {:>10}{:>12}{:>11}{:>11}\n",
            "limit", "offered/s", "network", "compute"
        );
        for case in &self.cases {
            let limit = case.limit_percent;
            let _ = writeln!(
                text,
                "{:>10}{:>12}{:>10.1}%{:>10.1}%",
                limit.map_or("none".to_owned(), |limit| format!("{limit}%")),
                grouped(case.offered_pps),
                case.network_percent,
                case.compute_percent,
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loads_that_would_exceed_a_limit_count_against_it() {
        let mut cases: Cases<Load, Run> =
            Cases::new(&[Protection::Guard], &[(None, 300_000), (None, 1_000_000)]);
        for (case, network_percent) in cases.0.iter_mut().zip([20.0, 60.0]) {
            case.runs.push(Run {
                offered_pps: 1.0,
                network_percent,
                compute_percent: 0.0,
            });
        }
        let mut limited: Cases<Load, Run> = Cases::new(
            &[Protection::Guard],
            &[(Some(30), 300_000), (Some(30), 1_000_000)],
        );
        for (case, network_percent) in limited.0.iter_mut().zip([20.0, 31.0]) {
            case.runs.push(Run {
                offered_pps: 1.0,
                network_percent,
                compute_percent: 68.0,
            });
        }
        cases.0.append(&mut limited.0);
        let outcome = Outcome { cases };
        let met = outcome.goals();
        assert_eq!(met[0].runs, [1.0]);
        assert_eq!(met[1].runs, [2.0]);
        // No load would exceed 70 %.
        assert_eq!(met[4].met, None);
    }
}
