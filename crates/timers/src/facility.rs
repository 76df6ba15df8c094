//! The facility: the paper's four calls with a clock of its own.

use std::io;
use std::time::Duration;

use plimsoll_core::config::ConfigError;
use plimsoll_core::soft_timer::{
    EventId, FiredEvent, HardwareTimer, IdleAction, SoftTimerConfig, SoftTimers, TimersFull,
};
use plimsoll_core::time::Instant;

use crate::backup::{Backup, armed_for};
use crate::clock::{Clock, CycleClock};

/// Soft events of one thread: [`SoftTimers`] and the clock they are asked with.
///
/// `T` is a handler's value: a small number, an enum, an index. The caller gets
/// it back when the event is due and does the work itself.
#[derive(Clone, Debug)]
pub struct Timers<T, C = CycleClock> {
    events: SoftTimers<T>,
    clock: C,
}

impl<T: Copy> Timers<T> {
    /// On the processor's cycle counter. Takes all the memory it will ever use.
    ///
    /// # Errors
    ///
    /// A field of `config` is out of its range.
    pub fn new(config: SoftTimerConfig) -> Result<Self, ConfigError> {
        Self::with_clock(config, CycleClock::new())
    }
}

impl<T: Copy, C: Clock> Timers<T, C> {
    /// On a clock of the caller's.
    ///
    /// # Errors
    ///
    /// A field of `config` is out of its range.
    pub fn with_clock(config: SoftTimerConfig, clock: C) -> Result<Self, ConfigError> {
        Ok(Self {
            events: SoftTimers::new(config)?,
            clock,
        })
    }

    /// Resolution of the measurement clock in Hz (`measure_resolution()`).
    #[must_use]
    pub fn measure_resolution(&self) -> u64 {
        self.events.measure_resolution()
    }

    /// The present time in ticks of that clock (`measure_time()`).
    #[must_use]
    pub fn measure_time(&self) -> u64 {
        self.events.measure_time(self.now())
    }

    /// Frequency in Hz of the backup: the resolution that is guaranteed to a
    /// thread which blocks on it (`interrupt_clock_resolution()`).
    #[must_use]
    pub fn interrupt_clock_resolution(&self) -> u64 {
        self.events.interrupt_clock_resolution()
    }

    /// The present time.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Schedules an event at least `ticks` in the future
    /// (`schedule_soft_event(T, handler)`): it fires in the first check that
    /// finds the clock more than `ticks` later.
    ///
    /// # Errors
    ///
    /// No place is free.
    pub fn schedule_soft_event(&mut self, ticks: u64, payload: T) -> Result<EventId, TimersFull> {
        self.events.schedule_soft_event(self.now(), ticks, payload)
    }

    /// As [`Self::schedule_soft_event`], from a check whose time `now` is known:
    /// spares a reading of the clock.
    ///
    /// # Errors
    ///
    /// No place is free.
    pub fn reschedule(
        &mut self,
        now: Instant,
        ticks: u64,
        payload: T,
    ) -> Result<EventId, TimersFull> {
        self.events.schedule_soft_event(now, ticks, payload)
    }

    /// Schedules an event at least `ticks` in the future, with a deadline
    /// `slack_ticks` after it is due (section 5.9).
    ///
    /// # Errors
    ///
    /// No place is free.
    pub fn schedule_with_deadline(
        &mut self,
        ticks: u64,
        slack_ticks: u32,
        payload: T,
    ) -> Result<EventId, TimersFull> {
        self.events
            .schedule_with_deadline(self.now(), ticks, slack_ticks, payload)
    }

    /// Schedules an event not before `at`. The event of a series is scheduled
    /// like this from the moment its predecessor was due, or not later than one
    /// interval from now, so that a long gap does not end in a burst.
    ///
    /// # Errors
    ///
    /// No place is free.
    pub fn schedule_at(&mut self, at: Instant, payload: T) -> Result<EventId, TimersFull> {
        self.events.schedule_at(self.now(), at, payload)
    }

    /// Takes an event back; `None` if it fired or was cancelled before.
    pub fn cancel(&mut self, event: EventId) -> Option<T> {
        self.events.cancel(event)
    }

    /// The check of a trigger state: the present time if an event may be due.
    /// With nothing pending the clock is not even read.
    ///
    /// ```
    /// # use plimsoll_timers::{SoftTimerConfig, Timers};
    /// # let mut timers = Timers::<u32>::new(SoftTimerConfig::default()).unwrap();
    /// if let Some(now) = timers.check() {
    ///     while let Some(event) = timers.poll_event(now) {
    ///         println!("{} is due", event.payload);
    ///     }
    /// }
    /// ```
    #[inline]
    #[must_use]
    pub fn check(&self) -> Option<Instant> {
        let due = self.events.next_event()?;
        let now = self.clock.now();
        (now >= due).then_some(now)
    }

    /// Yields one event due at `now`, by due tick. Events scheduled meanwhile
    /// are due after `now`, so asking until `None` ends.
    #[inline]
    pub fn poll_event(&mut self, now: Instant) -> Option<FiredEvent<T>> {
        self.events.poll_event(now)
    }

    /// The moment from which on an event may be due; `None` without events.
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        self.events.next_event()
    }

    /// The moment at which the earliest deadline lies; `None` without events.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.events.next_deadline()
    }

    /// Events scheduled and neither fired nor cancelled.
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.events.pending()
    }

    /// X: ticks of the measurement clock per period of the backup.
    #[must_use]
    pub fn backup_ticks(&self) -> u32 {
        self.events.backup_ticks()
    }

    /// Whether the thread should go on checking because an event is due before
    /// it could be woken, `wake_up` after it blocks (section 5.1, the idle rule).
    #[must_use]
    pub fn idle_action(&self, wake_up: Duration) -> IdleAction {
        self.events.idle_action(self.now() + wake_up, false)
    }

    /// Arms `backup` for the earliest deadline, if it is not armed for it. One that is far may
    /// expire somewhat early, since clocks differ: call [`Self::on_backup_expiry`] and then
    /// this again.
    ///
    /// # Errors
    ///
    /// What the backup answers.
    pub fn arm_for_deadline(&mut self, backup: &mut impl Backup) -> io::Result<()> {
        match self.events.poll_hardware_timer() {
            Some(HardwareTimer::Arm(at)) => self.arm_at(backup, at),
            Some(HardwareTimer::Cancel) => backup.cancel(),
            None => Ok(()),
        }
    }

    /// As [`Self::arm_for_deadline`], with a system call per deadline and not one per event:
    /// a backup that is armed for an earlier moment stays so. Its expiry may find nothing
    /// overdue. Call [`Self::on_backup_expiry`] and then this again.
    ///
    /// # Errors
    ///
    /// What the backup answers.
    pub fn arm_no_later(&mut self, backup: &mut impl Backup) -> io::Result<()> {
        match self.events.poll_earlier_hardware_timer() {
            Some(at) => self.arm_at(backup, at),
            None => Ok(()),
        }
    }

    fn arm_at(&self, backup: &mut impl Backup, at: Instant) -> io::Result<()> {
        backup.arm(armed_for(at.saturating_since(self.now())))
    }

    /// The backup expired: it is no longer armed.
    pub fn on_backup_expiry(&mut self) {
        self.events.on_hardware_expiry();
    }
}
