//! A listener whose places half-open connections have filled, and its SYN cookies.

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_packets::frame::TcpFlags;
use plimsoll_stack::device::{Batch, Device};
use plimsoll_stack::driven::Driven;
use plimsoll_stack::{Outcome, Owner, TcpStream};

use crate::raw_peer::{Peer, SERVER};

/// As long as a listener without answers waits for more of them, and how many there are.
const PERIOD: Duration = Duration::from_millis(50);
const ANSWERS: u64 = 2500;

fn flooded(path: &str) -> Driven {
    let mut driven = Driven::new(path);
    flood(&mut driven);
    driven
}

/// Both places are taken by senders that do not exist.
fn flood(driven: &mut Driven) {
    for port in [1, 2] {
        let mut nobody = Peer::new(port);
        nobody.send(driven, TcpFlags::SYN, &[]);
        assert!(nobody.take(driven)[0].syn);
    }
    assert_eq!(driven.counts()[Outcome::SynCookie], 0);
}

/// A client that was answered with a cookie.
fn answered(driven: &mut Driven, port: u16) -> Peer {
    let mut client = Peer::new(port);
    client.send(driven, TcpFlags::SYN, &[]);
    let answer = client.take(driven);
    assert!(answer.len() == 1 && answer[0].syn, "{answer:?}");
    client
}

fn accept(driven: &Driven) -> TcpStream {
    let (stream, _) = driven.listener.accept().expect("a connection");
    stream.set_nonblocking(true).unwrap();
    stream
}

/// Data both ways, and both ends.
fn talk(driven: &mut Driven, client: &mut Peer, mut stream: TcpStream) {
    for round in 0u8..20 {
        let text = [round; 500];
        let begin = client.expected;
        stream.write_all(&text).unwrap();
        let mut got = client.take(driven);
        // An acknowledgement that was delayed long enough comes before it, alone.
        got.retain(|one| !one.payload.is_empty());
        assert!(got.len() == 1 && got[0].payload == text, "{got:?}");
        assert_eq!(got[0].sequence, begin, "it goes on where the cookie ended");
        client.send(driven, TcpFlags::ACK, &text);
        let mut read = [0; 500];
        stream.read_exact(&mut read).unwrap();
        assert_eq!(read, text);
    }
    client.send(driven, TcpFlags::FIN_ACK, &[]);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    drop(stream);
    let last = client.take(driven);
    assert!(last.iter().all(|one| !one.rst), "{last:?}");
    client.send(driven, TcpFlags::ACK, &[]);
    assert!(client.take(driven).is_empty());
}

fn assert_sums(driven: &mut Driven) {
    driven.settle();
    let counts = driven.counts();
    assert_eq!(counts.received, counts.ended(), "{counts:?}");
}

#[test]
fn whoever_brings_a_cookie_back_is_connected() {
    for path in ["eager", "early-demux", "soft-lrp", "polled"] {
        let mut driven = flooded(path);
        let mut client = answered(&mut driven, 5000);
        client.send(&mut driven, TcpFlags::ACK, &[]);
        let stream = accept(&driven);
        talk(&mut driven, &mut client, stream);
        let counts = driven.counts();
        assert_eq!(
            (counts[Outcome::SynCookie], counts[Outcome::Backlog]),
            (1, 0),
            "{path}"
        );
        assert_sums(&mut driven);
    }
}

/// The bare acknowledgement is not sent again if it is lost; what follows it says the same.
#[test]
fn the_first_data_brings_a_cookie_back_as_well() {
    let mut driven = flooded("soft-lrp");
    let mut client = answered(&mut driven, 5000);
    client.send(&mut driven, TcpFlags::ACK, b"question");
    let mut stream = accept(&driven);
    assert_eq!(stream.read(&mut [0; 9]).unwrap(), 8);
    talk(&mut driven, &mut client, stream);
}

#[test]
fn a_cookie_that_was_made_up_is_reset() {
    let mut driven = flooded("soft-lrp");
    let mut client = answered(&mut driven, 5000);
    let right = (client.sequence, client.expected);
    for (wrong_sequence, wrong_cookie) in [(1, 0), (0, 1), (0, 1 << 24), (0, 1 << 27)] {
        client.sequence = right.0 + wrong_sequence;
        client.expected = right.1.wrapping_add(wrong_cookie);
        client.send(&mut driven, TcpFlags::ACK, &[]);
        let answer = client.take(&mut driven);
        assert!(answer.len() == 1 && answer[0].rst, "{answer:?}");
        assert!(driven.listener.accept().is_err());
    }
    // Another client brings it.
    let mut thief = Peer::new(5001);
    (thief.sequence, thief.expected) = right;
    thief.send(&mut driven, TcpFlags::ACK, &[]);
    assert!(thief.take(&mut driven)[0].rst);
    (client.sequence, client.expected) = right;
    client.send(&mut driven, TcpFlags::ACK, &[]);
    let stream = accept(&driven);
    talk(&mut driven, &mut client, stream);
}

