//! A sink that works on each packet: what it gets at multiples of its own MLFRR, and
//! what a client of another endpoint and a process of the same host see of that.
//!
//! Two amounts of work, since the discards cost the host's CPU a constant each: at ten
//! times the MLFRR they weigh ten times more for a server that is ten times faster.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use plimsoll_testbed::blast::Spec;
use plimsoll_testbed::server::{Kind, Server};
use plimsoll_testbed::{interrupt, probe};
use serde::Serialize;

use super::side::{Running, Task};
use super::site::{Answers, PORT, Site};
use super::{Part, Plan, Side, keep};
use crate::Error;
use crate::figures::Bystander;
use crate::mlfrr::Bounds;
use crate::passing::{Family, OVERLOAD, PassingCase, PassingRun};
use crate::traffic::{compute_bound, during_flood_of, on_cpu_of};
use crate::udp::{ECHO_PORT, PROBE_RATE_PPS, PROBE_TIMEOUT};

/// What the sink does with each packet: a small real server, and one that computes.
pub(super) const WORK: [Duration; 2] = [Duration::from_micros(2), Duration::from_micros(20)];
/// The rates of a curve, as multiples of the MLFRR.
pub(super) const MULTIPLES: [f64; 4] = [1.0, 2.0, 5.0, OVERLOAD];
/// Of another program on the same interface, with the kernel's sockets.
const KERNEL_PORT: u16 = 11;
/// Of the window: some hundred turns of the scheduler in a default run.
const COMPUTING_WINDOWS: u32 = 4;

/// One side with one amount of work.
#[derive(Clone, Debug, Serialize)]
pub struct LoadedCase {
    /// The sink's work on each packet, in microseconds.
    pub work_us: u128,
    /// What the sink got.
    #[serde(flatten)]
    pub sink: PassingCase,
    /// What the bystander's client saw, a value for each run.
    pub bystander: Vec<BystanderRun>,
}

/// Another endpoint's client, without a flood and with one.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BystanderRun {
    /// The flood, in packets per second.
    pub offered_pps: f64,
    /// The flood, as a multiple of the sink's MLFRR.
    pub multiple: f64,
    /// Nothing but probes.
    pub calm: Bystander,
    /// During the flood.
    pub flooded: Bystander,
    /// A client of another program, which has the kernel's sockets, without a flood.
    pub kernel_calm: Bystander,
    /// The same during the flood.
    pub kernel_flooded: Bystander,
    /// Begun when the flood had been alone for a while. Measured where the kernel's polling
    /// depends on that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newcomer: Option<Bystander>,
    /// The sink and a compute-bound process on its CPU, during the flood.
    pub computing: ComputingRun,
}

/// A flooded sink and a compute-bound process of nice 0 on one CPU.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ComputingRun {
    /// The process's part of the CPU, in percent.
    pub process_percent: f64,
    /// What the sink got, in packets per second.
    pub passed_pps: f64,
}

pub(super) fn measure(
    plan: &Plan,
    progress: &mut impl FnMut(&str),
) -> Result<Vec<LoadedCase>, Error> {
    if !plan.has(Part::Overload) && !plan.has(Part::Bystander) {
        return Ok(Vec::new());
    }
    let mut cases: Vec<(Side, Duration, LoadedCase)> = Vec::new();
    for work in WORK {
        // Nothing is promised of the others there.
        let few = work > WORK[0];
        let sides = plan.sides.iter().filter(|side| side.has_sockets());
        let sides = sides.filter(|side| !few || !matches!(side, Side::EarlyDemux | Side::Eager));
        cases.extend(sides.map(|&side| (side, work, LoadedCase::new(side, work))));
    }
    for run in 1..=plan.effort.runs {
        for (side, work, case) in &mut cases {
            if case.sink.why.is_some() {
                continue;
            }
            progress(&format!("run {run}, {work:?} of work: {}", side.name()));
            let bystander = &mut case.bystander;
            let measured = one_run(plan, *side, *work);
            keep(measured, &mut case.sink, |sink, (run, beside)| {
                sink.runs.push(run);
                bystander.extend(beside);
            })?;
        }
    }
    Ok(cases.into_iter().map(|(_, _, case)| case).collect())
}

impl LoadedCase {
    fn new(side: Side, work: Duration) -> Self {
        Self {
            work_us: work.as_micros(),
            sink: PassingCase::new(side.name(), Family::Ipv4),
            bystander: Vec::new(),
        }
    }
}

