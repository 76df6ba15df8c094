//! Files over a wide-area path (Aron & Druschel's tables X and XI).

use plimsoll_lab::Figures;
use plimsoll_report::median;

use super::settings::{Trial, WanTrial};
use super::{Offer, RealPackets, of_kind};
use crate::Error;
use crate::wan::{Plan, Transfer, measure_round};

/// All points of a curve are fetched over one path.
pub(super) fn run(real: &RealPackets, trials: &[(Trial, Offer)]) -> Result<Vec<Figures>, Error> {
    let points = of_kind(trials, |trial| match trial {
        Trial::Wan(trial) => Some(trial),
        _ => None,
    });
    let Some((first, offer)) = points.first() else {
        return Ok(Vec::new());
    };
    let plan = Plan {
        // Before each file a connection is idle for so long.
        idle: offer.window,
        ..Plan::new(real.program.clone())
    };
    let transfer = |(trial, _): &(&WanTrial, Offer)| Transfer::of(trial.packets);
    let mut transfers: Vec<Transfer> = points.iter().map(transfer).collect();
    measure_round(&plan, first.way, first.rate_mbit, &mut transfers)?;
    let figures = points.iter().zip(&transfers).map(|((_, offer), transfer)| {
        let response_ms = median(&transfer.response_ms).unwrap_or(f64::NAN);
        let given = [
            ("response_ms", response_ms),
            ("throughput_mbps", transfer.throughput().unwrap_or(f64::NAN)),
        ];
        offer.figures(0.0, 0.0, given)
    });
    Ok(figures.collect())
}
