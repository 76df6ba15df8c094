//! Where calls of the same names as the standard library's could surprise who knows those.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::device::{Batch, Device, Frame};
use plimsoll_stack::pacing::{FlowRates, Rate};
use plimsoll_stack::{Filled, PacedSender, PacedSenderConfig};
use plimsoll_stack::{Readiness, Stack, StackConfig, TcpListener, TcpStream, UdpSocket};
use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet};

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(10);

fn pair() -> [Stack; 2] {
    let (one, other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    [(one, 1), (other, 2)].map(|(device, last)| {
        let addresses = [format!("10.0.0.{last}/24"), format!("fd00::{last}/64")];
        let config = StackConfig {
            addresses: addresses.map(|net| net.parse().unwrap()).to_vec(),
            ..StackConfig::default()
        };
        Stack::start(device, &config).unwrap()
    })
}

/// A name has addresses of both families. The first one alone was tried.
#[test]
fn a_datagram_socket_connects_to_the_first_address_that_it_can() {
    let [one, other] = pair();
    let peer = UdpSocket::bind(&other, "10.0.0.2:7").unwrap();
    peer.set_read_timeout(Some(SOON)).unwrap();
    let socket = UdpSocket::bind(&one, "10.0.0.1:0").unwrap();
    let of_a_name: [SocketAddr; 2] = ["[fd00::2]:7", "10.0.0.2:7"].map(|at| at.parse().unwrap());
    socket.connect(&of_a_name[..]).unwrap();
    assert_eq!(socket.peer_addr().unwrap(), of_a_name[1]);
    socket.send(b"hello").unwrap();
    assert_eq!(peer.recv(&mut [0; 16]).unwrap(), 5);
}

/// It was refused.
#[test]
fn a_listener_takes_a_free_port_if_it_is_given_none() {
    let [one, other] = pair();
    let listeners = ["10.0.0.1:0", "0.0.0.0:0", "[::]:0", "[fd00::1]:0"]
        .map(|at| TcpListener::bind(&one, at).unwrap());
    for listener in &listeners {
        let mut at = listener.local_addr().unwrap();
        assert_ne!(at.port(), 0);
        if at.ip().is_unspecified() {
            at.set_ip("10.0.0.1".parse().unwrap());
        }
        let mut client = TcpStream::connect(&other, at).unwrap();
        let (mut server, _) = listener.accept_timeout(SOON).unwrap();
        assert_eq!(server.local_addr().unwrap(), at);
        client.write_all(b"hello").unwrap();
        server.set_read_timeout(Some(SOON)).unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
    }
}

/// It sent a SYN, and told that nobody had answered in time.
#[test]
fn a_timeout_of_zero_is_no_timeout() {
    let [one, _other] = pair();
    let to = "10.0.0.2:80".parse().unwrap();
    let error = TcpStream::connect_timeout(&one, to, Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// How far each packet of UDP goes that came by the cable since this was asked. Reports of groups come as well.
fn hops(cable: &SimulatedDevice) -> Vec<u8> {
    let mut batch = Batch::new();
    cable.receive(&mut batch, 256).unwrap();
    let of_four = |packet: Ipv4Packet<&[u8]>| {
        let is_udp = packet.version() == 4 && packet.next_header() == IpProtocol::Udp;
        assert!(!is_udp || packet.verify_checksum());
        is_udp.then(|| packet.hop_limit())
    };
    let of_six = |packet: Ipv6Packet<&[u8]>| {
        let is_udp = [IpProtocol::Udp, IpProtocol::Ipv6Frag].contains(&packet.next_header());
        (is_udp && packet.version() == 6).then(|| packet.hop_limit())
    };
    let hops = |frame: &Frame| match frame[14] >> 4 {
        4 => Ipv4Packet::new_checked(&frame[14..]).ok().and_then(of_four),
        _ => Ipv6Packet::new_checked(&frame[14..]).ok().and_then(of_six),
    };
    batch.iter().filter_map(hops).collect()
}

/// RFC 1112, 6.1, and RFC 3493, 5.2. It left with 64, and routers of groups sent it on.
#[test]
fn what_is_sent_to_a_group_stays_on_the_link_unless_the_socket_is_told_otherwise() {
    let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let config = StackConfig {
        addresses: ["10.0.0.2/24", "fd00::2/64"]
            .map(|net| net.parse().unwrap())
            .to_vec(),
        ..StackConfig::default()
    };
    let stack = Stack::start(device, &config).unwrap();
    let socket = UdpSocket::bind(&stack, "[::]:0").unwrap();
    hops(&cable);
    let groups: [SocketAddr; 2] = ["239.1.1.1:7", "[ff05::77]:7"].map(|at| at.parse().unwrap());
    for group in groups {
        socket.send_to(b"by default", group).unwrap();
        assert_eq!(hops(&cable), [1], "{group}");
    }
    assert_eq!(socket.multicast_ttl().unwrap(), 1);
    for ttl in [1, 5, 255] {
        socket.set_multicast_ttl(ttl).unwrap();
        assert_eq!(socket.multicast_ttl().unwrap(), ttl);
        for group in groups {
            socket.send_to(b"short", group).unwrap();
            assert_eq!(hops(&cable), [ttl], "{group}");
            socket.send_to(&[7; 4000], group).unwrap();
            assert_eq!(hops(&cable), [ttl; 3], "{group}");
            let mut buffers = vec![socket.send_buffer(group, 100).unwrap()];
            socket.send_buffers(&mut buffers).unwrap();
            assert_eq!(hops(&cable), [ttl], "{group}");
            let mut allocator = stack.allocator(8);
            let mut messages = vec![socket.message(&mut allocator, group, 4000).unwrap()];
            socket.send_messages(&mut messages).unwrap();
            assert_eq!(hops(&cable), [ttl; 3], "{group}");
        }
        // All hosts of a network are no group.
        socket.send_to(b"to all", "10.0.0.255:7").unwrap();
        assert_eq!(hops(&cable), [64]);
    }
    let refused = socket.set_multicast_ttl(0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let mut sender = PacedSender::new(socket, PacedSenderConfig::default()).unwrap();
    let rates = FlowRates {
        target: Rate::clamped(1_000_000_000),
        burst: Rate::clamped(1_000_000_000),
    };
    let flow = sender.add_flow(groups[0], rates).unwrap();
    sender.start(flow).unwrap();
    let end = Instant::now() + SOON;
    let mut sent = 0;
    while sent == 0 {
        assert!(Instant::now() < end);
        let Some(now) = sender.check() else { continue };
        let write = |_, _: &mut [u8]| {
            let more = false;
            Some(Filled { bytes: 5, more })
        };
        sent = sender.send_due(now, write).unwrap();
    }
    assert_eq!(hops(&cable), [255]);
}

/// Reading said that the connection was reset, and writing that it was shut down here.
#[test]
fn reading_and_writing_tell_why_a_connection_has_not_come_about() {
    let [one, _other] = pair();
    let at = "10.0.0.2:81".parse().unwrap();
    // The call itself tells what is known by its end.
    let begun = (0..100).find_map(|_| TcpStream::connect_nonblocking(&one, at).ok());
    let mut stream = begun.unwrap();
    let ready = stream.poll(Readiness::BOTH, Some(SOON)).unwrap();
    assert_eq!(ready, Readiness::BOTH);
    let told = [
        stream.read(&mut [0; 9]).unwrap_err(),
        stream.peek(&mut [0; 9]).unwrap_err(),
        stream.write(b"early").unwrap_err(),
    ];
    let told = told.map(|error| error.kind());
    assert_eq!(told, [ErrorKind::ConnectionRefused; 3]);
}

/// It could be connected once.
#[test]
fn a_datagram_socket_can_be_connected_to_another_peer() {
    let [one, other] = pair();
    let [first, second] = ["10.0.0.2:7", "10.0.0.2:8"].map(|at| {
        let peer = UdpSocket::bind(&other, at).unwrap();
        peer.set_read_timeout(Some(SOON)).unwrap();
        peer
    });
    let at = |peer: &UdpSocket| peer.local_addr().unwrap();
    let socket = UdpSocket::bind(&one, "0.0.0.0:1000").unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    for peer in [&first, &second, &first, &first] {
        socket.connect(at(peer)).unwrap();
        assert_eq!(socket.peer_addr().unwrap(), at(peer));
        socket.send(b"hello").unwrap();
        let (_, from) = peer.recv_from(&mut [0; 16]).unwrap();
        for sender in [&first, &second] {
            sender
                .send_to(&at(sender).port().to_be_bytes(), from)
                .unwrap();
        }
        let mut port = [0; 2];
        assert_eq!(socket.recv_from(&mut port).unwrap().1, at(peer));
    }
    // What cannot be reached changes nothing.
    socket.connect("[fd00::2]:7").unwrap_err();
    assert_eq!(socket.peer_addr().unwrap(), at(&first));
    socket.send(b"hello").unwrap();
    first.recv(&mut [0; 16]).unwrap();
    // Its address is free after it, and not before.
    UdpSocket::bind(&one, "0.0.0.0:1000").unwrap_err();
    drop(socket);
    UdpSocket::bind(&one, "0.0.0.0:1000").unwrap();
}
