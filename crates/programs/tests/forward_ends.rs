//! How the router begins: between hosts that send meanwhile. Needs root.

mod common;

use std::sync::PoisonError;
use std::thread;
use std::time::Duration;

use plimsoll_programs::forward::{Config, DataPath, Limits, Router, Status};
use plimsoll_testbed::Config as TestbedConfig;
use plimsoll_testbed::blast::Stop;
use plimsoll_testbed::routed::{Routed, SINK_IPV4, Sink};

use common::{Books, TURN, config, nothing_is_left, of, packets_until};

/// The kernel may forward as much as it can.
fn unlimited() -> Config {
    Config {
        limits: Limits {
            answered_pps: 0,
            unresolved_pps: 0,
            slow_pps: 0,
        },
        protected: Some("udp src portrange 1024-1535".to_owned()),
        ..config(DataPath::User)
    }
}

/// A veth end takes a generator's frames if it has a program or GRO.
fn takes_frames_without_a_program(hosts: &Routed) {
    let router = hosts.router();
    let arguments = ["-K", router.device(), "gro", "on"];
    router.configure("ethtool", arguments).unwrap();
}

/// What a router says of packets that are sent while it starts, and how many its rings lost.
fn started_in_a_flow(hosts: &Routed) -> (Status, u64) {
    let stop = Stop::new();
    let router = thread::scope(|scope| {
        let flow = scope.spawn(|| packets_until(hosts, &SINK_IPV4.to_string(), 100_000, &stop));
        thread::sleep(Duration::from_millis(100));
        let start = || Router::start(&unlimited(), Vec::new()).expect("the router starts");
        let router = hosts.router().run(start).expect("the router's host");
        stop.stop();
        flow.join().unwrap();
        router
    });
    let books = Books::of(hosts, &router);
    hosts.router().run(move || drop(router)).unwrap();
    nothing_is_left(hosts);
    let lost = books.lost();
    (books.status, lost)
}

/// Programs gave frames to each ring from the moment that it was opened, before anybody read
/// it. The rings overflowed, although the kernel would have forwarded these packets.
#[test]
fn the_kernel_forwards_until_user_space_does() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let hosts = Routed::create(TestbedConfig::default(), Sink::Drops).expect("three hosts");
    takes_frames_without_a_program(&hosts);
    let mut said = String::new();
    // Other processes may take the CPUs: then it is tried again.
    let passes = (0..8).any(|_| {
        let (status, lost) = started_in_a_flow(&hosts);
        said += &format!("{lost} lost: {status}\n");
        let both = ["kernel_route", "forwarded"].map(|outcome| of(&status, outcome) > 0);
        lost == 0 && both == [true; 2]
    });
    assert!(passes, "{said}");
}
