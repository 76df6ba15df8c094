//! Sockets that are bound to a device above the guarded interface: the program's look-up finds
//! others in their place.

use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, setsockopt, socket,
    sockopt,
};
use plimsoll_guard::Kind;
use plimsoll_packets::frame::{Packet, TcpFlags};

use crate::common::closed_port::guarded;
use crate::common::patient::{large_buffer, received};
use crate::common::{HOST_MAC, HOST_V4, PEER_MAC, PEER_V4, bridged, in_namespace, ip};

const MACVLAN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x77];
/// More than a receive buffer of the default size holds.
const BURST: u16 = 500;

/// A socket or listener of this host's port 5000 that shares it with others; of a device alone, or
/// of all.
fn sharing(kind: SockType, device: Option<&str>) -> OwnedFd {
    let made = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&made, sockopt::ReusePort, &true).unwrap();
    if let Some(device) = device {
        setsockopt(&made, sockopt::BindToDevice, &device.into()).unwrap();
    }
    bind(made.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, 5000)).unwrap();
    if kind == SockType::Stream {
        listen(&made, Backlog::new(1).unwrap()).unwrap();
    }
    made
}

/// What comes in by v0 is received through `device`, and sent to the Ethernet address `mac`. The
/// guard at v0 finds the sockets of all devices alone: their queues are full.
fn bound_above_loses_nothing(device: &str, mac: [u8; 6]) {
    const LOOPBACK: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 5000);
    let waits = |socket: &UdpSocket| {
        large_buffer(socket);
        let wait = Duration::from_millis(300);
        socket.set_read_timeout(Some(wait)).unwrap();
    };
    let full = sharing(SockType::Datagram, None);
    let server = UdpSocket::from(sharing(SockType::Datagram, Some(device)));
    waits(&server);
    // A listener that is full refuses the next one by its silence.
    let full_listener = sharing(SockType::Stream, None);
    let filler = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for _ in 0..BURST {
        filler.send_to(&[0; 64], LOOPBACK).unwrap();
    }
    let wait = Duration::from_millis(100);
    let connect = |_| TcpStream::connect_timeout(&LOOPBACK.into(), wait).ok();
    let connections: Vec<_> = (0..4).map_while(connect).collect();
    assert!(connections.len() < 4, "its places are taken");
    let listener = TcpListener::from(sharing(SockType::Stream, Some(device)));
    listener.set_nonblocking(true).unwrap();
    guarded(|guard, wire| {
        let packet = Packet::new(PEER_V4.into(), HOST_V4.into()).macs(PEER_MAC, mac);
        for client in 10_000..10_100 {
            wire.send(&packet.udp(client, 5000, &[0; 64]));
        }
        assert_eq!(received(&server), 100);
        wire.send(&packet.tcp(10_000, 5000, TcpFlags::SYN, &[]));
        for kind in [Kind::UdpSocket, Kind::TcpListener] {
            let counted = *guard.counters().unwrap().of(kind);
            assert_eq!(counted.discarded(), 0, "{kind:?}: {counted:?}");
        }
    });
    drop((full, full_listener));
}

#[test]
fn what_is_for_a_socket_bound_to_a_bridge_is_not_judged_by_a_full_one_of_all_devices() {
    in_namespace(|| {
        bridged();
        bound_above_loses_nothing("br0", HOST_MAC);
    });
}

#[test]
fn what_is_for_a_socket_bound_to_a_macvlan_is_not_judged_by_a_full_one_of_all_devices() {
    in_namespace(|| {
        let mac = "02:00:00:00:00:77";
        ip(&format!(
            "link add link v0 name m0 address {mac} type macvlan mode bridge"
        ));
        ip(&format!("address del {HOST_V4}/24 dev v0"));
        ip(&format!("address add {HOST_V4}/24 dev m0"));
        ip("link set m0 up");
        bound_above_loses_nothing("m0", MACVLAN_MAC);
    });
}
