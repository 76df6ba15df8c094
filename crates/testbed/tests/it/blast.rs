//! The load generator against real links: every frame is captured at the other
//! end and read by smoltcp, which wrote none of it. Needs root.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;
use plimsoll_testbed::blast::{
    Blast, Bound, Departures, End, Flow, Hosts, IMIX_BYTES, Priority, Report, Schedule, Sources,
    Spec, Stop, Transport, imix_payload,
};
use plimsoll_testbed::placement::Placement;
use plimsoll_testbed::{Error, Testbed};
use plimsoll_tries::repeated;

use crate::common;
use crate::common::capture::{Capture, Drawn, check};

const PAYLOAD: &[u8] = b"plimsoll";
const FIXED: Schedule = Schedule::Fixed { rate_pps: 20_000 };

fn testbed() -> Testbed {
    let testbed = common::create();
    let holdoff = Duration::from_micros(50);
    Placement::Softirq { holdoff }.apply(&testbed).unwrap();
    testbed
}

/// A blast of `frames` from 14 IPv4 or 15 IPv6 sources and 4 ports to 3 ports.
fn spec(testbed: &Testbed, ipv6: bool, transport: Transport, frames: u64) -> Spec {
    let (source, destination) = if ipv6 {
        ("2001:2::1:0/124", IpAddr::from(testbed.test().ipv6()))
    } else {
        ("198.18.7.16/28", IpAddr::from(testbed.test().ipv4()))
    };
    let flow = Flow {
        source: source.parse().unwrap(),
        source_ports: 2000..=2003,
        destination,
        destination_ports: 7..=9,
        transport,
    };
    let mut spec = Spec::new(testbed.load().device(), testbed.test().mac(), flow, FIXED);
    spec.bound = Bound {
        time: Duration::from_secs(20),
        frames,
    };
    spec.cpu = Some(testbed.load().cpu());
    spec
}

fn udp() -> Transport {
    Transport::Udp {
        payload: PAYLOAD.to_vec(),
    }
}

fn run(testbed: &Testbed, spec: &Spec, stop: &Stop) -> Report {
    let report = testbed
        .load()
        .run(|| Blast::load(spec)?.run(stop))
        .unwrap()
        .unwrap();
    // Each departure in exactly one account.
    assert_eq!(
        report.offered,
        report.sent + report.ring_full + report.failed
    );
    report
}

/// Sends and captures, and returns what was drawn, in order. A receive ring that was
/// full has cost frames, whatever their fields were.
fn captured(testbed: &Testbed, spec: &Spec) -> Vec<Drawn> {
    let capture = Capture::start(testbed);
    let report = run(testbed, spec, &Stop::new());
    assert_eq!(report.offered, spec.bound.frames, "{report}");
    assert_eq!(report.failed, 0, "{report}");
    let frames = capture.frames(testbed);
    assert_eq!(frames.len() as u64, report.sent, "{report}");
    assert!(frames.iter().all(|frame| frame.len() == report.frame_bytes));
    let read = |frame: &Vec<u8>| check(testbed, frame, PAYLOAD);
    frames.iter().map(read).collect()
}

/// Every frame of a blast. On a busy machine the receiving CPU may be away until its
/// ring is full: then the same is sent once more.
fn captured_whole(testbed: &Testbed, spec: &Spec) -> Vec<Drawn> {
    let mut drawn = Vec::new();
    let finds_room = repeated(20, || {
        drawn = captured(testbed, spec);
        drawn.len() as u64 == spec.bound.frames
    });
    assert!(finds_room, "{} find room in the ring", drawn.len());
    drawn
}

