//! Soft timers: events at microsecond granularity without an interrupt each.
//!
//! A running system often passes through *trigger states*, moments in which a
//! handler can be called for the price of a function call: the end of a system
//! call, of an interrupt, a turn of a polling loop. [`SoftTimers`] is asked in
//! each of them whether an event is due. The question is one comparison, so it
//! can be asked every few microseconds; an event then fires a little after its
//! time, in the first trigger state. How late is a matter of luck, but bounded:
//! a periodic interrupt (the backup), or a hardware timer armed for the
//! earliest deadline, asks the same question.
//!
//! Source: Aron and Druschel, sections 3, 5.1, 5.9 and 5.10. Covers ST-01 to
//! ST-26, except that ST-15, ST-18 and ST-26 are what the simulated host
//! measures with it.
//!
//! | paper | here |
//! | --- | --- |
//! | `measure_resolution()` | [`SoftTimers::measure_resolution`], from the config |
//! | `measure_time()` | [`SoftTimers::measure_time`] converts the caller's clock into ticks |
//! | `schedule_soft_event(T, handler)` | [`SoftTimers::schedule_soft_event`]; a payload in place of the handler |
//! | `interrupt_clock_resolution()` | [`SoftTimers::interrupt_clock_resolution`], from the config |
//! | check in a trigger state | [`SoftTimers::poll_event`], repeated until it returns `None` |
//! | on-chip timer armed and cancelled | [`SoftTimers::poll_hardware_timer`] |
//! | idle loop | [`SoftTimers::idle_action`] |
//!
//! **Bounds.** With T in ticks and X backup periods in ticks, an event fires
//! later than T and earlier than T + X + 1 ticks after it was scheduled, if the
//! host asks at every backup interrupt. The lower bound needs nothing.
//!
//! **Memory.** 32 bytes per event of the configured capacity (payloads up to 8
//! bytes) and 17 KiB for the wheel, all taken at construction. Full is an error
//! that is returned.
//!
//! **When it loses.** Busy CPUs that make no calls and take no interrupts reach
//! no trigger states: delays go to the backup's period (ST-18). Deadlines near
//! the mean interval between trigger states turn into interrupts (a quarter of
//! the events, in the paper's tightest case): keep them loose. Events no finer
//! than the backup interrupt gain nothing here; [`Facility::for_event`] says
//! which facility suits. Most checks that fire take a constant time, but one
//! that enters a new block of ticks first moves all events of that block: with
//! 100,000 events in one block some hundreds of microseconds, once
//! (`enter_a_full_block` in `benches/timers.rs`).
//!
//! **Departures.** Events carry a payload and are handed out by `poll_event`
//! instead of calling a handler, so that handlers may schedule and cancel. An
//! expired hardware timer fires everything that is due, not only what is past
//! its deadline: the interrupt is paid for, and each event fired now spares one
//! later. Without a deadline of its own an event gets the backup's bound as its
//! deadline, so that hosts without a periodic interrupt keep the same bounds.
//!
//! **Why not an existing wheel.** `tokio-util`'s `DelayQueue` and
//! `hierarchical_hash_wheel_timer` (both measured beside this one in
//! `benches/timers.rs`) allocate while they run, need the standard library, and
//! know one time per event, no deadline. The former reads the clock itself; the
//! latter is moved tick by tick or by explicit skips and does not say when its
//! earliest event is due.

mod trigger;
mod wheel;

use core::fmt;
use core::time::Duration;

pub use trigger::{Facility, HardwareTimer, IdleAction, TriggerCounts, TriggerSource};
use wheel::{Key, Wheel};

use crate::config::{ConfigError, Field};
use crate::time::{Instant, NANOS_PER_SECOND};

/// The two clocks and the room of [`SoftTimers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftTimerConfig {
    /// Resolution of the measurement clock in Hz: a tick is its inverse.
    ///
    /// Finer ticks cost more moves per event; coarser ones make every event up
    /// to one tick later. Divides one billion, so that a tick is whole
    /// nanoseconds. Default 1 MHz, the paper's typical value.
    pub measure_resolution_hz: u64,
    /// Frequency in Hz of the periodic interrupt that backs the events up: the
    /// resolution that is guaranteed. Default 1 kHz, the paper's typical value.
    pub interrupt_clock_resolution_hz: u64,
    /// The most events pending at a time. Default 1024 (32 KiB).
    pub capacity: u32,
}

impl Default for SoftTimerConfig {
    fn default() -> Self {
        Self {
            measure_resolution_hz: 1_000_000,
            interrupt_clock_resolution_hz: 1_000,
            capacity: 1024,
        }
    }
}

