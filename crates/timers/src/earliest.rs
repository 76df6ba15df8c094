//! Events that several threads share: changed under a lock, checked without one.
//!
//! A check looks at one atomic, the moment of the earliest event. Whoever changes the events
//! writes it before the lock is given back. So a check that comes after a change sees what is
//! due by it.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use plimsoll_core::time::Instant;

/// No event is pending.
const NEVER: u64 = u64::MAX;

/// What knows when its earliest event is due.
pub(crate) trait Scheduled {
    /// `None` without events.
    fn next_event(&self) -> Option<Instant>;
}

/// Shared events.
#[derive(Debug)]
pub(crate) struct Earliest<T> {
    /// In nanoseconds of the clock.
    next: AtomicU64,
    events: Mutex<T>,
}

impl<T: Scheduled> Earliest<T> {
    pub(crate) fn new(events: T) -> Self {
        Self {
            next: AtomicU64::new(in_nanos(&events)),
            events: Mutex::new(events),
        }
    }

    /// When the earliest event is due, without a lock; [`Instant::MAX`] without events.
    #[inline]
    pub(crate) fn next(&self) -> Instant {
        Instant::from_nanos(self.next.load(Ordering::Acquire))
    }

    /// The events. What the holder changes about the earliest is seen by checks from the
    /// guard's end on.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        Guard {
            next: &self.next,
            events: self.events.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// The events while they are locked.
pub(crate) struct Guard<'a, T: Scheduled> {
    next: &'a AtomicU64,
    events: MutexGuard<'a, T>,
}

impl<T: Scheduled> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.events
    }
}

impl<T: Scheduled> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.events
    }
}

/// Before the lock is given back: fields are dropped after this.
impl<T: Scheduled> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        let next = in_nanos(&*self.events);
        self.next.store(next, Ordering::Release);
    }
}

fn in_nanos<T: Scheduled>(events: &T) -> u64 {
    events.next_event().map_or(NEVER, Instant::as_nanos)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Moments at which something is due.
    #[derive(Default)]
    struct Moments(Vec<u64>);

    impl Scheduled for Moments {
        fn next_event(&self) -> Option<Instant> {
            self.0.iter().min().map(|at| Instant::from_nanos(*at))
        }
    }

    /// The check of a trigger state: how many were due.
    fn check(shared: &Earliest<Moments>, now: u64) -> usize {
        if Instant::from_nanos(now) < shared.next() {
            return 0;
        }
        let mut moments = shared.lock();
        let before = moments.0.len();
        moments.0.retain(|at| *at > now);
        before - moments.0.len()
    }

    /// One thread schedules while others check: each event is fired once, and none that is
    /// due is hidden from the check after all of them.
    #[test]
    fn no_event_is_lost_or_fired_twice() {
        loom::model(|| {
            let shared = Arc::new(Earliest::new(Moments::default()));
            let threads: Vec<_> = [Some(5), None]
                .into_iter()
                .map(|event| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        if let Some(at) = event {
                            shared.lock().0.push(at);
                        }
                        check(&shared, 10)
                    })
                })
                .collect();
            shared.lock().0.push(7);
            let fired: usize = threads.into_iter().map(|one| one.join().unwrap()).sum();
            assert_eq!(fired + check(&shared, 10), 2);
            assert_eq!(check(&shared, 10), 0);
        });
    }

    /// Who schedules an event and checks after its time fires it, whatever others do.
    #[test]
    fn a_thread_sees_its_own_event() {
        loom::model(|| {
            let shared = Arc::new(Earliest::new(Moments::default()));
            let other = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    shared.lock().0.push(100);
                    check(&shared, 10)
                }
            });
            shared.lock().0.push(5);
            let own = check(&shared, 10);
            assert_eq!(own + other.join().unwrap(), 1);
            assert_eq!(shared.next(), Instant::from_nanos(100));
        });
    }
}
