//! Which packets without a socket go on to other hosts, as connection tracking knows. Needs root.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, connect, listen, setsockopt,
    socket, sockopt,
};
use plimsoll_packets::frame::{Fragment, Packet, TcpFlags};

use super::test_host::{HOST, UDP_PORT, from, unread_server, with_guard};
use super::*;
use crate::hidden::{Taker, Unguarded};
use crate::owner::diag::Protocol;
use crate::tracking::Tracking;
use crate::{Guard, Outcome};

/// The host's, beside loopback.
const OWN: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// Somewhere beyond the host, and who has it translate there.
const OTHER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const INSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
const CLIENT: u16 = 4000;
const MASQUERADED: u16 = 4001;
const PUBLISHED: u16 = 53;
const REDIRECTED: u16 = 54;
const CLOSED: u16 = 9;
const ANSWERED: u16 = 5000;
const FRAMES: u32 = 10 * types::limit::FLOW_PARTS.0;

fn run(program: &str, line: &str) {
    let status = Command::new(program).args(line.split_whitespace()).status();
    assert!(status.expect("it is installed").success(), "{line}");
}

/// A host that publishes a port of another one, redirects one to a process of its own, and
/// masquerades for those behind it.
fn translate(guard: &mut Guard<'_>) {
    run("ip", "link add d0 type veth peer name d1");
    run("ip", "address add 198.51.100.1/24 dev d0");
    run("ip", "link set d0 up");
    run("ip", "link set d1 up");
    guard.refresh().unwrap();
    run("nft", "add table ip n");
    run(
        "nft",
        "add chain ip n out { type nat hook output priority -100; }",
    );
    run(
        "nft",
        &format!("add rule ip n out udp dport {PUBLISHED} dnat to {OTHER}"),
    );
    run(
        "nft",
        &format!("add rule ip n out udp dport {REDIRECTED} redirect to :{ANSWERED}"),
    );
    run(
        "nft",
        "add chain ip n post { type nat hook postrouting priority 100; }",
    );
    run(
        "nft",
        &format!("add rule ip n post ip saddr {INSIDE} snat to {OWN}"),
    );
}

/// Sends a datagram to a port of the host.
fn send(port: u16) {
    let client = UdpSocket::bind((OWN, CLIENT)).unwrap();
    // Nobody may listen there.
    let _ = client.send_to(&[0; 16], (HOST, port));
}

/// Sends one from a host behind this one to another.
fn send_from_inside() {
    let flags = SockFlag::SOCK_CLOEXEC;
    let client = socket(AddressFamily::Inet, SockType::Datagram, flags, None).unwrap();
    setsockopt(&client, sockopt::IpTransparent, &true).unwrap();
    let SocketAddr::V4(address) = SocketAddr::from((INSIDE, MASQUERADED)) else {
        unreachable!("an IPv4 address")
    };
    bind(client.as_raw_fd(), &SockaddrIn::from(address)).unwrap();
    let client = UdpSocket::from(client);
    client.send_to(&[0; 16], (OTHER, CLOSED)).unwrap();
}

/// Has a process answer one datagram, and end.
fn answer_once() {
    let server = UdpSocket::bind((HOST, ANSWERED)).unwrap();
    let client = UdpSocket::bind((OWN, CLIENT)).unwrap();
    client.connect((HOST, ANSWERED)).unwrap();
    client.send(&[0; 16]).unwrap();
    let (_, sender) = server.recv_from(&mut [0; 16]).unwrap();
    server.send_to(&[0; 16], sender).unwrap();
    client.recv(&mut [0; 16]).unwrap();
}

fn translated(guard: &mut Guard<'_>, frame: &[u8], frames: u32) -> u64 {
    let count = |guard: &Guard<'_>| {
        let by_cpu = guard.program.totals_by_cpu().unwrap();
        let counts = by_cpu.iter();
        let closed = counts.map(|totals| totals.kinds[Kind::ClosedPort as usize].offered());
        let translated = by_cpu.iter().map(|totals| totals.translated);
        (translated.sum::<u64>(), closed.sum::<u64>())
    };
    let before = count(guard);
    guard.test_run(frame, frames).unwrap();
    let after = count(guard);
    assert_eq!(
        after.1 - before.1,
        u64::from(frames),
        "without a socket here"
    );
    after.0 - before.0
}

