//! How much of each packet a monitor keeps while its disk cannot follow.
//!
//! **Intuition.** A monitor cannot slow its sources down (MR-78). When more arrives
//! than the disk takes, the queue between them fills, and something is lost. Blind
//! losses hit exactly what the operator wants to see. So the monitor gives up the
//! least useful bytes first, in planned steps, and says so in the file.
//!
//! **Steps.** Full packets; then a shorter snap length; then headers only; then the
//! headers of whole flows, 1 flow in 2, in 4, in 8, … A flow that is kept at 1 in 8 was
//! kept at 1 in 4 as well ([`FlowSampler`]), so its record has no gap.
//!
//! Where the capturing CPU is what limits, the queue stays short, and the ring before the
//! monitor overflows. Cutting and sampling save it work as well, so losses there lead to the same
//! steps. But they may have a cause that no step removes: bursts, or a kernel that takes the
//! CPU for receiving. So such a step has to pay.
//!
//! **Rules.**
//! - The queue is at the high watermark or above, and has not become shorter since the
//!   last look: one step worse, at most once per [`worsen_dwell`](FidelityConfig::worsen_dwell).
//! - The queue has been at the low watermark or below for a while: one step better. The
//!   while is [`improve_dwell`](FidelityConfig::improve_dwell).
//! - A step that has to be taken back within the same while came too early: the next one
//!   waits twice as long, up to [`improve_dwell_max`](FidelityConfig::improve_dwell_max).
//! - The ring lost [`losses_high`](FidelityConfig::losses_high) or more of a
//!   [`losses_window`](FidelityConfig::losses_window): one step worse. More than
//!   [`losses_low`](FidelityConfig::losses_low): none to the better.
//! - Sampling, or the last step, has not made the losses a quarter smaller: back to where they
//!   last became so. Losses lead to no step for a while then, as long as the one above and
//!   twice as long each time.
//!
//! **Source.** The watermarks are those of Mogul & Ramakrishnan (sections 6.6.1 and 9,
//! MR-44, MR-72), applied to what is kept instead of to input. Nobody's steps are known
//! to us as published.
//!
//! **When it loses.** Small packets have nothing to be cut off, so for them the first
//! steps only cost time. With few flows, sampling keeps all or nothing. A queue that
//! overflows within `worsen_dwell` still loses packets blindly. A load that grows while a
//! step for the ring is judged hides the step's gain.

mod flow;
mod losses;

use core::fmt;
use core::time::Duration;

pub use flow::{FlowSampler, headers_bytes};

use crate::config::{ConfigError, Field, Fraction, NANOSECOND, PPM};
use crate::time::Instant;
use losses::Losses;

/// What is kept of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fidelity {
    /// All that was asked for.
    #[default]
    Full,
    /// The beginning of each packet.
    Short,
    /// The headers of each packet.
    Headers,
    /// The headers of the packets of some flows.
    Sampled {
        /// One flow in 2ⁿ, n at least 1.
        one_in_log2: u8,
    },
}

impl Fidelity {
    /// One flow in this many is kept.
    #[must_use]
    pub const fn one_in(self) -> u32 {
        match self {
            Self::Sampled { one_in_log2 } => 1 << one_in_log2,
            _ => 1,
        }
    }

    fn worse(self, sampling_log2_max: u8) -> Option<Self> {
        match self {
            Self::Full => Some(Self::Short),
            Self::Short => Some(Self::Headers),
            Self::Headers if sampling_log2_max > 0 => Some(Self::Sampled { one_in_log2: 1 }),
            Self::Sampled { one_in_log2 } if one_in_log2 < sampling_log2_max => {
                Some(Self::Sampled {
                    one_in_log2: one_in_log2 + 1,
                })
            }
            Self::Headers | Self::Sampled { .. } => None,
        }
    }

    fn better(self) -> Option<Self> {
        match self {
            Self::Full => None,
            Self::Short => Some(Self::Full),
            Self::Headers => Some(Self::Short),
            Self::Sampled { one_in_log2: ..=1 } => Some(Self::Headers),
            Self::Sampled { one_in_log2 } => Some(Self::Sampled {
                one_in_log2: one_in_log2 - 1,
            }),
        }
    }
}

