//! Every offered packet is found at its place, and none at two.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_kernel::counters::stack;
use plimsoll_testbed::ledger::{Counters, Ledger, Traffic};
use plimsoll_testbed::{Placement, Testbed};

use crate::common::{bound, create, drain};

const OFFERED: u64 = 20_000;

/// Surely an overflow. How the losses divide between the ring and what lies
/// behind it is the scheduler's doing; that they are all found is ours.
const MANY: u64 = OFFERED / 100;

/// Sends `OFFERED` datagrams from the load host's CPU as fast as it can.
fn flood(testbed: &Testbed, from: &UdpSocket, to: impl Into<SocketAddr>) {
    let to = to.into();
    let send = || {
        for _ in 0..OFFERED {
            from.send_to(&[0; 18], to).unwrap();
        }
    };
    testbed.load().run_on_cpu(send).unwrap();
    // The last frames may still wait in the ring.
    std::thread::sleep(Duration::from_millis(50));
}

fn offered(delivered: u64) -> Traffic {
    Traffic {
        offered: OFFERED,
        delivered,
        early_discard: 0,
    }
}

/// Shows MR-77.
#[test]
fn an_overflowed_socket_queue_is_found_over_ipv4_and_ipv6() {
    let testbed = create();
    Placement::Threaded { nice: -10 }.apply(&testbed).unwrap();
    let (load, test) = (testbed.load(), testbed.test());
    for (client, server) in [
        (bound(load, load.ipv4()), bound(test, test.ipv4())),
        (bound(load, load.ipv6()), bound(test, test.ipv6())),
    ] {
        setsockopt(&server, sockopt::RcvBuf, &65_536).unwrap();
        let before = Counters::read(&testbed).unwrap();
        flood(&testbed, &client, server.local_addr().unwrap());
        let delivered = drain(&server);
        let after = Counters::read(&testbed).unwrap();
        let ledger = Ledger::between(&before, &after, offered(delivered));
        assert!(ledger.socket_queue > MANY, "{ledger}");
        assert!(ledger.delivered > 10, "{ledger}");
        assert_eq!(ledger.unaccounted, 0, "{ledger}");
    }
}

/// The error for an answer to a client that has gone was once counted where it was lost: a
/// packet more than was offered.
#[test]
fn a_load_host_sends_no_errors_for_late_answers() {
    let testbed = create();
    let (load, test) = (testbed.load(), testbed.test());
    let counted = |name: &str| load.run(stack::read).unwrap()[name];
    for (client, server, refused, errors) in [
        (
            bound(load, load.ipv4()),
            bound(test, test.ipv4()),
            "Udp.NoPorts",
            "Icmp.OutDestUnreachs",
        ),
        (
            bound(load, load.ipv6()),
            bound(test, test.ipv6()),
            "Udp6NoPorts",
            "Icmp6OutDestUnreachs",
        ),
    ] {
        let gone = client.local_addr().unwrap();
        drop(client);
        // The last one comes after all that the others caused. Between another test's fork
        // and exec, the port may still be open.
        let begun = Instant::now();
        while counted(refused) < 2 {
            assert!(begun.elapsed() < Duration::from_secs(10), "{refused}");
            server.send_to(b"late", gone).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(counted(errors), 0, "{errors}");
    }
}

/// Shows MR-77.
#[test]
fn an_overflowed_receive_ring_is_found() {
    let testbed = create();
    // One poll in 10 ms: the ring's 256 frames cannot last.
    let holdoff = Duration::from_millis(10);
    Placement::Softirq { holdoff }.apply(&testbed).unwrap();
    let client = bound(testbed.load(), testbed.load().ipv4());
    let server = bound(testbed.test(), testbed.test().ipv4());
    setsockopt(&server, sockopt::RcvBufForce, &(64 << 20)).unwrap();
    let before = Counters::read(&testbed).unwrap();
    flood(&testbed, &client, server.local_addr().unwrap());
    let delivered = drain(&server);
    let after = Counters::read(&testbed).unwrap();
    let ledger = Ledger::between(&before, &after, offered(delivered));
    assert!(ledger.receive_ring > MANY, "{ledger}");
    assert_eq!(ledger.socket_queue, 0, "{ledger}");
    assert_eq!(ledger.unaccounted, 0, "{ledger}");
}

#[test]
fn closed_ports_and_foreign_addresses_are_found() {
    let testbed = create();
    Placement::Threaded { nice: -10 }.apply(&testbed).unwrap();
    let client = bound(testbed.load(), testbed.load().ipv4());
    let before = Counters::read(&testbed).unwrap();
    flood(&testbed, &client, (testbed.test().ipv4(), 9));
    let after = Counters::read(&testbed).unwrap();
    let ledger = Ledger::between(&before, &after, offered(0));
    assert!(ledger.no_port > MANY, "{ledger}");
    assert_eq!(ledger.unaccounted, 0, "{ledger}");
}

#[test]
fn what_nobody_counts_is_unaccounted() {
    let testbed = create();
    let before = Counters::read(&testbed).unwrap();
    let after = Counters::read(&testbed).unwrap();
    let ledger = Ledger::between(&before, &after, offered(OFFERED - 3));
    assert_eq!(ledger.unaccounted, 3);
}
