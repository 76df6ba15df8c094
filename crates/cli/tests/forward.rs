//! `plimsoll forward` on a router between two hosts, as its operator sees it. Needs root.

mod common;
mod promlint;

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use plimsoll_testbed::routed::{Routed, Sink};
use plimsoll_testbed::{Config, Host, INNER_DEVICE};

use common::{LIMIT, PROGRAM, get};

const ADDRESS: (&str, u16) = ("127.0.0.1", 9465);
/// Of the host behind the router ([`Sink::Answers`]).
const ANSWERING: &str = "10.77.0.2";

/// The metrics, as soon as somebody serves them.
fn metrics(router: &Host) -> String {
    let end = Instant::now() + LIMIT;
    let serves = || {
        router
            .run(|| std::net::TcpStream::connect(ADDRESS))
            .unwrap()
    };
    while serves().is_err() {
        assert!(Instant::now() < end, "nobody serves metrics");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (head, body) = get(router, ADDRESS, "/metrics", "*/*");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    body
}

#[test]
fn a_router_tells_prometheus_what_it_forwarded() {
    let hosts = Routed::create(Config::default(), Sink::Answers).unwrap();
    let router = hosts.router();
    let mut command = router.command(PROGRAM);
    let metrics_at = format!("{}:{}", ADDRESS.0, ADDRESS.1);
    command.args([
        "forward",
        router.device(),
        INNER_DEVICE,
        "--metrics",
        &metrics_at,
    ]);
    let mut forward = command.spawn().unwrap();
    metrics(router);
    let mut ping = hosts.load().command("ping");
    ping.args(["-n", "-c", "5", "-i", "0.01", ANSWERING]);
    ping.output(LIMIT).unwrap();

    let body = metrics(router);
    assert_eq!(promlint::problems(&body), [""; 0]);
    let forwarded = |interface: &str| {
        let series = format!(
            "plimsoll_forward_packets_total{{interface=\"{interface}\",place=\"xdp\",outcome=\"forwarded\"}} "
        );
        let mut values = body.lines().filter_map(|line| line.strip_prefix(&series));
        values
            .next()
            .unwrap_or_else(|| panic!("{series} in\n{body}"))
            .parse::<u64>()
            .unwrap()
    };
    assert!(forwarded(router.device()) >= 4, "{body}");
    assert!(forwarded(INNER_DEVICE) >= 4, "{body}");
    forward.signal(Signal::SIGTERM).unwrap();
    assert!(forward.wait(LIMIT).unwrap().success());
}

#[test]
fn an_address_that_others_reach_needs_a_word_more() {
    let arguments = ["forward", "a0", "b0", "--metrics", "0.0.0.0:9465"];
    let output = std::process::Command::new(PROGRAM)
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--metrics-public"), "{said}");
}
