//! A guard that has the capabilities of the package's unit, and no others, on a gateway. Where
//! connection tracking is a module, a program is bound to its functions only if its loader has
//! `CAP_SYS_ADMIN`: without it, types of modules are not to be had. (Here it may be built in. As a
//! module it is tried by `make vm-test`.) Needs root.

use std::net::UdpSocket;

use caps::{CapSet, Capability};

use crate::common::closed_port::{frame, guarded};
use crate::common::other_namespace::Namespace;
use crate::common::patient::{patient, received};
use crate::common::{HOST_V4, PEER_V4, in_namespace, ip, nft};

const PORT: u16 = 123;
const FRAMES: u16 = 200;

#[test]
fn what_is_masqueraded_is_not_judged_by_a_full_socket_whatever_its_guard_may() {
    in_namespace(|| {
        let inside = Namespace::new();
        let tid = inside.tid;
        ip(&format!("link add g0 type veth peer name h0 netns {tid}"));
        ip("address add 10.77.0.1/24 dev g0");
        ip("link set g0 up");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        nft("add table ip n; \
             add chain ip n out { type nat hook postrouting priority 100; }; \
             add rule ip n out oifname v0 masquerade");
        let client = inside.run(|| {
            ip("address add 10.77.0.2/24 dev h0");
            ip("link set h0 up");
            ip("route add default via 10.77.0.1");
            let client = patient(("10.77.0.2".parse().unwrap(), PORT));
            client.send_to(b"please", (PEER_V4, 9000)).unwrap();
            client
        });
        let full = UdpSocket::bind((HOST_V4, PORT)).unwrap();
        let filler = UdpSocket::bind((HOST_V4, 0)).unwrap();
        for _ in 0..10_000 {
            filler.send_to(&[0; 64], (HOST_V4, PORT)).unwrap();
        }
        caps::drop(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).unwrap();
        guarded(|guard, wire| {
            guard.refresh().unwrap();
            (0..FRAMES).for_each(|_| wire.send(&frame(9000, PORT)));
            assert_eq!(inside.run(move || received(&client)), u64::from(FRAMES));
        });
        drop(full);
    });
}
