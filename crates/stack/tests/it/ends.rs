//! How connections end against the kernel's own stack, and what becomes of packets for
//! nobody. Needs root.

use std::net::UdpSocket as KernelSocket;

use plimsoll_stack::{Stack, UdpSocket};

use crate::closing::{Between, Link, SIDES};
use crate::lan::{self, Lan, SOON, config, owned, xdp};

#[test]
fn ends_and_closed_windows_are_understood_both_ways() {
    Lan::create(|| {
        let stack = Stack::start(xdp(&owned()), &config("soft-lrp")).unwrap();
        let between = Between::new(&stack, Link::Whole);
        between.half_closes();
        between.closed_windows();
        between.resets();
        lan::assert_sums(&stack);
    });
}

#[test]
fn storms_of_connections_that_either_side_begins_leave_nothing_behind() {
    Lan::create(|| {
        // Fewer places than connections, so that each must be given back.
        let mut few = config("soft-lrp");
        few.tcp.connections_max = 32;
        let stack = Stack::start(xdp(&owned()), &few).unwrap();
        let between = Between::new(&stack, Link::Whole);
        for side in SIDES {
            between.storm(side, 200);
        }
        lan::assert_sums(&stack);
    });
}

/// LRP-20, for ports without a channel: what nobody will answer costs the stack nothing.
#[test]
fn a_flood_for_ports_that_nobody_bound_ends_in_the_xdp_program() {
    Lan::create(|| {
        let stack = Stack::start(xdp(&owned()), &config("soft-lrp")).unwrap();
        let server = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
        server.set_read_timeout(Some(SOON)).unwrap();
        let client = KernelSocket::bind("10.0.0.1:0").unwrap();
        client.send_to(b"first", "10.0.0.2:7").unwrap();
        server.recv_from(&mut [0; 100]).unwrap();
        let end = std::time::Instant::now() + SOON;
        while stack.device_drops().stray == 0 {
            assert!(std::time::Instant::now() < end, "{:?}", stack.counts());
            for _ in 0..500 {
                client.send_to(b"for nobody", "10.0.0.2:9").unwrap();
            }
        }
        client.send_to(b"bound", "10.0.0.2:7").unwrap();
        assert_eq!(server.recv_from(&mut [0; 100]).unwrap().0, 5);
        lan::assert_sums(&stack);
    });
}
