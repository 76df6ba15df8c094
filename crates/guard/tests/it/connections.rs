//! A TCP connection gets what it takes, and a flood of its addresses and ports no more than
//! that. The peer is made by hand, so that it can do what no honest one does. Needs root.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;
use plimsoll_guard::{Config, Guard, Kind, Outcome, Storage};
use plimsoll_kernel::counters;
use plimsoll_packets::frame::{Packet, TcpFlags};
use plimsoll_tries::repeated;

use crate::common::connection::{Connection, GIB, PEER_PORT, PORT};
use crate::common::peer::{Job, OtherEnd, run, with_peer};
use crate::common::{
    HOST_MAC, HOST_V4, PEER_MAC, PEER_V4, in_namespace, ip, let_a_tick_pass, to_host,
};

/// What a driver's poll brings: so many segments outside of the window may pass in a tick.
const OUTSIDE: u64 = 64;

fn guarded(test: impl FnOnce(&mut Guard<'_>) + Send) {
    in_namespace(|| {
        let mut storage = Storage::default();
        test(&mut Guard::attach(&mut storage, &Config::default(), "v0").unwrap());
    });
}

/// Admitted and discarded packets of connections so far.
fn counted(guard: &mut Guard<'_>) -> (u64, u64) {
    let packets = *guard.counters().unwrap().of(Kind::TcpConnection);
    let (admitted, full) = (
        packets.count(Outcome::Admitted),
        packets.count(Outcome::SocketQueue),
    );
    assert_eq!(packets.offered(), admitted + full, "{packets:?}");
    (admitted, full)
}

/// What became of so many packets, and in how many ticks at most.
fn judged(guard: &mut Guard<'_>, offer: impl FnOnce(&mut Guard<'_>)) -> (u64, u64, u64) {
    let start = Instant::now();
    let before = counted(guard);
    offer(guard);
    let after = counted(guard);
    let ticks = u64::try_from(start.elapsed().as_nanos()).unwrap() / (1 << 22) + 2;
    (after.0 - before.0, after.1 - before.1, ticks)
}

/// What no honest peer sends: nothing of it is in the window.
fn outside(connection: &Connection) -> Vec<(&'static str, Vec<u8>)> {
    let segment = |from_next, flags, payload: &[u8]| connection.segment(from_next, flags, payload);
    vec![
        ("data beyond", segment(GIB, TcpFlags::ACK, &[0; 100])),
        ("data behind", segment(3 * GIB, TcpFlags::ACK, &[0; 100])),
        ("an ACK beyond", segment(GIB, TcpFlags::ACK, &[])),
        ("an ACK behind", segment(3 * GIB, TcpFlags::ACK, &[])),
        ("a SYN", segment(GIB, TcpFlags::SYN, &[])),
        ("a SYN and ACK", segment(3 * GIB, TcpFlags::SYN_ACK, &[])),
        ("a FIN", segment(GIB, TcpFlags::FIN_ACK, &[])),
        ("a RST", segment(3 * GIB, TcpFlags::RST, &[])),
    ]
}

/// What the stack has a use for, however often it comes.
fn useful(connection: &Connection) -> Vec<(&'static str, Vec<u8>)> {
    let segment = |from_next, flags, payload: &[u8]| connection.segment(from_next, flags, payload);
    let before = |bytes: u32| bytes.wrapping_neg();
    vec![
        ("an ACK", segment(0, TcpFlags::ACK, &[])),
        ("data", segment(0, TcpFlags::ACK, &[0; 100])),
        ("data after a gap", segment(2000, TcpFlags::ACK, &[0; 100])),
        ("a probe", segment(before(1), TcpFlags::ACK, &[])),
        ("a probe's byte", segment(before(1), TcpFlags::ACK, &[0])),
        ("a copy", segment(before(100), TcpFlags::ACK, &[0; 100])),
        (
            "a late copy",
            segment(before(60_000), TcpFlags::ACK, &[0; 100]),
        ),
        ("an old ACK", segment(before(60_000), TcpFlags::ACK, &[])),
        ("the end", segment(0, TcpFlags::FIN_ACK, &[])),
        ("a reset", segment(0, TcpFlags::RST, &[])),
        ("an old SYN", segment(before(1), TcpFlags::SYN, &[])),
    ]
}