/// The cookie came to the old connection's TIME_WAIT, which reset the new one.
#[test]
fn a_port_that_is_used_again_brings_its_cookie_back_too() {
    let mut driven = Driven::new("soft-lrp");
    let mut client = Peer::new(5000);
    client.send(&mut driven, TcpFlags::SYN, &[]);
    client.take(&mut driven);
    client.send(&mut driven, TcpFlags::ACK, &[]);
    drop(accept(&driven));
    assert!(client.take(&mut driven)[0].fin, "the server closes first");
    client.send(&mut driven, TcpFlags::FIN_ACK, &[]);
    client.take(&mut driven);
    flood(&mut driven);
    for question in [&b""[..], b"question"] {
        let mut again = Peer::new(5000);
        again.sequence = client.sequence + 100_000;
        again.send(&mut driven, TcpFlags::SYN, &[]);
        assert!(again.take(&mut driven)[0].syn);
        again.send(&mut driven, TcpFlags::ACK, question);
        let mut stream = accept(&driven);
        let mut read = vec![0; question.len()];
        stream.read_exact(&mut read).unwrap();
        assert_eq!(read, question);
        again.take(&mut driven);
        talk(&mut driven, &mut again, stream);
        client = again;
    }
    assert_eq!(driven.counts()[Outcome::SynCookie], 2);
}

/// Without a flood nobody looks whether a stray segment holds one.
#[test]
fn nobody_has_a_cookie_of_a_listener_with_room() {
    let mut driven = Driven::new("soft-lrp");
    let mut stray = Peer::new(5000);
    stray.send(&mut driven, TcpFlags::ACK, &[]);
    assert!(stray.take(&mut driven)[0].rst);
    assert_eq!(driven.counts()[Outcome::SynCookie], 0);
}

/// A connection that nobody accepts is no reason for another one.
#[test]
fn connections_that_wait_to_be_accepted_are_bounded_as_before() {
    let mut driven = Driven::new("soft-lrp");
    for port in [5000, 5001] {
        let mut client = answered(&mut driven, port);
        client.send(&mut driven, TcpFlags::ACK, &[]);
    }
    let mut late = Peer::new(5002);
    late.send(&mut driven, TcpFlags::SYN, &[]);
    assert!(
        late.take(&mut driven).is_empty(),
        "both wait for the server"
    );
    let counts = driven.counts();
    assert_eq!(
        (counts[Outcome::SynCookie], counts[Outcome::Backlog]),
        (0, 1)
    );
    // There is room again.
    let _accepted = accept(&driven);
    answered(&mut driven, 5003);
}

/// A listener's channel was as short as a connection's: of clients that came while the TCP thread waited
/// for the CPU, more than 64 asked again a second later.
#[test]
fn clients_that_come_at_once_wait_for_the_tcp_thread() {
    let mut driven = Driven::new("soft-lrp");
    for port in 1000..1200 {
        let client = Peer::new(port);
        driven.cable.send(&client.frame(TcpFlags::SYN, &[]));
        driven.receive();
    }
    driven.work();
    // Two have the places.
    let counts = driven.counts();
    assert_eq!(counts[Outcome::SynCookie], 198, "{counts:?}");
}

/// The rest ends at the demultiplexer.
#[test]
fn a_flood_gets_a_bounded_number_of_answers() {
    const SYNS: u16 = 4000;
    let mut driven = flooded("soft-lrp");
    let before = driven.counts();
    let mut answers = Batch::with_capacity(256);
    let began = Instant::now();
    for port in 1000..1000 + SYNS {
        driven
            .cable
            .send(&Peer::new(port).frame(TcpFlags::SYN, &[]));
        driven.receive();
        driven.work();
        driven.cable.receive(&mut answers, 256).unwrap();
        answers.clear();
    }
    let periods = 1 + (began.elapsed().as_nanos() / PERIOD.as_nanos()) as u64;
    let counts = driven.counts();
    let since = |outcome| counts[outcome] - before[outcome];
    let answered_syns = since(Outcome::SynCookie);
    assert!(answered_syns >= ANSWERS, "{counts:?}");
    assert!(
        answered_syns <= ANSWERS * periods,
        "{counts:?} in {periods}"
    );
    // One in the place of a sender that has been silent for a second.
    let placed = since(Outcome::Delivered);
    assert_eq!(
        answered_syns + since(Outcome::Backlog) + placed,
        u64::from(SYNS)
    );
    assert!(placed <= 2 * (1 + began.elapsed().as_secs()), "{counts:?}");
    // The listener's account has all of them.
    let listener = &driven.charged()[&Owner::TcpListener(SERVER.parse().unwrap())];
    assert_eq!(listener.counts[Outcome::SynCookie], answered_syns);
    thread::sleep(PERIOD);
    driven.work();
    let mut client = answered(&mut driven, 900);
    client.send(&mut driven, TcpFlags::ACK, &[]);
    let stream = accept(&driven);
    talk(&mut driven, &mut client, stream);
    assert_sums(&mut driven);
}
