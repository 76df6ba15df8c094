//! What a CPU saw of a queue while it was flooded says nothing once that is long ago, although
//! all of its packets came to other CPUs since. Needs root.

mod common;

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use common::{HOST_V4, in_namespace, to_host, udp_occupancy, udp_socket};
use nix::sys::socket::{getsockopt, sockopt};
use plimsoll_guard::{Config, Guard, Storage};
use plimsoll_kernel::namespace;

const PORT: u16 = 5000;
/// Longer than a channel stays pressed after its last discard.
const LONG: Duration = Duration::from_millis(1500);

/// Sends datagrams until the queue holds this part of its buffer, in percent, or no more.
fn fill_to(client: &UdpSocket, capacity: u64, percent: u64) {
    for _ in 0..10_000 {
        if udp_occupancy(PORT) >= capacity * percent / 100 {
            return;
        }
        client.send_to(&[0; 64], (HOST_V4, PORT)).unwrap();
    }
}

/// A flood that is hashed to one CPU ends, and hours later a burst comes by several.
#[test]
fn a_flood_of_one_cpu_does_not_cut_a_later_burst() {
    let cpus = thread::available_parallelism().unwrap().get();
    assert!(cpus > 1, "this test needs two CPUs");
    for fairness in [false, true] {
        let config = Config {
            fairness,
            ..Config::default()
        };
        in_namespace(move || {
            let mut storage = Storage::default();
            let mut guard = Guard::load(&mut storage, &config).unwrap();
            let server = udp_socket((HOST_V4, PORT), 256 << 10);
            let capacity = getsockopt(&server, sockopt::RcvBuf).unwrap() as u64;
            let client = UdpSocket::bind((HOST_V4, 0)).unwrap();
            let frame = to_host(HOST_V4).udp(4000, PORT, &[0; 64]);
            let mut is_admitted_on = |cpu| {
                namespace::pin(cpu).unwrap();
                guard.test_run(&frame, 1).unwrap().0
            };
            is_admitted_on(1);
            fill_to(&client, capacity, 100);
            // A source has credit of its own at first.
            assert!((0..100).any(|_| !is_admitted_on(1)), "a flood on CPU 1");
            while udp_occupancy(PORT) > 0 {
                server.recv(&mut [0; 64]).unwrap();
            }
            thread::sleep(LONG);
            assert!(is_admitted_on(0), "the burst begins");
            fill_to(&client, capacity, 60);
            for packet in 0..20 {
                assert!(is_admitted_on(1), "packet {packet} of the burst");
            }
        });
    }
}
