//! The router with several receive queues, with options about sources, and how much of the CPU
//! it leaves to others. Needs root.

mod common;

use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_core::config::Fraction;
use plimsoll_kernel::knobs::Netdev;
use plimsoll_kernel::link;
use plimsoll_programs::forward::{Config, DataPath, ReversePath, Router};
use plimsoll_testbed::blast::Schedule;
use plimsoll_testbed::routed::{Routed, SINK_IPV4, Sink};
use plimsoll_testbed::{Config as TestbedConfig, Host, INNER_DEVICE, Placement};

use common::{Books, LIMIT, TURN, config, nothing_is_left, of, offer_from, packets, sums};

const PATHS: [DataPath; 2] = [DataPath::Xdp, DataPath::User];

/// Starts a router, does `work`, and ends it.
fn routing(hosts: &Routed, config: &Config, work: impl FnOnce(&Router)) {
    let start = || Router::start(config, Vec::new()).expect("the router starts");
    let router = hosts.router().run(start).expect("the router's host");
    work(&router);
    hosts.router().run(move || drop(router)).unwrap();
    nothing_is_left(hosts);
}

/// Frames that the program of this queue has seen.
fn seen_by_queue(host: &Host, queue: usize) -> u64 {
    let mut command = host.command("ethtool");
    let output = command.args(["-S", host.device()]).output(LIMIT).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let name = format!("rx_queue_{queue}_xdp_packets:");
    let mut lines = text.lines();
    let number = lines.find_map(|line| line.trim().strip_prefix(&name)?.trim().parse().ok());
    number.unwrap_or_else(|| panic!("{name} in {text}"))
}

#[test]
fn all_receive_queues_are_forwarded() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for path in PATHS {
        let hosts = Routed::create(TestbedConfig::default(), Sink::Drops).expect("three hosts");
        let (load, middle) = (hosts.load(), hosts.router());
        for (host, device) in [
            (load, load.device()),
            (middle, middle.device()),
            (hosts.sink(), hosts.sink().device()),
            (middle, INNER_DEVICE),
        ] {
            host.configure("ethtool", ["-L", device, "rx", "2", "tx", "2"])
                .unwrap();
        }
        let config = Config {
            protected: (path == DataPath::User).then(|| "udp src portrange 1024-1535".to_owned()),
            ..config(path)
        };
        routing(&hosts, &config, |router| {
            let start = Books::of(&hosts, router);
            // What a CPU sends arrives in the queue with its number.
            let sent = [load.cpu(), middle.cpu()].map(|cpu| {
                let schedule = Schedule::Fixed { rate_pps: 5_000 };
                let from = ("198.18.0.1/32", cpu);
                offer_from(&hosts, from, &SINK_IPV4.to_string(), 5_000, schedule).sent
            });
            let books = Books::of(&hosts, router);
            let status = &books.status;
            assert!(
                [0, 1]
                    .iter()
                    .all(|queue| seen_by_queue(middle, *queue) > 4_000)
            );
            let sent: u64 = sent.iter().sum();
            let forwarded = of(status, "forwarded");
            assert_eq!(forwarded + books.lost(), sent, "{status}");
            assert!(forwarded > 9_000, "{status}");
            assert_eq!(of(status, "kernel_route"), 0, "{status}");
            // Half of the source ports.
            let user = status.interfaces[0].user;
            let half = sent / 3..sent * 2 / 3;
            assert!(
                user.is_none_or(|user| half.contains(&user.protected)),
                "{status}"
            );
            sums(&start, &books);
        });
    }
}

/// What a router says of a hundred packets from this source: forwarded, and refused.
fn from_source(hosts: &Routed, router: &Router, source: &str) -> [u64; 2] {
    let read = || {
        let status = Books::of(hosts, router).status;
        ["forwarded", "reverse_path"].map(|outcome| of(&status, outcome))
    };
    let before = read();
    let schedule = Schedule::Fixed { rate_pps: 2_000 };
    let from = (source, hosts.load().cpu());
    offer_from(hosts, from, &SINK_IPV4.to_string(), 100, schedule);
    let after = read();
    [0, 1].map(|at| after[at] - before[at])
}

