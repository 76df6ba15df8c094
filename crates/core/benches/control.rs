//! What a decision about polling, feedback, limits and shares costs.
//!
//! Goals: `goals.toml`. Each bench asks a table of a realistic size the question
//! that is asked per turn or per packet, with the state changing as it would.

mod common;

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_core::charge::{
    Class, ConsumerId, Frames, FramesConfig, GroupId, Participants, Priority, Shares, SharesConfig,
    Shedder, ShedderConfig, Waiting,
};
use plimsoll_core::config::Fraction;
use plimsoll_core::cpu_limit::{CpuLimit, CpuLimitConfig, SampledLimit, SampledLimitConfig};
use plimsoll_core::feedback::{Feedback, FeedbackConfig, Watermarks};
use plimsoll_core::poll::{
    Directions, Driver, Interrupts, Poller, PollerConfig, SourceId, SourceSet,
};
use plimsoll_core::quota::{Quota, QuotaConfig};
use plimsoll_core::time::Instant;

/// Consumers in the tables that have many.
const CONSUMERS: u32 = 1024;
const US: Duration = Duration::from_micros(1);

/// A poller with 64 sources, every `stride`-th of which has work.
fn poller(stride: usize) -> Poller {
    let mut poller = Poller::new(PollerConfig::default(), Instant::ZERO).expect("valid");
    for index in 0..64 {
        let driver = Driver::Polled(Interrupts::Separate);
        let source = poller.register(driver).expect("there is room");
        if index % stride == 0 {
            let _ = poller.on_interrupt(source, Directions::RECEIVE);
        }
    }
    poller
}

fn poll(c: &mut Criterion) {
    let mut group = c.benchmark_group("poll");
    for (name, stride) in [("turn_all_busy", 1), ("turn_few_busy", 32)] {
        group.bench_function(name, |b| {
            let mut poller = poller(stride);
            b.iter(|| {
                let poller = black_box(&mut poller);
                let turn = poller.poll_next(Instant::ZERO).expect("there is work");
                poller.on_turn_done(turn, 8, true)
            });
        });
    }
    group.bench_function("interrupt_to_interrupt", |b| {
        let mut poller = poller(64);
        b.iter(|| {
            let poller = black_box(&mut poller);
            let turn = poller.poll_next(Instant::ZERO).expect("there is work");
            let enabled = poller.on_turn_done(turn, 1, false);
            poller.on_interrupt(turn.source, enabled)
        });
    });
    group.finish();
}

fn quota(c: &mut Criterion) {
    c.benchmark_group("quota").bench_function("interval", |b| {
        let mut quota = Quota::new(QuotaConfig::default()).expect("valid");
        b.iter(|| {
            let packets = black_box(&mut quota).packets();
            let delivered = 1_000_000 - 1000 * u64::from(packets.abs_diff(12));
            quota.on_interval(black_box(delivered), true);
        });
    });
}

fn feedback(c: &mut Criterion) {
    let mut feedback = Feedback::new(FeedbackConfig::default(), CONSUMERS as usize).expect("valid");
    let mut queues = Vec::new();
    let source = |index| SourceId::from_index(index).expect("below 64");
    for index in 0..CONSUMERS as usize {
        let from = SourceSet::EMPTY.with(source(index % 64));
        let registered = feedback.register(Watermarks::of_queue(32), from);
        queues.push(registered.expect("there is room").0);
    }
    let mut group = c.benchmark_group("feedback");
    group.throughput(Throughput::Elements(2));
    for (name, occupancy, left) in [("packet", 2, 1), ("inhibit_and_allow", 24, 8)] {
        group.bench_function(name, |b| {
            let mut next = queues.iter().cycle();
            b.iter(|| {
                let queue = *next.next().expect("a cycle has no end");
                let feedback = black_box(&mut feedback);
                let _ = black_box(feedback.on_enqueue(queue, occupancy, Instant::ZERO));
                let _ = black_box(feedback.on_dequeue(queue, left, Instant::ZERO));
            });
        });
    }
    group.finish();
}

fn cpu_limit(c: &mut Criterion) {
    let mut group = c.benchmark_group("cpu_limit");
    group.bench_function("turn", |b| {
        let config = CpuLimitConfig::default();
        let mut limit = CpuLimit::new(config, Instant::ZERO).expect("valid");
        let mut now = Instant::ZERO;
        b.iter(|| {
            let limit = black_box(&mut limit);
            limit.on_enter(0, now);
            now += US;
            limit.on_exit(0, now)
        });
    });
    group.bench_function("sample", |b| {
        let config = SampledLimitConfig::default();
        let mut limit = SampledLimit::new(config).expect("valid");
        b.iter(|| black_box(&mut limit).on_tick(true));
    });
    group.finish();
}

fn shares(c: &mut Criterion) {
    let mut group = c.benchmark_group("charge");
    for (name, consumers) in [("serve_16", 16), ("serve_1024", CONSUMERS)] {
        group.bench_function(name, |b| {
            let mut shares = Shares::new(SharesConfig::new(consumers as usize));
            for id in (0..consumers).map(ConsumerId) {
                let weight = 1 + id.0 % 7;
                shares
                    .configure(id, Class::BEST_EFFORT, weight)
                    .expect("valid");
                shares.on_backlog(id);
            }
            b.iter(|| {
                let shares = black_box(&mut shares);
                let next = shares.poll_next().expect("there is work");
                shares.on_served(next, US, true);
            });
        });
    }
    group.finish();
}

fn shed(c: &mut Criterion) {
    let mut group = c.benchmark_group("charge");
    group.bench_function("admit", |b| {
        let mut shedder = Shedder::new(ShedderConfig::new(CONSUMERS as usize));
        for id in (0..CONSUMERS).map(ConsumerId) {
            shedder.configure(id, Class::BEST_EFFORT, 1).expect("valid");
        }
        shedder.on_interval(Some(Duration::from_millis(10)));
        let mut ids = (0..CONSUMERS).cycle().map(ConsumerId);
        b.iter(|| {
            let id = ids.next().expect("a cycle has no end");
            black_box(&mut shedder).admits(id, US)
        });
    });
    group.bench_function("frame", |b| {
        let mut frames = Frames::new(FramesConfig::new(64));
        for group in (0..64).map(GroupId) {
            let tenth = Fraction::from_percent(10);
            frames.set_shedding(group, tenth).expect("it exists");
        }
        let mut packet = 0u64;
        b.iter(|| {
            packet += 1;
            let group = GroupId((packet % 64) as u32);
            black_box(&mut frames).keeps(group, packet / 640, false)
        });
    });
    group.finish();
}

fn processes(c: &mut Criterion) {
    let mut group = c.benchmark_group("charge");
    group.bench_function("waiting_packet", |b| {
        let mut waiting = Waiting::new(CONSUMERS as usize);
        (0..CONSUMERS).for_each(|id| waiting.on_block(ConsumerId(id)));
        let mut ids = (0..CONSUMERS).cycle().map(ConsumerId);
        b.iter(|| {
            let id = ids.next().expect("a cycle has no end");
            black_box(&mut waiting).on_enqueue(id);
            waiting.most()
        });
    });
    group.bench_function("foremost", |b| {
        let mut group = Participants::new(16);
        for id in 0..16 {
            group
                .set(ConsumerId(id), Priority(id))
                .expect("there is room");
        }
        b.iter(|| black_box(&group).foremost());
    });
    group.finish();
}

criterion_group! {
    name = control;
    config = common::criterion();
    targets = poll, quota, feedback, cpu_limit, shares, shed, processes
}
criterion_main!(control);
