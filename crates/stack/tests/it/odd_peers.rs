//! Peers that have lost their state, that come at a bad moment, or to whom there is no way.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use plimsoll_packets::frame::{self, TcpFlags};
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::device::{Batch, Device, Frame};
use plimsoll_stack::driven::Driven;
use plimsoll_stack::{Stack, StackConfig, TcpStream, UdpSocket};
use smoltcp::wire::{EthernetFrame, EthernetProtocol};

use crate::raw_peer::Peer;

/// Each put the channel that it had no longer on the TCP thread's list, and what found no room
/// there was never looked at.
#[test]
fn dropping_streams_that_are_over_leaves_the_others_their_turns() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    driven.settle();
    let over: Vec<_> = (2000..2060)
        .map(|port| {
            let (mut peer, stream) = Peer::connect(&mut driven, port);
            peer.take(&mut driven);
            peer.send(&mut driven, TcpFlags::RST, &[]);
            stream
        })
        .collect();
    driven.settle();
    drop(over);
    // Before the TCP thread runs again a segment comes.
    driven.cable.send(&peer.frame(TcpFlags::ACK, b"hello"));
    driven.receive();
    driven.work();
    let mut buffer = [0; 8];
    let read = stream.read(&mut buffer).map_err(|error| error.kind());
    assert_eq!(read, Ok(5), "{:?}", driven.counts());
    // So do those who come after that.
    peer.sequence += 5;
    peer.send(&mut driven, TcpFlags::ACK, b"again");
    assert_eq!(stream.read(&mut buffer).unwrap(), 5);
}

/// RFC 5961, 4.2. A client that came again by the same port was not answered as long as the
/// connection lasted that it did not know of any more.
#[test]
fn a_client_that_has_lost_its_state_comes_again_by_the_same_port() {
    for beyond in [90_000_000, 10, 0] {
        let mut driven = Driven::new("soft-lrp");
        let (before, mut old) = Peer::connect(&mut driven, 5000);
        driven.settle();
        let mut again = Peer::new(5000);
        again.sequence = before.sequence + beyond;
        again.send(&mut driven, TcpFlags::SYN, &[]);
        let answers = again.take(&mut driven);
        assert_eq!(answers.len(), 1, "{answers:?}");
        let answer = &answers[0];
        assert!(!answer.syn && !answer.rst, "{answer:?}");
        assert_eq!(answer.acknowledges, before.sequence, "what is expected");
        // It resets what it does not know (RFC 9293, 3.10.7.3), and may come then.
        again.sequence = answer.acknowledges;
        again.send(&mut driven, TcpFlags::RST, &[]);
        let read = old.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(read, Err(ErrorKind::ConnectionReset));
        let written = old.write(b"x").map_err(|error| error.kind());
        assert_eq!(written, Err(ErrorKind::ConnectionReset));
        Peer::connect(&mut driven, 5000);
    }
}

/// An event loop reads and writes until both find nothing. What came between the two was told of,
/// and then taken back by the write.
#[test]
fn what_comes_between_two_calls_that_find_nothing_is_told() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    while stream.write(&[7; 512]).is_ok() {}
    let blocked = |result: std::io::Result<usize>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::WouldBlock);
    };
    blocked(stream.read(&mut [0]));
    blocked(stream.write(b"x"));
    assert!(!is_told(&stream));
    blocked(stream.read(&mut [0]));
    peer.send(&mut driven, TcpFlags::ACK, b"question");
    blocked(stream.write(b"x"));
    assert!(is_told(&stream));
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 8);
    blocked(stream.read(&mut [0]));
    blocked(stream.write(b"x"));
    assert!(!is_told(&stream));
}

/// An event loop that hears of each change once. Room that a writer had waited for, and used, was
/// still told of when what came next was: a server's connection heard nothing after an answer that
/// was longer than its buffer.
#[test]
fn what_comes_after_room_was_used_is_told_to_who_hears_of_each_change_once() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    let once = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
    epoll.add(&stream, EpollEvent::new(once, 0)).unwrap();
    let changes = || {
        let mut events = [EpollEvent::empty(); 4];
        epoll.wait(&mut events, EpollTimeout::ZERO).unwrap()
    };
    let blocked = |result: std::io::Result<usize>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::WouldBlock);
    };
    for flags in [TcpFlags::ACK, TcpFlags::FIN_ACK] {
        blocked(stream.read(&mut [0]));
        while stream.write(&[7; 512]).is_ok() {}
        changes();
        while changes() == 0 {
            peer.take(&mut driven);
            peer.send(&mut driven, TcpFlags::ACK, &[]);
        }
        stream.write_all(b"rest").unwrap();
        blocked(stream.read(&mut [0]));
        while changes() > 0 {
            blocked(stream.read(&mut [0]));
        }
        peer.send(&mut driven, flags, b"more");
        assert_eq!(changes(), 1);
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 4);
    }
}

fn is_told(stream: &TcpStream) -> bool {
    let mut polled = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).unwrap() > 0
}

