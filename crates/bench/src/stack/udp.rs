//! The highest rate without loss of a sink and of an echo that do no work.

use std::time::Duration;

use plimsoll_testbed::server::Kind;
use serde::Serialize;

use super::side::{Running, Task};
use super::site::{Answers, PORT, Site};
use super::{Effort, Plan, Side, keep};
use crate::Error;
use crate::mlfrr::Bounds;
use crate::passing::{Family, PassingCase, PassingRun};

const BOUNDS: Bounds = Bounds {
    lowest_pps: 50_000,
    highest_pps: 6_000_000,
    // Within 8 %.
    steps: 6,
};

/// The MLFRRs of all sides.
#[derive(Clone, Debug, Serialize)]
pub struct Udp {
    /// Of a server that only takes packets.
    pub sink: Vec<PassingCase>,
    /// Of one that sends them back.
    pub echo: Vec<PassingCase>,
}

pub(super) fn measure(plan: &Plan, progress: &mut impl FnMut(&str)) -> Result<Udp, Error> {
    let cases = || -> Vec<PassingCase> {
        let names = plan.sides.iter().map(|side| side.name());
        names
            .map(|name| PassingCase::new(name, Family::Ipv4))
            .collect()
    };
    let mut udp = Udp {
        sink: cases(),
        echo: cases(),
    };
    for run in 1..=plan.effort.runs {
        for (place, &side) in plan.sides.iter().enumerate() {
            for (kind, word, cases) in [
                (Kind::Sink, "sink", &mut udp.sink),
                (Kind::Echo, "echo", &mut udp.echo),
            ] {
                let case = &mut cases[place];
                if case.why.is_none() {
                    progress(&format!("run {run}, {word}: {}", side.name()));
                    let measured = one_run(&plan.effort, side, kind);
                    keep(measured, case, |case, run| case.runs.push(run))?;
                }
            }
        }
    }
    Ok(udp)
}

fn one_run(effort: &Effort, side: Side, kind: Kind) -> Result<PassingRun, Error> {
    let answers = match kind {
        Kind::Echo => Answers::Dropped,
        _ => Answers::Received,
    };
    let site = Site::new(effort, answers)?;
    let task = Task::new(kind, Duration::ZERO);
    let running = Running::start(&site, side, &task, PORT)?;
    let (mlfrr_pps, mlfrr_is) = site.mlfrr(&running, kind, BOUNDS)?;
    running.stop()?;
    Ok(PassingRun {
        mlfrr_pps,
        mlfrr_is,
        curve: Vec::new(),
    })
}
