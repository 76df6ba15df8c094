//! What the facility costs on the machine's own clock: a check beside the clock
//! reading in it, and an event beside what a program would otherwise take.
//!
//! The goals and the report: `report.rs`. The decisions alone, without a clock,
//! are measured in plimsoll-core.

#[path = "../../core/benches/common/mod.rs"]
mod common;
#[path = "../../core/benches/random/mod.rs"]
mod random;

use std::cell::Cell;
use std::hint::black_box;
use std::os::fd::AsFd;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use hierarchical_hash_wheel_timer::wheels::Skip;
use hierarchical_hash_wheel_timer::wheels::quad_wheel::{QuadWheelWithOverflow, no_prune};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use plimsoll_timers::{Backup, Clock, CycleClock, Instant, SoftTimerConfig, TimerFd, Timers};
use random::Random;
use tokio::runtime::Builder;

const PENDING: u32 = 10_000;
/// Later than any run of the bench.
const FAR_TICKS: u64 = 3_600_000_000;

/// The cycle counter, set forward to the next event instead of waiting for it:
/// each reading costs what a reading costs.
struct SetForward {
    clock: CycleClock,
    forward: Cell<Duration>,
    last: Cell<Instant>,
}

impl SetForward {
    fn new() -> Self {
        Self {
            clock: CycleClock::new(),
            forward: Cell::default(),
            last: Cell::default(),
        }
    }

    fn set_to(&self, at: Instant) {
        let ahead = at.saturating_since(self.last.get());
        self.forward.set(self.forward.get() + ahead);
    }
}

impl Clock for SetForward {
    #[inline]
    fn now(&self) -> Instant {
        let now = self.clock.now() + self.forward.get();
        self.last.set(now);
        now
    }
}

fn timers<C: Clock>(clock: C) -> Timers<u32, C> {
    let config = SoftTimerConfig {
        capacity: PENDING + 1,
        ..SoftTimerConfig::default()
    };
    Timers::with_clock(config, clock).expect("the config is valid")
}

/// Mixed horizons: as many events in each power of two from 16 µs to 1 s.
fn horizon(random: &mut Random) -> u64 {
    let magnitude = 4 + random.next() % 16;
    (1 << magnitude) + random.next() % (1 << magnitude)
}

fn check(c: &mut Criterion) {
    let mut group = c.benchmark_group("check");
    let clock = CycleClock::new();
    assert!(
        clock.reads_counter(),
        "this machine's counter is not trusted"
    );
    group.bench_function("clock_alone", |b| b.iter(|| black_box(&clock).now()));
    let kernel = CycleClock::from_kernel();
    group.bench_function("clock_gettime_alone", |b| {
        b.iter(|| black_box(&kernel).now());
    });
    let mut timers = timers(clock.clone());
    for payload in 0..PENDING {
        let ticks = FAR_TICKS + u64::from(payload);
        timers.schedule_soft_event(ticks, payload).expect("room");
    }
    group.bench_function("nothing_due", |b| {
        b.iter(|| black_box(&timers).check().is_none());
    });
    group.finish();
}

/// Keeps 10,000 events pending: the earliest fires and is scheduled anew.
fn event(c: &mut Criterion) {
    let mut group = c.benchmark_group("event");
    group.bench_function("schedule_and_fire", |b| {
        let clock = SetForward::new();
        let mut timers = timers(&clock);
        let mut random = Random::new();
        for payload in 0..PENDING {
            let ticks = horizon(&mut random);
            timers.schedule_soft_event(ticks, payload).expect("room");
        }
        b.iter(|| {
            let now = loop {
                if let Some(now) = timers.check() {
                    break now;
                }
                clock.set_to(timers.next_event().expect("events are pending"));
            };
            if let Some(event) = timers.poll_event(now) {
                let ticks = horizon(&mut random);
                timers.reschedule(now, ticks, event.payload).expect("room");
            }
        });
    });
    group.bench_function(BenchmarkId::new("schedule_and_fire", "timerfd"), timerfd);
    group.bench_function(
        BenchmarkId::new("schedule_and_fire", "tokio sleep"),
        tokio_sleep,
    );
    group.bench_function(
        BenchmarkId::new("schedule_and_fire", "hierarchical_hash_wheel_timer"),
        quad_wheel,
    );
    group.finish();
}

/// One of 10,000 descriptors is armed for the next nanosecond, waited for with
/// epoll and read: what one expiry of a timer of the kernel costs.
fn timerfd(b: &mut criterion::Bencher<'_>) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit exists");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("up to the hard limit");
    let epoll = Epoll::new(EpollCreateFlags::empty()).expect("a descriptor");
    let mut timers: Vec<TimerFd> = (0..PENDING)
        .map(|_| TimerFd::new().expect("more than 10,000 descriptors (ulimit -n)"))
        .collect();
    for (place, timer) in (0..).zip(&mut timers) {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, place);
        epoll.add(timer.as_fd(), event).expect("a place");
        timer.arm(Duration::from_secs(3600)).expect("valid");
    }
    let mut random = Random::new();
    let mut ready = [EpollEvent::empty(); 1];
    b.iter(|| {
        let next = (random.next() % u64::from(PENDING)) as usize;
        timers[next].arm(Duration::from_nanos(1)).expect("valid");
        epoll.wait(&mut ready, EpollTimeout::NONE).expect("valid");
        timers[ready[0].data() as usize].clear().expect("readable");
    });
}

/// tokio's own sleeps, 10,000 pending. Its clock is paused, so that it does not
/// wait either; of its ticks (1 ms) each brings several events.
fn tokio_sleep(b: &mut criterion::Bencher<'_>) {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing from the host");
    b.iter_custom(|events| {
        runtime.block_on(async {
            let tasks: Vec<_> = (0..u64::from(PENDING))
                .map(|task| tokio::spawn(sleeps(task, events.div_ceil(u64::from(PENDING)))))
                .collect();
            // All are pending before the clock moves.
            tokio::task::yield_now().await;
            let start = std::time::Instant::now();
            for task in tasks {
                task.await.expect("no task panics");
            }
            let done = events.div_ceil(u64::from(PENDING)) * u64::from(PENDING);
            start.elapsed().mul_f64(events as f64 / done as f64)
        })
    });
}

async fn sleeps(seed: u64, count: u64) {
    let mut random = Random(seed * 2 + 1);
    for _ in 0..count {
        tokio::time::sleep(Duration::from_millis(horizon(&mut random))).await;
    }
}

fn quad_wheel(b: &mut criterion::Bencher<'_>) {
    let mut wheel = QuadWheelWithOverflow::new(no_prune);
    let mut random = Random::new();
    let mut insert = |wheel: &mut QuadWheelWithOverflow<u32>, payload| {
        let delay = Duration::from_millis(horizon(&mut random));
        wheel
            .insert_with_delay(payload, delay)
            .expect("in the future");
    };
    for payload in 0..PENDING {
        insert(&mut wheel, payload);
    }
    let mut fired = Vec::new();
    b.iter(|| {
        while fired.is_empty() {
            if let Skip::Millis(ticks) = wheel.can_skip() {
                wheel.skip(ticks);
            }
            fired = wheel.tick();
        }
        let payload = fired.pop().expect("the loop found one");
        insert(&mut wheel, payload);
    });
}

criterion_group! {
    name = benches;
    config = common::criterion();
    targets = check, event
}
criterion_main!(benches);
