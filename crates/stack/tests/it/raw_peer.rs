//! TCP against a peer that is written by hand: how it ends, what is damaged, and what is forged.

use std::io::ErrorKind::{ConnectionReset, InvalidInput, TimedOut, WouldBlock};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use plimsoll_packets::frame::{Packet, TcpFlags};
use plimsoll_stack::device::{Batch, Device};
use plimsoll_stack::driven::Driven;
use plimsoll_stack::{Outcome, Owner, TcpStream};
use smoltcp::wire::{EthernetFrame, IpProtocol, Ipv4Packet, TcpPacket};

pub(crate) const SERVER: &str = "10.0.0.2:80";

/// What the stack sent to a peer.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) sequence: u32,
    pub(crate) acknowledges: u32,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    to_port: u16,
    to_mac: [u8; 6],
    pub(crate) payload: Vec<u8>,
}

/// All TCP segments that the stack sent since this was asked.
pub(crate) fn sent(driven: &mut Driven) -> Vec<Segment> {
    let mut batch = Batch::new();
    driven.cable.receive(&mut batch, 256).unwrap();
    let segments = batch.iter().filter_map(|frame| {
        let ethernet = EthernetFrame::new_checked(&frame[..]).unwrap();
        let ip = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
        if ip.next_header() != IpProtocol::Tcp {
            return None;
        }
        let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
        Some(Segment {
            sequence: tcp.seq_number().0.cast_unsigned(),
            acknowledges: tcp.ack_number().0.cast_unsigned(),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            to_port: tcp.dst_port(),
            to_mac: ethernet.dst_addr().0,
            payload: tcp.payload().to_vec(),
        })
    });
    segments.collect()
}

/// A peer.
pub(crate) struct Peer {
    address: IpAddr,
    /// Where its segments come from on the link.
    mac: [u8; 6],
    port: u16,
    /// What it sends next, and what it expects.
    pub(crate) sequence: u32,
    pub(crate) expected: u32,
}

impl Peer {
    /// At 10.0.0.1.
    pub(crate) fn new(port: u16) -> Self {
        Self {
            address: "10.0.0.1".parse().unwrap(),
            mac: [2, 0, 0, 0, 0, 1],
            port,
            sequence: 1000,
            expected: 0,
        }
    }

    pub(crate) fn frame(&self, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
        let server: SocketAddr = SERVER.parse().unwrap();
        Packet::new(self.address, server.ip())
            .macs(self.mac, [0xff; 6])
            .numbers(self.sequence, self.expected)
            .tcp(self.port, server.port(), flags, payload)
    }

    /// The segment reaches the stack, which does what is due at once.
    pub(crate) fn send(&mut self, driven: &mut Driven, flags: TcpFlags, payload: &[u8]) {
        bring_in(driven, &self.frame(flags, payload));
        self.sequence += payload.len() as u32 + u32::from(flags.syn) + u32::from(flags.fin);
    }

    /// As [`send`](Self::send), so much later.
    pub(crate) fn send_in(&mut self, driven: &mut Driven, time: Duration, flags: TcpFlags) {
        driven.cable.send(&self.frame(flags, &[]));
        driven.receive();
        driven.work_in(time);
    }

    /// What the stack sent to it, which it takes.
    pub(crate) fn take(&mut self, driven: &mut Driven) -> Vec<Segment> {
        let mine = sent(driven).into_iter();
        let mine: Vec<_> = mine.filter(|one| one.to_port == self.port).collect();
        for segment in &mine {
            let bytes = segment.payload.len() as u32;
            let end = segment.sequence + bytes + u32::from(segment.syn) + u32::from(segment.fin);
            self.expected = self.expected.max(end);
        }
        mine
    }

    /// A connection with the stack, and the stack's end of it.
    pub(crate) fn connect(driven: &mut Driven, port: u16) -> (Self, TcpStream) {
        let mut peer = Self::new(port);
        let stream = peer.open(driven);
        (peer, stream)
    }

