//! The SYN flood: nginx serves while another listener is flooded.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use plimsoll_testbed::blast::{
    Blast, Bound, Flow, Priority, Report as BlastReport, Schedule, Spec, Stop, Transport,
};
use plimsoll_testbed::http::{self, HttpLoad, HttpResult, Nginx};
use plimsoll_testbed::interrupt;

use super::Stage;
use super::cases::{Case, Cases};
use super::document::{Protection, Syn, SynCase};
use crate::Error;

const NGINX_PORT: u16 = 80;
/// Where the flood goes: a server of its own that nobody uses.
const OTHER_PORT: u16 = 8080;
const CONNECTIONS: u32 = 32;
/// Routed back to the load host, where nobody has these addresses.
const SPOOFED_SOURCES: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(198, 19, 0, 0), 16));
/// The flood begins before the client and ends after it.
const RAMP_UP: Duration = Duration::from_millis(200);
const RAMP_DOWN: Duration = Duration::from_millis(500);

/// What one run measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    offered_pps: f64,
    pub(super) requests_per_s: f64,
    p99_us: f64,
}

/// Everything the SYN part measured; loads are SYN/s.
#[derive(Debug)]
pub(super) struct Outcome {
    server: String,
    pub(super) cases: Cases<u64, Run>,
}

pub(super) fn run(stage: &Stage<'_>, progress: &mut impl FnMut(&str)) -> Result<Outcome, Error> {
    let nginx = Nginx::start(stage.testbed.test(), NGINX_PORT)?;
    let _other = Nginx::start(stage.testbed.test(), OTHER_PORT)?;
    let mut cases = Cases::new(&stage.plan.syn_rates_pps);
    for round in 1..=stage.plan.runs {
        for case in &mut cases.0 {
            progress(&format!(
                "SYN, round {round} of {}: {} SYN/s, {}",
                stage.plan.runs,
                case.load,
                case.protection.name()
            ));
            case.runs
                .push(flood(stage, &nginx, case.protection, case.load)?);
        }
    }
    Ok(Outcome {
        server: version(stage)?,
        cases,
    })
}

/// The server's name for itself, such as `nginx/1.22.1`.
fn version(stage: &Stage<'_>) -> Result<String, Error> {
    let mut command = stage.testbed.test().command("nginx");
    let output = command
        .arg("-v")
        .package("nginx")
        .output(Duration::from_secs(5))?;
    let said = String::from_utf8_lossy(&output.stderr);
    Ok(said.trim().rsplit(' ').next().unwrap_or("nginx").to_owned())
}

fn flood(
    stage: &Stage<'_>,
    nginx: &Nginx,
    protection: Protection,
    rate_pps: u64,
) -> Result<Run, Error> {
    let guard = stage.protect(protection)?;
    let load = HttpLoad {
        connections: CONNECTIONS,
        seconds: stage.plan.http_seconds,
        keep_alive: true,
    };
    let time = RAMP_UP + Duration::from_secs(stage.plan.http_seconds.into()) + RAMP_DOWN;
    let (flood, served) = thread::scope(|scope| {
        let flood = scope.spawn(|| {
            (rate_pps > 0)
                .then(|| syn_flood(stage, rate_pps, time))
                .transpose()
        });
        let served = serve(stage, nginx, load);
        (
            flood
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            served,
        )
    });
    let (flood, served) = (flood?, served?);
    if let Some(guard) = guard {
        guard.stop()?;
    }
    Ok(Run {
        offered_pps: flood.map_or(0.0, |report| report.offered_pps),
        requests_per_s: served.requests_per_second,
        p99_us: served.latency_p99_us,
    })
}

fn serve(stage: &Stage<'_>, nginx: &Nginx, load: HttpLoad) -> Result<HttpResult, Error> {
    interrupt::sleep(RAMP_UP)?;
    Ok(http::run_wrk(stage.testbed.load(), nginx.address(), load)?)
}

/// SYNs from random sources, whose answers lead nowhere.
fn syn_flood(stage: &Stage<'_>, rate_pps: u64, time: Duration) -> Result<BlastReport, Error> {
    let (load, test) = (stage.testbed.load(), stage.testbed.test());
    let flow = Flow {
        source: SPOOFED_SOURCES,
        source_ports: 1024..=65535,
        destination: test.ipv4().into(),
        destination_ports: OTHER_PORT..=OTHER_PORT,
        transport: Transport::TcpSyn,
    };
    let mut spec = Spec::new(
        load.device(),
        test.mac(),
        flow,
        Schedule::Fixed { rate_pps },
    );
    spec.bound = Bound {
        time,
        ..Bound::default()
    };
    spec.cpu = Some(load.cpu());
    // The client shares this CPU and must not be what limits nginx.
    spec.priority = Priority::Idle;
    let blast = || Blast::load(&spec)?.run(&Stop::new());
    Ok(load.run_on_cpu(blast)??)
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
    }
}
