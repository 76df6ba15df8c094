//! What channels, holdoff control and the driver's decisions cost.
//!
//! Goals: `goals.toml`. Where two threads take part they are pinned to CPUs 0
//! and 1, and every peer runs in the same harness: the producer offers as fast
//! as it can, the consumer takes as fast as it can, and whoever finds the queue
//! full or empty pauses before it tries again. With a single CPU they share it.

mod common;

use std::collections::{HashMap, VecDeque};
use std::hint::{black_box, spin_loop};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::unistd::Pid;
use plimsoll_core::channel::{Admission, ChannelConfig, channel};
use plimsoll_core::driver::{
    DescriptorRing, DeviceDescriptor, LazyWatchdog, Leave, NetidTable, PredictionConfig,
    ProtectedSection, ReceiveModes, ReceivePrediction, RingConfig, Routine, TransmitConfig,
    TransmitSlots, WatchdogConfig,
};
use plimsoll_core::holdoff::{
    BufferCredit, BufferLedger, CreditConfig, HoldoffConfig, LoadTarget, Turn, TurnDrops,
};
use plimsoll_core::time::Instant;

/// Places in every queue that is compared.
const CAPACITY: u32 = 1024;
/// Packets that the demultiplexer takes from the adapter at a time: the weight
/// of Linux's NAPI polling (`net.core.dev_weight`).
const BURST: u64 = 64;
/// Pauses of a thread that found the queue full or empty: one that looked again
/// at once would measure how fast two CPUs can pull a cache line to and fro.
const WAIT_SPINS: u32 = 64;
const NOW: Instant = Instant::ZERO;

/// Pins the calling thread; where that CPU does not exist it stays where it is.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    if set.set(cpu).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// Time to hand `items` items from a thread on CPU 0 to one on CPU 1. `offer`
/// and `take` say whether they succeeded.
fn hand_over(
    items: u64,
    mut offer: impl FnMut(u64) -> bool + Send,
    mut take: impl FnMut() -> bool + Send,
) -> Duration {
    let spin = thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
    let wait = || {
        if spin {
            (0..WAIT_SPINS).for_each(|_| spin_loop());
        } else {
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        let taking = scope.spawn(move || {
            pin(1);
            for _ in 0..items {
                while !take() {
                    wait();
                }
            }
        });
        let offering = scope.spawn(move || {
            pin(0);
            let start = std::time::Instant::now();
            for item in 0..items {
                while !offer(item) {
                    wait();
                }
            }
            taking.join().expect("the consumer takes all there is");
            start.elapsed()
        });
        offering.join().expect("the producer offers all there is")
    })
}

fn push_and_pop_across_threads(c: &mut Criterion) {
    const NAME: &str = "push_and_pop_across_threads";
    let mut group = c.benchmark_group("channel");
    group.bench_function(NAME, |b| {
        b.iter_custom(|items| {
            let (mut producer, mut consumer) =
                channel(&ChannelConfig::drop_tail(CAPACITY)).expect("the config is valid");
            hand_over(
                items,
                move |item| {
                    let queued = matches!(producer.push(item, NOW), Admission::Queued);
                    if !queued || item % BURST == 0 {
                        black_box(producer.interrupt_due());
                    }
                    queued
                },
                move || black_box(consumer.pop(NOW)).is_some(),
            )
        });
    });
    group.bench_function(BenchmarkId::new(NAME, "crossbeam ArrayQueue"), |b| {
        b.iter_custom(|items| {
            let queue = Arc::new(ArrayQueue::new(CAPACITY as usize));
            let taking = queue.clone();
            hand_over(
                items,
                move |item| queue.push((item, NOW)).is_ok(),
                move || black_box(taking.pop()).is_some(),
            )
        });
    });
    group.bench_function(BenchmarkId::new(NAME, "plain rtrb"), |b| {
        b.iter_custom(|items| {
            let (mut producer, mut consumer) = rtrb::RingBuffer::new(CAPACITY as usize);
            hand_over(
                items,
                move |item| producer.push((item, NOW)).is_ok(),
                move || black_box(consumer.pop()).is_ok(),
            )
        });
    });
    group.finish();
}