    fn open(&mut self, driven: &mut Driven) -> TcpStream {
        self.send(driven, TcpFlags::SYN, &[]);
        let answer = self.take(driven);
        assert!(answer.iter().any(|one| one.syn), "{answer:?}");
        self.send(driven, TcpFlags::ACK, &[]);
        let (stream, _) = driven.listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    }
}

fn bring_in(driven: &mut Driven, frame: &[u8]) {
    driven.cable.send(frame);
    driven.receive();
    driven.work();
}

/// The same frame with one bit of its last byte wrong, as if another host had sent it on.
fn damaged(mut frame: Vec<u8>) -> Vec<u8> {
    frame[6..12].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    *frame.last_mut().unwrap() ^= 1;
    frame
}

/// Damaged segments counted as delivered, and had answers go where they seemed to come from; a
/// damaged SYN took a place of the backlog.
#[test]
fn a_damaged_segment_changes_nothing() {
    let mut driven = Driven::new("soft-lrp");
    let mut stranger = Peer::new(4999);
    // The last byte of a SYN is the urgent pointer's.
    bring_in(&mut driven, &damaged(stranger.frame(TcpFlags::SYN, &[])));
    assert!(stranger.take(&mut driven).is_empty());
    assert_eq!(driven.counts()[Outcome::Checksum], 1);

    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    let before = driven.counts();
    bring_in(&mut driven, &damaged(peer.frame(TcpFlags::ACK, b"abc")));
    let counts = driven.counts();
    assert_eq!(counts[Outcome::Checksum], 2);
    assert_eq!(counts[Outcome::Delivered], before[Outcome::Delivered]);
    assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), WouldBlock);
    stream.write_all(b"answer").unwrap();
    let answer = peer.take(&mut driven);
    assert_eq!(answer.len(), 1, "{answer:?}");
    assert_eq!(answer[0].to_mac, peer.mac, "where whole segments came from");
    // A whole one is what it was.
    peer.send(&mut driven, TcpFlags::ACK, b"abc");
    assert_eq!(stream.read(&mut [0; 9]).unwrap(), 3);

    // Nobody listens there, nor answers what is damaged.
    let mut closed = stranger.frame(TcpFlags::SYN, &[]);
    closed[14 + 20 + 3] = 81;
    bring_in(&mut driven, &closed);
    assert!(stranger.take(&mut driven).is_empty());
}

/// Half-open connections of senders that do not exist kept their places for 20 s: seven SYNs a
/// second shut out everybody else. Then a client whose answer was lost was refused by a reset,
/// instead of asking again.
#[test]
fn a_full_listener_ends_what_has_been_half_open_for_a_second() {
    let mut driven = Driven::without_cookies("soft-lrp");
    let syn = |driven: &mut Driven, port| {
        let mut peer = Peer::new(port);
        peer.send(driven, TcpFlags::SYN, &[]);
        peer.take(driven)
    };
    assert_eq!(syn(&mut driven, 1).len(), 1);
    // There is room: it is answered again, and stays.
    driven.work_in(Duration::from_secs(5));
    let again = sent(&mut driven);
    assert!(again.iter().all(|one| one.syn && !one.rst), "{again:?}");
    assert_eq!(syn(&mut driven, 2).len(), 1);
    assert!(syn(&mut driven, 3).is_empty(), "there are two places");
    driven.work();
    assert!(sent(&mut driven).is_empty(), "half-open for no time yet");
    driven.work_in(Duration::from_secs(10));
    let others = sent(&mut driven);
    assert!(others.iter().all(|one| one.syn && !one.rst), "{others:?}");
    assert_eq!(syn(&mut driven, 3).len(), 1);
    assert!(syn(&mut driven, 4).is_empty(), "one place is enough");
}

