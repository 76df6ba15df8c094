//! Soft events with deadlines, kept by a POSIX timer.
//!
//! Its signal runs the handler of an event that is overdue. The next event is scheduled in
//! the trigger state after that, where alone the timers may be touched.
//!
//! Arming is a system call and often an exit to a hypervisor, so it is not done for each
//! event: the timer stays armed for an earlier deadline, and a signal that comes before the
//! pending event's deadline arms it for that. At any moment the timer is armed for no later
//! than the pending event's deadline.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed, compiler_fence};
use std::thread;
use std::time::Duration;

use plimsoll_timers::{Backup, Clock, CycleClock, Instant, Timers};

use super::handler::Handler;
use super::one_event;
use super::signal::SignalTimer;

#[derive(Debug)]
pub(super) struct Within {
    timers: Timers<()>,
    every: Duration,
    slack_ticks: u32,
    due: Instant,
    event: Arc<Event>,
    alarm: Alarm,
}

/// The event that is pending, shared with the signal. That interrupts the thread which owns
/// the rest, so loads and stores are enough.
#[derive(Debug, Default)]
struct Event {
    state: AtomicU8,
    /// In nanoseconds of the timers' clock, while it is pending.
    deadline: AtomicU64,
    /// The timer expired while none was pending.
    expired: AtomicBool,
    by_kernel: AtomicU64,
}

/// The thread itself has the event in hand.
const TAKEN: u8 = 0;
const PENDING: u8 = 1;
/// The signal has run the handler.
const FIRED: u8 = 2;

#[derive(Debug)]
struct Alarm {
    timer: SignalTimer,
    event: Arc<Event>,
}

impl Within {
    pub(super) fn start(
        every: Duration,
        slack: Duration,
        handler: &Arc<Handler>,
    ) -> io::Result<Self> {
        let event = Arc::new(Event::default());
        let clock = CycleClock::new();
        let run = {
            let (event, handler) = (Arc::clone(&event), Arc::clone(handler));
            let clock = clock.clone();
            move || event.on_signal(clock.now(), &handler)
        };
        let timers = one_event(clock);
        let mut within = Self {
            due: timers.now(),
            timers,
            every,
            slack_ticks: u32::try_from(slack.as_micros()).unwrap_or(u32::MAX),
            alarm: Alarm {
                timer: SignalTimer::new(run)?,
                event: Arc::clone(&event),
            },
            event,
        };
        within.schedule(within.due);
        Ok(within)
    }

    pub(super) fn fired_by_kernel(&self) -> u64 {
        self.event.by_kernel.load(Relaxed)
    }

    #[inline]
    pub(super) fn pass(&mut self, handler: &Handler) {
        let Some(now) = self.timers.check() else {
            return;
        };
        if self.timers.poll_event(now).is_none() {
            return;
        }
        match self.event.state.swap(TAKEN, Relaxed) {
            FIRED => self.timers.on_backup_expiry(),
            _ => handler.run(),
        }
        self.schedule(now);
    }

    /// The next event, at the series' own rate, but not in a burst after a gap.
    fn schedule(&mut self, now: Instant) {
        self.due = (self.due + self.every).max(now);
        let ahead = self.due.saturating_since(now).as_micros() as u64;
        let again = self
            .timers
            .schedule_with_deadline(ahead, self.slack_ticks, ());
        again.expect("the event that fired left its place");
        let deadline = self.timers.next_deadline().unwrap_or(Instant::MAX);
        self.event.deadline.store(deadline.as_nanos(), Relaxed);
        // In this order, as a signal sees it. From here on it arms the timer itself.
        compiler_fence(SeqCst);
        self.event.state.store(PENDING, Relaxed);
        compiler_fence(SeqCst);
        if self.event.expired.swap(false, Relaxed) {
            self.timers.on_backup_expiry();
        }
        // A timer that exists takes any time to expire at.
        let armed = self.timers.arm_no_later(&mut self.alarm);
        debug_assert!(armed.is_ok(), "{armed:?}");
    }
}

impl Event {
    /// Fires the pending event if it is overdue. If it is not, or not yet, returns how long
    /// its deadline is away.
    fn on_signal(&self, now: Instant, handler: &Handler) -> Option<Duration> {
        if self.state.load(Relaxed) != PENDING {
            // The thread is about to schedule the next one, and may believe it armed.
            self.expired.store(true, Relaxed);
            return None;
        }
        let deadline = Instant::from_nanos(self.deadline.load(Relaxed));
        if now < deadline {
            return Some(deadline.saturating_since(now));
        }
        self.state.store(FIRED, Relaxed);
        handler.run();
        self.by_kernel
            .store(self.by_kernel.load(Relaxed) + 1, Relaxed);
        None
    }
}

impl Backup for Alarm {
    fn arm(&mut self, after: Duration) -> io::Result<()> {
        self.timer.once(after)
    }

    fn cancel(&mut self) -> io::Result<()> {
        self.timer.never()
    }

    fn clear(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// The server never waits for it; it waits for its connections.
    fn wait(&mut self) -> io::Result<()> {
        while self.event.state.load(Relaxed) == PENDING {
            thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}
