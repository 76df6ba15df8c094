//! What soft timers, pacing and aggregation decide, and what a decision costs.
//!
//! Goals: `goals.toml`. The peers of soft timers are the two kept timer wheels
//! a user would otherwise take.

mod common;
mod random;

use std::hint::black_box;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use hierarchical_hash_wheel_timer::wheels::Skip;
use hierarchical_hash_wheel_timer::wheels::quad_wheel::{QuadWheelWithOverflow, no_prune};
use plimsoll_core::aggregation::{Aggregation, AggregationConfig, NextPoll};
use plimsoll_core::pacing::{
    AckSpacer, AckSpacingConfig, CapacityEstimator, FlowRates, Pacer, PacerConfig, Rate,
};
use plimsoll_core::soft_timer::{SoftTimerConfig, SoftTimers};
use plimsoll_core::time::Instant;
use random::Random;
use tokio::runtime::{Builder, Runtime};
use tokio_util::time::DelayQueue;

const PENDING: u32 = 100_000;
const DELAY_QUEUE: &str = "tokio-util DelayQueue";
const QUAD_WHEEL: &str = "hierarchical_hash_wheel_timer";

impl Random {
    /// Mixed horizons: as many events in each power of two from 16 ticks to
    /// 16 million (16 µs to 16 s with ticks of a microsecond).
    fn horizon(&mut self) -> u64 {
        let magnitude = 4 + self.next() % 20;
        (1 << magnitude) + self.next() % (1 << magnitude)
    }
}

fn soft_timers() -> SoftTimers<u64> {
    let config = SoftTimerConfig {
        capacity: PENDING + 1,
        ..SoftTimerConfig::default()
    };
    SoftTimers::new(config).expect("the config is valid")
}

fn micros(ticks: u64) -> Instant {
    Instant::from_nanos(ticks * 1000)
}

fn check_nothing_due(c: &mut Criterion) {
    // Later than any run of the bench, within every peer's range.
    const FAR_TICKS: u64 = 1_000_000_000;
    let mut group = c.benchmark_group("soft_timer");
    group.bench_function("check_nothing_due", |b| {
        let mut timers = soft_timers();
        let mut random = Random::new();
        for payload in 0..PENDING {
            schedule(
                &mut timers,
                micros(0),
                FAR_TICKS + random.horizon(),
                payload,
            );
        }
        let mut now = micros(0);
        b.iter(|| {
            now += Duration::from_nanos(1);
            // The earliest event is read from memory, as in a real trigger state.
            black_box(&mut timers).poll_event(now).is_none()
        });
    });
    group.bench_function(BenchmarkId::new("check_nothing_due", DELAY_QUEUE), |b| {
        let runtime = paused_runtime();
        let _guard = runtime.enter();
        let mut random = Random::new();
        let mut queue = DelayQueue::with_capacity(PENDING as usize);
        for payload in 0..PENDING {
            queue.insert(payload, Duration::from_millis(FAR_TICKS + random.horizon()));
        }
        let mut context = Context::from_waker(Waker::noop());
        b.iter(|| black_box(queue.poll_expired(&mut context).is_pending()));
    });
    group.bench_function(BenchmarkId::new("check_nothing_due", QUAD_WHEEL), |b| {
        let mut wheel = QuadWheelWithOverflow::new(no_prune);
        let mut random = Random::new();
        for payload in 0..PENDING {
            let delay = Duration::from_millis(FAR_TICKS + random.horizon());
            wheel
                .insert_with_delay(payload, delay)
                .expect("it is in the future");
        }
        b.iter(|| black_box(black_box(&wheel).can_skip()));
    });
    group.finish();
}

