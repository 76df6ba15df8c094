//! The flooded router: packets cross it, beside a process that computes and a routing
//! session over the flooded link.
//!
//! The session is a real one: BIRD on the router and on its neighbour, BGP watched by BFD.
//! Stock is the kernel. Ours is `plimsoll forward`, told to leave a quarter of the CPU.

use std::time::{Duration, Instant};

use plimsoll_testbed::Error as TestbedError;
use plimsoll_testbed::bird::{BFD_INTERVAL, Bird, Speaker};
use plimsoll_testbed::blast::Priority;
use plimsoll_testbed::interrupt;
use serde::Serialize;

use super::Plan;
use crate::Error;
use crate::cases::{Case, Cases, in_round};
use crate::forward::{LIMIT_PERCENT, Router, start_limited};
use crate::passing::{Effort, Family, PassingCounts, Running, Site};
use crate::traffic::{TIME_BOUND, compute_bound, during_flood_of, on_cpu_of};

/// In the order in which they take turns.
pub(super) const ROUTERS: [Router; 2] = [Router::Kernel, Router::Xdp];
/// Documentation's own autonomous systems (RFC 5398), of the router and of its neighbour.
const SYSTEMS: [u32; 2] = [64_496, 64_497];
/// How often the neighbour is asked whether the session is up.
const LOOK: Duration = Duration::from_millis(20);
/// For a session that a flood has ended: BIRD tries again each second.
const SESSION_PATIENCE: Duration = Duration::from_secs(20);

/// Its name in charts and tables.
pub(super) const fn name(router: Router) -> &'static str {
    match router {
        Router::Kernel => "stock",
        _ => "forward",
    }
}

/// Everything the scene measured; loads are multiples of the stock MLFRR.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) mlfrr_pps: f64,
    pub(super) cases: Cases<f64, Crossed, Router>,
}

/// One flood of one router.
#[derive(Debug)]
pub(super) struct Crossed {
    pub(super) offered_pps: f64,
    pub(super) forwarded_pps: f64,
    /// The compute-bound process's part of the CPU, from 0 to 1.
    pub(super) computed: f64,
    session: Session,
    counts: PassingCounts,
}

/// What a routing session went through.
#[derive(Clone, Copy, Debug, Default)]
struct Session {
    looks: u64,
    up: u64,
    /// How often it was found down after it had been up.
    ended: u64,
}

pub(super) fn run(plan: &Plan, progress: &mut impl FnMut(&str)) -> Result<Outcome, Error> {
    let effort = Effort::new(plan.program.clone());
    progress("Router: looking for the kernel's maximum loss-free receive rate (MLFRR)");
    let mlfrr_pps = stock_mlfrr(&effort)?;
    let mut cases = Cases::new(&ROUTERS, &plan.router_multiples);
    for round in 1..=plan.runs {
        for router in in_round(round, ROUTERS) {
            let scene = Scene::start(&effort, router)?;
            let of_router = cases.0.iter_mut();
            for case in of_router.filter(|case| case.protection == router) {
                let rate_pps = mlfrr_pps * case.load;
                progress(&format!(
                    "Router, round {round} of {}: {rate_pps:.0} packets/s, {}",
                    plan.runs,
                    name(router)
                ));
                case.runs.push(scene.flood(rate_pps, plan.router_window)?);
            }
            scene.stop()?;
        }
    }
    Ok(Outcome { mlfrr_pps, cases })
}

/// What the kernel forwards without loss, with nobody else on its CPU.
fn stock_mlfrr(effort: &Effort) -> Result<f64, Error> {
    let site = Site::new(effort, Family::Ipv4)?;
    let running = site.start(Router::Kernel)?;
    let (mlfrr_pps, _) = site.mlfrr()?;
    running.stop()?;
    if mlfrr_pps > 0.0 {
        return Ok(mlfrr_pps);
    }
    Err(Error::NoLossFreeRate {
        rate_pps: crate::passing::BOUNDS.lowest_pps,
    })
}

/// A router at work, with its neighbour.
struct Scene<'a> {
    // In this order they end: sessions and router before their hosts.
    neighbour: Bird,
    _bird: Bird,
    running: Running,
    site: Site<'a>,
}

impl<'a> Scene<'a> {
    fn start(effort: &'a Effort, router: Router) -> Result<Self, Error> {
        let site = Site::new(effort, Family::Ipv4)?;
        let running = start_limited(&site, router, Some(LIMIT_PERCENT))?;
        let hosts = [site.hosts.router(), site.hosts.load()];
        let speaker = |own: usize| Speaker {
            own: hosts[own].ipv4(),
            own_as: SYSTEMS[own],
            neighbour: hosts[1 - own].ipv4(),
            neighbour_as: SYSTEMS[1 - own],
            announces: Vec::new(),
        };
        Ok(Self {
            _bird: Bird::start(hosts[0], &speaker(0))?,
            neighbour: Bird::start(hosts[1], &speaker(1))?,
            running,
            site,
        })
    }

