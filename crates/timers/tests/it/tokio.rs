//! Sleeps inside a tokio runtime. No fixed bound from above: what is asserted
//! is order, the lower bound, and that nothing hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_timers::SoftTimerConfig;
use plimsoll_timers::tokio::{SoftTime, SoftTimeConfig};
use tokio::runtime::{Builder, Runtime};
use tokio::task;

fn runtime(mut builder: Builder, wake_up: Duration) -> (Runtime, SoftTime) {
    let config = SoftTimeConfig {
        wake_up,
        ..SoftTimeConfig::default()
    };
    let time = SoftTime::new(config).unwrap();
    time.install(&mut builder);
    (builder.build().unwrap(), time)
}

fn every_runtime(test: impl Fn(&Runtime, SoftTime)) {
    for wake_up in [Duration::ZERO, Duration::from_micros(100)] {
        let (current, time) = runtime(Builder::new_current_thread(), wake_up);
        test(&current, time);
        let mut several = Builder::new_multi_thread();
        several.worker_threads(2);
        let (several, time) = runtime(several, wake_up);
        test(&several, time);
    }
}

#[test]
fn a_sleep_lasts_at_least_its_span() {
    every_runtime(|runtime, time| {
        runtime.block_on(async {
            for micros in [0, 1, 12, 40, 300, 2000, 150_000] {
                let span = Duration::from_micros(micros);
                let start = time.now();
                time.sleep(span).await.unwrap();
                assert!(time.now().saturating_since(start) >= span);
            }
        });
    });
}

