//! `plimsoll serve` on Plimsoll's own stack beside a flood, and what it tells of it. Needs root
//! and curl.

mod promlint;
mod shell;

use std::fs;
use std::net::{TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plimsoll_kernel::namespace;
use shell::run;

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(20);
/// The flood ends by itself.
const FLOOD: Duration = Duration::from_secs(3);
const METRICS: &str = "127.0.0.1:9466";

/// The server, ended with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(root: &str) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let serve = "serve http --port 80 --on af_xdp:stack0 --address 10.0.0.2/24 --json -";
    command.args(serve.split_whitespace());
    command.args(["--metrics", METRICS, "--root", root]);
    let server = Server(command.stdout(Stdio::piped()).spawn().unwrap());
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
        run("ip link set lo up");
        run("ip link add kernel0 type veth peer name stack0");
        run("ip addr add 10.0.0.1/24 dev kernel0");
        run("ip link set kernel0 up");
        run("ip link set stack0 up");
        run("ethtool -K kernel0 tx off");
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("index.html"), "<p>hello\n").unwrap();
        let mut server = start(&directory.path().display().to_string());
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