fn channel_on_one_thread(c: &mut Criterion) {
    let mut group = c.benchmark_group("channel");
    group.bench_function("push_and_pop_on_one_thread", |b| {
        let (mut producer, mut consumer) =
            channel(&ChannelConfig::drop_tail(CAPACITY)).expect("the config is valid");
        b.iter(|| {
            let _ = black_box(producer.push(black_box(1_u64), NOW));
            black_box(consumer.pop(NOW))
        });
    });
    group.bench_function("interrupt_due", |b| {
        let (mut producer, _consumer) =
            channel::<u64>(&ChannelConfig::drop_tail(1)).expect("the config is valid");
        b.iter(|| black_box(&mut producer).interrupt_due());
    });
    group.bench_function("discard_early", |b| {
        let (mut producer, _consumer) =
            channel(&ChannelConfig::drop_tail(1)).expect("the config is valid");
        let _ = producer.push(0_u64, NOW);
        b.iter(|| matches!(producer.push(black_box(1), NOW), Admission::Queued));
    });
    group.finish();
}

fn holdoff(c: &mut Criterion) {
    let mut group = c.benchmark_group("holdoff");
    group.bench_function("next_holdoff", |b| {
        let mut target = LoadTarget::new(&HoldoffConfig::default()).expect("the config is valid");
        let mut now = NOW;
        let mut inside = 10_000;
        b.iter(|| {
            let entered = now + Duration::from_micros(100);
            inside = (inside * 7 + 1) % 40_000;
            now = entered + Duration::from_nanos(inside);
            target.on_turn(black_box(Turn {
                entered,
                returned: now,
            }))
        });
    });
    group.bench_function("credit_and_buffers_of_a_turn", |b| {
        let mut credit = BufferCredit::new(&CreditConfig::default()).expect("the config is valid");
        let mut ledger = BufferLedger::new(256);
        let mut dropped = 0;
        b.iter(|| {
            dropped = (dropped + 1) % 9;
            let _ = black_box(&mut ledger).take();
            ledger.end_turn(credit.on_turn(black_box(TurnDrops {
                packets: 100,
                dropped,
                cpu_was_idle: false,
            })))
        });
    });
    group.finish();
}

fn transmit_decisions(c: &mut Criterion) {
    let mut group = c.benchmark_group("driver");
    group.bench_function("watchdog_of_a_frame", |b| {
        let mut watchdog =
            LazyWatchdog::new(&WatchdogConfig::default()).expect("the config is valid");
        let mut now = NOW;
        b.iter(|| {
            now += Duration::from_micros(1);
            let start = black_box(&mut watchdog).on_transmit(now);
            (start, watchdog.on_completion(1, now))
        });
    });
    // Without laziness: a timer is started with each frame and stopped with its completion.
    group.bench_function(
        BenchmarkId::new("watchdog_of_a_frame", "a kernel timer"),
        |b| {
            let timer =
                TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::empty()).expect("a timer");
            let nominal = Expiration::OneShot(WatchdogConfig::default().nominal.into());
            b.iter(|| {
                timer
                    .set(nominal, TimerSetTimeFlags::empty())
                    .expect("it starts");
                timer.unset().expect("it stops");
            });
        },
    );
    group.bench_function("protected_section", |b| {
        let section = ProtectedSection::new();
        b.iter(|| match black_box(&section).try_enter() {
            Some(inside) => matches!(inside.leave(), Leave::Left),
            None => false,
        });
    });
    group.bench_function(BenchmarkId::new("protected_section", "std Mutex"), |b| {
        let lock = Mutex::new(0_u32);
        b.iter(|| drop(black_box(&lock).lock()));
    });
    group.bench_function("transmit_slot", |b| {
        let mut slots = slots();
        b.iter(|| (black_box(&mut slots).claim_queued(), slots.on_completion(1)));
    });
    group.bench_function("tiny_message", |b| {
        let mut slots = slots();
        b.iter(|| (black_box(&mut slots).claim_urgent(), slots.on_completion(1)));
    });
    // Without a way around it: through the high-level queue, even if nothing is in it.
    group.bench_function(BenchmarkId::new("tiny_message", "through the queue"), |b| {
        let (mut slots, queue) = (slots(), Mutex::new(VecDeque::with_capacity(64)));
        b.iter(|| {
            let mut queue = queue.lock().expect("nobody else has it");
            black_box(&mut *queue).push_back(60_u32);
            let claimed = black_box(&mut slots).claim_queued();
            (claimed, queue.pop_front(), slots.on_completion(1))
        });
    });
    group.finish();
}

