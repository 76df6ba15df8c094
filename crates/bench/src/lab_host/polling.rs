//! A web server on our stack, polled by soft timers or woken by arrivals (Aron & Druschel's
//! table XII).

use plimsoll_lab::Figures;

use super::settings::{PollingTrial, Trial};
use super::{Offer, RealPackets};
use crate::Error;
use crate::timers::{ServerRun, measure_server};

/// One server serves all points of a curve.
pub(super) fn run(
    real: &RealPackets,
    first: &PollingTrial,
    trials: &[(Trial, Offer)],
) -> Result<Vec<Figures>, Error> {
    let path = (first.path != "kernel").then_some(first.path.as_str());
    let run = measure_server(&real.program, path)?;
    let figures = trials.iter().map(|(trial, offer)| {
        let persistent = matches!(trial, Trial::Polling(trial) if trial.persistent > 0);
        offer.figures(0.0, 0.0, of(&run, persistent))
    });
    Ok(figures.collect())
}

fn of(run: &ServerRun, persistent: bool) -> [(&'static str, f64); 3] {
    let asked = match persistent {
        true => &run.persistent,
        false => &run.single,
    };
    [
        ("http_hz", asked.requests_per_second),
        ("light_p50_us", run.light.latency_p50_us),
        ("light_p99_us", run.light.latency_p99_us),
    ]
}
