//! The loss ledger under load: bulk streams that GRO merges, and floods in each of
//! the governor's modes. Whatever is counted in frames and whatever in merged
//! packets, it adds up stage by stage. Needs root.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_guard::ledger::{Fate, Ledger, Stage};
use plimsoll_testbed::{Config, Host, Testbed};

use crate::common::overload::{await_mode, busy_server, flood, flooded, receive_on_test_cpu};
use crate::common::{LIMIT, output, start_with};
use crate::turn;

const FLOODED: u16 = 7000;
const BULK: u16 = 7001;
/// Payload of a datagram.
const DATAGRAM_BYTES: usize = 1000;
/// Datagrams that a sender hands to the kernel as one, few enough for the ring.
const DATAGRAMS: usize = 40;
const SENDS: usize = 250;
const TCP_BYTES: usize = 8 << 20;
/// Of a host that is quiet again.
const QUIET: Duration = Duration::from_millis(50);

fn ledger(host: &Host) -> Ledger {
    let status = output(host, &["status", host.device(), "--json", "--limit", "0"]);
    let mut status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let ledger = serde_json::from_value(status["ledger"].take()).unwrap();
    assert_adds_up(&ledger);
    ledger
}

/// Each stage is in balance, and gets what the one before let go on.
fn assert_adds_up(ledger: &Ledger) {
    for stage in &ledger.stages {
        let places: u64 = stage.places.iter().map(|place| place.packets).sum();
        let rest = stage.in_motion + stage.unaccounted;
        let came = (stage.entered + stage.joined).cast_signed();
        let ended = (places + stage.went_on).cast_signed() + rest;
        assert_eq!(came, ended, "{stage:#?}");
    }
    for pair in ledger.stages.windows(2) {
        assert_eq!(pair[0].went_on, pair[1].entered, "{ledger:#?}");
    }
}

/// The ledger once nothing moves any more.
fn settled(host: &Host) -> Ledger {
    let deadline = Instant::now() + LIMIT;
    let mut before = ledger(host);
    loop {
        thread::sleep(QUIET);
        let now = ledger(host);
        let moves = |stage: &Stage| stage.in_motion != 0;
        if now == before && !now.stages.iter().any(moves) {
            assert_eq!(now.unaccounted, 0, "{now:#?}");
            return now;
        }
        assert!(Instant::now() < deadline, "{now:#?}");
        before = now;
    }
}

fn count(ledger: &Ledger, stage: &str, place: &str) -> u64 {
    ledger.place(stage, place).map_or(0, |place| place.packets)
}

/// Frames that the other end gave to the link, taken or not.
fn given(load: &Host) -> u64 {
    let read = |name: &str| -> u64 {
        let file = format!("/sys/class/net/{}/statistics/{name}", load.device());
        std::fs::read_to_string(file)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    load.run(|| read("tx_packets") + read("tx_dropped"))
        .unwrap()
}

/// Sends a bulk stream by TCP, which takes all it sends.
fn tcp_stream(testbed: &Testbed) {
    let host = testbed.test();
    let bind = || TcpListener::bind((host.ipv4(), BULK)).unwrap();
    let listener = host.run(bind).unwrap();
    let connect = || TcpStream::connect((host.ipv4(), BULK)).unwrap();
    let mut client = testbed.load().run(connect).unwrap();
    let (mut served, _) = listener.accept().unwrap();
    served.set_read_timeout(Some(LIMIT)).unwrap();
    let received = thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            let mut received = 0;
            while let Ok(bytes @ 1..) = served.read(&mut buffer) {
                received += bytes;
            }
            received
        });
        client.write_all(&vec![0; TCP_BYTES]).unwrap();
        drop(client);
        reader.join().unwrap()
    });
    assert_eq!(received, TCP_BYTES);
}

/// Sends datagrams in bulk to a socket, which takes them merged or one by one: a
/// bulk at a time.
fn udp_stream(testbed: &Testbed, takes_merged: bool) {
    let host = testbed.test();
    let bind = || UdpSocket::bind((host.ipv4(), BULK)).unwrap();
    let server = host.run(bind).unwrap();
    setsockopt(&server, sockopt::UdpGroSegment, &takes_merged).unwrap();
    setsockopt(&server, sockopt::RcvBufForce, &(4 << 20)).unwrap();
    server.set_read_timeout(Some(LIMIT)).unwrap();
    let bind = || UdpSocket::bind((testbed.load().ipv4(), 0)).unwrap();
    let client = testbed.load().run(bind).unwrap();
    setsockopt(&client, sockopt::UdpGsoSegment, &(DATAGRAM_BYTES as i32)).unwrap();
    client.connect((host.ipv4(), BULK)).unwrap();
    let (bulk, mut buffer) = (vec![0; DATAGRAMS * DATAGRAM_BYTES], vec![0; 1 << 16]);
    for _ in 0..SENDS {
        client.send(&bulk).unwrap();
        let mut received = 0;
        while received < bulk.len() {
            received += server.recv(&mut buffer).expect("a whole bulk");
        }
    }
}

