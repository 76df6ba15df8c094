//! The flood of one socket, with another server probed meanwhile (Druschel & Banga's
//! figures 3 and 4; with other holdoffs Macpherson & Heiser's figures 4 and 7).

use std::time::Duration;

use plimsoll_lab::Figures;
use plimsoll_testbed::blast::Schedule;
use plimsoll_testbed::{Config as TestbedConfig, Testbed};

use super::settings::FloodTrial;
use super::{Offer, RealPackets, cpu_figures};
use crate::Error;
use crate::protection::Stage;
use crate::traffic::RAMP_UP;
use crate::udp::{MLFRR_BOUNDS, Run, Servers};

pub(super) fn run(
    real: &RealPackets,
    trial: &FloodTrial,
    offers: impl Iterator<Item = Offer>,
) -> Result<Vec<Figures>, Error> {
    let testbed = Testbed::create(TestbedConfig::default())?;
    let arguments = trial.path.arguments();
    let stage = Stage {
        testbed: &testbed,
        program: &real.program,
        holdoff: Duration::from_micros(trial.holdoff_us),
        ramp_up: RAMP_UP,
        guard_arguments: &arguments,
    };
    let work = Duration::from_micros(trial.work_us);
    let servers = Servers::with_work(&stage, work)?;
    let unit_stage = Stage {
        holdoff: Duration::from_micros(trial.unit_holdoff_us.unwrap_or(trial.holdoff_us)),
        ..stage
    };
    let one = |offer: Offer| {
        let name = format!(
            "sink, {work:?} of work, {:?} of holdoff",
            unit_stage.holdoff
        );
        let search = |bounds| Ok(servers.mlfrr_within(&unit_stage, bounds)?.unwrap_or(0.0));
        let unit = || real.unit(name, offer.seed, MLFRR_BOUNDS, search);
        let wanted_pps = offer.rate.pps(unit)?;
        let protector = stage.protect(trial.path.protection(), None)?;
        let rate_pps = wanted_pps as u64;
        let schedule = (rate_pps > 0).then_some(Schedule::Fixed { rate_pps });
        let run = servers.flood(&stage, protector, schedule, offer.window)?;
        Ok(figures_of(offer, wanted_pps, &run))
    };
    offers.map(one).collect()
}

/// The unit of others that flood the same host otherwise.
pub(super) fn unit(real: &RealPackets, seed: u64, holdoff: Duration) -> Result<f64, Error> {
    let name = format!("sink, {:?} of work, {holdoff:?} of holdoff", Duration::ZERO);
    real.unit(name, seed, MLFRR_BOUNDS, |bounds| {
        let testbed = Testbed::create(TestbedConfig::default())?;
        let stage = Stage {
            testbed: &testbed,
            program: &real.program,
            holdoff,
            ramp_up: RAMP_UP,
            guard_arguments: &[],
        };
        let servers = Servers::with_work(&stage, Duration::ZERO)?;
        Ok(servers.mlfrr_within(&stage, bounds)?.unwrap_or(0.0))
    })
}

/// By the names the modelled host uses.
fn figures_of(offer: Offer, wanted_pps: f64, run: &Run) -> Figures {
    let seconds = offer.window.as_secs_f64();
    let (bystander, losses) = (&run.bystander, &run.losses);
    let answered = (bystander.sent - bystander.lost) as f64 / seconds;
    let part = |count: u64| 100.0 * count as f64 / losses.offered.max(1) as f64;
    let given = [
        ("consumer.sink.delivered_pps", run.goodput_pps),
        ("consumer.echo.delivered_pps", answered),
        ("source.probe.lost_pps", bystander.lost as f64 / seconds),
        ("source.probe.lost_pct", 100.0 * bystander.loss()),
        ("consumer.echo.latency_p50_us", bystander.p50_us),
        ("consumer.echo.latency_p99_us", bystander.p99_us),
        ("loss.interface_part_pct", part(losses.receive_ring)),
        ("loss.early-discard_part_pct", part(losses.early_discard)),
        ("loss.socket-queue_part_pct", part(losses.socket_queue)),
    ];
    let given = given.into_iter().chain(cpu_figures(run.host_cpu));
    offer.figures(wanted_pps, run.offered_pps, given)
}
