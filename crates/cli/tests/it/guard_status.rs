//! A running guard asked from outside: by command and by Prometheus. Needs
//! root.

use std::io::Read;
use std::net::UdpSocket;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::Signal;
use plimsoll_testbed::{Config, Host, Testbed};
use serde_json::Value;

use crate::common::{LIMIT, PROGRAM, get, output, refused, start, start_with};
use crate::promlint;

const PORT: u16 = 5000;
const PACKETS: u64 = 100;

/// Sends packets to a socket of the test host, which is returned.
fn send(testbed: &Testbed, port: u16) -> UdpSocket {
    let host = testbed.test();
    let server = host
        .run(|| UdpSocket::bind((host.ipv4(), port)).unwrap())
        .unwrap();
    server.set_read_timeout(Some(LIMIT)).unwrap();
    let client = testbed
        .load()
        .run(|| UdpSocket::bind((testbed.load().ipv4(), 0)).unwrap())
        .unwrap();
    for _ in 0..PACKETS {
        client.send_to(b"packet", (host.ipv4(), port)).unwrap();
        server.recv(&mut [0; 16]).unwrap();
    }
    server
}

fn status(host: &Host, arguments: &[&str]) -> Value {
    let all = [&["status", "--json"], arguments].concat();
    serde_json::from_str(&output(host, &all)).unwrap()
}

#[test]
fn status_tells_who_is_offered_what() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let said = refused(host, &["status", host.device()]);
    assert!(said.contains("no guard runs on"), "{said}");
    assert!(refused(host, &["status"]).contains("no guard runs"));

    let (mut guard, _output) = start(host);
    let _server = send(&testbed, PORT);
    let status = status(host, &[]);
    assert_eq!(status["schema"], 1);
    assert_eq!(status["interface"], host.device());
    assert_eq!(status["pid"], guard.pid());
    let channels = status["channels"].as_array().unwrap();
    let channel = channels
        .iter()
        .find(|channel| channel["port"] == PORT)
        .unwrap();
    assert_eq!(channel["packets"]["admitted"], PACKETS);
    assert!(channel["offered_pps"].as_f64().unwrap() > 0.0);
    assert_eq!(channel["owner"]["process"]["pid"], std::process::id());

    let text = output(host, &["status", host.device(), "--sort", "offered"]);
    assert!(
        text.contains(&format!("udp_socket {}:{PORT}", host.ipv4())),
        "{text}"
    );
    assert!(
        text.contains(&format!("({})", std::process::id())),
        "{text}"
    );
    let places = status["ledger"]["stages"].as_array().unwrap();
    let udp = places
        .iter()
        .flat_map(|stage| stage["places"].as_array().unwrap())
        .find(|place| place["name"] == "udp")
        .unwrap();
    assert_eq!(udp["packets"], PACKETS, "the ledger: {places:#?}");
    assert!(text.contains("\nloss ledger since the start: "), "{text}");
    let row = format!("  {:<26}{PACKETS:>14}  delivered", "udp");
    assert!(text.contains(&row), "{text}");
    // The interface is no file.
    let of_one = self::status(host, &[host.device()]);
    assert_eq!(of_one["interface"], host.device());
    let none = self::status(host, &["--limit", "0"]);
    assert_eq!(none["channels"].as_array().unwrap().len(), 0);

    // A killed guard leaves its socket behind, and the next one takes it over.
    guard.signal(Signal::SIGKILL).unwrap();
    guard.wait(LIMIT).unwrap();
    assert!(refused(host, &["status", host.device()]).contains("no guard runs on"));
    let (guard, _output) = start(host);
    assert_eq!(self::status(host, &[])["pid"], guard.pid());
}

/// A terminal stopped with Ctrl-S, or a pipe that nobody empties, once stopped the
/// guard's own thread in the middle of its report: nothing was governed any more,
/// and nobody got an answer.
#[test]
fn a_reader_who_stops_reading_does_not_stop_the_guard() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let mut command = host.command(PROGRAM);
    command
        .args(["guard", host.device(), "--json=-", "--interval-ms=100"])
        .stdout(Stdio::piped());
    let mut guard = command.spawn().unwrap();
    let mut output = guard.take_stdout().unwrap();
    // One report fills it.
    fcntl(&output, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    output.read_exact(&mut [0]).unwrap();
    thread::sleep(Duration::from_millis(700));
    let uptime = |status: Value| status["uptime_s"].as_f64().unwrap();
    let first = uptime(status(host, &[]));
    thread::sleep(Duration::from_millis(150));
    assert!(uptime(status(host, &[])) > first);
    let asked = Instant::now();
    guard.signal(Signal::SIGTERM).unwrap();
    assert!(guard.wait(LIMIT).unwrap().success());
    assert!(asked.elapsed() < Duration::from_secs(4), "{asked:?}");
    drop(output);
}

#[test]
fn metrics_are_served_bounded_and_soon() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let arguments = ["--metrics", "127.0.0.1:9464", "--metrics-channels", "2"];
    let (_guard, _output) = start_with(host, &arguments);
    let _servers: Vec<_> = (0..4).map(|i| send(&testbed, PORT + i)).collect();

    let address = ("127.0.0.1", 9464);
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let (head, body) = get(host, address, "/metrics", accept);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("application/openmetrics-text"), "{head}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    let (head, body) = get(host, address, "/metrics", "*/*");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert_eq!(promlint::problems(&body), [""; 0]);
    for name in dashboard_metrics().into_iter().chain(guide_metrics()) {
        let sample = format!("{name}{{");
        assert!(body.contains(&sample), "{name} is documented, in\n{body}");
    }
    let total = format!(
        "plimsoll_guard_packets_total{{interface=\"{}\",kind=\"udp_socket\",outcome=\"admitted\"}} {}",
        host.device(),
        4 * PACKETS
    );
    assert!(body.lines().any(|line| line == total), "{total} in\n{body}");
    let series = body
        .lines()
        .filter(|line| line.contains("occupancy_ratio{"))
        .count();
    assert_eq!(series, 2, "{body}");
    // The quickest of some: on a busy machine one may wait for others.
    let scrape = |_| {
        let asked = Instant::now();
        get(host, address, "/metrics", accept);
        asked.elapsed()
    };
    let quickest = (0..5).map(scrape).min().unwrap();
    assert!(quickest < Duration::from_secs(1), "{quickest:?}");

    let (head, _) = get(host, address, "/", "*/*");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
}

/// Names of metrics that the dashboard asks for.
fn dashboard_metrics() -> Vec<String> {
    let text = include_str!("../../../../dashboards/guard.json");
    let dashboard: Value = serde_json::from_str(text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries = targets.map(|target| target["expr"].as_str().unwrap());
    let words = queries.flat_map(|query| query.split(|c: char| !c.is_alphanumeric() && c != '_'));
    let names: Vec<_> = words
        .filter(|word| word.starts_with("plimsoll_"))
        .map(str::to_owned)
        .collect();
    assert!(names.len() >= 8);
    names
}

/// Names of metrics that the guide's alerts ask for.
fn guide_metrics() -> Vec<String> {
    let guide = include_str!("../../../../docs/guard.md");
    let words = guide.split(|c: char| !c.is_alphanumeric() && c != '_');
    let names: Vec<_> = words
        .filter(|word| word.starts_with("plimsoll_guard_"))
        .map(str::to_owned)
        .collect();
    assert!(names.len() >= 3);
    names
}