impl SoftTimerConfig {
    /// Says which field cannot be worked with.
    ///
    /// # Errors
    ///
    /// The first field out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let resolution = self.measure_resolution_hz;
        Field("measure_resolution_hz", resolution).must_be(
            resolution > 0 && NANOS_PER_SECOND.is_multiple_of(resolution),
            "a divisor of 1000000000",
        )?;
        let backup = self.interrupt_clock_resolution_hz;
        Field("interrupt_clock_resolution_hz", backup).must_be_in(
            1..=resolution,
            "at least 1 and at most measure_resolution_hz",
        )?;
        Field("capacity", self.capacity)
            .must_be_in(1..=wheel::CAPACITY_MAX, "at least 1 and at most 4294967294")
    }

    /// X: ticks per backup interrupt, rounded up. It fits 32 bits, since a tick
    /// is at least a nanosecond and the backup comes at least once a second.
    fn backup_ticks(&self) -> u32 {
        self.measure_resolution_hz
            .div_ceil(self.interrupt_clock_resolution_hz) as u32
    }
}

/// Every place is taken: cancel events, or construct with more capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimersFull {
    /// The capacity that is exhausted.
    pub capacity: u32,
}

impl fmt::Display for TimersFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all {} soft events are pending", self.capacity)
    }
}

impl core::error::Error for TimersFull {}

/// Names a scheduled event, for cancelling it.
///
/// It matches no other event after its own fired or was cancelled (until the
/// same place was used 2³² times more).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(Key);

impl EventId {
    /// Names no event.
    pub(crate) const NONE: Self = Self(Key::NONE);
}

/// An event whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiredEvent<T> {
    /// What it was scheduled with.
    pub payload: T,
    /// The moment from which on it could fire.
    pub scheduled: Instant,
    /// The latest moment at which it should fire.
    pub deadline: Instant,
}

/// Pending soft events and the decision which of them fire now.
#[derive(Clone, Debug)]
pub struct SoftTimers<T> {
    wheel: Wheel<T>,
    /// When the earliest event is due: all that a trigger state looks at.
    next_event: Instant,
    tick_nanos: u64,
    /// The last tick whose beginning the clock can name.
    last_tick: u64,
    backup_ticks: u32,
    config: SoftTimerConfig,
    /// What the hardware timer was last armed for.
    armed: Option<Instant>,
}

impl<T: Copy> SoftTimers<T> {
    /// Takes all the memory it will ever use.
    ///
    /// # Errors
    ///
    /// A field of `config` is out of its range.
    pub fn new(config: SoftTimerConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let tick_nanos = NANOS_PER_SECOND / config.measure_resolution_hz;
        Ok(Self {
            wheel: Wheel::new(config.capacity),
            next_event: Instant::MAX,
            tick_nanos,
            last_tick: u64::MAX / tick_nanos,
            backup_ticks: config.backup_ticks(),
            config,
            armed: None,
        })
    }

    /// Resolution of the measurement clock in Hz.
    #[must_use]
    pub fn measure_resolution(&self) -> u64 {
        self.config.measure_resolution_hz
    }

    /// `now` in ticks of the measurement clock.
    #[must_use]
    pub fn measure_time(&self, now: Instant) -> u64 {
        now.as_nanos() / self.tick_nanos
    }

    /// Frequency of the backup interrupt in Hz: the guaranteed resolution.
    #[must_use]
    pub fn interrupt_clock_resolution(&self) -> u64 {
        self.config.interrupt_clock_resolution_hz
    }

    /// X: how many ticks of the measurement clock one backup period has.
    #[must_use]
    pub fn backup_ticks(&self) -> u32 {
        self.backup_ticks
    }

    /// The ticks that last at least `span`.
    #[must_use]
    pub fn ticks(&self, span: Duration) -> u64 {
        (Instant::ZERO + span).as_nanos().div_ceil(self.tick_nanos)
    }

    /// Schedules an event at least `ticks` in the future, backed by the
    /// periodic interrupt: it fires once the clock has moved by `ticks + 1`
    /// (scheduling need not fall on a tick).
    ///
    /// # Errors
    ///
    /// No place is free.
    pub fn schedule_soft_event(
        &mut self,
        now: Instant,
        ticks: u64,
        payload: T,
    ) -> Result<EventId, TimersFull> {
        // The first backup at or after the due tick is less than X ticks later.
        self.schedule_with_deadline(now, ticks, self.backup_ticks - 1, payload)
    }

    /// Schedules an event as [`Self::schedule_soft_event`] does, with a deadline
    /// of its own: `slack_ticks` after the event is due, for which the hardware
    /// timer will be armed.
    ///
    /// # Errors
    ///
    /// No place is free.
    pub fn schedule_with_deadline(
        &mut self,
        now: Instant,
        ticks: u64,
        slack_ticks: u32,
        payload: T,
    ) -> Result<EventId, TimersFull> {
        let tick = self.measure_time(now);
        let due = tick.saturating_add(ticks).saturating_add(1);
        self.insert(tick, due, slack_ticks, payload)
    }

