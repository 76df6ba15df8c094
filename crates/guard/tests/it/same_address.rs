//! Another host behind the interface's bridge that has this host's IP address as well, as servers
//! have to which a load balancer sends by Ethernet address (direct server return). Needs root.

use std::net::UdpSocket;

use plimsoll_guard::{Config, Guard, Kind, Outcome, Storage};

use crate::common::other_namespace::Namespace;
use crate::common::patient::{patient, received};
use crate::common::{HOST_MAC, HOST_V4, Wire, bridged, in_namespace, ip, to_host};

/// The other host's.
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x77];
/// Of an interface of this host that is a port of the same bridge.
const PORT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x78];
const PORT: u16 = 53;
const FRAMES: u16 = 200;

fn frame(mac: [u8; 6]) -> Vec<u8> {
    let packet = to_host(HOST_V4).macs(crate::common::PEER_MAC, mac);
    packet.udp(4000, PORT, &[0; 64])
}

/// While this host's server was full, what is for the other one's was discarded.
#[test]
fn what_is_bridged_to_another_host_of_the_same_address_is_not_judged_by_a_socket_here() {
    in_namespace(|| {
        bridged();
        let other = Namespace::new();
        let tid = other.tid;
        ip(&format!(
            "link add p0 address 02:00:00:00:00:78 type veth peer name h0 address 02:00:00:00:00:77 netns {tid}"
        ));
        ip("link set p0 master br0 up");
        let served = other.run(|| {
            ip(&format!("address add {HOST_V4}/24 dev h0"));
            ip("link set h0 up");
            patient((HOST_V4, PORT))
        });
        let full = UdpSocket::bind((HOST_V4, PORT)).unwrap();
        let mut storage = Storage::default();
        let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let wire = Wire::open();
        let mut counts = |kind| *guard.counters().unwrap().of(kind);
        let mut frames = 0u64;
        while counts(Kind::UdpSocket).discarded() < u64::from(FRAMES) {
            frames += 1;
            assert!(frames < 100_000, "the queue gets full");
            wire.send(&frame(HOST_MAC));
        }
        for mac in [OTHER_MAC, PORT_MAC] {
            let before = [Kind::UdpSocket, Kind::Forward].map(&mut counts);
            (0..FRAMES).for_each(|_| wire.send(&frame(mac)));
            let after = [Kind::UdpSocket, Kind::Forward].map(&mut counts);
            let judged = after[0].discarded() - before[0].discarded();
            let forwarded = after[1].count(Outcome::Admitted) - before[1].count(Outcome::Admitted);
            let expected = match mac {
                OTHER_MAC => (0, u64::from(FRAMES)),
                _ => (u64::from(FRAMES), 0),
            };
            assert_eq!((judged, forwarded), expected, "{mac:?}");
        }
        assert_eq!(other.run(move || received(&served)), u64::from(FRAMES));
        drop(full);
    });
}
