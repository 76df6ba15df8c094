//! One overloaded channel on two CPUs: each has tables of its own, and the channel's share
//! is one. Needs root, and two CPUs.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;

use super::SLOT_SOCKETS;
use super::test_host::{KERNEL_TICK, UDP_PORT, from, unread_server, with_guard};
use crate::{Guard, Sources};

const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const LOUD: Ipv4Addr = Ipv4Addr::new(10, 1, 1, 1);
/// Shares are found in epochs of at least 17 ms.
const FLOODED: Duration = Duration::from_millis(600);

fn run_on(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu).unwrap();
    sched_setaffinity(Pid::from_raw(0), &set).unwrap();
}

/// Whether the packet is admitted.
fn send(guard: &mut Guard<'_>, source: Ipv4Addr) -> bool {
    let frame = from(source).udp(4000, UDP_PORT, b"query");
    guard.test_run(&frame, 1).unwrap().0
}

fn sources(guard: &mut Guard<'_>) -> Sources {
    let mut counters = guard.counters().unwrap();
    guard.sources().tell(&mut counters);
    let channel = counters.channels.into_iter().find(|c| c.port == UDP_PORT);
    channel.unwrap().sources.expect("judged by source")
}

/// Gives the server a buffer of which its queue is so many percent.
fn fill(guard: &mut Guard<'_>, server: &UdpSocket, percent: usize) {
    let occupancy = guard.program.books.part(SLOT_SOCKETS, 0).occupancy as usize;
    // The kernel doubles it.
    setsockopt(server, sockopt::RcvBufForce, &(occupancy * 50 / percent)).unwrap();
    std::thread::sleep(KERNEL_TICK);
}

#[test]
fn two_cpus_count_exactly_and_find_one_share() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        eprintln!("skipped: this machine has one CPU");
        return;
    }
    with_guard(|guard| {
        let server = unread_server(200);
        run_on(0);
        assert!(send(guard, CLIENT), "a calm queue");
        fill(guard, &server, 78);
        let mut random = fastrand::Rng::with_seed(2);
        let (mut sent, mut hosts) = (0, BTreeSet::new());
        let mut admitted = [[0_u64; 2]; 2];
        let mut asked = [0_u64; 2];
        let begun = Instant::now();
        let mut next_query = Duration::ZERO;
        while begun.elapsed() < FLOODED {
            let cpu = random.usize(..2);
            run_on(cpu);
            for _ in 0..50 {
                admitted[0][cpu] += u64::from(send(guard, LOUD));
            }
            sent += 50;
            hosts.insert(LOUD);
            // 100 queries a second.
            if begun.elapsed() >= next_query {
                next_query += Duration::from_millis(10);
                admitted[1][cpu] += u64::from(send(guard, CLIENT));
                asked[cpu] += 1;
                sent += 1;
                hosts.insert(CLIENT);
            }
        }
        let told = sources(guard);
        let judged = told.unknown.judged;
        let all: u64 = admitted.iter().flatten().sum();
        assert_eq!((judged.admitted, judged.discarded), (all, sent - all));
        assert_eq!(told.unknown.seen as usize, hosts.len(), "once each");
        for cpu in 0..2 {
            let lost = asked[cpu] - admitted[1][cpu];
            assert!(
                lost * 10 <= asked[cpu] + 20,
                "CPU {cpu}: {lost} of {}",
                asked[cpu]
            );
        }
        assert!(judged.discarded > judged.admitted, "{judged:?}");
    });
}