/// Shows LRP-09.
#[test]
fn frames_are_valid_exactly_counted_and_cover_their_ranges() {
    let testbed = testbed();
    for ipv6 in [false, true] {
        for transport in [udp(), Transport::TcpSyn] {
            let spec = spec(&testbed, ipv6, transport, 1000);
            let drawn = captured_whole(&testbed, &spec);
            let all = |values: HashSet<u16>| {
                let mut values: Vec<_> = values.into_iter().collect();
                values.sort_unstable();
                values
            };
            let sources: HashSet<_> = drawn.iter().map(|drawn| drawn.source).collect();
            let expected: HashSet<IpAddr> = if ipv6 {
                let address = |host| Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 1, host).into();
                (0..16).map(address).collect()
            } else {
                let address = |host| Ipv4Addr::new(198, 18, 7, host).into();
                (17..31).map(address).collect()
            };
            assert_eq!(sources, expected);
            assert_eq!(
                all(drawn.iter().map(|drawn| drawn.ports.0).collect()),
                [2000, 2001, 2002, 2003]
            );
            assert_eq!(
                all(drawn.iter().map(|drawn| drawn.ports.1).collect()),
                [7, 8, 9]
            );
            let sequences: HashSet<_> = drawn.iter().filter_map(|drawn| drawn.sequence).collect();
            let is_tcp = matches!(spec.flow.transport, Transport::TcpSyn);
            assert_eq!(sequences.len(), if is_tcp { 1000 } else { 0 });
        }
    }
}

/// Seven, four and one of twelve, each a whole frame with right checksums.
#[test]
fn lengths_are_mixed_as_on_the_internet() {
    let testbed = testbed();
    for ipv6 in [false, true] {
        let mut spec = spec(&testbed, ipv6, udp(), 240);
        let payload = imix_payload(&spec.flow);
        spec.flow.transport = Transport::Udp { payload };
        spec.imix = true;
        let frames = (0..20)
            .map(|_| {
                let capture = Capture::start(&testbed);
                run(&testbed, &spec, &Stop::new());
                capture.frames(&testbed)
            })
            .find(|frames| frames.len() == 240);
        let frames = frames.expect("one of twenty blasts finds room in the ring");
        for frame in &frames {
            let headers = if ipv6 { 62 } else { 42 };
            check(&testbed, frame, &vec![0; frame.len() - headers]);
        }
        let count = |bytes| frames.iter().filter(|frame| frame.len() == bytes).count();
        let shortest = if ipv6 { 62 } else { IMIX_BYTES[0] };
        let counts = [shortest, IMIX_BYTES[1], IMIX_BYTES[2]].map(count);
        assert_eq!(counts, [140, 80, 20]);
    }
}

#[test]
fn fixed_fields_stay_fixed() {
    let testbed = testbed();
    for (ipv6, source) in [(false, "198.18.3.4/32"), (true, "2001:2::3:4/128")] {
        let mut spec = spec(&testbed, ipv6, udp(), 50);
        spec.flow.source = source.parse().unwrap();
        spec.flow.source_ports = 65535..=65535;
        spec.flow.destination_ports = 9..=9;
        let drawn = captured_whole(&testbed, &spec);
        let only = Drawn {
            source: spec.flow.source.first().addr(),
            ports: (65535, 9),
            sequence: None,
        };
        assert_eq!(drawn, vec![only; 50]);
    }
}

/// Frames by source address.
fn by_source(drawn: &[Drawn]) -> HashMap<IpAddr, usize> {
    let mut counts = HashMap::new();
    for frame in drawn {
        *counts.entry(frame.source).or_insert(0) += 1;
    }
    counts
}

/// How many standard deviations of a binomial count lie between `count` of `all` frames
/// and the expected part.
fn deviation(count: usize, all: usize, part: f64) -> f64 {
    let mean = all as f64 * part;
    (count as f64 - mean) / (mean * (1.0 - part)).sqrt()
}

