//! Two RPC servers and a worker share the CPU (Druschel & Banga's table 2).

use std::time::Duration;

use plimsoll_lab::Figures;
use plimsoll_testbed::{Config as TestbedConfig, Testbed};

use super::settings::{RpcTrial, Trial};
use super::{Offer, RealPackets, of_kind};
use crate::Error;
use crate::groups::Groups;
use crate::guard::rpc::one_run;
use crate::protection::Stage;
use crate::traffic::RAMP_UP;

const HOLDOFF: Duration = Duration::from_micros(30);

pub(super) fn run(real: &RealPackets, trials: &[(Trial, Offer)]) -> Result<Vec<Figures>, Error> {
    let testbed = Testbed::create(TestbedConfig::default())?;
    let rpcs = of_kind(trials, |trial| match trial {
        Trial::Rpc(rpc) => Some(rpc),
        _ => None,
    });
    let one = |(rpc, offer)| one(real, &testbed, rpc, offer);
    rpcs.into_iter().map(one).collect()
}

fn one(
    real: &RealPackets,
    testbed: &Testbed,
    trial: &RpcTrial,
    offer: Offer,
) -> Result<Figures, Error> {
    let stage = Stage {
        testbed,
        program: &real.program,
        holdoff: HOLDOFF,
        ramp_up: RAMP_UP,
        guard_arguments: &[],
    };
    let groups = Groups::make(stage.host())?;
    let run = one_run(&stage, &groups, trial.path, trial.work_us, offer.window)?;
    let given = [
        ("cpu.worker_pct", run.worker_percent),
        ("cpu.network_pct", run.network_percent),
        ("rpc_hz", run.calls_per_s),
    ];
    Ok(offer.figures(0.0, 0.0, given))
}
