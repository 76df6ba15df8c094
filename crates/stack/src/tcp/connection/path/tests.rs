use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use plimsoll_core::demux::Protocol;
use plimsoll_core::pacing::Rate;
use plimsoll_core::time::Instant;
use smoltcp::wire::{TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};

use crate::clock;
use crate::config::StackConfig;
use crate::device::simulated::{SimulatedConfig, SimulatedDevice};
use crate::device::{Batch, Device};
use crate::host::Host;
use crate::stack::Parts;
use crate::tcp::reset::{framed, plain};
use crate::tcp::{Pacing, TcpListener, TcpStream};
use crate::wire::trouble::{Report, Trouble};
use crate::wire::{ETHERNET_BYTES, packet};

/// A stack, and a peer made by hand that takes segments as long as the link does.
struct Peer {
    cable: SimulatedDevice,
    parts: Parts,
    ours: SocketAddr,
    theirs: SocketAddr,
    stream: TcpStream,
    /// What it expects.
    expected: u32,
    /// What came, as far as it is there in whole.
    received: Vec<u8>,
    now: Instant,
}

/// A packet that the stack sent.
#[derive(Clone, Debug)]
struct Sent {
    begin: u32,
    payload: Vec<u8>,
    bytes: usize,
}

impl Peer {
    fn connect(ours: &str, theirs: &str) -> Self {
        let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let config = StackConfig {
            addresses: ["10.0.0.2/24", "fd00::2/64"]
                .map(|net| net.parse().unwrap())
                .to_vec(),
            ..StackConfig::default()
        };
        let mut parts = Parts::assemble(device, &config).unwrap();
        let (ours, theirs): (SocketAddr, SocketAddr) =
            (ours.parse().unwrap(), theirs.parse().unwrap());
        let listener = TcpListener::bind(&parts.stack, ours).unwrap();
        let syn = TcpRepr {
            control: TcpControl::Syn,
            seq_number: TcpSeqNumber(1000),
            window_len: u16::MAX,
            max_seg_size: Some(if ours.is_ipv4() { 1460 } else { 1440 }),
            ..plain(theirs.port(), ours.port())
        };
        bring_in(&cable, &mut parts, (theirs, ours), &syn, clock::now());
        let expected = sent(&cable)[0].begin + 1;
        let ack = acknowledgement(theirs, ours, expected);
        bring_in(&cable, &mut parts, (theirs, ours), &ack, clock::now());
        let stream = listener.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        Self {
            cable,
            parts,
            ours,
            theirs,
            stream,
            expected,
            received: Vec::new(),
            now: clock::now(),
        }
    }

    fn host(&self) -> &Host {
        self.parts.stack.host()
    }

    /// The longest packet that its path is believed to take.
    fn path(&self) -> usize {
        self.host().egress.mtu_to(self.theirs.ip(), self.now)
    }

    /// A router tells of this packet.
    fn tell(&mut self, packet: &Sent, mtu: usize) {
        self.wait(Duration::ZERO);
        let report = Report {
            trouble: Trouble::TooBig(Some(mtu)),
            protocol: Protocol::Tcp,
            local: self.ours,
            remote: self.theirs,
            bytes: packet.bytes,
            after_ports: packet.begin,
        };
        let host = self.host();
        host.tcp.on_trouble(host, &report, self.now);
    }

    /// What was sent meanwhile, of which no more than `mtu` bytes arrive in a packet. The peer
    /// acknowledges what it has for each.
    fn take(&mut self, mtu: usize) -> Vec<Sent> {
        let packets = sent(&self.cable);
        self.now = self.now.max(clock::now());
        let arrive = |packet: &&Sent| packet.bytes <= mtu && !packet.payload.is_empty();
        for packet in packets.iter().filter(arrive) {
            if packet.begin == self.expected && packet.payload.len() > 1 {
                self.expected += packet.payload.len() as u32;
                self.received.extend(&packet.payload);
            }
            let ack = acknowledgement(self.theirs, self.ours, self.expected);
            let ends = (self.theirs, self.ours);
            bring_in(&self.cable, &mut self.parts, ends, &ack, self.now);
        }
        packets
    }

    /// Time goes by.
    fn wait(&mut self, time: Duration) {
        self.now = self.now.max(clock::now()) + time;
        for _ in 0..4 {
            self.parts.tcp.turn(self.now).unwrap();
        }
    }
}

fn acknowledgement(from: SocketAddr, to: SocketAddr, expected: u32) -> TcpRepr<'static> {
    TcpRepr {
        seq_number: TcpSeqNumber(1001),
        ack_number: Some(TcpSeqNumber(expected.cast_signed())),
        window_len: u16::MAX,
        ..plain(from.port(), to.port())
    }
}

