//! A real DNS server during UDP floods: of another server, of a port that nobody
//! listens on, and of its own port.
//!
//! NSD answers dnsperf. A flood of its own port consists of valid queries from
//! random addresses: on one socket nobody can tell them from dnsperf's, so what
//! is promised is that NSD as a whole goes on answering as fast as the limit
//! allows. Its answers are counted as what its interface sends.

use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_report::{Goal, Side};
use plimsoll_testbed::blast::{Priority, Schedule, Spec, Transport};
use plimsoll_testbed::dns::{DnsLoad, DnsResult, Nsd, query, run_dnsperf};
use serde::Serialize;

use super::{Base, Bench, Measured, Part};
use crate::Error;
use crate::cases::{Case, Cases};
use crate::figures::grouped;
use crate::offered::{BENEATH_A_CLIENT, Offered, Smaller};
use crate::own_port::servers::{CAPACITY_RATES_PPS, DNS_PORT, QUERY_TIMEOUT};
use crate::protection::{Protection, Protector, Stage};
use crate::traffic::{counting_answers, during, flood};
use crate::udp::{SINK_PORT, start_sink};

const SIDES: [Protection; 2] = [Protection::Stock, Protection::Guard];
/// Nobody listens here.
const CLOSED_PORT: u16 = 5353;
const RATE_PPS: u64 = 1_000_000;
const QUERIES_PER_S: u32 = 5_000;

/// Where the flood goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DnsTarget {
    /// There is none.
    Nowhere,
    /// Another server, a sink.
    OtherServer,
    /// A port that nobody listens on.
    ClosedPort,
    /// The server that is measured.
    OwnPort,
}

impl DnsTarget {
    const ALL: [Self; 4] = [
        Self::Nowhere,
        Self::OtherServer,
        Self::ClosedPort,
        Self::OwnPort,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Nowhere => "nowhere",
            Self::OtherServer => "another",
            Self::ClosedPort => "closed",
            Self::OwnPort => "own port",
        }
    }
}

/// A DNS server during floods.
#[derive(Clone, Debug, Serialize)]
pub struct Dns {
    /// The highest answer rate of the stock server that was seen, per second.
    pub answers_max_per_s: f64,
    /// Queries that the load tool asks per second.
    pub queries_per_s: u32,
    /// By target and protection.
    pub cases: Vec<DnsCase>,
}

/// One flood with one protection: medians over the runs; counts are their sums.
#[derive(Clone, Debug, Serialize)]
pub struct DnsCase {
    /// What stood in between.
    pub protection: Protection,
    /// Where the flood went.
    pub target: DnsTarget,
    /// Flood, packets/s.
    pub offered_pps: f64,
    /// Queries of the load tool.
    pub sent: u64,
    /// Those not answered within half a second.
    pub lost: u64,
    /// Its answered queries per second.
    pub completed_per_s: f64,
    /// Mean latency of those, in microseconds.
    pub latency_mean_us: f64,
    /// All answers of the server, to anybody, per second.
    pub answers_per_s: f64,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    offered_pps: f64,
    result: DnsResult,
    answers_per_s: f64,
}

impl Run {
    fn lost(&self) -> u64 {
        self.result.sent - self.result.completed.min(self.result.sent)
    }
}

/// Everything this part measured.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    answers_max_per_s: f64,
    base: Base,
    cases: Cases<DnsTarget, Run>,
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Outcome, Error> {
    let base = bench.base()?;
    let (stage, plan) = (bench.stage, bench.plan);
    let _sink = start_sink(&stage)?;
    let nsd = Nsd::start(stage.host(), DNS_PORT)?;
    bench.say(Part::Dns, 1, "looking for NSD's highest answer rate");
    let mut answers_max_per_s: f64 = 0.0;
    for rate_pps in CAPACITY_RATES_PPS {
        let answers = answer_rate(&stage, rate_pps, plan.window)?;
        answers_max_per_s = answers_max_per_s.max(answers);
    }
    let mut cases = Cases::new(&SIDES, &DnsTarget::ALL);
    for round in 1..=plan.runs {
        for case in cases.in_round(round) {
            let what = format!("flood of {}, {}", case.load.name(), case.protection.name());
            bench.say(Part::Dns, round, &what);
            let protector = stage.protect(case.protection, None)?;
            case.runs
                .push(serve(&stage, &nsd, protector, case.load, plan.seconds)?);
        }
    }
    Ok(Outcome {
        answers_max_per_s,
        base,
        cases,
    })
}

/// NSD's answers per second on the stock host at this rate of queries.
fn answer_rate(stage: &Stage<'_>, rate_pps: u64, window: Duration) -> Result<f64, Error> {
    stage.stock()?;
    let spec = queries(stage, DNS_PORT, rate_pps);
    let (_, answers) = during(stage, Some(&spec), || {
        let (_, answers) = counting_answers(stage.host(), || {
            Ok(plimsoll_testbed::interrupt::sleep(window)?)
        })?;
        Ok(answers)
    })?;
    Ok(answers)
}

