//! ICMP errors that somebody made up change nothing; the same with the right quotation do. Nor do
//! packets that seem to come from where nobody can be.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use plimsoll_packets::frame::{self, Packet, TcpFlags};
use plimsoll_stack::Outcome;
use plimsoll_stack::device::{Batch, Device};
use plimsoll_stack::driven::Driven;
use smoltcp::wire::{Icmpv4Packet, Icmpv6Packet};

/// Where the ends' network headers begin.
const ETHERNET_BYTES: usize = 14;
const UDP_CHECKSUM: [usize; 2] = [20 + 6, 40 + 6];
const TCP_SEQUENCE: usize = 20 + 4;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// An error from `from` to the stack at `to`: type, code, the four bytes after the checksum,
/// and what it quotes.
fn error(from: IpAddr, to: IpAddr, kind: [u8; 2], value: u32, quoted: &[u8]) -> Vec<u8> {
    let mut frame = Packet::new(from, to).icmp(kind[0], quoted);
    frame[..6].fill(0xff);
    let header = if from.is_ipv4() { 20 } else { 40 };
    let message = &mut frame[ETHERNET_BYTES + header..];
    message[1] = kind[1];
    message[4..8].copy_from_slice(&value.to_be_bytes());
    match (from, to) {
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            Icmpv6Packet::new_unchecked(message).fill_checksum(&from, &to);
        }
        _ => Icmpv4Packet::new_unchecked(message).fill_checksum(),
    }
    frame
}

fn too_big(from: IpAddr, to: IpAddr, mtu: u32, quoted: &[u8]) -> Vec<u8> {
    let kind = if from.is_ipv4() { [3, 4] } else { [2, 0] };
    error(from, to, kind, mtu, quoted)
}

fn bring_in(driven: &mut Driven, frame: &[u8]) {
    driven.cable.send(frame);
    driven.receive();
    driven.settle();
}

/// The packets that the stack sends, without their Ethernet headers.
fn sent(driven: &mut Driven) -> Vec<Vec<u8>> {
    let mut batch = Batch::new();
    driven.cable.receive(&mut batch, 64).unwrap();
    batch
        .iter()
        .map(|frame| frame[ETHERNET_BYTES..].to_vec())
        .collect()
}

/// Has a peer ask socket `number` with 1300 bytes, and returns the answer's packet.
fn answer(driven: &mut Driven, number: usize, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut question = frame::udp(from, to, &[7; 1300]);
    question[..6].fill(0xff);
    driven.cable.send(&question);
    driven.receive();
    let socket = &driven.sockets[number];
    let mut batch = Vec::new();
    socket.recv_batch(&mut batch, 8).unwrap();
    socket.reply_batch(&mut batch).unwrap();
    sent(driven).pop().unwrap()
}

#[test]
fn only_the_datagram_that_was_sent_shortens_its_path() {
    let mut driven = Driven::new("soft-lrp");
    for (number, peer, ours) in [
        (0, "10.0.0.1:9", "10.0.0.2:7"),
        (1, "[fd00::1]:9", "[fd00::2]:7"),
    ] {
        let (peer, ours) = (at(peer), at(ours));
        let whole = driven.sockets[number].payload_max_to(peer.ip());
        let answer = answer(&mut driven, number, peer, ours);
        let mut forged = answer.clone();
        forged[UDP_CHECKSUM[number]] ^= 1;
        let somebody = if number == 0 { "10.0.0.77" } else { "fd00::77" };
        let elsewhere = frame::udp(
            ours,
            SocketAddr::new(somebody.parse().unwrap(), 9),
            &[7; 1300],
        );
        for quoted in [&forged, &elsewhere[ETHERNET_BYTES..], &answer[..24]] {
            bring_in(&mut driven, &too_big(peer.ip(), ours.ip(), 1290, quoted));
            assert_eq!(driven.sockets[number].payload_max_to(peer.ip()), whole);
        }
        // Any router may say it, not only the peer.
        let router = somebody.parse().unwrap();
        bring_in(
            &mut driven,
            &too_big(router, ours.ip(), 1290, &answer[..100]),
        );
        let headers = UDP_CHECKSUM[number] + 2;
        assert_eq!(
            driven.sockets[number].payload_max_to(peer.ip()),
            1290 - headers
        );
        // Nor does a lie make it shorter than paths are.
        bring_in(&mut driven, &too_big(router, ours.ip(), 68, &answer));
        let least = [552, 1280][number] - headers;
        assert_eq!(driven.sockets[number].payload_max_to(peer.ip()), least);
    }
}