/// RFC 3704. The sink's network is a way back that leads elsewhere; to 203.0.113.0/24 there is
/// none.
#[test]
fn sources_are_looked_at_as_asked() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let sources = ["198.18.0.1/32", "10.77.0.50/32", "203.0.113.7/32"];
    let (all, none) = ([100, 0], [0, 100]);
    let cases = [
        (ReversePath::Off, [all, all, all]),
        (ReversePath::Loose, [all, all, none]),
        (ReversePath::Strict, [all, none, none]),
    ];
    for path in PATHS {
        let hosts = Routed::create(TestbedConfig::default(), Sink::Drops).expect("three hosts");
        for (how, expected) in cases {
            let config = Config {
                reverse_path: Some(how),
                ..config(path)
            };
            routing(&hosts, &config, |router| {
                let found = sources.map(|source| from_source(&hosts, router, source));
                assert_eq!(found, expected, "{path:?}, {how:?}");
            });
        }
    }
}

/// Part of the CPU that forwarding may take, in percent.
const CPU_LIMIT: u32 = 40;

/// CPU time of a thread.
fn cpu_time(tid: i32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{tid}/schedstat")).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// The threads that forward: those of this process, and the kernel's that poll.
fn threads(hosts: &Routed) -> Vec<i32> {
    let polling = hosts.router().run(|| {
        let indices = ["test0", INNER_DEVICE].map(|name| link::index(name).unwrap());
        let instances = indices.map(|index| Netdev::new().instances(index).unwrap());
        let threads = instances.iter().flatten().filter_map(|napi| napi.thread);
        threads.collect::<Vec<_>>()
    });
    let mut all = polling.unwrap();
    assert!(!all.is_empty(), "the kernel polls in threads");
    for entry in std::fs::read_dir("/proc/self/task").unwrap() {
        let entry = entry.unwrap();
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if ["forward\n", "protected\n"].contains(&name.as_str()) {
            all.push(entry.file_name().to_str().unwrap().parse().unwrap());
        }
    }
    all
}

/// Part of a CPU that forwarding took in a flood beside a process that wants all of it, in
/// percent.
fn taken_beside_a_process(hosts: &Routed, path: DataPath) -> f64 {
    let config = Config {
        cpu: Some(hosts.router().cpu()),
        cpu_limit: Some(Fraction::from_percent(CPU_LIMIT)),
        protected: (path == DataPath::User).then(|| "udp dst port 22".to_owned()),
        ..config(path)
    };
    let mut taken = 0.0;
    routing(hosts, &config, |router| {
        let computing = hosts.router().computing().spawn().unwrap();
        let tids = threads(hosts);
        taken = thread::scope(|scope| {
            let flood = || packets(hosts, &SINK_IPV4.to_string(), 1_000_000, 500_000);
            let flood = scope.spawn(flood);
            thread::sleep(Duration::from_millis(300));
            let all = || -> Duration { tids.iter().map(|tid| cpu_time(*tid)).sum() };
            let (before, at) = (all(), Instant::now());
            thread::sleep(Duration::from_millis(1_000));
            assert!(!flood.is_finished(), "measured beside the flood");
            let share = (all() - before).as_secs_f64() / at.elapsed().as_secs_f64();
            flood.join().unwrap();
            share * 100.0
        });
        drop(computing);
        let status = router.status().unwrap();
        assert!(of(&status, "forwarded") > 10_000, "{status}");
    });
    taken
}

/// Forwarding leaves a process that computes its part, also where a flood would take all. By the
/// threads' own clocks: other work on this CPU takes none from the limit. Of several tries the
/// median counts.
#[test]
fn forwarding_keeps_to_its_part_of_the_cpu() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for path in PATHS {
        let hosts = Routed::create(TestbedConfig::default(), Sink::Drops).expect("three hosts");
        let holdoff = Duration::from_micros(50);
        hosts.place(Placement::Softirq { holdoff }).unwrap();
        let mut taken: Vec<f64> = (0..3)
            .map(|_| taken_beside_a_process(&hosts, path))
            .collect();
        taken.sort_by(f64::total_cmp);
        eprintln!("{path:?}: {taken:.1?} % of {CPU_LIMIT}");
        assert!(
            taken[1] <= f64::from(CPU_LIMIT) + 3.0,
            "{path:?}: {taken:?}"
        );
        // It is a flood: much of the limit is used.
        assert!(
            taken[1] >= f64::from(CPU_LIMIT) / 4.0,
            "{path:?}: {taken:?}"
        );
    }
}
