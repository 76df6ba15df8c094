//! The DNS flood: NSD is flooded on its own port, and its honest client asks on.

use super::document::{Dns, DnsCase};
use super::{PROTECTIONS, Plan, in_rounds};
use crate::Error;
use crate::cases::{Case, Cases};
use crate::own_port::servers::{CLIENT_QPS, Running, Served};
use crate::own_port::{SourcesFlood, SourcesServer};
use crate::protection::Stage;

/// Who floods.
const FLOOD: SourcesFlood = SourcesFlood::Networks;

/// Everything the DNS part measured; loads are queries/s of the flood.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) cases: Cases<u64, Served>,
}

pub(super) fn run(
    plan: &Plan,
    stage: &Stage<'_>,
    progress: &mut impl FnMut(&str),
) -> Result<Outcome, Error> {
    let nsd = Running::start(SourcesServer::Nsd, stage)?;
    stage.testbed.route_all()?;
    let mut cases = Cases::new(&PROTECTIONS, &plan.dns_rates_pps);
    in_rounds(
        &mut cases,
        plan.runs,
        stage,
        progress,
        |rate_qps| ("DNS", format!("{rate_qps} queries/s")),
        |protector, rate_qps| nsd.serve(stage, protector, FLOOD, rate_qps, plan.http_seconds),
    )?;
    Ok(Outcome { cases })
}

impl Outcome {
    pub(super) fn summary(&self) -> Dns {
        Dns {
            queries_per_s: CLIENT_QPS,
            flood: FLOOD.words(),
            cases: self.cases.0.iter().map(summary).collect(),
        }
    }
}

fn summary(case: &Case<u64, Served>) -> DnsCase {
    DnsCase {
        protection: case.protection,
        offered_pps: case.middle(|run| run.offered_pps),
        asked: case.total(|run| run.asked),
        answered: case.total(|run| run.answered),
        answered_per_s: case.middle(Served::answered_per_s),
        answers_per_s: case.middle(|run| run.answers_per_s.unwrap_or(f64::NAN)),
    }
}
