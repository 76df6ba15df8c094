//! SYN floods of another port and of the server's own, while nginx serves.
//!
//! Two clients, one after the other: wrk keeps its connections busy, which
//! tells the request rate; and real clients keep opening connections on a
//! schedule of their own ([`connect`]), which tells whether anybody still gets
//! in. The flood's sources are random and answer nothing.

use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_report::{Goal, Side};
use plimsoll_testbed::connect;
use plimsoll_testbed::probe::Percentiles;
use serde::Serialize;

use super::{Bench, Measured, Part};
use crate::Error;
use crate::cases::{Case, Cases};
use crate::figures::{grouped, latency_us, percents_of, percents_of_better};
use crate::nftables::{Limit, tune};
use crate::offered::{BENEATH_A_CLIENT, Offered, Smaller};
use crate::protection::{Protection, Protector, Stage};
use crate::traffic::{during, on_load_host, syn_flood};
use crate::web::{NGINX_PORT, OTHER_PORT, Run, Web};

const RATE_PPS: u64 = 150_000;
/// Limits that are tried for the packet filter, in SYN/s.
const FILTER_PPS: [u64; 3] = [2_000, 10_000, 50_000];
/// Attempts to connect, per second.
const ATTEMPTS_PPS: u32 = 500;
/// Long enough for one repetition of a lost SYN.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the flood goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SynTarget {
    /// There is none.
    Nowhere,
    /// A server that nobody uses.
    OtherPort,
    /// The server that is measured.
    OwnPort,
}

impl SynTarget {
    const ALL: [Self; 3] = [Self::Nowhere, Self::OtherPort, Self::OwnPort];

    const fn name(self) -> &'static str {
        match self {
            Self::Nowhere => "nowhere",
            Self::OtherPort => "other port",
            Self::OwnPort => "own port",
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::Nowhere | Self::OtherPort => OTHER_PORT,
            Self::OwnPort => NGINX_PORT,
        }
    }

    const fn rate_pps(self) -> u64 {
        match self {
            Self::Nowhere => 0,
            Self::OtherPort | Self::OwnPort => RATE_PPS,
        }
    }

    /// What the packet filter limits to this rate.
    fn limit(self, rate_pps: u64) -> Limit {
        let traffic = format!("tcp dport {} tcp flags & (syn|ack) == syn", self.port());
        Limit::of_all(&traffic, rate_pps)
    }
}

/// SYN floods.
#[derive(Clone, Debug, Serialize)]
pub struct Syns {
    /// The TCP server.
    pub server: String,
    /// Flood, SYN/s asked for.
    pub rate_pps: u64,
    /// By target and protection.
    pub cases: Vec<SynsCase>,
}

/// One flood with one protection: medians over the runs; counts are their sums.
#[derive(Clone, Debug, Serialize)]
pub struct SynsCase {
    /// What stood in between.
    pub protection: Protection,
    /// Where the flood went.
    pub target: SynTarget,
    /// The packet filter's limit, SYN/s, as tuned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter_pps: Option<u64>,
    /// SYN/s that the generator achieved.
    pub offered_pps: f64,
    /// Requests answered on kept connections, per second.
    pub requests_per_s: f64,
    /// 99th percentile of their latency in microseconds, closed loop.
    pub p99_us: f64,
    /// Attempts to connect and get an answer.
    pub attempts: u64,
    /// Those that succeeded within two seconds.
    pub succeeded: u64,
    /// Median time of those, in microseconds.
    pub connect_p50_us: f64,
    /// 99th percentile of the same.
    pub connect_p99_us: f64,
}

#[derive(Debug)]
struct Runs {
    web: Run,
    clients: connect::Report,
    /// What was offered meanwhile.
    flood_of_clients_pps: f64,
}

