//! Who is known without having been served: by the guard before, or by the operator.
//! Needs root.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use plimsoll_core::fairness::Keys;
use plimsoll_core::fairness::numbers::KNOWN_AGE_PERIODS;
use plimsoll_packets::frame::Packet;

use super::test_host::{HOST, KERNEL_TICK, UDP_PORT, send_datagrams, unread_server, with_guard};
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
    let cpu = u32::try_from(nix::sched::sched_getcpu().unwrap()).unwrap();
    let part = guard.program.books.part(super::SLOT_SOCKETS, cpu);
    let known = part.judged[types::source_class::CLASS_KNOWN.0 as usize];
    known.admitted + known.discarded
}

/// A server whose queue has no room.
fn overloaded() -> std::net::UdpSocket {
    let server = unread_server(200);
    nix::sys::socket::setsockopt(&server, nix::sys::socket::sockopt::RcvBufForce, &80_000).unwrap();
    server
}

/// What a guard leaves that knows one client.
fn left_by_a_guard() -> KnownSources {
    let mut left = None;
    with_guard(|guard| {
        let _server = unread_server(1);
        for period in 1..=3 {
            guard.program.set_epoch(4 * period);
            std::thread::sleep(KERNEL_TICK);
            send(guard, CLIENT);
        }
        left = Some(guard.program.known_sources());
    });
    left.unwrap()
}

/// Whoever knew one guard's secret could choose addresses that collide. It is no other's.
#[test]
fn each_guard_has_a_secret_of_its_own() {
    let mut keys = Vec::new();
    for _ in 0..2 {
        with_guard(|guard| keys.extend(guard.program.settings().fair_keys));
    }
    let all = keys.len();
    assert_eq!(all, 2 * Keys::COUNT);
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), all, "and each key is drawn for itself");
}

#[test]
fn a_client_is_still_known_to_the_next_guard() {
    let left = left_by_a_guard();
    with_guard(|guard| {
        guard.program.remember(&left);
        let _server = overloaded();
        // At the first packet the socket has its channel.
        send(guard, CLIENT);
        send(guard, CLIENT);
        let known = known_packets(guard);
        assert!(known >= 1, "{left:?}");
        send(guard, Ipv4Addr::new(192, 0, 2, 8));
        assert_eq!(known_packets(guard), known, "its neighbour is not");
        let again = guard.program.known_sources();
        assert_eq!(again.still_known(), left.still_known(), "nobody else is");
    });
}

