//! What depends on when exactly something comes about.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use plimsoll_packets::frame::{Packet, TcpFlags};
use smoltcp::socket::tcp::{RecvError, State};
use smoltcp::wire::{TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};

use super::connection::{Connection, Wait, Wanted};
use super::reset::{framed, plain};
use super::thread::TURN_SEGMENTS;
use super::{Endpoint, TcpListener, TcpStream};
use crate::clock;
use crate::config::StackConfig;
use crate::device::simulated::{SimulatedConfig, SimulatedDevice};
use crate::device::{Batch, Device};
use crate::outcome::{Outcome, Tally};
use crate::stack::Parts;
use crate::wire::packet;

const SERVER: &str = "10.0.0.2:80";

fn parts() -> (SimulatedDevice, Parts) {
    parts_with(64 << 10)
}

/// With buffers of so many bytes.
fn parts_with(buffer_bytes: usize) -> (SimulatedDevice, Parts) {
    let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let mut config = StackConfig::at("10.0.0.2/24".parse().unwrap());
    config.tcp.syn_cookies_per_s = 0;
    config.tcp.buffer_bytes = buffer_bytes;
    config.tcp.channel_segments = 2 * TURN_SEGMENTS as u32;
    (cable, Parts::assemble(device, &config).unwrap())
}

fn first_connection(parts: &Parts) -> Arc<Connection> {
    let endpoints = parts.stack.host().tcp.endpoints.lock();
    let connection = endpoints.values().find_map(|endpoint| match endpoint {
        Endpoint::Connection(connection) => Some(Arc::clone(connection)),
        Endpoint::Listener(_) => None,
    });
    connection.expect("a connection")
}

/// It had cleared its own name from those who wait, and nobody told it again.
#[test]
fn a_call_that_finds_the_handshake_s_time_over_does_not_wait() {
    let (_cable, mut parts) = parts();
    let now = clock::now();
    let _stream = TcpStream::connect_nonblocking(&parts.stack, "10.0.0.9:80".parse().unwrap());
    parts.tcp.turn(now).unwrap();
    let connection = first_connection(&parts);
    let stack = parts.stack.clone();
    let later = now + Duration::from_secs(21);
    let call = thread::spawn(move || {
        let host = stack.host();
        let act = |socket: &mut smoltcp::socket::tcp::Socket<'static>| {
            (socket.state() == State::Closed).then_some(())
        };
        let wanted = (&[Wanted::Connection][..], Wait::Ever);
        let found = connection.with_or_await(host, later, wanted, act);
        // It looks again.
        found.or_else(|| connection.with_or_await(host, later, wanted, act))
    });
    for second in 0..100 {
        thread::sleep(Duration::from_millis(20));
        parts.tcp.turn(later + Duration::from_secs(second)).unwrap();
        if call.is_finished() {
            return assert_eq!(call.join().unwrap(), Some(()));
        }
    }
    panic!("it waits for a connection that is over");
}

/// Reading said that it was reset, and writing that it was shut down here.
#[test]
fn reading_and_writing_tell_that_nobody_has_answered_the_handshake() {
    let (_cable, mut parts) = parts();
    let at = "10.0.0.9:80".parse().unwrap();
    let mut stream = TcpStream::connect_nonblocking(&parts.stack, at).unwrap();
    parts.tcp.turn(clock::now()).unwrap();
    clock::set_ahead(Duration::from_secs(21));
    parts.tcp.turn(clock::now()).unwrap();
    let told = [
        stream.finish_connect().unwrap_err(),
        stream.read(&mut [0; 9]).unwrap_err(),
        stream.write(b"early").unwrap_err(),
    ];
    assert_eq!(told.map(|error| error.kind()), [ErrorKind::TimedOut; 3]);
}

