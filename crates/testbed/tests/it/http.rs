//! A real client gets real pages from a real server.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_kernel::error::with_causes;
use plimsoll_testbed::Placement;
use plimsoll_testbed::http::{HttpLoad, Nginx, run_wrk};

use crate::common::create;

const PATIENCE: Duration = Duration::from_secs(15);

#[test]
fn wrk_gets_pages_from_nginx() {
    let testbed = create();
    let holdoff = Duration::from_micros(50);
    Placement::Softirq { holdoff }.apply(&testbed).unwrap();
    let nginx = Nginx::start(testbed.test(), 80).unwrap();
    for keep_alive in [true, false] {
        let load = HttpLoad {
            connections: 8,
            seconds: 1,
            keep_alive,
            patience: PATIENCE,
        };
        let result = run_wrk(testbed.load(), nginx.address(), load).unwrap();
        assert!(result.requests > 100, "{result:?}");
        assert!(result.requests_per_second > 100.0, "{result:?}");
        assert_eq!((result.errors, result.timeouts), (0, 0), "{result:?}");
        assert!(result.latency_p50_us > 0.0 && result.latency_p50_us <= result.latency_p99_us);
    }
}

#[test]
fn a_server_that_is_not_there_is_an_error_or_counts_errors() {
    let testbed = create();
    let address: SocketAddr = (testbed.test().ipv4(), 81).into();
    let load = HttpLoad {
        connections: 1,
        seconds: 1,
        keep_alive: true,
        patience: PATIENCE,
    };
    match run_wrk(testbed.load(), address, load) {
        Ok(result) => assert_eq!(result.requests, 0, "{result:?}"),
        Err(error) => assert!(error.to_string().contains("wrk"), "{error}"),
    }
}

#[test]
fn a_second_nginx_on_the_same_port_says_why_it_failed() {
    let testbed = create();
    let _first = Nginx::start(testbed.test(), 80).unwrap();
    let error = Nginx::start(testbed.test(), 80).unwrap_err();
    assert!(with_causes(&error).contains("in use"), "{error}");
}