/// What the server closed held a channel until its peer closed as well, up to a minute: some
/// hundred clients that did not kept all others out.
#[test]
fn what_is_closed_here_gives_its_place_back_before_the_peer_closes() {
    let mut driven = Driven::new("soft-lrp");
    // There are three places.
    for port in 5000..5020 {
        let (mut peer, mut stream) = Peer::connect(&mut driven, port);
        stream.write_all(b"answer").unwrap();
        drop(stream);
        let answer = peer.take(&mut driven);
        assert!(answer.iter().any(|one| one.fin), "{answer:?}");
        peer.send(&mut driven, TcpFlags::ACK, &[]);
        peer.take(&mut driven);
        if port % 2 == 0 {
            // Its end is acknowledged all the same.
            peer.send(&mut driven, TcpFlags::FIN_ACK, &[]);
            let last = peer.take(&mut driven);
            assert_eq!(last.len(), 1, "{last:?}");
            assert!(
                !last[0].rst && last[0].acknowledges == peer.sequence,
                "{last:?}"
            );
        } else {
            // Nobody will read what it still sends.
            peer.send(&mut driven, TcpFlags::ACK, b"more");
            let last = peer.take(&mut driven);
            assert!(last.len() == 1 && last[0].rst, "{last:?}");
        }
    }
}

/// A client that asked and then went without a word held a place for a minute: eleven in a second kept all others
/// from a server with places for some hundred.
#[test]
fn who_acknowledges_nothing_after_the_drop_gives_way_to_who_has_no_place() {
    let mut driven = Driven::without_cookies("soft-lrp");
    // There are three places.
    let gone: Vec<_> = (5001..=5003)
        .map(|port| {
            let (peer, mut stream) = Peer::connect(&mut driven, port);
            stream.write_all(b"answer").unwrap();
            peer
        })
        .collect();
    let resets = |driven: &mut Driven| sent(driven).iter().filter(|one| one.rst).count();
    // Nobody wants their places.
    driven.work_in(30 * SECOND);
    assert_eq!(resets(&mut driven), 0);
    let mut next = Peer::new(5004);
    next.send_in(&mut driven, 31 * SECOND, TcpFlags::SYN);
    assert_eq!(resets(&mut driven), 3);
    next.send_in(&mut driven, 32 * SECOND, TcpFlags::SYN);
    let answer = next.take(&mut driven);
    assert!(answer.len() == 1 && answer[0].syn, "{answer:?}");
    drop(gone);
}

/// Who closes one direction only still reads.
#[test]
fn what_is_closed_one_way_goes_on_the_other() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    peer.take(&mut driven);
    peer.send(&mut driven, TcpFlags::ACK, &[]);
    peer.send(&mut driven, TcpFlags::ACK, b"more");
    let mut more = [0; 4];
    stream.read_exact(&mut more).unwrap();
    assert_eq!(&more, b"more");
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// It was kept for ever, with what was written, and a writer waited as long.
#[test]
fn a_peer_that_owes_an_acknowledgement_is_given_up_after_a_quarter_of_an_hour() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    // It owes nothing for as long as it likes.
    driven.work_in(24 * 60 * MINUTE);
    assert!(peer.take(&mut driven).is_empty());
    stream.write_all(b"question").unwrap();
    driven.work_in(10 * MINUTE);
    // It is there, and has perhaps no room.
    peer.expected = peer.take(&mut driven)[0].sequence;
    peer.send_in(&mut driven, 10 * MINUTE, TcpFlags::ACK);
    driven.work_in(24 * MINUTE);
    let again = peer.take(&mut driven);
    assert!(
        !again.is_empty() && again.iter().all(|one| !one.rst),
        "{again:?}"
    );
    assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), WouldBlock);
    driven.work_in(26 * MINUTE);
    assert!(peer.take(&mut driven).iter().any(|one| one.rst));
    assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), TimedOut);
    assert_eq!(stream.write(b"more").unwrap_err().kind(), TimedOut);
}