#[test]
fn hosts_of_several_networks_have_equal_rates() {
    let testbed = testbed();
    for (ipv6, first, apart) in [(false, "24.0.7.0/24", 16), (true, "2001:2:0:7::/64", 48)] {
        let hosts = Hosts {
            first: first.parse().unwrap(),
            networks: 16,
            apart,
            hosts: 1000,
        };
        let mut spec = spec(&testbed, ipv6, udp(), 20_000);
        spec.flow.source = Sources::Hosts(hosts);
        spec.schedule = Schedule::Fixed { rate_pps: 40_000 };
        let drawn = captured(&testbed, &spec);
        let counts = by_source(&drawn);
        // 1000 = 8 × 63 + 8 × 62.
        let all: HashSet<IpAddr> = (0..1000)
            .map(|host| hosts.address(host % 16, host / 16).unwrap())
            .collect();
        assert_eq!(counts.keys().copied().collect::<HashSet<_>>(), all);
        // Twenty each: a Poisson count is six deviations off once in ten million.
        for (source, count) in counts {
            let off = deviation(count, drawn.len(), 1e-3);
            assert!(off.abs() < 6.0, "{source}: {count} frames");
        }
    }
}

#[test]
fn many_hosts_stay_in_their_part_of_each_network() {
    let testbed = testbed();
    let hosts = Hosts {
        first: "24.0.7.0/24".parse().unwrap(),
        networks: 500,
        apart: 16,
        hosts: 90_000,
    };
    let mut spec = spec(&testbed, false, udp(), 20_000);
    spec.flow.source = Sources::Hosts(hosts);
    spec.schedule = Schedule::Fixed { rate_pps: 40_000 };
    let drawn = captured(&testbed, &spec);
    // Each of the 90,000 with probability 1 − e^(−2/9), if no frame was lost: 17,930 ± 110.
    let part = 1.0 - (-(drawn.len() as f64) / 90_000.0).exp();
    let off = by_source(&drawn).len() as f64 - 90_000.0 * part;
    assert!(off.abs() < 700.0, "{off} of {} frames", drawn.len());
    let mut networks: HashMap<[u8; 2], usize> = HashMap::new();
    for frame in &drawn {
        let IpAddr::V4(source) = frame.source else {
            panic!("{}", frame.source)
        };
        let [first, second, third, host] = source.octets();
        assert!(third == 7 && (1..=180).contains(&host), "{source}");
        *networks.entry([first, second]).or_insert(0) += 1;
    }
    assert_eq!(networks.len(), 500);
    for (network, count) in networks {
        let off = deviation(count, drawn.len(), 1.0 / 500.0);
        assert!(off.abs() < 6.0, "{network:?}: {count} frames");
    }
}

#[test]
fn random_addresses_of_a_wide_prefix_hardly_repeat() {
    let testbed = testbed();
    for (ipv6, prefix, halves) in [(false, "32.0.0.0/3", 0x3000_0000), (true, "2001:2::/48", 0)] {
        let mut spec = spec(&testbed, ipv6, udp(), 10_000);
        spec.flow.source = prefix.parse().unwrap();
        let drawn = captured(&testbed, &spec);
        let counts = by_source(&drawn);
        // Of 2^29 addresses 10,000 draws repeat one in eleven runs.
        assert!(counts.len() + 5 >= drawn.len(), "{}", counts.len());
        let net = spec.flow.source.first();
        assert!(counts.keys().all(|source| net.contains(source)));
        let upper = drawn.iter().filter(|frame| match frame.source {
            IpAddr::V4(source) => u32::from(source) >= halves,
            // The last bit of the /64's number.
            IpAddr::V6(source) => source.segments()[3] & 1 == 1,
        });
        let off = deviation(upper.count(), drawn.len(), 0.5);
        assert!(off.abs() < 6.0, "{prefix}: {off} deviations");
    }
}

#[test]
fn sockets_of_the_kernel_accept_what_is_sent() {
    let testbed = testbed();
    for ipv6 in [false, true] {
        let address = if ipv6 {
            IpAddr::from(testbed.test().ipv6())
        } else {
            IpAddr::from(testbed.test().ipv4())
        };
        let socket = common::bound(testbed.test(), address);
        setsockopt(&socket, sockopt::RcvBufForce, &(64 << 20)).unwrap();
        let mut spec = spec(&testbed, ipv6, udp(), 500);
        let port = socket.local_addr().unwrap().port();
        spec.flow.destination_ports = port..=port;
        // Where the receiving CPU is away the ring gets full, and it is tried again.
        let many_come = repeated(20, || {
            let report = run(&testbed, &spec, &Stop::new());
            assert_eq!(report.offered, 500);
            assert_eq!(common::drain(&socket), report.sent, "{report}");
            report.sent > 250
        });
        assert!(many_come, "{address}");
    }
}

