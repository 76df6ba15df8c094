//! Programs that read frames beside a UDP socket of this host. Some DHCP clients and servers have such a
//! socket at their port for its own sake, so that the stack sends no ICMP errors, and never read it.
//! Needs root.

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use plimsoll_guard::{Guard, Kind};

use crate::common::closed_port::{FRAMES, frame, guarded};
use crate::common::patient::large_buffer;
use crate::common::{HOST_V4, Wire, in_namespace};

/// Where DHCP clients are answered.
const PORT: u16 = 68;
/// Who answers, by the source port.
const SERVER: u16 = 67;
const ANSWERS: usize = 20;
/// Many times what a receive buffer of the default size holds.
const ROUNDS: u32 = 5;
const BETWEEN: Duration = Duration::from_millis(10);

fn reader() -> OwnedFd {
    let reader = socket(
        AddressFamily::Packet,
        SockType::Datagram,
        SockFlag::SOCK_NONBLOCK,
        SockProtocol::EthIp,
    );
    let reader = reader.unwrap();
    large_buffer(&reader);
    reader
}

/// What it has read of UDP from this source port.
fn read(reader: &OwnedFd, port: u16) -> usize {
    let mut bytes = [0; 128];
    let packets = std::iter::from_fn(|| {
        recv(reader.as_raw_fd(), &mut bytes, MsgFlags::empty()).ok()?;
        // Behind IPv4's header.
        Some(u16::from_be_bytes([bytes[20], bytes[21]]))
    });
    packets.filter(|from| *from == port).count()
}

/// A socket that nobody reads, and whose queue is full.
fn unread(guard: &mut Guard<'_>, wire: &Wire) -> UdpSocket {
    let unread = UdpSocket::bind((HOST_V4, PORT)).unwrap();
    let is_full = (0..ROUNDS).any(|_| {
        (0..FRAMES).for_each(|_| wire.send(&frame(4000, PORT)));
        guard.counters().unwrap().of(Kind::UdpSocket).discarded() > 0
    });
    assert!(is_full, "nothing is discarded");
    unread
}

/// Answers to a DHCP client that reads frames were discarded, since the queue of the socket beside was
/// full. So it lost its address in the end.
#[test]
fn who_reads_frames_beside_an_unread_socket_gets_those_of_a_calm_host() {
    in_namespace(|| {
        let reader = reader();
        guarded(|guard, wire| {
            let _unread = unread(guard, wire);
            for _ in 0..ANSWERS {
                thread::sleep(BETWEEN);
                wire.send(&frame(SERVER, PORT));
            }
            thread::sleep(BETWEEN);
            assert_eq!(read(&reader, SERVER), ANSWERS);
        });
    });
}

/// A capture must not take the protection away.
#[test]
fn beside_who_reads_frames_a_flood_of_a_full_socket_is_discarded() {
    in_namespace(|| {
        let reader = reader();
        guarded(|guard, wire| {
            let _unread = unread(guard, wire);
            let discarded = |guard: &mut Guard<'_>| {
                let counters = guard.counters().unwrap();
                counters.of(Kind::UdpSocket).discarded()
            };
            let before = discarded(guard);
            (0..FRAMES).for_each(|_| wire.send(&frame(SERVER, PORT)));
            let discarded = discarded(guard) - before;
            assert!(discarded >= u64::from(FRAMES) / 2, "{discarded}");
            assert!(read(&reader, SERVER) > 0, "it sees that there is a flood");
        });
    });
}
