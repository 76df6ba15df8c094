//! Two RPC servers and a worker that share the CPU (Druschel & Banga 1996,
//! section 4.2, table 2): does work for the network take the worker's share?
//!
//! Both servers always have requests outstanding and are never overloaded, so
//! nothing is lost and nothing is discarded: what is compared is the worker's
//! part of the CPU with the third that is fair. As in the paper there are three
//! amounts of work per request; "fast" is the one with most packets.
//!
//! The CPU time of softirqs belongs to nobody. Two sides ask what it takes to give it to the
//! receivers: control groups for servers and worker, without and with polling in the
//! servers' group.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use plimsoll_report::{Goal, Side};
use plimsoll_testbed::interrupt;
use plimsoll_testbed::rpc::{self, Config, Report};
use plimsoll_testbed::server::{Config as ServerConfig, Kind, Server};
use serde::{Deserialize, Serialize};

use super::{Bench, Measured, Part};
use crate::Error;
use crate::cases::{Case, Cases};
use crate::figures::grouped;
use crate::groups::Groups;
use crate::protection::{Protection, Protector, Stage};
use crate::traffic::{CALL_PORTS, CALL_TIMEOUT, compute_bound, join, on_load_host};

/// What stands between calls and servers, and who shares the CPU with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RpcSide {
    /// The kernel as it is.
    Stock,
    /// `plimsoll guard`.
    Guard,
    /// The kernel, servers in one control group and the worker in another.
    Groups,
    /// The same groups, and `plimsoll guard` that polls in the servers'.
    PollingInGroup,
}

const SIDES: [RpcSide; 4] = [
    RpcSide::Stock,
    RpcSide::Guard,
    RpcSide::Groups,
    RpcSide::PollingInGroup,
];

impl RpcSide {
    const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Guard => "guard",
            Self::Groups => "groups",
            Self::PollingInGroup => "polling in group",
        }
    }

    /// Puts it in its place.
    fn protect<'a>(self, stage: &Stage<'a>, groups: &Groups) -> Result<Protector<'a>, Error> {
        match self {
            Self::Stock | Self::Groups => stage.stock(),
            Self::Guard => stage.protect(Protection::Guard, None),
            Self::PollingInGroup => {
                let arguments = [
                    "--threaded=0".to_owned(),
                    format!("--poll-cpu={}", stage.host().cpu()),
                    format!("--poll-control-group={}", groups.servers().display()),
                ];
                stage.guard(&arguments).map(Protector::Guard)
            }
        }
    }
}

const OUTSTANDING: usize = 16;
/// The paper's three cases, whose computation it does not give.
const WORKS: [(&str, u64); 3] = [
    ("fast", RPC_WORKS_US[0]),
    ("medium", RPC_WORKS_US[1]),
    ("slow", RPC_WORKS_US[2]),
];
/// Work per request in microseconds.
pub const RPC_WORKS_US: [u64; 3] = [2, 4, 8];

/// The RPC mix.
#[derive(Clone, Debug, Serialize)]
pub struct Rpc {
    /// By work per request and protection.
    pub cases: Vec<RpcCase>,
}

/// One mix: medians over the runs.
#[derive(Clone, Debug, Serialize)]
pub struct RpcCase {
    /// What stood in between.
    pub protection: RpcSide,
    /// CPU time of the servers per request, in microseconds.
    pub work_us: u64,
    /// The worker's part of the CPU, in percent.
    pub worker_percent: f64,
    /// Network's part of the CPU, in percent.
    pub network_percent: f64,
    /// Requests answered by both servers, per second.
    pub calls_per_s: f64,
}

/// One mix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) worker_percent: f64,
    pub(crate) network_percent: f64,
    pub(crate) calls_per_s: f64,
}

/// Everything this part measured; loads are work per request in microseconds.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    cases: Cases<u64, Run, RpcSide>,
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Outcome, Error> {
    let (stage, plan) = (bench.stage, bench.plan);
    let mut cases = Cases::new(&SIDES, &plan.rpc_works_us);
    let groups = Groups::make(stage.host())?;
    for round in 1..=plan.runs {
        for case in cases.in_round(round) {
            let side = case.protection;
            let what = format!("{} µs per request, {}", case.load, side.name());
            bench.say(Part::Rpc, round, &what);
            let run = one_run(&stage, &groups, side, case.load, plan.window)?;
            case.runs.push(run);
        }
    }
    Ok(Outcome { cases })
}

