//! Sleeps of microseconds inside a tokio runtime, whose own timers tick once a
//! millisecond.
//!
//! [`SoftTime`] is asked in the runtime's trigger states: before a worker parks
//! and after it is unparked (stable hooks of `runtime::Builder`), whenever a
//! [`Sleep`] is polled, wherever the program calls [`SoftTime::check`], and
//! before and after each task's poll if tokio was built with `tokio_unstable`.
//! A parked worker is woken by a timer file descriptor in the runtime's own
//! driver. That descriptor also bounds delays while the runtime never parks: the
//! driver is looked at every 61 polls (`event_interval`).
//!
//! ```
//! use std::time::Duration;
//! use plimsoll_timers::tokio::{SoftTime, SoftTimeConfig};
//!
//! let time = SoftTime::new(SoftTimeConfig::default())?;
//! let mut builder = tokio::runtime::Builder::new_current_thread();
//! time.install(&mut builder);
//! builder.build()?.block_on(async {
//!     time.sleep(Duration::from_micros(40)).await
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Locks.** The check reads one atomic and the clock. Scheduling and firing
//! take a lock, since a future may be dropped on any thread. With one runtime
//! per core, each with its own `SoftTime`, nobody contends for it.

use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use plimsoll_core::config::ConfigError;
use plimsoll_core::soft_timer::{EventId, IdleAction, SoftTimerConfig, SoftTimers};
use plimsoll_core::time::Instant;
use slab::Slab;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Handle};

use crate::backup::{TimerFd, armed_for};
use crate::clock::{Clock, CycleClock};
use crate::earliest::{Earliest, Guard, Scheduled};

/// What a [`SoftTime`] may hold and burn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftTimeConfig {
    /// Clock and room; as many sleeps at a time as `capacity`.
    pub timers: SoftTimerConfig,
    /// A worker that would park goes on checking if an event is due within this
    /// time. Larger makes sleeps more exact and burns the CPU meanwhile. The
    /// time in which the kernel wakes a thread is about right. Zero, the
    /// default, never spins.
    pub wake_up: Duration,
}

impl Default for SoftTimeConfig {
    fn default() -> Self {
        Self {
            timers: SoftTimerConfig::default(),
            wake_up: Duration::ZERO,
        }
    }
}

/// Soft events of one tokio runtime. Clones are the same.
#[derive(Clone, Debug)]
pub struct SoftTime(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: CycleClock,
    /// A worker spins until the next event: another need not (section 5.1,
    /// "some other idle CPU is doing the checking").
    checking: AtomicBool,
    wake_up: Duration,
    pending: Earliest<Pending>,
    /// In the runtime's driver, from the first sleep to the runtime's end. Locked after `pending`.
    backup: Mutex<Option<Backup>>,
}

type Backup = Arc<AsyncFd<TimerFd>>;

#[derive(Debug)]
struct Pending {
    events: SoftTimers<u32>,
    sleeps: Slab<Waiting>,
    /// For which moment the backup is armed.
    armed: Option<Instant>,
    /// Workers between both hooks.
    parked: u32,
}

impl Scheduled for Pending {
    fn next_event(&self) -> Option<Instant> {
        self.events.next_event()
    }
}

/// A sleep that was polled and is neither over nor dropped.
#[derive(Debug)]
struct Waiting {
    event: EventId,
    waker: Option<Waker>,
}

impl SoftTime {
    /// Takes the memory for `config.timers.capacity` sleeps.
    ///
    /// # Errors
    ///
    /// A field of `config.timers` is out of its range.
    pub fn new(config: SoftTimeConfig) -> Result<Self, ConfigError> {
        Ok(Self(Arc::new(Shared {
            clock: CycleClock::new(),
            checking: AtomicBool::new(false),
            wake_up: config.wake_up,
            pending: Earliest::new(Pending {
                events: SoftTimers::new(config.timers)?,
                sleeps: Slab::with_capacity(config.timers.capacity as usize),
                armed: None,
                parked: 0,
            }),
            backup: Mutex::new(None),
        })))
    }

