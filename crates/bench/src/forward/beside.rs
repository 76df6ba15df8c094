//! What a flood of a router leaves to others on its CPU: a compute-bound process
//! (figures 8 to 10 of Mogul & Ramakrishnan) and clients who connect to port 22.

use std::time::Duration;

use plimsoll_kernel::error::with_causes;
use plimsoll_report::median;
use plimsoll_testbed::connect;
use plimsoll_testbed::http::Nginx;
use plimsoll_testbed::interrupt;
use serde::Serialize;

use super::way::{Router, start_limited};
use crate::Error;
use crate::passing::{Effort, Family, OVERLOAD, PassingCase, PassingCounts, Site};
use crate::traffic::{TIME_BOUND, compute_bound, during_flood_of, on_cpu_of};

/// Part of the CPU that ours may take where others want it, in percent.
pub(crate) const LIMIT_PERCENT: u32 = 75;
/// What stands in for sshd.
const SSH_PORT: u16 = 22;
/// Attempts to connect, per second.
const ATTEMPTS_PPS: u32 = 100;
/// Long enough for one repetition of a lost SYN.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

/// One router with one version of IP, flooded at ten times its MLFRR.
#[derive(Clone, Debug, Serialize)]
pub struct BesideCase {
    /// The router.
    pub way: &'static str,
    /// The version of IP.
    pub family: Family,
    /// Part of the CPU that it was told to leave, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_percent: Option<u32>,
    /// What each run measured.
    pub runs: Vec<BesideRun>,
    /// Why there are fewer runs than asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// One flood.
#[derive(Clone, Debug, Serialize)]
pub struct BesideRun {
    /// What was offered, in packets per second.
    pub offered_pps: f64,
    /// What was offered, as a multiple of the MLFRR.
    pub multiple: f64,
    /// What passed, in packets per second.
    pub passed_pps: f64,
    /// The compute-bound process's part of the CPU, in percent.
    pub compute_percent: f64,
    /// Attempts to connect.
    pub ssh_attempts: u64,
    /// Those that were answered in time.
    pub ssh_answered: u64,
    /// Where the packets of the flood and of the clients went.
    pub counts: PassingCounts,
}

impl BesideRun {
    /// Answered attempts, in percent.
    pub(super) fn ssh_percent(&self) -> f64 {
        self.ssh_answered as f64 / self.ssh_attempts.max(1) as f64 * 100.0
    }
}

/// Floods the routers of `cases` that anybody would run beside other work.
pub(super) fn measure(
    effort: &Effort,
    routers: &[Router],
    cases: &[PassingCase],
    mut progress: impl FnMut(&str),
) -> Result<Vec<BesideCase>, Error> {
    let beside = [Router::Kernel, Router::Threaded, Router::Xdp, Router::User];
    let mut floods = Vec::new();
    for router in beside.into_iter().filter(|one| routers.contains(one)) {
        for case in cases.iter().filter(|case| case.way == router.name()) {
            let mlfrrs: Vec<f64> = case.runs.iter().map(|run| run.mlfrr_pps).collect();
            let mlfrr_pps = median(&mlfrrs).filter(|pps| *pps > 0.0);
            floods.push((router, mlfrr_pps, new_case(router, case)));
        }
    }
    for run in 1..=effort.runs {
        for (router, mlfrr_pps, case) in &mut floods {
            let Some(mlfrr_pps) = mlfrr_pps.filter(|_| case.why.is_none()) else {
                continue;
            };
            let family = case.family;
            progress(&format!(
                "run {run}, {}: beside {}",
                family.name(),
                case.way
            ));
            match flood(effort, *router, family, mlfrr_pps) {
                Ok(run) => case.runs.push(run),
                Err(error) if crate::passing::is_of_all(&error) => return Err(error),
                Err(error) => case.why = Some(with_causes(&error)),
            }
        }
    }
    Ok(floods.into_iter().map(|(_, _, case)| case).collect())
}

fn new_case(router: Router, case: &PassingCase) -> BesideCase {
    BesideCase {
        way: router.name(),
        family: case.family,
        left_percent: router.is_ours().then_some(100 - LIMIT_PERCENT),
        runs: Vec::new(),
        why: match case.runs.is_empty() {
            true => case.why.clone(),
            false => None,
        },
    }
}

fn flood(
    effort: &Effort,
    router: Router,
    family: Family,
    mlfrr_pps: f64,
) -> Result<BesideRun, Error> {
    let site = Site::new(effort, family)?;
    let _running = start_limited(&site, router, Some(LIMIT_PERCENT))?;
    let host = site.hosts.router();
    let ssh = Nginx::start(host, SSH_PORT)?;
    let computing = compute_bound(host)?;
    let mut meter = host.cpu_meter()?;
    meter.watch(computing.pid());
    let attempts = connect::Config {
        target: ssh.address(),
        rate_pps: ATTEMPTS_PPS,
        duration: effort.window,
        timeout: ATTEMPT_TIMEOUT,
        realtime: true,
    };
    let spec = site.flood(mlfrr_pps * OVERLOAD, TIME_BOUND);
    let before = site.read()?;
    let (report, (cpu, ssh)) = during_flood_of(site.hosts.load(), Some(&spec), || {
        let before = meter.snapshot();
        interrupt::sleep(effort.window)?;
        let cpu = meter.snapshot().since(&before);
        let client = || connect::run(&attempts);
        Ok((cpu, on_cpu_of(site.hosts.load(), client)?))
    })?;
    let report = report.expect("there is a flood");
    let crossed = site.crossed_since(&before, &report)?;
    let computed = cpu.processes.first().map(|process| process.cpu);
    Ok(BesideRun {
        offered_pps: report.offered_pps,
        multiple: report.offered_pps / mlfrr_pps,
        passed_pps: crossed.passed_pps,
        compute_percent: 100.0 * cpu.share(computed.unwrap_or_default()),
        ssh_attempts: ssh.attempts,
        ssh_answered: ssh.succeeded,
        counts: crossed.counts,
    })
}
