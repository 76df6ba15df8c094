//! Fragments go by the share of their first one.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::Duration;

use plimsoll_core::demux::Kind;
use plimsoll_packets::frame::Fragment;

use super::has_share;
use crate::ProtectedPort;
use crate::program::test_host::{HOST, demand, from, with_guard};
use crate::program::{Protection, SLOT_PROTECTED};

/// A datagram's pieces to a UDP port: the first and a later one.
fn pieces(id: u32, port: u16) -> [Vec<u8>; 2] {
    [0, 32].map(|offset| {
        let fragment = Fragment {
            id,
            offset,
            more: offset == 0,
        };
        from(HOST).fragment(fragment).udp(4000, port, &[0; 24])
    })
}

/// Admitted was remembered before the share was asked, so later fragments filled the memory
/// for datagrams of which the first one was lost.
#[test]
fn fragments_of_a_first_one_that_found_no_share_are_discarded_and_are_demand_too() {
    with_guard(|guard| {
        let _server = UdpSocket::bind((HOST, 5000)).unwrap();
        guard.program.beat();
        guard.test_run(&from(HOST).udp(4000, 5000, &[]), 1).unwrap();
        let slot = guard.program.sockets()[0].slot;
        guard.program.set_shares(Some((1, &BTreeMap::new())));
        let refused = (0..1000)
            .find(|id| {
                guard.program.beat();
                !guard.test_run(&pieces(*id, 5000)[0], 1).unwrap().0
            })
            .expect("one finds no share");
        let before = demand(guard, slot);
        // Whatever the share has become.
        guard.program.set_shares(Some((1000, &BTreeMap::new())));
        for _ in 0..10 {
            guard.program.beat();
            assert!(!guard.test_run(&pieces(refused, 5000)[1], 1).unwrap().0);
        }
        assert_eq!(demand(guard, slot) - before, 10);
    });
}

/// A later fragment has no port of its own, and went by another share than its first one.
#[test]
fn fragments_to_a_protected_port_go_by_the_protected_share() {
    with_guard(|guard| {
        let _server = UdpSocket::bind((HOST, 5000)).unwrap();
        guard
            .protect(&Protection {
                ports: vec![ProtectedPort::udp(5000)],
                ..Protection::default()
            })
            .unwrap();
        let slots = BTreeMap::from([(SLOT_PROTECTED, 40)]);
        guard.program.set_shares(Some((1, &slots)));
        let [first, later] = pieces(7, 5000);
        std::thread::sleep(Duration::from_millis(5));
        guard.program.beat();
        assert!(guard.test_run(&first, 1).unwrap().0);
        assert!(has_share(guard, &later, 40));
        let asked = guard.counters().unwrap().of(Kind::UdpSocket).offered();
        assert_eq!(demand(guard, SLOT_PROTECTED), asked);
    });
}
