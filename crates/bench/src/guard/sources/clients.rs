//! Honest overload: fifty clients at different rates, and a crowd of ten thousand.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_report::{Goal, Side, median};
use plimsoll_testbed::crowd::{Client, Report};
use serde::Serialize;

use super::shares::jain_of_max_min;
use super::{Sides, wanted};
use crate::Error;
use crate::cases::{Case, Cases};
use crate::figures::percents_of_better;
use crate::guard::{Bench, Part, Plan};
use crate::nftables::{Limit, tune};
use crate::own_port::floods::client_address;
use crate::own_port::servers::{SourcesServer, ask_as, start_echo};
use crate::protection::{Protection, Protector, Stage};
use crate::udp::ECHO_PORT;

pub(super) const CLIENTS: &str = "clients";
pub(super) const CROWD: &str = "crowd";

/// Fifty clients, the fastest asking sixty times as often as the slowest.
const COUNT: u32 = 50;
const SLOWEST_QPS: f64 = 50.0;
const FASTEST_QPS: f64 = 3_000.0;
/// Of the echo that they overload: it answers less than a third of their 37,000/s.
const CLIENTS_WORK: Duration = Duration::from_micros(50);
/// They ask so many times as long as other clients: enough for the slowest's share.
const CLIENTS_TIMES: f64 = 1.5;
/// Limits of each source that are tried for the packet filter, packets/s.
const FILTER_PPS: [u64; 3] = [200, 400, 800];

const CROWD_COUNT: u32 = 10_000;
const CROWD_QPS: f64 = 1.0;
/// Of the echo that the crowd overloads: it answers less than 5,000/s.
const CROWD_WORK: Duration = Duration::from_micros(200);
/// Long enough to see somebody starve.
const CROWD_TIME: Duration = Duration::from_secs(8);
const STARVED_S: f64 = 3.0;
/// More would make so slow a server answer later than its clients wait.
const RCVBUF_BYTES: usize = 512 << 10;

/// Fifty clients with one protection: medians over the runs; counts are their sums.
#[derive(Clone, Debug, Serialize)]
pub struct ClientsCase {
    /// What stood in between.
    pub protection: Protection,
    /// The packet filter's limit of each source, packets/s, as tuned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter_pps: Option<u64>,
    /// Their queries.
    pub asked: u64,
    /// Those answered in time.
    pub answered: u64,
    /// Jain's index of what each got relative to its max-min share.
    pub jain: f64,
    /// Answers per second to all.
    pub answers_per_s: f64,
}

/// A crowd with one protection: medians over the runs.
#[derive(Clone, Debug, Serialize)]
pub struct CrowdCase {
    /// What stood in between.
    pub protection: Protection,
    /// Queries per second.
    pub asked_per_s: f64,
    /// Answers per second.
    pub answers_per_s: f64,
    /// The longest time that any client went without an answer, in seconds.
    pub longest_without_s: f64,
    /// Clients that got no answer at all.
    pub unanswered_clients: u64,
}

/// One run of honest clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    asked: u64,
    answered: u64,
    seconds: f64,
    jain: f64,
    longest_without_s: f64,
    unanswered_clients: u64,
}

impl Run {
    fn of(report: &Report, time: Duration) -> Self {
        let tallies = report.by_client();
        let asked: Vec<f64> = tallies.iter().map(|tally| tally.asked as f64).collect();
        let got: Vec<f64> = tallies.iter().map(|tally| tally.answered as f64).collect();
        let unanswered = tallies.iter().filter(|tally| tally.answered == 0);
        let total = report.total();
        Self {
            asked: total.asked,
            answered: total.answered,
            seconds: time.as_secs_f64(),
            jain: jain_of_max_min(&asked, &got).unwrap_or(0.0),
            longest_without_s: report.longest_without().as_secs_f64(),
            unanswered_clients: unanswered.count() as u64,
        }
    }

    fn answers_per_s(&self) -> f64 {
        self.answered as f64 / self.seconds
    }
}

/// Everything measured with fifty clients.
#[derive(Debug, Default)]
pub(super) struct Clients {
    limit: Option<Limit>,
    cases: Cases<(), Run>,
}

/// Everything measured with a crowd.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    cases: Cases<(), Run>,
}

pub(super) fn run(bench: &mut Bench<'_>, sides: &Sides) -> Result<Clients, Error> {
    if !wanted(bench.plan, CLIENTS) {
        return Ok(Clients::default());
    }
    let stage = bench.stage;
    let time = clients_time(bench.plan);
    let _echo = start_echo(&stage, CLIENTS_WORK, RCVBUF_BYTES)?;
    let limit = sides
        .is_filtered()
        .then(|| limit_of_fifty(bench))
        .transpose()?;
    let cases = take_turns(bench, CLIENTS, &sides.flooded(), |protection| {
        let protector = stage.protect(protection, limit.as_ref())?;
        serve(&stage, protector, fifty(), time)
    })?;
    Ok(Clients { limit, cases })
}

/// The packet filter's limit of each source with which fifty clients share best.
fn limit_of_fifty(bench: &mut Bench<'_>) -> Result<Limit, Error> {
    let stage = bench.stage;
    bench.say(Part::Sources, 1, "fifty clients: tuning the packet filter");
    let time = clients_time(bench.plan);
    let candidates = FILTER_PPS.map(|rate_pps| SourcesServer::Echo.limit(rate_pps));
    tune(candidates, |limit| {
        let protector = stage.protect(Protection::Nftables, Some(limit))?;
        Ok(serve(&stage, protector, fifty(), time / 3)?.jain)
    })
}

fn clients_time(plan: &Plan) -> Duration {
    Duration::from_secs(plan.seconds.into()).mul_f64(CLIENTS_TIMES)
}