#[test]
fn an_error_about_another_peer_is_not_told() {
    let mut driven = Driven::new("soft-lrp");
    let (peer, ours) = (at("10.0.0.1:9"), at("10.0.0.2:7"));
    driven.sockets[0].connect(peer).unwrap();
    let unreachable = |quoted: &[u8]| error(peer.ip(), ours.ip(), [3, 3], 0, quoted);
    for other in ["10.0.0.1:10", "10.0.0.3:9"] {
        let quoted = frame::udp(ours, at(other), b"never sent");
        bring_in(&mut driven, &unreachable(&quoted[ETHERNET_BYTES..]));
    }
    let told = driven.sockets[0].recv(&mut [0; 9]).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::WouldBlock);
    let quoted = frame::udp(ours, peer, b"sent");
    bring_in(&mut driven, &unreachable(&quoted[ETHERNET_BYTES..]));
    let told = driven.sockets[0].recv(&mut [0; 9]).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn only_a_segment_on_its_way_shortens_its_path() {
    let mut driven = Driven::new("soft-lrp");
    let (peer, ours) = (at("10.0.0.1:5000"), at("10.0.0.2:80"));
    let mut syn =
        Packet::new(peer.ip(), ours.ip()).tcp(peer.port(), ours.port(), TcpFlags::SYN, &[]);
    syn[..6].fill(0xff);
    driven.cable.send(&syn);
    driven.receive();
    driven.work();
    // The stack may tell of its groups as well.
    let is_tcp = |packet: &Vec<u8>| packet[0] >> 4 == 4 && packet[9] == 6;
    let answer = sent(&mut driven).into_iter().find(is_tcp);
    let answer = answer.expect("a SYN is answered");
    let whole = driven.sockets[0].payload_max_to(peer.ip());
    let mut forged = answer.clone();
    forged[TCP_SEQUENCE] ^= 1;
    // As long as no packet is.
    forged[2..4].copy_from_slice(&1500_u16.to_be_bytes());
    bring_in(&mut driven, &too_big(peer.ip(), ours.ip(), 1000, &forged));
    assert_eq!(driven.sockets[0].payload_max_to(peer.ip()), whole);
    let mut right = forged;
    right[TCP_SEQUENCE] ^= 1;
    bring_in(&mut driven, &too_big(peer.ip(), ours.ip(), 1000, &right));
    assert_eq!(driven.sockets[0].payload_max_to(peer.ip()), 1000 - 28);
}

/// A datagram that seemed to come from an echo's own address and port was answered there, and where a router
/// sent the answer back, that as well, for ever.
#[test]
fn what_comes_from_where_nobody_can_be_is_thrown_away() {
    let four = [
        "127.0.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "10.0.0.255",
        "10.0.0.2",
    ];
    let six = ["::1", "ff02::1", "::ffff:10.0.0.1", "fd00::2"];
    for path in ["eager", "early-demux", "soft-lrp", "polled"] {
        let mut driven = Driven::new(path);
        let mut taken_from = |source: &str, ours: &str| {
            let from = SocketAddr::new(source.parse().unwrap(), 7);
            let mut datagram = frame::udp(from, at(ours), b"echo");
            datagram[..6].fill(0xff);
            bring_in(&mut driven, &datagram);
            driven.drain()
        };
        for (sources, ours) in [(&four[..], "10.0.0.2:7"), (&six, "[fd00::2]:7")] {
            for source in sources {
                assert_eq!(taken_from(source, ours), 0, "{path}: {source}");
            }
        }
        // Who asks for an address has none yet.
        assert_eq!(taken_from("0.0.0.0", "10.0.0.2:7"), 1, "{path}");
        assert_eq!(driven.counts()[Outcome::Malformed], 9, "{path}");
    }
}

/// Pings were answered, and so were segments and datagrams for closed ports, and SYNs of all hosts.
#[test]
fn neither_ourselves_nor_all_hosts_are_answered() {
    let mut driven = Driven::new("soft-lrp");
    for (from, ours) in [
        ("10.0.0.2", "10.0.0.2"),
        ("10.0.0.255", "10.0.0.2"),
        ("fd00::2", "fd00::2"),
        ("10.0.0.77", "10.0.0.2"),
    ] {
        let (from, ours): (IpAddr, IpAddr) = (from.parse().unwrap(), ours.parse().unwrap());
        let packet = || Packet::new(from, ours);
        let ping = [0, 0, 0, 0, 0, 1, 0, 1];
        let echo = if from.is_ipv4() { 8 } else { 128 };
        let frames = [
            error(from, ours, [echo, 0], 1, &ping),
            packet().tcp(5000, 99, TcpFlags::SYN, &[]),
            packet().tcp(5000, 80, TcpFlags::SYN, &[]),
            frame::udp(SocketAddr::new(from, 5000), SocketAddr::new(ours, 99), b"x"),
        ];
        let mut answers = 0;
        for mut frame in frames {
            // To groups and everybody errors are not told.
            frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
            driven.cable.send(&frame);
            driven.receive();
            driven.work();
            let told = sent(&mut driven).into_iter();
            // The stack tells of its groups as well.
            answers += told.filter(|packet| to(packet) == Some(from)).count();
        }
        let expected = if from.to_string() == "10.0.0.77" {
            4
        } else {
            0
        };
        assert_eq!(answers, expected, "{from}");
    }
}

/// Whom a packet is for.
fn to(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(packet.get(16..20)?).ok()?)),
        6 => Some(IpAddr::from(
            <[u8; 16]>::try_from(packet.get(24..40)?).ok()?,
        )),
        _ => None,
    }
}

/// A SYN that seemed to come from the stack itself took a place of the backlog, and was answered (CVE-1999-0016).
#[test]
fn a_segment_from_the_stack_s_own_address_is_thrown_away() {
    for path in ["eager", "early-demux", "soft-lrp", "polled"] {
        let mut driven = Driven::new(path);
        let ours = at("10.0.0.2:80");
        for (port, flags) in [
            (80, TcpFlags::SYN),
            (5000, TcpFlags::SYN),
            (80, TcpFlags::ACK),
        ] {
            let mut segment = Packet::new(ours.ip(), ours.ip()).tcp(port, 80, flags, &[]);
            segment[..6].fill(0xff);
            driven.cable.send(&segment);
            driven.receive();
            driven.work();
        }
        let mut sent = sent(&mut driven).into_iter();
        let answer = sent.find(|packet| packet[0] >> 4 == 4 && packet[9] == 6);
        assert_eq!(answer, None, "{path}");
        assert_eq!(driven.counts()[Outcome::Malformed], 3, "{path}");
    }
}