    /// Makes the parking of workers a trigger state of the runtime that
    /// `builder` builds: one runtime at a time for one `SoftTime`, with I/O enabled. It
    /// takes the builder's hooks `on_thread_park` and `on_thread_unpark`, and
    /// those around each poll of a task under `tokio_unstable`.
    pub fn install(&self, builder: &mut Builder) {
        let (before, after) = (Arc::clone(&self.0), Arc::clone(&self.0));
        builder
            .enable_io()
            .on_thread_park(move || before.before_park())
            .on_thread_unpark(move || after.after_unpark());
        #[cfg(tokio_unstable)]
        {
            let (before, after) = (Arc::clone(&self.0), Arc::clone(&self.0));
            builder
                .on_before_task_poll(move |_| before.check())
                .on_after_task_poll(move |_| after.check());
        }
    }

    /// The present time of the clock by which this sleeps.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.0.clock.now()
    }

    /// A trigger state of the program's own: wakes the sleeps that are over. One
    /// reading of an atomic and of the clock if there are none.
    #[inline]
    pub fn check(&self) {
        self.0.check();
    }

    /// Sleeps for at least `span`.
    pub fn sleep(&self, span: Duration) -> Sleep {
        self.sleep_until(self.now() + span)
    }

    /// Sleeps until `at`. For a series, add the interval to the last `at`, or to
    /// the present time after a long gap: then the gap does not end in a burst.
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        Sleep {
            time: self.clone(),
            at,
            place: None,
        }
    }
}

