//! What a CPU saw of a queue while it was flooded says nothing once that is long ago, although
//! all of its packets came to other CPUs since. Needs root.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use plimsoll_guard::{Config, Guard, Storage};
use plimsoll_kernel::namespace;

use crate::common::{HOST_V4, in_namespace, to_host, udp_occupancy, udp_socket};

const PORT: u16 = 5000;
/// Longer than a channel stays pressed after its last discard.
const LONG: Duration = Duration::from_millis(1500);
/// A queue that has taken so many datagrams no more is full.
const REFUSED: u32 = 100;

/// A server that nobody reads, judged by any CPU, and clients that pass no program.
struct Host<'a> {
    guard: Guard<'a>,
    server: UdpSocket,
    client: UdpSocket,
    capacity: u64,
}

impl Host<'_> {
    fn is_admitted_on(&mut self, cpu: usize) -> bool {
        namespace::pin(cpu).unwrap();
        let frame = to_host(HOST_V4).udp(4000, PORT, &[0; 64]);
        self.guard.test_run(&frame, 1).unwrap().0
    }

    /// Until the queue holds this part of its buffer, in percent, or no more.
    fn fill_to(&self, percent: u64) {
        let (mut held, mut refused) = (udp_occupancy(PORT), 0);
        while held < self.capacity * percent / 100 && refused < REFUSED {
            self.client.send_to(&[0; 64], (HOST_V4, PORT)).unwrap();
            let before = held;
            held = udp_occupancy(PORT);
            refused += u32::from(held == before);
        }
    }

    /// Takes all that is queued, and lets a long time pass.
    fn become_calm(&self) {
        while udp_occupancy(PORT) > 0 {
            self.server.recv(&mut [0; 64]).unwrap();
        }
        thread::sleep(LONG);
    }
}

fn with_host(test: impl Fn(&mut Host<'_>) + Send + Sync) {
    let cpus = thread::available_parallelism().unwrap().get();
    assert!(cpus > 1, "this test needs two CPUs");
    let of_its_own = &|fairness| {
        let config = Config {
            fairness,
            ..Config::default()
        };
        in_namespace(|| {
            let mut storage = Storage::default();
            let server = udp_socket((HOST_V4, PORT), 256 << 10);
            let mut host = Host {
                guard: Guard::load(&mut storage, &config).unwrap(),
                capacity: getsockopt(&server, sockopt::RcvBuf).unwrap() as u64,
                server,
                client: UdpSocket::bind((HOST_V4, 0)).unwrap(),
            };
            test(&mut host);
        });
    };
    // At once: most of it is waiting.
    thread::scope(|scope| {
        for fairness in [false, true] {
            scope.spawn(move || of_its_own(fairness));
        }
    });
}

/// A flood that is hashed to one CPU ends, and hours later a burst comes by several.
#[test]
fn a_flood_of_one_cpu_does_not_cut_a_later_burst() {
    with_host(|host| {
        host.is_admitted_on(1);
        host.fill_to(100);
        // A source has credit of its own at first.
        assert!(
            (0..100).any(|_| !host.is_admitted_on(1)),
            "a flood on CPU 1"
        );
        host.become_calm();
        assert!(host.is_admitted_on(0), "the burst begins");
        host.fill_to(60);
        for packet in 0..20 {
            assert!(host.is_admitted_on(1), "packet {packet} of the burst");
        }
    });
}

/// What the socket has dropped since a CPU first saw its queue fill says that it is full. So
/// it does not if that was long ago.
#[test]
fn a_queue_that_began_to_fill_long_ago_is_not_full() {
    with_host(|host| {
        host.fill_to(80);
        assert!(host.is_admitted_on(1), "it has dropped nothing");
        host.fill_to(100);
        host.client.send_to(&[0; 64], (HOST_V4, PORT)).unwrap();
        host.become_calm();
        host.fill_to(80);
        for packet in 0..20 {
            assert!(host.is_admitted_on(1), "packet {packet} of the burst");
        }
    });
}
