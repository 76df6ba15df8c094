//! One run of a set-up, on hosts of its own.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_kernel::error::with_causes;
use plimsoll_testbed::blast::{Priority, Report, Spec, Transport};
use plimsoll_testbed::http::Nginx;
use plimsoll_testbed::{Config as TestbedConfig, Testbed, interrupt, tunnel};

use super::Plan;
use super::setup::{self, Load, Setup, Site};
use super::traffic::{self, Counted, Flow, Receiver};
use crate::Error;
use crate::protection::{Protection, Stage};
use crate::traffic::{RAMP_UP, during, fixed_or_unlimited, syn_flood, udp_flood};
use crate::udp::{SINK_PORT, SINK_WORK, start_working_sink};

/// The rate at which a masquerading gateway once lost two thirds: 500 Mbit/s.
const CALM_PPS: u64 = 44_600;
/// Beside a flood the sender shares its CPU with the generator.
const FLOODED_PPS: u64 = 5_000;
/// So many times the floods' rate is more than a CPU forwards.
const FORWARDED_TIMES: u64 = 3;
/// SYNs to a web server's own port, where no client of a plain veth once got in.
const SYN_PPS: u64 = 100_000;
/// A flooded server wants so many CPUs at the plan's rate: whatever that is, it has none left.
const SINK_CPUS: f64 = 2.0;
const SINK_WORK_MAX: Duration = Duration::from_millis(1);
const HOLDOFF: Duration = Duration::from_micros(30);
const TCP_PORT: u16 = 5201;

/// What one run measured.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) counted: Counted,
    /// Why it was not whole, with the guard.
    pub(super) broke_off: Option<String>,
    pub(super) flood_pps: Option<f64>,
}

/// One run on hosts of its own, calm or beside a flood of this rate.
pub(super) fn once(
    plan: &Plan,
    setup: &Setup,
    protection: Protection,
    flood_pps: Option<u64>,
) -> Result<Run, Error> {
    let testbed = Testbed::create(TestbedConfig::default())?;
    let stage = Stage {
        testbed: &testbed,
        program: &plan.program,
        holdoff: HOLDOFF,
        ramp_up: RAMP_UP,
        guard_arguments: &[],
    };
    // The placement is proved by packets, which need the host as it was made.
    stage.stock()?;
    let sink = flood_pps.map(|_| start_working_sink(&stage, sink_work(plan)));
    let sink = sink.transpose()?;
    let behind = testbed.add_host_behind()?;
    let site = Site {
        testbed: &testbed,
        behind,
    };
    setup.prepare(&site)?;
    let nginx = matches!(setup.load, Load::Web).then(|| Nginx::start(stage.host(), TCP_PORT));
    let _nginx = nginx.transpose()?;
    let guard = stage.guard_as_it_is(protection)?;
    let _passing = (protection == Protection::PassAll)
        .then(|| stage.host().pass_all())
        .transpose()?;
    let flood = flood(setup, &stage, flood_pps);
    let before = traffic::frames_come(&site.behind)?;
    let (report, counted) = during(&stage, flood.as_ref(), || {
        match cross(plan, setup, &site, flood_pps.is_some()) {
            Err(error) if is_harm(protection, &error) => Ok(Err(with_causes(&error))),
            counted => counted.map(Ok),
        }
    })?;
    let (counted, broke_off) = match counted {
        Ok(counted) => {
            let report = report.as_ref();
            (of_all(setup, &site, (report, before), counted)?, None)
        }
        Err(why) => (Counted::default(), Some(why)),
    };
    guard
        .map(crate::guard_process::GuardProcess::stop)
        .transpose()?;
    drop(sink);
    Ok(Run {
        counted,
        broke_off,
        flood_pps: report.map(|report| report.offered_pps),
    })
}

/// All of a download, from its first datagram to its last; anything else as it was `counted`.
fn of_all(
    setup: &Setup,
    site: &Site<'_>,
    (report, before): (Option<&Report>, u64),
    counted: Counted,
) -> Result<Counted, Error> {
    match (setup.load, report) {
        (Load::Download, Some(report)) => Ok(Counted {
            sent: report.offered - report.failed,
            received: traffic::come_since(&site.behind, before)?,
        }),
        _ => Ok(counted),
    }
}

/// The rate of a flood that a full router or a web server is sent. That of another socket, and of
/// a download, is searched.
pub(super) const fn own_flood_pps(plan: &Plan, setup: &Setup) -> Option<u64> {
    match setup.load {
        Load::Forwarded { .. } => Some(FORWARDED_TIMES * plan.flood_pps),
        Load::Web => Some(SYN_PPS),
        _ => None,
    }
}

