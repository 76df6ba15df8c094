//! Paths that interrupts drive: as they come, fewer of them, or later.

use serde::{Deserialize, Serialize};

use super::{count, micros, percent, period_ms};
use crate::Error;
use crate::scenario::within;

/// Settings of `batched-interrupts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchedInterruptsConfig {
    /// Completions are looked for only when no packet waits: transmit
    /// starvation (MR-14). Default false.
    #[serde(default)]
    pub receive_first: bool,
    /// Protocol work in a kernel thread of its own instead of a software
    /// interrupt (Digital UNIX, MR-05), and nothing is transmitted before the transmit
    /// interrupt of what was (MR-66). Default false.
    #[serde(default)]
    pub protocol_thread: bool,
}

/// Settings of `overload-disable`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverloadDisableConfig {
    /// The part of the CPU that packets may take.
    pub share_pct: f64,
    /// Time over which it is measured. Default 10 ms.
    #[serde(default = "period_ms")]
    pub period_ms: f64,
    /// Judged from what the clock interrupt finds running, as on hosts
    /// without a fine clock (MR-25): off after this many samples in a row.
    #[serde(default)]
    pub samples: Option<u32>,
}

impl OverloadDisableConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        percent("share_pct", self.share_pct)?;
        micros("period_ms", self.period_ms)?;
        count("samples", self.samples.unwrap_or(1))
    }
}

/// Settings of `fixed-holdoff`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedHoldoffConfig {
    /// Time from a packet to its interrupt.
    pub holdoff_us: f64,
    /// Buffers go back to the device only when the handler returns, so that it
    /// takes no more packets than the device had buffers (MH-22). Default
    /// false: each as its packet is taken.
    #[serde(default)]
    pub free_late: bool,
}

impl FixedHoldoffConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        within("path.holdoff_us", self.holdoff_us, 0.0, 1e7)
    }
}

/// Settings of `adaptive-holdoff`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveHoldoffConfig {
    /// The handler's share of the CPU. Default 25, as the core's; the paper's is
    /// not published.
    #[serde(default = "load_pct")]
    pub load_pct: f64,
    /// Drop-free interrupts until a buffer is given back. Default 8.
    #[serde(default = "backoff")]
    pub backoff: u32,
    /// Steps of the device's holdoff. Default 100 µs.
    #[serde(default = "granularity_us")]
    pub granularity_us: f64,
    /// Loss that does not count as overload. Default 0, as in the paper.
    #[serde(default)]
    pub tolerated_loss_pct: f64,
    /// An idle CPU excuses drops. Default false, as in the paper.
    #[serde(default)]
    pub idle_excuses: bool,
    /// Each buffer is freed as its packet is taken instead of at the end of
    /// the handler. Default false.
    #[serde(default)]
    pub free_early: bool,
}

impl AdaptiveHoldoffConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        percent("load_pct", self.load_pct)?;
        within(
            "path.tolerated_loss_pct",
            self.tolerated_loss_pct,
            0.0,
            100.0,
        )?;
        within("path.granularity_us", self.granularity_us, 0.001, 1e6)
    }
}

fn load_pct() -> f64 {
    25.0
}

fn backoff() -> u32 {
    8
}

fn granularity_us() -> f64 {
    100.0
}
