//! Packets that cross a router, with and without a screen, and a compute-bound process
//! beside it (Mogul & Ramakrishnan's figures 2, 5 to 9, and 10).

use std::time::Duration;

use plimsoll_lab::Figures;
use plimsoll_testbed::interrupt;

use super::settings::{BesideTrial, ForwardTrial, ScreenTrial};
use super::{Offer, RealPackets, cpu_figures};
use crate::Error;
use crate::figures::HostCpu;
use crate::forward::{Router, start_limited, start_with};
use crate::passing::{BOUNDS, Effort, Family, Point, Running, Site, Way};
use crate::screen::start_with_quota;
use crate::traffic::{TIME_BOUND, compute_bound, during_flood_of};

/// The router whose peak is the unit, where no other is named.
const UNMODIFIED: Router = Router::Kernel;
/// The peak is looked for at these rates, and no longer than needed for a rate.
const LADDER_FROM_PPS: f64 = 200_000.0;
const LADDER_STEP: f64 = 1.5;
const LADDER_WINDOW: Duration = Duration::from_millis(300);

pub(super) fn forward(
    real: &RealPackets,
    trial: &ForwardTrial,
    offers: impl Iterator<Item = Offer>,
) -> Result<Vec<Figures>, Error> {
    let Some(quota) = trial.quota else {
        return cross(real, UNMODIFIED, offers, |site| site.start(trial.router));
    };
    let quota = quota.to_string();
    cross(real, trial.router, offers, |site| {
        start_with(site, trial.router, &["--quota", &quota])
    })
}

pub(super) fn screen(
    real: &RealPackets,
    trial: &ScreenTrial,
    offers: impl Iterator<Item = Offer>,
) -> Result<Vec<Figures>, Error> {
    let screen = trial.screen;
    let placement = match trial.threaded {
        true => Router::Threaded.placement(),
        false => screen.placement(),
    };
    cross(real, UNMODIFIED, offers, |site| match trial.quota {
        Some(quota) => start_with_quota(site, quota),
        None => {
            site.hosts.place(placement)?;
            screen.start(site)
        }
    })
}

fn effort(real: &RealPackets) -> Effort {
    Effort::new(real.program.clone())
}

/// A router's peak, forwarding alone: the greatest rate that passes at any offered rate.
/// (Its highest rate without loss says more about the generator: above 400,000 packets
/// per second it works in batches of 64 to 256 frames, in which nobody else has its CPU.)
fn unit(real: &RealPackets, router: Router, seed: u64) -> Result<f64, Error> {
    let name = format!("router, {}", router.name());
    real.unit(name, seed, BOUNDS, |_| {
        let effort = effort(real);
        let site = Site::new(&effort, Family::Ipv4)?;
        let _running = site.start(router)?;
        let rates = std::iter::successors(Some(LADDER_FROM_PPS), |rate| Some(rate * LADDER_STEP));
        let mut peak: f64 = 0.0;
        for rate_pps in rates.take_while(|rate| *rate <= BOUNDS.highest_pps as f64) {
            let point = site.trial(rate_pps, LADDER_WINDOW)?.into_point(0.0);
            peak = peak.max(point.passed_pps);
        }
        Ok(peak)
    })
}

/// Rates in packets per second, in multiples of a router's peak, which is searched before
/// hosts are made.
fn wanted(
    real: &RealPackets,
    of: Router,
    offers: impl Iterator<Item = Offer>,
) -> Result<Vec<(Offer, f64)>, Error> {
    let wanted = |offer: Offer| {
        let pps = offer.rate.pps(|| unit(real, of, offer.seed))?;
        Ok((offer, pps))
    };
    offers.map(wanted).collect()
}

fn cross(
    real: &RealPackets,
    of: Router,
    offers: impl Iterator<Item = Offer>,
    start: impl FnOnce(&Site<'_>) -> Result<Running, Error>,
) -> Result<Vec<Figures>, Error> {
    let offers = wanted(real, of, offers)?;
    let effort = effort(real);
    let site = Site::new(&effort, Family::Ipv4)?;
    let running = start(&site)?;
    let one = |(offer, wanted_pps): (Offer, f64)| {
        let point = site.trial(wanted_pps, offer.window)?.into_point(0.0);
        Ok(offer.figures(wanted_pps, point.offered_pps, crossed(&point)))
    };
    let figures: Result<Vec<Figures>, Error> = offers.into_iter().map(one).collect();
    running.stop()?;
    figures
}

/// Where the packets went: through, lost at the ring at no cost, or lost behind it.
fn crossed(point: &Point) -> [(&'static str, f64); 4] {
    let counts = &point.counts;
    let ring = counts.ring_full + counts.failed;
    let behind = counts
        .received
        .saturating_sub(counts.passed + counts.sink_full);
    let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
    [
        ("delivered_pps", point.passed_pps),
        ("lost_pct", percent(ring + behind, counts.offered)),
        ("loss.ring_of_lost_pct", percent(ring, ring + behind)),
        ("loss.behind_of_lost_pct", percent(behind, ring + behind)),
    ]
}

pub(super) fn beside(
    real: &RealPackets,
    trial: &BesideTrial,
    offers: impl Iterator<Item = Offer>,
) -> Result<Vec<Figures>, Error> {
    let offers = wanted(real, UNMODIFIED, offers)?;
    let effort = effort(real);
    let site = Site::new(&effort, Family::Ipv4)?;
    let running = start_limited(&site, trial.router, trial.limit_pct)?;
    let host = site.hosts.router();
    let computing = compute_bound(host)?;
    let mut meter = host.cpu_meter()?;
    meter.watch(computing.pid());
    let one = |(offer, wanted_pps): (Offer, f64)| {
        let spec = (wanted_pps > 0.0).then(|| site.flood(wanted_pps, TIME_BOUND));
        let before = site.read()?;
        let (report, cpu) = during_flood_of(site.hosts.load(), spec.as_ref(), || {
            let before = meter.snapshot();
            interrupt::sleep(offer.window)?;
            Ok(meter.snapshot().since(&before))
        })?;
        let (mut offered_pps, mut passed_pps) = (0.0, 0.0);
        if let Some(report) = report {
            offered_pps = report.offered_pps;
            passed_pps = site.crossed_since(&before, &report)?.passed_pps;
        }
        let computed = cpu.processes.first().map(|process| process.cpu);
        let given = [
            ("delivered_pps", passed_pps),
            (
                "cpu.user_pct",
                100.0 * cpu.share(computed.unwrap_or_default()),
            ),
        ];
        let given = given.into_iter().chain(cpu_figures(HostCpu::of(&cpu)));
        Ok(offer.figures(wanted_pps, offered_pps, given))
    };
    let figures: Result<Vec<Figures>, Error> = offers.into_iter().map(one).collect();
    running.stop()?;
    figures
}