/// Everything this part measured.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    server: String,
    /// The packet filter's, by target.
    limits: Vec<(SynTarget, Limit)>,
    cases: Cases<SynTarget, Runs>,
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Outcome, Error> {
    let (stage, plan) = (bench.stage, bench.plan);
    let web = Web::start(&stage)?;
    let mut limits = Vec::new();
    if plan.protections.contains(&Protection::Nftables) {
        for target in [SynTarget::OtherPort, SynTarget::OwnPort] {
            bench.say(Part::Syn, 1, "tuning the packet filter");
            limits.push((target, best_limit(&stage, &web, target)?));
        }
    }
    let mut cases = Cases::new(&plan.protections, &SynTarget::ALL);
    for round in 1..=plan.runs {
        for case in cases.in_round(round) {
            let what = format!("flood of {}, {}", case.load.name(), case.protection.name());
            bench.say(Part::Syn, round, &what);
            let limit = limit_for(&limits, case.load);
            let (port, rate_pps) = (case.load.port(), case.load.rate_pps());
            let protector = || stage.protect(case.protection, limit);
            let served = web.serve(&stage, protector()?, port, rate_pps, plan.seconds)?;
            let connected = connections(&stage, &web, protector()?, case.load, plan.window)?;
            case.runs.push(Runs {
                web: served,
                clients: connected.0,
                flood_of_clients_pps: connected.1,
            });
        }
    }
    Ok(Outcome {
        server: Web::version(&stage)?,
        limits,
        cases,
    })
}

fn limit_for(limits: &[(SynTarget, Limit)], target: SynTarget) -> Option<&Limit> {
    let found = limits.iter().find(|(listed, _)| *listed == target);
    found.map(|(_, limit)| limit)
}

/// The limit an operator would end up with who tried some under this flood.
fn best_limit(stage: &Stage<'_>, web: &Web, target: SynTarget) -> Result<Limit, Error> {
    let candidates = FILTER_PPS.map(|rate_pps| target.limit(rate_pps));
    tune(candidates, |limit| {
        let protector = stage.protect(Protection::Nftables, Some(limit))?;
        let run = web.serve(stage, protector, target.port(), target.rate_pps(), 1)?;
        Ok(run.requests_per_s)
    })
}

/// Real clients connect while the flood runs, which is told as well. Ends the protection.
fn connections(
    stage: &Stage<'_>,
    web: &Web,
    protector: Protector<'_>,
    target: SynTarget,
    window: Duration,
) -> Result<(connect::Report, f64), Error> {
    let config = connect::Config {
        target: web.nginx.address(),
        rate_pps: ATTEMPTS_PPS,
        duration: window,
        timeout: ATTEMPT_TIMEOUT,
        realtime: true,
    };
    let rate_pps = target.rate_pps();
    let spec = (rate_pps > 0).then(|| syn_flood(stage, target.port(), rate_pps));
    let client = || on_load_host(stage, || connect::run(&config));
    let (flood, report) = during(stage, spec.as_ref(), client)?;
    protector.stop()?;
    Ok((report, flood.map_or(0.0, |flood| flood.offered_pps)))
}

impl Measured for Outcome {
    type Section = Syns;

    fn section(&self) -> Syns {
        Syns {
            server: self.server.clone(),
            rate_pps: RATE_PPS,
            cases: self.cases.0.iter().map(|case| self.summary(case)).collect(),
        }
    }

    fn goals(&self) -> Vec<Goal> {
        let succeeded =
            |runs: &Runs| 100.0 * runs.clients.succeeded as f64 / runs.clients.attempts as f64;
        let connections = Goal::new(
            "syn/own-port/connections",
            format!("connections to guarded nginx that succeed at {RATE_PPS} SYN/s to its port"),
            Side::AtLeast,
            95.0,
            "%",
            self.cases
                .values(Protection::Guard, SynTarget::OwnPort, succeeded),
        );
        let connections = self.judge(SynTarget::OwnPort, [connections]);
        let other = self.requests_goals(SynTarget::OtherPort, 95.0);
        let own = self.requests_goals(SynTarget::OwnPort, 75.0);
        other.into_iter().chain(connections).chain(own).collect()
    }
}