fn bring_in(
    cable: &SimulatedDevice,
    parts: &mut Parts,
    ends: (SocketAddr, SocketAddr),
    segment: &TcpRepr<'_>,
    now: Instant,
) {
    let pool = Arc::clone(parts.stack.host().device.pool());
    let ends = (ends.0.ip(), ends.1.ip());
    let mut frame = framed(segment, ends, [2, 0, 0, 0, 0, 1], &pool)
        .unwrap()
        .to_vec();
    frame[..6].fill(0xff);
    assert!(cable.send(&frame));
    for _ in 0..4 {
        let _ = parts.receiver.turn(true).unwrap();
        parts.tcp.turn(now).unwrap();
    }
}

fn sent(cable: &SimulatedDevice) -> Vec<Sent> {
    let mut batch = Batch::new();
    while cable.receive(&mut batch, 64).unwrap() > 0 {}
    let packets = batch.iter().filter_map(|frame| {
        let packet = packet::parse(frame).ok()?;
        let tcp = TcpPacket::new_checked(&frame[packet.payload.clone()]).ok()?;
        Some(Sent {
            begin: tcp.seq_number().0.cast_unsigned(),
            payload: tcp.payload().to_vec(),
            bytes: packet.payload.end - ETHERNET_BYTES,
        })
    });
    packets.collect()
}

const ENDS: [(&str, &str); 2] = [
    ("10.0.0.2:80", "10.0.0.1:5000"),
    ("[fd00::2]:80", "[fd00::1]:5000"),
];

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|byte| (byte / 7) as u8).collect()
}

/// It waited for its timer, a second at least.
#[test]
fn what_was_too_long_for_its_path_is_sent_again_before_any_timer() {
    for (ours, theirs) in ENDS {
        let mut peer = Peer::connect(ours, theirs);
        let whole = content(20_000);
        peer.stream.write_all(&whole).unwrap();
        peer.take(1500);
        // A flight of several packets, which the next link does not take.
        let lost = sent(&peer.cable);
        assert!(lost.len() > 1 && lost[0].bytes == 1500, "{ours}: {lost:?}");
        for packet in &lost {
            peer.tell(packet, 1400);
        }
        while peer.received.len() < whole.len() {
            let again = peer.take(1400);
            assert!(!again.is_empty(), "{ours}: {} came", peer.received.len());
            assert!(again.iter().all(|one| one.bytes <= 1400), "{again:?}");
        }
        assert!(peer.received == whole, "{ours}");
    }
}

/// Its segments wait for their departures again.
#[test]
fn so_it_is_if_segments_leave_by_the_clock() {
    let (ours, theirs) = ENDS[0];
    let mut peer = Peer::connect(ours, theirs);
    let rate = Rate::from_bits_per_second(1 << 30).unwrap();
    peer.stream.set_pacing(Pacing::at(rate)).unwrap();
    let whole = content(20_000);
    peer.stream.write_all(&whole).unwrap();
    let mut lost = Vec::new();
    while lost.len() < 10 {
        peer.wait(Duration::ZERO);
        lost.extend(sent(&peer.cable));
    }
    for packet in &lost {
        peer.tell(packet, 1400);
    }
    // Long before its timer ends.
    for _ in 0..200 {
        peer.take(1400);
        peer.wait(Duration::ZERO);
        thread::sleep(Duration::from_millis(1));
    }
    assert!(peer.received == whole, "{} came", peer.received.len());
}

/// A flight of forty packets brings as many errors.
#[test]
fn a_flight_is_sent_again_once_for_all_its_errors_and_again_if_the_path_takes_even_less() {
    for (ours, theirs) in ENDS {
        let mut peer = Peer::connect(ours, theirs);
        peer.stream.write_all(&content(20_000)).unwrap();
        peer.take(1500);
        let lost = sent(&peer.cable);
        peer.tell(&lost[0], 1450);
        assert!(!sent(&peer.cable).is_empty());
        for packet in &lost {
            peer.tell(packet, 1450);
        }
        let more = sent(&peer.cable);
        assert!(more.is_empty(), "{ours}: {more:?}");
        // Farther on there is another such link.
        peer.tell(&lost[0], 1300);
        let again = sent(&peer.cable);
        let first = again.first().expect("sent again");
        assert_eq!((first.begin, first.bytes), (peer.expected, 1300), "{ours}");
    }
}

/// Ten minutes later the full length is tried, and may be too long still.
#[test]
fn what_is_too_long_once_more_is_sent_again_at_once_as_well() {
    let (ours, theirs) = ENDS[0];
    let mut peer = Peer::connect(ours, theirs);
    peer.stream.write_all(&content(20_000)).unwrap();
    let lost = sent(&peer.cable);
    peer.tell(&lost[0], 1400);
    peer.take(1400);
    peer.take(1400);
    peer.now += Duration::from_secs(601);
    peer.take(1400);
    let lost = sent(&peer.cable);
    assert_eq!(lost.first().map(|one| one.bytes), Some(1500), "{lost:?}");
    peer.tell(&lost[0], 1400);
    let again = sent(&peer.cable);
    assert_eq!(again.first().map(|one| one.bytes), Some(1400), "{again:?}");
}