impl Shared {
    fn lock(&self) -> Guard<'_, Pending> {
        self.pending.lock()
    }

    fn backup(&self) -> MutexGuard<'_, Option<Backup>> {
        self.backup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn check(&self) {
        let next = self.pending.next();
        if next != Instant::MAX && self.clock.now() >= next {
            self.fire();
        }
    }

    /// Wakes all sleeps that are over, a handful at a time, outside the lock:
    /// waking may drop or poll other sleeps.
    fn fire(&self) {
        let now = self.clock.now();
        loop {
            let mut due: [Option<Waker>; 16] = Default::default();
            let mut pending = self.lock();
            let mut woken = 0;
            while woken < due.len()
                && let Some(event) = pending.events.poll_event(now)
            {
                due[woken] = pending.sleeps[event.payload as usize].waker.take();
                woken += 1;
            }
            drop(pending);
            due.iter_mut()
                .filter_map(Option::take)
                .for_each(Waker::wake);
            if woken < due.len() {
                return;
            }
        }
    }

    /// The hook before a worker parks: the idle rule.
    fn before_park(&self) {
        self.check();
        self.check_while_idle();
        let mut pending = self.lock();
        pending.parked += 1;
        if let Some(at) = pending.events.next_event()
            && pending.armed != Some(at)
        {
            self.arm(&mut pending, at);
        }
    }

    fn after_unpark(&self) {
        self.lock().parked -= 1;
        self.check();
    }

    /// Goes on checking as long as an event is due before the kernel could wake
    /// this thread, unless another thread does so.
    fn check_while_idle(&self) {
        let woken = self.clock.now() + self.wake_up;
        let others = self.checking.swap(true, Ordering::AcqRel);
        if others {
            return;
        }
        if self.lock().events.idle_action(woken, others) == IdleAction::Check {
            // Another thread may fire or cancel the event meanwhile.
            while self.clock.now() < self.pending.next() && self.pending.next() < woken {
                std::hint::spin_loop();
            }
            self.check();
        }
        self.checking.store(false, Ordering::Release);
    }

    fn arm(&self, pending: &mut Pending, at: Instant) {
        let backup = self.backup();
        let Some(backup) = backup.as_ref() else {
            return;
        };
        let after = armed_for(at.saturating_since(self.clock.now()));
        // The kernel refuses no order of ours; if it did, the next one may work.
        let armed = backup.get_ref().arm_shared(after).is_ok();
        pending.armed = armed.then_some(at);
    }

    /// Arms the backup for an event that was just scheduled, if it would come
    /// too late: for parked workers, when the event is due; for running ones, at
    /// its deadline. Arming for later events is left to the expiry, which comes
    /// once per period of the backup at most.
    fn cover(&self, pending: &mut Pending) {
        let wanted = if pending.parked > 0 {
            pending.events.next_event()
        } else {
            pending.events.next_deadline()
        };
        if let Some(at) = wanted
            && pending.armed.is_none_or(|armed| armed > at)
        {
            self.arm(pending, at);
        }
    }

    fn on_backup_expiry(&self) {
        self.lock().armed = None;
        self.check();
        self.cover(&mut self.lock());
    }

    /// Schedules a sleep for `waker`; its place.
    fn add(self: &Arc<Self>, at: Instant, waker: Waker) -> io::Result<usize> {
        self.start_backup()?;
        let mut guard = self.lock();
        let pending = &mut *guard;
        let place = pending.sleeps.vacant_entry();
        let key = place.key();
        let payload = u32::try_from(key).map_err(io::Error::other)?;
        let event = pending
            .events
            .schedule_at(self.clock.now(), at, payload)
            .map_err(io::Error::other)?;
        place.insert(Waiting {
            event,
            waker: Some(waker),
        });
        self.cover(pending);
        Ok(key)
    }

    /// Lets the sleep at `place` wake `waker` from now on. False if it has fired: another
    /// thread may do so between a task's look at the clock and this.
    fn rewake(&self, place: usize, waker: &Waker) -> bool {
        // What is replaced is dropped when the lock is given back: with a waker its task may go,
        // and with that other sleeps.
        let mut replaced = Some(waker.clone());
        let mut pending = self.lock();
        let known = &mut pending.sleeps[place].waker;
        let still_waits = known.is_some();
        if still_waits {
            mem::swap(known, &mut replaced);
        }
        drop(pending);
        still_waits
    }

    fn remove(&self, place: usize) {
        let mut pending = self.lock();
        let waiting = pending.sleeps.remove(place);
        pending.events.cancel(waiting.event);
        // Before its waker goes, as above.
        drop(pending);
    }

    /// A runtime that ended took its backup along, and sleeps go on in the next one.
    fn renew_backup(self: &Arc<Self>) -> io::Result<()> {
        if self.start_backup()? {
            self.cover(&mut self.lock());
        }
        Ok(())
    }

    /// Registers a backup with the current runtime's driver, if there is none; whether it did. A
    /// task waits for it, since the runtime runs no hook for a descriptor nobody awaits.
    fn start_backup(self: &Arc<Self>) -> io::Result<bool> {
        let mut known = self.backup();
        if known.is_some() {
            return Ok(false);
        }
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe; sound here, a TimerFd keeps its one descriptor open"
        )]
        let backup = AsyncFd::with_interest(TimerFd::new()?, Interest::READABLE)?;
        let backup = Arc::new(backup);
        *known = Some(Arc::clone(&backup));
        drop(known);
        let watched = Watched {
            shared: Arc::clone(self),
            backup,
        };
        runtime.spawn(watched.watch());
        Ok(true)
    }
}

/// A backup that a task of its runtime waits for. When the runtime ends, so do the task and
/// the driver, and the next runtime gets a backup of its own.
struct Watched {
    shared: Arc<Shared>,
    backup: Backup,
}

