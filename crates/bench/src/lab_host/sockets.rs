//! The flood of one socket of the user-space stack: the kernels that Druschel & Banga
//! compared, as receive paths of one program on AF_XDP.

use std::time::Duration;

use plimsoll_lab::Figures;
use plimsoll_testbed::server::Kind;

use super::settings::SocketsTrial;
use super::{Offer, RealPackets};
use crate::Error;
use crate::mlfrr::Bounds;
use crate::stack::{Answers, Effort, PORT, Running, Side, Site, Task};

/// The path whose highest rate without loss is the unit: as in 4.4BSD.
const UNMODIFIED: Side = Side::Eager;

pub(super) fn run(
    real: &RealPackets,
    trial: &SocketsTrial,
    offers: impl Iterator<Item = Offer>,
) -> Result<Vec<Figures>, Error> {
    let work = Duration::from_micros(trial.work_us);
    let effort = Effort::new(real.program.clone());
    let offers: Vec<Offer> = offers.collect();
    // Before the hosts are made that are measured.
    let wanted = offers.iter().map(|offer| {
        let name = format!("{}, {work:?} of work", UNMODIFIED.name());
        let search = |bounds| loss_free(&effort, work, bounds);
        offer
            .rate
            .pps(|| real.unit(name, offer.seed, bounds(work), search))
    });
    let wanted = wanted.collect::<Result<Vec<f64>, Error>>()?;
    let site = Site::new(&effort, Answers::Received)?;
    let running = Running::start(&site, trial.path, &Task::new(Kind::Sink, work), PORT)?;
    let one = |(offer, wanted_pps): (Offer, f64)| {
        let point = site.overload(&running, Kind::Sink, (0.0, wanted_pps), offer.window)?;
        let given = [("consumer.sink.delivered_pps", point.passed_pps)];
        Ok(offer.figures(wanted_pps, point.offered_pps, given))
    };
    let figures: Result<Vec<Figures>, Error> = offers.into_iter().zip(wanted).map(one).collect();
    running.stop()?;
    figures
}

/// Far below what the work alone allows, up to a little above it.
fn bounds(work: Duration) -> Bounds {
    Bounds {
        lowest_pps: 10_000,
        highest_pps: (1.05 / work.as_secs_f64().max(1e-6)) as u64,
        steps: 7,
    }
}

/// What the unmodified path takes without loss, as the lab has it, 1 percent: this path
/// loses one in a thousand whenever the machine pauses, at any rate.
fn loss_free(effort: &Effort, work: Duration, bounds: Bounds) -> Result<f64, Error> {
    let site = Site::new(effort, Answers::Received)?;
    let running = Running::start(&site, UNMODIFIED, &Task::new(Kind::Sink, work), PORT)?;
    let rate_pps = site.nearly_loss_free(&running, Kind::Sink, bounds)?;
    running.stop()?;
    Ok(rate_pps)
}