pub(super) fn run_crowd(bench: &mut Bench<'_>, sides: &Sides) -> Result<Crowd, Error> {
    if !wanted(bench.plan, CROWD) {
        return Ok(Crowd::default());
    }
    let stage = bench.stage;
    let _echo = start_echo(&stage, CROWD_WORK, RCVBUF_BYTES)?;
    let cases = take_turns(bench, CROWD, &sides.crowd(), |protection| {
        let protector = stage.protect(protection, None)?;
        serve(&stage, protector, crowd(), CROWD_TIME)
    })?;
    Ok(Crowd { cases })
}

fn take_turns(
    bench: &mut Bench<'_>,
    name: &str,
    protections: &[Protection],
    mut run: impl FnMut(Protection) -> Result<Run, Error>,
) -> Result<Cases<(), Run>, Error> {
    let mut cases = Cases::new(protections, &[()]);
    for round in 1..=bench.plan.runs {
        for case in cases.in_round(round) {
            let what = format!("{name}, {}", case.protection.name());
            bench.say(Part::Sources, round, &what);
            case.runs.push(run(case.protection)?);
        }
    }
    Ok(cases)
}

/// They ask for `time`. Ends the protection.
fn serve(
    stage: &Stage<'_>,
    protector: Protector<'_>,
    clients: Vec<Client>,
    time: Duration,
) -> Result<Run, Error> {
    let target = SocketAddr::new(stage.host().ipv4().into(), ECHO_PORT);
    let report = ask_as(stage, target, clients, time)?;
    protector.stop()?;
    Ok(Run::of(&report, time))
}

/// Rates in equal ratios.
fn fifty() -> Vec<Client> {
    let ratio = (FASTEST_QPS / SLOWEST_QPS).powf(1.0 / f64::from(COUNT - 1));
    let client = |number: u32| Client {
        address: client_address(number * 64),
        rate_qps: SLOWEST_QPS * ratio.powf(number.into()),
    };
    (0..COUNT).map(client).collect()
}

fn crowd() -> Vec<Client> {
    let client = |number: u32| Client {
        address: client_address(number),
        rate_qps: CROWD_QPS,
    };
    (0..CROWD_COUNT).map(client).collect()
}

impl Clients {
    pub(super) fn summaries(&self) -> Vec<ClientsCase> {
        let limit = |protection| {
            let limit = self.limit.as_ref();
            limit.filter(|_| protection == Protection::Nftables)
        };
        let summary = |case: &Case<(), Run>| ClientsCase {
            protection: case.protection,
            filter_pps: limit(case.protection).map(|limit| limit.rate_pps),
            asked: case.total(|run| run.asked),
            answered: case.total(|run| run.answered),
            jain: case.middle(|run| run.jain),
            answers_per_s: case.middle(Run::answers_per_s),
        };
        self.cases.0.iter().map(summary).collect()
    }

    pub(super) fn goals(&self) -> Vec<Goal> {
        vec![Goal::new(
            "sources/clients/jain",
            format!("Jain's index of what {COUNT} honest clients get, relative to max-min shares"),
            Side::AtLeast,
            0.98,
            "",
            self.cases.values(Protection::Guard, (), |run| run.jain),
        )]
    }
}

impl Crowd {
    pub(super) fn summaries(&self) -> Vec<CrowdCase> {
        let summary = |case: &Case<(), Run>| CrowdCase {
            protection: case.protection,
            asked_per_s: case.middle(|run| run.asked as f64 / run.seconds),
            answers_per_s: case.middle(Run::answers_per_s),
            longest_without_s: case.middle(|run| run.longest_without_s),
            unanswered_clients: median(
                &case
                    .runs
                    .iter()
                    .map(|run| run.unanswered_clients as f64)
                    .collect::<Vec<_>>(),
            )
            .unwrap_or(0.0) as u64,
        };
        self.cases.0.iter().map(summary).collect()
    }

    pub(super) fn goals(&self) -> Vec<Goal> {
        let answers = |protection| self.cases.values(protection, (), Run::answers_per_s);
        vec![
            Goal::new(
                "sources/crowd/goodput",
                format!(
                    "answers to {CROWD_COUNT} clients beyond the server's capacity, of those of \
                     stock or without fairness, the better"
                ),
                Side::AtLeast,
                95.0,
                "%",
                percents_of_better(
                    &answers(Protection::Guard),
                    &answers(Protection::Stock),
                    &answers(Protection::Unfair),
                ),
            ),
            Goal::new(
                "sources/crowd/starved",
                "the longest time that any of them goes without an answer",
                Side::AtMost,
                STARVED_S,
                "s",
                self.cases
                    .values(Protection::Guard, (), |run| run.longest_without_s),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn fifty_clients_differ_sixtyfold_and_live_in_networks_of_their_own() {
        let clients = fifty();
        let networks: HashSet<[u8; 2]> = clients
            .iter()
            .map(|client| client.address.octets())
            .map(|[first, second, ..]| [first, second])
            .collect();
        assert_eq!(networks.len(), 50);
        assert!((clients[0].rate_qps - SLOWEST_QPS).abs() < 1e-9);
        assert!((clients[49].rate_qps - FASTEST_QPS).abs() < 1e-6);
        let total: f64 = clients.iter().map(|client| client.rate_qps).sum();
        assert!((35_000.0..40_000.0).contains(&total), "{total}");
    }

    #[test]
    fn the_crowd_is_ten_thousand_addresses() {
        let addresses: HashSet<_> = crowd().iter().map(|client| client.address).collect();
        assert_eq!(addresses.len(), 10_000);
    }
}
