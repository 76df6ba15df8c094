//! One overloaded channel on two CPUs, by turns and at once: each has tables of its own, and
//! the channel's share is one. Needs root, and two CPUs.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags};
use libbpf_sys::bpf_test_run_opts;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;

use super::test_host::{KERNEL_TICK, UDP_PORT, from, press, unread_server, with_guard};
use super::{SLOT_SOCKETS, types};
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

/// Runs on CPU 0, beside a server whose queue is over its low watermark.
fn with_full_server(test: impl FnOnce(&mut Guard<'_>) + Send) {
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert!(cpus >= 2, "these tests need two CPUs");
    with_guard(|guard| {
        let server = unread_server(200);
        for cpu in [1, 0] {
            run_on(cpu);
            assert!(send(guard, CLIENT), "a calm queue");
        }
        fill(guard, &server, 78);
        press(guard);
        test(guard);
    });
}

#[test]
fn two_cpus_count_exactly_and_find_one_share() {
    with_full_server(|guard| {
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

/// What one CPU sent in its part of a flood.
#[derive(Default)]
struct Sent {
    flood: u64,
    asked: u64,
    answered: u64,
}

/// Frames of the flood in one system call, which takes milliseconds before its first frame.
const BURST: u32 = 50_000;
/// Of each CPU at least.
const QUERIES_MIN: u64 = 10;
/// Between two queries of a CPU: both together ask 100 times a second.
const QUERY_GAP: Duration = Duration::from_millis(20);

/// Floods the channel from one CPU, and asks as a client between the bursts.
fn flood_from(program: BorrowedFd<'_>, cpu: usize, begin: &Barrier) -> Sent {
    run_on(cpu);
    let flood = from(LOUD).udp(4000, UDP_PORT, b"query");
    let query = from(CLIENT).udp(4000, UDP_PORT, b"query");
    let (mut sent, mut next_query) = (Sent::default(), Duration::ZERO);
    begin.wait();
    let begun = Instant::now();
    while begun.elapsed() < FLOODED || sent.asked < QUERIES_MIN {
        let _ = passes(program, &flood, BURST);
        sent.flood += u64::from(BURST);
        if begun.elapsed() >= next_query {
            next_query = begun.elapsed() + QUERY_GAP;
            sent.answered += u64::from(passes(program, &query, 1));
            sent.asked += 1;
        }
    }
    sent
}

/// Runs the program on a frame, on this thread's CPU; whether the last run passes. Other
/// than [`Guard::test_run`], several threads may do so at once.
fn passes(program: BorrowedFd<'_>, frame: &[u8], repeat: u32) -> bool {
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as u64,
        data_in: frame.as_ptr().cast(),
        data_size_in: u32::try_from(frame.len()).unwrap(),
        repeat: repeat.cast_signed(),
        ..Default::default()
    };
    // SAFETY: `frame` is valid for its length, which is given, and read only.
    let failed =
        unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    assert_eq!(failed, 0, "test-run");
    options.retval == libbpf_sys::XDP_PASS
}

/// What the CPUs told the channel's share: admitted packets, and those in profile. With what
/// they have not yet told.
fn told_to_share(guard: &Guard<'_>) -> [u64; 2] {
    let shares = &guard.program.skeleton.maps.fair_shares;
    let share = shares.lookup(&SLOT_SOCKETS.to_ne_bytes(), MapFlags::ANY);
    let share = share.unwrap().unwrap();
    let at = |at: usize| u64::from_ne_bytes(share[at..at + 8].try_into().unwrap());
    let parts = [0, 1].map(|cpu| guard.program.books.part(SLOT_SOCKETS, cpu));
    let sum = |of: fn(&types::channel) -> u32| -> u64 {
        parts.iter().map(|part| u64::from(of(part))).sum()
    };
    [
        at(offset_of!(types::fair_share, admitted)) + sum(|part| part.fair_admitted),
        at(offset_of!(types::fair_share, used)) + sum(|part| part.fair_used),
    ]
}

/// Both CPUs judge packets of the channel all the time: no packet is counted twice or not at
/// all, neither in the sums nor in what the share follows.
#[test]
fn two_cpus_at_once_count_exactly_and_starve_nobody() {
    with_full_server(|guard| {
        let (program, begin) = (guard.program.fd(), Barrier::new(2));
        let sent = std::thread::scope(|scope| {
            [0, 1]
                .map(|cpu| {
                    let begin = &begin;
                    scope.spawn(move || flood_from(program, cpu, begin))
                })
                .map(|cpu| cpu.join().unwrap())
        });
        let judged = sources(guard).unknown.judged;
        let all: u64 = sent.iter().map(|sent| sent.flood + sent.asked).sum();
        assert_eq!(judged.sum(), all, "{judged:?}");
        let [admitted, used] = told_to_share(guard);
        assert_eq!(admitted, judged.admitted, "the share knows of all");
        assert!((1..all).contains(&used), "{used} in profile");
        for (cpu, sent) in sent.iter().enumerate() {
            let lost = sent.asked - sent.answered;
            assert!(
                lost * 10 <= sent.asked + 20,
                "CPU {cpu}: {lost} of {}",
                sent.asked
            );
        }
        assert!(judged.discarded > judged.admitted, "{judged:?}");
    });
}
