//! Threads that share a socket: each datagram finds one that waits. Needs root.

use std::net::UdpSocket as KernelSocket;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use plimsoll_stack::{Stack, UdpSocket};

use crate::lan::{Lan, SOON, config, owned, xdp};

const THREADS: usize = 4;
/// Some are needed until all threads sleep when something comes.
const ROUNDS: usize = 200;

/// With `ni-lrp` a receiving call takes up to 64 frames from the socket's ring. Those beyond the one
/// that it returns waited until it was called again, while other threads slept.
#[test]
fn each_of_several_datagrams_finds_one_of_several_threads() {
    for path in ["soft-lrp", "ni-lrp"] {
        Lan::create(|| {
            let stack = Stack::start(xdp(&owned()), &config(path)).unwrap();
            let socket = UdpSocket::bind(&stack, "10.0.0.2:7").unwrap();
            socket.set_read_timeout(Some(SOON)).unwrap();
            let client = KernelSocket::bind("10.0.0.1:0").unwrap();
            client.connect("10.0.0.2:7").unwrap();
            // The kernel asks for the neighbour first.
            client.send(b"first").unwrap();
            socket.recv_from(&mut [0; 9]).unwrap();
            let (all, missed) = (Barrier::new(THREADS), AtomicBool::new(false));
            let work = || {
                for _ in 0..ROUNDS {
                    if all.wait().is_leader() {
                        (0..THREADS).for_each(|_| assert_eq!(client.send(b"one").unwrap(), 3));
                    }
                    let asked = Instant::now();
                    socket.recv_from(&mut [0; 9]).unwrap();
                    // Its own timeout has it look once more.
                    missed.fetch_or(asked.elapsed() > SOON / 2, Ordering::Relaxed);
                    all.wait();
                    if missed.load(Ordering::Relaxed) {
                        break;
                    }
                }
            };
            thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
            assert!(!missed.into_inner(), "{path}: one slept on");
        });
    }
}
