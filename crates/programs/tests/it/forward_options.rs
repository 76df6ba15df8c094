//! The router with several receive queues, with options about sources, and how much of the CPU
//! it leaves to others. Needs root.

use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_core::config::Fraction;
use plimsoll_kernel::knobs::Netdev;
use plimsoll_kernel::link;
use plimsoll_programs::forward::{Config, DataPath, ReversePath, Router};
use plimsoll_testbed::blast::{Schedule, Stop};
use plimsoll_testbed::routed::{Routed, SINK_IPV4, SINK_IPV6, Sink};
use plimsoll_testbed::{Config as TestbedConfig, Host, INNER_DEVICE, Placement};

use crate::common::{
    Books, LIMIT, PATHS, TURN, config, eventually, nothing_is_left, of, offer_from, on_each_path,
    packets_until, sums,
};

/// Starts a router, does `work`, and ends it.
fn routing(hosts: &Routed, config: &Config, work: impl FnOnce(&Router)) {
    let start = || Router::start(config, Vec::new()).expect("the router starts");
    let router = hosts.router().run(start).expect("the router's host");
    hosts.settled().unwrap();
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
    on_each_path(|path| {
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
    });
}

/// Packets that are sent from a source to see what becomes of them.
const LOOKED_AT: u64 = 100;

/// Of all packets so far: forwarded by the router, refused by it, left to the kernel, which looks
/// at the source itself; and how many went on to the sink.
fn outcomes(hosts: &Routed, router: &Router) -> [u64; 4] {
    let status = router.status().unwrap();
    let [forwarded, refused, doubtful] =
        ["forwarded", "reverse_path", "doubtful_source"].map(|outcome| of(&status, outcome));
    [forwarded, refused, doubtful, hosts.sent().unwrap()]
}

/// What became of a hundred packets from this source, as [`outcomes`].
fn from_source(hosts: &Routed, router: &Router, source: &str) -> [u64; 4] {
    let destination = match source.contains(':') {
        true => SINK_IPV6.to_string(),
        false => SINK_IPV4.to_string(),
    };
    let before = outcomes(hosts, router);
    let schedule = Schedule::Fixed { rate_pps: 5_000 };
    let from = (source, hosts.load().cpu());
    offer_from(hosts, from, &destination, LOOKED_AT, schedule);
    let became = || {
        let now = outcomes(hosts, router);
        [0, 1, 2, 3].map(|at| now[at] - before[at])
    };
    // Once each has been judged, and was refused or went on, nothing more comes.
    let is_all = |[forwarded, refused, doubtful, left]: [u64; 4]| {
        forwarded + refused + doubtful == LOOKED_AT && refused + left == LOOKED_AT
    };
    let mut found = became();
    let end = Instant::now() + AT_ONCE;
    while !is_all(found) && Instant::now() < end {
        thread::sleep(Duration::from_millis(2));
        found = became();
    }
    if is_all(found) {
        return found;
    }
    hosts.settled().unwrap();
    became()
}

/// Within this time packets go on that do, as a rule.
const AT_ONCE: Duration = Duration::from_millis(20);

const FORWARDED: [u64; 4] = [100, 0, 0, 100];
const REFUSED: [u64; 4] = [0, 100, 0, 0];
/// The kernel has dropped them.
const LEFT_TO_KERNEL: [u64; 4] = [0, 0, 100, 0];

/// RFC 3704. The sink's network is a way back that leads elsewhere; to 203.0.113.0/24 and
/// `2001:db8::/32` there is none.
#[test]
fn sources_are_looked_at_as_asked() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let sources = [
        ["198.18.0.1/32", "10.77.0.50/32", "203.0.113.7/32"],
        ["2001:2::1/128", "fd00:77::50/128", "2001:db8::7/128"],
    ];
    let (all, none) = (FORWARDED, REFUSED);
    let cases = [
        (ReversePath::Off, [all, all, all]),
        (ReversePath::Loose, [all, all, none]),
        (ReversePath::Strict, [all, none, none]),
    ];
    on_each_path(|path| {
        let hosts = Routed::create(TestbedConfig::default(), Sink::Drops).expect("three hosts");
        for (how, expected) in cases {
            let config = Config {
                reverse_path: Some(how),
                ..config(path)
            };
            routing(&hosts, &config, |router| {
                for sources in sources {
                    let found = sources.map(|source| from_source(&hosts, router, source));
                    assert_eq!(found, expected, "{path:?}, {how:?}");
                }
            });
        }
    });
}