/// Keeps 100,000 events pending: each fired one is replaced, and time moves
/// from event to event.
fn schedule_and_fire(c: &mut Criterion) {
    let mut group = c.benchmark_group("soft_timer");
    group.bench_function("schedule_and_fire", |b| {
        let mut timers = soft_timers();
        let mut random = Random::new();
        for payload in 0..PENDING {
            schedule(&mut timers, micros(0), random.horizon(), payload);
        }
        let mut now = micros(0);
        b.iter(|| {
            let event = loop {
                if let Some(event) = timers.poll_event(now) {
                    break event;
                }
                now = timers.next_event().expect("events are pending");
            };
            schedule(&mut timers, now, random.horizon(), event.payload);
        });
    });
    group.bench_function(BenchmarkId::new("schedule_and_fire", DELAY_QUEUE), |b| {
        let runtime = paused_runtime();
        let _guard = runtime.enter();
        let mut random = Random::new();
        let mut queue = DelayQueue::with_capacity(PENDING as usize);
        for payload in 0..PENDING {
            queue.insert(payload, Duration::from_millis(random.horizon()));
        }
        b.iter_custom(|events| delay_queue_events(&runtime, &mut queue, &mut random, events));
    });
    group.bench_function(BenchmarkId::new("schedule_and_fire", QUAD_WHEEL), |b| {
        let mut wheel = QuadWheelWithOverflow::new(no_prune);
        let mut random = Random::new();
        for payload in 0..PENDING {
            insert(&mut wheel, random.horizon(), payload);
        }
        let mut fired = Vec::new();
        b.iter(|| {
            while fired.is_empty() {
                match wheel.can_skip() {
                    Skip::Millis(ticks) => wheel.skip(ticks),
                    Skip::None => {}
                    Skip::Empty => unreachable!("events are pending"),
                }
                fired = wheel.tick();
            }
            let payload = fired.pop().expect("the loop found one");
            insert(&mut wheel, random.horizon(), payload);
        });
    });
    group.finish();
}

fn schedule(timers: &mut SoftTimers<u64>, now: Instant, ticks: u64, payload: impl Into<u64>) {
    timers
        .schedule_soft_event(now, ticks, payload.into())
        .expect("there is room");
}

fn insert(wheel: &mut QuadWheelWithOverflow<u32>, ticks: u64, payload: u32) {
    wheel
        .insert_with_delay(payload, Duration::from_millis(ticks))
        .expect("it is in the future");
}

/// A runtime whose clock only moves when told, so that `DelayQueue` (whose tick
/// is a millisecond) lives through the same horizons in ticks.
fn paused_runtime() -> Runtime {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("a runtime without I/O needs nothing from the host")
}

/// Time that `events` events take; moving the clock is not counted.
fn delay_queue_events(
    runtime: &Runtime,
    queue: &mut DelayQueue<u32>,
    random: &mut Random,
    events: u64,
) -> Duration {
    let mut context = Context::from_waker(Waker::noop());
    let mut spent = Duration::ZERO;
    let mut done = 0;
    while done < events {
        runtime.block_on(tokio::time::advance(Duration::from_millis(64)));
        let start = std::time::Instant::now();
        while done < events
            && let Poll::Ready(Some(event)) = queue.poll_expired(&mut context)
        {
            queue.insert(event.into_inner(), Duration::from_millis(random.horizon()));
            done += 1;
        }
        spent += start.elapsed();
    }
    spent
}

/// The facility's other decisions, at 100,000 pending events.
fn other_soft_timer_decisions(c: &mut Criterion) {
    let mut group = c.benchmark_group("soft_timer");
    let mut random = Random::new();
    let mut timers = soft_timers();
    for payload in 0..PENDING {
        // The deadlines of the paper's experiment, mixed.
        let slack = [10, 20, 50, 100, 1000][payload as usize % 5];
        timers
            .schedule_with_deadline(micros(0), random.horizon(), slack, payload.into())
            .expect("there is room");
    }
    group.bench_function("schedule_and_cancel", |b| {
        b.iter(|| {
            let event = timers
                .schedule_soft_event(micros(0), random.horizon(), 0)
                .expect("there is room");
            timers.cancel(event)
        });
    });
    group.bench_function("hardware_deadline", |b| {
        b.iter(|| {
            // So that each answer has to be found anew.
            timers.on_hardware_expiry();
            black_box(&mut timers).poll_hardware_timer()
        });
    });
    group.bench_function("idle", |b| {
        b.iter(|| black_box(&timers).idle_action(black_box(micros(1000)), false));
    });
    group.finish();
}

