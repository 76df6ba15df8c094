//! Paths on which threads work: the polling thread with its parts, and user-level
//! network subsystems.

use serde::{Deserialize, Serialize};

use super::{count, period_ms};
use crate::Error;
use crate::scenario::within;

/// Settings of `polling-thread`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PollingThreadConfig {
    /// Packets per turn. Default: no quota.
    #[serde(default)]
    pub quota: Option<u32>,
    /// Queues stop the input that fills them.
    #[serde(default)]
    pub feedback: Option<Feedback>,
    /// The part of the CPU that packets may take.
    #[serde(default)]
    pub cycle_limit: Option<CycleLimit>,
    /// The quota is found by trying, beginning with `quota`. Default false.
    #[serde(default)]
    pub tune_quota: bool,
    /// Built in but switched off: works as batched interrupts with a protocol
    /// thread (BL-27). Default false.
    #[serde(default)]
    pub disabled: bool,
    /// Output may be queued to a device that is transmitting (MR-67).
    /// Default false: an active interface gets nothing new.
    #[serde(default)]
    pub queue_while_active: bool,
}

impl PollingThreadConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        count("quota", self.quota.unwrap_or(1))?;
        self.feedback.map_or(Ok(()), Feedback::validate)?;
        self.cycle_limit.map_or(Ok(()), CycleLimit::validate)
    }
}

/// Settings of `user-level`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserLevelConfig {
    /// The adapter demultiplexes. Default false.
    #[serde(default)]
    pub adapter: bool,
}

/// Queue-state feedback.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feedback {
    /// When input stops and goes on. Default 75 and 25 percent.
    #[serde(default)]
    pub watermark: Watermark,
    /// Input goes on after this even if the queue did not drain. Default one
    /// clock tick.
    #[serde(default)]
    pub timeout_ms: Option<f64>,
}

impl Feedback {
    fn validate(self) -> Result<(), Error> {
        let timeout = self.timeout_ms.unwrap_or(1.0);
        within("path.feedback.timeout_ms", timeout, 0.001, 1e6)?;
        let field = |part: &str| format!("path.feedback.watermark.{part}");
        match self.watermark {
            Watermark::Fill { high_pct, low_pct } => {
                within(field("high_pct"), high_pct, 0.001, 100.0)?;
                within(field("low_pct"), low_pct, 0.0, high_pct)
            }
            Watermark::Room { packets } => within(field("packets"), f64::from(packets), 1.0, 1e6),
        }
    }
}

/// When a queue stops its input.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Watermark {
    /// At parts of its length.
    Fill {
        /// Input stops at this fill.
        high_pct: f64,
        /// Input goes on at this fill.
        low_pct: f64,
    },
    /// When it has room for fewer packets than this; only the timeout lets input
    /// go on (packet filter queues, MR-73, MR-74).
    Room {
        /// Packets.
        packets: u32,
    },
}

impl Default for Watermark {
    fn default() -> Self {
        Self::Fill {
            high_pct: 75.0,
            low_pct: 25.0,
        }
    }
}

/// The CPU cycle limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CycleLimit {
    /// The part of each period that packets may use.
    pub share_pct: f64,
    /// The period. Default 10 ms.
    #[serde(default = "period_ms")]
    pub period_ms: f64,
    /// Interrupt handlers count, and what was used beyond the limit is taken off the
    /// following periods, up to ten limits. Without, it is forgotten, as in the paper. Default
    /// false.
    #[serde(default)]
    pub count_interrupts: bool,
    /// With several CPUs: one limit for the host instead of one per CPU. Default
    /// false.
    #[serde(default)]
    pub per_host: bool,
}

impl CycleLimit {
    fn validate(self) -> Result<(), Error> {
        let field = |part: &str| format!("path.cycle_limit.{part}");
        within(field("share_pct"), self.share_pct, 0.001, 100.0)?;
        within(field("period_ms"), self.period_ms, 0.001, 1e6)
    }
}