/// A gateway's translated packets were shed for a CPU that nobody else wanted. What ends here
/// must not prevent shedding: not a flood of a closed port, nor of one that was answered once, nor of one
/// that a process of the host has by another number.
#[test]
fn only_what_is_translated_and_goes_on_is_counted() {
    with_guard(|guard| {
        let to = |port| from(OWN).udp(CLIENT, port, &[0; 16]);
        let all = u64::from(FRAMES);
        assert_eq!(translated(guard, &to(PUBLISHED), FRAMES), 0, "unknown");
        translate(guard);
        send(PUBLISHED);
        assert_eq!(translated(guard, &to(PUBLISHED), FRAMES), all);
        send_from_inside();
        let answer = Packet::new(OTHER.into(), OWN.into()).udp(CLOSED, MASQUERADED, &[0; 16]);
        assert_eq!(translated(guard, &answer, FRAMES), all, "masqueraded");
        answer_once();
        for port in [CLOSED, REDIRECTED] {
            send(port);
        }
        for port in [CLOSED, REDIRECTED, ANSWERED] {
            assert_eq!(translated(guard, &to(port), FRAMES), 0, "{port}");
        }
    });
}

/// A program of tc may translate as well, and connection tracking knows nothing of it. What a rule
/// has for a proxy of this host goes on to nobody.
#[test]
fn what_tc_may_send_on_is_counted_without_connection_tracking() {
    with_guard(|guard| {
        let frame = from(HOST).udp(CLIENT, CLOSED, &[0; 16]);
        let all = u64::from(FRAMES);
        for (taker, expected) in [
            (Taker::Tc, all),
            (Taker::Translation, all),
            (Taker::NotKnown, all),
            (Taker::PacketFilter, 0),
        ] {
            let mut hidden = hidden::Ports::default();
            let protocol = Protocol::Udp;
            hidden.every.insert(Unguarded { protocol, taker });
            guard.program.set_hidden(&hidden).unwrap();
            assert_eq!(translated(guard, &frame, FRAMES), expected, "{taker:?}");
        }
    });
}

#[test]
fn fragments_of_what_is_translated_are_counted_by_its_ports() {
    with_guard(|guard| {
        translate(guard);
        send(PUBLISHED);
        let piece = |offset| {
            let fragment = Fragment {
                id: 7,
                offset,
                more: offset == 0,
            };
            from(OWN)
                .fragment(fragment)
                .udp(CLIENT, PUBLISHED, &[0; 64])
        };
        for offset in [0, 32] {
            assert_eq!(translated(guard, &piece(offset), FRAMES), u64::from(FRAMES));
        }
    });
}

/// Whose packet is looked at is left to chance: one in so many of a flood's, always at the same
/// place, would else stand for all of it.
#[test]
fn nobody_chooses_which_of_his_packets_is_looked_at() {
    with_guard(|guard| {
        translate(guard);
        send(PUBLISHED);
        let [known, flood] = [PUBLISHED, CLOSED].map(|port| from(OWN).udp(CLIENT, port, &[0; 16]));
        let rounds = 300;
        let parts = types::limit::FLOW_PARTS.0;
        let counted: u64 = (0..rounds)
            .map(|_| translated(guard, &known, 1) + translated(guard, &flood, parts - 1))
            .sum();
        let share = counted / u64::from(parts);
        // Ten of 300 are meant; 60 or more are less likely than 10^-25.
        assert!(share < 60, "{share} of {rounds}");
    });
}

/// Has a host publish a port of another one, too.
fn publish(transport: &str, port: u16) {
    let rule = format!("add rule ip n out {transport} dport {port} dnat to {OTHER}");
    run("nft", &rule);
}

/// What was admitted and discarded of frames, by what they were for.
fn judged(guard: &mut Guard<'_>, kind: Kind, frame: &[u8], frames: u32) -> [u64; 3] {
    let count = |guard: &Guard<'_>| {
        let totals = guard.program.totals().unwrap();
        let passed = totals[Kind::ClosedPort as usize].count(Outcome::Admitted);
        let socket = totals[kind as usize];
        let admitted = socket.count(Outcome::Admitted);
        [passed, admitted, socket.offered() - admitted]
    };
    let before = count(guard);
    guard.test_run(frame, frames).unwrap();
    let after = count(guard);
    std::array::from_fn(|at| after[at] - before[at])
}

