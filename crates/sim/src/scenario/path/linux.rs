//! How Linux receives.

use serde::{Deserialize, Serialize};

use super::{count, micros};
use crate::Error;
use crate::scenario::within;

/// Settings of `napi`. The defaults are Linux 6.18's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NapiConfig {
    /// Packets per visit of a queue. Default 64.
    #[serde(default = "weight")]
    pub weight: u32,
    /// Packets per round of all queues, `netdev_budget`: no visit begins beyond it.
    /// Default 300.
    #[serde(default = "budget")]
    pub budget: u32,
    /// Time of such a round, `netdev_budget_usecs`. Default two ticks of the clock.
    #[serde(default)]
    pub budget_us: Option<f64>,
    /// Rounds until what is left is ksoftirqd's. Default 10.
    #[serde(default = "rounds")]
    pub rounds: u32,
    /// Time after which no further round begins. Default 2 ms.
    #[serde(default = "rounds_us")]
    pub rounds_us: f64,
    /// Each queue has a thread that polls it, in the place of softirqs. Default false.
    #[serde(default)]
    pub threaded: bool,
    /// A receive call runs the softirq that is due, since it switches bottom halves off for a
    /// moment and on again (`local_bh_enable`). Default true.
    #[serde(default = "yes")]
    pub in_calls: bool,
    /// What interrupts and softirqs take counts as CPU time of the thread that they
    /// interrupt, as it does without `CONFIG_IRQ_TIME_ACCOUNTING`. Default true.
    #[serde(default = "yes")]
    pub charged: bool,
    /// The device interrupts, or a timer polls in its place (`gro_flush_timeout`), so long
    /// after a packet that finds the queue idle. Default 0.
    #[serde(default)]
    pub holdoff_us: f64,
    /// Packets of one source for one consumer that one visit finds are merged
    /// (generic receive offload): the first pays for the protocol, and each of the others
    /// this much, in ns. Default: no merging.
    #[serde(default)]
    pub gro_ns: Option<u32>,
}

impl Default for NapiConfig {
    fn default() -> Self {
        Self {
            weight: weight(),
            budget: budget(),
            budget_us: None,
            rounds: rounds(),
            rounds_us: rounds_us(),
            threaded: false,
            in_calls: yes(),
            charged: yes(),
            holdoff_us: 0.0,
            gro_ns: None,
        }
    }
}

impl NapiConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        count("weight", self.weight)?;
        count("budget", self.budget)?;
        count("rounds", self.rounds)?;
        micros("rounds_us", self.rounds_us)?;
        within("path.holdoff_us", self.holdoff_us, 0.0, 1e7)?;
        within("path.budget_us", self.budget_us.unwrap_or(1.0), 0.001, 1e7)
    }
}

fn weight() -> u32 {
    64
}

fn budget() -> u32 {
    300
}

fn rounds() -> u32 {
    10
}

fn rounds_us() -> f64 {
    2000.0
}

fn yes() -> bool {
    true
}
