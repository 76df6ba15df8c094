//! DNS: answers to valid queries, NSD beside our responder on the kernel's sockets and on
//! our own. One CPU, the same zone and the same query for all.
//!
//! The queries come from the flood's generator, since no client keeps up with the faster
//! servers. Answers are counted as they leave. Beside that stands what dnsperf gets, which
//! always has 200 queries outstanding: mostly its own limit.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_testbed::dns::{Nsd, query, run_dnsperf_closed, zone};
use plimsoll_testbed::server::Kind;
use serde::Serialize;

use super::loaded::MULTIPLES;
use super::side::{Running, Task};
use super::site::{Answers, PORT, Site};
use super::turns::{SideCase, in_turns};
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

/// Queries of dnsperf at a time: enough that a server never waits for it, and few enough that
/// no queue overflows.
const OUTSTANDING: u32 = 200;
const SECONDS: u32 = 2;

/// All responders.
#[derive(Clone, Debug, Serialize)]
pub struct Dns {
    /// Answers per second.
    pub responders: Vec<PassingCase>,
    /// Answers per second that dnsperf got.
    pub dnsperf: Vec<SideCase<f64>>,
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
    let ways: Vec<Option<Side>> = cases.iter().map(|(side, _)| *side).collect();
    let name = |side: Option<Side>| side.map_or(NSD, Side::name);
    let dnsperf = in_turns(plan, ("dnsperf", &ways), name, progress, |side| {
        by_dnsperf(&plan.effort, side)
    })?;
    Ok(Dns {
        responders: cases.into_iter().map(|(_, case)| case).collect(),
        dnsperf,
    })
}

fn by_dnsperf(effort: &Effort, side: Option<Side>) -> Result<f64, Error> {
    let site = Site::new(effort, Answers::Received)?;
    let running = start(&site, side)?;
    let at = SocketAddr::new(site.testbed.test().ipv4().into(), PORT);
    let result = run_dnsperf_closed(site.testbed.load(), at, OUTSTANDING, SECONDS)?;
    running.stop()?;
    Ok(result.queries_per_s)
}

fn start(site: &Site<'_>, side: Option<Side>) -> Result<Running, Error> {
    let Some(side) = side else {
        return Ok(Running::Nsd(Nsd::start(site.testbed.test(), PORT)?));
    };
    let file = site.file("zone");
    std::fs::write(&file, zone()).map_err(|source| Error::Traffic {
        action: "write a zone file",
        source,
    })?;
    let mut task = Task::new(Kind::Dns, Duration::ZERO);
    task.zone = Some(file);
    Running::start(site, side, &task, PORT)
}

fn one_run(effort: &Effort, side: Option<Side>) -> Result<PassingRun, Error> {
    let site = Site::new(effort, Answers::Dropped)?.asking(query(0));
    let running = start(&site, side)?;
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
