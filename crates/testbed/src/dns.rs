//! A real DNS server and a real load for it: NSD in the test host, dnsperf in
//! the load host.
//!
//! NSD answers from one process on the test host's CPU, with the receive
//! buffer that an operator of a busy server sets, for a small zone of its own;
//! everything it writes is in a directory that is removed with it. dnsperf
//! sends at a rate that was fixed in advance (up to a number of outstanding
//! queries), from the load host's CPU.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::Serialize;
use tempfile::TempDir;

use crate::{Error, Host, Process, interrupt};

/// The zone that is served.
const ZONE: &str = "plimsoll.test";
/// Names in it, `host0` and so on.
const NAMES: u32 = 64;
/// What NSD's manual calls for busy servers; frames of this link are accounted
/// at page size.
const RCVBUF_BYTES: u32 = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// NSD, running in a host. Dropping it ends it and removes its files.
#[derive(Debug)]
pub struct Nsd {
    // First, so that the process has ended when its directory goes.
    process: Process,
    address: SocketAddr,
    directory: TempDir,
}

impl Nsd {
    /// Starts NSD in `host`, on UDP and TCP `port` of its IPv4 address, and
    /// waits until it answers.
    ///
    /// # Errors
    ///
    /// [`Error::MissingProgram`], [`Error::Failed`] with what NSD said,
    /// [`Error::Timeout`], [`Error::Io`].
    pub fn start(host: &Host, port: u16) -> Result<Self, Error> {
        let directory = host.directory("nsd")?;
        let path = directory.path();
        let address = SocketAddr::new(host.ipv4().into(), port);
        let write = || -> std::io::Result<()> {
            fs::write(path.join("zone"), zone())?;
            fs::write(path.join("nsd.conf"), configuration(path, address))
        };
        write().map_err(Error::io("write the configuration of NSD"))?;
        let process = host
            .command("nsd")
            .args(["-d", "-c"])
            .arg(path.join("nsd.conf"))
            .package("nsd")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut server = Self {
            process,
            address,
            directory,
        };
        server.wait_until_it_answers(host)?;
        Ok(server)
    }

