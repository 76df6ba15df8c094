//! A thread that wakes others in time: the backup of programs without an event
//! loop, whose threads block by parking.
//!
//! One alarm thread serves many. It sleeps until the earliest order, wakes that
//! order's owner and sleeps on. An order costs its owner a system call only if
//! it is earlier than everything the alarm thread sleeps for.

use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::Backup;
use orders::{NEVER, Orders};

/// Wakes parked threads; ends when it and all its [`Alarm`]s are dropped.
#[derive(Debug)]
pub struct AlarmThread(Arc<Running>);

/// Its last owner ends the thread.
#[derive(Debug)]
struct Running {
    shared: Arc<Shared>,
    thread: Thread,
    /// Taken in drop.
    handle: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    orders: Orders,
    /// Who is woken for each order. Locked when an order falls due, and when
    /// alarms come and go.
    owners: Mutex<Box<[Option<Thread>]>>,
    stop: AtomicBool,
    origin: Instant,
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(NEVER - 1)
    }

    fn owners(&self) -> std::sync::MutexGuard<'_, Box<[Option<Thread>]>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, slot: usize) {
        if let Some(owner) = &self.owners()[slot] {
            owner.unpark();
        }
    }

    fn run(&self) {
        // The kernel would gather our wake-ups with others of the next 50 µs.
        // Where it refuses, they are late by that.
        let _ = nix::sys::prctl::set_timerslack(1);
        while !self.stop.load(Ordering::Acquire) {
            let Some(next) = self.orders.watch(self.now(), |slot| self.wake(slot)) else {
                continue;
            };
            if next == NEVER {
                thread::park();
            } else {
                thread::park_timeout(Duration::from_nanos(next.saturating_sub(self.now())));
            }
        }
    }
}

