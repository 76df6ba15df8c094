//! Real clients connect to a real server, and every attempt ends in one count.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use plimsoll_testbed::connect::{Config, run};
use plimsoll_testbed::http::Nginx;

use crate::common::create;

fn config(target: SocketAddr) -> Config {
    Config {
        target,
        rate_pps: 500,
        duration: Duration::from_millis(400),
        timeout: Duration::from_millis(500),
        realtime: false,
    }
}

#[test]
fn attempts_at_a_healthy_server_succeed() {
    let testbed = create();
    let nginx = Nginx::start(testbed.test(), 80).unwrap();
    let client = || run(&config(nginx.address()));
    let report = testbed.load().run_on_cpu(client).unwrap().unwrap();
    assert_eq!(report.attempts, 200);
    assert_eq!(report.succeeded, 200, "{report:?}");
    assert!(report.latency.p50_ns > 0);
}

#[test]
fn a_refusal_is_a_failure_and_silence_a_timeout() {
    let testbed = create();
    let closed = SocketAddr::from((testbed.test().ipv4(), 81));
    let client = || run(&config(closed));
    let report = testbed.load().run_on_cpu(client).unwrap().unwrap();
    assert_eq!((report.attempts, report.failed), (200, 200), "{report:?}");
    // It accepts, as far as its backlog goes, and never answers.
    let address = SocketAddr::from((testbed.test().ipv4(), 82));
    let _mute = testbed
        .test()
        .run(|| TcpListener::bind(address))
        .unwrap()
        .unwrap();
    let client = || run(&config(address));
    let report = testbed.load().run_on_cpu(client).unwrap().unwrap();
    assert_eq!(report.timed_out, 200, "{report:?}");
}
