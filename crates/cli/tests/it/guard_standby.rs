//! A guard that stands by, on a real interface: calm traffic meets no program, a flood is met by
//! one within a second, and whatever ends the guard leaves nothing. Needs root.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use plimsoll_kernel::counters::stack;
use plimsoll_testbed::server::{Config as Serving, Kind, Server};
use plimsoll_testbed::{Config, Host, Process, Testbed, probe};
use serde_json::Value;

use crate::common::overload::{Settings, await_report, flood, flooded, settings};
use crate::common::{LIMIT, PROGRAM, keeper_of, output, start_logging, start_with};

const STANDBY: [&str; 5] = [
    "--standby",
    "--standby-quiet-s",
    "2",
    "--interval-ms",
    "100",
];
const FLOODED: u16 = 7000;
const OTHER: u16 = 7001;
const RATE_PPS: u64 = 300_000;
/// A tenth of the flood is more than the server takes.
const WORK: Duration = Duration::from_micros(50);
const BULK: Duration = Duration::from_secs(6);

fn testbed() -> Testbed {
    Testbed::create(Config::default()).unwrap()
}

/// The flood's frames are redirected to the interface, which takes them with GRO alone while it
/// has no program.
fn floodable() -> Testbed {
    let testbed = testbed();
    let host = testbed.test();
    let mut ethtool = host.command("ethtool");
    let gro = ethtool.args(["-K", host.device(), "gro", "on"]);
    gro.output(LIMIT).unwrap();
    testbed
}

fn serve(host: &Host, kind: Kind, port: u16, work: Duration) -> Server {
    let config = Serving {
        work,
        ..Serving::new(kind, port)
    };
    Server::start(host, Path::new(PROGRAM), &config).unwrap()
}

fn has_xdp(host: &Host) -> bool {
    let mut ip = host.command("ip");
    let link = ip.args(["-d", "link", "show", host.device()]).output(LIMIT);
    String::from_utf8(link.unwrap().stdout)
        .unwrap()
        .contains("xdp")
}

/// The kernel detaches a dead process's program when its descriptors are gone.
fn is_free(host: &Host, before: &Settings) -> bool {
    let deadline = Instant::now() + LIMIT;
    while has_xdp(host) || settings(host).0 != *before {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    output(host, &["restore"]) == "nothing to restore\n"
}

fn attachments(report: &Value) -> (bool, u64) {
    let standing_by = report["standing_by"].as_bool().unwrap();
    (standing_by, report["attachments"].as_u64().unwrap())
}

fn statistic(host: &Host, name: &str) -> u64 {
    let path = format!("/sys/class/net/{}/statistics/{name}", host.device());
    let text = host.run(|| fs::read_to_string(&path).unwrap()).unwrap();
    text.trim().parse().unwrap()
}

/// Bytes from the load to the test host for a time, as fast as they go.
fn transfer(testbed: &Testbed, time: Duration) {
    let host = testbed.test();
    let listener = host.run(|| TcpListener::bind((host.ipv4(), 80)).unwrap());
    let listener = listener.unwrap();
    let connect = || TcpStream::connect((host.ipv4(), 80)).unwrap();
    let mut client = testbed.load().run(connect).unwrap();
    let (mut served, _) = listener.accept().unwrap();
    let end = Instant::now() + time;
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut bytes = [0; 64 << 10];
            while served.read(&mut bytes).unwrap() > 0 {}
        });
        while Instant::now() < end {
            client.write_all(&[0; 64 << 10]).unwrap();
        }
        drop(client);
    });
}

/// Each frame of the transfer has many segments: so it is without a program alone.
#[test]
fn calm_and_beside_a_bulk_transfer_nothing_is_attached() {
    let testbed = testbed();
    let host = testbed.test();
    let before = settings(host);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let (guard, mut reports) = start_logging(host, &STANDBY, File::create(&log).unwrap().into());
    assert!(!has_xdp(host));
    let received = || ["rx_bytes", "rx_packets"].map(|name| statistic(host, name));
    let [bytes_before, frames_before] = received();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            transfer(&testbed, BULK);
            is_over.store(true, Ordering::Relaxed);
        });
        await_report(&mut reports, "the end of the transfer", |report| {
            assert_eq!(attachments(report), (true, 0));
            assert!(report["syn_cookies"].is_null());
            is_over.load(Ordering::Relaxed)
        });
    });
    let [bytes, frames] = received();
    let (bytes, frames) = (bytes - bytes_before, frames - frames_before);
    assert!(bytes > 100 << 20, "a transfer: {bytes}");
    assert!(bytes / frames > 3_000, "{bytes} bytes in {frames} frames");
    let status = output(host, &["status", host.device(), "--json"]);
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(attachments(&status), (true, 0));
    // What came without a program is in no stage missing.
    let ledger = &status["ledger"]["stages"];
    assert!(
        ledger[1]["went_on"].as_u64().unwrap() > frames / 2,
        "{ledger}"
    );
    let unaccounted = [0, 1].map(|stage| ledger[stage]["unaccounted"].as_i64().unwrap());
    assert_eq!(unaccounted, [0, 0], "{ledger}");
    assert!(!has_xdp(host));
    assert_eq!(settings(host), before);
    assert!(guard.stop(LIMIT).unwrap().success());
    assert_eq!(fs::read_to_string(log).unwrap(), "", "nothing to tell");
}