fn slots() -> TransmitSlots {
    TransmitSlots::new(&TransmitConfig {
        slots: 64,
        reserved: 1,
        buffer_bytes: 1514,
        urgent_bytes: 60,
    })
    .expect("the config is valid")
}

/// Frames to this host alone, with the routine for these, and with all checks for each.
fn receive_routine(c: &mut Criterion) {
    const NAME: &str = "receive_routine";
    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    let packets = vec![OWN; 4096];
    let (groups, watchers): (Vec<[u8; 6]>, Vec<u32>) = (Vec::new(), Vec::new());
    let in_group = |to: &[u8; 6]| to[0] & 1 == 1 && black_box(&groups).contains(to);
    let watched = || black_box(&watchers).len();
    let mut group = c.benchmark_group("driver");
    group.throughput(Throughput::Elements(4096));
    group.bench_function(NAME, |b| {
        let routine = ReceiveModes::new().routine();
        b.iter(|| {
            for to in &packets {
                let to = black_box(to);
                black_box(match black_box(routine) {
                    Routine::Common => (*to == OWN, 0),
                    Routine::Multicast => (*to == OWN || in_group(to), 0),
                    Routine::Promiscuous => (*to == OWN || in_group(to), watched()),
                });
            }
        });
    });
    group.bench_function(BenchmarkId::new(NAME, "all checks"), |b| {
        b.iter(|| {
            for to in &packets {
                let to = black_box(to);
                black_box((in_group(to) || *to == OWN, watched()));
            }
        });
    });
    group.finish();
}

fn receive_decisions(c: &mut Criterion) {
    let mut group = c.benchmark_group("driver");
    group.bench_function("descriptor_round", |b| {
        let mut ring = DescriptorRing::new(&RingConfig {
            descriptors: 256,
            buffer_bytes: 1514,
            bus_address: 0x1000_0000,
            card_offset: 0,
            descriptor_bytes: 16,
        })
        .expect("the config is valid");
        b.iter(|| {
            let (_, written) = black_box(&mut ring).give(1514).expect("all are free");
            let read = black_box(DeviceDescriptor {
                status: 0,
                ..written
            });
            let completion = ring.complete(read).expect("the device is honest");
            ring.release(completion.expect("it has finished"));
        });
    });
    group.bench_function("receive_prediction", |b| {
        let mut prediction = ReceivePrediction::new(&PredictionConfig {
            gain: Duration::from_nanos(50),
            loss: Duration::from_nanos(10),
        })
        .expect("the config is valid");
        let mut client = 0_u32;
        b.iter(|| {
            client = (client * 5 + 1) % 7;
            prediction.on_request(3);
            let predicted = black_box(&mut prediction).prediction();
            prediction.on_packet(client);
            predicted
        });
    });
    group.finish();
}

/// Runs of IP with single ARP packets between them; the peers are the plain
/// searches that a driver would do instead.
fn netid(c: &mut Criterion) {
    const NAME: &str = "client_of_a_netid";
    const BOUND: [u16; 8] = [
        0x8137, 0x86DD, 0x8035, 0x809B, 0x80F3, 0x6003, 0x0806, 0x0800,
    ];
    let packets: Vec<u16> = (0..4096_u32)
        .map(|k| if k % 20 == 19 { 0x0806 } else { 0x0800 })
        .collect();
    let mut group = c.benchmark_group("driver");
    group.throughput(Throughput::Elements(4096));
    group.bench_function(NAME, |b| {
        let mut table = NetidTable::new(16).expect("the capacity is valid");
        for (client, netid) in BOUND.into_iter().enumerate() {
            table.bind(netid, client).expect("there is room");
        }
        b.iter(|| {
            for netid in &packets {
                black_box(table.on_packet(black_box(*netid)));
            }
        });
    });
    group.bench_function(BenchmarkId::new(NAME, "linear search"), |b| {
        b.iter(|| {
            for netid in &packets {
                let netid = black_box(*netid);
                black_box(black_box(&BOUND).iter().position(|id| *id == netid));
            }
        });
    });
    group.bench_function(BenchmarkId::new(NAME, "std HashMap"), |b| {
        let map: HashMap<u16, usize> = BOUND.into_iter().zip(0..).collect();
        b.iter(|| {
            for netid in &packets {
                black_box(map.get(black_box(netid)));
            }
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = common::criterion();
    targets = push_and_pop_across_threads, channel_on_one_thread, holdoff, transmit_decisions, receive_decisions, receive_routine, netid
}
criterion_main!(benches);
