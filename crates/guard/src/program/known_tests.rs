//! Who is known without having been served: by the guard before, or by the operator.
//! Needs root.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use plimsoll_packets::frame::Packet;

use super::test_host::{HOST, KERNEL_TICK, UDP_PORT, unread_server, with_guard};
use super::types;
use crate::known::KnownSources;
use crate::{Guard, Protection};

const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);

fn send(guard: &mut Guard<'_>, source: impl Into<IpAddr>) {
    let source = source.into();
    let host = match source {
        IpAddr::V4(_) => IpAddr::from(HOST),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let frame = Packet::new(source, host).udp(4000, UDP_PORT, b"query");
    let _ = guard.test_run(&frame, 1).unwrap();
}

/// Packets of known sources that the overloaded channel was sent.
fn known_packets(guard: &mut Guard<'_>) -> u64 {
    let part = guard.program.books.part(super::SLOT_SOCKETS, 0);
    let known = part.judged[types::source_class::CLASS_KNOWN.0 as usize];
    known.admitted + known.discarded
}

/// A server over its high watermark.
fn overloaded() -> std::net::UdpSocket {
    let server = unread_server(200);
    nix::sys::socket::setsockopt(&server, nix::sys::socket::sockopt::RcvBufForce, &110_000)
        .unwrap();
    server
}

fn on_one_cpu() {
    let mut cpu = nix::sched::CpuSet::new();
    cpu.set(0).unwrap();
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &cpu).unwrap();
}

/// What a guard leaves that knows one client.
fn left_by_a_guard() -> KnownSources {
    let mut left = None;
    with_guard(|guard| {
        on_one_cpu();
        let _server = unread_server(1);
        for period in 1..=3 {
            guard.program.set_epoch(4 * period);
            std::thread::sleep(KERNEL_TICK);
            send(guard, CLIENT);
        }
        left = Some(guard.program.known_sources().unwrap());
    });
    left.unwrap()
}

#[test]
fn a_client_is_still_known_to_the_next_guard() {
    let left = left_by_a_guard();
    with_guard(|guard| {
        on_one_cpu();
        guard.program.remember(&left).unwrap();
        let _server = overloaded();
        // At the first packet the socket has its channel.
        send(guard, CLIENT);
        send(guard, CLIENT);
        let known = known_packets(guard);
        assert!(known >= 1, "{left:?}");
        send(guard, Ipv4Addr::new(192, 0, 2, 8));
        assert_eq!(known_packets(guard), known, "its neighbour is not");
        let again = guard.program.known_sources().unwrap();
        assert_eq!(again.still_known(), left.still_known(), "nobody else is");
    });
}

#[test]
fn clients_of_a_given_prefix_are_known_from_the_start() {
    with_guard(|guard| {
        on_one_cpu();
        let protection = |known: &[&str]| Protection {
            known: known.iter().map(|prefix| prefix.parse().unwrap()).collect(),
            ..Protection::default()
        };
        guard
            .protect(&protection(&["192.0.2.0/24", "2001:db8::/32"]))
            .unwrap();
        let _server = overloaded();
        send(guard, CLIENT);
        let mut before = known_packets(guard);
        for (source, is_known) in [
            ("192.0.2.200", true),
            ("192.0.3.1", false),
            ("2001:db8:5::1", true),
            ("2001:db9::1", false),
        ] {
            send(guard, source.parse::<IpAddr>().unwrap());
            let now = known_packets(guard);
            assert_eq!(now - before, u64::from(is_known), "{source}");
            before = now;
        }
        guard.protect(&protection(&[])).unwrap();
        send(guard, CLIENT);
        assert_eq!(known_packets(guard), before, "no prefix is known any more");
    });
}
