//! The lazy watchdog, and optimistic protection, on the way back of sent frames.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use plimsoll_stack::driven::Returning;

use crate::side_by_side;

/// Calls that reclaim between two batches that come back, as where each answer is sent alone.
const CALLS_PER_BATCH: u64 = 64;
const BATCH: usize = 64;

/// What the watchdog costs, for calls that send one frame or many. It saves nothing here: the kernel
/// watches its adapter.
pub(crate) fn watchdog(c: &mut Criterion) {
    for (case, frames) in [("call_of_1", 1), ("call_of_64", 64)] {
        let mut group = c.benchmark_group(format!("watchdog/{case}"));
        group.throughput(Throughput::Elements(frames as u64));
        group.bench_function("with", |b| {
            let returning = Returning::new().expect("memory");
            b.iter(|| black_box(&returning).send(black_box(frames)));
        });
        group.bench_function("unwatched", |b| {
            let returning = Returning::new().expect("memory");
            b.iter(|| black_box(&returning).send_unwatched(black_box(frames)));
        });
        group.finish();
    }
}

type Way = (&'static str, fn(&Returning));

/// `reclaim` once in each of `calls`, and the frames that it is for.
fn calls(returning: &Returning, calls: u64, reclaim: fn(&Returning)) {
    for call in 0..calls {
        if call % CALLS_PER_BATCH == 0 {
            returning.lend(BATCH);
        }
        reclaim(black_box(returning));
    }
}

/// Whoever finds the completion ring taken withdraws, and the holder does the work; or waits.
pub(crate) fn protection(c: &mut Criterion) {
    let ways: [Way; 2] = [
        ("with", Returning::reclaim_unwatched),
        ("waits for a lock", Returning::reclaim_waiting),
    ];
    let mut group = c.benchmark_group("protection/one_thread");
    for (way, reclaim) in ways {
        group.bench_function(way, |b| {
            b.iter_custom(|count| {
                let returning = Returning::new().expect("memory");
                let start = std::time::Instant::now();
                calls(&returning, count, reclaim);
                start.elapsed()
            });
        });
    }
    group.finish();
    let mut group = c.benchmark_group("protection/two_threads");
    for (way, reclaim) in ways {
        group.bench_function(way, |b| {
            b.iter_custom(|count| {
                let returning = Returning::new().expect("memory");
                side_by_side(|| calls(&returning, count, reclaim))
            });
        });
    }
    group.finish();
}