const RUNS: u32 = 20_000;

#[test]
fn few_segments_outside_of_the_window_pass_and_all_that_are_of_use() {
    guarded(|guard| {
        let connection = Connection::open(None);
        for (name, frame) in outside(&connection) {
            let (admitted, full, ticks) = judged(guard, |guard| {
                guard.test_run(&frame, RUNS).unwrap();
            });
            assert!(admitted <= OUTSIDE * ticks, "{name}: {admitted} in {ticks}");
            assert_eq!(admitted + full, u64::from(RUNS), "{name}");
            // An honest peer that is lost learns where the window is.
            thread::sleep(Duration::from_millis(20));
            let (admitted, full, _) = judged(guard, |guard| {
                guard.test_run(&frame, 60).unwrap();
            });
            assert_eq!((admitted, full), (60, 0), "{name}");
        }
        for (name, frame) in useful(&connection) {
            let (admitted, full, _) = judged(guard, |guard| {
                guard.test_run(&frame, RUNS).unwrap();
            });
            assert_eq!((admitted, full), (u64::from(RUNS), 0), "{name}");
        }
    });
}

/// One of 256 others has its cap together with it, by a hash that nobody foresees: two of three
/// have none in all but one of 20,000 runs.
#[test]
fn what_is_outside_of_one_window_takes_nothing_from_another_connection() {
    const ROUNDS: u32 = 100;
    guarded(|guard| {
        let ports = [0, 1, 2, 3].map(|number| PEER_PORT + number);
        let connections = ports.map(|port| Connection::from(port, None));
        let segments = connections.each_ref();
        let segments = segments.map(|one| one.segment(GIB, TcpFlags::ACK, &[0; 100]));
        let [flood, lost @ ..] = segments;
        let mut refused = [0; 3];
        let (admitted, full, ticks) = judged(guard, |guard| {
            for _ in 0..ROUNDS {
                guard.test_run(&flood, RUNS / ROUNDS).unwrap();
                for (frame, refused) in lost.iter().zip(&mut refused) {
                    *refused += u32::from(!guard.test_run(frame, 1).unwrap().0);
                }
                thread::sleep(Duration::from_micros(100));
            }
        });
        let unharmed = refused.iter().filter(|refused| **refused == 0);
        assert!(unharmed.count() >= 2, "{refused:?}");
        let offered_by_others = u64::from(ROUNDS * 3);
        assert!(admitted <= OUTSIDE * ticks + offered_by_others);
        assert_eq!(admitted + full, u64::from(RUNS) + offered_by_others);
    });
}

/// The same, although its other segments are in the window it had a moment ago.
#[test]
fn segments_outside_of_the_window_do_not_pass_among_others() {
    guarded(|guard| {
        let connection = Connection::open(None);
        let data = connection.segment(0, TcpFlags::ACK, &[0; 100]);
        for (name, frame) in outside(&connection) {
            const ROUNDS: u32 = 2000;
            let (admitted, full, ticks) = judged(guard, |guard| {
                for _ in 0..ROUNDS {
                    assert!(guard.test_run(&data, 1).unwrap().0, "{name}");
                    guard.test_run(&frame, 10).unwrap();
                }
            });
            let passed = admitted - u64::from(ROUNDS);
            assert!(passed <= OUTSIDE * ticks, "{name}: {passed} in {ticks}");
            assert_eq!(admitted + full, u64::from(ROUNDS) * 11, "{name}");
        }
    });
}