/// A server kept each client for ever that had gone without a word.
#[test]
fn a_silent_peer_is_asked_and_given_up_after_nine_questions() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    for interval in [SECOND / 2, 10 * 60 * MINUTE] {
        let refused = stream.set_keepalive(Some(interval)).unwrap_err();
        assert_eq!(refused.kind(), InvalidInput);
    }
    stream.set_keepalive(Some(MINUTE)).unwrap();
    assert_eq!(stream.keepalive().unwrap(), Some(MINUTE));
    let expected = peer.expected;
    let asked = |peer: &mut Peer, driven: &mut Driven, minutes: u32| {
        driven.work_in(minutes * MINUTE + SECOND);
        let all = peer.take(driven);
        assert!(all.iter().all(|one| !one.rst), "{all:?}");
        // An old byte, which whoever is there answers.
        let is_question = |one: &&Segment| one.sequence == expected - 1 && one.payload == [0];
        all.iter().filter(is_question).count()
    };
    assert_eq!(asked(&mut peer, &mut driven, 0), 1, "at once");
    for minute in 1..=8 {
        assert_eq!(asked(&mut peer, &mut driven, minute), 1);
    }
    peer.expected = expected;
    peer.send_in(&mut driven, 9 * MINUTE, TcpFlags::ACK);
    for minute in 10..=18 {
        assert_eq!(asked(&mut peer, &mut driven, minute), 1, "{minute}");
        assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), WouldBlock);
    }
    driven.work_in(20 * MINUTE);
    assert!(peer.take(&mut driven).iter().any(|one| one.rst));
    assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), TimedOut);
    // Who does not ask any more does not give up.
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5001);
    stream.set_keepalive(Some(MINUTE)).unwrap();
    stream.set_keepalive(None).unwrap();
    driven.work_in(10 * MINUTE);
    peer.take(&mut driven);
    driven.work_in(60 * MINUTE);
    assert!(peer.take(&mut driven).is_empty());
    assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), WouldBlock);
}

/// It was given up by the new interval while questions still left by the old one: without any.
#[test]
fn a_peer_is_not_given_up_by_a_shorter_interval_before_it_was_asked_nine_times() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    stream.set_keepalive(Some(120 * MINUTE)).unwrap();
    let expected = peer.expected;
    assert_eq!(peer.take(&mut driven).len(), 1, "asked at once");
    peer.expected = expected;
    peer.send(&mut driven, TcpFlags::ACK, &[]);
    stream.set_keepalive(Some(10 * SECOND)).unwrap();
    driven.work_in(119 * MINUTE);
    assert!(peer.take(&mut driven).is_empty(), "no question is due yet");
    for question in 0..9 {
        driven.work_in(120 * MINUTE + 11 * SECOND * question);
        let asked = peer.take(&mut driven);
        assert!(asked.len() == 1 && !asked[0].rst, "{question}: {asked:?}");
    }
    driven.work_in(120 * MINUTE + 11 * SECOND * 9);
    assert!(peer.take(&mut driven).iter().any(|one| one.rst));
    assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), TimedOut);
}

/// A minute after the drop it was reset, however much was on its way.
#[test]
fn a_slow_peer_gets_all_that_was_written_before_the_drop() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    assert_eq!(
        stream.write(&[7; 4096]).unwrap(),
        2048,
        "the buffer's length"
    );
    drop(stream);
    let first = peer.take(&mut driven)[0].sequence;
    for step in 1..=3 {
        peer.expected = first + 500 * step;
        peer.send_in(&mut driven, step * 50 * SECOND, TcpFlags::ACK);
        let all = sent(&mut driven);
        assert!(all.iter().all(|one| !one.rst), "{all:?}");
    }
    // Not for ever.
    driven.work_in(220 * SECOND);
    assert!(sent(&mut driven).iter().any(|one| one.rst));
}