/// A connection that the server ends gives its channel back with the acknowledgement of that. The peer's
/// end that came behind it was thrown away, and the peer had to send it again.
#[test]
fn an_end_right_behind_the_acknowledgement_of_ours_is_acknowledged() {
    let (cable, mut parts) = parts();
    let listener = TcpListener::bind(&parts.stack, SERVER).unwrap();
    bring_in(&mut parts, &cable, &segment(5000, TcpFlags::SYN, 1000));
    let expected = answers(&cable).last().expect("an answer").sequence + 1;
    let from_peer = |flags, beyond: u32| segment_to(5000, flags, 1001, expected + beyond);
    bring_in(&mut parts, &cable, &from_peer(TcpFlags::ACK, 0));
    let (stream, _) = listener.accept().unwrap();
    drop(stream);
    parts.tcp.turn(clock::now()).unwrap();
    answers(&cable);
    // One turn ends behind the acknowledgement.
    for _ in 1..TURN_SEGMENTS {
        assert!(cable.send(&from_peer(TcpFlags::ACK, 0)));
    }
    assert!(cable.send(&from_peer(TcpFlags::ACK, 1)));
    assert!(cable.send(&from_peer(TcpFlags::FIN_ACK, 1)));
    for _ in 0..8 {
        let _ = parts.receiver.turn(true).unwrap();
    }
    for _ in 0..4 {
        parts.tcp.turn(clock::now()).unwrap();
    }
    let last = answers(&cable).pop().expect("an answer");
    assert_eq!((last.acknowledges, last.rst), (1002, false));
    let counts = parts.stack.counts();
    assert_eq!(counts[Outcome::Closed], 0, "{counts:?}");
}

struct Answer {
    sequence: u32,
    acknowledges: u32,
    rst: bool,
}

/// All segments that the stack has sent meanwhile.
fn answers(cable: &SimulatedDevice) -> Vec<Answer> {
    let mut batch = Batch::new();
    while cable.receive(&mut batch, 64).unwrap() > 0 {}
    let segments = batch.iter().filter_map(|frame| {
        let packet = packet::parse(frame).ok()?;
        let tcp = TcpPacket::new_checked(&frame[packet.payload]).ok()?;
        Some(Answer {
            sequence: tcp.seq_number().0.cast_unsigned(),
            acknowledges: tcp.ack_number().0.cast_unsigned(),
            rst: tcp.rst(),
        })
    });
    segments.collect()
}

fn bring_in(parts: &mut Parts, cable: &SimulatedDevice, bytes: &[u8]) {
    assert!(cable.send(bytes));
    for _ in 0..4 {
        let _ = parts.receiver.turn(true).unwrap();
        parts.tcp.turn(clock::now()).unwrap();
    }
}

/// From the client at 10.0.0.1.
fn segment(port: u16, flags: TcpFlags, sequence: u32) -> Vec<u8> {
    segment_to(port, flags, sequence, 0)
}

fn segment_to(port: u16, flags: TcpFlags, sequence: u32, acknowledges: u32) -> Vec<u8> {
    packet_of(sequence, acknowledges).tcp(port, 80, flags, b"")
}

fn packet_of(sequence: u32, acknowledges: u32) -> Packet {
    Packet::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap())
        .macs([2, 0, 0, 0, 0, 1], [0xff; 6])
        .numbers(sequence, acknowledges)
}

/// The end of a connection of the former listener had the demultiplexer let SYNs through.
#[test]
fn a_closed_listener_says_nothing_of_the_next_one_s_backlog() {
    let (cable, mut parts) = parts();
    let pool = Arc::clone(parts.stack.host().device.pool());
    let is_discarded = |parts: &Parts| {
        let mut syn = pool.take().unwrap();
        assert!(syn.copy_from(&segment(9, TcpFlags::SYN, 1000)));
        let mut table = parts.stack.host().table.lock();
        table
            .classify(&syn, &Tally::default(), clock::now())
            .is_none()
    };
    let bind = |parts: &Parts| TcpListener::bind_with_backlog(&parts.stack, SERVER, 2).unwrap();
    let first = bind(&parts);
    for port in [1, 2] {
        bring_in(&mut parts, &cable, &segment(port, TcpFlags::SYN, 1000));
    }
    assert!(is_discarded(&parts));
    drop(first);
    let _second = bind(&parts);
    assert!(!is_discarded(&parts));
    for port in [3, 4] {
        bring_in(&mut parts, &cable, &segment(port, TcpFlags::SYN, 1000));
    }
    assert!(is_discarded(&parts), "the second one is full");
    bring_in(&mut parts, &cable, &segment(1, TcpFlags::RST, 1001));
    assert!(is_discarded(&parts), "the second one is full still");
}

