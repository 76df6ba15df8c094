//! Plimsoll's own path.

use plimsoll_core::charge::shedding::SheddingConfig;
use plimsoll_core::feedback::SocketWatermarks;
use plimsoll_core::governor::GovernorConfig;
use plimsoll_core::time::TICK;
use serde::{Deserialize, Serialize};

use super::{count, percent, period_ms};
use crate::Error;
use crate::scenario::within;

/// Settings of `governed-guard`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GovernedGuardConfig {
    /// What is done about overload. Default: an adaptive holdoff.
    #[serde(default)]
    pub strategy: GuardStrategy,
    /// The most of each CPU that receiving may take, and what polling is held to, as with
    /// `plimsoll guard --cpu-limit` given. Default: 85; 100: no limit.
    #[serde(default = "share_pct")]
    pub share_pct: f64,
    /// Shedding aims at this part of it. Default: the guard's, 95.
    #[serde(default = "aim_pct")]
    pub aim_pct: f64,
    /// The budgets of shedding are of so long. Default: the guard's, 4194.304.
    #[serde(default = "tick_us")]
    pub tick_us: f64,
    /// A socket's queue that was full discards from this part of it on. Default: the
    /// guard's, 70.
    #[serde(default = "high_pct")]
    pub high_pct: f64,
    /// Until it is below this part. Default: the guard's, 50.
    #[serde(default = "low_pct")]
    pub low_pct: f64,
    /// Or until it has drained by this much. Default: the guard's, 64.
    #[serde(default = "drained_kib")]
    pub drained_kib: u32,
    /// The longest holdoff that is chosen while the ring holds it. Default: the
    /// guard's, 200.
    #[serde(default = "holdoff_max_us")]
    pub holdoff_max_us: f64,
    /// Packets per turn. Default 64.
    #[serde(default = "quota")]
    pub quota: u32,
    /// The governor looks this often while overload begins or lasts. Default
    /// 10 ms.
    #[serde(default = "period_ms")]
    pub interval_ms: f64,
    /// The host's own holdoff, which is all there is while there is no
    /// overload. Default 0: none.
    #[serde(default)]
    pub holdoff_us: f64,
    /// Which packets an overloaded process loses is decided by source, as the guard does.
    /// Default: whichever come.
    #[serde(default)]
    pub fair: bool,
    /// What that adds to each packet, in ns. Default 15: as measured beside one loud
    /// source. More sources miss more caches.
    #[serde(default = "fairness_ns")]
    pub fairness_ns: u32,
    /// Instead: so many datagrams a second of each source are taken, at any load, as a
    /// packet filter's limit does. Default 0: no limit.
    #[serde(default)]
    pub source_limit_pps: f64,
    /// The receive ring may overflow while the flood of one process is alone. Needs
    /// `fair`. Default: no.
    #[serde(default)]
    pub lazy: bool,
}

impl GovernedGuardConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        percent("share_pct", self.share_pct)?;
        percent("aim_pct", self.aim_pct)?;
        within("path.tick_us", self.tick_us, 1.0, 1e6)?;
        percent("high_pct", self.high_pct)?;
        percent("low_pct", self.low_pct)?;
        within("path.low_pct", self.low_pct, 0.0, self.high_pct)?;
        within("path.drained_kib", f64::from(self.drained_kib), 4.0, 1e5)?;
        within("path.holdoff_max_us", self.holdoff_max_us, 30.0, 1e5)?;
        count("quota", self.quota)?;
        within("path.holdoff_us", self.holdoff_us, 0.0, 1e7)?;
        within("path.source_limit_pps", self.source_limit_pps, 0.0, 1e9)?;
        // One rule at a time, and laziness by fairness only.
        let rules = f64::from(u8::from(self.fair)) + self.source_limit_pps.min(1.0);
        within("path.fair and path.source_limit_pps", rules, 0.0, 1.0)?;
        let lazy_alone = f64::from(u8::from(self.lazy && !self.fair));
        within("path.lazy without path.fair", lazy_alone, 0.0, 0.0)?;
        within("path.fairness_ns", f64::from(self.fairness_ns), 0.0, 1e6)?;
        within("path.interval_ms", self.interval_ms, 1.0, 1000.0)
    }
}

fn share_pct() -> f64 {
    SheddingConfig::DEFAULT.limit.as_percent().into()
}

fn aim_pct() -> f64 {
    SheddingConfig::DEFAULT.aim.as_percent().into()
}

fn tick_us() -> f64 {
    TICK.as_nanos() as f64 / 1e3
}

fn high_pct() -> f64 {
    SocketWatermarks::DEFAULT.high.as_percent().into()
}

fn low_pct() -> f64 {
    SocketWatermarks::DEFAULT.low.as_percent().into()
}

fn drained_kib() -> u32 {
    SocketWatermarks::DEFAULT.drained_bytes_max / 1024
}

fn holdoff_max_us() -> f64 {
    GovernorConfig::default().holdoff.max.as_micros() as f64
}

fn quota() -> u32 {
    64
}

/// As measured on real packets beside one loud source (docs/measurements-decisions.md, 12 to 15 ns).
fn fairness_ns() -> u32 {
    15
}

/// What the governed guard does about overload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuardStrategy {
    /// Lengthens the holdoff.
    #[default]
    Holdoff,
    /// Lets threads poll, with the same holdoff.
    Thread,
    /// Nothing: early discard alone.
    Off,
}
