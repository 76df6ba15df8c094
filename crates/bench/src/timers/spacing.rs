//! How evenly one paced stream leaves a CPU that works besides: by soft timers, by sleeping and
//! by the kernel's TCP (ST-63), for the paper's intervals and those of 1 Gbit/s and 100 Mbit/s.

use std::time::Duration;

use plimsoll_kernel::error::with_causes;
use plimsoll_report::{Goal, Side};
use plimsoll_testbed::spaced::{Sender, Wire};
use serde::Serialize;

use super::Plan;
use crate::Error;
use crate::passing::is_of_all;

/// A full frame takes 12 µs at 1 Gbit/s and 120 at 100 Mbit/s; the paper paced at 40 and 60.
const INTERVALS_US: [u64; 4] = [12, 40, 60, 120];
const FRAMES: usize = 4000;
/// Of the target, in percent.
const MEAN_GOAL: f64 = 0.5;
/// Of the better one of the others.
const SPREAD_GOAL: f64 = 0.5;

/// One sender at one interval.
#[derive(Clone, Debug, Serialize)]
pub struct SpacingCase {
    /// Who sends.
    pub sender: &'static str,
    /// What it was told.
    pub target_us: u64,
    /// Mean interval, a value for each run.
    pub mean_us: Vec<f64>,
    /// Standard deviation of the intervals, a value for each run.
    pub stddev_us: Vec<f64>,
    /// The program's own work meanwhile, of that without a stream; a value for each run.
    pub work_percent: Vec<f64>,
    /// Why there are fewer runs than asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl SpacingCase {
    fn new(sender: Sender, target_us: u64) -> Self {
        Self {
            sender: sender.name(),
            target_us,
            mean_us: Vec::new(),
            stddev_us: Vec::new(),
            work_percent: Vec::new(),
            why: None,
        }
    }
}

pub(super) fn measure(
    plan: &Plan,
    progress: &mut impl FnMut(&str),
) -> Result<Vec<SpacingCase>, Error> {
    let each = INTERVALS_US
        .into_iter()
        .flat_map(|target| Sender::ALL.map(|sender| (sender, SpacingCase::new(sender, target))));
    let mut cases: Vec<(Sender, SpacingCase)> = each.collect();
    for run in 1..=plan.runs {
        let wire = Wire::create()?;
        for (sender, case) in cases.iter_mut().filter(|(_, case)| case.why.is_none()) {
            progress(&format!(
                "run {run}, spacing: {} every {} µs",
                case.sender, case.target_us
            ));
            let interval = Duration::from_micros(case.target_us);
            match wire.stream(*sender, interval, FRAMES).map_err(Error::from) {
                Ok(spaced) => {
                    case.mean_us.push(spaced.mean_us);
                    case.stddev_us.push(spaced.stddev_us);
                    case.work_percent.push(100.0 * spaced.work_share);
                }
                Err(error) if is_of_all(&error) => return Err(error),
                Err(error) => case.why = Some(with_causes(&error)),
            }
        }
    }
    Ok(cases.into_iter().map(|(_, case)| case).collect())
}

pub(super) fn goals(cases: &[SpacingCase]) -> Vec<Goal> {
    INTERVALS_US
        .into_iter()
        .flat_map(|target| {
            let of = |sender: Sender| {
                let mut cases = cases.iter();
                cases.find(|case| (case.sender, case.target_us) == (sender.name(), target))
            };
            let soft = of(Sender::Soft);
            let others: Vec<_> = [Sender::Sleeping, Sender::Kernel].map(of).into();
            let others: Vec<_> = others.into_iter().flatten().collect();
            [mean(target, soft), spread(target, soft, &others)]
        })
        .collect()
}

fn mean(target: u64, soft: Option<&SpacingCase>) -> Goal {
    let off = |mean: &f64| 100.0 * (mean / target as f64 - 1.0).abs();
    Goal::new(
        format!("spacing_mean_{target}us"),
        format!("a frame every {target} µs by soft timers: mean interval off its target"),
        Side::AtMost,
        MEAN_GOAL,
        "%",
        soft.map_or_else(Vec::new, |soft| soft.mean_us.iter().map(off).collect()),
    )
}

/// Against the better one of those that were measured in the same run.
fn spread(target: u64, soft: Option<&SpacingCase>, others: &[&SpacingCase]) -> Goal {
    let better = |run: usize| {
        let spreads = others.iter().filter_map(|case| case.stddev_us.get(run));
        spreads.copied().min_by(f64::total_cmp)
    };
    let soft = soft.map_or(&[][..], |soft| soft.stddev_us.as_slice());
    let ratios = soft
        .iter()
        .enumerate()
        .filter_map(|(run, soft)| Some(soft / better(run)?));
    Goal::new(
        format!("spacing_spread_{target}us"),
        format!(
            "a frame every {target} µs by soft timers: spread of the intervals, of the better one \
             of sleeping and the kernel's TCP"
        ),
        Side::AtMost,
        SPREAD_GOAL,
        "x",
        ratios.collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(sender: Sender, mean_us: &[f64], stddev_us: &[f64]) -> SpacingCase {
        let mut case = SpacingCase::new(sender, 40);
        case.mean_us = mean_us.to_vec();
        case.stddev_us = stddev_us.to_vec();
        case
    }

    fn goal(cases: &[SpacingCase], id: &str) -> Goal {
        let goals = goals(cases);
        goals.into_iter().find(|goal| goal.id == id).unwrap()
    }

    #[test]
    fn soft_timers_are_compared_with_the_better_one_of_each_run() {
        let cases = [
            case(Sender::Soft, &[40.1, 39.6, 40.0], &[5.0, 6.0, 4.0]),
            case(Sender::Sleeping, &[60.0; 3], &[50.0, 10.0, 100.0]),
            case(Sender::Kernel, &[41.0; 3], &[20.0, 20.0, 5.0]),
        ];
        let spread = goal(&cases, "spacing_spread_40us");
        assert_eq!(spread.runs, [0.25, 0.6, 0.8]);
        assert_eq!((spread.measured, spread.met), (Some(0.6), Some(false)));
        let mean = goal(&cases, "spacing_mean_40us");
        assert!((mean.measured.unwrap() - 0.25).abs() < 1e-9 && mean.met == Some(true));
        assert_eq!(goal(&cases, "spacing_mean_12us").met, None);
    }
}
