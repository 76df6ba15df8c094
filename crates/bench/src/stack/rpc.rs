//! Calls and computing on one CPU (LRP's table 2): two servers that always have calls, and a
//! worker that only computes. A third of the CPU is fair for each.
//!
//! The servers are two endpoints of one process with a thread each, since a queue of an
//! interface has one owner. On the kernel's sockets they are the same process.
//!
//! The CPU time of softirqs belongs to nobody. So some ways are measured once more in control
//! groups: two thirds of the CPU for the servers, one for the worker. There the kernel polls for
//! our stack in a thread of the servers' group, which then pays for all of its receiving.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use plimsoll_testbed::interrupt;
use plimsoll_testbed::rpc::{self, Config, Report};
use plimsoll_testbed::server::{Kind, Server, Threaded};
use serde::Serialize;

use super::site::{Answers, Site};
use super::turns::{SideCase, in_turns};
use super::{Effort, Plan, Side};
use crate::Error;
use crate::groups::Groups;
use crate::traffic::{CALL_PORTS, CALL_TIMEOUT, RAMP_UP, compute_bound, join, on_cpu_of};

/// So many that a server never waits for its client.
const OUTSTANDING: usize = 64;
/// Two amounts: many packets, and few.
pub(super) const WORKS_US: [u64; 2] = [2, 8];
/// Some hundred turns of the scheduler.
const WINDOW: Duration = Duration::from_secs(2);
/// Of three.
const FAIR_PERCENT: f64 = 100.0 / 3.0;
const WAYS: [Way; 7] = [
    Way::Alike(Side::Kernel),
    Way::Alike(Side::NiLrp),
    Way::Alike(Side::SoftLrp),
    Way::Alike(Side::Polled),
    Way::InGroups(Side::Kernel),
    Way::InGroups(Side::NiLrp),
    Way::InGroups(Side::SoftLrp),
];

/// Who serves, and who shares the CPU with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Each thread for itself.
    Alike(Side),
    /// The servers in one control group, the worker in another.
    InGroups(Side),
}

impl Way {
    const fn side(self) -> Side {
        match self {
            Self::Alike(side) | Self::InGroups(side) => side,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Alike(side) => side.name(),
            Self::InGroups(Side::NiLrp) => "ni-lrp, in groups",
            Self::InGroups(Side::SoftLrp) => "soft-lrp, in groups",
            Self::InGroups(_) => "kernel, in groups",
        }
    }
}

/// One amount of work per call.
#[derive(Clone, Debug, Serialize)]
pub struct RpcWork {
    /// CPU time that each call asks for, in microseconds.
    pub work_us: u64,
    /// By side.
    pub cases: Vec<SideCase<RpcRun>>,
}

/// One mix.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RpcRun {
    /// The worker's part of the CPU, in percent.
    pub worker_percent: f64,
    /// Answered calls of each server, per second.
    pub calls_per_s: [f64; 2],
    /// Calls that were given up.
    pub lost: u64,
}

impl RpcRun {
    /// How far the one farthest from its third is from it, in points. What the worker leaves
    /// is divided between the servers by their calls, which are all alike.
    pub(super) fn error_points(&self) -> f64 {
        let calls: f64 = self.calls_per_s.iter().sum();
        let served = 100.0 - self.worker_percent;
        let servers = self
            .calls_per_s
            .map(|of_one| served * of_one / calls.max(f64::EPSILON));
        let shares = servers.into_iter().chain([self.worker_percent]);
        shares.fold(0.0, |worst, share| (share - FAIR_PERCENT).abs().max(worst))
    }
}

pub(super) fn measure(plan: &Plan, progress: &mut impl FnMut(&str)) -> Result<Vec<RpcWork>, Error> {
    let ways = WAYS.into_iter();
    let ways = ways.filter(|way| plan.sides.contains(&way.side()));
    let ways: Vec<Way> = ways.collect();
    let mut works = Vec::new();
    for work_us in WORKS_US {
        let part = format!("calls of {work_us} µs");
        let cases = in_turns(plan, (&part, &ways), Way::name, progress, |way| {
            one_run(&plan.effort, way, work_us)
        })?;
        works.push(RpcWork { work_us, cases });
    }
    Ok(works)
}

fn one_run(effort: &Effort, way: Way, work_us: u64) -> Result<RpcRun, Error> {
    let site = Site::new(effort, Answers::Received)?;
    let host = site.testbed.test();
    let groups = match way {
        Way::Alike(_) => None,
        Way::InGroups(_) => Some(Groups::make(host)?),
    };
    let mut config = site.udp_server(way.side(), Kind::Rpc, CALL_PORTS[0]);
    config.bystander = Some(CALL_PORTS[1]);
    if let Some(groups) = groups.as_ref().filter(|_| way.side() != Side::Kernel) {
        config.threaded = Some(Threaded::Beneath(0));
        config.poll_control_group = Some(groups.servers().to_owned());
    }
    let server = Server::start(host, site.program(), &config)?;
    let mut meter = host.cpu_meter()?;
    let worker = compute_bound(host)?;
    meter.watch(worker.pid());
    if let Some(groups) = &groups {
        groups.take(&[server.pid()], worker.pid())?;
    }
    let run = thread::scope(|scope| {
        let clients = CALL_PORTS.map(|port| {
            let config = Config {
                target: SocketAddr::new(host.ipv4().into(), port),
                outstanding: OUTSTANDING,
                work: Duration::from_micros(work_us),
                // Before and after what is measured.
                duration: WINDOW + 2 * RAMP_UP,
                timeout: CALL_TIMEOUT,
            };
            let load = site.testbed.load();
            scope.spawn(move || on_cpu_of(load, || rpc::run(&config)))
        });
        let slept = interrupt::sleep(RAMP_UP);
        let before = meter.snapshot();
        let slept = slept.and_then(|()| interrupt::sleep(WINDOW));
        let cpu = meter.snapshot().since(&before);
        let [one, other] = clients.map(join);
        slept?;
        let reports: [Report; 2] = [one?, other?];
        let worked = cpu.processes.first();
        let worked = worked.map_or(Duration::ZERO, |process| process.cpu);
        Ok::<_, Error>(RpcRun {
            worker_percent: 100.0 * cpu.share(worked),
            calls_per_s: reports.each_ref().map(|report| report.rate_per_s),
            lost: reports.iter().map(|report| report.lost).sum(),
        })
    })?;
    drop(worker);
    server.stop()?;
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_farthest_from_a_third_counts() {
        let run = |worker_percent, calls_per_s| RpcRun {
            worker_percent,
            calls_per_s,
            lost: 0,
        };
        let error = |run: RpcRun| (run.error_points() * 10.0).round() / 10.0;
        assert_eq!(error(run(100.0 / 3.0, [10.0, 10.0])), 0.0);
        assert_eq!(error(run(30.0, [10.0, 10.0])), 3.3);
        assert_eq!(error(run(40.0, [20.0, 10.0])), 13.3);
        assert_eq!(error(run(90.0, [0.0, 0.0])), 56.7);
    }
}
