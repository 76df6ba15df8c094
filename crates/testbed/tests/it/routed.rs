//! The three hosts of a router's tests, before anything is measured with them. Needs root.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use plimsoll_testbed::Config;
use plimsoll_testbed::routed::{Routed, Sink};

use crate::common::bound;

/// The kernel's own link-local addresses are not to be used in the first one to two seconds.
/// Until then a router could not ask where the host behind it is, and no burst of IPv6 came
/// through.
#[test]
fn packets_pass_the_router_from_the_beginning() {
    let hosts = Routed::create(Config::default(), Sink::Answers).unwrap();
    let behind = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 2);
    let versions: [(SocketAddr, SocketAddr); 2] = [
        (
            (Ipv4Addr::UNSPECIFIED, 0).into(),
            (Ipv4Addr::new(10, 77, 0, 2), 0).into(),
        ),
        ((Ipv6Addr::UNSPECIFIED, 0).into(), (behind, 0).into()),
    ];
    for (from, to) in versions {
        let receiver = bound(hosts.sink(), to.ip());
        receiver
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        let sender = bound(hosts.load(), from.ip());
        sender
            .send_to(b"first", receiver.local_addr().unwrap())
            .unwrap();
        let mut room = [0; 8];
        let received = receiver.recv(&mut room);
        assert_eq!(received.ok(), Some(5), "{to}");
    }
}