/// Datagrams that sockets of the host lost.
fn lost(host: &Host) -> u64 {
    let counters = host.run(stack::read).unwrap();
    counters["Udp.RcvbufErrors"]
}

/// From the first loss until the program is there.
fn wait_until_attached(host: &Host) -> Duration {
    let (before, deadline) = (lost(host), Instant::now() + LIMIT);
    while lost(host) == before {
        assert!(Instant::now() < deadline, "the flood overflows nothing");
        thread::sleep(Duration::from_millis(5));
    }
    let first = Instant::now();
    while !has_xdp(host) {
        assert!(Instant::now() < deadline, "nothing is attached");
        thread::sleep(Duration::from_millis(5));
    }
    first.elapsed()
}

/// The flood is for one slow server; another socket asks in vain for nothing.
fn flood_and_look(testbed: &Testbed, look: impl FnOnce(Duration)) {
    let host = testbed.test();
    let _server = serve(host, Kind::Sink, FLOODED, WORK);
    let mut spec = flood(testbed, FLOODED..=FLOODED, RATE_PPS);
    spec.flow.source = "10.9.9.9/32".parse().unwrap();
    flooded(testbed, &spec, || look(wait_until_attached(host)));
}

/// Of a bystander's probes, those that were answered, in percent.
fn probed(testbed: &Testbed) -> u64 {
    let config = probe::Config {
        rate_pps: 200,
        duration: Duration::from_secs(2),
        realtime: true,
        ..probe::Config::new((testbed.test().ipv4(), OTHER).into())
    };
    let probing = || probe::run(&config);
    let report = testbed.load().run(probing).unwrap().unwrap();
    100 * report.answered / report.sent.max(1)
}

#[test]
fn a_flood_attaches_within_a_second_and_quiet_detaches() {
    let testbed = floodable();
    let host = testbed.test();
    let before = settings(host);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let (guard, mut reports) = start_logging(host, &STANDBY, File::create(&log).unwrap().into());
    let _bystander = serve(host, Kind::Echo, OTHER, Duration::ZERO);
    flood_and_look(&testbed, |waited| {
        assert!(waited < Duration::from_secs(1), "{waited:?}");
        let is_attached = |report: &Value| attachments(report) == (false, 1);
        await_report(&mut reports, "that it is attached", is_attached);
        let discards = |report: &Value| {
            let packets = &report["totals"]["udp_socket"];
            let of = |outcome: &str| packets[outcome].as_u64().unwrap();
            of("socket_queue") + of("source_share") > 10_000
        };
        await_report(&mut reports, "that it discards", discards);
        let answered = probed(&testbed);
        assert!(answered >= 90, "{answered} % of a bystander's probes");
    });
    let begun = Instant::now();
    let is_detached = |report: &Value| attachments(report) == (true, 1);
    let report = await_report(&mut reports, "that it stands by", is_detached);
    assert!(begun.elapsed() >= Duration::from_secs(2), "a quiet of 2 s");
    assert_eq!(report["governor"]["mode"], "interrupts");
    assert!(!has_xdp(host));
    assert_eq!(settings(host), before);
    assert!(guard.stop(LIMIT).unwrap().success());
    assert!(is_free(host, &before.0));
    let log = fs::read_to_string(log).unwrap();
    for (event, times) in [
        ("event=attached evidence=", 1),
        ("event=detached", 1),
        ("program_not_run", 0),
    ] {
        assert_eq!(log.matches(event).count(), times, "{log}");
    }
}

/// Kills it, and looks at what it leaves.
fn kill(host: &Host, guard: Process, before: &Settings) {
    let keeper = keeper_of(&guard);
    guard.signal(Signal::SIGKILL).unwrap();
    drop(guard);
    assert!(is_free(host, before));
    let deadline = Instant::now() + LIMIT;
    while Path::new(&format!("/proc/{keeper}")).exists() {
        assert!(Instant::now() < deadline, "its keeper stays");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn killed_while_it_stands_by_it_leaves_nothing() {
    let testbed = testbed();
    let host = testbed.test();
    let (before, _) = settings(host);
    let (guard, mut reports) = start_with(host, &STANDBY);
    for _ in 0..3 {
        let report = await_report(&mut reports, "anything", |_| true);
        assert_eq!(attachments(&report), (true, 0));
    }
    kill(host, guard, &before);
}

#[test]
fn killed_while_it_is_attached_it_leaves_nothing() {
    let testbed = floodable();
    let host = testbed.test();
    let (before, _) = settings(host);
    let (guard, mut reports) = start_with(host, &STANDBY);
    flood_and_look(&testbed, |_| {
        let is_attached = |report: &Value| attachments(report) == (false, 1);
        await_report(&mut reports, "that it is attached", is_attached);
        kill(host, guard, &before);
    });
    // The next one is none the worse for it.
    let (guard, _reports) = start_with(host, &STANDBY);
    assert!(!has_xdp(host));
    assert!(guard.stop(LIMIT).unwrap().success());
    assert!(is_free(host, &before));
}