#[test]
fn a_seed_is_a_sequence_whatever_the_schedule() {
    let testbed = testbed();
    let mut spec = spec(&testbed, false, Transport::TcpSyn, 300);
    let first = captured_whole(&testbed, &spec);
    assert_eq!(first, captured_whole(&testbed, &spec));
    spec.schedule = Schedule::Poisson { rate_pps: 20_000 };
    assert_eq!(first, captured_whole(&testbed, &spec));
    spec.batch_runs = Some(64);
    assert_eq!(first, captured_whole(&testbed, &spec));
    spec.seed = 2;
    assert_ne!(first, captured_whole(&testbed, &spec));
}

/// Shows MR-96.
#[test]
fn the_frame_bound_is_exact_and_a_run_can_be_repeated() {
    let testbed = testbed();
    let mut spec = spec(&testbed, false, udp(), 777);
    for schedule in [
        FIXED,
        Schedule::Poisson { rate_pps: 20_000 },
        Schedule::Bursts {
            rate_pps: 20_000,
            burst_frames: 100,
        },
        Schedule::Ramp {
            from_pps: 30_000,
            to_pps: 1000,
        },
        Schedule::Unlimited,
    ] {
        spec.schedule = schedule;
        let run_twice = || {
            let mut blast = Blast::load(&spec)?;
            Ok::<_, Error>([blast.run(&Stop::new())?, blast.run(&Stop::new())?])
        };
        for report in testbed.load().run(run_twice).unwrap().unwrap() {
            assert_eq!(report.offered, 777, "{report}");
            assert_eq!(report.end, End::Frames);
        }
    }
}

/// The kernel sends 16 frames on when it is given the seventeenth; if that was a
/// batch's last, it was once in no account.
#[test]
fn every_size_of_group_is_accounted_for() {
    let testbed = testbed();
    for burst_frames in [1, 15, 16, 17, 18, 33, 64] {
        let mut spec = spec(&testbed, false, udp(), 10 * u64::from(burst_frames));
        spec.schedule = Schedule::Bursts {
            rate_pps: 10_000,
            burst_frames,
        };
        spec.batch_runs = Some(64);
        let report = run(&testbed, &spec, &Stop::new());
        assert_eq!(report.offered, spec.bound.frames, "{report}");
        assert_eq!(report.failed, 0, "{report}");
    }
}

#[test]
fn recorded_departures_are_repeated_once() {
    let testbed = testbed();
    let mut spec = spec(&testbed, false, udp(), 1_000_000);
    // Three hundred in 30 ms, a pause, and as many again.
    let times = (0..300).chain(2000..2300);
    let text: String = times
        .map(|time| format!("5.{:09}\n", time * 100_000))
        .collect();
    spec.depart_at(Departures::read(text.as_bytes()).unwrap());
    let report = run(&testbed, &spec, &Stop::new());
    assert_eq!((report.offered, report.end), (600, End::Frames), "{report}");
    assert!((report.elapsed_s - 0.2299).abs() < 0.05, "{report}");
    // Bounds hold as well: here before the pause is over.
    spec.bound.time = Duration::from_millis(100);
    let report = run(&testbed, &spec, &Stop::new());
    assert_eq!((report.offered, report.end), (300, End::Time), "{report}");
    spec.bound.frames = 200;
    let report = run(&testbed, &spec, &Stop::new());
    assert_eq!((report.offered, report.end), (200, End::Frames), "{report}");
}