impl AlarmThread {
    /// Starts the thread, for at most `alarms` alarms at a time.
    ///
    /// # Errors
    ///
    /// The kernel starts no further thread.
    pub fn start(alarms: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            orders: Orders::new(alarms),
            owners: Mutex::new(vec![None; alarms].into_boxed_slice()),
            stop: AtomicBool::new(false),
            origin: Instant::now(),
        });
        let thread = thread::Builder::new().name("soft-timer-alarm".to_owned());
        let handle = thread.spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        })?;
        Ok(Self(Arc::new(Running {
            shared,
            thread: handle.thread().clone(),
            handle: Some(handle),
        })))
    }

    /// An alarm that wakes the calling thread; `None` if all are given out.
    #[must_use]
    pub fn alarm(&self) -> Option<Alarm> {
        let mut owners = self.0.shared.owners();
        let slot = owners.iter().position(Option::is_none)?;
        owners[slot] = Some(thread::current());
        Some(Alarm {
            running: Arc::clone(&self.0),
            slot,
            not_send: PhantomData,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.thread.unpark();
        if let Some(handle) = self.handle.take() {
            // It runs no code that panics but a poisoned lock's, which it takes.
            let _ = handle.join();
        }
    }
}

/// Wakes the thread that asked for it, by [`Thread::unpark`]. Stays on it.
#[derive(Debug)]
pub struct Alarm {
    running: Arc<Running>,
    slot: usize,
    not_send: PhantomData<*const ()>,
}

impl Alarm {
    fn order(&self, deadline: u64) {
        if self.running.shared.orders.place(self.slot, deadline) {
            self.running.thread.unpark();
        }
    }
}

impl Backup for Alarm {
    fn arm(&mut self, after: Duration) -> io::Result<()> {
        let after = u64::try_from(after.as_nanos()).unwrap_or(NEVER);
        let now = self.running.shared.now();
        self.order(now.saturating_add(after).min(NEVER - 1));
        Ok(())
    }

    fn cancel(&mut self) -> io::Result<()> {
        self.order(NEVER);
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self) -> io::Result<()> {
        thread::park();
        Ok(())
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.order(NEVER);
        self.running.shared.owners()[self.slot] = None;
    }
}

/// What owners and the alarm thread share without a lock.
mod orders {
    #[cfg(loom)]
    use loom::sync::atomic::{AtomicU64, Ordering, fence};
    #[cfg(not(loom))]
    use std::sync::atomic::{AtomicU64, Ordering, fence};

    /// No order.
    pub(super) const NEVER: u64 = u64::MAX;
    /// The alarm thread is awake and will look at all orders before it sleeps.
    const AWAKE: u64 = 0;

    /// One order per alarm, in nanoseconds.
    #[derive(Debug)]
    pub(super) struct Orders {
        deadlines: Box<[AtomicU64]>,
        /// Until when the alarm thread sleeps, or [`AWAKE`].
        asleep_until: AtomicU64,
    }

    impl Orders {
        pub(super) fn new(alarms: usize) -> Self {
            Self {
                deadlines: (0..alarms).map(|_| AtomicU64::new(NEVER)).collect(),
                asleep_until: AtomicU64::new(AWAKE),
            }
        }

        /// Owner: replaces the order. True if the alarm thread sleeps for
        /// longer and must be woken.
        pub(super) fn place(&self, slot: usize, deadline: u64) -> bool {
            // A swap, so that it comes before or after the alarm thread's own
            // exchange, and never beside it.
            self.deadlines[slot].swap(deadline, Ordering::AcqRel);
            // Either this load sees how long the alarm thread sleeps, or its
            // second look sees the order.
            fence(Ordering::SeqCst);
            deadline < self.asleep_until.load(Ordering::Acquire)
        }

        /// Alarm thread: wakes whose time has come, and says until when to
        /// sleep; `None` if orders came meanwhile, so that it must look again.
        pub(super) fn watch(&self, now: u64, mut wake: impl FnMut(usize)) -> Option<u64> {
            self.asleep_until.store(AWAKE, Ordering::Release);
            let mut next = NEVER;
            for (slot, order) in self.deadlines.iter().enumerate() {
                let deadline = order.load(Ordering::Acquire);
                if deadline > now {
                    next = next.min(deadline);
                } else if order
                    .compare_exchange(deadline, NEVER, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
                    wake(slot);
                } else {
                    // Its owner has just replaced it.
                    return None;
                }
            }
            self.asleep_until.store(next, Ordering::Release);
            fence(Ordering::SeqCst);
            let earlier = |order: &AtomicU64| order.load(Ordering::Acquire) < next;
            (!self.deadlines.iter().any(earlier)).then_some(next)
        }
    }

    #[cfg(all(test, loom))]
    mod loom_tests {
        use loom::sync::Arc;
        use loom::thread;

        use super::*;

        /// The alarm thread watches while an owner orders and parks. Loom finds
        /// the lost wake-up, if there is one, as a deadlock.
        #[test]
        fn no_wake_up_is_lost() {
            loom::model(|| {
                let orders = Arc::new(Orders::new(1));
                let owner = thread::current();
                let alarm = thread::spawn({
                    let orders = Arc::clone(&orders);
                    move || {
                        let mut woken = false;
                        while !woken {
                            let next = orders.watch(10, |_| {
                                woken = true;
                                owner.unpark();
                            });
                            if !woken && next.is_some() {
                                thread::park();
                            }
                        }
                    }
                });
                if orders.place(0, 5) {
                    alarm.thread().unpark();
                }
                thread::park();
                alarm.join().unwrap();
            });
        }

        /// An owner replaces an order that falls due: the new one stays, whether
        /// or not the old one still wakes.
        #[test]
        fn a_replaced_order_stays() {
            loom::model(|| {
                let orders = Arc::new(Orders::new(1));
                orders.place(0, 5);
                let owner = thread::spawn({
                    let orders = Arc::clone(&orders);
                    move || orders.place(0, 20)
                });
                let first = orders.watch(10, |_| {});
                let woken = owner.join().unwrap();
                let sleeps_too_long = first.is_none_or(|until| until > 20);
                assert!(!sleeps_too_long || woken || first.is_none());
                assert_eq!(orders.watch(10, |_| {}), Some(20));
            });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_thread_is_woken_for_its_own_order_and_not_before() {
        let alarms = AlarmThread::start(4).unwrap();
        thread::scope(|scope| {
            for owner in 1..=4_u64 {
                let alarms = &alarms;
                scope.spawn(move || {
                    let mut alarm = alarms.alarm().unwrap();
                    for order in 1..20 {
                        let after = Duration::from_micros(owner * order * 37);
                        let start = Instant::now();
                        alarm.arm(after).unwrap();
                        // A wake-up of the last round may still be in the air.
                        while start.elapsed() < after {
                            alarm.wait().unwrap();
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn alarms_are_limited_and_come_back() {
        let alarms = AlarmThread::start(1).unwrap();
        let first = alarms.alarm().unwrap();
        assert!(alarms.alarm().is_none());
        drop(first);
        assert!(alarms.alarm().is_some());
    }

    /// Its thread had ended with the first, and whoever parked was never woken.
    #[test]
    fn an_alarm_outlives_what_made_it() {
        let alarms = AlarmThread::start(1).unwrap();
        let mut alarm = alarms.alarm().unwrap();
        let shared = Arc::clone(&alarm.running.shared);
        drop(alarms);
        let (start, after) = (Instant::now(), Duration::from_millis(1));
        alarm.arm(after).unwrap();
        while start.elapsed() < after {
            // Longer than any machine is busy.
            thread::park_timeout(Duration::from_secs(20));
        }
        assert!(start.elapsed() < Duration::from_secs(20), "nobody woke it");
        drop(alarm);
        assert_eq!(Arc::strong_count(&shared), 1, "the thread has ended");
    }

    #[test]
    fn a_later_order_takes_the_place_of_an_earlier_one() {
        let alarms = AlarmThread::start(1).unwrap();
        let mut alarm = alarms.alarm().unwrap();
        let start = Instant::now();
        alarm.arm(Duration::from_secs(3600)).unwrap();
        alarm.arm(Duration::from_millis(1)).unwrap();
        while start.elapsed() < Duration::from_millis(1) {
            alarm.wait().unwrap();
        }
        // Hangs if the hour counted.
    }
}