/// Who the next segment is from, and where to, is looked at for each: few are this
/// connection's.
#[test]
fn what_a_connection_may_is_its_own_alone() {
    const OTHER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 9);
    in_namespace(|| {
        ip(&format!("address add {OTHER}/24 dev v0"));
        let mut storage = Storage::default();
        let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
        let connection = Connection::open(None);
        let data = connection.segment(0, TcpFlags::ACK, &[]);
        let (sequence, ack) = connection.numbers();
        let others = (1..=1000).flat_map(|other| {
            let source = Ipv4Addr::from(u32::from(PEER_V4) + 256 + u32::from(other));
            let segment = |source: Ipv4Addr, from, to| {
                let packet = Packet::new(source.into(), HOST_V4.into());
                let packet = packet.macs(PEER_MAC, HOST_MAC).numbers(sequence, ack);
                packet.tcp(from, to, TcpFlags::ACK, &[])
            };
            [
                segment(source, PEER_PORT, PORT),
                segment(PEER_V4, PEER_PORT + other, PORT),
                segment(PEER_V4, PEER_PORT, PORT + other),
            ]
        });
        let packet = to_host(OTHER).numbers(sequence, ack);
        let elsewhere = packet.tcp(PEER_PORT, PORT, TcpFlags::ACK, &[]);
        for other in others.chain([elsewhere]) {
            let before = counted(&mut guard).0;
            guard.test_run(&data, 1).unwrap();
            guard.test_run(&other, 1).unwrap();
            assert_eq!(counted(&mut guard).0 - before, 1);
        }
    });
}

/// It is looked up again after so many segments, and in the next tick of the kernel.
#[test]
fn a_connection_that_has_ended_is_soon_forgotten() {
    const KNOWN: u64 = 32;
    guarded(|guard| {
        let stale: Vec<u64> = (0..50)
            .map(|round| {
                let connection = Connection::from(PEER_PORT + round, None);
                let data = connection.segment(0, TcpFlags::ACK, &[]);
                guard.test_run(&data, 1).unwrap();
                let _peer = connection.reset();
                let (admitted, full, _) = judged(guard, |guard| {
                    guard.test_run(&data, RUNS).unwrap();
                });
                assert_eq!(full, 0);
                admitted
            })
            .collect();
        assert!(stale.iter().all(|segments| *segments <= KNOWN), "{stale:?}");
        assert!(stale.contains(&KNOWN), "{stale:?}");

        let connection = Connection::open(None);
        let data = connection.segment(0, TcpFlags::ACK, &[]);
        guard.test_run(&data, 1).unwrap();
        let _peer = connection.reset();
        let_a_tick_pass();
        let (admitted, full, _) = judged(guard, |guard| {
            guard.test_run(&data, RUNS).unwrap();
        });
        assert_eq!((admitted, full), (0, 0));
    });
}

/// Sends until many were discarded, however seldom this machine has the time for a flood.
fn flood(guard: &mut Guard<'_>, mut send: impl FnMut()) -> (u64, u64, u64) {
    judged(guard, |guard| {
        let end = Instant::now() + Duration::from_secs(60);
        let before = counted(guard).1;
        while counted(guard).1 < before + 1000 {
            assert!(Instant::now() < end, "{:?}", counted(guard));
            (0..1000).for_each(|_| send());
        }
    })
}

#[test]
fn a_flood_of_a_connection_is_held_to_what_may_be_answered_and_harms_nobody() {
    guarded(|guard| {
        let mut connection = Connection::open(None);
        connection.deliver(b"before");
        for (name, frame) in outside(&connection) {
            let (admitted, _, ticks) = flood(guard, || connection.wire.send(&frame));
            assert!(admitted <= OUTSIDE * ticks, "{name}: {admitted} in {ticks}");
            connection.deliver(name.as_bytes());
        }
    });
}

