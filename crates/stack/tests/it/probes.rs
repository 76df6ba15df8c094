//! Closed windows and the bytes that probe them, against a peer made by hand.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use plimsoll_packets::frame::{Packet, TcpFlags};
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::device::{Batch, Device};
use plimsoll_stack::{Stack, StackConfig, TcpListener, TcpStream};
use smoltcp::wire::{Ipv4Packet, TcpPacket};

const SOON: Duration = Duration::from_secs(20);
const HEADERS: usize = 14 + 20;
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

struct Peer {
    cable: SimulatedDevice,
    /// What it sends next, and what it expects.
    sequence: u32,
    expected: u32,
}

/// What of a segment from the stack matters here.
struct Segment {
    begin: u32,
    acknowledged: u32,
    payload: Vec<u8>,
}

impl Peer {
    /// A connection in which its first window is this.
    fn connect(&mut self, listener: &TcpListener, window: u16) -> TcpStream {
        self.send(TcpFlags::SYN, window, &[]);
        self.sequence += 1;
        let answer = self.receive_until(|answer| answer.acknowledged == self.sequence);
        self.expected = answer.begin.wrapping_add(1);
        self.send(TcpFlags::ACK, window, &[]);
        listener.accept().unwrap().0
    }

    fn send(&self, flags: TcpFlags, window: u16, payload: &[u8]) {
        let packet =
            Packet::new(IpAddr::V4(PEER), IpAddr::V4(OURS)).numbers(self.sequence, self.expected);
        let mut frame = packet.tcp(5000, 80, flags, payload);
        frame[..6].fill(0xff);
        let mut segment = TcpPacket::new_unchecked(&mut frame[HEADERS..]);
        segment.set_window_len(window);
        segment.fill_checksum(&PEER.into(), &OURS.into());
        assert!(self.cable.send(&frame));
    }

    /// The next segment of which this is true.
    fn receive_until(&self, is_it: impl Fn(&Segment) -> bool) -> Segment {
        let (end, mut batch) = (Instant::now() + SOON, Batch::new());
        loop {
            self.cable.receive(&mut batch, 64).unwrap();
            for frame in batch.drain(..) {
                let Ok(packet) = Ipv4Packet::new_checked(&frame[14..]) else {
                    continue;
                };
                let segment = TcpPacket::new_checked(packet.payload()).unwrap();
                let segment = Segment {
                    begin: segment.seq_number().0.cast_unsigned(),
                    acknowledged: segment.ack_number().0.cast_unsigned(),
                    payload: segment.payload().to_vec(),
                };
                if is_it(&segment) {
                    return segment;
                }
            }
            assert!(Instant::now() < end, "it never came");
        }
    }
}

fn peer_of_a_listener() -> (Peer, Stack, TcpListener) {
    let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let stack = Stack::start(device, &StackConfig::at("10.0.0.2/24".parse().unwrap())).unwrap();
    let listener = TcpListener::bind(&stack, "10.0.0.2:80").unwrap();
    let peer = Peer {
        cable,
        sequence: 1000,
        expected: 0,
    };
    (peer, stack, listener)
}

/// Two ends whose windows were closed probed each other at a time, took each other's byte, and
/// heard nothing any more: what either sent seemed old to the other.
#[test]
fn a_window_is_heard_of_from_a_peer_that_does_not_count_its_probe() {
    let (mut peer, _stack, listener) = peer_of_a_listener();
    let mut ours = peer.connect(&listener, 0);
    ours.set_read_timeout(Some(SOON)).unwrap();
    ours.write_all(b"hello").unwrap();
    // The stack probes the closed window with a byte, and the peer does the same.
    peer.receive_until(|segment| segment.payload == b"h");
    peer.send(TcpFlags::ACK, 0, b"x");
    ours.read_exact(&mut [0]).unwrap();
    peer.receive_until(|segment| segment.acknowledged == 1002);
    // Both took the byte. The peer's own is not counted in what it sends.
    peer.expected = peer.expected.wrapping_add(1);
    peer.send(TcpFlags::ACK, 10_000, &[]);
    let rest = peer.receive_until(|segment| segment.begin == peer.expected);
    assert_eq!(rest.payload, b"ello");
}

/// A window that closed while data was on its way was not probed: smoltcp had no timer any more when
/// that of the retransmission had ended. If the peer's word that it is open again was lost, both
/// waited for ever.
#[test]
fn a_window_that_closes_behind_data_on_its_way_is_probed() {
    let (mut peer, _stack, listener) = peer_of_a_listener();
    let mut ours = peer.connect(&listener, 10_000);
    ours.write_all(b"hello").unwrap();
    peer.receive_until(|segment| segment.payload == b"hello");
    // It had no memory for it.
    peer.send(TcpFlags::ACK, 0, &[]);
    let old = peer.expected.wrapping_sub(1);
    for _ in 0..2 {
        // The first question, or the answer to it, is lost.
        peer.receive_until(|asks| asks.begin == old && asks.payload.is_empty());
    }
    peer.send(TcpFlags::ACK, 0, &[]);
    peer.receive_until(|probe| probe.payload == b"h");
    peer.send(TcpFlags::ACK, 10_000, &[]);
    peer.receive_until(|segment| segment.payload == b"hello");
}