/// Neither the receiving thread for a connection's segments, nor the TCP thread, nor the calls of its owner:
/// here all of these are this thread.
#[test]
fn a_connection_allocates_nothing_per_segment() {
    for path in ["eager", "early-demux", "soft-lrp", "polled"] {
        let mut driven = Driven::new(path);
        let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
        let mut question = [7; 500];
        let questions: Vec<_> = (0..600)
            .map(|_| {
                let frame = peer.frame(TcpFlags::ACK, &question);
                peer.sequence += 500;
                // The answer to it, which the next one acknowledges.
                peer.expected += 500;
                frame
            })
            .collect();
        let (mut sent, mut answers) = (Batch::with_capacity(64), 0);
        let mut ask = |frame: &Vec<u8>| {
            driven.cable.send(frame);
            driven.receive();
            driven.work();
            stream.read_exact(&mut question).unwrap();
            stream.write_all(&question).unwrap();
            driven.cable.receive(&mut sent, 64).unwrap();
            answers += sent.drain(..).filter(|frame| frame.len() > 500).count();
        };
        // In the first hundred queues get their capacity. Time may have its own in one more: reports
        // of memberships, and a question where the peer is, if this thread stood still for long.
        let allocated: Vec<_> = questions
            .chunks(100)
            .map(|hundred| allocation_counter::measure(|| hundred.iter().for_each(&mut ask)))
            .collect();
        assert_eq!(answers, 600, "{path}");
        let least = allocated.iter().map(|hundred| hundred.count_total).min();
        assert_eq!(least, Some(0), "{path}: {allocated:?}");
    }
}

/// No call of the owner's has a part in it.
#[test]
fn what_the_tcp_thread_does_for_a_connection_is_charged_to_its_listener() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, _stream) = Peer::connect(&mut driven, 5000);
    let cpu = |driven: &Driven, owner| driven.charged().get(&owner).map(|charged| charged.cpu);
    let owners = [Owner::TcpListener(SERVER.parse().unwrap()), Owner::TcpOther];
    let before = owners.map(|owner| cpu(&driven, owner));
    // One piece of work in 32 is measured. That none of so many is happens once in 10^27 runs.
    for _ in 0..2000 {
        peer.send(&mut driven, TcpFlags::ACK, &[]);
    }
    let after = owners.map(|owner| cpu(&driven, owner));
    assert!(after[0] > before[0], "{before:?} {after:?}");
    assert_eq!(after[1], before[1], "not to nobody");
}

/// One made-up segment had a connection's answers go to whoever had sent it, and kept a peer alive
/// that was gone.
#[test]
fn a_segment_of_somebody_who_does_not_know_what_was_sent_is_no_sign_of_the_peer() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    let (own, moved) = (peer.mac, [2, 0, 0, 0, 0, 5]);
    stream.write_all(b"answer").unwrap();
    peer.expected = peer.take(&mut driven)[0].sequence;
    let first = peer.expected;
    for guess in [first - 1, first + 7, first + 100_000] {
        (peer.mac, peer.expected) = ([2, 9, 9, 9, 9, 9], guess);
        peer.send_in(&mut driven, 10 * MINUTE, TcpFlags::ACK);
    }
    (peer.mac, peer.expected) = (own, first);
    assert!(peer.take(&mut driven).iter().all(|one| one.to_mac == own));
    // Its own are, also once our end is on its way and what was before it is not there yet.
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    driven.work_in(11 * MINUTE);
    peer.take(&mut driven);
    (peer.mac, peer.expected) = (moved, first);
    peer.send_in(&mut driven, 12 * MINUTE, TcpFlags::ACK);
    driven.work_in(14 * MINUTE);
    let again = peer.take(&mut driven);
    let carries = again.iter().find(|one| one.payload == b"answer").unwrap();
    assert_eq!(carries.to_mac, moved, "{again:?}");
    // It is silent from now on, whatever others say.
    peer.expected = first + 100_000;
    peer.send_in(&mut driven, 20 * MINUTE, TcpFlags::ACK);
    assert!(sent(&mut driven).iter().all(|one| !one.rst));
    driven.work_in(28 * MINUTE);
    assert!(sent(&mut driven).iter().any(|one| one.rst));
    assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), TimedOut);
}

