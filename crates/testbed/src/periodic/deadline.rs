//! Soft events with deadlines, kept by a POSIX timer.
//!
//! Its signal runs the handler of an event that is overdue. The next event is scheduled in
//! the trigger state after that, where alone the timers may be touched.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use plimsoll_timers::{Backup, Instant, Timers};

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
        let run = {
            let (event, handler) = (Arc::clone(&event), Arc::clone(handler));
            move || event.on_deadline(&handler)
        };
        let timers = one_event();
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
        // A timer that exists takes any time to expire at.
        let armed = self.timers.arm_for_deadline(&mut self.alarm);
        debug_assert!(armed.is_ok(), "{armed:?}");
        // Now, since until it was armed anew it could expire for the event before.
        self.event.state.store(PENDING, Relaxed);
    }
}

impl Event {
    fn on_deadline(&self, handler: &Handler) {
        if self.state.load(Relaxed) == PENDING {
            self.state.store(FIRED, Relaxed);
            handler.run();
            self.by_kernel
                .store(self.by_kernel.load(Relaxed) + 1, Relaxed);
        }
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
