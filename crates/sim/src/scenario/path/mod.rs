//! Which receive path, with which parameters.

mod guard;
mod interrupts;
mod linux;
mod polling;
mod threads;

use serde::{Deserialize, Serialize};

pub use guard::{GovernedGuardConfig, GuardStrategy};
pub use interrupts::{
    AdaptiveHoldoffConfig, BatchedInterruptsConfig, FixedHoldoffConfig, OverloadDisableConfig,
};
pub use linux::NapiConfig;
pub use polling::{
    ClockedInterruptsConfig, CodePointPollingConfig, FreebsdPollingConfig, HipConfig,
    PeriodicPollingConfig, PollingWatchdogConfig, RateSwitchedConfig, SoftTimerPollingConfig,
};
pub use threads::{CycleLimit, Feedback, PollingThreadConfig, UserLevelConfig, Watermark};

use super::within;
use crate::Error;

/// A receive path, named as in the papers; docs/papers.md lists the `BL` ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum PathConfig {
    /// BL-01: each interrupt takes one packet. Protocol work in a software
    /// interrupt.
    InterruptPerPacket {},
    /// BL-02 to 05, 07: an interrupt takes packets until there are none;
    /// protocol work in a software interrupt (4.4BSD) behind the shared IP queue.
    BatchedInterrupts(BatchedInterruptsConfig),
    /// BL-06: as batched interrupts, with the vendor's kernel and driver. Published are
    /// sums at light load, so that it differs in the cost of a packet only.
    VendorDriver {},
    /// BL-09: as batched interrupts, but they are switched off for a while when
    /// packets take too much of the CPU.
    OverloadDisable(OverloadDisableConfig),
    /// BL-10: interrupts wait for a fixed time after a packet.
    FixedHoldoff(FixedHoldoffConfig),
    /// BL-11: holdoff from the load, receive buffers from drops.
    AdaptiveHoldoff(AdaptiveHoldoffConfig),
    /// BL-12: a loop that does nothing but look at the adapters.
    BusyPolling {},
    /// BL-13: the scheduler looks at the adapters at fixed intervals.
    PeriodicPolling(PeriodicPollingConfig),
    /// BL-14: the adapters are looked at in system calls and traps, when an
    /// interval has passed.
    CodePointPolling(CodePointPollingConfig),
    /// BL-15: the adapter interrupts only if it has not been looked at in time.
    PollingWatchdog(PollingWatchdogConfig),
    /// BL-16: a timer interrupts at a fixed rate and its handler polls.
    ClockedInterrupts(ClockedInterruptsConfig),
    /// BL-17: no interrupts; polling at clock ticks, system calls and in the idle
    /// loop.
    FreebsdPolling(FreebsdPollingConfig),
    /// BL-18: interrupts below a rate, polling above it at an interval that
    /// follows the packets'.
    Hip(HipConfig),
    /// BL-19: interrupts while few packets come, a clock while many do.
    RateSwitched(RateSwitchedConfig),
    /// BL-20: a soft timer event polls the adapters at trigger states, as often
    /// as finds the wanted number of packets.
    SoftTimerPolling(SoftTimerPollingConfig),
    /// BL-21: everything is done to completion at device level.
    HighLevel {},
    /// BL-22 to 27, 30: interrupts start a polling thread, which shares the CPU
    /// between all directions of all adapters.
    PollingThread(PollingThreadConfig),
    /// BL-31: demultiplexing and discard in the interrupt handler, then eager
    /// protocol work.
    EarlyDemux {},
    /// BL-32: demultiplexing and discard in the interrupt handler, protocol work
    /// by the receiver.
    SoftLrp {},
    /// BL-33: as SOFT-LRP, but the adapter demultiplexes and discards.
    NiLrp {},
    /// BL-34: demultiplexing and discard in the interrupt handler, by the kernel's
    /// packet filter, or on the adapter; a thread of the application does the protocol
    /// work eagerly. With the scheduler `fixed-priority` it is RT-Mach's (BL-35) and a
    /// Scout path (BL-36).
    UserLevel(UserLevelConfig),
    /// What Linux does: interrupts make a softirq poll the queues, within budgets, and
    /// what these leave is ksoftirqd's, a thread like any other. Or a thread polls.
    Napi(NapiConfig),
    /// Plimsoll: early discard where packets are received, and a governor that
    /// changes from interrupts to an adaptive holdoff or a polling thread.
    GovernedGuard(GovernedGuardConfig),
}

impl PathConfig {
    /// The kind's name, as in TOML.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::InterruptPerPacket {} => "interrupt-per-packet",
            Self::BatchedInterrupts(_) => "batched-interrupts",
            Self::VendorDriver {} => "vendor-driver",
            Self::OverloadDisable(_) => "overload-disable",
            Self::FixedHoldoff(_) => "fixed-holdoff",
            Self::AdaptiveHoldoff(_) => "adaptive-holdoff",
            Self::BusyPolling {} => "busy-polling",
            Self::PeriodicPolling(_) => "periodic-polling",
            Self::CodePointPolling(_) => "code-point-polling",
            Self::PollingWatchdog(_) => "polling-watchdog",
            Self::ClockedInterrupts(_) => "clocked-interrupts",
            Self::FreebsdPolling(_) => "freebsd-polling",
            Self::Hip(_) => "hip",
            Self::RateSwitched(_) => "rate-switched",
            Self::SoftTimerPolling(_) => "soft-timer-polling",
            Self::HighLevel {} => "high-level",
            Self::PollingThread(_) => "polling-thread",
            Self::EarlyDemux {} => "early-demux",
            Self::SoftLrp {} => "soft-lrp",
            Self::NiLrp {} => "ni-lrp",
            Self::UserLevel(_) => "user-level",
            Self::Napi(_) => "napi",
            Self::GovernedGuard(_) => "governed-guard",
        }
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        match self {
            Self::InterruptPerPacket {}
            | Self::BatchedInterrupts(_)
            | Self::VendorDriver {}
            | Self::BusyPolling {}
            | Self::HighLevel {}
            | Self::EarlyDemux {}
            | Self::SoftLrp {}
            | Self::NiLrp {}
            | Self::UserLevel(_) => Ok(()),
            Self::OverloadDisable(config) => config.validate(),
            Self::FixedHoldoff(config) => config.validate(),
            Self::AdaptiveHoldoff(config) => config.validate(),
            Self::PeriodicPolling(config) => config.validate(),
            Self::CodePointPolling(config) => config.validate(),
            Self::PollingWatchdog(config) => config.validate(),
            Self::ClockedInterrupts(config) => config.validate(),
            Self::FreebsdPolling(config) => config.validate(),
            Self::Hip(config) => config.validate(),
            Self::RateSwitched(config) => config.validate(),
            Self::SoftTimerPolling(config) => config.validate(),
            Self::PollingThread(config) => config.validate(),
            Self::Napi(config) => config.validate(),
            Self::GovernedGuard(config) => config.validate(),
        }
    }
}

/// The default period of limits and intervals of looking.
fn period_ms() -> f64 {
    10.0
}

fn percent(field: &str, given: f64) -> Result<(), Error> {
    within(format!("path.{field}"), given, 0.001, 100.0)
}

fn micros(field: &str, given: f64) -> Result<(), Error> {
    within(format!("path.{field}"), given, 0.001, 1e7)
}

fn count(field: &str, given: u32) -> Result<(), Error> {
    within(format!("path.{field}"), f64::from(given), 1.0, 1e9)
}
