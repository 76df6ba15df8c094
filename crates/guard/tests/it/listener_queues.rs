//! Real listeners, whose queues are really filled: new requests are discarded, and nothing else.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{Backlog, listen};
use plimsoll_guard::{Config, Guard, Kind, Outcome, Storage};
use plimsoll_packets::frame::{Packet, TcpFlags};

use crate::common::{HOST_V4, Wire, admits, channel, in_namespace, to_host};

const PEER_PORT: u16 = 4000;

/// A listener with this backlog.
fn listener(port: u16, backlog: i32) -> TcpListener {
    let listener = TcpListener::bind((HOST_V4, port)).unwrap();
    listen(&listener, Backlog::new(backlog).unwrap()).unwrap();
    listener
}

fn syn(port: u16) -> Vec<u8> {
    to_host(HOST_V4).tcp(PEER_PORT, port, TcpFlags::SYN, &[])
}

/// Shows LRP-39.
#[test]
fn a_full_accept_queue_discards_new_requests_only() {
    in_namespace(|| {
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
        let server = listener(80, 4);
        assert!(admits(&mut guard, &syn(80)));

        // The kernel queues one more than the backlog.
        let clients: Vec<TcpStream> = (0..5)
            .map(|_| TcpStream::connect((HOST_V4, 80)).unwrap())
            .collect();
        assert!(!admits(&mut guard, &syn(80)));
        let ack = to_host(HOST_V4).tcp(PEER_PORT, 80, TcpFlags::ACK, &[]);
        assert!(admits(&mut guard, &ack), "an ACK may complete a handshake");
        let established = Packet::new(HOST_V4.into(), HOST_V4.into()).tcp(
            clients[0].local_addr().unwrap().port(),
            80,
            TcpFlags::ACK,
            &[],
        );
        assert!(admits(&mut guard, &established));

        server.accept().unwrap();
        assert!(admits(&mut guard, &syn(80)), "there is room again");

        let counters = guard.counters().unwrap();
        let seen = channel(&counters, Kind::TcpListener, 80);
        assert_eq!(seen.packets.count(Outcome::AcceptQueue), 1);
        assert_eq!(seen.packets.count(Outcome::Admitted), 3);
        assert_eq!(counters.of(Kind::TcpConnection).count(Outcome::Admitted), 1);
    });
}

/// Shows LRP-39.
#[test]
fn a_full_syn_queue_discards_new_requests_and_spares_the_other_listener() {
    in_namespace(|| {
        fs::write("/proc/sys/net/ipv4/tcp_syncookies", "0").unwrap();
        let mut storage = Storage::default();
        let mut guard = Guard::load(&mut storage, &Config::default()).unwrap();
        let _flooded = listener(80, 8);
        let _other = listener(81, 8);
        let wire = Wire::open();
        for port in 0..=8 {
            // Real SYNs whose SYN-ACKs nobody answers. At the backlog the stack decides:
            // some releases have room for one more.
            wire.send(&to_host(HOST_V4).tcp(10_000 + port, 80, TcpFlags::SYN, &[]));
        }
        let frame = syn(80);
        let full = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(10));
            guard.regulate().unwrap();
            !admits(&mut guard, &frame)
        });
        assert!(full, "nine half-open connections fill a backlog of eight");
        assert!(admits(&mut guard, &syn(81)));
        let counters = guard.counters().unwrap();
        assert_eq!(
            channel(&counters, Kind::TcpListener, 80)
                .packets
                .count(Outcome::SynQueue),
            1
        );
        assert_eq!(
            channel(&counters, Kind::TcpListener, 81)
                .packets
                .discarded(),
            0
        );
    });
}