/// Probes of a closed window, which end at `edge`, are answered; more than a probe is outside.
fn offer_at_edge(guard: &mut Guard<'_>, connection: &Connection, edge: u32) {
    let probes = [
        connection.segment(edge, TcpFlags::ACK, &[]),
        connection.segment(edge, TcpFlags::ACK, &[0]),
        connection.segment(edge.wrapping_sub(1), TcpFlags::ACK, &[]),
        connection.segment(edge, TcpFlags::FIN_ACK, &[]),
        connection.segment(edge, TcpFlags::FIN_ACK, &[0]),
        connection.segment(edge, TcpFlags::RST, &[]),
    ];
    for frame in probes {
        let (admitted, full, _) = judged(guard, |guard| {
            guard.test_run(&frame, RUNS).unwrap();
        });
        assert_eq!((admitted, full), (u64::from(RUNS), 0));
    }
    for data in [
        connection.segment(edge, TcpFlags::ACK, &[0; 3]),
        // An end is a number more.
        connection.segment(edge, TcpFlags::FIN_ACK, &[0; 2]),
    ] {
        let (admitted, _, ticks) = judged(guard, |guard| {
            guard.test_run(&data, RUNS).unwrap();
        });
        assert!(admitted <= OUTSIDE * ticks, "{admitted} in {ticks}");
    }
}

/// Sends on and on, as if the window were not closed: the reader has stopped.
#[test]
fn what_comes_to_a_closed_window_is_discarded_and_the_stream_is_whole() {
    const SEGMENT: usize = 500;
    guarded(|guard| {
        let mut connection = Connection::open(Some(32 << 10));
        let text = |position: usize| (position / SEGMENT) as u8;
        let send = |connection: &Connection, position: usize| {
            let from_next = u32::try_from(position).unwrap();
            let payload = [text(position); SEGMENT];
            connection
                .wire
                .send(&connection.segment(from_next, TcpFlags::ACK, &payload));
        };
        let mut number = 0;
        let (admitted, _, ticks) = flood(guard, || {
            send(&connection, number * SEGMENT);
            number += 1;
        });
        let taken = 64 * 1024 / SEGMENT as u64;
        assert!(admitted <= OUTSIDE * ticks + taken, "{admitted} in {ticks}");

        // Probes of the closed window are answered, and so is its end.
        connection.stream.set_nonblocking(true).unwrap();
        let mut peeked = vec![0; 1 << 20];
        let edge = connection.window_end();
        let taken = connection.stream.peek(&mut peeked).unwrap();
        assert!(edge >= u32::try_from(taken).unwrap(), "{edge}, {taken}");
        offer_at_edge(guard, &connection, edge);

        // The reader goes on, and the peer sends again what was not taken.
        let mut position = 0;
        let end = Instant::now() + Duration::from_secs(20);
        while position < 400 * SEGMENT {
            assert!(Instant::now() < end, "{position}");
            match connection.stream.read(&mut peeked) {
                Ok(bytes) => {
                    for (byte, number) in peeked[..bytes].iter().zip(position..) {
                        assert_eq!(*byte, text(number), "{number}");
                    }
                    position += bytes;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    send(&connection, position / SEGMENT * SEGMENT);
                }
            }
        }
    });
}

/// Looks at all that has come, again and again, without taking it: nearly all the time the
/// process is in a system call on the connection. Not on the CPU of the test.
fn peek_without_end(stream: &TcpStream, cpu: usize, stop: &AtomicBool) {
    let mut others = CpuSet::new();
    (0..CpuSet::count()).for_each(|other| others.set(other).unwrap());
    others.unset(cpu).unwrap();
    sched_setaffinity(Pid::from_raw(0), &others).expect("two CPUs");
    let mut bytes = vec![0; 16 << 20];
    while !stop.load(Ordering::Relaxed) {
        stream.peek(&mut bytes).unwrap();
    }
}

