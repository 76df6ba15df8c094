//! `plimsoll serve` on Plimsoll's own stack beside a flood, and what it tells of it. Needs root,
//! curl and wrk.

use std::fs;
use std::net::{TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plimsoll_kernel::namespace;

use crate::promlint;
use crate::shell::run;

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(20);
/// The flood ends by itself.
const FLOOD: Duration = Duration::from_secs(3);
const METRICS: &str = "127.0.0.1:9466";
const STACK_MAC: &str = "02:00:00:00:00:02";
/// Ten times the places that a listener has for connections, which are free again after a second.
/// The flood is asked to be 40 times as fast as that.
const SYNS_PPS_MIN: f64 = 1280.0;

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn set_up_link() {
    run("ip link set lo up");
    run("ip link add kernel0 type veth peer name stack0");
    run(&format!("ip link set stack0 address {STACK_MAC}"));
    run("ip addr add 10.0.0.1/24 dev kernel0");
    run("ip link set kernel0 up");
    run("ip link set stack0 up");
    run("ethtool -K kernel0 tx off");
}

fn start(root: &str, path: &str) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let serve = "serve http --port 80 --on af_xdp:stack0 --address 10.0.0.2/24 --json -";
    command.args(serve.split_whitespace());
    command.args(["--metrics", METRICS, "--root", root, "--path", path]);
    let server = Ended(command.stdout(Stdio::piped()).spawn().unwrap());
    let end = Instant::now() + SOON;
    while TcpStream::connect("10.0.0.2:80").is_err() {
        assert!(Instant::now() < end, "nobody listens");
        thread::sleep(Duration::from_millis(20));
    }
    server
}

/// Sends datagrams to the server's port until it is told to end. Returns how many.
fn flood(ended: &AtomicBool, sent: &AtomicU64) {
    let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
    let end = Instant::now() + FLOOD;
    while !ended.load(Ordering::Relaxed) && Instant::now() < end {
        for _ in 0..100 {
            let done = socket.send_to(&[0; 18], "10.0.0.2:80");
            sent.fetch_add(u64::from(done.is_ok()), Ordering::Relaxed);
        }
    }
}

/// Fetches the page `times` times while the flood goes on.
fn fetch_flooded(times: u32) -> u64 {
    let (ended, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| flood(&ended, &sent));
        while sent.load(Ordering::Relaxed) < 1000 {
            thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..times {
            let page = run("curl -sS --max-time 20 http://10.0.0.2/");
            assert_eq!(page, "<p>hello\n");
        }
        ended.store(true, Ordering::Relaxed);
    });
    sent.into_inner()
}

fn channel<'a>(status: &'a serde_json::Value, kind: &str) -> &'a serde_json::Value {
    let channels = status["stack"]["channels"].as_array().unwrap();
    let found = channels.iter().find(|channel| channel["kind"] == kind);
    found.unwrap_or_else(|| panic!("{kind} in {status}"))
}

/// The sum over all channels and outcomes is what was received.
fn assert_sums(status: &serde_json::Value) {
    let stack = &status["stack"];
    let channels = stack["channels"].as_array().unwrap();
    let packets = channels
        .iter()
        .map(|one| one["packets"].as_object().unwrap());
    let ended: u64 = packets
        .flat_map(|one| one.values())
        .map(|n| n.as_u64().unwrap())
        .sum();
    let waiting = stack["queued"].as_u64().unwrap() + stack["incomplete"].as_u64().unwrap();
    assert_eq!(
        stack["received"].as_u64().unwrap(),
        ended + waiting,
        "{status}"
    );
}

#[test]
fn curl_is_answered_beside_a_flood_and_the_accounts_tell() {
    let in_namespace = || {
        set_up_link();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("index.html"), "<p>hello\n").unwrap();
        let mut server = start(&directory.path().display().to_string(), "soft-lrp");
        assert!(fetch_flooded(5) >= 1000);

        let metrics = run(&format!("curl -sS --max-time 20 http://{METRICS}/metrics"));
        assert_eq!(promlint::problems(&metrics), [""; 0]);
        let series = "plimsoll_serve_channel_packets_total{kind=\"tcp_listener\",\
            address=\"0.0.0.0\",port=\"80\",outcome=\"delivered\"} ";
        let mut values = metrics.lines().filter_map(|line| line.strip_prefix(series));
        let delivered: u64 = values.next().expect(&metrics).parse().unwrap();
        // A handshake, a request and an end for each.
        assert!(delivered >= 15, "{metrics}");

        kill(Pid::from_raw(server.0.id().cast_signed()), Signal::SIGINT).unwrap();
        let output = server.0.stdout.take().unwrap();
        let status: serde_json::Value = serde_json::from_reader(output).unwrap();
        assert!(server.0.wait().unwrap().success());
        assert_sums(&status);
        assert!(status["served"]["received"].as_u64() >= Some(5), "{status}");
        let listener = channel(&status, "tcp_listener");
        assert!(
            listener["packets"]["delivered"].as_u64() >= Some(delivered),
            "{status}"
        );
        let refused = channel(&status, "proxy")["packets"]["closed_port"].as_u64();
        let stray = status["stack"]["dropped"].as_u64();
        assert!(refused.unwrap_or(0) + stray.unwrap_or(0) > 0, "{status}");
    };
    namespace::in_new(in_namespace).expect("this test makes a network namespace: run it as root");
}

