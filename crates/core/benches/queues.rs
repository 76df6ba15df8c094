//! What channels, holdoff control and the driver's decisions cost.
//!
//! Goals: `goals.toml`. Where two threads take part they are pinned to CPUs 0
//! and 1, and every peer runs in the same harness: the producer offers as fast
//! as it can, the consumer takes as fast as it can, and whoever finds the queue
//! full or empty pauses before it tries again. With a single CPU they share it.

mod common;

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use plimsoll_core::channel::{Admission, ChannelConfig, channel};
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

criterion_group! {
    name = benches;
    config = common::criterion();
    targets = push_and_pop_across_threads, channel_on_one_thread
}
criterion_main!(benches);
