//! What the tests of the router share: hosts on both sides of it, floods, its books.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_programs::forward::{Config, DataPath, InterfaceStatus, Router, Status};
use plimsoll_testbed::blast::{
    Blast, Bound, Flow, Priority, Report, Schedule, Spec, Stop, Transport,
};
use plimsoll_testbed::routed::{Routed, SINK_IPV4, Sink};
use plimsoll_testbed::{Config as TestbedConfig, Host, INNER_DEVICE};

/// Two CPUs are shared by all.
pub(crate) static TURN: Mutex<()> = Mutex::new(());

/// Of the host behind the router, and of the router there ([`Sink::Answers`]).
pub(crate) const ANSWERING: &str = "10.77.0.2";
pub(crate) const ROUTER_BEHIND: &str = "10.77.0.1";

pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) const PATHS: [DataPath; 2] = [DataPath::Xdp, DataPath::User];

pub(crate) fn config(path: DataPath) -> Config {
    Config {
        interfaces: vec!["test0".to_owned(), INNER_DEVICE.to_owned()],
        path,
        ..Config::default()
    }
}

pub(crate) fn with_router(path: DataPath, sink: Sink, work: impl Fn(&Routed, &Router)) {
    with_router_of(&config(path), sink, |_| (), work);
}

/// The same with other settings, after the hosts were prepared.
pub(crate) fn with_router_of(
    config: &Config,
    sink: Sink,
    prepare: impl Fn(&Routed),
    work: impl Fn(&Routed, &Router),
) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    beside_others(config, sink, prepare, work);
}

/// With a router on each path at once, where packets are counted and no time is: most of it is
/// waiting.
pub(crate) fn with_both_routers(sink: Sink, work: impl Fn(&Routed, &Router) + Sync) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    on_each_path(|path| beside_others(&config(path), sink, |_| (), &work));
}

pub(crate) fn on_each_path(test: impl Fn(DataPath) + Sync) {
    thread::scope(|scope| {
        for path in PATHS {
            let test = &test;
            // The name is told if it fails.
            let thread = thread::Builder::new().name(format!("{path:?}"));
            thread.spawn_scoped(scope, move || test(path)).unwrap();
        }
    });
}

fn beside_others(
    config: &Config,
    sink: Sink,
    prepare: impl Fn(&Routed),
    work: impl Fn(&Routed, &Router),
) {
    let hosts = Routed::create(TestbedConfig::default(), sink).expect("three hosts");
    prepare(&hosts);
    let start = || Router::start(config, Vec::new()).expect("the router starts");
    let router = hosts.router().run(start).expect("the router's host");
    work(&hosts, &router);
    // In its own namespace: settings are put back there.
    hosts.router().run(move || drop(router)).unwrap();
    nothing_is_left(&hosts);
}

pub(crate) fn nothing_is_left(hosts: &Routed) {
    let links = said(hosts.router(), "ip -details link show");
    assert!(!links.contains("xdp"), "{links}");
    assert!(!links.contains(": plimsoll"), "{links}");
}