/// One side's mix for `window`.
pub(crate) fn one_run(
    stage: &Stage<'_>,
    groups: &Groups,
    side: RpcSide,
    work_us: u64,
    window: Duration,
) -> Result<Run, Error> {
    let protector = side.protect(stage, groups)?;
    let in_groups = matches!(side, RpcSide::Groups | RpcSide::PollingInGroup);
    let run = mix(stage, work_us, window, in_groups.then_some(groups))?;
    protector.stop()?;
    Ok(run)
}

/// Both servers and the worker for `window`, in `groups` if there are any.
fn mix(
    stage: &Stage<'_>,
    work_us: u64,
    window: Duration,
    groups: Option<&Groups>,
) -> Result<Run, Error> {
    let serve = |port: u16| {
        let mut config = ServerConfig::new(Kind::Echo, port);
        config.work = Duration::from_micros(work_us);
        Server::start(stage.host(), stage.program, &config)
    };
    let servers = [serve(CALL_PORTS[0])?, serve(CALL_PORTS[1])?];
    let mut meter = stage.host().cpu_meter()?;
    let worker = compute_bound(stage.host())?;
    meter.watch(worker.pid());
    if let Some(groups) = groups {
        groups.take(&servers.each_ref().map(Server::pid), worker.pid())?;
    }
    thread::scope(|scope| {
        let clients = CALL_PORTS.map(|port| {
            let config = call(stage, port, window);
            scope.spawn(move || on_load_host(stage, || rpc::run(&config)))
        });
        let slept = interrupt::sleep(stage.ramp_up);
        let before = meter.snapshot();
        let slept = slept.and_then(|()| interrupt::sleep(window));
        let cpu = meter.snapshot().since(&before);
        let reports: Result<Vec<Report>, Error> = clients.map(join).into_iter().collect();
        slept?;
        let worked = cpu
            .processes
            .first()
            .map_or(Duration::ZERO, |process| process.cpu);
        Ok(Run {
            worker_percent: 100.0 * cpu.share(worked),
            network_percent: 100.0 * cpu.share(cpu.network),
            calls_per_s: reports?.iter().map(|report| report.rate_per_s).sum(),
        })
    })
}

fn call(stage: &Stage<'_>, port: u16, window: Duration) -> Config {
    Config {
        target: SocketAddr::new(stage.host().ipv4().into(), port),
        outstanding: OUTSTANDING,
        work: Duration::ZERO,
        // Before and after what is measured.
        duration: window + 2 * stage.ramp_up,
        timeout: CALL_TIMEOUT,
    }
}

impl Measured for Outcome {
    type Section = Rpc;

    fn section(&self) -> Rpc {
        Rpc {
            cases: self.cases.0.iter().map(summary).collect(),
        }
    }

    fn goals(&self) -> Vec<Goal> {
        let goal = |side, id: &str, words: &str, (name, micros): (&str, u64)| {
            Goal::new(
                format!("rpc/{id}/{name}"),
                format!(
                    "{words} the worker's part of the CPU beside two RPC servers, {micros} µs per request"
                ),
                Side::AtLeast,
                30.0,
                "%",
                self.cases.values(side, micros, |run| run.worker_percent),
            )
        };
        let goals = |(side, id, words)| WORKS.map(|work| goal(side, id, words, work));
        [
            (RpcSide::Guard, "worker", "guarded"),
            (
                RpcSide::PollingInGroup,
                "worker-in-group",
                "where polling is in the servers' group,",
            ),
        ]
        .into_iter()
        .flat_map(goals)
        .collect()
    }
}

fn summary(case: &Case<u64, Run, RpcSide>) -> RpcCase {
    RpcCase {
        protection: case.protection,
        work_us: case.load,
        worker_percent: case.middle(|run| run.worker_percent),
        network_percent: case.middle(|run| run.network_percent),
        calls_per_s: case.middle(|run| run.calls_per_s),
    }
}

impl Rpc {
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "two RPC servers and a worker share the CPU; a third is fair\n\
             {:>14} {:>17}{:>11}{:>11}{:>11}\n",
            "work/request", "", "worker", "network", "calls/s"
        );
        for case in &self.cases {
            let _ = writeln!(
                text,
                "{:>11} µs {:>17}{:>10.1}%{:>10.1}%{:>11}",
                case.work_us,
                case.protection.name(),
                case.worker_percent,
                case.network_percent,
                grouped(case.calls_per_s),
            );
        }
        text
    }
}
