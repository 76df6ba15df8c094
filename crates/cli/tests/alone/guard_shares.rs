//! Whose packets are admitted while input is shed, by the command's own options:
//! protected ones come first, and who shares equally is as asked for. Needs root.
//!
//! One flood asks for all channels alike, and for far more than the CPU limit
//! leaves, so that shares alone decide. What is compared is counted over the same
//! time of the same run, and the bounds are wide. Whoever takes packets does so
//! before every process, so that no other test starves it.

use std::io::{BufRead, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::gettid;
use plimsoll_testbed::blast::Spec;
use plimsoll_testbed::server::Server;
use plimsoll_testbed::{Config, Testbed};
use serde_json::Value;

use crate::common::overload::{await_report, busy_server, flood, flooded, receive_on_test_cpu};
use crate::common::{LIMIT, PROGRAM, start_with};
use crate::turn;

/// Of the test's own sockets.
const OWN: [u16; 3] = [7000, 7001, 7002];
/// Of a server process.
const SERVER: u16 = 7003;
/// Nobody listens here.
const CLOSED: u16 = 7004;
const RATE_PPS: u64 = 300_000;
/// Reports, ten a second, over which counts are compared.
const REPORTS: usize = 10;
/// Reports before those that count; where owners share, they are told apart once a second.
const UNTIL_SHED: usize = 10;
const UNTIL_OWNED: usize = 30;
/// Further reports that are waited for, at most.
const WAITED_MAX: usize = 300;

/// Receiving takes more than this soon.
const LIMITED: [&str; 6] = [
    "--interval-ms",
    "100",
    "--strategy",
    "off",
    "--cpu-limit",
    "10",
];

/// What a guard counted while it shed.
struct Shed {
    before: Value,
    after: Value,
}

/// Packets that asked for a share, and those that got one.
#[derive(Clone, Copy, Debug)]
struct Claim {
    asked: u64,
    admitted: u64,
}

impl Claim {
    /// Has at least half of what the other has, or nearly all that it asked for.
    fn is_no_worse_than(self, other: Self) -> bool {
        self.admitted * 2 >= other.admitted || self.is_satisfied()
    }

    /// Has three times what the other has, or nearly all that it asked for.
    fn comes_before(self, other: Self) -> bool {
        self.admitted > other.admitted * 3 || self.is_satisfied()
    }

    fn is_satisfied(self) -> bool {
        self.admitted * 10 >= self.asked * 8
    }
}

impl Shed {
    /// Floods a host that is guarded with these options, and does `work` while input
    /// is shed.
    fn while_flooded(
        testbed: &Testbed,
        options: &[&str],
        floods: &[Spec; 2],
        work: impl FnOnce(),
    ) -> Self {
        Self::until(testbed, options, floods, work, |_| true)
    }

    /// As [`Shed::while_flooded`], until all is counted that is waited for: reports may
    /// be read long after they were written.
    fn until(
        testbed: &Testbed,
        options: &[&str],
        floods: &[Spec; 2],
        work: impl FnOnce(),
        is_counted: impl Fn(&Self) -> bool,
    ) -> Self {
        let options = [&LIMITED[..], options].concat();
        let (_guard, mut reports) = start_with(testbed.test(), &options);
        receive_on_test_cpu(testbed);
        let (shed, _) = flooded(testbed, &floods[0], || {
            flooded(testbed, &floods[1], || {
                let sheds = |report: &Value| report["shedding"] == true;
                await_report(&mut reports, "shedding", sheds);
                let by_owner = ["--shares", "--protect-processes"];
                let by_owner = by_owner.iter().any(|one| options.contains(one));
                let until = if by_owner { UNTIL_OWNED } else { UNTIL_SHED };
                let before = later(&mut reports, until);
                work();
                let mut shed = Self {
                    after: later(&mut reports, REPORTS),
                    before,
                };
                let mut left = WAITED_MAX;
                while left > 0 && !is_counted(&shed) {
                    shed.after = later(&mut reports, 1);
                    left -= 1;
                }
                shed
            })
            .0
        });
        assert!(shed.of_kind("closed_port").admitted > 0);
        shed
    }

    fn claim(&self, packets: impl Fn(&Value) -> &Value) -> Claim {
        let new = |outcome| {
            let count = |report| packets(report)[outcome].as_u64().unwrap();
            count(&self.after) - count(&self.before)
        };
        let (admitted, shed) = (new("admitted"), new("share"));
        Claim {
            asked: admitted + shed,
            admitted,
        }
    }

    fn of_kind(&self, kind: &str) -> Claim {
        self.claim(|report| &report["totals"][kind])
    }

    fn of_port(&self, port: u16) -> Claim {
        self.claim(|report| {
            let channels = report["channels"].as_array().unwrap();
            let channel = channels.iter().find(|channel| channel["port"] == port);
            &channel.unwrap()["packets"]
        })
    }

    /// Of all the test's own sockets.
    fn own(&self) -> Claim {
        let all = OWN.map(|port| self.of_port(port));
        Claim {
            asked: all.iter().map(|claim| claim.asked).sum(),
            admitted: all.iter().map(|claim| claim.admitted).sum(),
        }
    }
}

/// The last of so many reports.
fn later(reports: &mut impl BufRead, count: usize) -> Value {
    let mut left = count;
    await_report(reports, "anything", |_| {
        left -= 1;
        left == 0
    })
}

fn testbed() -> Testbed {
    let testbed = Testbed::create(Config::default()).unwrap();
    receive_on_test_cpu(&testbed);
    testbed
}

/// A server process, which is named `plimsoll`.
fn server(testbed: &Testbed) -> Server {
    let server = busy_server(testbed.test(), SERVER);
    put_first(server.pid());
    server
}

/// Lets a thread run before every process.
fn put_first(thread: u32) {
    let thread = thread.to_string();
    let status = Command::new("chrt")
        .args(["--fifo", "--pid", "1", &thread])
        .status();
    assert!(status.expect("chrt is installed").success());
}

/// Asks for all of these ports alike.
fn flood_of(testbed: &Testbed, ports: RangeInclusive<u16>) -> [Spec; 2] {
    [(); 2].map(|()| flood(testbed, ports.clone(), RATE_PPS / 2))
}

/// What the options make of a server's packets, beside those to a closed port.
fn server_and_closed(options: &[&str]) -> (Claim, Claim) {
    let _turn = turn();
    let testbed = testbed();
    let _server = server(&testbed);
    let floods = flood_of(&testbed, SERVER..=CLOSED);
    let shed = Shed::while_flooded(&testbed, options, &floods, || {});
    (shed.of_port(SERVER), shed.of_kind("closed_port"))
}

#[test]
fn without_protection_both_get_the_same() {
    let (server, closed) = server_and_closed(&[]);
    assert_equal(server, closed);
}

#[test]
fn a_protected_process_comes_first() {
    let options = ["--protect-processes", PROGRAM, "--protected-share", "90"];
    let (server, closed) = server_and_closed(&options);
    assert!(server.comes_before(closed), "{server:?} {closed:?}");
}

#[test]
fn a_protected_source_comes_first() {
    let options = [
        "--protect-sources",
        "198.18.9.0/24",
        "--protected-share",
        "90",
    ];
    let _turn = turn();
    let testbed = testbed();
    let _server = server(&testbed);
    let mut floods = [SERVER, CLOSED].map(|port| flood(&testbed, port..=port, RATE_PPS / 2));
    floods[0].flow.source = "198.18.9.16/28".parse().unwrap();
    let shed = Shed::while_flooded(&testbed, &options, &floods, || {});
    let (server, closed) = (shed.of_port(SERVER), shed.of_kind("closed_port"));
    assert!(server.comes_before(closed), "{server:?} {closed:?}");
}

#[test]
fn a_protected_port_comes_first() {
    let options = ["--protect-ports", "7003/udp", "--protected-share", "90"];
    let (server, closed) = server_and_closed(&options);
    assert!(server.comes_before(closed), "{server:?} {closed:?}");
}

/// Both ends of a connection from the load to the host.
fn connection(testbed: &Testbed) -> [TcpStream; 2] {
    let host = testbed.test();
    let bind = || TcpListener::bind((host.ipv4(), 80)).unwrap();
    let listener = host.run(bind).unwrap();
    let connect = || TcpStream::connect((host.ipv4(), 80)).unwrap();
    let client = testbed.load().run(connect).unwrap();
    let (served, _) = listener.accept().unwrap();
    for stream in [&client, &served] {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
    }
    [client, served]
}

#[test]
fn established_connections_lose_nothing() {
    const ROUND_TRIPS: u64 = 200;
    let _turn = turn();
    let testbed = testbed();
    let _server = server(&testbed);
    let [mut client, mut served] = connection(&testbed);
    let floods = flood_of(&testbed, SERVER..=CLOSED);
    let options = ["--protected-share", "90"];
    let round_trips = || {
        for _ in 0..ROUND_TRIPS {
            // Far less than the guarantee, but more than nothing in each tick.
            thread::sleep(Duration::from_millis(2));
            client.write_all(b"request!").unwrap();
            served.read_exact(&mut [0; 8]).unwrap();
            served.write_all(b"answered").unwrap();
            client.read_exact(&mut [0; 8]).unwrap();
        }
    };
    let are_counted = |shed: &Shed| shed.of_kind("tcp_connection").admitted >= ROUND_TRIPS;
    let shed = Shed::until(&testbed, &options, &floods, round_trips, are_counted);
    assert!(are_counted(&shed), "{:?}", shed.after["totals"]);
    let connections = shed.of_kind("tcp_connection");
    assert_eq!(connections.asked, connections.admitted, "{connections:?}");
}

/// Nobody else asks for the CPU that it takes, however much that is beyond the limit.
#[test]
fn a_bulk_transfer_that_is_alone_loses_nothing() {
    const BEYOND: usize = 20;
    let _turn = turn();
    let testbed = testbed();
    let [mut client, mut served] = connection(&testbed);
    let _reading = Working::on(move || {
        let _ = served.read(&mut [0; 64 << 10]);
    });
    let _sending = Working::on(move || {
        let _ = client.write_all(&[0; 64 << 10]);
    });
    let (_guard, mut reports) = start_with(testbed.test(), &LIMITED);
    let mut beyond = 0;
    let report = await_report(&mut reports, "that the limit is reached", |report| {
        assert_eq!(report["shedding"], false, "{report}");
        let share = report["governor"]["network_share"].as_f64().unwrap();
        beyond += usize::from(share > 0.1);
        beyond == BEYOND
    });
    let connections = &report["totals"]["tcp_connection"];
    assert!(connections["admitted"].as_u64().unwrap() > 10_000);
    assert_eq!(connections["share"], 0, "{connections}");
}

/// Three sockets of this process and one of a server's, all flooded alike.
fn shared(who: &str) -> Shed {
    let _turn = turn();
    let testbed = testbed();
    let host = testbed.test();
    let _server = server(&testbed);
    let _taking = OWN.map(|port| {
        let bind = || UdpSocket::bind((host.ipv4(), port)).unwrap();
        taking(host.run(bind).unwrap())
    });
    let floods = flood_of(&testbed, OWN[0]..=CLOSED);
    Shed::while_flooded(&testbed, &["--shares", who], &floods, || {})
}

/// A thread that works on and on, until this is dropped.
struct Working(Arc<AtomicBool>);

impl Working {
    fn on(mut work: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                work();
            }
        });
        Self(stop)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Takes all that comes to a socket.
