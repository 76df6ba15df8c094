//! nginx and its HTTP client while SYNs flood a listener.

use std::time::Duration;

use plimsoll_kernel::meter::CpuMeter;
use plimsoll_kernel::pass_all::PassAll;
use plimsoll_testbed::Error as TestbedError;
use plimsoll_testbed::http::{self, HttpLoad, HttpResult, Nginx};

use crate::Error;
use crate::figures::HostCpu;
use crate::protection::{Protector, Stage};
use crate::traffic::{during, syn_flood};

pub(crate) const NGINX_PORT: u16 = 80;
/// Where a flood of "another port" goes: a server of its own that nobody uses.
pub(crate) const OTHER_PORT: u16 = 8080;
const CONNECTIONS: u32 = 32;
/// Two repetitions of a lost SYN, or wrk's own timeout of its last requests.
const PATIENCE: Duration = Duration::from_secs(4);

/// What one run measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) offered_pps: f64,
    pub(crate) requests_per_s: f64,
    pub(crate) p99_us: f64,
    /// Where the host's CPU went while the client ran. A client has one CPU, which it shares
    /// with the flood's generator: what the host's leaves idle, the client could not use.
    pub(crate) host_cpu: HostCpu,
}

/// nginx with a client, and nginx without.
#[derive(Debug)]
pub(crate) struct Web {
    pub(crate) nginx: Nginx,
    _other: Nginx,
    meter: CpuMeter,
    /// Without a program at its other end veth drops what a driver sends back, as no
    /// adapter does, and the guard leaves cookies to the stack. Alike for all protections.
    _answered: PassAll,
}

impl Web {
    pub(crate) fn start(stage: &Stage<'_>) -> Result<Self, Error> {
        Ok(Self {
            nginx: Nginx::start(stage.host(), NGINX_PORT)?,
            _other: Nginx::start(stage.host(), OTHER_PORT)?,
            meter: stage.host().cpu_meter()?,
            _answered: stage.testbed.load().pass_all()?,
        })
    }

    /// The server's name for itself, such as `nginx/1.22.1`.
    pub(crate) fn version(stage: &Stage<'_>) -> Result<String, Error> {
        let mut command = stage.host().command("nginx");
        let output = command
            .arg("-v")
            .package("nginx")
            .output(Duration::from_secs(5))?;
        let said = String::from_utf8_lossy(&output.stderr);
        Ok(said.trim().rsplit(' ').next().unwrap_or("nginx").to_owned())
    }

    /// Serves a client that keeps its connections, while `rate_pps` SYN/s go to
    /// `port`. Ends the protection.
    pub(crate) fn serve(
        &self,
        stage: &Stage<'_>,
        protector: Protector<'_>,
        port: u16,
        rate_pps: u64,
        seconds: u32,
    ) -> Result<Run, Error> {
        let load = HttpLoad {
            connections: CONNECTIONS,
            seconds,
            keep_alive: true,
            patience: PATIENCE,
        };
        let spec = (rate_pps > 0).then(|| syn_flood(stage, port, rate_pps));
        let (flood, served) = during(stage, spec.as_ref(), || {
            let address = self.nginx.address();
            let begin = self.meter.snapshot();
            let served = served(http::run_wrk(stage.testbed.load(), address, load))?;
            let cpu = HostCpu::of(&self.meter.snapshot().since(&begin));
            Ok((served, cpu))
        })?;
        protector.stop()?;
        let (served, host_cpu) = served;
        Ok(Run {
            host_cpu,
            offered_pps: flood.map_or(0.0, |report| report.offered_pps),
            requests_per_s: served.map_or(0.0, |served| served.requests_per_second),
            p99_us: served.map_or(f64::NAN, |served| served.latency_p99_us),
        })
    }
}

/// What wrk measured; nothing if not even its first connection came about,
/// which is a result, too.
fn served(result: Result<HttpResult, TestbedError>) -> Result<Option<HttpResult>, Error> {
    match result {
        Err(TestbedError::Failed { output, .. }) if output.contains("unable to connect") => {
            Ok(None)
        }
        Err(TestbedError::Timeout { .. }) => Ok(None),
        result => Ok(Some(result?)),
    }
}