/// Output of a shell command, whatever it ends with.
pub(crate) fn said(host: &Host, words: &str) -> String {
    let mut command = host.command("sh");
    let output = command
        .args(["-c", &format!("{words} 2>&1 || true")])
        .output(LIMIT)
        .unwrap_or_else(|error| panic!("{words}: {error}"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn ping(host: &Host, words: &str) -> String {
    said(host, &format!("ping -n -i 0.01 -W 2 {words}"))
}

pub(crate) fn is_answered(host: &Host, words: &str) {
    let answer = ping(host, words);
    assert!(answer.contains(" 0% packet loss"), "{words}: {answer}");
}

pub(crate) fn of(status: &Status, outcome: &str) -> u64 {
    let of_interface = |interface: &InterfaceStatus| {
        let seen = serde_json::to_value(interface.outcomes).unwrap();
        let user = serde_json::to_value(interface.user.unwrap_or_default().outcomes).unwrap();
        let number = |counts: &serde_json::Value| counts[outcome].as_u64().unwrap_or(0);
        number(&seen) + number(&user)
    };
    status.interfaces.iter().map(of_interface).sum()
}

pub(crate) fn packets(hosts: &Routed, destination: &str, frames: u64, rate_pps: u64) -> Report {
    offer(hosts, destination, frames, Schedule::Fixed { rate_pps })
}

/// IPv4 packets for the sink, for a second, so many at once.
pub(crate) fn bursts(hosts: &Routed, rate_pps: u64, burst_frames: u32) -> Report {
    let schedule = Schedule::Bursts {
        rate_pps,
        burst_frames,
    };
    offer(hosts, &SINK_IPV4.to_string(), rate_pps, schedule)
}

fn offer(hosts: &Routed, destination: &str, frames: u64, schedule: Schedule) -> Report {
    let source = if destination.contains(':') {
        "2001:2::1/128"
    } else {
        "198.18.0.1/32"
    };
    offer_from(
        hosts,
        (source, hosts.load().cpu()),
        destination,
        frames,
        schedule,
    )
}

/// Packets from these sources, sent by this CPU.
pub(crate) fn offer_from(
    hosts: &Routed,
    from: (&str, usize),
    destination: &str,
    frames: u64,
    schedule: Schedule,
) -> Report {
    offer_until(hosts, from, destination, frames, schedule, &Stop::new())
}

/// Packets at a rate until `stop`, for 10 s at most.
pub(crate) fn packets_until(
    hosts: &Routed,
    destination: &str,
    rate_pps: u64,
    stop: &Stop,
) -> Report {
    let from = ("198.18.0.1/32", hosts.load().cpu());
    let schedule = Schedule::Fixed { rate_pps };
    offer_until(hosts, from, destination, 10 * rate_pps, schedule, stop)
}

fn offer_until(
    hosts: &Routed,
    (source, cpu): (&str, usize),
    destination: &str,
    frames: u64,
    schedule: Schedule,
    stop: &Stop,
) -> Report {
    let flow = Flow {
        source: source.parse().unwrap(),
        source_ports: 1024..=2047,
        destination: destination.parse().unwrap(),
        destination_ports: 9..=9,
        transport: Transport::Udp {
            payload: vec![0; 4],
        },
    };
    let mut spec = Spec::new(hosts.load().device(), hosts.router().mac(), flow, schedule);
    spec.cpu = Some(cpu);
    spec.bound = Bound {
        time: Duration::from_secs(10),
        frames,
    };
    // It stands for another machine: a burst that waits for the CPU would come with the next.
    if matches!(spec.schedule, Schedule::Bursts { .. }) {
        spec.priority = Priority::Nice(-20);
    }
    let blast = || Blast::load(&spec)?.run(stop);
    hosts.load().run(blast).unwrap().unwrap()
}

pub(crate) fn eventually_answered(host: &Host, target: &str) {
    let end = Instant::now() + Duration::from_secs(10);
    while !ping(host, &format!("-c 5 {target}")).contains(" 0% packet loss") {
        assert!(Instant::now() < end, "{target} answers within 10 s");
    }
}

pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// What the router says, and what the adapters say.
pub(crate) struct Books {
    pub(crate) status: Status,
    arrived: Vec<u64>,
    pub(crate) left: u64,
    /// What the output interface's link did not take.
    not_taken: u64,
}

impl Books {
    pub(crate) fn of(hosts: &Routed, router: &Router) -> Self {
        let left = hosts.settled().unwrap();
        let status = router.status().unwrap();
        let arrived = status.interfaces.iter().map(|interface| {
            let counter = hosts.counter(hosts.router(), &interface.name, "rx_packets");
            counter.unwrap()
        });
        let dropped = hosts.counter(hosts.router(), INNER_DEVICE, "tx_dropped");
        Self {
            arrived: arrived.collect(),
            left,
            not_taken: dropped.unwrap(),
            status,
        }
    }

    /// Since then each arriving frame had one outcome.
    pub(crate) fn arrivals_match(&self, end: &Self) {
        let status = &end.status;
        for (place, interface) in status.interfaces.iter().enumerate() {
            let received = interface.received - self.status.interfaces[place].received;
            let arrived = end.arrived[place] - self.arrived[place];
            assert_eq!(received, arrived, "{status}");
            if let Some(user) = interface.user {
                let seen = serde_json::to_value(interface.outcomes).unwrap();
                let handed = seen["to_user"].as_u64().unwrap_or(0);
                assert_eq!(handed, user.outcomes.total() + user.lost, "{status}");
            }
        }
    }

    /// Frames for which the ring to user space had no room.
    pub(crate) fn lost(&self) -> u64 {
        let lost = |interface: &InterfaceStatus| interface.user.unwrap_or_default().lost;
        self.status.interfaces.iter().map(lost).sum()
    }

    pub(crate) fn done(&self) -> u64 {
        let done = |interface: &InterfaceStatus| {
            let transmitted = interface.transmitted;
            transmitted.sent + transmitted.dropped + transmitted.failed
        };
        self.status.interfaces.iter().map(done).sum()
    }
}

/// Everything is counted once, and as often as the adapters have it.
pub(crate) fn sums(start: &Books, end: &Books) {
    start.arrivals_match(end);
    let status = &end.status;
    assert_eq!(end.done(), of(status, "forwarded"), "{status}");
    // A redirect that the link does not take is told at once. What user space sends,
    // the interface counts.
    let is_user = status.interfaces[1].user.is_some();
    let sent = |books: &Books| books.status.interfaces[1].transmitted.sent;
    let left = |books: &Books| books.left + if is_user { books.not_taken } else { 0 };
    assert_eq!(sent(end) - sent(start), left(end) - left(start), "{status}");
}
