//! What does not end a guard, nor hide it: a full disk, an address that somebody else has, a
//! neighbour that hangs. Needs root.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use plimsoll_testbed::{Config, Host, Process, Testbed};
use serde_json::Value;
use tempfile::tempdir;

use crate::common::{LIMIT, PROGRAM, get, output, start, start_with};

const METRICS: &str = "127.0.0.1:9464";

/// Adds another interface to a host.
fn add_interface(host: &Host) {
    for line in [
        "link add w0 type veth peer name w1",
        "link set w0 up",
        "link set w1 up",
    ] {
        let mut command = host.command("ip");
        command.args(line.split(' ')).output(LIMIT).unwrap();
    }
}

/// Starts a guard of that interface, and waits until its log has a line.
fn start_other(host: &Host, arguments: &[&str], log: &Path, line: &str) -> Process {
    let mut command = host.command(PROGRAM);
    command
        .args(["guard", "w0", "--standby=false", "--quiet"])
        .args(arguments)
        .stderr(Stdio::from(File::create(log).unwrap()));
    let guard = command.spawn().unwrap();
    eventually(line, || fs::read_to_string(log).unwrap().contains(line));
    guard
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn guards(host: &Host, interface: &str) -> bool {
    let mut command = host.command(PROGRAM);
    command.args(["guard", "status", interface]);
    command.output(LIMIT).is_ok()
}

/// One file of settings for two interfaces had the second one unguarded.
#[test]
fn metrics_whose_address_is_taken_are_served_when_it_is_free() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    add_interface(host);
    let place = tempdir().unwrap();
    let (mut first, _output) = start_with(host, &["--metrics", METRICS]);
    let said = "it guards without metrics";
    let arguments = ["--metrics", METRICS];
    let _second = start_other(host, &arguments, &place.path().join("log"), said);
    eventually("it guards", || guards(host, "w0"));
    first.signal(Signal::SIGTERM).unwrap();
    assert!(first.wait(LIMIT).unwrap().success());
    let is_free = || host.run(|| std::net::TcpStream::connect(METRICS)).unwrap();
    eventually("it serves", || is_free().is_ok());
    let (_, body) = get(host, ("127.0.0.1", 9464), "/metrics", "*/*");
    assert!(body.contains("uptime_seconds{interface=\"w0\"}"), "{body}");
}

/// Asked for all guards, `status` told of none.
#[test]
fn a_guard_that_hangs_does_not_hide_the_others() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    add_interface(host);
    let place = tempdir().unwrap();
    let (hanging, _output) = start(host);
    let log = place.path().join("log");
    let _other = start_other(host, &[], &log, "");
    eventually("it guards", || guards(host, "w0"));
    hanging.signal(Signal::SIGSTOP).unwrap();
    let mut command = host.command(PROGRAM);
    let document = place.path().join("json");
    let json = format!("--json={}", document.display());
    command.args(["guard", "status", &json]);
    let error = command.output(LIMIT).unwrap_err().to_string();
    hanging.signal(Signal::SIGCONT).unwrap();
    assert!(error.contains(host.device()), "{error}");
    let told: Value = serde_json::from_str(&fs::read_to_string(&document).unwrap()).unwrap();
    assert_eq!(told["interface"], "w0");
    // Both, one a line.
    assert_eq!(output(host, &["status", "--json"]).lines().count(), 2);
}

/// It ended, and a flood had the host to itself.
#[test]
fn a_full_disk_costs_reports_and_not_the_guard() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let place = tempdir().unwrap();
    let disk = place.path().join("disk");
    let log = place.path().join("log");
    fs::create_dir(&disk).unwrap();
    // The disk is this process's alone, and goes with it.
    let script = format!(
        "mount -t tmpfs -o size=16k none {disk} || exit 99
        exec {PROGRAM} guard {device} --standby=false --interval-ms 100 --json {disk}/reports",
        disk = disk.display(),
        device = host.device(),
    );
    let mut command = host.command("unshare");
    command
        .args(["--mount", "sh", "-c", &script])
        .stderr(Stdio::from(File::create(&log).unwrap()));
    let mut guard = command.spawn().unwrap();
    let said = || fs::read_to_string(&log).unwrap();
    eventually("it is told", || said().contains("cannot write a report"));
    assert!(guards(host, host.device()));
    let reports = format!("/proc/{}/root{}/reports", guard.pid(), disk.display());
    File::options()
        .write(true)
        .open(&reports)
        .unwrap()
        .set_len(0)
        .unwrap();
    eventually("and that it can", || {
        said().contains("can write reports again")
    });
    let text = fs::read_to_string(&reports).unwrap();
    let whole = text
        .trim_matches('\0')
        .lines()
        .filter(|line| !line.is_empty());
    let whole: Vec<Result<Value, _>> = whole.map(serde_json::from_str).collect();
    assert!(whole.iter().any(Result::is_ok), "{text}");
    guard.signal(Signal::SIGTERM).unwrap();
    let _ = guard.wait(LIMIT).unwrap();
    assert_eq!(
        said().matches("cannot write a report").count(),
        1,
        "{}",
        said()
    );
}

/// The kernel ended it by a signal.
#[test]
fn nor_does_a_limit_of_a_file_s_size_cost_the_guard() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let place = tempdir().unwrap();
    let log = place.path().join("log");
    let mut command = host.command("prlimit");
    command
        .args(["--fsize=16384", PROGRAM, "guard", host.device()])
        .args(["--standby=false", "--interval-ms", "100", "--json"])
        .arg(place.path().join("reports"))
        .stderr(Stdio::from(File::create(&log).unwrap()));
    let mut guard = command.spawn().unwrap();
    let said = || fs::read_to_string(&log).unwrap();
    eventually("it is told", || said().contains("cannot write a report"));
    assert!(said().contains("ulimit -f"), "{}", said());
    assert!(guards(host, host.device()));
    guard.signal(Signal::SIGTERM).unwrap();
    let _ = guard.wait(LIMIT).unwrap();
}