/// What the flooded server does with a packet: the plan's rate is more than it can take.
fn sink_work(plan: &Plan) -> Duration {
    let work = Duration::from_secs_f64(SINK_CPUS / plan.flood_pps.max(1) as f64);
    work.clamp(SINK_WORK, SINK_WORK_MAX)
}

/// A flood of another socket, what a full router or a gateway is sent, or SYNs.
fn flood(setup: &Setup, stage: &Stage<'_>, flood_pps: Option<u64>) -> Option<Spec> {
    let of = |rate_pps: u64| udp_flood(stage, SINK_PORT, fixed_or_unlimited(rate_pps as f64));
    match setup.load {
        Load::Forwarded { calm_pps } => {
            let mut spec = of(flood_pps.unwrap_or(calm_pps));
            spec.flow.destination = setup::BEHIND.into();
            Some(spec)
        }
        Load::Download => {
            let mut spec = of(flood_pps.unwrap_or(CALM_PPS));
            spec.flow.source_ports = setup::PORT..=setup::PORT;
            spec.flow.destination_ports = setup::DOWNLOAD_PORT..=setup::DOWNLOAD_PORT;
            let payload = vec![0; setup::PAYLOAD_BYTES];
            spec.flow.transport = Transport::Udp { payload };
            Some(spec)
        }
        Load::Web => flood_pps.map(|rate_pps| {
            let mut spec = syn_flood(stage, TCP_PORT, rate_pps);
            // Clients are real-time here: nobody else needs the CPU that they share.
            spec.priority = Priority::Nice(-20);
            spec
        }),
        _ => flood_pps.map(of),
    }
}

/// Traffic that breaks off beside the guard is the worst harm. Beside any other side it shows
/// nothing.
pub(super) fn is_harm(protection: Protection, error: &Error) -> bool {
    let is_guarded = matches!(protection, Protection::Guard | Protection::Standby);
    is_guarded && matches!(error, Error::Traffic { .. })
}

/// Sends what crosses the set-up.
fn cross(plan: &Plan, setup: &Setup, site: &Site<'_>, flooded: bool) -> Result<Counted, Error> {
    let (load, test) = (site.testbed.load(), site.testbed.test());
    let rate_pps = if flooded { FLOODED_PPS } else { CALM_PPS };
    let flow = |payload_bytes| Flow {
        packets: (plan.window.as_secs_f64() * rate_pps as f64) as u64,
        rate_pps,
        payload_bytes,
    };
    match setup.load {
        Load::Udp {
            receiver,
            behind,
            target,
            payload_bytes,
        } => {
            let host = if behind { &site.behind } else { test };
            let target = target.address(site);
            traffic::udp(load, host, receiver, target, flow(payload_bytes))
        }
        Load::Tunnel => {
            let hosts = [(load, setup::TUNNEL_LOAD), (test, setup::BEHIND)];
            let (target, flow) = (
                setup::Target::Behind.address(site),
                flow(setup::PAYLOAD_BYTES),
            );
            tunnel::through(hosts, setup::TUNNEL_PORT, || {
                traffic::udp(load, test, Receiver::Bound(setup::PORT), target, flow)
            })?
        }
        Load::Tcp(to_test) => {
            let address = SocketAddr::new(test.ipv4().into(), TCP_PORT);
            traffic::tcp((test, TCP_PORT), load, address, to_test, plan.window)
        }
        Load::TcpBehind => {
            let published = setup::Target::TestHost.address(site);
            traffic::tcp((&site.behind, 9000), load, published, true, plan.window)
        }
        Load::Web => {
            let address = SocketAddr::new(test.ipv4().into(), TCP_PORT);
            traffic::web(load, address, plan.window)
        }
        Load::Connections => traffic::connections(test, load, TCP_PORT, plan.window),
        Load::Forwarded { .. } => traffic::forwarded(load, &site.behind, plan.window),
        // The generator's alone: `of_all` counts it.
        Load::Download => {
            interrupt::sleep(plan.window)?;
            Ok(Counted::default())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_flooded_server_has_no_cpu_left_at_any_usual_rate() {
        for flood_pps in [2_000, 100_000, 1_000_000, 10_000_000] {
            let plan = Plan {
                flood_pps,
                ..Plan::new(PathBuf::new())
            };
            let cpus = sink_work(&plan).as_secs_f64() * flood_pps as f64;
            assert!(cpus >= SINK_CPUS, "{flood_pps}: {cpus}");
        }
        let plan = Plan::new(PathBuf::new());
        assert_eq!(sink_work(&plan), SINK_WORK, "as in the other comparisons");
    }
}