    /// Floods the router once the session is up.
    fn flood(&self, rate_pps: f64, window: Duration) -> Result<Crossed, Error> {
        self.neighbour.wait_until_established(SESSION_PATIENCE)?;
        let (load, router) = (self.site.hosts.load(), self.site.hosts.router());
        let computing = compute_bound(router)?;
        let mut meter = router.cpu_meter()?;
        meter.watch(computing.pid());
        let spec = (rate_pps > 0.0).then(|| {
            let mut spec = self.site.flood(rate_pps, TIME_BOUND);
            // The neighbour shares this CPU and must not be what ends the session.
            spec.priority = Priority::Idle;
            spec
        });
        let before = self.site.read()?;
        let (report, (cpu, session)) = during_flood_of(load, spec.as_ref(), || {
            let before = meter.snapshot();
            let neighbour = &self.neighbour;
            let session = on_cpu_of(load, || Session::watch(neighbour, window))?;
            Ok((meter.snapshot().since(&before), session))
        })?;
        let offered_pps = report.as_ref().map_or(0.0, |report| report.offered_pps);
        let crossed = report.map(|report| self.site.crossed_since(&before, &report));
        let crossed = crossed.transpose()?.unwrap_or_default();
        let computed = cpu.processes.first().map(|process| process.cpu);
        Ok(Crossed {
            offered_pps,
            forwarded_pps: crossed.passed_pps,
            computed: cpu.share(computed.unwrap_or_default()),
            session,
            counts: crossed.counts,
        })
    }

    fn stop(self) -> Result<(), Error> {
        self.running.stop()
    }
}

impl Session {
    /// Looks at the session for so long.
    fn watch(neighbour: &Bird, window: Duration) -> Result<Self, TestbedError> {
        let end = Instant::now() + window;
        let mut seen = Self::default();
        // A flood begins before the window, with the session up.
        let mut was_up = true;
        while Instant::now() < end {
            seen.on_look(neighbour.is_established()?, &mut was_up);
            interrupt::sleep(LOOK)?;
        }
        Ok(seen)
    }

    fn on_look(&mut self, is_up: bool, was_up: &mut bool) {
        self.looks += 1;
        self.up += u64::from(is_up);
        self.ended += u64::from(*was_up && !is_up);
        *was_up = is_up;
    }
}

impl Crossed {
    /// Part of the time that the session was up, in percent.
    pub(super) fn session_percent(&self) -> f64 {
        100.0 * self.session.up as f64 / self.session.looks.max(1) as f64
    }
}

/// The flooded router.
#[derive(Clone, Debug, Serialize)]
pub struct RouterScene {
    /// What the kernel forwards without loss, in packets/s.
    pub mlfrr_pps: f64,
    /// Part of the CPU that ours was told to leave, in percent.
    pub left_percent: u32,
    /// The routing session.
    pub session: String,
    /// By flood, stock before ours.
    pub cases: Vec<RouterCase>,
}

/// One flood of one router: medians over the runs; counts are their sums.
#[derive(Clone, Debug, Serialize)]
pub struct RouterCase {
    /// Who forwards: `stock` or `forward`.
    pub router: &'static str,
    /// Packets/s that the generator achieved.
    pub offered_pps: f64,
    /// Packets/s that left by the output interface.
    pub forwarded_pps: f64,
    /// The compute-bound process's part of the CPU, in percent.
    pub compute_percent: f64,
    /// Part of the time that the session was up, in percent.
    pub session_percent: f64,
    /// How often the session ended.
    pub session_ended: u64,
    /// Packets offered.
    pub offered: u64,
    /// Packets lost at the full receive ring.
    pub ring_full: u64,
    /// Packets that left.
    pub forwarded: u64,
}

impl Outcome {
    pub(super) fn summary(&self) -> RouterScene {
        RouterScene {
            mlfrr_pps: self.mlfrr_pps,
            left_percent: 100 - LIMIT_PERCENT,
            session: format!("BIRD, BGP with BFD (3 × {} ms)", BFD_INTERVAL.as_millis()),
            cases: self.cases.0.iter().map(summary).collect(),
        }
    }
}

fn summary(case: &Case<f64, Crossed, Router>) -> RouterCase {
    RouterCase {
        router: name(case.protection),
        offered_pps: case.middle(|run| run.offered_pps),
        forwarded_pps: case.middle(|run| run.forwarded_pps),
        compute_percent: case.middle(|run| 100.0 * run.computed),
        session_percent: case.middle(Crossed::session_percent),
        session_ended: case.total(|run| run.session.ended),
        offered: case.total(|run| run.counts.offered),
        ring_full: case.total(|run| run.counts.ring_full),
        forwarded: case.total(|run| run.counts.passed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_its_time_up_and_its_ends() {
        let (mut seen, mut was_up) = (Session::default(), true);
        for is_up in [true, false, false, true, true, false, true, true] {
            seen.on_look(is_up, &mut was_up);
        }
        assert_eq!((seen.looks, seen.up, seen.ended), (8, 5, 2));
        // Down from the first look on: the flood had begun before.
        let (mut seen, mut was_up) = (Session::default(), true);
        seen.on_look(false, &mut was_up);
        assert_eq!((seen.up, seen.ended), (0, 1));
    }
}
