//! DNS: answers to valid queries, NSD beside our responder on the kernel's sockets and on
//! our own. One CPU, the same zone and the same query for all.
//!
//! The queries come from the flood's generator, since no client keeps up with the faster
//! servers. Answers are counted as they leave.

use std::time::Duration;

use plimsoll_testbed::dns::{Nsd, query, zone};
use plimsoll_testbed::server::Kind;
use serde::Serialize;

use super::loaded::MULTIPLES;
use super::side::{Running, Task};
use super::site::{Answers, PORT, Site};
use super::{Effort, Plan, Side, keep};
use crate::Error;
use crate::mlfrr::Bounds;
use crate::passing::{Family, PassingCase, PassingRun};

const BOUNDS: Bounds = Bounds {
    lowest_pps: 30_000,
    highest_pps: 3_000_000,
    // Within 16 %: what counts here is the peak.
    steps: 5,
};
/// NSD's name in tables.
pub(super) const NSD: &str = "nsd";

/// Our responder is measured on these.
const SIDES: [Side; 3] = [Side::Kernel, Side::NiLrp, Side::SoftLrp];

/// All responders.
#[derive(Clone, Debug, Serialize)]
pub struct Dns {
    /// Answers per second.
    pub responders: Vec<PassingCase>,
}

pub(super) fn measure(plan: &Plan, progress: &mut impl FnMut(&str)) -> Result<Dns, Error> {
    let ours = SIDES.into_iter().filter(|side| plan.sides.contains(side));
    let all = std::iter::once(None).chain(ours.map(Some));
    let mut cases: Vec<(Option<Side>, PassingCase)> = all
        .map(|side| {
            let name = side.map_or(NSD, Side::name);
            (side, PassingCase::new(name, Family::Ipv4))
        })
        .collect();
    for run in 1..=plan.effort.runs {
        for (side, case) in &mut cases {
            if case.why.is_none() {
                progress(&format!("run {run}, dns: {}", case.way));
                let measured = one_run(&plan.effort, *side);
                keep(measured, case, |case, run| case.runs.push(run))?;
            }
        }
    }
    Ok(Dns {
        responders: cases.into_iter().map(|(_, case)| case).collect(),
    })
}

fn one_run(effort: &Effort, side: Option<Side>) -> Result<PassingRun, Error> {
    let site = Site::new(effort, Answers::Dropped)?.asking(query(0));
    let running = match side {
        None => Running::Nsd(Nsd::start(site.testbed.test(), PORT)?),
        Some(side) => {
            let file = site.file("zone");
            std::fs::write(&file, zone()).map_err(|source| Error::Traffic {
                action: "write a zone file",
                source,
            })?;
            let mut task = Task::new(Kind::Dns, Duration::ZERO);
            task.zone = Some(file);
            Running::start(&site, side, &task, PORT)?
        }
    };
    let (mlfrr_pps, mlfrr_is) = site.mlfrr(&running, Kind::Dns, BOUNDS)?;
    let base_pps = mlfrr_pps.max(BOUNDS.lowest_pps as f64);
    let mut curve = Vec::new();
    for multiple in MULTIPLES {
        let rate = (multiple, base_pps * multiple);
        curve.push(site.overload(&running, Kind::Dns, rate, effort.window)?);
    }
    running.stop()?;
    Ok(PassingRun {
        mlfrr_pps,
        mlfrr_is,
        curve,
    })
}