#[test]
fn clients_of_a_given_prefix_are_known_from_the_start() {
    with_guard(|guard| {
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

/// Of `::/0`, as somebody writes it for all of IPv6, all hosts of IPv4 were known as well.
#[test]
fn a_prefix_of_ipv6_has_no_hosts_of_ipv4() {
    with_guard(|guard| {
        let _server = overloaded();
        send(guard, CLIENT);
        for (known, of_client, of_other, of_ipv6) in [
            (&["::/0"][..], false, false, true),
            (&["::/64"], false, false, false),
            (&["::/0", "192.0.2.0/24"], true, false, true),
            (&["::/0", "0.0.0.0/0"], true, true, true),
            (&["::/0"], false, false, true),
            (&["0.0.0.0/0"], true, true, false),
        ] {
            let known_prefixes = known.iter().map(|prefix| prefix.parse().unwrap()).collect();
            let protection = Protection {
                known: known_prefixes,
                ..Protection::default()
            };
            guard.protect(&protection).unwrap();
            for (source, is_known) in [
                (CLIENT.into(), of_client),
                ("192.0.3.1".parse().unwrap(), of_other),
                ("2001:db8::1".parse::<IpAddr>().unwrap(), of_ipv6),
            ] {
                let before = known_packets(guard);
                send(guard, source);
                let of_source = known_packets(guard) - before;
                assert_eq!(of_source, u64::from(is_known), "{source} of {known:?}");
            }
        }
    });
}

/// The set that remembers a client of the UDP server: the same hash as the program's.
fn set_of(keys: &[u64], client: Ipv4Addr) -> u32 {
    const UDP: u64 = 17;
    let service = u64::from(UDP_PORT) | UDP << 16 | 1 << 31;
    let word = keys[Keys::WORDS + 3].wrapping_mul(u64::from(client.to_bits()));
    let channel = keys[Keys::CHANNEL].wrapping_mul(service);
    let sum = keys[Keys::FIRST].wrapping_add(channel.wrapping_add(word));
    Keys::hash(sum) & (types::limit::KNOWN_SOURCE_SETS.0 - 1)
}

/// Serves some clients in three periods from this one on.
fn serve(guard: &mut Guard<'_>, clients: &[Ipv4Addr], period: u32) {
    for period in period..period + 3 {
        guard.program.set_epoch(4 * period);
        for client in clients {
            std::thread::sleep(KERNEL_TICK);
            send(guard, *client);
        }
    }
}

fn known(guard: &mut Guard<'_>) -> usize {
    let known = guard.program.known_sources();
    known.still_known().iter().map(Vec::len).sum()
}

/// The program counts periods in 16 bits, which begin anew after three days.
#[test]
fn who_was_forgotten_is_not_known_again_after_three_days() {
    const AGAIN: u32 = 1 << 16;
    with_guard(|guard| {
        let twice_seen = Ipv4Addr::new(192, 0, 2, 8);
        let server = unread_server(1);
        serve(guard, &[CLIENT], 1);
        for period in [4, 5] {
            guard.program.set_epoch(4 * period);
            std::thread::sleep(KERNEL_TICK);
            send(guard, twice_seen);
        }
        assert_eq!(known(guard), 1);
        for hour in 1..=72 {
            guard.program.set_epoch(3600 * hour);
        }
        guard.program.set_epoch(4 * (AGAIN + 6));
        assert_eq!(known(guard), 0);
        std::thread::sleep(KERNEL_TICK);
        send(guard, twice_seen);
        assert_eq!(known(guard), 0, "it was seen once, not three times");

        send_datagrams(200);
        nix::sys::socket::setsockopt(&server, nix::sys::socket::sockopt::RcvBufForce, &80_000)
            .unwrap();
        std::thread::sleep(KERNEL_TICK);
        send(guard, CLIENT);
        assert_eq!(known_packets(guard), 0, "to the program neither");
    });
}

/// Who comes when all eight places of a set are taken drives nobody out, until somebody has
/// not been seen for an hour. An overload keeps nobody from being seen.
#[test]
fn a_full_set_keeps_whom_it_knows_for_an_hour() {
    const PLACES: usize = types::limit::KNOWN_SOURCE_WAYS.0 as usize;
    const AGE: u32 = KNOWN_AGE_PERIODS as u32;
    with_guard(|guard| {
        let keys = guard.program.settings().fair_keys;
        let set = set_of(&keys, CLIENT);
        let all = (0x0a00_0000..).map(Ipv4Addr::from_bits);
        let in_set: Vec<Ipv4Addr> = all
            .filter(|client| set_of(&keys, *client) == set)
            .take(PLACES + 1)
            .collect();
        let (first, newcomer) = (&in_set[..PLACES], in_set[PLACES]);
        let server = unread_server(1);
        serve(guard, first, 1);
        assert_eq!(known(guard), PLACES, "by the same hash as ours");
        serve(guard, &[newcomer], 4);
        assert_eq!(known(guard), PLACES, "no room for one more");

        send_datagrams(200);
        nix::sys::socket::setsockopt(&server, nix::sys::socket::sockopt::RcvBufForce, &80_000)
            .unwrap();
        std::thread::sleep(KERNEL_TICK);
        send(guard, newcomer);
        assert_eq!(known_packets(guard), 0, "a newcomer is not known");
        // Just before the hour is over, during the overload, all but one come again.
        guard.program.set_epoch(4 * (3 + AGE - 1));
        for client in &first[1..] {
            send(guard, *client);
        }
        assert_eq!(known_packets(guard), PLACES as u64 - 1);
        guard.program.set_epoch(4 * (3 + AGE));
        assert_eq!(known(guard), PLACES - 1, "one is forgotten");
        for client in &in_set {
            send(guard, *client);
        }
        assert_eq!(known_packets(guard), 2 * (PLACES as u64 - 1));

        // There is a place again, once the queue has room.
        nix::sys::socket::setsockopt(&server, nix::sys::socket::sockopt::RcvBufForce, &(4 << 20))
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(600));
        serve(guard, &[newcomer], 4 + AGE);
        assert_eq!(known(guard), PLACES);
    });
}