impl fmt::Display for Fidelity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("full packets"),
            Self::Short => f.write_str("short packets"),
            Self::Headers => f.write_str("headers only"),
            Self::Sampled { .. } => write!(f, "headers of 1 flow in {}", self.one_in()),
        }
    }
}

/// Settings of a [`FidelityControl`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FidelityConfig {
    /// High watermark, a part of the queue; above the low one. The room above it holds
    /// what arrives while the steps are taken. Default 50 %.
    pub high: Fraction,
    /// Low watermark, a part of the queue. Default 10 %.
    pub low: Fraction,
    /// Shortest time between two steps to the worse; above zero. Shorter loses less
    /// blindly, longer gives a step time to show its effect. Default 5 ms.
    pub worsen_dwell: Duration,
    /// Time at the low watermark before a step to the better; above zero. Default 1 s.
    pub improve_dwell: Duration,
    /// Bound of that time when steps to the better keep failing; at least
    /// `improve_dwell`. Default 60 s.
    pub improve_dwell_max: Duration,
    /// Over how long losses at the ring are looked at together; above zero. Shorter answers
    /// sooner, and takes a burst for more. Default 100 ms.
    pub losses_window: Duration,
    /// From this part of a window's packets on, lost at the ring, there is a step; above
    /// `losses_low`. Default 1 %.
    pub losses_high: Fraction,
    /// Part up to which nothing counts as lost. Default 0.1 %.
    pub losses_low: Fraction,
    /// Last step: 1 flow in 2ⁿ, n at most 16; 0 never samples. Default 10.
    pub sampling_log2_max: u8,
}

impl Default for FidelityConfig {
    fn default() -> Self {
        Self {
            high: Fraction::from_percent(50),
            low: Fraction::from_percent(10),
            worsen_dwell: Duration::from_millis(5),
            improve_dwell: Duration::from_secs(1),
            improve_dwell_max: Duration::from_secs(60),
            losses_window: Duration::from_millis(100),
            losses_high: Fraction::from_percent(1),
            losses_low: Fraction::from_ppm(1000),
            sampling_log2_max: 10,
        }
    }
}

impl FidelityConfig {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Names the first field that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Field("high", self.high).must_be_in(PPM.., "above 0 ppm")?;
        Field("low", self.low).must_be_in(..self.high, "below `high`")?;
        Field("worsen_dwell", self.worsen_dwell).must_be_in(NANOSECOND.., "above zero")?;
        Field("improve_dwell", self.improve_dwell).must_be_in(NANOSECOND.., "above zero")?;
        Field("improve_dwell_max", self.improve_dwell_max)
            .must_be_in(self.improve_dwell.., "at least `improve_dwell`")?;
        Field("losses_window", self.losses_window).must_be_in(NANOSECOND.., "above zero")?;
        Field("losses_low", self.losses_low)
            .must_be_in(..self.losses_high, "below `losses_high`")?;
        Field("sampling_log2_max", u32::from(self.sampling_log2_max))
            .must_be_in(..=16, "at most 16")
    }
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct FidelityChange {
    /// What was kept so far.
    pub from: Fidelity,
    /// What is kept from now on.
    pub to: Fidelity,
    /// What led to it.
    pub why: Why,
}

/// What led to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The queue is long.
    LongQueue,
    /// The ring lost packets.
    Losses,
    /// The queue has been short for a while, and the ring lost nothing.
    Calm,
    /// Steps for the ring's sake have not made its losses smaller.
    NoGain,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LongQueue => "the disk is slow",
            Self::Losses => "the ring overflows",
            Self::Calm => "calm for a while",
            Self::NoGain => "less has not helped the ring",
        })
    }
}