/// The costliest check there is: 100,000 events wait in one block of ticks, and
/// the first of them becomes due. No goal: it is the price of the others.
fn enter_a_full_block(c: &mut Criterion) {
    let mut group = c.benchmark_group("soft_timer");
    let mut random = Random::new();
    let mut timers = soft_timers();
    for payload in 0..PENDING {
        let ticks = (1 << 24) + random.next() % (1 << 24);
        schedule(&mut timers, micros(0), ticks, payload);
    }
    let first = timers.next_event().expect("events are pending");
    group.bench_function("enter_a_full_block", |b| {
        b.iter_batched(
            || timers.clone(),
            |mut timers| (timers.poll_event(first), timers),
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

/// One of 10,000 flows sends a packet and its next departure is scheduled;
/// their rates differ by up to a hundredfold.
fn pacing(c: &mut Criterion) {
    const FLOWS: u32 = 10_000;
    let mut group = c.benchmark_group("pacing");
    group.bench_function("departure", |b| {
        let mut pacer = Pacer::new(PacerConfig {
            flows: FLOWS,
            ..PacerConfig::default()
        })
        .expect("the config is valid");
        let mut random = Random::new();
        for _ in 0..FLOWS {
            let target = Rate::clamped(1_000_000 * (1 + random.next() % 100));
            let burst = Rate::clamped(10 * target.bits_per_second());
            let flow = pacer
                .add_flow(FlowRates { target, burst })
                .expect("there is room");
            let start = micros(random.next() % 10_000);
            pacer.on_backlog(start, flow).expect("the flow exists");
        }
        let mut now = micros(0);
        b.iter(|| {
            let flow = loop {
                if let Some(flow) = pacer.poll_departure(now) {
                    break flow;
                }
                now = pacer.next_departure().expect("all flows send");
            };
            pacer
                .on_sent(now, flow, 1500, true)
                .expect("the flow exists");
        });
    });
    group.bench_function("ack", |b| {
        let mut spacer = AckSpacer::new(AckSpacingConfig::default()).expect("the config is valid");
        let mut random = Random::new();
        let mut now = micros(0);
        b.iter(|| {
            now += Duration::from_nanos(random.next() % 4_000_000);
            spacer.on_ack(now, 2)
        });
    });
    group.bench_function("capacity_arrival", |b| {
        let mut estimator = CapacityEstimator::new();
        let mut arrivals = 0_u64;
        b.iter(|| {
            if arrivals.is_multiple_of(5) {
                estimator.on_bunch_start();
            }
            arrivals += 1;
            black_box(&mut estimator).on_arrival(micros(arrivals), 1500);
        });
    });
    group.finish();
}

fn aggregation(c: &mut Criterion) {
    let mut group = c.benchmark_group("aggregation");
    group.bench_function("poll", |b| {
        let mut aggregation =
            Aggregation::new(AggregationConfig::default()).expect("the config is valid");
        let mut random = Random::new();
        let mut next = aggregation.on_idle_cpus(micros(0), 0);
        b.iter(|| {
            let NextPoll::At(now) = next else {
                unreachable!("no CPU is idle")
            };
            next = aggregation.on_poll(now, (random.next() % 10) as u32);
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = common::criterion();
    targets = check_nothing_due, schedule_and_fire, other_soft_timer_decisions,
        enter_a_full_block, pacing, aggregation
}
criterion_main!(benches);