    /// Schedules an event not before `at`, and not in the trigger state in which
    /// this is called (one tick after `now` at the earliest). The absolute form
    /// spares the tick that the relative one adds. Backed by the periodic
    /// interrupt.
    ///
    /// # Errors
    ///
    /// No place is free.
    pub fn schedule_at(
        &mut self,
        now: Instant,
        at: Instant,
        payload: T,
    ) -> Result<EventId, TimersFull> {
        let tick = self.measure_time(now);
        let due = at
            .as_nanos()
            .div_ceil(self.tick_nanos)
            .max(tick.saturating_add(1));
        self.insert(tick, due, self.backup_ticks - 1, payload)
    }

    /// Takes an event back; `None` if it fired or was cancelled before.
    pub fn cancel(&mut self, event: EventId) -> Option<T> {
        let payload = self.wheel.remove(event.0)?;
        self.refresh();
        Some(payload)
    }

    /// The check of a trigger state or backup: yields one due event per call, by
    /// due tick, and by order of scheduling within one.
    ///
    /// With nothing due this is one comparison. An event scheduled while the
    /// yielded ones are handled is due one tick later at the earliest, so asking
    /// until `None` with the same `now` ends.
    #[inline]
    pub fn poll_event(&mut self, now: Instant) -> Option<FiredEvent<T>> {
        if now < self.next_event {
            return None;
        }
        self.fire(now)
    }

    /// The moment from which on an event may be due; `None` without events.
    ///
    /// Never later than the truth. It may be earlier only after an event was
    /// cancelled, and is corrected when asked at that moment.
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        (self.wheel.pending() > 0).then_some(self.next_event)
    }

    /// The moment at which the earliest deadline lies; `None` without events.
    ///
    /// Never later than the truth; earlier only as [`Self::next_event`] is, or
    /// while other events of the same tick are still to be polled.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        (self.wheel.pending() > 0).then(|| self.instant(self.wheel.earliest_deadline()))
    }

    /// What to do with the hardware timer; `None` if it is armed as it should.
    ///
    /// Asked after a batch of changes (before blocking, or at the end of a
    /// trigger state), since each answer costs a register access or a call.
    pub fn poll_hardware_timer(&mut self) -> Option<HardwareTimer> {
        let wanted = self.next_deadline();
        if wanted == self.armed {
            return None;
        }
        self.armed = wanted;
        Some(wanted.map_or(HardwareTimer::Cancel, HardwareTimer::Arm))
    }

    /// As [`Self::poll_hardware_timer`], for a timer that is dear to arm: one that is armed
    /// for an earlier moment stays so, and none is cancelled. Its expiry may find nothing
    /// overdue; ask again then. Returns the moment to arm for.
    ///
    /// With an event every 20 µs and deadlines of 1000 µs the timer is armed once per
    /// deadline instead of once per event.
    pub fn poll_earlier_hardware_timer(&mut self) -> Option<Instant> {
        let wanted = self.next_deadline()?;
        if self.armed.is_some_and(|armed| armed <= wanted) {
            return None;
        }
        self.armed = Some(wanted);
        Some(wanted)
    }

    /// The hardware timer expired: it is no longer armed. The due events are
    /// then polled as in any trigger state.
    pub fn on_hardware_expiry(&mut self) {
        self.armed = None;
    }

    /// What an idle CPU does: it halts if nothing becomes due before the
    /// `next_interrupt` of the backup, or if another idle CPU checks already.
    #[must_use]
    pub fn idle_action(&self, next_interrupt: Instant, another_cpu_checks: bool) -> IdleAction {
        if another_cpu_checks || self.next_event >= next_interrupt {
            IdleAction::Halt
        } else {
            IdleAction::Check
        }
    }

    /// Events scheduled and neither fired nor cancelled.
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.wheel.pending()
    }

    fn insert(
        &mut self,
        tick: u64,
        due: u64,
        slack_ticks: u32,
        payload: T,
    ) -> Result<EventId, TimersFull> {
        // What lies beyond the clock's end fires at its end.
        let due = due.min(self.last_tick);
        let key = self.wheel.insert(tick, due, slack_ticks, payload);
        self.refresh();
        key.map(EventId).ok_or(TimersFull {
            capacity: self.wheel.capacity(),
        })
    }

    /// The rest of `poll_event`, apart so that the check is inlined.
    fn fire(&mut self, now: Instant) -> Option<FiredEvent<T>> {
        let due = self.wheel.pop_due(self.measure_time(now));
        self.refresh();
        due.map(|event| FiredEvent {
            payload: event.payload,
            scheduled: self.instant(event.due),
            deadline: self.instant(event.deadline),
        })
    }

    fn refresh(&mut self) {
        self.next_event = self.instant(self.wheel.earliest_due());
    }

    /// The beginning of a tick; past the clock's end, "never".
    fn instant(&self, tick: u64) -> Instant {
        Instant::from_nanos(tick.saturating_mul(self.tick_nanos))
    }
}

#[cfg(test)]
mod tests;
