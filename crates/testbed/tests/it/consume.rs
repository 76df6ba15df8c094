//! A host that takes IPv4 gets it, and its sockets do not.

use std::fs;
use std::net::UdpSocket;

use plimsoll_testbed::Host;

use crate::common::{bound, create, drain};

/// Frames that have arrived at a host's end of the link.
fn arrived(host: &Host) -> u64 {
    let path = format!("/sys/class/net/{}/statistics/rx_packets", host.device());
    let read = || fs::read_to_string(path).unwrap().trim().parse().unwrap();
    host.run(read).unwrap()
}

/// Sends ten packets between the host's sockets; how many arrive.
fn received(sender: &UdpSocket, receiver: &UdpSocket) -> u64 {
    for _ in 0..10 {
        let to = receiver.local_addr().unwrap();
        assert_eq!(sender.send_to(b"x", to).unwrap(), 1);
    }
    drain(receiver)
}

#[test]
fn it_takes_ipv4_after_the_interface_has_counted_it() {
    let testbed = create();
    let (load, test) = (testbed.load(), testbed.test());
    let ipv4 = (bound(test, test.ipv4()), bound(load, load.ipv4()));
    let ipv6 = (bound(test, test.ipv6()), bound(load, load.ipv6()));
    assert_eq!(received(&ipv4.0, &ipv4.1), 10, "its stack gets it at first");

    load.consume_ipv4().unwrap();
    let before = arrived(load);
    assert_eq!(received(&ipv4.0, &ipv4.1), 0);
    assert!(arrived(load) >= before + 10, "it crossed the link");
    assert_eq!(received(&ipv6.0, &ipv6.1), 10);
}