/// `rp_filter` had counted for IPv6, which has none. One of two ways back had been compared in
/// the driver, and half of the sources lost everything.
#[test]
fn without_a_wish_sources_are_looked_at_as_the_kernel_does() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    on_each_path(|path| {
        let hosts = Routed::create(TestbedConfig::default(), Sink::Drops).expect("three hosts");
        let middle = hosts.router();
        let both = format!(
            "route add 203.0.113.0/24 nexthop via {} dev {} nexthop via {SINK_IPV4} dev {INNER_DEVICE}",
            hosts.load().ipv4(),
            middle.device()
        );
        middle.ip(&both).unwrap();
        middle.sysctl("net/ipv4/conf/test0/rp_filter", "1").unwrap();
        routing(&hosts, &config(path), |router| {
            let of_source = |source| from_source(&hosts, router, source);
            assert_eq!(of_source("198.18.0.1/32"), FORWARDED, "{path:?}");
            // User space knows all ways back, and what it left to the kernel would be forwarded.
            let dropped = match path {
                DataPath::Xdp => LEFT_TO_KERNEL,
                DataPath::User => REFUSED,
            };
            assert_eq!(of_source("10.77.0.50/32"), dropped, "{path:?}");
            assert_eq!(of_source("fd00:77::50/128"), FORWARDED, "{path:?}");
            let [forwarded, refused, doubtful, left] = of_source("203.0.113.0/24");
            assert_eq!((refused, left), (0, 100), "{path:?}");
            assert_eq!(forwarded + doubtful, 100, "{path:?}");
        });
    });
}

/// Linux drops IPv4 packets that claim to be from itself, whatever `rp_filter` says, unless it is
/// told to take them. It forwards such packets of IPv6.
#[test]
fn packets_from_the_routers_own_addresses_are_the_kernels() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    on_each_path(|path| {
        let hosts = Routed::create(TestbedConfig::default(), Sink::Drops).expect("three hosts");
        routing(&hosts, &config(path), |router| {
            let of_source = |source| from_source(&hosts, router, source);
            for own in ["10.77.0.1/32", "198.18.0.2/32"] {
                assert_eq!(of_source(own), LEFT_TO_KERNEL, "{path:?}, {own}");
            }
            assert_eq!(of_source("fd00:77::1/128"), FORWARDED, "{path:?}");
            let take = "net/ipv4/conf/test0/accept_local";
            hosts.router().sysctl(take, "1").unwrap();
            assert_eq!(of_source("10.77.0.1/32"), [0, 0, 100, 100], "{path:?}");
        });
    });
}

/// They had been read at the start alone.
#[test]
fn the_kernels_switches_count_while_it_works() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    on_each_path(|path| {
        let hosts = Routed::create(TestbedConfig::default(), Sink::Drops).expect("three hosts");
        let set = |switch: &str, value| {
            let name = format!("net/{switch}");
            hosts.router().sysctl(&name, value).unwrap();
        };
        routing(&hosts, &config(path), |router| {
            let soon = |source: &str, left| {
                let what = format!("{path:?}: {left} of 100 packets from {source} go on");
                eventually(&what, || from_source(&hosts, router, source)[3] == left);
            };
            let (right, elsewhere) = ("198.18.0.1/32", "10.77.0.50/32");
            soon(elsewhere, 100);
            set("ipv4/conf/test0/rp_filter", "1");
            soon(elsewhere, 0);
            set("ipv4/conf/test0/rp_filter", "0");
            soon(elsewhere, 100);
            for switch in ["ipv4/conf/test0/forwarding", "ipv4/ip_forward"] {
                set(switch, "0");
                soon(right, 0);
                set(switch, "1");
                soon(right, 100);
            }
            soon("2001:2::1/128", 100);
            set("ipv6/conf/all/forwarding", "0");
            soon("2001:2::1/128", 0);
        });
    });
}