/// Valid queries from random addresses.
fn queries(stage: &Stage<'_>, port: u16, rate_pps: u64) -> Spec {
    let payload = query(0);
    let schedule = Schedule::Fixed { rate_pps };
    let mut spec = flood(stage, port, Transport::Udp { payload }, schedule);
    // The client shares this CPU and must not be what limits the server.
    spec.priority = Priority::Idle;
    spec
}

fn serve(
    stage: &Stage<'_>,
    nsd: &Nsd,
    protector: Protector<'_>,
    target: DnsTarget,
    seconds: u32,
) -> Result<Run, Error> {
    let spec = match target {
        DnsTarget::Nowhere => None,
        DnsTarget::OtherServer => Some(queries(stage, SINK_PORT, RATE_PPS)),
        DnsTarget::ClosedPort => Some(queries(stage, CLOSED_PORT, RATE_PPS)),
        DnsTarget::OwnPort => Some(queries(stage, DNS_PORT, RATE_PPS)),
    };
    let load = DnsLoad {
        rate_qps: QUERIES_PER_S,
        seconds,
        timeout: QUERY_TIMEOUT,
    };
    let (flood, (result, answers_per_s)) = during(stage, spec.as_ref(), || {
        counting_answers(stage.host(), || {
            Ok(run_dnsperf(stage.testbed.load(), nsd.address(), load)?)
        })
    })?;
    protector.stop()?;
    Ok(Run {
        offered_pps: flood.map_or(0.0, |report| report.offered_pps),
        result,
        answers_per_s,
    })
}

impl Measured for Outcome {
    type Section = Dns;

    fn section(&self) -> Dns {
        Dns {
            answers_max_per_s: self.answers_max_per_s,
            queries_per_s: QUERIES_PER_S,
            cases: self.cases.0.iter().map(summary).collect(),
        }
    }

    fn goals(&self) -> Vec<Goal> {
        let guarded = |target, value: &dyn Fn(&Run) -> f64| {
            self.cases.values(Protection::Guard, target, value)
        };
        let lost = |run: &Run| 100.0 * run.lost() as f64 / run.result.sent.max(1) as f64;
        let limits = guarded(DnsTarget::OwnPort, &|run| self.limit(run));
        let judged = |target: DnsTarget, goal: Goal| {
            let offered = Offered {
                asked_pps: RATE_PPS as f64,
                runs_pps: guarded(target, &|run| run.offered_pps),
                least: BENEATH_A_CLIENT,
            };
            offered.judge(goal, Smaller::Easier)
        };
        let loss = |id: &str, target: DnsTarget, what: &str| {
            let goal = Goal::new(
                format!("dns/{id}/loss"),
                format!("queries that guarded NSD loses at {RATE_PPS} packets/s to {what}"),
                Side::AtMost,
                0.1,
                "%",
                guarded(target, &lost),
            );
            judged(target, goal)
        };
        let own_port = Goal::new(
            "dns/own-port/answers",
            format!(
                "answers of guarded NSD at {RATE_PPS} queries/s to its own port, of the limit \
                 (highest rate × (1 − offered / discard capacity))"
            ),
            Side::AtLeast,
            90.0,
            "%",
            guarded(DnsTarget::OwnPort, &|run| {
                100.0 * run.answers_per_s / self.limit(run)
            }),
        );
        vec![
            loss("other-server", DnsTarget::OtherServer, "another server"),
            loss("closed-port", DnsTarget::ClosedPort, "a closed port"),
            if limits.iter().all(|limit| *limit > 0.0) {
                judged(DnsTarget::OwnPort, own_port)
            } else {
                own_port.because("the limit is 0: the discard capacity is below the offered rate")
            },
        ]
    }
}

impl Outcome {
    /// Answers per second, if all that a run's flood leaves of the server's CPU went to them.
    fn limit(&self, run: &Run) -> f64 {
        self.answers_max_per_s * self.base.limit_pps(run.offered_pps) / self.base.mlfrr_pps
    }
}

fn summary(case: &Case<DnsTarget, Run>) -> DnsCase {
    DnsCase {
        protection: case.protection,
        target: case.load,
        offered_pps: case.middle(|run| run.offered_pps),
        sent: case.total(|run| run.result.sent),
        lost: case.total(Run::lost),
        completed_per_s: case.middle(|run| run.result.queries_per_s),
        latency_mean_us: case.middle(|run| run.result.latency_mean_us),
        answers_per_s: case.middle(|run| run.answers_per_s),
    }
}

impl Dns {
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "NSD answers {} dnsperf queries/s during UDP floods; at most {} answers/s were seen\n\
             {:>10} {:>10} {:>6}{:>12}{:>9}{:>9}{:>10}{:>12}\n",
            self.queries_per_s,
            grouped(self.answers_max_per_s),
            "flood of",
            "offered/s",
            "",
            "completed/s",
            "lost",
            "of",
            "mean µs",
            "answers/s",
        );
        for case in &self.cases {
            let _ = writeln!(
                text,
                "{:>10} {:>10} {:>6}{:>12}{:>9}{:>9}{:>10.0}{:>12}",
                case.target.name(),
                grouped(case.offered_pps),
                case.protection.name(),
                grouped(case.completed_per_s),
                case.lost,
                case.sent,
                case.latency_mean_us,
                grouped(case.answers_per_s),
            );
        }
        text
    }
}