/// A client that had ended its own side lost what it had not read ten seconds after the server's end.
#[test]
fn what_was_received_before_the_end_is_read_as_late_as_its_owner_likes() {
    let (cable, mut parts) = parts();
    let listener = TcpListener::bind(&parts.stack, SERVER).unwrap();
    bring_in(&mut parts, &cable, &segment(5000, TcpFlags::SYN, 1000));
    let expected = answers(&cable).last().expect("an answer").sequence + 1;
    bring_in(
        &mut parts,
        &cable,
        &segment_to(5000, TcpFlags::ACK, 1001, expected),
    );
    let (stream, _) = listener.accept().unwrap();
    let connection = first_connection(&parts);
    stream.shutdown(Shutdown::Write).unwrap();
    let last = packet_of(1001, expected + 1).tcp(5000, 80, TcpFlags::FIN_ACK, b"answer");
    bring_in(&mut parts, &cable, &last);
    let host = parts.stack.host();
    let read = |seconds, most| {
        let later = clock::now() + Duration::from_secs(seconds);
        let wanted = (&[Wanted::Data][..], Wait::Not);
        let mut buffer = [0; 8];
        let found = connection.with_or_await(host, later, wanted, |socket| {
            Some(socket.recv_slice(&mut buffer[..most]))
        });
        found.unwrap().map(|length| buffer[..length].to_vec())
    };
    assert_eq!(read(1, 2).unwrap(), b"an");
    assert_eq!(read(11, 2).unwrap(), b"sw");
    assert_eq!(read(3600, 8).unwrap(), b"er");
    assert_eq!(read(3601, 8), Err(RecvError::Finished));
}

/// Its SYN offers window scaling.
fn scaling_syn(parts: &Parts) -> Vec<u8> {
    let syn = TcpRepr {
        control: TcpControl::Syn,
        seq_number: TcpSeqNumber(1000),
        window_len: u16::MAX,
        window_scale: Some(0),
        ..plain(5000, 80)
    };
    let ends = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let pool = parts.stack.host().device.pool();
    let mut frame = framed(&syn, ends, [2, 0, 0, 0, 0, 1], pool)
        .unwrap()
        .to_vec();
    frame[..6].fill(0xff);
    frame
}

/// smoltcp took the handshake's window for a scaled one, which is twice the buffer here. What came beyond
/// that, before anything was acknowledged, ended the TCP thread by a panic.
#[test]
fn what_is_sent_beyond_the_window_of_the_handshake_is_thrown_away() {
    let (cable, mut parts) = parts();
    let listener = TcpListener::bind(&parts.stack, SERVER).unwrap();
    let syn = scaling_syn(&parts);
    bring_in(&mut parts, &cable, &syn);
    let expected = answers(&cable).last().expect("an answer").sequence + 1;
    let send = |begin: usize, payload: &[u8]| {
        let begin = 1001 + u32::try_from(begin).unwrap();
        assert!(cable.send(&packet_of(begin, expected).tcp(5000, 80, TcpFlags::ACK, payload)));
    };
    let sent: Vec<u8> = (0..90_000).map(|byte| (byte / 7) as u8).collect();
    // One of them far beyond, and 64 KiB fit.
    send(100_000, b"nothing");
    for (place, payload) in sent.chunks(1440).enumerate().take(TURN_SEGMENTS - 1) {
        send(place * 1440, payload);
    }
    for _ in 0..8 {
        let _ = parts.receiver.turn(true).unwrap();
    }
    parts.tcp.turn(clock::now()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut received = vec![0; 65_536];
    let length = stream.read(&mut received).unwrap();
    assert!(length > 64_000, "{length}");
    assert!(received[..length] == sent[..length]);
    // The connection goes on behind it.
    answers(&cable);
    send(length, &sent[length..length + 1000]);
    for _ in 0..4 {
        let _ = parts.receiver.turn(true).unwrap();
        parts.tcp.turn(clock::now()).unwrap();
    }
    assert_eq!(stream.read(&mut received).unwrap(), 1000);
    assert!(received[..1000] == sent[length..length + 1000]);
}

/// The window was told in steps of four bytes and so could end earlier than before. What was sent up to the former
/// end was cut, and the end behind it taken for the end of the rest: its reader missed a byte or two, and was
/// not told.
#[test]
fn an_end_behind_the_window_is_not_the_end_of_what_was_cut() {
    const WHOLE: usize = 128 << 10;
    let (cable, mut parts) = parts_with(WHOLE);
    let listener = TcpListener::bind(&parts.stack, SERVER).unwrap();
    let syn = scaling_syn(&parts);
    bring_in(&mut parts, &cable, &syn);
    let expected = answers(&cable).last().expect("an answer").sequence + 1;
    let frame = |begin: usize, flags, payload: &[u8]| {
        packet_of(1001 + begin as u32, expected).tcp(5000, 80, flags, payload)
    };
    let sent: Vec<u8> = (0..WHOLE - 1).map(|byte| (byte / 7) as u8).collect();
    let (mut at, bytes) = (0, 1401);
    while sent.len() - at > bytes {
        let segment = frame(at, TcpFlags::ACK, &sent[at..at + bytes]);
        bring_in(&mut parts, &cable, &segment);
        // What waits for more to be acknowledged.
        parts
            .tcp
            .turn(clock::now() + Duration::from_secs(1))
            .unwrap();
        at += bytes;
    }
    let last = frame(at, TcpFlags::FIN_ACK, &sent[at..]);
    bring_in(&mut parts, &cable, &last);
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let (mut received, mut buffer) = (Vec::new(), vec![0; WHOLE]);
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        received.extend_from_slice(&buffer[..length]);
    }
    let error = stream.read(&mut buffer).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::WouldBlock,
        "{} bytes",
        received.len()
    );
    // It comes again.
    bring_in(&mut parts, &cable, &last);
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        received.extend_from_slice(&buffer[..length]);
    }
    assert!(received == sent, "{} bytes", received.len());
    assert_eq!(stream.read(&mut buffer).unwrap(), 0, "that is the end");
}

