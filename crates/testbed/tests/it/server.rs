//! The servers count exactly what they were sent, over IPv4 and IPv6.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_testbed::server::{Config, Kind, Server};
use plimsoll_testbed::{Placement, Testbed};

use crate::common::{bound, create, drain, plimsoll};

const PORT: u16 = 9000;

/// Until the server has received so many.
fn await_received(server: &Server, count: u64) {
    let end = Instant::now() + Duration::from_secs(20);
    while server.counts().received < count {
        assert!(Instant::now() < end, "{:?} of {count}", server.counts());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends `count` datagrams. The next ones when the server has those before: the receive ring
/// holds few, and the machine may be busy.
fn send(testbed: &Testbed, server: &Server, to: IpAddr, count: u64) -> std::net::UdpSocket {
    let before = server.counts().received;
    let load = testbed.load();
    let from: IpAddr = if to.is_ipv4() {
        load.ipv4().into()
    } else {
        load.ipv6().into()
    };
    let client = bound(load, from);
    setsockopt(&client, sockopt::RcvBufForce, &(4 << 20)).unwrap();
    for sent in 1..=count {
        client
            .send_to(&[7; 100], SocketAddr::new(to, PORT))
            .unwrap();
        if sent % 50 == 0 {
            await_received(server, before + sent);
        }
    }
    client
}

fn config(kind: Kind) -> Config {
    Config {
        work: Duration::from_micros(2),
        rcvbuf_bytes: Some(4 << 20),
        ..Config::new(kind, PORT)
    }
}

#[test]
fn a_sink_counts_what_was_sent() {
    let testbed = create();
    Placement::Threaded { nice: 0 }.apply(&testbed).unwrap();
    let server = Server::start(testbed.test(), plimsoll(), &config(Kind::Sink)).unwrap();
    assert_eq!(server.counts().received, 0);
    send(&testbed, &server, testbed.test().ipv4().into(), 1000);
    send(&testbed, &server, testbed.test().ipv6().into(), 500);
    let second = Duration::from_secs(1);
    let counts = server.wait_until_quiet(second / 4, 10 * second).unwrap();
    assert_eq!(counts.received, 1500);
    assert_eq!(counts.received_bytes, 150_000);
    assert_eq!(counts.sent, 0);
    assert_eq!(server.stop().unwrap(), counts);
}

/// Shows TB-51.
#[test]
fn an_echo_answers_everything_from_where_it_was_asked() {
    let testbed = create();
    let holdoff = Duration::from_micros(50);
    Placement::Softirq { holdoff }.apply(&testbed).unwrap();
    let server = Server::start(testbed.test(), plimsoll(), &config(Kind::Echo)).unwrap();
    for to in [
        IpAddr::from(testbed.test().ipv4()),
        testbed.test().ipv6().into(),
    ] {
        let client = send(&testbed, &server, to, 300);
        assert_eq!(drain(&client), 300);
    }
    let counts = server.stop().unwrap();
    assert_eq!(
        (counts.received, counts.sent, counts.send_errors),
        (600, 600, 0)
    );
}

#[test]
fn a_taken_port_is_told() {
    let testbed = create();
    let config = Config::new(Kind::Sink, PORT);
    let _first = Server::start(testbed.test(), plimsoll(), &config).unwrap();
    let error = Server::start(testbed.test(), plimsoll(), &config).unwrap_err();
    assert!(error.to_string().contains("port 9000"), "{error}");
}

#[test]
fn a_starved_server_can_still_be_read_and_is_killed_in_the_end() {
    let testbed = create();
    let server = Server::start(testbed.test(), plimsoll(), &config(Kind::Sink)).unwrap();
    send(&testbed, &server, testbed.test().ipv4().into(), 10);
    await_received(&server, 10);
    // Stopped, it reacts to nothing, like a livelocked one.
    let pid = nix::unistd::Pid::from_raw(i32::try_from(server.pid()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    send(&testbed, &server, testbed.test().ipv4().into(), 10);
    assert_eq!(server.counts().received, 10);
    assert_eq!(server.stop().unwrap().received, 10);
}
