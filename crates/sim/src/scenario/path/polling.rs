//! Paths that look at the adapters without being asked: at a clock's ticks, at
//! points of code execution, by soft timers.

use serde::{Deserialize, Serialize};

use super::{count, micros};
use crate::Error;
use crate::scenario::within;

/// Settings of `periodic-polling`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeriodicPollingConfig {
    /// Time between two looks.
    pub interval_us: f64,
    /// Packets taken per look. Default: all.
    #[serde(default)]
    pub quota: Option<u32>,
}

impl PeriodicPollingConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        micros("interval_us", self.interval_us)?;
        count("quota", self.quota.unwrap_or(1))
    }
}

/// Settings of `code-point-polling`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodePointPollingConfig {
    /// The least time between two looks.
    pub interval_us: f64,
}

impl CodePointPollingConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        micros("interval_us", self.interval_us)
    }
}

/// Settings of `polling-watchdog`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PollingWatchdogConfig {
    /// Time from a packet's arrival to the interrupt.
    pub interval_us: f64,
    /// Interval of the software's own polling.
    pub poll_us: f64,
}

impl PollingWatchdogConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        micros("interval_us", self.interval_us)?;
        micros("poll_us", self.poll_us)
    }
}

/// Settings of `clocked-interrupts`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockedInterruptsConfig {
    /// Rate of the timer.
    pub rate_hz: f64,
}

impl ClockedInterruptsConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        within("path.rate_hz", self.rate_hz, 1.0, 1e7)
    }
}

/// Settings of `freebsd-polling`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreebsdPollingConfig {
    /// Packets taken per poll. Default 150.
    #[serde(default = "freebsd_burst")]
    pub burst: u32,
}

impl FreebsdPollingConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        count("burst", self.burst)
    }
}

fn freebsd_burst() -> u32 {
    150
}

/// Settings of `hip`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HipConfig {
    /// Polling begins above this rate.
    pub threshold_pps: f64,
    /// The shortest polling interval.
    pub interval_min_us: f64,
    /// The receive buffers the adapter may have: the repair MH-30 proposes.
    /// Default all.
    #[serde(default)]
    pub buffers: Option<u32>,
}

impl HipConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        within("path.threshold_pps", self.threshold_pps, 0.0, 1e9)?;
        micros("interval_min_us", self.interval_min_us)?;
        count("buffers", self.buffers.unwrap_or(1))
    }
}

/// Settings of `rate-switched`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateSwitchedConfig {
    /// Clocked above this rate.
    pub threshold_pps: f64,
    /// Interval of the clock.
    pub interval_us: f64,
}

impl RateSwitchedConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        within("path.threshold_pps", self.threshold_pps, 0.0, 1e9)?;
        micros("interval_us", self.interval_us)
    }
}

/// Settings of `soft-timer-polling`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftTimerPollingConfig {
    /// Packets that a poll is to find on average.
    pub quota: u32,
}

impl SoftTimerPollingConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        count("quota", self.quota)
    }
}