/// Decides what is kept, from how full the queue to the disk is and what the ring lost.
#[derive(Clone, Debug)]
pub struct FidelityControl {
    config: FidelityConfig,
    fidelity: Fidelity,
    /// Length of the queue at the last look.
    seen: u64,
    worsened_at: Option<Instant>,
    improved_at: Option<Instant>,
    /// Since when the queue is at the low watermark.
    low_since: Option<Instant>,
    /// The time at the low watermark that the next step to the better takes.
    wait: Duration,
    losses: Losses,
}

impl FidelityControl {
    /// Begins with full packets.
    ///
    /// # Errors
    ///
    /// The config is out of range.
    pub fn new(config: FidelityConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            fidelity: Fidelity::Full,
            seen: 0,
            worsened_at: None,
            improved_at: None,
            low_since: None,
            wait: config.improve_dwell,
            losses: Losses::new(&config),
        })
    }

    /// What is kept now.
    #[must_use]
    pub const fn fidelity(&self) -> Fidelity {
        self.fidelity
    }

    /// The queue holds `queued` of `capacity`, in any unit. To be called often enough
    /// that the queue does not fill between two calls.
    pub fn on_occupancy(
        &mut self,
        queued: u64,
        capacity: u64,
        now: Instant,
    ) -> Option<FidelityChange> {
        let is_shorter = queued < self.seen;
        self.seen = queued;
        if queued > self.config.low.of(capacity) {
            self.low_since = None;
        }
        let is_full = queued >= capacity;
        if queued >= self.config.high.of(capacity).max(1) {
            return (is_full || !is_shorter)
                .then(|| self.worsen(Why::LongQueue, now))
                .flatten();
        }
        if queued <= self.config.low.of(capacity) {
            return self.improve(now);
        }
        None
    }

    /// The ring lost `lost` packets since the last call, while `seen` came through. To be called
    /// several times in a [`losses_window`](FidelityConfig::losses_window).
    pub fn on_losses(&mut self, lost: u64, seen: u64, now: Instant) -> Option<FidelityChange> {
        let part = self.losses.on_look(lost, seen, &self.config, now)?;
        if part <= self.config.losses_low {
            self.losses.on_calm();
            return None;
        }
        self.low_since = None;
        if part < self.config.losses_high {
            return None;
        }
        let samples = matches!(self.fidelity, Fidelity::Sampled { .. });
        let worse = self.fidelity.worse(self.config.sampling_log2_max);
        if (samples || worse.is_none())
            && let Some(back) = self.losses.judge(self.fidelity, part, &self.config, now)
        {
            return Some(self.change(back, Why::NoGain));
        }
        worse?;
        if !self.losses.may_try(self.fidelity, part, &self.config, now) {
            return None;
        }
        self.worsen(Why::Losses, now)
    }

    fn worsen(&mut self, why: Why, now: Instant) -> Option<FidelityChange> {
        let passed = |at: Instant| now.saturating_since(at) >= self.config.worsen_dwell;
        if !self.worsened_at.is_none_or(passed) {
            return None;
        }
        let to = self.fidelity.worse(self.config.sampling_log2_max)?;
        self.worsened_at = Some(now);
        if let Some(improved) = self.improved_at.take() {
            let too_early = now.saturating_since(improved) <= self.wait;
            self.wait = if too_early {
                self.wait
                    .saturating_mul(2)
                    .min(self.config.improve_dwell_max)
            } else {
                self.config.improve_dwell
            };
        }
        Some(self.change(to, why))
    }

    fn improve(&mut self, now: Instant) -> Option<FidelityChange> {
        let to = self.fidelity.better()?;
        let since = *self.low_since.get_or_insert(now);
        if now.saturating_since(since) < self.wait {
            return None;
        }
        // The next step has to wait as long again.
        self.low_since = Some(now);
        self.improved_at = Some(now);
        Some(self.change(to, Why::Calm))
    }

    fn change(&mut self, to: Fidelity, why: Why) -> FidelityChange {
        let from = core::mem::replace(&mut self.fidelity, to);
        FidelityChange { from, to, why }
    }
}

#[cfg(test)]
mod tests;
