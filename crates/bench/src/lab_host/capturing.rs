//! Packets that a monitor records (Mogul & Ramakrishnan's figure 15).

use std::path::Path;

use plimsoll_lab::Figures;

use super::settings::CaptureTrial;
use super::{Offer, RealPackets};
use crate::Error;
use crate::capture::{Plan, Sink, Site, Tool};
use crate::passing::{BOUNDS, Family};

/// The monitor whose peak is the unit, to null.
const UNMODIFIED: Tool = Tool::Tcpdump;
/// The peak is looked for at these rates.
const LADDER_FROM_PPS: f64 = 100_000.0;
const LADDER_STEP: f64 = 1.5;
const LADDER_STEPS: usize = 8;

pub(super) fn run(
    real: &RealPackets,
    trial: &CaptureTrial,
    offers: impl Iterator<Item = Offer>,
) -> Result<Vec<Figures>, Error> {
    let place = tempfile::tempdir().map_err(|source| Error::Traffic {
        action: "make a directory for files",
        source,
    })?;
    let one = |offer: Offer| {
        let plan = Plan {
            window: offer.window,
            ..Plan::new(real.program.clone())
        };
        let wanted_pps = offer
            .rate
            .pps(|| unit(real, &plan, offer.seed, place.path()))?;
        let site = Site::new(
            &plan,
            (Family::Ipv4, trial.monitor, trial.sink),
            place.path(),
        )?;
        figures(&site, offer, wanted_pps)
    };
    offers.map(one).collect()
}

/// The most that the unmodified monitor records at any rate.
fn unit(real: &RealPackets, plan: &Plan, seed: u64, place: &Path) -> Result<f64, Error> {
    real.unit("monitor, tcpdump".to_owned(), seed, BOUNDS, |_| {
        let site = Site::new(plan, (Family::Ipv4, UNMODIFIED, Sink::Null), place)?;
        let rates = std::iter::successors(Some(LADDER_FROM_PPS), |rate| Some(rate * LADDER_STEP));
        let mut peak: f64 = 0.0;
        for rate_pps in rates.take(LADDER_STEPS) {
            let (report, recorded, _) = site.trial(rate_pps)?;
            peak = peak.max(recorded as f64 / report.elapsed_s.max(f64::EPSILON));
        }
        Ok(peak)
    })
}

/// What was recorded, and where the rest was lost: at the ring at no cost, or behind it.
fn figures(site: &Site<'_>, offer: Offer, wanted_pps: f64) -> Result<Figures, Error> {
    let (report, recorded, _) = site.trial(wanted_pps)?;
    let ring = report.ring_full + report.failed;
    let lost = report.offered.saturating_sub(recorded);
    let behind = lost.saturating_sub(ring);
    let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
    let given = [
        (
            "delivered_pps",
            recorded as f64 / report.elapsed_s.max(f64::EPSILON),
        ),
        ("lost_pct", percent(lost, report.offered)),
        ("loss.ring_of_lost_pct", percent(ring, ring + behind)),
        ("loss.behind_of_lost_pct", percent(behind, ring + behind)),
    ];
    Ok(offer.figures(wanted_pps, report.offered_pps, given))
}