/// The interface's own switch had counted, which the kernel does not ask: packets passed that it
/// drops, and went to it without a limit where it forwards.
#[test]
fn ipv6_goes_by_the_switches_that_the_kernel_asks() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    on_each_path(|path| {
        let hosts = Routed::create(TestbedConfig::default(), Sink::Drops).expect("three hosts");
        let set = |switch: &str, value| {
            let name = format!("net/ipv6/conf/{switch}");
            hosts.router().sysctl(&name, value)
        };
        set("all/forwarding", "0").unwrap();
        set("test0/forwarding", "1").unwrap();
        routing(&hosts, &config(path), |router| {
            let of_source = || from_source(&hosts, router, "2001:2::1/128");
            let not_forwarded = || {
                let before = of(&router.status().unwrap(), "forwarding_off");
                let found = of_source();
                let off = of(&router.status().unwrap(), "forwarding_off") - before;
                assert_eq!((found, off), ([0; 4], LOOKED_AT), "{path:?}");
            };
            not_forwarded();
            // Since Linux 6.17.
            if set("test0/force_forwarding", "1").is_ok() {
                eventually("a packet goes on", || of_source()[3] == LOOKED_AT);
                set("test0/force_forwarding", "0").unwrap();
                eventually("none goes on", || of_source()[3] == 0);
                not_forwarded();
            }
            set("all/forwarding", "1").unwrap();
            set("test0/forwarding", "0").unwrap();
            let all = match path {
                DataPath::Xdp => LOOKED_AT,
                DataPath::User => 0,
            };
            eventually("all go on, from the driver by the kernel", || {
                let before = of(&router.status().unwrap(), "kernel_route");
                let left = of_source()[3];
                let by_kernel = of(&router.status().unwrap(), "kernel_route") - before;
                (left, by_kernel) == (LOOKED_AT, all)
            });
        });
    });
}

/// User space had forwarded on, and the kernel dropped all packets that it was handed: nobody
/// answered those without a route, and no neighbour was asked for.
#[test]
fn user_space_ends_when_the_kernel_would_drop_what_it_hands_over() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let hosts = Routed::create(TestbedConfig::default(), Sink::Drops).expect("three hosts");
    routing(&hosts, &config(DataPath::User), |router| {
        let of_source = || from_source(&hosts, router, "198.18.0.1/32");
        eventually("user space forwards", || of_source() == FORWARDED);
        assert_eq!(router.failure(), None);
        let middle = hosts.router();
        middle.sysctl("net/ipv4/conf/all/rp_filter", "1").unwrap();
        eventually("a failure", || router.failure().is_some());
        let failure = router.failure().unwrap();
        assert!(failure.contains("net.ipv4.conf.all.rp_filter"), "{failure}");
        assert_eq!(of_source(), [0, 0, 0, 100], "the kernel forwards");
    });
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
            let stop = Stop::new();
            let flooding = stop.clone();
            let flood = move || packets_until(hosts, &SINK_IPV4.to_string(), 500_000, &flooding);
            let flood = scope.spawn(flood);
            thread::sleep(Duration::from_millis(300));
            let all = || -> Duration { tids.iter().map(|tid| cpu_time(*tid)).sum() };
            let (before, at) = (all(), Instant::now());
            thread::sleep(Duration::from_millis(1_000));
            assert!(!flood.is_finished(), "measured beside the flood");
            let share = (all() - before).as_secs_f64() / at.elapsed().as_secs_f64();
            let end = Instant::now() + LIMIT;
            while of(&router.status().unwrap(), "forwarded") <= 10_000 {
                assert!(Instant::now() < end, "{:?}", router.status());
                thread::sleep(Duration::from_millis(20));
            }
            stop.stop();
            flood.join().unwrap();
            share * 100.0
        });
        drop(computing);
    });
    taken
}

/// Forwarding leaves a process that computes its part, also where a flood would take all. By the
/// threads' own clocks: other work on this CPU takes none from the limit. Of three tries the
/// median counts: that of two that are as they should be, whatever the third would be.
#[test]
fn forwarding_keeps_to_its_part_of_the_cpu() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = f64::from(CPU_LIMIT);
    // It is a flood: much of the limit is used.
    let allowed = limit / 4.0..=limit + 3.0;
    for path in PATHS {
        let hosts = Routed::create(TestbedConfig::default(), Sink::Drops).expect("three hosts");
        let holdoff = Duration::from_micros(50);
        hosts.place(Placement::Softirq { holdoff }).unwrap();
        let mut taken = [(); 2]
            .map(|()| taken_beside_a_process(&hosts, path))
            .to_vec();
        if !taken.iter().all(|taken| allowed.contains(taken)) {
            taken.push(taken_beside_a_process(&hosts, path));
        }
        eprintln!("{path:?}: {taken:.1?} % of {CPU_LIMIT}");
        taken.sort_by(f64::total_cmp);
        assert!(allowed.contains(&taken[1]), "{path:?}: {taken:?}");
    }
}