impl Outcome {
    /// Requests under a flood of `target`, of the better host without one. Beside it the
    /// definition until November 2026, which a guard that is faster than stock without a
    /// flood meets too easily.
    fn requests_goals(&self, target: SynTarget, percent: f64) -> [Goal; 2] {
        let requests = |protection, target| {
            self.cases
                .values(protection, target, |runs: &Runs| runs.web.requests_per_s)
        };
        let guarded = requests(Protection::Guard, target);
        let stock = requests(Protection::Stock, SynTarget::Nowhere);
        let unflooded = requests(Protection::Guard, SynTarget::Nowhere);
        let (name, whose) = match target {
            SynTarget::OwnPort => ("own-port", "its own"),
            SynTarget::Nowhere | SynTarget::OtherPort => ("other-port", "another"),
        };
        let what = format!("guarded nginx at {RATE_PPS} SYN/s to {whose} port");
        let goal = |id, what, values| Goal::new(id, what, Side::AtLeast, percent, "%", values);
        let goals = [
            goal(
                format!("syn/{name}/requests/better"),
                format!("{what}, of stock or guarded unflooded, the better"),
                percents_of_better(&guarded, &stock, &unflooded),
            ),
            goal(
                format!("syn/{name}/requests"),
                format!("former definition: {what}, of stock unflooded"),
                percents_of(&guarded, &stock),
            ),
        ];
        self.judge(target, goals)
    }

    /// By the flood that there was.
    fn judge<const N: usize>(&self, target: SynTarget, goals: [Goal; N]) -> [Goal; N] {
        // New connections are asked for beside a flood of their own.
        let offered = |runs: &Runs| runs.web.offered_pps.min(runs.flood_of_clients_pps);
        let offered = Offered {
            asked_pps: target.rate_pps() as f64,
            runs_pps: self.cases.values(Protection::Guard, target, offered),
            least: BENEATH_A_CLIENT,
        };
        offered.judge_all(goals, Smaller::Easier)
    }

    fn summary(&self, case: &Case<SynTarget, Runs>) -> SynsCase {
        let limit = limit_for(&self.limits, case.load);
        let latency = |of: fn(&Percentiles) -> u64| {
            case.middle(|runs| latency_us(runs.clients.succeeded, of(&runs.clients.latency)))
        };
        SynsCase {
            protection: case.protection,
            target: case.load,
            filter_pps: limit
                .filter(|_| case.protection == Protection::Nftables)
                .map(|limit| limit.rate_pps),
            offered_pps: case.middle(|runs| runs.web.offered_pps),
            requests_per_s: case.middle(|runs| runs.web.requests_per_s),
            p99_us: case.middle(|runs| runs.web.p99_us),
            attempts: case.total(|runs| runs.clients.attempts),
            succeeded: case.total(|runs| runs.clients.succeeded),
            connect_p50_us: latency(|latency| latency.p50_ns),
            connect_p99_us: latency(|latency| latency.p99_ns),
        }
    }
}

impl Syns {
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "SYN flood while {} serves kept connections, then new ones; latencies of those answered\n\
             {:>10} {:>10} {:>8}{:>12}{:>9}{:>11}{:>7}{:>9}{:>10}\n",
            self.server,
            "flood of",
            "SYN/s",
            "",
            "requests/s",
            "p99 µs",
            "connected",
            "of",
            "p50 µs",
            "p99 µs"
        );
        for case in &self.cases {
            let _ = writeln!(
                text,
                "{:>10} {:>10} {:>8}{:>12}{:>9.0}{:>11}{:>7}{:>9.0}{:>10.0}",
                case.target.name(),
                grouped(case.offered_pps),
                case.protection.name(),
                grouped(case.requests_per_s),
                case.p99_us,
                case.succeeded,
                case.attempts,
                case.connect_p50_us,
                case.connect_p99_us,
            );
        }
        text
    }
}
