//! A listener whose SYN queue a flood has filled.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use etherparse::{NetHeaders, PacketHeaders, TcpHeader, TransportHeader};
use nix::sys::socket::{Backlog, listen};
use plimsoll_packets::frame::{Packet, TcpFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with};

use super::peer::{Job, NOBODY_V4, NOBODY_V6, run};
use super::{HOST_MAC, PEER_MAC, Wire};

pub(crate) const PORT: u16 = 80;
pub(crate) const BACKLOG: u16 = 8;

pub(crate) fn listener(address: IpAddr) -> TcpListener {
    let listener = TcpListener::bind((address, PORT)).unwrap();
    listen(&listener, Backlog::new(i32::from(BACKLOG)).unwrap()).unwrap();
    listener
}

/// One that takes Multipath TCP as well, as those of Go programs do.
pub(crate) fn multipath_listener(host: Ipv4Addr) -> TcpListener {
    let made = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        Some(ipproto::MPTCP),
    );
    let made = made.unwrap();
    bind(&made, &SocketAddrV4::new(host, PORT)).unwrap();
    listen(&made, Backlog::new(i32::from(BACKLOG)).unwrap()).unwrap();
    made.into()
}

/// A packet from an address that nobody has.
pub(crate) fn of_nobody(host: IpAddr) -> Packet {
    let nobody = if host.is_ipv4() {
        NOBODY_V4.into()
    } else {
        NOBODY_V6.into()
    };
    Packet::new(nobody, host).macs(PEER_MAC, HOST_MAC)
}

/// A SYN or another segment from there.
pub(crate) fn from_nobody(host: IpAddr, port: u16, flags: TcpFlags) -> Vec<u8> {
    of_nobody(host).tcp(port, PORT, flags, &[])
}

/// Fills the SYN queue with requests that nobody will complete.
pub(crate) fn fill_syn_queue(peer: &Sender<Job>, host: IpAddr) {
    // Some releases queue one more than the backlog.
    request(peer, host, BACKLOG + 1);
}

/// So many requests that nobody will complete.
pub(crate) fn request(peer: &Sender<Job>, host: IpAddr, requests: u16) {
    run(peer, move || {
        let wire = Wire::open();
        for port in 0..requests {
            wire.send(&from_nobody(host, 10_000 + port, TcpFlags::SYN));
        }
    });
    thread::sleep(Duration::from_millis(50));
}

/// The answer's TCP header, if its checksum is right.
pub(crate) fn syn_ack(answer: &[u8]) -> TcpHeader {
    let packet = PacketHeaders::from_ethernet_slice(answer).unwrap();
    let Some(TransportHeader::Tcp(tcp)) = packet.transport else {
        panic!("{packet:?}");
    };
    assert!(tcp.syn && tcp.ack);
    let sum = match packet.net.unwrap() {
        NetHeaders::Ipv4(ip, _) => tcp.calc_checksum_ipv4(&ip, &[]),
        NetHeaders::Ipv6(ip, _) => tcp.calc_checksum_ipv6(&ip, &[]),
        other => panic!("{other:?}"),
    };
    assert_eq!(sum.unwrap(), tcp.checksum);
    tcp
}