fn taking(socket: UdpSocket) -> Working {
    setsockopt(&socket, sockopt::RcvBufForce, &(4 << 20)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let mut is_put_first = false;
    Working::on(move || {
        if !is_put_first {
            put_first(gettid().as_raw().cast_unsigned());
            is_put_first = true;
        }
        // Nothing came for a while: looks whether to stop.
        let _ = socket.recv(&mut [0; 64]);
    })
}

/// Neither has twice what the other has, unless the other wants no more.
fn assert_equal(one: Claim, other: Claim) {
    assert!(one.is_no_worse_than(other), "{one:?} {other:?}");
    assert!(other.is_no_worse_than(one), "{one:?} {other:?}");
}

#[test]
fn channels_share_equally_unless_told_otherwise() {
    let shed = shared("channel");
    for port in [OWN[0], OWN[1], OWN[2], SERVER] {
        assert_equal(shed.of_port(port), shed.of_kind("closed_port"));
    }
}

#[test]
fn sockets_of_a_process_share_its_share() {
    let shed = shared("process");
    // By channels it would be three times as much.
    assert_equal(shed.own(), shed.of_port(SERVER));
}

#[test]
fn sockets_of_a_control_group_share_its_share() {
    let shed = shared("control-group");
    // By channels it would be four times as much.
    assert_equal(shed.of_kind("udp_socket"), shed.of_kind("closed_port"));
}
