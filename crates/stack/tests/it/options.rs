//! IPv6 options that the stack does not know: their types say whether it may go past them (RFC 8200, 4.2).
//! And what is behind them and other extension headers.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_packets::frame::{Extension, Fragment, Packet, TcpFlags};
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::device::{Batch, Device};
use plimsoll_stack::driven::Driven;
use plimsoll_stack::{Outcome, Stack, StackConfig, TcpListener};
use smoltcp::wire::{IpProtocol, Ipv6Packet, TcpPacket};

const HOP_BY_HOP: u8 = 0;
const DESTINATION: u8 = 60;
/// Where the options of a first extension header are.
const OPTIONS_AT: usize = 14 + 40 + 2;

fn from() -> SocketAddr {
    "[fd00::1]:5000".parse().unwrap()
}

/// A packet whose extension header of 16 bytes has these options, padded.
fn packet(number: u8) -> Packet {
    let ours: IpAddr = "fd00::2".parse().unwrap();
    let header = Extension::Options { number, units: 1 };
    Packet::new(from().ip(), ours).extension(header)
}

fn with_options(mut frame: Vec<u8>, options: &[u8]) -> Vec<u8> {
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[OPTIONS_AT..OPTIONS_AT + options.len()].copy_from_slice(options);
    frame
}

/// Datagrams that come of one with these options, and how it ends.
fn taken(driven: &mut Driven, number: u8, options: &[u8]) -> (usize, Outcome) {
    let before = driven.counts();
    let frame = with_options(packet(number).udp(5000, 7, b"x"), options);
    driven.cable.send(&frame);
    driven.receive();
    let taken = driven.drain();
    let after = driven.counts();
    let ended = Outcome::ALL
        .into_iter()
        .find(|&one| after[one] > before[one]);
    (taken, ended.expect("an end"))
}

/// Whatever their types said, the packet was taken.
#[test]
fn options_that_nobody_may_go_past_end_their_packet() {
    for path in ["eager", "early-demux", "soft-lrp", "polled"] {
        let mut driven = Driven::new(path);
        for number in [HOP_BY_HOP, DESTINATION] {
            let mut ends = |options: &[u8]| taken(&mut driven, number, options);
            // Pads, a router alert, and one that is to be skipped.
            for options in [
                &[0; 14][..],
                &[1, 12],
                &[5, 2, 0, 0, 1, 8],
                &[0x1e, 4, 9, 9, 9, 9, 1, 6],
                &[0x3e, 12],
            ] {
                let taken = ends(options);
                assert_eq!(taken, (1, Outcome::Delivered), "{path} {options:02x?}");
            }
            // "Discard", alone, with an error, and with one unless it went to a group; behind a pad, too.
            for options in [
                &[0x40, 12][..],
                &[0x9e, 12],
                &[0xc2, 4, 0, 1, 0, 0, 1, 6],
                &[0, 1, 1, 0, 0xfe, 8],
            ] {
                let taken = ends(options);
                assert_eq!(taken, (0, Outcome::Other), "{path} {options:02x?}");
            }
            // Longer than their header.
            for options in [&[1, 13][..], &[1, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]] {
                let taken = ends(options);
                assert_eq!(taken, (0, Outcome::Malformed), "{path} {options:02x?}");
            }
        }
    }
}

