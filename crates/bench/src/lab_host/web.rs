//! nginx answers while SYNs flood a port that nobody uses (Druschel & Banga's figure 5).

use std::time::Duration;

use plimsoll_lab::Figures;
use plimsoll_testbed::{Config as TestbedConfig, Testbed};

use super::settings::WebTrial;
use super::{Offer, RealPackets};
use crate::Error;
use crate::protection::Stage;
use crate::traffic::RAMP_UP;
use crate::web::{OTHER_PORT, Web};

/// As of the trial whose unit it shares.
const HOLDOFF: Duration = Duration::from_micros(30);

pub(super) fn run(
    real: &RealPackets,
    trial: &WebTrial,
    offers: impl Iterator<Item = Offer>,
) -> Result<Vec<Figures>, Error> {
    let mut wanted = Vec::new();
    for offer in offers {
        let unit = || super::flood::unit(real, offer.seed, HOLDOFF);
        wanted.push((offer, offer.rate.pps(unit)?));
    }
    let testbed = Testbed::create(TestbedConfig::default())?;
    let arguments = trial.path.arguments();
    let stage = Stage {
        testbed: &testbed,
        program: &real.program,
        holdoff: HOLDOFF,
        ramp_up: RAMP_UP,
        guard_arguments: &arguments,
    };
    let web = Web::start(&stage)?;
    let one = |(offer, wanted_pps): (Offer, f64)| {
        let protector = stage.protect(trial.path.protection(), None)?;
        // The client counts in whole seconds.
        let seconds = offer.window.as_secs().max(1) as u32;
        let rate_pps = wanted_pps as u64;
        let run = web.serve(&stage, protector, OTHER_PORT, rate_pps, seconds)?;
        let given = [("http_hz", run.requests_per_s)];
        Ok(offer.figures(wanted_pps, run.offered_pps, given))
    };
    wanted.into_iter().map(one).collect()
}
