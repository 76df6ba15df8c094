//! Paced sending (rate-based clocking) with a clock of its own.

use std::time::Duration;

use plimsoll_core::config::ConfigError;
use plimsoll_core::pacing::{self, FlowError, FlowId, FlowRates, PacerConfig, Train};
use plimsoll_core::time::Instant;

use crate::clock::{Clock, CycleClock};

/// Many flows of one thread, each sending at its own rate:
/// [`plimsoll_core::pacing`] and the clock it is asked with.
///
/// Each flow has a target rate, a maximal burst rate for catching up, and one
/// outstanding event. The caller sends:
///
/// ```
/// use plimsoll_timers::pacing::{FlowRates, Pacer, PacerConfig, Rate};
///
/// let mut pacer = Pacer::new(PacerConfig::default())?;
/// let target = Rate::clamped(100_000_000);
/// let flow = pacer.add_flow(FlowRates { target, burst: Rate::clamped(1_000_000_000) })?;
/// pacer.on_backlog(flow)?;
/// let mut to_send = 10;
/// while to_send > 0 {
///     // ... a turn of the program's own work ...
///     let Some(now) = pacer.check() else { continue };
///     while let Some(flow) = pacer.poll_departure(now) {
///         to_send -= 1; // send one packet of the flow
///         pacer.on_sent(now, flow, 1500, to_send > 0)?;
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pacer<C = CycleClock> {
    flows: pacing::Pacer,
    clock: C,
}

impl Pacer {
    /// On the processor's cycle counter. Takes all the memory it will ever use.
    ///
    /// # Errors
    ///
    /// As [`pacing::Pacer::new`].
    pub fn new(config: PacerConfig) -> Result<Self, ConfigError> {
        Self::with_clock(config, CycleClock::new())
    }
}

impl<C: Clock> Pacer<C> {
    /// On a clock of the caller's.
    ///
    /// # Errors
    ///
    /// As [`pacing::Pacer::new`].
    pub fn with_clock(config: PacerConfig, clock: C) -> Result<Self, ConfigError> {
        Ok(Self {
            flows: pacing::Pacer::new(config)?,
            clock,
        })
    }

    /// The present time.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Adds a flow that has nothing to send yet.
    ///
    /// # Errors
    ///
    /// [`FlowError::Rates`] or [`FlowError::Full`].
    pub fn add_flow(&mut self, rates: FlowRates) -> Result<FlowId, FlowError> {
        self.flows.add_flow(rates)
    }

    /// Removes a flow; its outstanding departure is cancelled.
    ///
    /// # Errors
    ///
    /// [`FlowError::Unknown`].
    pub fn remove_flow(&mut self, flow: FlowId) -> Result<(), FlowError> {
        self.flows.remove_flow(flow)
    }

    /// Changes a flow's rates, from the next packet it sends on.
    ///
    /// # Errors
    ///
    /// [`FlowError::Rates`] or [`FlowError::Unknown`].
    pub fn set_rates(&mut self, flow: FlowId, rates: FlowRates) -> Result<(), FlowError> {
        self.flows.set_rates(flow, rates)
    }

    /// A flow has something to send.
    ///
    /// # Errors
    ///
    /// [`FlowError::Unknown`].
    pub fn on_backlog(&mut self, flow: FlowId) -> Result<(), FlowError> {
        self.flows.on_backlog(self.clock.now(), flow)
    }

    /// The check of a trigger state: the present time if a departure may be due.
    #[inline]
    #[must_use]
    pub fn check(&self) -> Option<Instant> {
        let due = self.flows.next_departure()?;
        let now = self.clock.now();
        (now >= due).then_some(now)
    }

    /// Yields one flow per call that may send one packet now, none twice.
    #[inline]
    pub fn poll_departure(&mut self, now: Instant) -> Option<FlowId> {
        self.flows.poll_departure(now)
    }

    /// A packet of `bytes` left at `now`; with `backlogged` the next follows.
    ///
    /// # Errors
    ///
    /// [`FlowError::Unknown`].
    #[inline]
    pub fn on_sent(
        &mut self,
        now: Instant,
        flow: FlowId,
        bytes: u32,
        backlogged: bool,
    ) -> Result<(), FlowError> {
        self.flows.on_sent(now, flow, bytes, backlogged)
    }

    /// The flow's current packet train, or its last one.
    ///
    /// # Errors
    ///
    /// [`FlowError::Unknown`].
    pub fn train(&self, flow: FlowId) -> Result<Train, FlowError> {
        self.flows.train(flow)
    }

    /// The moment from which on a departure may be due; `None` if all flows are
    /// idle. A thread that blocks arms its [`TimerFd`](crate::TimerFd) for it.
    #[must_use]
    pub fn next_departure(&self) -> Option<Instant> {
        self.flows.next_departure()
    }

    /// The time until then, for arming a backup; `None` if all flows are idle.
    #[must_use]
    pub fn until_departure(&self) -> Option<Duration> {
        let next = self.flows.next_departure()?;
        Some(next.saturating_since(self.clock.now()))
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::pacing::Rate;

    use super::*;
    use crate::clock::MovedClock;

    /// 1500 bytes every 120 µs, at most every 12 µs.
    fn flow() -> FlowRates {
        FlowRates {
            target: Rate::clamped(100_000_000),
            burst: Rate::clamped(1_000_000_000),
        }
    }

    #[test]
    fn a_flow_catches_up_at_its_burst_rate_after_a_gap_and_not_at_once() {
        let clock = MovedClock::default();
        let mut pacer = Pacer::with_clock(PacerConfig::default(), clock.clone()).unwrap();
        let flow = pacer.add_flow(flow()).unwrap();
        pacer.on_backlog(flow).unwrap();
        // Nobody asks for 1.2 ms: ten packets are owed.
        clock.advance(Duration::from_micros(1200));
        let mut departures = Vec::new();
        while pacer.now() < Instant::from_nanos(3_000_000) {
            if let Some(now) = pacer.check() {
                assert_eq!(pacer.poll_departure(now), Some(flow));
                pacer.on_sent(now, flow, 1500, true).unwrap();
                assert_eq!(pacer.poll_departure(now), None);
                departures.push(now.as_nanos() / 1000);
            }
            clock.advance(Duration::from_micros(1));
        }
        let gaps: Vec<u64> = departures
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .collect();
        assert!(gaps.iter().all(|&gap| gap >= 12), "{gaps:?}");
        assert_eq!(gaps[0], 12);
        assert_eq!(gaps.last(), Some(&120));
        // Caught up: as many as at the target rate from the start.
        assert_eq!(departures.len(), 3000 / 120 + 1 - 1);
    }

    #[test]
    fn a_thread_that_blocks_learns_for_how_long() {
        let clock = MovedClock::default();
        let mut pacer = Pacer::with_clock(PacerConfig::default(), clock.clone()).unwrap();
        assert_eq!(pacer.until_departure(), None);
        let flow = pacer.add_flow(flow()).unwrap();
        pacer.on_backlog(flow).unwrap();
        clock.advance(Duration::from_micros(1));
        let now = pacer.check().unwrap();
        assert!(pacer.poll_departure(now).is_some());
        pacer.on_sent(now, flow, 1500, true).unwrap();
        let until = pacer.until_departure().unwrap();
        assert!(until <= Duration::from_micros(120) && until >= Duration::from_micros(118));
        let micros = Duration::from_micros(50);
        clock.advance(micros);
        assert_eq!(pacer.until_departure(), Some(until - micros));
    }
}
