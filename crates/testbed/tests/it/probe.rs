//! The prober counts losses exactly, and nothing that is not an answer.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_testbed::probe::{self, Config, Report};
use plimsoll_testbed::server::{self, Kind, Server};
use plimsoll_testbed::{Placement, Testbed};

use crate::common::{self, create, plimsoll};

const RATE_PPS: u32 = 2000;

fn config(target: SocketAddr) -> Config {
    Config {
        rate_pps: RATE_PPS,
        duration: Duration::from_millis(500),
        ..Config::new(target)
    }
}

fn probe(testbed: &Testbed, config: &Config) -> Report {
    testbed
        .load()
        .run_on_cpu(|| probe::run(config))
        .unwrap()
        .unwrap()
}

/// Runs `work` while a thread of the test host answers through `answer`, which
/// gets the number of packets before this one.
fn with_server<T>(
    testbed: &Testbed,
    answer: impl Fn(&UdpSocket, u64, &[u8], SocketAddr) + Sync,
    work: impl FnOnce(SocketAddr) -> T,
) -> T {
    let socket = common::bound(testbed.test(), testbed.test().ipv4());
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 2048];
            let mut before = 0;
            while !done.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    answer(&socket, before, &buffer[..length], from);
                    before += 1;
                }
            }
        });
        let result = work(socket.local_addr().unwrap());
        done.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn losses_are_counted_exactly() {
    let testbed = create();
    Placement::Threaded { nice: 0 }.apply(&testbed).unwrap();
    let report = with_server(
        &testbed,
        |socket, before, packet, from| {
            if before % 7 != 0 {
                socket.send_to(packet, from).unwrap();
            }
        },
        |target| probe(&testbed, &config(target)),
    );
    assert_eq!(report.sent, 1000);
    assert_eq!(report.lost, 143);
    assert_eq!(report.answered + report.late, 857);
    assert_eq!((report.duplicates, report.send_errors), (0, 0));
    // Two crossings of a real link and two wake-ups take more than 2 µs.
    assert!(report.latency.p50_ns > 2_000, "{report:?}");
    assert!(report.latency.p50_ns <= report.latency.p99_ns);
    assert!(report.latency.p99_ns <= report.latency.max_ns);
}

#[test]
fn duplicates_and_strays_are_no_answers() {
    let testbed = create();
    Placement::Threaded { nice: 0 }.apply(&testbed).unwrap();
    let report = with_server(
        &testbed,
        |socket, before, packet, from| match before % 10 {
            0 => {
                socket.send_to(packet, from).unwrap();
                socket.send_to(packet, from).unwrap();
            }
            1 => {
                let mut stray = packet.to_vec();
                stray[0] ^= 1;
                socket.send_to(&stray, from).unwrap();
                socket.send_to(&packet[..10], from).unwrap();
            }
            _ => {
                socket.send_to(packet, from).unwrap();
            }
        },
        |target| probe(&testbed, &config(target)),
    );
    assert_eq!(report.sent, 1000);
    assert_eq!(report.duplicates, 100);
    assert_eq!(report.lost, 100);
}

#[test]
fn slow_answers_are_late_not_lost() {
    let testbed = create();
    Placement::Threaded { nice: 0 }.apply(&testbed).unwrap();
    let report = with_server(
        &testbed,
        |socket, before, packet, from| {
            if before == 5 {
                std::thread::sleep(Duration::from_millis(100));
            }
            socket.send_to(packet, from).unwrap();
        },
        |target| {
            let config = Config {
                timeout: Duration::from_millis(50),
                ..config(target)
            };
            probe(&testbed, &config)
        },
    );
    assert_eq!((report.sent, report.lost), (1000, 0));
    // Those due in the first half of the pause: 100 of them.
    assert!(report.late >= 90, "{report:?}");
    // The later ones are in time but not fast.
    assert!(
        (20_000_000..=51_000_000).contains(&report.latency.max_ns),
        "{report:?}"
    );
}

#[test]
fn a_closed_port_loses_everything() {
    let testbed = create();
    let report = probe(&testbed, &config((testbed.test().ipv4(), 9).into()));
    assert_eq!((report.answered, report.late), (0, 0));
    assert_eq!(report.sent + report.send_errors, 1000);
    assert_eq!(report.lost, report.sent);
}

#[test]
fn the_echo_server_answers_every_probe_over_both_protocols() {
    let testbed = create();
    let holdoff = Duration::from_micros(50);
    Placement::Softirq { holdoff }.apply(&testbed).unwrap();
    let echo = server::Config::new(Kind::Echo, 7);
    let echo = Server::start(testbed.test(), plimsoll(), &echo).unwrap();
    for address in [
        IpAddr::from(testbed.test().ipv4()),
        testbed.test().ipv6().into(),
    ] {
        let config = Config {
            realtime: true,
            ..config(SocketAddr::new(address, 7))
        };
        let report = probe(&testbed, &config);
        assert_eq!((report.sent, report.lost), (1000, 0), "{address}");
    }
    assert_eq!(echo.stop().unwrap().sent, 2000);
}
