//! What a poller can be told, and why.

use core::time::Duration;

use crate::config::{ConfigError, Field, NANOSECOND};

/// Settings of a [`Poller`](super::Poller).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerConfig {
    /// Packets a receive turn may take, at least 1. Larger amortises the cost of
    /// a turn better, smaller keeps everybody else's wait short. Default 8, the
    /// optimum of section 6.6.2 on its hardware; [`quota`](crate::quota) finds
    /// this machine's. `u32::MAX` is "no quota" and livelocks (MR-16).
    pub receive_quota: u32,
    /// Completions a transmit turn may take, at least 1. Default 8.
    pub transmit_quota: u32,
    /// The least time between two rounds that contain receive turns. Transmit
    /// turns are not delayed. Needed where transmit work is done outside of the
    /// poller, at a priority not above it (unmodified sources, the kernel's own
    /// completions): without a gap receive polling starves it. Costs throughput
    /// (no receiving during the gap). Default zero.
    pub receive_gap: Duration,
    /// What makes the poller look. Default [`Initiation::Interrupt`].
    pub initiation: Initiation,
}

impl Default for PollerConfig {
    fn default() -> Self {
        Self {
            receive_quota: 8,
            transmit_quota: 8,
            receive_gap: Duration::ZERO,
            initiation: Initiation::Interrupt,
        }
    }
}

/// What makes a poller look at its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initiation {
    /// An interrupt starts polling, and polling goes on until no work is left
    /// (section 5.2). The scheme of this module; the others are for comparison.
    Interrupt,
    /// Interrupts do everything themselves, as in a kernel without polling
    /// (the control group of section 6.5).
    Unmodified,
    /// No interrupts: every source is looked at once per period (section 5.2;
    /// "clocked interrupts", section 10). Adds up to a period of latency.
    Clock {
        /// Time between looks, above zero.
        period: Duration,
    },
    /// Interrupts while few packets come, a clock while many do, as the 4.3BSD
    /// terminal driver (section 10).
    ClockAboveRate {
        /// Time between looks while the clock is in use, above zero.
        period: Duration,
        /// Span over which received packets are counted, above zero.
        window: Duration,
        /// More packets than this in a window switch to the clock; at least 1.
        packets: u32,
    },
}

impl PollerConfig {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Names the first field that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Field("receive_quota", self.receive_quota).must_be_in(1.., "at least 1")?;
        Field("transmit_quota", self.transmit_quota).must_be_in(1.., "at least 1")?;
        match self.initiation {
            Initiation::Interrupt | Initiation::Unmodified => Ok(()),
            Initiation::Clock { period } => {
                Field("period", period).must_be_in(NANOSECOND.., "above zero")
            }
            Initiation::ClockAboveRate {
                period,
                window,
                packets,
            } => {
                Field("period", period).must_be_in(NANOSECOND.., "above zero")?;
                Field("window", window).must_be_in(NANOSECOND.., "above zero")?;
                Field("packets", packets).must_be_in(1.., "at least 1")
            }
        }
    }
}
