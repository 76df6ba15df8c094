//! The SYN flood: nginx serves while another listener is flooded.

use super::document::{Syn, SynCase};
use super::{PROTECTIONS, Plan, in_rounds};
use crate::Error;
use crate::cases::{Case, Cases};
use crate::figures::HostCpu;
use crate::protection::Stage;
use crate::web::{OTHER_PORT, Run, Web};

/// Everything the SYN part measured; loads are SYN/s.
#[derive(Debug)]
pub(super) struct Outcome {
    server: String,
    pub(super) cases: Cases<u64, Run>,
}

pub(super) fn run(
    plan: &Plan,
    stage: &Stage<'_>,
    progress: &mut impl FnMut(&str),
) -> Result<Outcome, Error> {
    let web = Web::start(stage)?;
    let mut cases = Cases::new(&PROTECTIONS, &plan.syn_rates_pps);
    in_rounds(
        &mut cases,
        plan.runs,
        stage,
        progress,
        |rate_pps| ("SYN", format!("{rate_pps} SYN/s")),
        |protector, rate_pps| web.serve(stage, protector, OTHER_PORT, rate_pps, plan.http_seconds),
    )?;
    Ok(Outcome {
        server: Web::version(stage)?,
        cases,
    })
}

impl Outcome {
    pub(super) fn summary(&self) -> Syn {
        Syn {
            server: self.server.clone(),
            cases: self.cases.0.iter().map(summary).collect(),
        }
    }
}

fn summary(case: &Case<u64, Run>) -> SynCase {
    SynCase {
        protection: case.protection,
        offered_pps: case.middle(|run| run.offered_pps),
        requests_per_s: case.middle(|run| run.requests_per_s),
        p99_us: case.middle(|run| run.p99_us),
        host_cpu: HostCpu::middle(case, |run| run.host_cpu),
    }
}