/// Like [`packet_of`], from another address.
fn stranger_s(port: u16) -> Vec<u8> {
    Packet::new("10.0.0.9".parse().unwrap(), "10.0.0.2".parse().unwrap())
        .macs([2, 0, 0, 0, 0, 9], [0xff; 6])
        .numbers(1000, 0)
        .tcp(port, 80, TcpFlags::SYN, b"")
}

/// A listener with two places, which strangers have, and answers for a hundred SYNs in a period.
fn flooded() -> (SimulatedDevice, Parts, TcpListener) {
    let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let mut config = StackConfig::at("10.0.0.2/24".parse().unwrap());
    config.tcp.syn_cookies_per_s = 2000;
    let mut parts = Parts::assemble(device, &config).unwrap();
    let listener = TcpListener::bind_with_backlog(&parts.stack, SERVER, 2).unwrap();
    listener.set_nonblocking(true).unwrap();
    for port in [1, 2] {
        bring_in(&mut parts, &cable, &stranger_s(port));
    }
    (cable, parts, listener)
}

/// Half of a client's SYNs were lost beside 100,000 a second, as of anybody's, and each cost it a second.
#[test]
fn who_has_ended_a_handshake_is_answered_when_strangers_have_had_all_cookies() {
    let (cable, mut parts, listener) = flooded();
    let discarded = |parts: &Parts| parts.stack.counts()[Outcome::Backlog];
    for port in 5000..5005 {
        answers(&cable);
        bring_in(&mut parts, &cable, &segment(port, TcpFlags::SYN, 1000));
        let answer = answers(&cable);
        assert_eq!(answer.len(), 1, "{port}: {:?}", parts.stack.counts());
        let ack = segment_to(port, TcpFlags::ACK, 1001, answer[0].sequence + 1);
        bring_in(&mut parts, &cable, &ack);
        listener.accept().unwrap();
        let before = discarded(&parts);
        let mut strangers = 1000..;
        while discarded(&parts) == before {
            let port = strangers.next().expect("a port");
            bring_in(&mut parts, &cable, &stranger_s(port));
        }
    }
}

/// They filled it, and what ends a handshake found no room.
#[test]
fn syns_of_strangers_leave_room_in_a_listener_s_channel() {
    let (cable, mut parts, listener) = flooded();
    answers(&cable);
    bring_in(&mut parts, &cable, &segment(5000, TcpFlags::SYN, 1000));
    let cookie = answers(&cable).pop().expect("an answer").sequence;
    // While the TCP thread has no CPU.
    let last = segment_to(5000, TcpFlags::ACK, 1001, cookie + 1);
    let syns = (1000..1300).map(stranger_s);
    for frame in syns.chain([last]) {
        assert!(cable.send(&frame));
        let _ = parts.receiver.turn(true).unwrap();
    }
    for _ in 0..8 {
        parts.tcp.turn(clock::now()).unwrap();
    }
    let counts = parts.stack.counts();
    assert!(counts[Outcome::Full] > 0, "{counts:?}");
    assert!(listener.accept().is_ok(), "{counts:?}");
}