impl Watched {
    async fn watch(self) {
        while let Ok(mut ready) = self.backup.readable().await {
            if ready.get_inner().clear_shared().is_err() {
                return;
            }
            ready.clear_ready();
            self.shared.on_backup_expiry();
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut pending = self.shared.lock();
        pending.armed = None;
        *self.shared.backup() = None;
    }
}

/// Over once its time has come; made by [`SoftTime::sleep`]. Fails if the
/// configured number of sleeps is exceeded, or outside a runtime.
///
/// # Panics
///
/// In a runtime without I/O, as tokio's own I/O types do. [`SoftTime::install`] enables it.
#[derive(Debug)]
#[must_use = "a sleep does nothing unless it is awaited"]
pub struct Sleep {
    time: SoftTime,
    at: Instant,
    /// Its place among the waiting, once it was polled.
    place: Option<usize>,
}

impl Sleep {
    /// When it is over.
    #[must_use]
    pub fn at(&self) -> Instant {
        self.at
    }
}

impl Future for Sleep {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Every poll is a trigger state, for the other sleeps as well.
        self.time.check();
        if self.time.now() >= self.at {
            self.cancel();
            return Poll::Ready(Ok(()));
        }
        self.wait(context.waker())
    }
}

impl Sleep {
    /// The part of a poll that found the time not yet come.
    fn wait(&mut self, waker: &Waker) -> Poll<io::Result<()>> {
        let Some(place) = self.place else {
            self.place = Some(self.time.0.add(self.at, waker.clone())?);
            return Poll::Pending;
        };
        if self.time.0.rewake(place, waker) {
            self.time.0.renew_backup()?;
            return Poll::Pending;
        }
        self.cancel();
        Poll::Ready(Ok(()))
    }

    fn cancel(&mut self) {
        if let Some(place) = self.place.take() {
            self.time.0.remove(place);
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Wake;
    use std::thread;

    use super::*;

    /// A task that goes with its last waker, as those of simple executors do, and a sleep in it.
    struct Task {
        _sleep: Sleep,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    /// A sleep that waits, known by the waker of a task that has another such sleep.
    fn sleep_of_a_task(time: &SoftTime) -> Sleep {
        let span = Duration::from_secs(3600);
        let mut inner = time.sleep(span);
        assert!(inner.wait(Waker::noop()).is_pending());
        let mut sleep = time.sleep(span);
        let task = Arc::new(Task { _sleep: inner });
        assert!(sleep.wait(&Waker::from(task)).is_pending());
        sleep
    }

    /// The waker had been dropped under the lock that the sleep in its task takes: for ever.
    #[test]
    fn a_waker_that_takes_a_sleep_along_is_dropped_without_the_lock() {
        let (sender, done) = mpsc::channel();
        // Not awaited: it would not come back.
        thread::spawn(move || {
            let time = SoftTime::new(SoftTimeConfig::default()).unwrap();
            let mut builder = Builder::new_current_thread();
            time.install(&mut builder);
            builder.build().unwrap().block_on(async {
                let mut polled_by_another = sleep_of_a_task(&time);
                assert!(polled_by_another.wait(Waker::noop()).is_pending());
                drop(sleep_of_a_task(&time));
                drop(polled_by_another);
                assert!(time.0.lock().sleeps.is_empty());
            });
            sender.send(()).unwrap();
        });
        let ended = done.recv_timeout(Duration::from_secs(20));
        ended.expect("a sleep waits for its own lock");
    }

    /// Another worker fires a sleep just after its task found the time not yet come. The task
    /// left a waker that nobody would ever wake, and slept for ever.
    #[test]
    fn a_sleep_that_fires_while_it_is_polled_is_over() {
        let time = SoftTime::new(SoftTimeConfig::default()).unwrap();
        let mut builder = Builder::new_current_thread();
        time.install(&mut builder);
        builder.build().unwrap().block_on(async {
            let mut sleep = time.sleep(Duration::from_micros(20));
            assert!(sleep.wait(Waker::noop()).is_pending());
            assert!(sleep.wait(Waker::noop()).is_pending(), "it still waits");
            // At its time and the next tick.
            while time.now() < sleep.at() + Duration::from_micros(2) {}
            time.check();
            assert!(matches!(sleep.wait(Waker::noop()), Poll::Ready(Ok(()))));
            assert!(time.0.lock().sleeps.is_empty(), "its place is free");
        });
    }
}