/// Neither a connection nor a ping comes of one, nor does a port say that it is closed.
#[test]
fn nothing_is_answered_to_options_that_nobody_may_go_past() {
    let mut driven = Driven::new("soft-lrp");
    // The header before is IPv6's own, so the checksum is as it is without options.
    let ping = |options: &[u8]| {
        let echo = [0, 0, 0, 0, 0, 1, 0, 1];
        with_options(packet(DESTINATION).icmp(128, &echo), options)
    };
    let closed = |options: &[u8]| with_options(packet(DESTINATION).udp(5000, 99, b"x"), options);
    let syn = |options: &[u8]| {
        let syn = packet(DESTINATION).tcp(5000, 99, TcpFlags::SYN, b"");
        with_options(syn, options)
    };
    let mut answers = |frame: &[u8]| {
        driven.cable.send(frame);
        driven.receive();
        driven.work();
        let mut batch = Batch::new();
        driven.cable.receive(&mut batch, 64).unwrap();
        let IpAddr::V6(peer) = from().ip() else {
            unreachable!()
        };
        let answered =
            |frame: &&plimsoll_stack::device::Frame| frame.get(38..54) == Some(&peer.octets()[..]);
        batch.iter().filter(answered).count()
    };
    let (past, never) = ([0x1e, 12], [0x9e, 12]);
    for (number, frame) in [ping(&past), closed(&past), syn(&past)]
        .into_iter()
        .enumerate()
    {
        assert_eq!(answers(&frame), 1, "{number}");
    }
    for (number, frame) in [ping(&never), closed(&never), syn(&never)]
        .into_iter()
        .enumerate()
    {
        assert_eq!(answers(&frame), 0, "{number}");
    }
}

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(10);

/// The first packet from the stack's address to the peer at this end of the cable: its protocol and what it
/// brings.
fn answer(cable: &SimulatedDevice) -> (IpProtocol, Vec<u8>) {
    let (mut batch, end) = (Batch::new(), Instant::now() + SOON);
    while Instant::now() < end {
        cable.receive(&mut batch, 64).unwrap();
        while let Some(frame) = batch.pop_front() {
            let Ok(packet) = Ipv6Packet::new_checked(&frame[14..]) else {
                continue;
            };
            if IpAddr::V6(packet.dst_addr()) == from().ip() {
                return (packet.next_header(), packet.payload().to_vec());
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("no answer");
}

/// smoltcp takes segments behind IPv6's own header and hop-by-hop options alone. So no connection came about
/// behind others, and each segment was answered by an ICMP error.
#[test]
fn segments_behind_extension_headers_are_taken() {
    let options = |number| Extension::Options { number, units: 1 };
    // A datagram in one fragment (RFC 6946).
    let atomic = Extension::Fragment(Fragment {
        id: 7,
        offset: 0,
        more: false,
    });
    let (routing, none) = (43, 99);
    for extensions in [
        vec![options(HOP_BY_HOP)],
        vec![options(DESTINATION)],
        vec![options(routing)],
        vec![atomic],
        vec![options(HOP_BY_HOP), options(routing), atomic],
    ] {
        let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let stack = StackConfig::at("fd00::2/64".parse().unwrap());
        let stack = Stack::start(device, &stack).unwrap();
        let listener = TcpListener::bind(&stack, "[fd00::2]:80").unwrap();
        let send = |port, numbers: (u32, u32), flags, payload: &[u8]| {
            let mut packet = Packet::new(from().ip(), "fd00::2".parse().unwrap())
                .macs([2, 0, 0, 0, 0, 1], [0xff; 6])
                .numbers(numbers.0, numbers.1);
            for &extension in &extensions {
                packet = packet.extension(extension);
            }
            cable.send(&packet.tcp(from().port(), port, flags, payload));
            let (protocol, bytes) = answer(&cable);
            assert_eq!(protocol, IpProtocol::Tcp, "{extensions:?}");
            bytes
        };
        let bytes = send(none, (1000, 0), TcpFlags::SYN, b"");
        assert!(TcpPacket::new_checked(&bytes[..]).unwrap().rst());
        let bytes = send(80, (1000, 0), TcpFlags::SYN, b"");
        let segment = TcpPacket::new_checked(&bytes[..]).unwrap();
        assert!(segment.syn() && segment.ack(), "{extensions:?}");
        let next = segment.seq_number().0.cast_unsigned().wrapping_add(1);
        let mut bytes = send(80, (1001, next), TcpFlags::ACK, b"hello");
        // On a slow machine its answer to the SYN may come once more.
        while TcpPacket::new_checked(&bytes[..]).unwrap().ack_number().0 != 1006 {
            bytes = answer(&cable).1;
        }
        let (mut stream, _) = listener.accept_timeout(SOON).unwrap();
        let mut buffer = [0; 5];
        stream.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"hello");
    }
}
