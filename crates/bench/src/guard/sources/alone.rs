//! Nobody but the flooded server's traffic, which nothing has to be saved from; and then
//! a bystander begins to ask another server.
//!
//! Discarding early costs CPU time that a flooded server could use itself, while the
//! ring overflows for nothing. Whoever leaves it at that has to notice the first packets
//! of others.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_report::{Goal, Side};
use plimsoll_testbed::crowd::{Client, Report};
use plimsoll_testbed::interrupt;
use serde::Serialize;

use super::{Sides, wanted};
use crate::Error;
use crate::cases::{Case, Cases};
use crate::guard::{Bench, Part};
use crate::offered::{HELD_UP, Offered, Smaller};
use crate::own_port::floods::client_address;
use crate::own_port::servers::ask_as;
use crate::protection::{Protection, Protector, Stage};
use crate::traffic::{during, fixed_or_unlimited, udp_flood};
use crate::udp::{ECHO_PORT, SINK_PORT, Servers};

pub(super) const ALONE: &str = "alone";

/// Multiples of the sink's MLFRR.
const MULTIPLES: [u32; 3] = [5, 25, 50];
/// The sink's work per packet: more than that of other parts, so that the generator
/// reaches fifty times what it can take.
const WORK: Duration = Duration::from_micros(10);
/// From the flood's beginning to the measurement: whoever adapts has adapted.
const SETTLING: Duration = Duration::from_millis(1_000);
/// The bystander's queries/s, and for how long it asks.
const BYSTANDER_QPS: f64 = 100.0;
const BYSTANDER_TIME: Duration = Duration::from_secs(3);
/// What it loses before this is the price of the change.
const TURNING: Duration = Duration::from_secs(1);

/// One flood with one protection: medians over the runs; counts are their sums.
#[derive(Clone, Debug, Serialize)]
pub struct AloneCase {
    /// What stood in between.
    pub protection: Protection,
    /// Times MLFRR that was asked for.
    pub multiple: u32,
    /// Flood, packets/s.
    pub offered_pps: f64,
    /// Delivered to the sink before the bystander came, packets/s.
    pub goodput_pps: f64,
    /// The same, of MLFRR, in percent.
    pub goodput_percent: f64,
    /// Queries of the bystander in its first second, and those not answered.
    pub first_asked: u64,
    /// Those not answered.
    pub first_lost: u64,
    /// Its later queries.
    pub later_asked: u64,
    /// Those not answered.
    pub later_lost: u64,
}

/// One run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    offered_pps: f64,
    goodput_pps: f64,
    first: Lost,
    later: Lost,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lost {
    asked: u64,
    lost: u64,
}

impl Lost {
    fn count(&mut self, answered: bool) {
        self.asked += 1;
        self.lost += u64::from(!answered);
    }

    fn percent(self) -> f64 {
        100.0 * self.lost as f64 / self.asked.max(1) as f64
    }
}

/// Everything measured here.
#[derive(Debug, Default)]
pub(super) struct Alone {
    mlfrr_pps: f64,
    cases: Cases<u32, Run>,
}

pub(super) fn run(bench: &mut Bench<'_>, sides: &Sides) -> Result<Alone, Error> {
    if !wanted(bench.plan, ALONE) {
        return Ok(Alone::default());
    }
    let (stage, plan) = (bench.stage, bench.plan);
    let servers = Servers::with_work(&stage, WORK)?;
    bench.say(Part::Sources, 1, "alone: looking for MLFRR");
    let mlfrr_pps = servers.mlfrr(&stage)?;
    let mut cases = Cases::new(&sides.alone(), &MULTIPLES);
    for round in 1..=plan.runs {
        for case in cases.in_round(round) {
            let what = format!("{ALONE}, {} × MLFRR, {}", case.load, case.protection.name());
            bench.say(Part::Sources, round, &what);
            let protector = stage.protect(case.protection, None)?;
            let rate_pps = mlfrr_pps * f64::from(case.load);
            let run = flood(&stage, &servers, protector, rate_pps, plan.window)?;
            case.runs.push(run);
        }
    }
    Ok(Alone { mlfrr_pps, cases })
}

/// Ends the protection.
fn flood(
    stage: &Stage<'_>,
    servers: &Servers,
    protector: Protector<'_>,
    rate_pps: f64,
    window: Duration,
) -> Result<Run, Error> {
    let spec = udp_flood(stage, SINK_PORT, fixed_or_unlimited(rate_pps));
    let bystander = Client {
        address: client_address(0),
        rate_qps: BYSTANDER_QPS,
    };
    let echo = SocketAddr::new(stage.host().ipv4().into(), ECHO_PORT);
    let (report, (goodput_pps, asked)) = during(stage, Some(&spec), || {
        interrupt::sleep(SETTLING)?;
        let goodput_pps = servers.goodput(window)?;
        let asked = ask_as(stage, echo, vec![bystander], BYSTANDER_TIME)?;
        Ok((goodput_pps, asked))
    })?;
    protector.stop()?;
    let (first, later) = first_and_later(&asked);
    Ok(Run {
        offered_pps: report.map_or(0.0, |report| report.offered_pps),
        goodput_pps,
        first,
        later,
    })
}

