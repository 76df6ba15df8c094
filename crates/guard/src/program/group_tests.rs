//! A group of sockets that share a port, as the program knows it from one packet to the next.
//! Needs root.

use std::mem::offset_of;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use libbpf_rs::{MapCore, MapFlags};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt,
};

use super::test_host::{HOST, KERNEL_TICK, from, with_guard};
use super::types;
use crate::Guard;

const PORT: u16 = 5000;
const SENDER: u16 = 4000;

fn member() -> UdpSocket {
    let flags = SockFlag::SOCK_CLOEXEC;
    let member = socket(AddressFamily::Inet, SockType::Datagram, flags, None).unwrap();
    setsockopt(&member, sockopt::ReusePort, &true).unwrap();
    setsockopt(&member, sockopt::RcvBuf, &(32 << 10)).unwrap();
    let SocketAddr::V4(address) = SocketAddr::from((HOST, PORT)) else {
        unreachable!("an IPv4 address")
    };
    bind(member.as_raw_fd(), &SockaddrIn::from(address)).unwrap();
    member.into()
}

/// Two members, neither of which has room for one more datagram.
fn full_group() -> [UdpSocket; 2] {
    let group = [(); 2].map(|()| member());
    for _ in 0..32 {
        let client = UdpSocket::bind((HOST, 0)).unwrap();
        for _ in 0..200 {
            client.send_to(&[0; 64], (HOST, PORT)).unwrap();
        }
    }
    group
}

/// Whether the program has known, on the CPU that judged the last packet, that nobody of the
/// port's group has room.
fn is_known_to_be_full(guard: &Guard<'_>) -> bool {
    let known = &guard.program.skeleton.maps.known_sockets;
    let by_cpu = known
        .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
        .unwrap();
    let is_it = |entry: &[u8]| {
        let port = &entry[offset_of!(types::known_socket, port)..][..2];
        let full = entry[offset_of!(types::known_socket, full)];
        let shared = entry[offset_of!(types::known_socket, shared)];
        port == PORT.to_be_bytes() && full != 0 && shared != 0
    };
    let mut tables = by_cpu.unwrap().into_iter();
    tables.any(|table| {
        table
            .chunks_exact(size_of::<types::known_socket>())
            .any(is_it)
    })
}

/// Each packet of one flow's flood was looked up, at four times the cost: a member that got no
/// packet never counted as full.
#[test]
fn a_full_group_of_which_one_member_alone_gets_packets_is_known_to_be_full() {
    with_guard(|guard| {
        let group = full_group();
        let flood = from(HOST).udp(SENDER, PORT, &[]);
        guard.test_run(&flood, 1000).unwrap();
        assert_eq!(
            guard.program.sockets().len(),
            1,
            "of the other nothing was seen"
        );
        assert!(is_known_to_be_full(guard));
        drop(group);
    });
}

/// As soon as the member that a packet is for has room, it is admitted.
#[test]
fn the_other_member_of_such_a_group_gets_its_packets_once_it_has_room() {
    with_guard(|guard| {
        let group = full_group();
        let frames: Vec<_> = (0..64)
            .map(|flow| from(HOST).udp(SENDER + flow, PORT, &[]))
            .collect();
        guard.test_run(&frames[0], 50_000).unwrap();
        for member in &group {
            member.set_nonblocking(true).unwrap();
            while member.recv(&mut [0; 64]).is_ok() {}
            std::thread::sleep(KERNEL_TICK);
            let is_admitted = |frame: &&Vec<u8>| guard.test_run(frame, 1).unwrap().0;
            let admitted = frames.iter().filter(is_admitted).count();
            assert!(admitted >= 10, "{admitted} of {}", frames.len());
        }
    });
}
