//! How the router begins and ends: between hosts that send meanwhile. Needs root.

use std::sync::PoisonError;
use std::thread;
use std::time::Duration;

use plimsoll_core::config::Fraction;
use plimsoll_programs::forward::outcome::Fate;
use plimsoll_programs::forward::{Config, DataPath, Limits, Router, Status, Transmitted};
use plimsoll_testbed::Config as TestbedConfig;
use plimsoll_testbed::blast::Stop;
use plimsoll_testbed::routed::{Routed, SINK_IPV4, Sink};
use plimsoll_tries::repeated;

use crate::common::{
    Books, TURN, config, eventually, eventually_answered, nothing_is_left, of, on_each_path,
    packets_until, ping, said,
};

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
    let passes = repeated(8, || {
        let (status, lost) = started_in_a_flow(&hosts);
        said += &format!("{lost} lost: {status}\n");
        let both = ["kernel_route", "forwarded"].map(|outcome| of(&status, outcome) > 0);
        lost == 0 && both == [true; 2]
    });
    assert!(passes, "{said}");
}

/// What a router says at its end, and whether there was still a flood then.
fn ended_in_a_flood(hosts: &Routed) -> (Status, bool) {
    // Its rings are full nearly always, since a process wants the rest of its CPU.
    let config = Config {
        cpu: Some(hosts.router().cpu()),
        cpu_limit: Some(Fraction::from_percent(20)),
        ..unlimited()
    };
    let mut shell = hosts.router().command("sh");
    let computing = shell.args(["-c", "while :; do :; done"]).spawn().unwrap();
    let start = || Router::start(&config, Vec::new()).expect("the router starts");
    let router = hosts.router().run(start).expect("the router's host");
    let stop = Stop::new();
    let ended = thread::scope(|scope| {
        let flood = scope.spawn(|| packets_until(hosts, &SINK_IPV4.to_string(), 300_000, &stop));
        eventually("a flood", || {
            of(&router.status().unwrap(), "forwarded") > 1_000
        });
        let is_flooded = !flood.is_finished();
        let status = hosts.router().run(move || router.end()).unwrap();
        stop.stop();
        flood.join().unwrap();
        (status.unwrap(), is_flooded)
    });
    drop(computing);
    nothing_is_left(hosts);
    ended
}

/// What waited in rings and output queues was in no count, and went nowhere although there was
/// time for it. Where other processes take the CPUs, the flood may be over: then it is tried again.
#[test]
fn what_user_space_was_handed_is_worked_off_at_the_end() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let hosts = Routed::create(TestbedConfig::default(), Sink::Drops).expect("three hosts");
    takes_frames_without_a_program(&hosts);
    let is_flooded = repeated(4, || {
        let (status, is_flooded) = ended_in_a_flood(&hosts);
        adds_up(&status);
        is_flooded
    });
    assert!(is_flooded, "it ends in a flood");
}

/// No frame is on its way.
fn adds_up(status: &Status) {
    let (mut forwarded, mut done) = (0, 0);
    for interface in &status.interfaces {
        let seen = serde_json::to_value(interface.outcomes).unwrap();
        let handed = seen["to_user"].as_u64().unwrap_or(0);
        let user = interface.user.expect("a router in user space");
        assert_eq!(handed, user.outcomes.total() + user.lost, "{status}");
        forwarded += user.outcomes.to(Fate::Forwarded);
        let Transmitted {
            sent,
            dropped,
            failed,
        } = interface.transmitted;
        done += sent + dropped + failed;
    }
    assert_eq!(done, forwarded, "{status}");
}

/// They left in clear.
#[test]
fn packets_are_not_forwarded_past_ipsec() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    on_each_path(|path| {
        let hosts = Routed::create(TestbedConfig::default(), Sink::Answers).expect("three hosts");
        takes_frames_without_a_program(&hosts);
        let policy = |what: &str| {
            let words = format!("xfrm policy {what} src 0.0.0.0/0 dst 10.77.0.2/32 dir out");
            let block = if what == "add" { " action block" } else { "" };
            said(hosts.router(), &format!("ip {words}{block}"));
        };
        let start = || Router::start(&config(path), Vec::new());
        let router = hosts.router().run(start).unwrap().expect("it starts");
        let sink = "10.77.0.2";
        eventually_answered(hosts.load(), sink);
        policy("add");
        eventually("an end", || router.failure().is_some());
        let answer = ping(hosts.load(), &format!("-c 3 -i 0.2 -W 1 {sink}"));
        assert!(answer.contains(" 0 received"), "{answer}");
        hosts.router().run(move || drop(router)).unwrap();
        let refused = hosts.router().run(start).unwrap().map(drop).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("IPsec policies hold here (1 for"),
            "{refused}"
        );
        policy("delete");
        let again = hosts.router().run(start).unwrap().expect("it starts");
        hosts.router().run(move || drop(again)).unwrap();
    });
}