/// Any reset within the window ended a connection, so one of some 65,000 guesses did.
#[test]
fn a_reset_that_begins_elsewhere_is_asked_about() {
    let mut driven = Driven::new("soft-lrp");
    let (mut peer, mut stream) = Peer::connect(&mut driven, 5000);
    let right = peer.sequence;
    for (guess, answers) in [(1, 1), (1000, 0), (2047, 0), (100_000, 0)] {
        peer.sequence = right + guess;
        bring_in(&mut driven, &peer.frame(TcpFlags::RST, &[]));
        let answer = peer.take(&mut driven);
        assert_eq!(answer.len(), answers, "one a second: {answer:?}");
        assert!(
            answer
                .iter()
                .all(|one| !one.rst && one.acknowledges == right)
        );
    }
    peer.sequence = right;
    peer.send(&mut driven, TcpFlags::ACK, b"abc");
    assert_eq!(stream.read(&mut [0; 9]).unwrap(), 3);
    // That was not acknowledged yet. The peer ends by force.
    peer.send(&mut driven, TcpFlags::ACK, b"def");
    bring_in(&mut driven, &peer.frame(TcpFlags::RST, &[]));
    assert_eq!(stream.read(&mut [0; 9]).unwrap(), 3);
    let ended = stream.read(&mut [0; 9]).unwrap_err();
    assert_eq!(ended.kind(), ConnectionReset);
}

/// A half-open connection ends by no guess either.
#[test]
fn a_half_open_connection_is_reset_by_its_peer_alone() {
    let mut driven = Driven::new("soft-lrp");
    let mut peer = Peer::new(5000);
    peer.send(&mut driven, TcpFlags::SYN, &[]);
    peer.take(&mut driven);
    peer.sequence += 1;
    bring_in(&mut driven, &peer.frame(TcpFlags::RST, &[]));
    peer.sequence -= 1;
    peer.send(&mut driven, TcpFlags::ACK, &[]);
    assert!(driven.listener.accept().is_ok());
}

/// Behind two routers, one peer's segments went to the other's router from the first timer on.
#[test]
fn on_a_shared_address_only_what_stays_unanswered_goes_another_way_and_that_by_turns() {
    let mut driven = Driven::sharing("soft-lrp");
    let [(mut peer, mut stream), (other, _open)] = [8, 9].map(|number| {
        let mut peer = Peer::new(5000 + u16::from(number));
        peer.address = [10, number, 0, 1].into();
        peer.mac[5] = number;
        let stream = peer.open(&mut driven);
        (peer, stream)
    });
    // An acknowledgement that waits for more.
    peer.send(&mut driven, TcpFlags::ACK, b"question");
    driven.work_in(SECOND);
    let answer = peer.take(&mut driven);
    assert!(
        answer.len() == 1 && answer[0].to_mac == peer.mac,
        "{answer:?}"
    );
    stream.write_all(b"answer").unwrap();
    let mut ways = Vec::new();
    for minutes in 1..=6 {
        ways.extend(peer.take(&mut driven).iter().map(|one| one.to_mac));
        driven.work_in(minutes * MINUTE);
    }
    let (own, others) = (peer.mac, other.mac);
    assert_eq!(ways, [own, own, others, own, others, own]);
    // It is there after all.
    peer.send(&mut driven, TcpFlags::ACK, &[]);
    stream.write_all(b"more").unwrap();
    let more = peer.take(&mut driven);
    assert_eq!(more.last().unwrap().to_mac, own, "{more:?}");
}

/// The TCP thread wakes owners when it has looked at all segments.
#[test]
fn one_turn_wakes_each_descriptor_that_is_waited_for() {
    let mut driven = Driven::new("soft-lrp");
    let connections = (5000..5003).map(|port| Peer::connect(&mut driven, port));
    let connections: Vec<_> = connections.collect();
    let readable = |stream: &TcpStream| {
        let mut polled = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::ZERO).unwrap() == 1
    };
    for (peer, stream) in &connections {
        let mut reader = stream;
        assert_eq!(reader.read(&mut [0]).unwrap_err().kind(), WouldBlock);
        assert!(!readable(stream));
        driven.cable.send(&peer.frame(TcpFlags::ACK, b"data"));
        driven.receive();
    }
    driven.work();
    for (_, stream) in &connections {
        let mut reader = stream;
        assert!(readable(stream));
        assert_eq!(reader.read(&mut [0; 9]).unwrap(), 4);
        assert_eq!(reader.read(&mut [0]).unwrap_err().kind(), WouldBlock);
        assert!(!readable(stream));
    }
}
