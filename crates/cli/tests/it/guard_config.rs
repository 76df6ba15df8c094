//! Settings from a file: read, outweighed by the command line, refused by
//! line, and read again while the guard runs. Needs root.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use plimsoll_testbed::{Config, Host, Process, Testbed};
use serde_json::Value;

use crate::common::{LIMIT, PROGRAM, refused};

const PORT: u16 = 5000;

/// A guard with its lines of both outputs.
struct Guard {
    process: Process,
    reports: Receiver<Value>,
    said: Receiver<String>,
}

fn start(host: &Host, config: &Path, arguments: &[&str]) -> Guard {
    let mut command = host.command(PROGRAM);
    command
        .args([
            "guard",
            host.device(),
            "--json",
            "-",
            "--standby=false",
            "--config",
        ])
        .arg(config)
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let output = BufReader::new(process.take_stdout().unwrap()).lines();
    let errors = BufReader::new(process.take_stderr().unwrap()).lines();
    let (report_sender, reports) = channel();
    thread::spawn(move || {
        for line in output.map_while(Result::ok) {
            let _ = report_sender.send(serde_json::from_str(&line).unwrap());
        }
    });
    let (said_sender, said) = channel();
    thread::spawn(move || {
        for line in errors.map_while(Result::ok) {
            let _ = said_sender.send(line);
        }
    });
    Guard {
        process,
        reports,
        said,
    }
}

impl Guard {
    fn report(&self) -> Value {
        self.reports.recv_timeout(LIMIT).unwrap()
    }

    fn said(&self) -> String {
        self.said.recv_timeout(LIMIT).unwrap()
    }

    /// Time between two reports, seconds.
    fn interval(&self) -> f64 {
        let at = |report: Value| report["uptime_s"].as_f64().unwrap();
        let first = at(self.report());
        at(self.report()) - first
    }
}

/// The program's counters by outcome for one kind.
fn count(report: &Value, kind: &str, outcome: &str) -> u64 {
    report["totals"][kind][outcome].as_u64().unwrap()
}

/// A server's socket of the test host, and its client on the load host.
fn connected(testbed: &Testbed) -> (UdpSocket, UdpSocket) {
    let bound = |host: &Host, port| {
        host.run(|| UdpSocket::bind((host.ipv4(), port)).unwrap())
            .unwrap()
    };
    let server = bound(testbed.test(), PORT);
    let client = bound(testbed.load(), 0);
    client.connect((testbed.test().ipv4(), PORT)).unwrap();
    server.set_read_timeout(Some(LIMIT)).unwrap();
    (server, client)
}

#[test]
fn settings_are_read_again_without_losing_a_packet_or_a_counter() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("guard.toml");
    fs::write(&file, "interval-ms = 200\nhigh-watermark = 70\n").unwrap();
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let guard = start(host, &file, &[]);
    guard.report();
    assert!(guard.interval() < 0.5, "the file's interval");

    // A steady stream across all the reloads.
    let (server, client) = connected(&testbed);
    let mut sent = 0;
    let mut exchange = || {
        for _ in 0..200 {
            client.send(b"packet").unwrap();
            server.recv(&mut [0; 16]).expect("no packet is lost");
            sent += 1;
        }
    };
    exchange();
    for (text, answer) in [
        (
            "interval-ms = 100\nhigh-watermark = 80\n",
            "settings read again",
        ),
        ("high-watermark = 0\n", "the settings stay as they were"),
        (
            "high-watermark = 40\nlow-watermark = 60",
            "guard.toml:2: low-watermark = 60: must be below high-watermark, which is 40",
        ),
        ("nonsense", "guard.toml:1: not TOML"),
        ("observe = true\nthreaded = \"rt\"", "settings read again"),
    ] {
        fs::write(&file, text).unwrap();
        guard.process.signal(Signal::SIGHUP).unwrap();
        exchange();
        let said = guard.said();
        assert!(said.contains(answer), "{text}: {said}");
    }
    let said = guard.said();
    assert_eq!(
        said,
        "plimsoll: interface=test0 threaded: a change takes a new start"
    );

    let Guard {
        process, reports, ..
    } = guard;
    assert!(process.stop(LIMIT).unwrap().success());
    let last = reports.iter().last().unwrap();
    assert_eq!(count(&last, "udp_socket", "admitted"), sent);
    assert_eq!(last["observe"], true);
    let from_any_kind: u64 = ["udp_socket", "closed_port"]
        .iter()
        .map(|kind| count(&last, kind, "socket_queue"))
        .sum();
    assert_eq!(from_any_kind, 0);
}