fn first_and_later(report: &Report) -> (Lost, Lost) {
    let (mut first, mut later) = (Lost::default(), Lost::default());
    for query in &report.queries {
        let lost = if query.due < TURNING {
            &mut first
        } else {
            &mut later
        };
        lost.count(query.answered_after.is_some());
    }
    (first, later)
}

impl Alone {
    pub(super) fn summaries(&self) -> Vec<AloneCase> {
        self.cases.0.iter().map(|case| self.summary(case)).collect()
    }

    fn summary(&self, case: &Case<u32, Run>) -> AloneCase {
        AloneCase {
            protection: case.protection,
            multiple: case.load,
            offered_pps: case.middle(|run| run.offered_pps),
            goodput_pps: case.middle(|run| run.goodput_pps),
            goodput_percent: case.middle(|run| self.percent(run)),
            first_asked: case.total(|run| run.first.asked),
            first_lost: case.total(|run| run.first.lost),
            later_asked: case.total(|run| run.later.asked),
            later_lost: case.total(|run| run.later.lost),
        }
    }

    fn percent(&self, run: &Run) -> f64 {
        100.0 * run.goodput_pps / self.mlfrr_pps
    }

    pub(super) fn goals(&self) -> Vec<Goal> {
        let offered = |multiple: u32| Offered {
            asked_pps: self.mlfrr_pps * f64::from(multiple),
            runs_pps: self
                .cases
                .values(Protection::Guard, multiple, |run| run.offered_pps),
            least: HELD_UP,
        };
        let goodput = MULTIPLES
            .map(|multiple| offered(multiple).judge(self.goodput(multiple), Smaller::Easier));
        let bystander = MULTIPLES
            .map(|multiple| offered(multiple).judge_all(self.bystander(multiple), Smaller::Easier));
        goodput
            .into_iter()
            .chain(bystander.into_iter().flatten())
            .collect()
    }

    fn goodput(&self, multiple: u32) -> Goal {
        let percents = self
            .cases
            .values(Protection::Guard, multiple, |run| self.percent(run));
        Goal::new(
            format!("sources/alone/{multiple}"),
            format!("guarded goodput at {multiple} × MLFRR while nobody else sends, of MLFRR"),
            Side::AtLeast,
            95.0,
            "%",
            percents,
        )
    }

    /// What a bystander loses that begins then, at first and later.
    fn bystander(&self, multiple: u32) -> [Goal; 2] {
        let first = |run: &Run| run.first.lost as f64;
        let later = |run: &Run| run.later.percent();
        let guarded =
            |value: &dyn Fn(&Run) -> f64| self.cases.values(Protection::Guard, multiple, value);
        [
            Goal::new(
                format!("sources/alone/{multiple}/begins"),
                format!(
                    "queries that a bystander of {BYSTANDER_QPS}/s loses in its first second at \
                     {multiple} × MLFRR"
                ),
                Side::AtMost,
                3.0,
                "",
                guarded(&first),
            ),
            Goal::new(
                format!("sources/alone/{multiple}/later"),
                format!("the part that it loses afterwards at {multiple} × MLFRR"),
                Side::AtMost,
                LATER_PERCENT,
                "%",
                guarded(&later),
            ),
        ]
    }
}

/// What a bystander may lose of other floods (`flood/bystander`), to the next query of
/// those that it asks later.
const LATER_PERCENT: f64 = 0.5;

#[cfg(test)]
mod tests {
    use plimsoll_testbed::crowd::Query;

    use super::*;

    #[test]
    fn losses_of_the_first_second_are_told_from_later_ones() {
        let query = |millis, answered: bool| Query {
            client: 0,
            due: Duration::from_millis(millis),
            answered_after: answered.then_some(Duration::ZERO),
        };
        let report = Report {
            queries: vec![query(0, false), query(999, true), query(1_000, false)],
            clients: 1,
            send_errors: 0,
        };
        let lost = |asked, lost| Lost { asked, lost };
        assert_eq!(first_and_later(&report), (lost(2, 1), lost(1, 1)));
        assert_eq!(lost(200, 1).percent(), 0.5);
        assert_eq!(Lost::default().percent(), 0.0);
    }
}
