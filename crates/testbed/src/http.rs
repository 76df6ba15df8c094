//! A real TCP server and a real client for it: nginx in the test host, wrk in
//! the load host.
//!
//! nginx runs as one process without a master, on the test host's CPU, with
//! everything it writes in a directory that is removed with it. wrk runs on
//! the load host's CPU. It is closed-loop (each connection waits for its
//! answer), so its latency understates what an open arrival process would
//! see; [`crate::probe`] is the instrument for latency.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::{Error, Host, Process, interrupt};

/// Size of the file that is served: a small page, answered in one segment.
pub const FILE_BYTES: usize = 1300;

/// nginx, running in a host. Dropping it ends it and removes its files.
#[derive(Debug)]
pub struct Nginx {
    // First, so that the process has ended when its directory goes.
    process: Process,
    address: SocketAddr,
    _directory: TempDir,
}

impl Nginx {
    /// Starts nginx in `host`, on `port` of all its addresses, and waits until
    /// it listens.
    ///
    /// # Errors
    ///
    /// [`Error::MissingProgram`], [`Error::Failed`] with what nginx said,
    /// [`Error::Timeout`], [`Error::Io`].
    pub fn start(host: &Host, port: u16) -> Result<Self, Error> {
        let directory = host.directory("nginx")?;
        let path = directory.path();
        let write = || -> std::io::Result<()> {
            fs::write(path.join("index.html"), page())?;
            fs::write(path.join("nginx.conf"), configuration(path, port))
        };
        write().map_err(Error::io("write the configuration of nginx"))?;
        let mut process = host
            .command("nginx")
            .arg("-e")
            .arg(path.join("error.log"))
            .arg("-c")
            .arg(path.join("nginx.conf"))
            .package("nginx")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        interrupt::wait_for("the start of nginx", Duration::from_secs(10), || {
            if let Some(status) = process.try_wait()? {
                let said = fs::read(path.join("error.log")).unwrap_or_default();
                return Err(Error::Failed {
                    program: "nginx".to_owned(),
                    status: status.to_string(),
                    output: crate::process::tail(&said),
                });
            }
            // Written once the port is bound: an answer on it could be another's.
            Ok(path.join("nginx.pid").exists().then_some(()))
        })?;
        Ok(Self {
            process,
            address: SocketAddr::new(host.ipv4().into(), port),
            _directory: directory,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

fn page() -> String {
    let mut page = "Plimsoll testbed. ".repeat(FILE_BYTES / 18 + 1);
    page.truncate(FILE_BYTES);
    page
}

fn configuration(directory: &Path, port: u16) -> String {
    let directory = directory.display();
    let mut text = format!(
        "daemon off;
master_process off;
user root;
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 100000000;
    default_type text/html;
"
    );
    // Compiled-in defaults are under /var, which others own.
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {kind}_temp_path {directory}/{kind};");
    }
    let _ = write!(
        text,
        "    server {{
        listen {port};
        listen [::]:{port};
        root {directory};
    }}
}}
"
    );
    text
}

/// What wrk is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLoad {
    /// Connections kept busy.
    pub connections: u32,
    /// How long, in whole seconds: wrk counts in those.
    pub seconds: u32,
    /// Whether a connection serves many requests, or one.
    pub keep_alive: bool,
    /// How much longer wrk may take to connect at first and to end at last.
    pub patience: Duration,
}

/// What wrk measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HttpResult {
    /// Requests answered.
    pub requests: u64,
    /// How long it took, in microseconds.
    pub duration_us: u64,
    /// Requests answered per second.
    pub requests_per_second: f64,
    /// Median latency of answered requests, in microseconds.
    pub latency_p50_us: f64,
    /// 99th percentile of the same.
    pub latency_p99_us: f64,
    /// Connections that were refused or broke, and answers that were errors.
    pub errors: u64,
    /// Requests not answered within two seconds.
    pub timeouts: u64,
}

/// Runs wrk in `host`, on its CPU, against `server`.
///
/// # Errors
///
/// [`Error::Config`] without connections or seconds, [`Error::MissingProgram`],
/// [`Error::Failed`] with what wrk said, [`Error::Timeout`] (wrk first waits for
/// a connection as long as the kernel does), [`Error::Parse`],
/// [`Error::Interrupted`].
pub fn run_wrk(host: &Host, server: SocketAddr, load: HttpLoad) -> Result<HttpResult, Error> {
    for (field, given) in [("connections", load.connections), ("seconds", load.seconds)] {
        if given == 0 {
            return Err(Error::Config {
                field,
                given: given.to_string(),
                allowed: "at least 1",
            });
        }
    }
    let directory = host.directory("wrk")?;
    let script = directory.path().join("done.lua");
    fs::write(&script, WRK_SCRIPT).map_err(Error::io("write a script for wrk"))?;
    let mut command = host.command("wrk");
    command
        .args(["--threads", "1", "--timeout", "2s"])
        .arg(format!("--connections={}", load.connections))
        .arg(format!("--duration={}s", load.seconds))
        .arg("--script")
        .arg(script)
        .package("wrk");
    if !load.keep_alive {
        command.args(["--header", "Connection: close"]);
    }
    command.arg(format!("http://{server}/index.html"));
    let limit = Duration::from_secs(load.seconds.into()) + load.patience;
    parse_wrk(&String::from_utf8_lossy(&command.output(limit)?.stdout))
}

/// Prints what wrk knows as one line of JSON; the fields are [`HttpResult`]'s.
const WRK_SCRIPT: &str = r#"
done = function(summary, latency, requests)
   local errors = summary.errors
   io.write(string.format(
      '{"requests":%d,"duration_us":%d,"requests_per_second":%.3f,' ..
      '"latency_p50_us":%.1f,"latency_p99_us":%.1f,"errors":%d,"timeouts":%d}\n',
      summary.requests, summary.duration, summary.requests / summary.duration * 1e6,
      latency:percentile(50), latency:percentile(99),
      errors.connect + errors.read + errors.write + errors.status, errors.timeout))
end
"#;

fn parse_wrk(output: &str) -> Result<HttpResult, Error> {
    let wrong = |detail: String| Error::Parse {
        what: "the output of wrk",
        detail,
    };
    let line = output.lines().rev().find(|line| line.starts_with('{'));
    let line = line.ok_or_else(|| wrong(format!("no result in {output:?}")))?;
    serde_json::from_str(line).map_err(|error| wrong(format!("{error} in {line:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_found_behind_what_wrk_prints() {
        let output = "Running 1s test @ http://198.18.0.2:80/index.html\n  1 threads\n\
            Requests/sec:  28200.12\n\
            {\"requests\":28200,\"duration_us\":1000000,\"requests_per_second\":28200.000,\
            \"latency_p50_us\":310.0,\"latency_p99_us\":1200.0,\"errors\":1,\"timeouts\":2}\n";
        let result = parse_wrk(output).unwrap();
        assert_eq!(result.requests, 28_200);
        assert_eq!((result.errors, result.timeouts), (1, 2));
        assert!((result.latency_p99_us - 1200.0).abs() < f64::EPSILON);
        assert!(parse_wrk("unable to connect\n").is_err());
        assert!(parse_wrk("{\"requests\":1}\n").is_err());
    }

    #[test]
    fn the_page_has_its_size() {
        assert_eq!(page().len(), FILE_BYTES);
    }
}