#[test]
fn bulk_streams_that_gro_merges_add_up_in_frames_and_in_packets() {
    let _turn = turn();
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    receive_on_test_cpu(&testbed);
    let (_guard, _reports) = start_with(host, &[]);
    receive_on_test_cpu(&testbed);
    let before = (settled(host), given(testbed.load()));
    tcp_stream(&testbed);
    udp_stream(&testbed, true);
    let after = (settled(host), given(testbed.load()));

    let new = |count: &dyn Fn(&Ledger) -> u64| count(&after.0) - count(&before.0);
    assert_eq!(new(&|ledger| ledger.stages[0].entered), after.1 - before.1);
    let merged = new(&|ledger| count(ledger, "host", "merged"));
    let admitted = new(&|ledger| ledger.stages[2].entered);
    let packets = new(&|ledger| ledger.stages[3].entered);
    let delivered = new(&|ledger| ledger.packets(Fate::Delivered));
    // Frames become fewer packets, and no other place holds any.
    assert_eq!(admitted, merged + packets);
    assert_eq!(packets, delivered);
    let frames = (TCP_BYTES / 1500 + SENDS * DATAGRAMS) as u64;
    assert!(admitted >= frames, "{admitted}");
    assert!(
        packets * 4 < frames,
        "GRO merges most: {packets} of {frames}"
    );
    let text = output(host, &["status", host.device()]);
    assert!(text.contains(" merged into others), lost "), "{text}");
}

/// A datagram that was merged is counted once by IP, and once each by UDP when it is
/// taken apart again: more than came, and told as such.
#[test]
fn datagrams_taken_apart_again_are_told_as_counted_twice() {
    let _turn = turn();
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    receive_on_test_cpu(&testbed);
    let forwarding = ["-K", host.device(), "rx-udp-gro-forwarding", "on"];
    host.command("ethtool")
        .args(forwarding)
        .output(LIMIT)
        .unwrap();
    let (_guard, _reports) = start_with(host, &[]);
    receive_on_test_cpu(&testbed);
    udp_stream(&testbed, false);
    thread::sleep(QUIET);
    let ledger = ledger(host);
    let merged = count(&ledger, "host", "merged");
    assert!(merged > (SENDS * DATAGRAMS / 2) as u64, "{ledger:#?}");
    assert_eq!(
        ledger.stages[4].unaccounted,
        -merged.cast_signed(),
        "{ledger:#?}"
    );
    assert_eq!(ledger.unaccounted, -merged.cast_signed());
}

/// What the ledger tells in a flood with this strategy, and after it.
fn in_a_flood(strategy: &str) {
    let _turn = turn();
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    receive_on_test_cpu(&testbed);
    let options = ["--interval-ms", "100", "--strategy", strategy];
    let (_guard, mut reports) = start_with(host, &options);
    receive_on_test_cpu(&testbed);
    let _server = busy_server(host, FLOODED);
    let _computing = host.computing().spawn().unwrap();
    let before = settled(host);
    let spec = flood(&testbed, FLOODED..=FLOODED, 1_000_000);
    let (_, sent) = flooded(&testbed, &spec, || {
        let told = await_mode(&mut reports, "overload");
        assert_eq!(told["governor"]["mode"], "overload");
        for _ in 0..5 {
            let ledger = ledger(host);
            assert_eq!(ledger.unaccounted, 0, "{ledger:#?}");
            // Packets on their way are told as such, not as lost.
            assert_eq!(count(&ledger, "adapter", "before_guard"), 0, "{ledger:#?}");
            thread::sleep(QUIET);
        }
    });
    await_mode(&mut reports, "interrupts");
    let after = settled(host);
    let new = |count: &dyn Fn(&Ledger) -> u64| count(&after) - count(&before);
    assert_eq!(new(&|ledger| ledger.stages[0].entered), sent.offered);
    assert_eq!(new(&|ledger| ledger.stages[1].entered), sent.sent);
    let ring = new(&|ledger| count(ledger, "adapter", "receive_ring"));
    assert_eq!(ring, sent.ring_full);
    let discarded = new(&|ledger| ledger.packets(Fate::Discarded));
    assert!(discarded * 2 > sent.sent, "{discarded} of {}", sent.sent);
    let taken = new(&|ledger| ledger.packets(Fate::Delivered) + ledger.packets(Fate::Waiting));
    let late = new(&|ledger| count(ledger, "protocols", "socket_queue"));
    assert_eq!(discarded + taken + late, sent.sent, "{after:#?}");
}

#[test]
fn a_flood_adds_up_while_interrupts_are_held_off_and_after() {
    in_a_flood("holdoff");
}

#[test]
fn a_flood_adds_up_while_a_thread_polls_and_after() {
    in_a_flood("thread");
}
