//! Pacing (rate-based clocking): when the next packet of a flow may leave.
//!
//! A sender that waits for acknowledgements sends in bursts whenever they come
//! in bursts. A paced one sends by the clock: one packet per interval, whatever
//! the acknowledgements do. [`Pacer`] does this for many flows at once on one
//! set of soft timers. A soft event is always a little late, so the plain rule
//! "schedule the next packet one interval later" falls behind. And scheduling a
//! series in advance would let all of it go at once after a long gap without a
//! trigger state. So each flow has one event only; it remembers when its packets
//! should have left, and while it is behind it sends faster, but never closer
//! together than its burst rate allows.
//!
//! Source: Aron and Druschel, sections 4.1, 5.5 to 5.7 and appendix A. Covers
//! ST-27 to ST-34 and ST-37 here, ST-38 to ST-41 in [`CapacityEstimator`] and
//! [`StartConfig`], ST-43, ST-44 and ST-49 in [`AckSpacer`]. [`SlowStart`] is for senders
//! that are not paced. A flow whose
//! burst rate is its target rate is a strict shaper (ST-42).
//!
//! **A decision's course.** [`Pacer::on_backlog`] says that a flow has
//! something to send. [`Pacer::poll_departure`] yields the flows whose next
//! packet may leave now. The caller sends one packet of each and reports it with
//! [`Pacer::on_sent`], which schedules the next. Several flows may be yielded in
//! one trigger state; no flow twice.
//!
//! **Memory.** 100 bytes per flow: 64 for the flow, 32 for its event, 4 for the
//! list of vacant places; all taken at construction.
//!
//! **When it loses.** Against a hardware timer per packet, the intervals of one
//! flow spread more (their deviation is about the mean interval between trigger
//! states). When that mean exceeds the gap between target and burst interval the
//! flow cannot catch up and its rate stays below target: the paper's 40 µs become
//! 66 µs if bursts are limited to 35 µs.
//!
//! **Departures.** The paper's rule knows two intervals: target, and burst while
//! behind. It overshoots: a packet 1 µs late is followed by one a burst interval
//! later. [`CatchUp::Smooth`], the default, never schedules before the time at
//! which the packet is due at the target rate, so the average is the same and
//! the spread smaller; [`CatchUp::TwoIntervals`] is the paper's. Rates are in
//! bits, so that flows with packets of different sizes keep theirs. What a flow
//! is behind is forgotten beyond [`PacerConfig::deficit_max`]: otherwise a train
//! that could not keep its rate for an hour sends at burst rate for the next.

mod ack;
mod capacity;
mod rate;
mod slow_start;

use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU32;
use core::time::Duration;

pub use ack::{AckRelease, AckSpacer, AckSpacingConfig};
pub use capacity::{CapacityEstimate, CapacityEstimator, KnownCapacity, StartConfig};
pub use rate::Rate;
use rate::{Fine, Pace};
pub use slow_start::SlowStart;

use crate::config::{ConfigError, Field};
use crate::soft_timer::{EventId, HardwareTimer, SoftTimerConfig, SoftTimers};
use crate::time::Instant;

/// How a flow that is behind its target rate catches up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CatchUp {
    /// The next packet leaves when it is due at the target rate, and never
    /// sooner than the burst rate allows after the last one.
    #[default]
    Smooth,
    /// The paper's rule: after the burst interval while the average since the
    /// train's start is below target, else after the target interval.
    TwoIntervals,
}

/// What is common to all flows of a [`Pacer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacerConfig {
    /// The most flows at a time. Default 1024 (100 KiB).
    pub flows: u32,
    /// The clocks of the soft timers; their `capacity` is `flows`, whatever is
    /// given. Departures are rounded up to a tick; what that loses is caught up.
    pub timers: SoftTimerConfig,
    /// How a flow catches up. Default [`CatchUp::Smooth`].
    pub catch_up: CatchUp,
    /// How far behind its rate a flow may be and still catch up. Larger keeps
    /// the average over longer disturbances and sends longer at burst rate
    /// after them. Unpublished; default 100 ms.
    pub deficit_max: Duration,
}