#[test]
fn sleeps_of_many_tasks_end_in_order() {
    every_runtime(|runtime, time| {
        runtime.block_on(async {
            let ended = Arc::new(AtomicU32::new(0));
            let tasks: Vec<_> = (0..100_u32)
                .rev()
                .map(|id| {
                    let (time, ended) = (time.clone(), Arc::clone(&ended));
                    tokio::spawn(async move {
                        time.sleep(Duration::from_micros(u64::from(id) * 50))
                            .await
                            .unwrap();
                        ended.fetch_add(1, Ordering::Relaxed);
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(ended.load(Ordering::Relaxed), 100);
        });
    });
}

/// The runtime never parks: a task is always ready. The descriptor ends the
/// sleep all the same.
#[test]
fn a_runtime_that_never_parks_still_ends_sleeps() {
    every_runtime(|runtime, time| {
        runtime.block_on(async {
            let busy = tokio::spawn(async {
                loop {
                    task::yield_now().await;
                }
            });
            for _ in 0..20 {
                time.sleep(Duration::from_micros(100)).await.unwrap();
            }
            busy.abort();
        });
    });
}

/// A sleep that is scheduled from outside while the worker is parked for a
/// later one: the worker must be woken for the earlier.
#[test]
fn a_parked_runtime_is_woken_for_an_earlier_sleep() {
    every_runtime(|runtime, time| {
        let far = runtime.spawn({
            let time = time.clone();
            async move { time.sleep(Duration::from_secs(3600)).await }
        });
        for _ in 0..20 {
            let time = time.clone();
            let near = runtime.spawn(async move { time.sleep(Duration::from_micros(50)).await });
            runtime.block_on(near).unwrap().unwrap();
        }
        far.abort();
    });
}

/// `select!` and time-outs drop sleeps that did not end: their places come back.
#[test]
fn dropped_sleeps_free_their_places() {
    let config = SoftTimeConfig {
        timers: SoftTimerConfig {
            capacity: 8,
            ..SoftTimerConfig::default()
        },
        ..SoftTimeConfig::default()
    };
    let time = SoftTime::new(config).unwrap();
    let mut builder = Builder::new_current_thread();
    time.install(&mut builder);
    builder.build().unwrap().block_on(async {
        for _ in 0..100 {
            let mut sleeps: Vec<_> = (0..8)
                .map(|_| Box::pin(time.sleep(Duration::from_secs(60))))
                .collect();
            for sleep in &mut sleeps {
                assert!(futures_poll(sleep).await.is_none());
            }
            let mut ninth = Box::pin(time.sleep(Duration::from_secs(60)));
            let refused = futures_poll(&mut ninth).await.expect("there is no room");
            assert!(refused.unwrap_err().to_string().contains("all 8"));
        }
        let start = Instant::now();
        time.sleep(Duration::from_micros(10)).await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(60));
    });
}

/// The backup had stayed in the driver of the first, which was gone: the others slept for ever.
#[test]
fn one_runtime_after_the_other_ends_sleeps() {
    let (sender, ended) = mpsc::channel();
    // Not awaited: it would not come back.
    thread::spawn(move || {
        let time = SoftTime::new(SoftTimeConfig::default()).unwrap();
        for workers in [0, 2, 0, 2] {
            let mut builder = match workers {
                0 => Builder::new_current_thread(),
                _ => Builder::new_multi_thread(),
            };
            time.install(&mut builder);
            let runtime = builder.worker_threads(2).build().unwrap();
            runtime.block_on(async {
                let left = tokio::spawn(time.sleep(Duration::from_secs(3600)));
                time.sleep(Duration::from_millis(1)).await.unwrap();
                assert!(!left.is_finished());
            });
        }
        sender.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(20));
    ended.expect("a sleep did not end");
}

/// A sleep that one runtime has polled goes on in the next.
#[test]
fn a_sleep_may_outlive_its_runtime() {
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        let time = SoftTime::new(SoftTimeConfig::default()).unwrap();
        let runtime = || {
            let mut builder = Builder::new_current_thread();
            time.install(&mut builder);
            builder.build().unwrap()
        };
        let mut sleep = Box::pin(time.sleep(Duration::from_millis(50)));
        let polled = runtime().block_on(futures_poll(&mut sleep));
        assert!(polled.is_none_or(|slept| slept.is_ok()));
        runtime().block_on(async {
            // It never parks, and so nobody but the sleep's own backup asks.
            let busy = tokio::spawn(async {
                loop {
                    task::yield_now().await;
                }
            });
            sleep.await.unwrap();
            busy.abort();
        });
        sender.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(20));
    ended.expect("a sleep did not end");
}

/// The backup has to be in a runtime's driver.
#[test]
fn a_sleep_fails_outside_a_runtime_and_panics_in_one_without_io() {
    let time = || SoftTime::new(SoftTimeConfig::default()).unwrap();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut outside = Box::pin(time().sleep(Duration::from_secs(60)));
    let polled = outside.as_mut().poll(&mut context);
    assert!(matches!(polled, std::task::Poll::Ready(Err(_))));
    let without = Builder::new_current_thread().build().unwrap();
    let sleep = time().sleep(Duration::from_secs(60));
    let slept = std::panic::AssertUnwindSafe(|| without.block_on(sleep));
    assert!(std::panic::catch_unwind(slept).is_err());
}

/// Polls once.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

/// The runtime's own polls are trigger states, if tokio was built with them (`make
/// tokio-unstable`): a worker that never parks and never looks at its driver ends the sleep all
/// the same, though no task asks for it.
#[cfg(tokio_unstable)]
#[test]
fn each_poll_of_a_task_is_a_trigger_state() {
    let mut builder = Builder::new_current_thread();
    // The backup is in the driver, which nobody looks at for hours.
    builder.event_interval(u32::MAX);
    let (runtime, time) = runtime(builder, Duration::ZERO);
    let ended = runtime.block_on(async {
        let sleeper = tokio::spawn(async move { time.sleep(Duration::from_micros(100)).await });
        let begun = Instant::now();
        // Ready again at once. (`yield_now` lets the worker look at its driver.)
        let busy = std::future::poll_fn(move |context| {
            let ended = sleeper.is_finished();
            if ended || begun.elapsed() > Duration::from_secs(10) {
                return std::task::Poll::Ready(ended);
            }
            context.waker().wake_by_ref();
            std::task::Poll::Pending
        });
        tokio::spawn(busy).await.unwrap()
    });
    assert!(ended, "nothing asked whether the sleep was over");
}
