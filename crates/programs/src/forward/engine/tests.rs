//! Threads that forward: where they run, and how they end.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use super::*;

/// A thread that does this: whether packets were left to the kernel, and what is said.
fn ended(run: impl FnOnce(&Shared) -> io::Result<()> + Send + 'static) -> (bool, Arc<Shared>) {
    let shared = Arc::new(Shared::default());
    let (left, leaving) = channel();
    let leave = move || left.send(()).unwrap();
    drop(Worker::start("test", None, &shared, leave, run).unwrap());
    (leaving.recv().is_ok(), shared)
}

#[test]
fn a_thread_is_refused_a_cpu_that_is_not_there() {
    let shared = Arc::new(Shared::default());
    let until_told = |shared: &Shared| {
        while !shared.stop.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        Ok(())
    };
    let start = |cpu| Worker::start("test", Some(cpu), &shared, || (), until_told);
    let refused = start(1000).unwrap_err().to_string();
    assert!(refused.contains("its CPU"), "{refused}");
    let own = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cpu = (0..CpuSet::count()).find(|cpu| own.is_set(*cpu).unwrap());
    drop(start(cpu.unwrap()).unwrap());
}

#[test]
fn who_ends_by_itself_leaves_packets_to_the_kernel() {
    let (left, shared) = ended(|_| Err(io::Error::other("no device")));
    assert!(left);
    assert_eq!(shared.failure.lock().as_deref(), Some("no device"));
    assert!(ended(|_| panic!("a fault")).0);
    let until_told = |shared: &Shared| {
        while !shared.stop.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        Ok(())
    };
    let (left, shared) = ended(until_told);
    assert!(!left && shared.failure.lock().is_none(), "it was told to");
}