impl Default for PacerConfig {
    fn default() -> Self {
        Self {
            flows: 1024,
            timers: SoftTimerConfig::default(),
            catch_up: CatchUp::default(),
            deficit_max: Duration::from_millis(100),
        }
    }
}

/// A flow's two rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRates {
    /// What the flow sends on average.
    pub target: Rate,
    /// What it may send while it catches up, at least `target`; the line's rate
    /// at most, since packets cannot leave faster. Equal to `target` it forbids
    /// catching up: a strict shaper.
    pub burst: Rate,
}

impl FlowRates {
    fn validate(self) -> Result<(), ConfigError> {
        Field("burst", self.burst.bits_per_second())
            .must_be_in(self.target.bits_per_second().., "at least the target rate")
    }
}

/// Why a flow was not added or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowError {
    /// The caller's rates contradict each other.
    Rates(ConfigError),
    /// As many flows as configured exist: remove one first.
    Full,
    /// The id names no flow (it was removed).
    Unknown,
}

impl fmt::Display for FlowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rates(error) => error.fmt(f),
            Self::Full => f.write_str("no place for another flow: remove one first"),
            Self::Unknown => f.write_str("this flow was removed"),
        }
    }
}

impl core::error::Error for FlowError {}

impl From<ConfigError> for FlowError {
    fn from(error: ConfigError) -> Self {
        Self::Rates(error)
    }
}

/// Names a flow of one [`Pacer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId {
    index: u32,
    generation: NonZeroU32,
}

impl FlowId {
    /// The flow's place: below [`PacerConfig::flows`], and another flow's after this one was
    /// removed. For tables beside the pacer.
    #[must_use]
    pub const fn place(self) -> usize {
        self.index as usize
    }
}

/// The packets since a flow last started to send after having nothing to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// When the first packet could leave.
    pub start: Instant,
    /// Bytes sent since.
    pub bytes: u64,
}

impl Train {
    /// The average rate from the train's start to `now`; `None` before anything
    /// was sent or time has passed.
    ///
    /// After a busy period this is an estimate of the path's capacity for the
    /// next one ([`KnownCapacity::LastBusyPeriod`]).
    #[must_use]
    pub fn average_rate(&self, now: Instant) -> Option<Rate> {
        let elapsed = now.saturating_since(self.start);
        (self.bytes > 0 && !elapsed.is_zero()).then(|| Rate::from_interval(self.bytes, elapsed))
    }
}

/// One flow: a cache line.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// When the next packet is due at the target rate, in ns and 2⁻³² ns.
    due: u64,
    due_parts: u32,
    generation: NonZeroU32,
    target: Pace,
    burst: Pace,
    /// Before this, the burst rate forbids another packet.
    not_before: Instant,
    train_start: Instant,
    train_bytes: u64,
    /// The one outstanding transmission event; [`EventId::NONE`] after it fired, until the
    /// packet is reported; nothing while the flow is idle.
    event: Option<EventId>,
}

// What one flow occupies, as the module's doc promises.
const _: () = assert!(size_of::<Flow>() == 64);

impl Flow {
    fn new(rates: FlowRates, generation: NonZeroU32) -> Self {
        Self {
            due: 0,
            due_parts: 0,
            generation,
            target: rates.target.pace(),
            burst: rates.burst.pace(),
            not_before: Instant::ZERO,
            train_start: Instant::ZERO,
            train_bytes: 0,
            event: None,
        }
    }

    /// The earliest time at which both rates let the next packet go. The part
    /// of a nanosecond that is cut off counts with the packets after it.
    fn next_departure(&self) -> Instant {
        Instant::from_nanos(self.due).max(self.not_before)
    }

    /// A new train, unless the last one's rates still forbid a packet: then that train goes
    /// on, so that a flow gains nothing by pausing.
    fn start_train(&mut self, now: Instant) {
        if self.next_departure() > now {
            return;
        }
        self.due = now.as_nanos();
        self.due_parts = 0;
        self.train_start = now;
        self.train_bytes = 0;
    }