    fn wait_until_it_answers(&mut self, host: &Host) -> Result<(), Error> {
        let client = host
            .run(|| UdpSocket::bind((host.ipv4(), 0)))?
            .map_err(Error::io("open a socket"))?;
        client
            .set_read_timeout(Some(Duration::from_millis(100)))
            .map_err(Error::io("set a receive timeout"))?;
        let query = query(0);
        interrupt::wait_for("the first answer of NSD", PATIENCE, || {
            if let Some(status) = self.process.try_wait()? {
                let said = fs::read(self.directory.path().join("log")).unwrap_or_default();
                return Err(Error::Failed {
                    program: "nsd".to_owned(),
                    status: status.to_string(),
                    output: crate::process::tail(&said),
                });
            }
            // Written once the port is bound: an answer could be another's.
            if !self.directory.path().join("nsd.pid").exists() {
                return Ok(None);
            }
            let asked = client.send_to(&query, self.address);
            let answered = asked.and_then(|_| client.recv(&mut [0; 512]));
            Ok(answered.is_ok().then_some(()))
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Nsd {
    fn drop(&mut self) {
        // Asked to, it takes its children along; the field's own drop kills it
        // should it not.
        if self.process.signal(Signal::SIGTERM).is_ok() {
            let _ = self.process.wait(Duration::from_secs(2));
        }
    }
}

/// The zone as a file (RFC 1035, section 5).
#[must_use]
pub fn zone() -> String {
    let mut text = format!(
        "$ORIGIN {ZONE}.\n$TTL 3600\n\
         @ IN SOA ns admin 1 3600 900 604800 3600\n@ IN NS ns\nns IN A 198.18.0.2\n"
    );
    for name in 0..NAMES {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "host{name} IN A 198.18.1.{name}");
    }
    text
}

fn configuration(directory: &Path, address: SocketAddr) -> String {
    let directory = directory.display();
    let (ip, port) = (address.ip(), address.port());
    format!(
        "server:
    ip-address: {ip}
    port: {port}
    server-count: 1
    username: root
    chroot: \"\"
    database: \"\"
    zonesdir: {directory}
    zonelistfile: {directory}/zone.list
    xfrdfile: {directory}/xfrd.state
    xfrdir: {directory}
    logfile: {directory}/log
    pidfile: {directory}/nsd.pid
    receive-buffer-size: {RCVBUF_BYTES}
    rrl-ratelimit: 0
remote-control:
    control-enable: no
zone:
    name: {ZONE}
    zonefile: zone
"
    )
}

/// A query for the address of the `number`th name, as it is sent (RFC 1035,
/// section 4.1).
#[must_use]
pub fn query(number: u32) -> Vec<u8> {
    // Identification, recursion not desired, one question.
    let mut message = vec![0x50, 0x4c, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let name = format!("host{}.{ZONE}", number % NAMES);
    for label in name.split('.') {
        // Ours are short.
        message.push(label.len() as u8);
        message.extend_from_slice(label.as_bytes());
    }
    // Root, type A, class IN.
    message.extend_from_slice(&[0, 0, 1, 0, 1]);
    message
}

/// What dnsperf is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DnsLoad {
    /// Queries per second.
    pub rate_qps: u32,
    /// How long, in whole seconds.
    pub seconds: u32,
    /// How long an answer may take.
    pub timeout: Duration,
}

/// What dnsperf measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DnsResult {
    /// Queries sent.
    pub sent: u64,
    /// Queries answered in time.
    pub completed: u64,
    /// Queries answered per second.
    pub queries_per_s: f64,
    /// Mean latency of answered queries in microseconds.
    pub latency_mean_us: f64,
}

/// Runs dnsperf in `host`, on its CPU, against `server`.
///
/// # Errors
///
/// [`Error::MissingProgram`], [`Error::Failed`] with what dnsperf said,
/// [`Error::Parse`], [`Error::Interrupted`].
pub fn run_dnsperf(host: &Host, server: SocketAddr, load: DnsLoad) -> Result<DnsResult, Error> {
    // As many as the rate brings within a timeout, so that lost queries do not
    // hold up others.
    let outstanding = f64::from(load.rate_qps) * load.timeout.as_secs_f64();
    let outstanding = outstanding.ceil().clamp(1.0, 60_000.0) as u32;
    let rate = Some(load.rate_qps);
    dnsperf(
        host,
        server,
        (rate, outstanding),
        load.seconds,
        load.timeout,
    )
}

/// As [`run_dnsperf`], as fast as the server answers `outstanding` queries at a time.
///
/// # Errors
///
/// As there.
pub fn run_dnsperf_closed(
    host: &Host,
    server: SocketAddr,
    outstanding: u32,
    seconds: u32,
) -> Result<DnsResult, Error> {
    // Longer than any queue; a lost query takes a place for so long.
    let timeout = Duration::from_millis(100);
    dnsperf(host, server, (None, outstanding), seconds, timeout)
}

fn dnsperf(
    host: &Host,
    server: SocketAddr,
    (rate_qps, outstanding): (Option<u32>, u32),
    seconds: u32,
    timeout: Duration,
) -> Result<DnsResult, Error> {
    let directory = host.directory("dnsperf")?;
    let names = directory.path().join("names");
    let text: String = (0..NAMES)
        .map(|name| format!("host{name}.{ZONE} A\n"))
        .collect();
    fs::write(&names, text).map_err(Error::io("write the names for dnsperf"))?;
    let mut command = host.command("dnsperf");
    command
        .args(["-f", "inet", "-T", "1", "-c", "4"])
        .args(["-s", &server.ip().to_string()])
        .args(["-p", &server.port().to_string()])
        .args(["-l", &seconds.to_string()])
        .args(["-q", &outstanding.to_string()])
        .args(["-t", &timeout.as_secs_f64().to_string()])
        .arg("-d")
        .arg(names)
        .package("dnsperf");
    if let Some(rate) = rate_qps {
        command.args(["-Q", &rate.to_string()]);
    }
    let limit = Duration::from_secs(u64::from(seconds) + 15);
    parse_dnsperf(&String::from_utf8_lossy(&command.output(limit)?.stdout))
}

fn parse_dnsperf(output: &str) -> Result<DnsResult, Error> {
    let value = |name: &str| -> Result<f64, Error> {
        let mut lines = output.lines().rev();
        let rest = lines.find_map(|line| line.trim().strip_prefix(name));
        let word = rest.and_then(|rest| rest.split_whitespace().next());
        word.and_then(|word| word.parse().ok())
            .ok_or_else(|| Error::Parse {
                what: "the output of dnsperf",
                detail: format!("no {name:?} in {output:?}"),
            })
    };
    let completed = value("Queries completed:")?;
    Ok(DnsResult {
        sent: value("Queries sent:")? as u64,
        completed: completed as u64,
        queries_per_s: value("Queries per second:")?,
        // Not a number if nothing was answered.
        latency_mean_us: if completed > 0.0 {
            value("Average Latency (s):")? * 1e6
        } else {
            0.0
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_dnsperf_are_found_by_name() {
        let output = "Statistics:\n\n  Queries sent:         1000\n  \
            Queries completed:    990 (99.00%)\n  Queries lost:         10 (1.00%)\n\n  \
            Run time (s):         2.0\n  Queries per second:   495.0\n\n  \
            Average Latency (s):  0.000123 (min 0.00001, max 0.1)\n";
        let result = parse_dnsperf(output).unwrap();
        assert_eq!((result.sent, result.completed), (1000, 990));
        assert!((result.queries_per_s - 495.0).abs() < f64::EPSILON);
        assert!((result.latency_mean_us - 123.0).abs() < 1e-6);
        assert!(parse_dnsperf("Error: no\n").is_err());
    }

    #[test]
    fn a_query_is_a_dns_message() {
        let query = query(3);
        assert_eq!(query.len(), 12 + 6 + 9 + 5 + 1 + 4);
        assert_eq!(&query[12..18], b"\x05host3");
        assert_eq!(&query[query.len() - 5..], [0, 0, 1, 0, 1]);
    }
}
