//! An endpoint of the XDP program stays with whoever has it. Another that asked for it was
//! refused, and on its way out it took the entry of the first with it: that socket got nothing
//! any more. At wildcard addresses it got the first one's frames instead. Needs root.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket as KernelSocket};
use std::time::Instant;

use plimsoll_core::demux::Protocol;
use plimsoll_stack::device::{Batch, Device, Endpoint};
use plimsoll_stack::{Stack, UdpSocket};

use crate::lan::{self, Lan, SOON, config, owned, xdp};

fn refused(bound: std::io::Result<UdpSocket>, at: &str) {
    assert_eq!(bound.unwrap_err().kind(), ErrorKind::AddrInUse, "{at}");
}

/// A connected socket has left the stack's table of bound ones, so that the device alone knows.
#[test]
fn a_connected_sockets_address_is_not_given_away() {
    for path in ["ni-lrp", "soft-lrp"] {
        Lan::create(|| {
            let stack = Stack::start(xdp(&owned()), &config(path)).unwrap();
            for (at, to, from) in [
                ("10.0.0.2:7", "10.0.0.2:7", "10.0.0.1:0"),
                ("0.0.0.0:8", "10.0.0.2:8", "10.0.0.1:0"),
                ("[fd00::2]:7", "[fd00::2]:7", "[fd00::1]:0"),
            ] {
                let client = KernelSocket::bind(from).unwrap();
                let socket = UdpSocket::bind(&stack, at).unwrap();
                socket.set_read_timeout(Some(SOON)).unwrap();
                client.send_to(b"who", to).unwrap();
                let (_, peer) = socket.recv_from(&mut [0; 8]).unwrap();
                socket.connect(peer).unwrap();
                refused(UdpSocket::bind(&stack, at), at);
                refused(UdpSocket::bind_shared(&stack, at), at);
                client.send_to(b"still", to).unwrap();
                assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 5, "{path}: {at}");
                drop(socket);
                let next = UdpSocket::bind(&stack, at).unwrap();
                next.set_read_timeout(Some(SOON)).unwrap();
                client.send_to(b"next", to).unwrap();
                assert_eq!(next.recv(&mut [0; 8]).unwrap(), 4, "{path}: {at}");
            }
        });
    }
}

/// Sends to it until something came.
fn receives(device: &dyn Device, to: SocketAddr) {
    let client = KernelSocket::bind("10.0.0.1:0").unwrap();
    let (end, mut batch) = (Instant::now() + SOON, Batch::new());
    while device.receive(&mut batch, 64).unwrap() == 0 {
        client.send_to(b"anybody?", to).unwrap();
        assert!(Instant::now() < end, "nothing came");
    }
}

#[test]
fn a_group_keeps_its_endpoint_and_takes_nobody_elses() {
    Lan::create(|| {
        let device = xdp(&owned());
        let mac = device.mac().map(|byte| format!("{byte:02x}")).join(":");
        lan::run(&format!("ip neigh add 10.0.0.2 lladdr {mac} dev kernel0"));
        for at in ["10.0.0.2:7", "0.0.0.0:8"] {
            let (local, protocol) = (at.parse().unwrap(), Protocol::Udp);
            let endpoint = Endpoint { protocol, local };
            let to = at.replace("0.0.0.0", "10.0.0.2").parse().unwrap();
            let member = device.open_member(endpoint).unwrap();
            let taken = device.open_endpoint(endpoint).unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::AddrInUse);
            let taken = device.claim(endpoint).unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::AddrInUse);
            receives(&*member, to);
            let second = device.open_member(endpoint).unwrap();
            drop(member);
            receives(&*second, to);
            drop(second);
            let alone = device.open_endpoint(endpoint).unwrap();
            let taken = device.open_member(endpoint).unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::AddrInUse);
            receives(&*alone, to);
        }
    });
}
