//! Jumbo frames: a driver hands one over in several pieces, and the program sees the first
//! alone in memory. Real traffic of both protocols and families, calm and beside a flood.
//!
//! With XDP, veth cuts a frame into pieces of a page at most. Without a program that is
//! declared for fragments it would refuse this MTU.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use plimsoll_guard::{Config, Guard, Kind, Storage};

use crate::common::peer::{Job, OtherEnd, run, with_peer};
use crate::common::{HOST_V4, HOST_V6, in_namespace, ip, udp_socket};

const MTU: usize = 9000;
const QUIET: u16 = 5000;
const FLOODED: u16 = 5001;
const BULK: u16 = 5002;
const DATAGRAMS: u32 = 500;
const BULK_BYTES: usize = 16 << 20;

/// Fills a frame of the MTU behind IP and UDP headers.
fn payload(number: u32, to: IpAddr) -> Vec<u8> {
    let headers = if to.is_ipv4() { 28 } else { 48 };
    let mut bytes = vec![number as u8; MTU - headers];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// The quiet server gets each datagram whole and once, in lockstep with its client.
fn converse(peer: &Sender<Job>, host: IpAddr) {
    let server = UdpSocket::bind((host, QUIET)).unwrap();
    let patience = Some(Duration::from_secs(5));
    server.set_read_timeout(patience).unwrap();
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut bytes = vec![0; 2 * MTU];
            for number in 0..DATAGRAMS {
                let (length, from) = server.recv_from(&mut bytes).expect("it arrives");
                assert_eq!(bytes[..length], payload(number, host));
                server.send_to(&bytes[..4], from).unwrap();
            }
        });
        run(peer, move || {
            let client = UdpSocket::bind((unspecified(host), 0)).unwrap();
            client.set_read_timeout(patience).unwrap();
            for number in 0..DATAGRAMS {
                client
                    .send_to(&payload(number, host), (host, QUIET))
                    .unwrap();
                let mut answer = [0; 4];
                client.recv(&mut answer).expect("it is answered");
                assert_eq!(answer, number.to_be_bytes());
            }
        });
        serving.join().unwrap();
    });
}

fn unspecified(like: IpAddr) -> IpAddr {
    if like.is_ipv4() {
        std::net::Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    }
}

/// A bulk transfer arrives byte by byte.
fn transfer(peer: &Sender<Job>, host: IpAddr) {
    let byte = |at: usize| (at / 7) as u8;
    let listener = TcpListener::bind((host, BULK)).unwrap();
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            let mut bytes = Vec::new();
            stream
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            stream.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes.len(), BULK_BYTES);
            assert!(bytes.iter().enumerate().all(|(at, one)| *one == byte(at)));
        });
        run(peer, move || {
            let bytes: Vec<u8> = (0..BULK_BYTES).map(byte).collect();
            let mut stream = TcpStream::connect((host, BULK)).unwrap();
            stream.write_all(&bytes).unwrap();
        });
        receiving.join().unwrap();
    });
}

fn with_jumbo_link(test: impl FnOnce(&Sender<Job>, &mut Guard<'_>) + Send) {
    in_namespace(|| {
        with_peer(OtherEnd::Takes, |peer| {
            run(peer, || ip(&format!("link set v1 mtu {MTU}")));
            let mut storage = Storage::default();
            let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
            ip(&format!("link set v0 mtu {MTU}"));
            test(peer, &mut guard);
            let counters = guard.counters().unwrap();
            let malformed = counters.of(Kind::Malformed).offered();
            let fragments = counters.of(Kind::Fragment).offered();
            assert_eq!((malformed, fragments), (0, 0), "{counters:?}");
        });
    });
}

#[test]
fn jumbo_frames_arrive_whole_on_a_calm_host() {
    with_jumbo_link(|peer, guard| {
        for host in [IpAddr::from(HOST_V4), HOST_V6.into()] {
            converse(peer, host);
            transfer(peer, host);
        }
        let counters = guard.counters().unwrap();
        let datagrams = counters.of(Kind::UdpSocket);
        assert!(datagrams.offered() >= 2 * u64::from(DATAGRAMS));
        assert_eq!(counters.all().discarded(), 0, "{counters:?}");
    });
}

#[test]
fn jumbo_frames_beside_a_flood_of_such_frames_arrive_whole() {
    with_jumbo_link(|peer, guard| {
        for host in [IpAddr::from(HOST_V4), HOST_V6.into()] {
            let _unread = udp_socket((host, FLOODED), 256 << 10);
            let is_over: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
            // It outlives its job: the peer has other jobs meanwhile.
            let flood = run(peer, move || thread::spawn(move || flood(host, is_over)));
            thread::sleep(Duration::from_millis(100));
            converse(peer, host);
            transfer(peer, host);
            is_over.store(true, Ordering::Relaxed);
            let sent = flood.join().unwrap();
            let discarded = guard.counters().unwrap();
            let discarded = discarded.of(Kind::UdpSocket).discarded();
            assert!(discarded * 2 > sent, "{discarded} of {sent}");
        }
    });
}

/// As much as the ring takes beside others: without a pause it loses their packets, too.
fn flood(host: IpAddr, is_over: &AtomicBool) -> u64 {
    let socket = UdpSocket::bind((unspecified(host), 0)).unwrap();
    let to = SocketAddr::new(host, FLOODED);
    let mut sent = 0;
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..32 {
            sent += u64::from(socket.send_to(&payload(7, host), to).is_ok());
        }
        thread::sleep(Duration::from_millis(1));
    }
    sent
}
