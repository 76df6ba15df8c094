//! Whose packets are admitted while input is shed, by the command's own options:
//! protected ones come first, and who shares equally is as asked for. Needs root.
//!
//! All floods of a test have the same rate per channel and ask for far more than
//! the CPU limit leaves, so that shares alone decide. What is compared is counted
//! over the same time of the same run, and the bounds are wide.

mod common;

use std::io::{BufRead, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use common::overload::{await_report, busy_server, flood, flooded, receive_on_test_cpu};
use common::{LIMIT, start_with};
use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_testbed::blast::Spec;
use plimsoll_testbed::server::Server;
use plimsoll_testbed::{Config, Testbed};
use serde_json::Value;

/// Nobody listens here.
const CLOSED: u16 = 9;
/// Of the test's own sockets.
const OWN: [u16; 3] = [7000, 7001, 7002];
/// Of a server process.
const SERVER: u16 = 7003;
const RATE_PPS: u64 = 60_000;
/// Reports, ten a second, that are compared.
const REPORTS: usize = 15;

/// Together, the tests would leave each other too little CPU to flood.
static ONE_BY_ONE: Mutex<()> = Mutex::new(());

/// A guard that sheds, and what it counted meanwhile.
struct Shed {
    before: Value,
    after: Value,
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
        let always = [
            "--interval-ms",
            "100",
            "--strategy",
            "off",
            "--cpu-limit",
            "10",
        ];
        let options = [&always[..], options].concat();
        let (_guard, mut reports) = start_with(testbed.test(), &options);
        receive_on_test_cpu(testbed);
        let (shed, _) = flooded(testbed, &floods[0], || {
            flooded(testbed, &floods[1], || {
                await_report(&mut reports, "shedding", |report| {
                    report["shedding"] == true
                });
                // Owners are told apart once a second.
                let before = later(&mut reports, 2 * REPORTS);
                work();
                let after = later(&mut reports, REPORTS);
                Self { before, after }
            })
            .0
        });
        assert_eq!(shed.after["shedding"], true);
        assert!(shed.counted("closed_port", "share") > 0);
        shed
    }

    /// Packets of a kind with an outcome.
    fn counted(&self, kind: &str, outcome: &str) -> u64 {
        let count = |report: &Value| report["totals"][kind][outcome].as_u64().unwrap();
        count(&self.after) - count(&self.before)
    }

    /// Packets admitted to a port's socket.
    fn admitted(&self, port: u16) -> u64 {
        let count = |report: &Value| {
            let channels = report["channels"].as_array().unwrap();
            let channel = channels.iter().find(|channel| channel["port"] == port);
            channel.unwrap()["packets"]["admitted"].as_u64().unwrap()
        };
        count(&self.after) - count(&self.before)
    }

    fn own_admitted(&self) -> u64 {
        OWN.map(|port| self.admitted(port)).iter().sum()
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

/// Floods the sockets at these ports, and a port that is closed.
fn floods(testbed: &Testbed, ports: std::ops::RangeInclusive<u16>) -> [Spec; 2] {
    let rate_pps = RATE_PPS * ports.clone().count() as u64;
    [
        flood(testbed, ports, rate_pps),
        flood(testbed, CLOSED..=CLOSED, RATE_PPS),
    ]
}

/// A server process, which is named `plimsoll`.
fn server(testbed: &Testbed) -> Server {
    busy_server(testbed.test(), SERVER)
}

/// One by one and with a server: what the options make of its packets, beside those
/// to a closed port. Both ask for the same.
fn server_and_closed(options: &[&str], source: Option<&str>) -> (u64, u64) {
    let _turn = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let testbed = testbed();
    let _server = server(&testbed);
    let mut floods = floods(&testbed, SERVER..=SERVER);
    for flood in &mut floods {
        // Both as much as all channels of the other tests together.
        flood.schedule = plimsoll_testbed::blast::Schedule::Fixed {
            rate_pps: 2 * RATE_PPS,
        };
    }
    if let Some(source) = source {
        floods[0].flow.source = source.parse().unwrap();
    }
    let shed = Shed::while_flooded(&testbed, options, &floods, || {});
    let closed = shed.counted("closed_port", "admitted");
    (shed.admitted(SERVER), closed)
}

#[test]
fn without_protection_both_get_the_same() {
    let (server, closed) = server_and_closed(&[], None);
    assert!(server > 0 && closed > 0);
    assert!(
        server < 2 * closed && closed < 2 * server,
        "{server} and {closed}"
    );
}

#[test]
fn a_protected_process_comes_first() {
    let options = [
        "--protect-processes",
        "nginx,plimsoll",
        "--protected-share",
        "90",
    ];
    let (server, closed) = server_and_closed(&options, None);
    assert!(server > 3 * closed, "{server} and {closed}");
    assert!(closed > 0, "the rest is left to the others");
}

#[test]
fn a_protected_source_comes_first() {
    let options = [
        "--protect-sources",
        "198.18.9.0/24",
        "--protected-share",
        "90",
    ];
    let (server, closed) = server_and_closed(&options, Some("198.18.9.16/28"));
    assert!(server > 3 * closed, "{server} and {closed}");
    assert!(closed > 0);
}

#[test]
fn a_protected_port_comes_first() {
    let options = ["--protect-ports", "7003/udp", "--protected-share", "90"];
    let (server, closed) = server_and_closed(&options, None);
    assert!(server > 3 * closed, "{server} and {closed}");
    assert!(closed > 0);
}

#[test]
fn established_connections_lose_nothing() {
    const ROUND_TRIPS: u64 = 200;
    let _turn = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let testbed = testbed();
    let host = testbed.test();
    let _server = server(&testbed);
    let bind = || TcpListener::bind((host.ipv4(), 80)).unwrap();
    let listener = host.run(bind).unwrap();
    let connect = || TcpStream::connect((host.ipv4(), 80)).unwrap();
    let mut client = testbed.load().run(connect).unwrap();
    let (mut served, _) = listener.accept().unwrap();
    for stream in [&client, &served] {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
    }
    let shed = Shed::while_flooded(&testbed, &[], &floods(&testbed, SERVER..=SERVER), || {
        for _ in 0..ROUND_TRIPS {
            client.write_all(b"request!").unwrap();
            served.read_exact(&mut [0; 8]).unwrap();
            served.write_all(b"answered").unwrap();
            client.read_exact(&mut [0; 8]).unwrap();
        }
    });
    assert!(shed.counted("tcp_connection", "admitted") >= ROUND_TRIPS);
    assert_eq!(shed.counted("tcp_connection", "share"), 0);
}

/// Three sockets of this process and one of a server's, all flooded alike.
fn shared(who: &str) -> Shed {
    let _turn = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let testbed = testbed();
    let host = testbed.test();
    let _server = server(&testbed);
    let _taking = OWN.map(|port| {
        let bind = || UdpSocket::bind((host.ipv4(), port)).unwrap();
        Taking::from(host.run(bind).unwrap())
    });
    Shed::while_flooded(
        &testbed,
        &["--shares", who],
        &floods(&testbed, OWN[0]..=SERVER),
        || {},
    )
}

/// Takes all that comes to a socket, until it is dropped.
struct Taking(Arc<AtomicBool>);

impl Taking {
    fn from(socket: UdpSocket) -> Self {
        setsockopt(&socket, sockopt::RcvBufForce, &(4 << 20)).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // Nothing came for a while: looks whether to stop.
                let _ = socket.recv(&mut [0; 64]);
            }
        });
        Self(stop)
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn channels_share_equally_unless_told_otherwise() {
    let shed = shared("channel");
    let closed = shed.counted("closed_port", "admitted");
    for port in [OWN[0], OWN[1], OWN[2], SERVER] {
        let socket = shed.admitted(port);
        assert!(
            socket < 2 * closed && closed < 2 * socket,
            "{socket} and {closed}"
        );
    }
}

#[test]
fn sockets_of_a_process_share_its_share() {
    let shed = shared("process");
    let (own, server) = (shed.own_admitted(), shed.admitted(SERVER));
    // By channels it would be three times as much.
    assert!(own < 2 * server && server < 2 * own, "{own} and {server}");
}

#[test]
fn sockets_of_a_control_group_share_its_share() {
    let shed = shared("control-group");
    let all = shed.own_admitted() + shed.admitted(SERVER);
    let closed = shed.counted("closed_port", "admitted");
    // By channels it would be four times as much.
    assert!(all < 2 * closed && closed < 2 * all, "{all} and {closed}");
}