#[test]
fn the_command_line_outweighs_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("guard.toml");
    fs::write(&file, "interval-ms = 60000\nduration = 60\n").unwrap();
    let testbed = Testbed::create(Config::default()).unwrap();
    let guard = start(
        testbed.test(),
        &file,
        &["--interval-ms", "150", "--duration=1"],
    );
    assert!(guard.interval() < 0.5);
    let mut process = guard.process;
    assert!(process.wait(Duration::from_secs(5)).unwrap().success());
}

#[test]
fn a_mistake_in_the_file_is_refused_with_its_line_and_code_2() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("guard.toml");
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    for (text, reason) in [
        (
            "\nhigh-watermark = 101\n",
            "guard.toml:2: invalid value '101'",
        ),
        ("no-such = 1\n", "guard.toml:1: no setting `no-such`"),
        (
            "high-watermark = 40\nlow-watermark = 60\n",
            "guard.toml:2: low-watermark = 60: must be below high-watermark, which is 40",
        ),
        (
            "metrics-channels = 5\n",
            "guard.toml:1: metrics-channels: needs metrics <ADDRESS:PORT> as well",
        ),
        ("protect-ports = \"22\"", "guard.toml:1: invalid value '22'"),
    ] {
        fs::write(&file, text).unwrap();
        let said = refused(host, &[host.device(), "--config", file.to_str().unwrap()]);
        assert!(said.contains(reason), "{text}: {said}");
        assert!(said.contains("exit status: 2"), "{text}: {said}");
    }
    let said = refused(host, &[host.device(), "--config", "/nowhere"]);
    assert!(said.contains("/nowhere"), "{said}");
}

/// Else the guard before leaves its program attached for as long as starts fail.
#[test]
fn whatever_is_wrong_the_link_of_the_guard_before_leaves_the_service_manager_s_store() {
    let directory = tempfile::tempdir().unwrap();
    let (file, socket) = (
        directory.path().join("guard.toml"),
        directory.path().join("notify"),
    );
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(LIMIT)).unwrap();
    for (text, arguments) in [
        ("no-such = 1\n", &[][..]),
        ("high-watermark = 101\n", &[]),
        ("high-watermark = 40\nlow-watermark = 60\n", &[]),
        ("", &["--no-such"]),
        ("", &["--config=/nowhere"]),
        ("", &["--json=/nowhere/at/all"]),
    ] {
        fs::write(&file, text).unwrap();
        // What is at 3 does not matter: it was a link.
        let started = std::process::Command::new("sh")
            .args(["-c", "exec 3</dev/null; LISTEN_PID=$$ exec \"$@\"", "sh"])
            .args([PROGRAM, "guard", "lo", "--config"])
            .arg(&file)
            .args(arguments)
            .env("NOTIFY_SOCKET", &socket)
            .env("LISTEN_FDS", "1")
            .env("LISTEN_FDNAMES", "plimsoll-xdp")
            .stderr(Stdio::null())
            .status();
        assert!(!started.unwrap().success());
        let mut said = [0; 256];
        let length = manager.recv(&mut said);
        let length = length.unwrap_or_else(|error| panic!("{text} {arguments:?}: {error}"));
        let said = String::from_utf8_lossy(&said[..length]);
        assert_eq!(said, "FDSTOREREMOVE=1\nFDNAME=plimsoll-xdp");
    }
}
