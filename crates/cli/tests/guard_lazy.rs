//! Lazy when alone, on a real interface: while nobody but one socket's flood is there the
//! receive ring overflows, and who begins to send is soon noticed. Needs root.

mod common;

use std::path::Path;
use std::time::Duration;

use common::overload::{await_report, busy_server, flood, flooded, receive_on_test_cpu};
use common::{PROGRAM, start_with};
use plimsoll_testbed::server::{Config as Serving, Kind, Server};
use plimsoll_testbed::{Config, Testbed, probe};
use serde_json::Value;

const FLOODED: u16 = 7000;
const OTHER: u16 = 7001;
/// Many times what the server takes.
const RATE_PPS: u64 = 600_000;
/// Of a bystander or client that begins.
const PROBES_PPS: u32 = 100;
const PROBING: Duration = Duration::from_secs(1);
/// A packet of one that begins is polled with a chance of a half, so sixteen in a row are
/// hardly lost before it is noticed. (More than three are in one run of sixteen.)
const LOST_MAX: u64 = 16;
/// Reports of 100 ms in which laziness begins: the flood's own pauses may delay it.
const REPORTS_MAX: usize = 200;
/// The same in which it must not begin: six times the shortest quiet.
const REPORTS: usize = 30;

fn reason(report: &Value) -> &str {
    report["governor"]["reason"].as_str().unwrap()
}

/// Floods one socket from one source; then somebody asks at `port`. Their probes, and
/// whether the guard was lazy before and while they came.
fn begin_beside_flood(
    port: u16,
    arguments: &[&str],
    reports_max: usize,
) -> (probe::Report, bool, bool) {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let arguments = [&["--interval-ms", "100"], arguments].concat();
    let (_guard, mut reports) = start_with(host, &arguments);
    receive_on_test_cpu(&testbed);
    let echo = Serving {
        rcvbuf_bytes: Some(1 << 20),
        ..Serving::new(Kind::Echo, OTHER)
    };
    let _servers = (
        busy_server(host, FLOODED),
        Server::start(host, Path::new(PROGRAM), &echo).unwrap(),
    );
    let mut spec = flood(&testbed, FLOODED..=FLOODED, RATE_PPS);
    spec.flow.source = "10.9.9.9/32".parse().unwrap();
    let (outcome, sent) = flooded(&testbed, &spec, || {
        let mut left = reports_max;
        let mut is_lazy = false;
        await_report(&mut reports, "alone, or that it is not", |report| {
            left -= 1;
            is_lazy = reason(report) == "alone";
            is_lazy || left == 0
        });
        let config = probe::Config {
            rate_pps: PROBES_PPS,
            duration: PROBING,
            realtime: true,
            ..probe::Config::new((host.ipv4(), port).into())
        };
        let probing = || probe::run(&config);
        let report = testbed.load().run(probing).unwrap().unwrap();
        // Reports have waited meanwhile: the last of them is of the probing's end.
        let mut of_probing = PROBING.as_millis() as usize / 100;
        let last = await_report(&mut reports, "anything", |_| {
            of_probing -= 1;
            of_probing == 0
        });
        (report, is_lazy, reason(&last) == "alone")
    });
    assert!(sent.sent > RATE_PPS, "a flood: {}", sent.sent);
    outcome
}

#[test]
fn a_bystander_that_begins_beside_a_lone_flood_is_noticed() {
    let (probes, before, meanwhile) = begin_beside_flood(OTHER, &[], REPORTS_MAX);
    assert!(before, "nobody else was there");
    assert!(!meanwhile, "the bystander is seen");
    eprintln!("the bystander lost {} of {}", probes.lost, probes.sent);
    assert!(
        probes.lost <= LOST_MAX,
        "{} of {}",
        probes.lost,
        probes.sent
    );
}

/// The ring loses protected packets like any others, so no more of them may be lost.
#[test]
fn protected_traffic_that_begins_beside_a_lone_flood_is_noticed() {
    let protecting = ["--protect-ports", "7001/udp"];
    let (probes, before, meanwhile) = begin_beside_flood(OTHER, &protecting, REPORTS_MAX);
    assert!(before, "nobody else was there");
    assert!(!meanwhile, "protected traffic is seen");
    eprintln!("it lost {} of {}", probes.lost, probes.sent);
    assert!(
        probes.lost <= LOST_MAX,
        "{} of {}",
        probes.lost,
        probes.sent
    );
}

/// Who asks for less than its share is served beside the flood, which needs all packets
/// to be looked at.
#[test]
fn a_client_of_the_flooded_server_that_begins_is_noticed() {
    let (probes, before, meanwhile) = begin_beside_flood(FLOODED, &[], REPORTS_MAX);
    assert!(before, "nobody else was there");
    assert!(!meanwhile, "the client is seen");
    // The sink answers nobody.
    assert_eq!(probes.answered, 0);
}

#[test]
fn who_asks_for_it_has_everything_looked_at() {
    let (_, before, _) = begin_beside_flood(OTHER, &["--lazy", "false"], REPORTS);
    assert!(!before);
}