#[test]
fn nothing_departs_early() {
    let testbed = testbed();
    let mut spec = spec(&testbed, false, udp(), 2000);
    // The least time that the schedule takes, in seconds; for a Poisson process
    // of 2000 frames less than ten standard deviations below the mean.
    for (schedule, at_least) in [
        (FIXED, 0.1),
        (
            Schedule::Bursts {
                rate_pps: 20_000,
                burst_frames: 500,
            },
            0.1,
        ),
        (Schedule::Poisson { rate_pps: 20_000 }, 0.08),
    ] {
        spec.schedule = schedule;
        let report = run(&testbed, &spec, &Stop::new());
        assert!(
            report.elapsed_s >= at_least - 1e-6,
            "{schedule:?}: {report}"
        );
    }
    spec.schedule = Schedule::Ramp {
        from_pps: 1000,
        to_pps: 9000,
    };
    spec.bound.time = Duration::from_millis(200);
    let report = run(&testbed, &spec, &Stop::new());
    assert_eq!(report.end, End::Time);
    assert!(report.offered <= 1002, "{report}");
}

#[test]
fn the_time_bound_holds() {
    let testbed = testbed();
    let mut spec = spec(&testbed, false, udp(), u64::from(u32::MAX));
    spec.bound.frames = 1_000_000;
    spec.bound.time = Duration::from_millis(300);
    spec.schedule = Schedule::Fixed { rate_pps: 10_000 };
    let began = Instant::now();
    let report = run(&testbed, &spec, &Stop::new());
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(report.end, End::Time);
    assert!((report.elapsed_s - 0.3).abs() < 1e-9);
    assert!((1..=3000).contains(&report.offered), "{report}");
}

#[test]
fn a_blast_can_be_stopped() {
    let testbed = testbed();
    let mut spec = spec(&testbed, false, udp(), 1);
    spec.bound = Bound {
        time: Duration::from_secs(300),
        ..Bound::default()
    };
    let stop = Stop::new();
    let began = Instant::now();
    let report = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(200));
            stop.stop();
        });
        run(&testbed, &spec, &stop)
    });
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!(report.end, End::Stopped);
    assert!(report.offered > 0, "{report}");
    // Stopped stays stopped.
    assert_eq!(run(&testbed, &spec, &stop).end, End::Stopped);
}

#[test]
fn time_off_the_cpu_is_reported_and_old_departures_are_given_up() {
    let testbed = testbed();
    let mut spec = spec(&testbed, false, udp(), 1_000_000);
    spec.bound.time = Duration::from_millis(500);
    spec.priority = Priority::Idle;
    spec.catch_up.lag_max = Duration::from_millis(1);
    let report = thread::scope(|scope| {
        // Wants the generator's CPU for most of the blast, and goes first. It
        // ends by itself: the blast may fail while it runs.
        scope.spawn(|| {
            let mut cpu = CpuSet::new();
            cpu.set(testbed.load().cpu()).unwrap();
            sched_setaffinity(Pid::from_raw(0), &cpu).unwrap();
            let end = Instant::now() + Duration::from_millis(300);
            while Instant::now() < end {
                std::hint::spin_loop();
            }
        });
        run(&testbed, &spec, &Stop::new())
    });
    assert!(report.lag.absences > 0, "{report}");
    assert!(report.lag.given_up_s > 0.0, "{report}");
    assert!(report.offered < 450_000, "of 500,000: {report}");
}

#[test]
fn only_links_of_a_testbed_are_sent_on() {
    let testbed = common::create();
    let mut spec = spec(&testbed, false, udp(), 1);
    // Placement turns GRO on; without it the link takes no such frames.
    let refused = |error| match error {
        Error::UnfitInterface { why, .. } => why,
        other => panic!("{other}"),
    };
    let why = refused(
        testbed
            .load()
            .run(|| Blast::load(&spec))
            .unwrap()
            .unwrap_err(),
    );
    assert!(why.starts_with("it takes no redirected frames"), "{why}");
    // This thread is in the machine's own namespace.
    spec.interface = "lo".to_owned();
    let why = refused(Blast::load(&spec).unwrap_err());
    assert!(why.starts_with("no testbed made it"), "{why}");
}