/// A flood of a full server, beside a port that is published: of its unknown flows one packet
/// passes in a tick. Of a flow that is translated all do, and then unknown ones of that port.
#[test]
fn a_full_socket_judges_strangers_and_no_translated_flow() {
    with_guard(|guard| {
        let _server = unread_server(20_000);
        translate(guard);
        let strangers = from(OWN).udp(CLIENT + 1, UDP_PORT, &[0; 16]);
        let all = u64::from(FRAMES);
        let untracked = judged(guard, Kind::UdpSocket, &strangers, FRAMES);
        assert_eq!(untracked, [0, 0, all], "nothing is tracked");
        send(PUBLISHED);
        guard.refresh().unwrap();
        let start = Instant::now();
        let [passed, admitted, discarded] =
            judged(guard, Kind::UdpSocket, &strangers, 100 * FRAMES);
        let ticks = (start.elapsed().as_nanos() >> TICK_SHIFT) as u64;
        assert_eq!(admitted, 0);
        assert_eq!(passed + discarded, 100 * all);
        assert!(
            (1..=ticks + 2).contains(&passed),
            "{passed} in {ticks} ticks"
        );
        publish("udp", UDP_PORT);
        send(UDP_PORT);
        std::thread::sleep(Duration::from_millis(10));
        let known = from(OWN).udp(CLIENT, UDP_PORT, &[0; 16]);
        assert_eq!(judged(guard, Kind::UdpSocket, &known, FRAMES), [all, 0, 0]);
        assert_eq!(
            judged(guard, Kind::UdpSocket, &strangers, FRAMES),
            [all, 0, 0]
        );
    });
}

/// Connection tracking that came after the program was told of, and what it translates was judged by
/// the host's own sockets. So was what a kernel translates that does not describe its types.
#[test]
fn where_translation_cannot_be_asked_no_socket_refuses_anything() {
    with_guard(|guard| {
        let _server = unread_server(20_000);
        let all = u64::from(FRAMES);
        let frame = from(OWN).udp(CLIENT, UDP_PORT, &[0; 16]);
        let mut tracking = Tracking::of(false);
        tracking.is_missed(|| true);
        guard.tracking = tracking;
        guard.refresh().unwrap();
        assert_eq!(judged(guard, Kind::UdpSocket, &frame, FRAMES), [all, 0, 0]);
        let unguarded = guard.unguarded().iter();
        let told: Vec<_> = unguarded.map(ToString::to_string).collect();
        let expected = ["udp", "tcp"].map(|one| format!("protocol={one} taker=translation"));
        assert_eq!(
            told.iter().collect::<BTreeSet<_>>(),
            expected.iter().collect()
        );
    });
}

/// Begins a connection to a port of the host, which nobody answers.
fn begin_connection(port: u16) {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let client = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
    let address =
        |address: Ipv4Addr, port| SockaddrIn::from(std::net::SocketAddrV4::new(address, port));
    bind(client.as_raw_fd(), &address(OWN, CLIENT)).unwrap();
    let begun = connect(client.as_raw_fd(), &address(HOST, port));
    assert_eq!(begun, Err(Errno::EINPROGRESS));
}

/// The proxy of a published port is a listener, and may be behind.
#[test]
fn a_full_listener_refuses_no_connection_that_is_translated() {
    const PORT: u16 = 80;
    with_guard(|guard| {
        let listener = TcpListener::bind((HOST, PORT)).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let _unaccepted = TcpStream::connect((HOST, PORT)).unwrap();
        translate(guard);
        publish("tcp", PORT);
        let syn = from(OWN).tcp(CLIENT, PORT, TcpFlags::SYN, &[]);
        let all = u64::from(FRAMES);
        assert_eq!(judged(guard, Kind::TcpListener, &syn, FRAMES), [0, 0, all]);
        begin_connection(PORT);
        guard.refresh().unwrap();
        assert_eq!(judged(guard, Kind::TcpListener, &syn, FRAMES), [all, 0, 0]);
    });
}