/// It took 20 s to say so.
#[test]
fn connecting_where_there_is_no_way_fails_at_once() {
    let (_cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let stack = Stack::start(device, &StackConfig::at("10.0.0.2/24".parse().unwrap())).unwrap();
    for to in ["9.9.9.9:1", "10.0.0.255:1", "224.0.0.9:1", "[fd00::9]:1"] {
        let connected = TcpStream::connect_nonblocking(&stack, to.parse().unwrap());
        let error = connected.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "{to}: {error}");
    }
}

/// A stack with an address of each family, at one end of a cable.
fn of_both_families() -> (SimulatedDevice, Stack) {
    let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let config = StackConfig {
        addresses: vec![
            "10.0.0.2/24".parse().unwrap(),
            "fd00::2/64".parse().unwrap(),
        ],
        gateways: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        ..StackConfig::default()
    };
    (cable, Stack::start(device, &config).unwrap())
}

/// It asked the link for its own address, and said three seconds later that nobody has it. A datagram was
/// lost without a word. What is a host's own in any case (RFC 1122, 3.2.1.3) was sent to the gateway.
#[test]
fn a_stack_does_not_reach_itself_and_says_so_at_once() {
    let (cable, stack) = of_both_families();
    let socket = UdpSocket::bind(&stack, "[::]:0").unwrap();
    for own in [
        "10.0.0.2:1",
        "[fd00::2]:1",
        "127.0.0.1:1",
        "127.9.9.9:1",
        "[::1]:1",
        "[::ffff:127.0.0.1]:1",
    ] {
        let connected = TcpStream::connect_nonblocking(&stack, own.parse().unwrap());
        let error = connected.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{own}: {error}");
        let error = socket.send_to(b"to myself", own).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{own}: {error}");
    }
    let mut batch = Batch::new();
    cable.receive(&mut batch, 64).unwrap();
    let is_question = |frame: &&Frame| {
        let ethernet = EthernetFrame::new_checked(&frame[..]).unwrap();
        ethernet.ethertype() == EthernetProtocol::Arp
    };
    assert_eq!(batch.iter().filter(is_question).count(), 0);
}

/// A host that takes over another's address says so by asking for it (RFC 5227, 3). It was not heard
/// until its predecessor was forgotten.
#[test]
fn a_neighbour_that_asks_for_its_own_address_is_known_to_have_moved() {
    let mut driven = Driven::new("soft-lrp");
    let mut ask = |from: u8, wanted: u8, mac: u8| {
        let address = |host| Ipv4Addr::new(10, 0, 0, host);
        let mut question = frame::arp(address(from), address(wanted), 0);
        for end in [11, 27] {
            question[end] = mac;
        }
        driven.cable.send(&question);
        driven.receive();
        driven.settle();
        let to = SocketAddr::from((address(from), 9));
        driven.sockets[0].send_to(b"where?", to).unwrap();
        let mut batch = Batch::new();
        driven.cable.receive(&mut batch, 8).unwrap();
        let frame = batch.pop_front().unwrap();
        let ethernet = EthernetFrame::new_checked(&frame[..]).unwrap();
        let is_datagram = ethernet.ethertype() == EthernetProtocol::Ipv4;
        is_datagram.then_some(ethernet.dst_addr().0[5])
    };
    assert_eq!(ask(1, 2, 7), Some(7), "it asks for us");
    assert_eq!(ask(1, 1, 8), Some(8), "it has moved");
    assert_eq!(ask(1, 5, 9), Some(9), "any question tells where it is");
    assert_eq!(ask(3, 3, 8), None, "nobody that we know: it is asked for");
}

/// Three questions a second apart. It took 20 s to say so, and a datagram was lost without a word.
#[test]
fn a_neighbour_that_does_not_answer_is_an_unreachable_host() {
    let (_cable, stack) = of_both_families();
    let socket = UdpSocket::bind(&stack, "10.0.0.2:1000").unwrap();
    socket.connect("10.0.0.9:9").unwrap();
    socket.send(b"is anybody there?").unwrap();
    thread::scope(|scope| {
        for to in ["10.0.0.8:1", "[fd00::8]:1"] {
            let stack = &stack;
            scope.spawn(move || {
                let begun = Instant::now();
                let error = TcpStream::connect(stack, to).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{to}: {error}");
                assert!(begun.elapsed() < Duration::from_secs(15));
            });
        }
        let error = socket.recv(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{error}");
    });
}

/// Such a reset changed nothing but the reason for which writing failed later.
#[test]
fn a_reset_that_comes_behind_newer_data_is_no_reason_for_later_errors() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    // Not acknowledged yet.
    peer.send(&mut driven, TcpFlags::ACK, b"new");
    peer.sequence -= 3;
    peer.send(&mut driven, TcpFlags::RST, &[]);
    peer.sequence += 3;
    peer.send(&mut driven, TcpFlags::ACK, b"more");
    assert_eq!(stream.read(&mut [0; 9]).unwrap(), 7, "it goes on");
    stream.shutdown(Shutdown::Write).unwrap();
    let ended = stream.write(b"late").unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::BrokenPipe);
    // The next one fits.
    peer.take(&mut driven);
    peer.send(&mut driven, TcpFlags::RST, &[]);
    let ended = stream.read(&mut [0; 9]).unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
}
