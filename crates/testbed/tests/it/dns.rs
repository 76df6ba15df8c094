//! A real DNS load tool gets real answers from a real server.

use std::time::Duration;

use plimsoll_kernel::error::with_causes;
use plimsoll_testbed::dns::{DnsLoad, Nsd, run_dnsperf};

use crate::common::create;

#[test]
fn dnsperf_gets_answers_from_nsd() {
    let testbed = create();
    let nsd = Nsd::start(testbed.test(), 53).unwrap();
    let load = DnsLoad {
        rate_qps: 500,
        seconds: 1,
        timeout: Duration::from_millis(500),
    };
    let result = run_dnsperf(testbed.load(), nsd.address(), load).unwrap();
    assert!(result.sent > 100, "{result:?}");
    assert_eq!(result.sent, result.completed, "{result:?}");
    assert!(result.queries_per_s > 100.0 && result.latency_mean_us > 0.0);
}

#[test]
fn a_second_nsd_on_the_same_port_says_why_it_failed() {
    let testbed = create();
    let _first = Nsd::start(testbed.test(), 53).unwrap();
    let error = Nsd::start(testbed.test(), 53).unwrap_err();
    assert!(with_causes(&error).contains("in use"), "{error}");
}
