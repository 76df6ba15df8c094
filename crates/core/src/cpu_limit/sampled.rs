//! The CPU limit for hosts without a fine clock: the clock interrupt, which
//! preempts packet processing, notes what it interrupted (section 5.1, MR-25).
//!
//! A run of samples all of which fell into packet processing stops input for some
//! ticks. Crude: a load that pauses once per run is never caught, and the share it
//! leaves to others is about `pause / (run + pause)` under a full flood and
//! anything above it otherwise.

use super::Change;
use crate::config::{ConfigError, Field};

/// Settings of a [`SampledLimit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledLimitConfig {
    /// Consecutive samples within packet processing that stop input, at least 1.
    /// Default 3.
    pub run: u32,
    /// Ticks for which input then stays inhibited, at least 1. Default 2.
    pub pause: u32,
}

impl Default for SampledLimitConfig {
    fn default() -> Self {
        Self { run: 3, pause: 2 }
    }
}

impl SampledLimitConfig {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Names the first field that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Field("run", self.run).must_be_in(1.., "at least 1")?;
        Field("pause", self.pause).must_be_in(1.., "at least 1")
    }
}

/// Inhibits input after a run of clock ticks that all hit packet processing.
#[derive(Clone, Debug)]
pub struct SampledLimit {
    config: SampledLimitConfig,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The latest samples that hit.
    Allowed {
        hits: u32,
    },
    Inhibited {
        left: u32,
    },
}

impl SampledLimit {
    /// Input is allowed at first.
    ///
    /// # Errors
    ///
    /// The config is out of range.
    pub fn new(config: SampledLimitConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let state = State::Allowed { hits: 0 };
        Ok(Self { config, state })
    }

    /// A clock interrupt, which preempted packet processing if `hit`.
    pub fn on_tick(&mut self, hit: bool) -> Change {
        let (state, change) = match self.state {
            State::Allowed { hits } if hit && hits + 1 == self.config.run => {
                let left = self.config.pause;
                (State::Inhibited { left }, Change::Inhibit)
            }
            State::Allowed { hits } => {
                let hits = if hit { hits + 1 } else { 0 };
                (State::Allowed { hits }, Change::None)
            }
            State::Inhibited { left: 1 } => (State::Allowed { hits: 0 }, Change::Allow),
            State::Inhibited { left } => (State::Inhibited { left: left - 1 }, Change::None),
        };
        self.state = state;
        change
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_hits_stops_input_for_the_pause() {
        let mut limit = SampledLimit::new(SampledLimitConfig::default()).unwrap();
        for hit in [true, true, false, true, true] {
            assert_eq!(limit.on_tick(hit), Change::None, "no three in a row");
        }
        for _ in 0..10 {
            assert_eq!(limit.on_tick(true), Change::Inhibit);
            assert_eq!(limit.on_tick(false), Change::None);
            assert_eq!(limit.on_tick(false), Change::Allow);
            assert_eq!(limit.on_tick(true), Change::None);
            assert_eq!(limit.on_tick(true), Change::None);
        }
    }

    #[test]
    fn configs_name_the_field_that_is_wrong() {
        let field = |run, pause| {
            SampledLimitConfig { run, pause }
                .validate()
                .unwrap_err()
                .field
        };
        assert_eq!((field(0, 1), field(1, 0)), ("run", "pause"));
        let mut shortest = SampledLimit::new(SampledLimitConfig { run: 1, pause: 1 }).unwrap();
        assert_eq!(shortest.on_tick(true), Change::Inhibit);
        assert_eq!(shortest.on_tick(true), Change::Allow);
    }
}