/// What the metrics tell of a server.
struct Progress {
    answers: u64,
    /// SYNs that found no place.
    refused: u64,
    /// Those that were answered with a cookie.
    cookies: u64,
}

fn progress() -> Progress {
    let metrics = run(&format!("curl -sS --max-time 20 http://{METRICS}/metrics"));
    let sum = |name: &str, label: &str| {
        let lines = metrics
            .lines()
            .filter(|line| line.starts_with(name) && line.contains(label));
        let values = lines.map(|line| line.rsplit(' ').next().unwrap());
        values
            .map(|value| value.parse::<f64>().unwrap() as u64)
            .sum::<u64>()
    };
    let all = "plimsoll_serve_channel_packets_total";
    let packets = &format!("{all}{{kind=\"tcp_listener\"");
    Progress {
        answers: sum("plimsoll_serve_answers_total", ""),
        refused: sum(packets, "outcome=\"backlog\"")
            + sum(packets, "outcome=\"full\"")
            + sum("plimsoll_serve_lost_packets_total", ""),
        // Also those of the XDP program.
        cookies: sum(all, "outcome=\"syn_cookie\""),
    }
}

/// Forged SYNs for the server's port.
fn flood_of_syns(rate_pps: u32, frames: u32) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let blast = "blast --interface kernel0 --destination 10.0.0.2 --source 198.18.0.0/16 --syn \
        --destination-ports 80 --duration 20 --json -";
    command.args(blast.split_whitespace());
    command.args(["--destination-mac", STACK_MAC]);
    command.args(["--rate", &rate_pps.to_string()]);
    command.args(["--count", &frames.to_string()]);
    Ended(command.stdout(Stdio::piped()).spawn().unwrap())
}

/// How many answers others got during a flood, and its rate.
fn answers_beside_syns() -> (u64, f64) {
    let before = progress().refused;
    let mut flood = flood_of_syns(50_000, 100_000);
    let (mut first, mut last) = (None, 0);
    loop {
        let now = progress();
        // The flood went on when the answers were counted.
        if flood.0.try_wait().unwrap().is_some() {
            break;
        }
        if now.refused >= before + 1000 {
            first.get_or_insert(now.answers);
            last = now.answers;
        }
    }
    let report: serde_json::Value =
        serde_json::from_reader(flood.0.stdout.take().unwrap()).unwrap();
    let rate = report["results"]["offered_pps"].as_f64().unwrap();
    (last - first.expect("SYNs found places until the end"), rate)
}

/// A server of one page on each of these paths.
fn with_server(test: impl Fn(&str) + Sync) {
    for path in ["soft-lrp", "ni-lrp"] {
        let in_namespace = || {
            set_up_link();
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join("index.html"), "<p>hello\n").unwrap();
            let _server = start(&directory.path().display().to_string(), path);
            test(path);
        };
        namespace::in_new(in_namespace).expect("run it as root");
    }
}

/// Whoever has a connection keeps it, also beside more SYNs than are answered with cookies.
#[test]
fn connections_are_served_beside_forged_syns_for_their_port() {
    with_server(|path| {
        let mut wrk = Command::new("wrk");
        wrk.args("-t 1 -c 8 -d 60s http://10.0.0.2/".split_whitespace());
        let _wrk = Ended(wrk.stdout(Stdio::null()).spawn().unwrap());
        let end = Instant::now() + SOON;
        while progress().answers < 100 {
            assert!(Instant::now() < end, "{path}: wrk gets nothing");
        }
        let (answers, rate) = answers_beside_syns();
        assert!(answers >= 20, "{path}: {answers} answers");
        assert!(rate >= SYNS_PPS_MIN, "{path}: {rate} SYN/s are no flood");
        let page = run("curl -sS --max-time 20 http://10.0.0.2/");
        assert_eq!(page, "<p>hello\n", "{path}");
    });
}

/// Each second 128 of 10,000 SYNs find a place of the backlog: one client of 80 would come about
/// at once without cookies.
#[test]
fn new_clients_are_served_beside_forged_syns_for_their_port() {
    with_server(|path| {
        let mut flood = flood_of_syns(10_000, 150_000);
        let end = Instant::now() + SOON;
        while progress().cookies < 1000 {
            assert!(Instant::now() < end, "{path}: nobody gets a cookie");
        }
        for fetched in 0..20 {
            let page = run("curl -sS --max-time 20 http://10.0.0.2/");
            assert_eq!(page, "<p>hello\n", "{path}");
            let is_over = flood.0.try_wait().unwrap().is_some();
            assert!(
                !is_over,
                "{path}: {} pages in the flood's time",
                fetched + 1
            );
        }
    });
}
