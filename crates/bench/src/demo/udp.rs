//! The UDP flood: MLFRR first, then floods, stock and guarded in turns.

use super::document::Udp;
use super::{PROTECTIONS, Plan, in_rounds};
use crate::Error;
use crate::cases::Cases;
use crate::protection::Stage;
use crate::traffic::fixed_or_unlimited;
use crate::udp::{Run, Servers, UdpCase};

/// Everything the UDP part measured; loads are multiples of the MLFRR.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) mlfrr_pps: f64,
    pub(super) cases: Cases<f64, Run>,
}

pub(super) fn run(
    plan: &Plan,
    stage: &Stage<'_>,
    progress: &mut impl FnMut(&str),
) -> Result<Outcome, Error> {
    let servers = Servers::start(stage)?;
    progress("UDP: looking for the maximum loss-free receive rate (MLFRR)");
    let mlfrr_pps = servers.mlfrr(stage)?;
    let mut cases = Cases::new(&PROTECTIONS, &plan.flood_multiples);
    let rate_pps = |multiple: f64| mlfrr_pps * multiple;
    in_rounds(
        &mut cases,
        plan.runs,
        stage,
        progress,
        |multiple| ("UDP", format!("{:.0} packets/s", rate_pps(multiple))),
        |protector, multiple| {
            let rate_pps = rate_pps(multiple);
            let schedule = (rate_pps >= 1.0).then(|| fixed_or_unlimited(rate_pps));
            servers.flood(stage, protector, schedule, plan.window)
        },
    )?;
    Ok(Outcome { mlfrr_pps, cases })
}

impl Outcome {
    pub(super) fn summary(&self) -> Udp {
        Udp {
            mlfrr_pps: self.mlfrr_pps,
            cases: self.cases.0.iter().map(UdpCase::over).collect(),
        }
    }
}
