//! What becomes of sockets that were dropped: what an event loop hears of them, and who gets their places.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::PollTimeout;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use plimsoll_packets::frame::TcpFlags;
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::device::{Batch, Device};
use plimsoll_stack::driven::Driven;
use plimsoll_stack::{Stack, StackConfig, TcpListener};
use smoltcp::wire::{EthernetFrame, Ipv4Packet, TcpPacket};

use crate::raw_peer::{Peer, SECOND, SERVER, sent};

/// Waits for the socket as long as its descriptor is there.
fn waiting_for(socket: &impl AsFd) -> Epoll {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    let readable = EpollEvent::new(EpollFlags::EPOLLIN, 0);
    epoll.add(socket.as_fd(), readable).unwrap();
    epoll
}

fn tells(epoll: &Epoll) -> bool {
    let mut events = [EpollEvent::empty(); 4];
    epoll.wait(&mut events, PollTimeout::ZERO).unwrap() > 0
}

/// Its descriptor stayed open, and readable, until the peer had acknowledged the end: an event loop
/// ran in circles for up to a minute.
#[test]
fn a_stream_says_nothing_any_more_though_its_peer_has_not_acknowledged_the_end() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    let epoll = waiting_for(&stream);
    peer.send(&mut driven, TcpFlags::ACK, b"hello");
    assert!(tells(&epoll));
    assert_eq!(stream.read(&mut [0; 9]).unwrap(), 5);
    assert!(tells(&epoll), "no call has returned `WouldBlock` since");
    // As a child has it that was forked meanwhile, until it begins its program.
    let _of_a_child = stream.as_fd().try_clone_to_owned().unwrap();
    drop(stream);
    assert!(!tells(&epoll));
    // Nor does what becomes of it later.
    driven.work();
    peer.take(&mut driven);
    peer.send(&mut driven, TcpFlags::ACK, b"late");
    assert!(!tells(&epoll));
}

/// Those that nobody had accepted were told of as long as any other was half-open.
#[test]
fn a_listener_says_nothing_any_more_though_a_connection_is_half_open() {
    let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let at = StackConfig::at("10.0.0.2/24".parse().unwrap());
    let stack = Stack::start(device, &at).unwrap();
    let listener = TcpListener::bind(&stack, SERVER).unwrap();
    let epoll = waiting_for(&listener);
    for port in [5000, 5001] {
        cable.send(&Peer::new(port).frame(TcpFlags::SYN, &[]));
    }
    let mut whole = Peer::new(5001);
    whole.sequence += 1;
    whole.expected = answer_to(&cable, 5001);
    cable.send(&whole.frame(TcpFlags::ACK, &[]));
    let soon = PollTimeout::from(10_000_u16);
    assert_eq!(epoll.wait(&mut [EpollEvent::empty()], soon).unwrap(), 1);
    drop(listener);
    assert!(!tells(&epoll));
}

/// The number that acknowledges the stack's answer to a SYN from this port.
fn answer_to(cable: &SimulatedDevice, port: u16) -> u32 {
    let mut batch = Batch::new();
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        assert!(Instant::now() < end, "no answer");
        cable.receive(&mut batch, 64).unwrap();
        for frame in batch.drain(..) {
            let ethernet = EthernetFrame::new_checked(&frame[..]).unwrap();
            let Ok(ip) = Ipv4Packet::new_checked(ethernet.payload()) else {
                continue;
            };
            let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
            if tcp.dst_port() == port && tcp.syn() {
                return (tcp.seq_number() + 1).0.cast_unsigned();
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// A byte every four seconds kept a place for days.
#[test]
fn who_acknowledges_little_gives_way_to_who_has_no_place_after_a_minute() {
    let mut driven = Driven::without_cookies("soft-lrp");
    // There are three places.
    let mut slow: Vec<_> = (5001..=5003)
        .map(|port| {
            let (mut peer, mut stream) = Peer::connect(&mut driven, port);
            assert_eq!(stream.write(&[7; 4096]).unwrap(), 2048);
            drop(stream);
            peer.expected = peer.take(&mut driven)[0].sequence;
            peer
        })
        .collect();
    let mut next = Peer::new(5004);
    let mut given_up = None;
    for second in (0..100).step_by(4) {
        for peer in &mut slow {
            peer.expected += 1;
            peer.send_in(&mut driven, second * SECOND, TcpFlags::ACK);
        }
        sent(&mut driven);
        next.send_in(&mut driven, (second + 1) * SECOND, TcpFlags::SYN);
        let resets = sent(&mut driven).iter().filter(|one| one.rst).count();
        if resets > 0 {
            given_up = Some((second, resets));
            break;
        }
    }
    assert_eq!(given_up, Some((60, 3)));
    next.send_in(&mut driven, 63 * SECOND, TcpFlags::SYN);
    assert!(next.take(&mut driven)[0].syn);
}
