//! A running guard asked from outside: by command and by Prometheus. Needs
//! root.

mod common;

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use common::{LIMIT, output, refused, start, start_with};
use nix::sys::signal::Signal;
use plimsoll_testbed::{Config, Host, Testbed};
use serde_json::Value;

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
    let none = self::status(host, &["--limit", "0"]);
    assert_eq!(none["channels"].as_array().unwrap().len(), 0);

    // A killed guard leaves its socket behind, and the next one takes it over.
    guard.signal(Signal::SIGKILL).unwrap();
    guard.wait(LIMIT).unwrap();
    assert!(refused(host, &["status", host.device()]).contains("no guard runs on"));
    let (guard, _output) = start(host);
    assert_eq!(self::status(host, &[])["pid"], guard.pid());
}

/// One request over HTTP/1.1; returns the head and the body.
fn get(host: &Host, address: (&str, u16), path: &str) -> (String, String) {
    let mut stream = host.run(|| TcpStream::connect(address)).unwrap().unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: guard\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn metrics_are_served_bounded_and_soon() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let arguments = ["--metrics", "127.0.0.1:9464", "--metrics-channels", "2"];
    let (_guard, _output) = start_with(host, &arguments);
    let _servers: Vec<_> = (0..4).map(|i| send(&testbed, PORT + i)).collect();

    let address = ("127.0.0.1", 9464);
    let asked = Instant::now();
    let (head, body) = get(host, address, "/metrics");
    let took = asked.elapsed();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("application/openmetrics-text"), "{head}");
    lint(&body);
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
    assert!(took < Duration::from_secs(1), "{took:?}");

    let (head, _) = get(host, address, "/");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    let second = refused(host, &["lo", "--metrics", "127.0.0.1:9464"]);
    assert!(
        second.contains("cannot listen at 127.0.0.1:9464"),
        "{second}"
    );
}

/// Names of metrics that the dashboard asks for.
fn dashboard_metrics() -> Vec<String> {
    let text = include_str!("../../../dashboards/guard.json");
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
    let guide = include_str!("../../../docs/guard.md");
    let words = guide.split(|c: char| !c.is_alphanumeric() && c != '_');
    let names: Vec<_> = words
        .filter(|word| word.starts_with("plimsoll_guard_"))
        .map(str::to_owned)
        .collect();
    assert!(names.len() >= 3);
    names
}

/// The rules that promtool checks: every metric has a help text and a type, a
/// counter ends in `_total`, no name repeats its type or a colon, units are
/// base units.
fn lint(text: &str) {
    let mut types = std::collections::BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some("#"), Some("TYPE"), Some(name)) => {
                let old = types.insert(name.to_owned(), words.next().unwrap().to_owned());
                assert_eq!(old, None, "{name} is described once");
                let help = format!("# HELP {name} ");
                assert!(text.contains(&help), "{name} has no help text");
                for bad in [":", "counter", "gauge", "milliseconds", "percent"] {
                    assert!(!name.contains(bad), "{name} contains {bad}");
                }
            }
            (Some(sample), ..) if sample != "#" => {
                let name = sample.split('{').next().unwrap();
                let counter = name.strip_suffix("_total");
                let kind = types.get(counter.unwrap_or(name));
                let expected = if counter.is_some() {
                    "counter"
                } else {
                    "gauge"
                };
                assert_eq!(kind.map(String::as_str), Some(expected), "{line}");
            }
            _ => {}
        }
    }
    assert!(types.len() > 4);
}