    /// Counts a packet that left at `now` and returns when the next may.
    fn on_sent(
        &mut self,
        now: Instant,
        bytes: u32,
        catch_up: CatchUp,
        deficit_max: Duration,
    ) -> Instant {
        let behind = now.as_nanos() > self.due;
        let interval = self.target.cost(bytes);
        // What is too far behind to be made up for is forgotten.
        let due = Fine {
            whole: self.due.max((now - deficit_max).as_nanos()),
            parts: self.due_parts,
        };
        let due = due.saturating_add(interval);
        (self.due, self.due_parts) = (due.whole, due.parts);
        self.not_before = now + Duration::from_nanos(self.burst.cost(bytes).whole);
        self.train_bytes = self.train_bytes.saturating_add(bytes.into());
        match catch_up {
            CatchUp::Smooth => self.next_departure(),
            CatchUp::TwoIntervals if behind => self.not_before,
            CatchUp::TwoIntervals => now + Duration::from_nanos(interval.whole),
        }
    }
}

/// Many flows, each sending at its own rate; see the module's doc.
#[derive(Clone, Debug)]
pub struct Pacer {
    timers: SoftTimers<u32>,
    flows: Vec<Flow>,
    /// Places below `flows.len()` whose flow was removed.
    vacant: Vec<u32>,
    capacity: u32,
    catch_up: CatchUp,
    deficit_max: Duration,
}

impl Pacer {
    /// Takes all the memory it will ever use.
    ///
    /// # Errors
    ///
    /// No flows, or clocks that the soft timers refuse.
    pub fn new(config: PacerConfig) -> Result<Self, ConfigError> {
        Field("flows", config.flows)
            .must_be_in(1..u32::MAX, "at least 1 and at most 4294967294")?;
        let timers = SoftTimerConfig {
            capacity: config.flows,
            ..config.timers
        };
        Ok(Self {
            timers: SoftTimers::new(timers)?,
            flows: Vec::with_capacity(config.flows as usize),
            vacant: Vec::with_capacity(config.flows as usize),
            capacity: config.flows,
            catch_up: config.catch_up,
            deficit_max: config.deficit_max,
        })
    }

    /// Adds a flow that has nothing to send yet.
    ///
    /// # Errors
    ///
    /// [`FlowError::Rates`] or [`FlowError::Full`].
    pub fn add_flow(&mut self, rates: FlowRates) -> Result<FlowId, FlowError> {
        rates.validate()?;
        if let Some(index) = self.vacant.pop() {
            let place = &mut self.flows[index as usize];
            let generation = place.generation;
            *place = Flow::new(rates, generation);
            return Ok(FlowId { index, generation });
        }
        let index = self.flows.len() as u32;
        if index == self.capacity {
            return Err(FlowError::Full);
        }
        let generation = NonZeroU32::MIN;
        self.flows.push(Flow::new(rates, generation));
        Ok(FlowId { index, generation })
    }

    /// Removes a flow; its outstanding departure is cancelled.
    ///
    /// # Errors
    ///
    /// [`FlowError::Unknown`].
    pub fn remove_flow(&mut self, id: FlowId) -> Result<(), FlowError> {
        let flow = self.flow_mut(id)?;
        flow.generation = flow.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        if let Some(event) = flow.event.take() {
            self.timers.cancel(event);
        }
        self.vacant.push(id.index);
        Ok(())
    }

    /// Changes a flow's rates, from the next packet it sends on: what is
    /// already scheduled stays, and what it is behind is caught up at the new
    /// rates.
    ///
    /// # Errors
    ///
    /// [`FlowError::Rates`] or [`FlowError::Unknown`].
    pub fn set_rates(&mut self, id: FlowId, rates: FlowRates) -> Result<(), FlowError> {
        rates.validate()?;
        let flow = self.flow_mut(id)?;
        flow.target = rates.target.pace();
        flow.burst = rates.burst.pace();
        Ok(())
    }

