//! What counts as a closed port: only what the stack itself refuses, again and again. Its
//! packets are held to what the stack could answer.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_core::time::TICK;
use plimsoll_guard::{Guard, Kind, Outcome};
use plimsoll_kernel::link;
use plimsoll_packets::frame::{Packet, TcpFlags};

use crate::common::closed_port::{CLOSED, FRAMES, flood_closed_port, frame, guarded};
use crate::common::patient::{patient, received};
use crate::common::{HOST_MAC, HOST_V4, PEER_MAC, PEER_V4, Wire, bridged, in_namespace, ip};

/// A little longer than the program's reviews of closed ports.
const REVIEW: Duration = Duration::from_millis(40);

/// Floods a port where nobody listens until it is known: until something is discarded.
fn flood_until_known(guard: &mut Guard<'_>, wire: &Wire) {
    let end = Instant::now() + Duration::from_secs(10);
    while guard.counters().unwrap().of(Kind::ClosedPort).discarded() == 0 {
        assert!(
            Instant::now() < end,
            "{:?}",
            guard.counters().unwrap().all()
        );
        flood_closed_port(guard, wire);
    }
}

/// Floods it once more. Returns what was admitted, what was discarded beyond the share,
/// and in how many ticks at most. The clock is read outside of the counters: frames that
/// wait in the ring may be taken while this thread does not run. It takes the machine's time
/// to offer more than twice the share, so this repeats until it had that.
fn flood_known_port(guard: &mut Guard<'_>, wire: &Wire) -> (u64, u64, u64) {
    for _ in 0..20 {
        let start = Instant::now();
        let before = *guard.counters().unwrap().of(Kind::ClosedPort);
        flood_closed_port(guard, wire);
        let after = *guard.counters().unwrap().of(Kind::ClosedPort);
        let ticks = (start.elapsed().as_nanos() / TICK.as_nanos()) as u64 + 2;
        let new = |outcome| after.count(outcome) - before.count(outcome);
        let (admitted, discarded) = (new(Outcome::Admitted), new(Outcome::Share));
        if admitted + discarded > 2 * 64 * ticks {
            return (admitted, discarded, ticks);
        }
    }
    panic!("this machine never had the time to flood a port");
}

/// Packets that were admitted at the very end of a review, refused in the next one only,
/// opened the port for 34 ms: 15,427 packets where 64 per tick are allowed.
#[test]
fn a_closed_port_stays_closed_while_refusals_are_on_their_way() {
    in_namespace(|| {
        guarded(|guard, wire| {
            flood_until_known(guard, wire);
            // A test-run reaches no stack. So nobody refuses these, in two reviews.
            for _ in 0..2 {
                thread::sleep(REVIEW);
                guard.test_run(&frame(4000, CLOSED), 32).unwrap();
            }
            thread::sleep(REVIEW);
            let (admitted, _, ticks) = flood_known_port(guard, wire);
            assert!(admitted <= 64 * ticks, "{admitted} in {ticks} ticks");
        });
    });
}

/// TCP of the same number may be a service that is translated to a host behind this one.
#[test]
fn a_closed_port_of_udp_says_nothing_of_the_same_port_of_tcp() {
    in_namespace(|| {
        guarded(|guard, wire| {
            flood_until_known(guard, wire);
            let segment = Packet::new(PEER_V4.into(), HOST_V4.into())
                .macs(PEER_MAC, HOST_MAC)
                .tcp(4000, CLOSED, TcpFlags::ACK, &[]);
            let is_admitted = |guard: &mut Guard<'_>| guard.test_run(&segment, 1).unwrap().0;
            for packet in 0..1000 {
                // The share of the port in this tick, and more.
                guard.test_run(&frame(4000, CLOSED), 100).unwrap();
                assert!(is_admitted(guard), "segment {packet}");
            }
        });
    });
}

/// UDP packets that the stack has refused for want of a socket.
fn refused() -> u64 {
    let snmp = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut udp = snmp.lines().filter(|line| line.starts_with("Udp: "));
    let names = udp.next().unwrap().split(' ');
    let values = udp.next().unwrap().split(' ');
    let (_, count) = names
        .zip(values)
        .find(|(name, _)| *name == "NoPorts")
        .unwrap();
    count.parse().unwrap()
}

/// Whoever refuses one packet may take the next: a socket that is about to come, or a
/// translation.
#[test]
fn one_refusal_makes_no_closed_port() {
    in_namespace(|| {
        guarded(|guard, wire| {
            wire.send(&frame(4000, CLOSED));
            while refused() == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            guard.regulate().unwrap();
            guard.test_run(&frame(4000, CLOSED), 2000).unwrap();
            let packets = *guard.counters().unwrap().of(Kind::ClosedPort);
            assert_eq!(packets.count(Outcome::Admitted), 2001, "{packets:?}");
        });
    });
}

/// The refusals were those of the whole host. So a flood that came in elsewhere closed a port here whose
/// packets others take.
#[test]
fn what_is_refused_of_another_interface_closes_no_port_of_this_one() {
    const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 4];
    const OTHER_PEER: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
    in_namespace(|| {
        ip("link add v2 address 02:00:00:00:00:04 type veth peer name v3");
        ip("address add 198.19.0.2/24 dev v2");
        ip("link set v2 up");
        ip("link set v3 up");
        link::wait_until_sending("v2").unwrap();
        let elsewhere = Packet::new(OTHER_PEER.into(), HOST_V4.into())
            .macs(PEER_MAC, OTHER_MAC)
            .udp(4000, CLOSED, &[0; 64]);
        guarded(|guard, _| {
            let other = Wire::at("v3");
            let begun = Instant::now();
            while begun.elapsed() < 10 * REVIEW {
                guard.regulate().unwrap();
                // A test-run reaches no stack.
                guard.test_run(&frame(4000, CLOSED), 1).unwrap();
                (0..100).for_each(|_| other.send(&elsewhere));
            }
            assert!(refused() > 1000, "{}", refused());
            guard.test_run(&frame(4000, CLOSED), 2000).unwrap();
            let packets = *guard.counters().unwrap().of(Kind::ClosedPort);
            assert_eq!(packets.discarded(), 0, "{packets:?}");
        });
    });
}

/// There the stack refuses what the bridge hands up.
#[test]
fn a_port_that_is_closed_behind_a_bridge_is_known() {
    in_namespace(|| {
        bridged();
        guarded(flood_until_known);
    });
}

#[test]
fn a_closed_port_s_flood_is_held_to_what_the_stack_could_answer() {
    in_namespace(|| {
        guarded(|guard, wire| {
            flood_until_known(guard, wire);
            let (admitted, discarded, ticks) = flood_known_port(guard, wire);
            assert!(admitted <= 64 * ticks, "{admitted} in {ticks} ticks");
            assert!(discarded > admitted);

            // Without a sign of life from the guard it ends.
            thread::sleep(Duration::from_millis(2300));
            let before = guard.counters().unwrap().all().discarded();
            for _ in 0..FRAMES {
                wire.send(&frame(4000, CLOSED));
            }
            assert_eq!(guard.counters().unwrap().all().discarded(), before);

            // As soon as somebody listens, he gets everything.
            guard.regulate().unwrap();
            let server = patient((HOST_V4, CLOSED));
            for _ in 0..FRAMES {
                wire.send(&frame(4000, CLOSED));
            }
            assert_eq!(received(&server), u64::from(FRAMES));
        });
    });
}
