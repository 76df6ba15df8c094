//! Lazy when alone, on a real interface: while nobody but one socket's flood is there the
//! receive ring overflows, and who begins to send is soon noticed. Needs root.

use std::path::Path;
use std::thread;
use std::time::Duration;

use plimsoll_testbed::server::{Config as Serving, Kind, Server};
use plimsoll_testbed::{Config, Testbed, probe};
use plimsoll_tries::repeated;
use serde_json::Value;

use crate::common::overload::{await_report, busy_server, flood, flooded, receive_on_test_cpu};
use crate::common::{PROGRAM, start_with};

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

/// Somebody who begins beside a flood.
struct Beginning {
    probes: probe::Report,
    was_lazy: bool,
    /// What the guard said while the probes came.
    reasons: Vec<String>,
}

impl Beginning {
    /// Asserts that the guard was lazy, and not any more when the probes came. How many
    /// reports it takes is up to who else has the CPU: none is of before the first probe.
    fn is_noticed(&self) {
        assert!(self.was_lazy, "nobody else was there");
        let is_seen = self.reasons.iter().any(|reason| reason != "alone");
        assert!(is_seen, "{:?}: {:?}", self.reasons, self.probes);
    }

    fn hardly_loses(&self) -> bool {
        eprintln!("{} lost: {:?}", self.probes.lost, self.reasons);
        self.probes.lost <= LOST_MAX
    }
}

/// Floods one socket from one source; then somebody asks at `port`.
fn begin_beside_flood(port: u16, arguments: &[&str], reports_max: usize) -> Beginning {
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
        Server::start_as_service(host, Path::new(PROGRAM), &echo).unwrap(),
    );
    let mut spec = flood(&testbed, FLOODED..=FLOODED, RATE_PPS);
    spec.flow.source = "10.9.9.9/32".parse().unwrap();
    let (beginning, sent) = flooded(&testbed, &spec, || {
        let mut left = reports_max;
        let mut was_lazy = false;
        await_report(&mut reports, "alone, or that it is not", |report| {
            left -= 1;
            was_lazy = reason(report) == "alone";
            was_lazy || left == 0
        });
        let config = probe::Config {
            rate_pps: PROBES_PPS,
            duration: PROBING,
            realtime: true,
            ..probe::Config::new((host.ipv4(), port).into())
        };
        let probing = || probe::run(&config);
        let mut reasons = Vec::new();
        let probes = thread::scope(|scope| {
            let probes = scope.spawn(|| testbed.load().run(probing).unwrap().unwrap());
            while !probes.is_finished() {
                let report = await_report(&mut reports, "anything", |_| true);
                reasons.push(reason(&report).to_owned());
            }
            probes.join().unwrap()
        });
        Beginning {
            probes,
            was_lazy,
            reasons,
        }
    });
    assert!(sent.sent > RATE_PPS, "a flood: {}", sent.sent);
    beginning
}

/// Someone who begins is noticed, and hardly loses a packet until then. Where others have the CPU
/// the ring loses his packets with the flood's, or the flood pauses: then it is tried again.
fn is_noticed_and_hardly_loses(arguments: &[&str]) {
    let served = repeated(3, || {
        let beginning = begin_beside_flood(OTHER, arguments, REPORTS_MAX);
        beginning.was_lazy && {
            beginning.is_noticed();
            beginning.hardly_loses()
        }
    });
    assert!(
        served,
        "never lazy, or more than {LOST_MAX} lost, each time"
    );
}

#[test]
fn a_bystander_that_begins_beside_a_lone_flood_is_noticed() {
    is_noticed_and_hardly_loses(&[]);
}

/// The ring loses protected packets like any others, so no more of them may be lost.
#[test]
fn protected_traffic_that_begins_beside_a_lone_flood_is_noticed() {
    is_noticed_and_hardly_loses(&["--protect-ports", "7001/udp"]);
}

/// Who asks for less than its share is served beside the flood, which needs all packets
/// to be looked at.
#[test]
fn a_client_of_the_flooded_server_that_begins_is_noticed() {
    let client = begin_beside_flood(FLOODED, &[], REPORTS_MAX);
    client.is_noticed();
    // The sink answers nobody.
    assert_eq!(client.probes.answered, 0);
}

#[test]
fn who_asks_for_it_has_everything_looked_at() {
    assert!(!begin_beside_flood(OTHER, &["--lazy", "false"], REPORTS).was_lazy);
}
