//! What the 1994 paper's techniques that are in the stack's path cost and save, each beside the plain
//! way to do the same (Tracey & Banerji).
//!
//! The ids are `technique/case/way`, and the way of ours is `with`. The other techniques, which the
//! path has no use for, are in core's bench `queues` as `driver/…`.
//!
//! Nothing is sent: memory, rings and headers are those of the stack, and the kernel's part is
//! missing on both sides alike. Two threads are pinned to CPUs 0 and 1.

mod memory;
mod messages;
mod returning;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

fn criterion() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50)
        .configure_from_args()
}

/// Pins the calling thread; where that CPU does not exist it stays where it is.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    if set.set(cpu).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// How long two threads take that both do the same at the same time.
fn side_by_side(work: impl Fn() + Sync) -> Duration {
    let begin = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        let worker = |cpu| {
            let (work, begin) = (&work, &begin);
            move || {
                pin(cpu);
                begin.wait();
                work();
            }
        };
        let threads = [0, 1].map(|cpu| scope.spawn(worker(cpu)));
        begin.wait();
        let start = std::time::Instant::now();
        for thread in threads {
            thread.join().expect("the work does not panic");
        }
        start.elapsed()
    })
}

criterion_group! {
    name = benches;
    config = criterion();
    targets = returning::watchdog, returning::protection, memory::allocation, memory::handing_on, messages::messages
}
criterion_main!(benches);