/// No router told. The connection sent the same for a quarter of an hour, and was given up.
#[test]
fn a_path_that_loses_long_packets_without_a_word_is_found() {
    for ((ours, theirs), mtu) in [(ENDS[0], 1280), (ENDS[0], 576), (ENDS[1], 1280)] {
        let mut peer = Peer::connect(ours, theirs);
        let whole = content(60_000);
        peer.stream.write_all(&whole).unwrap();
        let mut waited = 0;
        while peer.received.len() < whole.len() {
            let before = peer.received.len();
            peer.take(mtu);
            if peer.received.len() == before {
                peer.wait(Duration::from_secs(1));
                waited += 1;
            }
            assert!(waited < 60, "{ours}: {} came", peer.received.len());
        }
        assert!(peer.received == whole, "{ours}");
        // So others need not find it out.
        assert!(peer.path() <= mtu, "{ours}: {}", peer.path());
    }
}

/// Two losses in a row are no sign.
#[test]
fn a_path_is_not_narrow_for_what_was_acknowledged_in_whole() {
    let (ours, theirs) = ENDS[0];
    let mut peer = Peer::connect(ours, theirs);
    peer.stream.write_all(&content(1460)).unwrap();
    for timeout in [1100, 2100] {
        assert_eq!(sent(&peer.cable)[0].bytes, 1500);
        peer.wait(Duration::from_millis(timeout));
    }
    let again = peer.take(1500);
    assert_eq!(again[0].bytes, 1500, "{again:?}");
    assert_eq!(peer.path(), 1500);
}

/// Nor is a peer that has gone one of others' packets.
#[test]
fn a_peer_that_acknowledges_nothing_makes_no_path_narrow() {
    let (ours, theirs) = ENDS[0];
    let mut peer = Peer::connect(ours, theirs);
    peer.stream.write_all(&content(1460)).unwrap();
    for _ in 0..100 {
        peer.wait(Duration::from_secs(1));
    }
    assert!(sent(&peer.cable).iter().any(|one| one.bytes <= 1200));
    assert_eq!(peer.path(), 1500);
}

/// Seven seconds without a network: all that went to that host was short for ten minutes.
#[test]
fn an_outage_makes_no_path_narrow() {
    for (ours, theirs) in ENDS {
        let mut peer = Peer::connect(ours, theirs);
        let whole = content(60_000);
        peer.stream.write_all(&whole).unwrap();
        let mut shortest = 1500;
        while shortest == 1500 {
            let lost = peer.take(0);
            let lengths = lost.iter().map(|one| one.bytes);
            shortest = lengths.fold(shortest, usize::min);
            peer.wait(Duration::from_millis(500));
        }
        let (mut lengths, mut waited) = (Vec::new(), 0);
        while peer.received.len() < whole.len() {
            let packets = peer.take(1500);
            lengths.extend(packets.iter().map(|one| one.bytes));
            assert_eq!(peer.path(), 1500, "{ours}: {lengths:?}");
            if packets.is_empty() {
                peer.wait(Duration::from_secs(1));
                waited += 1;
            }
            assert!(waited < 30, "{ours}: {} came", peer.received.len());
        }
        assert!(peer.received == whole, "{ours}");
        // Those that were on their way beside the one that asked, and the rest.
        let asked = lengths.iter().position(|bytes| *bytes == 1500);
        let behind = lengths[asked.expect("a question")..].iter();
        let short = behind.filter(|bytes| **bytes < 1500).count();
        assert!(short <= 6, "{ours}: {lengths:?}");
    }
}

/// Each answer is too small for a question. It was found again and again, for what was sent again long ago.
#[test]
fn a_connection_that_cannot_ask_stays_short_alone_and_for_ten_minutes() {
    let (ours, theirs) = ENDS[0];
    let mut peer = Peer::connect(ours, theirs);
    let answer = content(1460);
    let ask = |peer: &mut Peer, mtu| {
        let all = peer.received.len() + answer.len();
        peer.stream.write_all(&answer).unwrap();
        for _ in 0..20 {
            let packets = peer.take(mtu);
            if peer.received.len() == all {
                return packets[0].bytes;
            }
            peer.wait(Duration::from_secs(1));
        }
        panic!("{} came", peer.received.len());
    };
    assert!(ask(&mut peer, 1280) <= 1200);
    assert!(ask(&mut peer, 1280) <= 1200);
    assert_eq!(peer.path(), 1500);
    peer.wait(Duration::from_secs(601));
    clock::set_ahead(Duration::from_secs(700));
    assert_eq!(ask(&mut peer, 1500), 1500);
}
