//! A host for tests of the program itself: a network namespace with nothing but
//! loopback, and the program loaded in it. Needs root.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use etherparse::{PacketHeaders, TransportHeader};
use nix::sched::sched_getcpu;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use plimsoll_core::fairness::numbers::CALM_TICKS;
use plimsoll_core::time::TICK_SHIFT;
use plimsoll_kernel::clock::monotonic_ns;
use plimsoll_kernel::namespace;
use plimsoll_packets::frame::{Packet, TcpFlags};

use super::{SLOT_SOCKETS, Seated, types};
use crate::guard::Owned;
use crate::{Config, Guard, Kind, Storage};

pub(crate) const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Where [`unread_server`] listens.
pub(super) const UDP_PORT: u16 = 5300;
/// Longer than the kernel's tick, after which a socket is looked up again.
pub(super) const KERNEL_TICK: Duration = Duration::from_millis(12);

/// Runs ip(8) with these words.
pub(crate) fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.expect("iproute2 is installed").success(), "{words}");
}

/// Runs `test` on one CPU with a loaded program, in a network namespace of its own. What a
/// CPU has seen of a channel is its own.
pub(crate) fn with_guard(test: impl FnOnce(&mut Guard<'_>) + Send) {
    let cpus = libbpf_rs::num_possible_cpus().unwrap();
    with_guard_for(u32::try_from(cpus).unwrap(), test);
}

/// The same for a host that could have so many CPUs.
pub(super) fn with_guard_for(cpus: u32, test: impl FnOnce(&mut Guard<'_>) + Send) {
    let inside = || {
        ip("link set lo up");
        namespace::pin(sched_getcpu().unwrap()).unwrap();
        let mut storage = Storage::default();
        let mut guard = Guard::load_for(&mut storage, &Config::default(), cpus).unwrap();
        test(&mut guard);
    };
    namespace::in_new(inside)
        .expect("this test makes a network namespace and needs root: run `sudo make test`");
}

/// A server that nobody reads, with so many datagrams in its queue.
pub(super) fn unread_server(datagrams: u32) -> UdpSocket {
    let server = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, UDP_PORT)).unwrap();
    setsockopt(&server, sockopt::RcvBufForce, &(4 << 20)).unwrap();
    send_datagrams(datagrams);
    server
}

/// More of them.
pub(super) fn send_datagrams(datagrams: u32) {
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for _ in 0..datagrams {
        let to = SocketAddr::from((HOST, UDP_PORT));
        client.send_to(&[0; 64], to).unwrap();
    }
}

/// The tick by which the program judged the last packet of a channel by its source. One that
/// came after a time of calm ended that, and left no tick: any later one will do.
pub(super) fn judged_at(part: &types::channel) -> u32 {
    if part.pressed == 0 {
        part.pressed_tick + CALM_TICKS
    } else {
        part.fair_tick
    }
}

/// As if the server's queue, which has had a packet, had just been full, as all CPUs that
/// tests run on saw it.
pub(super) fn press(guard: &mut Guard<'_>) {
    // The program's clock is behind this one, by up to a tick of the kernel's.
    let tick = ((monotonic_ns() - KERNEL_TICK.as_nanos() as u64) >> TICK_SHIFT) as u32;
    for cpu in 0..libbpf_rs::num_possible_cpus().unwrap() as u32 {
        guard.program.books.press(SLOT_SOCKETS, cpu, tick);
    }
}

/// Protects the sockets of some ports, and no others.
pub(super) fn protect(guard: &mut Guard<'_>, is_protected: impl Fn(u16) -> bool) {
    let owned = |socket: Seated| {
        let is_protected = is_protected(socket.port);
        let group = None;
        (
            socket,
            Owned {
                group,
                is_protected,
            },
        )
    };
    let sockets = guard.program.sockets();
    guard.assign(sockets.into_iter().map(owned));
}

/// Whether the socket of a port that has had a packet is protected.
pub(crate) fn is_protected(guard: &mut Guard<'_>, port: u16) -> bool {
    let sockets = guard.program.sockets();
    let socket = sockets.iter().find(|socket| socket.port == port).unwrap();
    guard.program.allowances.get(socket.slot as usize).protected != 0
}

/// A packet to the host.
pub(crate) fn from(source: impl Into<IpAddr>) -> Packet {
    Packet::new(source.into(), HOST.into())
}

/// A connection to the host, and a segment of it that the client might send again.
pub(super) fn connect(port: u16) -> (TcpStream, Vec<u8>) {
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_NONBLOCK);
    let sniffer = socket(AddressFamily::Packet, kind, flags, SockProtocol::EthIp).unwrap();
    let client = TcpStream::connect((HOST, port)).unwrap();
    let own = client.local_addr().unwrap().port();
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        assert!(Instant::now() < end, "the handshake passes by");
        let mut bytes = [0; 256];
        let Ok(length) = recv(sniffer.as_raw_fd(), &mut bytes, MsgFlags::empty()) else {
            continue;
        };
        let headers = PacketHeaders::from_ethernet_slice(&bytes[..length]).unwrap();
        match headers.transport {
            Some(TransportHeader::Tcp(tcp)) if tcp.source_port == own && !tcp.syn => {
                let packet = from(HOST).numbers(tcp.sequence_number, tcp.acknowledgment_number);
                return (client, packet.tcp(own, port, TcpFlags::ACK, &[]));
            }
            _ => {}
        }
    }
}

/// The slot of what has no socket.
pub(super) const fn slot_of(kind: Kind) -> u32 {
    types::slot::SLOT_KINDS.0 + kind as u32
}

/// Packets that asked for a share of a slot, on all CPUs.
pub(super) fn demand(guard: &mut Guard<'_>, slot: u32) -> u64 {
    let cpus = u32::try_from(libbpf_rs::num_possible_cpus().unwrap()).unwrap();
    let demands = guard.program.demands(0..cpus);
    demands
        .values()
        .filter_map(|counts| counts.get(&slot))
        .sum()
}