/// From a sixth of what the work alone allows.
fn bounds(work: Duration) -> Bounds {
    let highest = 1.05 / work.as_secs_f64();
    Bounds {
        lowest_pps: (highest / 6.0) as u64,
        highest_pps: highest as u64,
        steps: 5,
    }
}

fn one_run(
    plan: &Plan,
    side: Side,
    work: Duration,
) -> Result<(PassingRun, Option<BystanderRun>), Error> {
    let effort = &plan.effort;
    let site = Site::new(effort, Answers::Received)?;
    let task = Task {
        bystander: Some(ECHO_PORT),
        ..Task::new(Kind::Sink, work)
    };
    let running = Running::start(&site, side, &task, PORT)?;
    let bounds = bounds(work);
    let (mlfrr_pps, mlfrr_is) = site.mlfrr(&running, Kind::Sink, bounds)?;
    let base_pps = mlfrr_pps.max(bounds.lowest_pps as f64);
    let mut curve = Vec::new();
    if plan.has(Part::Overload) {
        for multiple in MULTIPLES {
            let rate = (multiple, base_pps * multiple);
            curve.push(site.overload(&running, Kind::Sink, rate, effort.window)?);
        }
    }
    let beside = plan
        .has(Part::Bystander)
        .then(|| beside(&site, &running, base_pps));
    let beside = beside.transpose()?;
    running.stop()?;
    let run = PassingRun {
        mlfrr_pps,
        mlfrr_is,
        curve,
    };
    Ok((run, beside))
}

/// Probes the bystander and another program, alone and beside a flood of the sink.
fn beside(site: &Site<'_>, running: &Running, mlfrr_pps: f64) -> Result<BystanderRun, Error> {
    let load = site.testbed.load();
    let host = site.testbed.test();
    let probe = |port: u16| {
        let config = probe::Config {
            rate_pps: PROBE_RATE_PPS,
            duration: site.effort().window,
            timeout: PROBE_TIMEOUT,
            realtime: true,
            ..probe::Config::new(SocketAddr::new(host.ipv4().into(), port))
        };
        on_cpu_of(load, || probe::run(&config))
    };
    let other = Side::Kernel.server(Kind::Echo, KERNEL_PORT, host.device());
    let other = Server::start(host, site.program(), &other)?;
    let calm = [ECHO_PORT, KERNEL_PORT].map(probe);
    let spec = site.flood(mlfrr_pps * OVERLOAD);
    let flooded = |port| during_flood_of(load, Some(&spec), || probe(port));
    let (report, flooded, kernel) = {
        let (report, seen) = flooded(ECHO_PORT)?;
        (report, seen, flooded(KERNEL_PORT)?.1)
    };
    other.stop()?;
    let offered_pps = report.map_or(0.0, |report| report.offered_pps);
    let [calm, kernel_calm] = calm;
    let settling = site.effort().settling();
    let begin = || {
        let later = || {
            interrupt::sleep(settling)?;
            probe(ECHO_PORT)
        };
        Ok::<_, Error>(Bystander::of(&during_flood_of(load, Some(&spec), later)?.1))
    };
    let newcomer = (!settling.is_zero()).then(begin).transpose()?;
    Ok(BystanderRun {
        newcomer,
        offered_pps,
        multiple: offered_pps / mlfrr_pps,
        calm: Bystander::of(&calm?),
        kernel_calm: Bystander::of(&kernel_calm?),
        kernel_flooded: Bystander::of(&kernel),
        flooded: Bystander::of(&flooded),
        computing: computing(site, running, &spec)?,
    })
}

/// How the flooded sink and a compute-bound process share the CPU.
fn computing(site: &Site<'_>, running: &Running, spec: &Spec) -> Result<ComputingRun, Error> {
    let host = site.testbed.test();
    let mut meter = host.cpu_meter()?;
    let process = compute_bound(host)?;
    meter.watch(process.pid());
    let run = during_flood_of(site.testbed.load(), Some(spec), || {
        interrupt::sleep(site.effort().settling())?;
        let (cpu, received, begun) = (meter.snapshot(), running.received(), Instant::now());
        interrupt::sleep(site.effort().window * COMPUTING_WINDOWS)?;
        let cpu = meter.snapshot().since(&cpu);
        let received = running.received() - received;
        let used = cpu.processes.first().map_or(Duration::ZERO, |of| of.cpu);
        Ok::<_, Error>(ComputingRun {
            process_percent: 100.0 * cpu.share(used),
            passed_pps: received as f64 / begun.elapsed().as_secs_f64(),
        })
    });
    Ok(run?.1)
}