    /// A flow has something to send. Nothing changes if it waits already.
    ///
    /// A new train starts, unless the last one's rates still forbid a packet:
    /// then that train goes on, so that a flow gains nothing by pausing.
    ///
    /// # Errors
    ///
    /// [`FlowError::Unknown`].
    pub fn on_backlog(&mut self, now: Instant, id: FlowId) -> Result<(), FlowError> {
        let flow = self.flow_mut(id)?;
        if flow.event.is_some_and(|event| event != EventId::NONE) {
            return Ok(());
        }
        flow.start_train(now);
        let departure = flow.next_departure();
        self.schedule(now, id.index, departure);
        Ok(())
    }

    /// The check of a trigger state: yields one flow per call which may send
    /// one packet now. Report that packet with [`Self::on_sent`]. A flow that
    /// has nothing to send after all needs no report, unless it may send out of turn later: then
    /// report no bytes and no backlog, or it has arrears of up to `deficit_max` then.
    #[inline]
    pub fn poll_departure(&mut self, now: Instant) -> Option<FlowId> {
        let index = self.timers.poll_event(now)?.payload;
        let flow = &mut self.flows[index as usize];
        flow.event = Some(EventId::NONE);
        Some(FlowId {
            index,
            generation: flow.generation,
        })
    }

    /// A packet of `bytes` left at `now`. With `backlogged` the next one is
    /// scheduled; without, the train ends here and [`Self::on_backlog`] starts
    /// the next. A packet sent out of turn (a retransmission) counts as well. It
    /// puts an outstanding departure off, and starts a train if the flow was idle.
    ///
    /// # Errors
    ///
    /// [`FlowError::Unknown`].
    pub fn on_sent(
        &mut self,
        now: Instant,
        id: FlowId,
        bytes: u32,
        backlogged: bool,
    ) -> Result<(), FlowError> {
        let (catch_up, deficit_max) = (self.catch_up, self.deficit_max);
        let flow = self.flow_mut(id)?;
        let event = flow.event.take();
        if event.is_none() {
            flow.start_train(now);
        }
        let departure = flow.on_sent(now, bytes, catch_up, deficit_max);
        if let Some(event) = event {
            self.timers.cancel(event);
        }
        if backlogged {
            self.schedule(now, id.index, departure);
        }
        Ok(())
    }

    /// The flow's current packet train, or its last one.
    ///
    /// # Errors
    ///
    /// [`FlowError::Unknown`].
    pub fn train(&self, id: FlowId) -> Result<Train, FlowError> {
        self.flows
            .get(id.index as usize)
            .filter(|flow| flow.generation == id.generation)
            .map(|flow| Train {
                start: flow.train_start,
                bytes: flow.train_bytes,
            })
            .ok_or(FlowError::Unknown)
    }

    /// The moment from which on a departure may be due; `None` if all flows are
    /// idle.
    #[must_use]
    pub fn next_departure(&self) -> Option<Instant> {
        self.timers.next_event()
    }

    /// What to do with the hardware timer that backs the departures up, as
    /// [`SoftTimers::poll_hardware_timer`].
    pub fn poll_hardware_timer(&mut self) -> Option<HardwareTimer> {
        self.timers.poll_hardware_timer()
    }

    /// The hardware timer expired, as [`SoftTimers::on_hardware_expiry`].
    pub fn on_hardware_expiry(&mut self) {
        self.timers.on_hardware_expiry();
    }

    fn flow_mut(&mut self, id: FlowId) -> Result<&mut Flow, FlowError> {
        self.flows
            .get_mut(id.index as usize)
            .filter(|flow| flow.generation == id.generation)
            .ok_or(FlowError::Unknown)
    }

    fn schedule(&mut self, now: Instant, index: u32, departure: Instant) {
        let event = self.timers.schedule_at(now, departure, index);
        // There are as many places as flows, and one event per flow.
        debug_assert!(event.is_ok(), "a flow had two events");
        self.flows[index as usize].event = event.ok();
    }
}

#[cfg(test)]
mod tests;
