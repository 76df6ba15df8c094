//! Allocators of threads over one memory, and frames that are handed on by ownership.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput};
use plimsoll_stack::device::{Allocator, Frame, Pool};

use crate::side_by_side;

/// Frames that a thread has at a time: a batch of a server's.
const BATCH: usize = 32;
/// What an allocator keeps, as its documentation advises.
const KEPT: usize = 64;
const FRAMES: usize = 4096;
const CHUNK_BYTES: usize = 2048;
/// A tiny message, and a whole packet.
const PAYLOADS: [usize; 2] = [60, 1400];

fn pool() -> Arc<Pool> {
    Pool::new(FRAMES, CHUNK_BYTES).expect("memory")
}

/// Batches are taken and given back, `batches` times, by a thread with an allocator of its own.
fn with_allocator(pool: &Arc<Pool>, batches: u64) {
    let mut allocator = Allocator::new(pool, KEPT);
    let mut held = Vec::with_capacity(BATCH);
    for _ in 0..batches {
        held.extend((0..BATCH).filter_map(|_| black_box(&mut allocator).take()));
        held.drain(..).for_each(|frame| allocator.give(frame));
    }
}

/// The same by a thread that has the shared memory alone.
fn from_shared(pool: &Arc<Pool>, batches: u64) {
    let mut held: Vec<Frame> = Vec::with_capacity(BATCH);
    for _ in 0..batches {
        held.extend((0..BATCH).filter_map(|_| black_box(pool).take()));
        held.clear();
    }
}

/// The same from the program's heap.
fn from_heap(_: &Arc<Pool>, batches: u64) {
    let mut held = Vec::with_capacity(BATCH);
    for _ in 0..batches {
        held.extend((0..BATCH).map(|_| black_box(Vec::<u8>::with_capacity(CHUNK_BYTES))));
        held.clear();
    }
}

type Way = (&'static str, fn(&Arc<Pool>, u64));

/// One frame taken and given back.
pub(crate) fn allocation(c: &mut Criterion) {
    let ways: [Way; 3] = [
        ("with", with_allocator),
        ("shared memory alone", from_shared),
        ("the program's heap", from_heap),
    ];
    for case in ["one_thread", "two_threads"] {
        let mut group = c.benchmark_group(format!("allocator/{case}"));
        group.throughput(Throughput::Elements(BATCH as u64));
        for (way, work) in ways {
            group.bench_function(way, |b| {
                b.iter_custom(|batches| {
                    let pool = pool();
                    if case == "two_threads" {
                        return side_by_side(|| work(&pool, batches));
                    }
                    let start = std::time::Instant::now();
                    work(&pool, batches);
                    start.elapsed()
                });
            });
        }
        group.finish();
    }
}

/// A packet is handed from one owner to the next: the frame itself, or a copy of its bytes in a
/// buffer of the next owner's.
pub(crate) fn handing_on(c: &mut Criterion) {
    for bytes in PAYLOADS {
        let mut group = c.benchmark_group(format!("ownership/{bytes}_bytes"));
        let pool = pool();
        let first = || {
            let mut frame = pool.take().expect("one is free");
            assert!(frame.copy_from(&vec![7; bytes]));
            frame
        };
        group.bench_function("with", |b| {
            let mut frame = Some(first());
            b.iter(|| {
                let moved = black_box(&mut frame).take();
                frame = black_box(moved);
            });
        });
        group.bench_function("copied into the next owner's", |b| {
            let mut allocator = Allocator::new(&pool, KEPT);
            let mut frame = first();
            b.iter(|| {
                let mut copy = allocator.take().expect("one is free");
                assert!(copy.copy_from(black_box(&frame)));
                allocator.give(std::mem::replace(&mut frame, copy));
            });
        });
        group.finish();
    }
}