/// Says so also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Segments of use wait in the backlog while the connection is busy, and its buffer is full
/// already: the stack throws away what is above the limit.
#[test]
fn what_a_busy_connection_s_backlog_does_not_hold_is_discarded() {
    const BYTES: u32 = 5000;
    guarded(|guard| {
        let connection = Connection::open(Some(32 << 20));
        for from_next in 0..BYTES {
            // A byte each, which takes most of the buffer's memory.
            let frame = connection.segment(from_next, TcpFlags::ACK, &[0]);
            connection.wire.send(&frame);
        }
        let ack = connection.segment(BYTES, TcpFlags::ACK, &[]);
        let run = |guard: &mut Guard<'_>| {
            let (admitted, full, _) = judged(guard, |guard| {
                guard.test_run(&ack, RUNS).unwrap();
            });
            assert_eq!(admitted + full, u64::from(RUNS));
            full
        };
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop = Stop(&stop);
            let cpu = sched_getcpu().unwrap();
            let (stream, stop) = (&connection.stream, &stop);
            scope.spawn(move || peek_without_end(stream, cpu, stop));
            let end = Instant::now() + Duration::from_secs(1);
            while Instant::now() < end {
                assert_eq!(run(guard), 0, "there is room");
            }
            setsockopt(&connection.stream, sockopt::RcvBuf, &1).unwrap();
            setsockopt(&connection.stream, sockopt::SndBuf, &1).unwrap();
            let end = Instant::now() + Duration::from_secs(20);
            while run(guard) == 0 {
                assert!(Instant::now() < end, "the backlog is full");
            }
        });
        assert_eq!(run(guard), 0, "nobody is in a system call");
    });
}

const BULK: usize = 1 << 20;

/// Reads slowly, by little; what it read.
fn read_slowly(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::with_capacity(BULK);
    let mut part = [0; 8 << 10];
    loop {
        match stream.read(&mut part).unwrap() {
            0 => return all,
            bytes => all.extend(&part[..bytes]),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn bulk() -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(13);
    std::iter::repeat_with(|| random.u8(..))
        .take(BULK)
        .collect()
}

fn retransmitted() -> u64 {
    counters::stack::read()["Tcp.RetransSegs"]
}

/// A transfer to a slow reader with a small buffer; segments that were sent again.
fn transfer(peer: &Sender<Job>) -> u64 {
    let listener = TcpListener::bind((HOST_V4, PORT)).unwrap();
    setsockopt(&listener, sockopt::RcvBuf, &(8 << 10)).unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (stream, from) = listener.accept().unwrap();
            assert_eq!(from.ip(), PEER_V4);
            read_slowly(stream)
        });
        let again = run(peer, || {
            let before = retransmitted();
            let mut stream = TcpStream::connect(SocketAddr::from((HOST_V4, PORT))).unwrap();
            stream.write_all(&bulk()).unwrap();
            drop(stream);
            move || retransmitted() - before
        });
        assert!(reader.join().unwrap() == bulk(), "byte for byte");
        run(peer, again)
    })
}

/// The guard discards nothing of it, ever. A busy machine makes either sender send again
/// what was not lost, so among some pairs is one with nothing of that due to the guard.
#[test]
fn a_transfer_to_a_slow_reader_is_the_same_with_the_guard_and_without() {
    in_namespace(|| {
        with_peer(OtherEnd::Takes, |peer| {
            let mut seen = Vec::new();
            let is_same = repeated(8, || {
                let without = transfer(peer);
                let mut storage = Storage::default();
                let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
                let with = transfer(peer);
                let (admitted, full) = counted(&mut guard);
                assert!(admitted > 100, "{admitted}");
                assert_eq!(full, 0, "{admitted}");
                seen.push((with, without));
                with <= without
            });
            assert!(is_same, "sent again (with, without): {seen:?}");
        });
    });
}

/// A known limit: whoever knows the window can repeat what is in it. Only shedding bounds it.
#[test]
fn what_repeats_inside_of_the_window_all_passes_while_nothing_is_shed() {
    guarded(|guard| {
        let connection = Connection::open(None);
        let copy = 100_u32.wrapping_neg();
        for (from_next, payload) in [(0, &[][..]), (copy, &[0; 100]), (2000, &[0; 100])] {
            let frame = connection.segment(from_next, TcpFlags::ACK, payload);
            let before = counted(guard);
            guard.test_run(&frame, 1000).unwrap();
            let after = counted(guard);
            assert_eq!(
                (after.0 - before.0, after.1),
                (1000, before.1),
                "{from_next}"
            );
        }
    });
}
