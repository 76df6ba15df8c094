//! Losses before the monitor: their part of a window, and whether steps make it smaller.

use core::time::Duration;

use super::{Fidelity, FidelityConfig};
use crate::config::Fraction;
use crate::time::Instant;

/// A step has paid if no more than this part of the losses is left, in percent.
const GAIN_PERCENT: u32 = 75;

#[derive(Clone, Debug)]
pub(super) struct Losses {
    /// When the window began, and its packets.
    since: Option<Instant>,
    lost: u64,
    seen: u64,
    /// Steps that were taken for the ring's sake.
    tried: Option<Tried>,
    /// No step for the ring's sake before.
    not_before: Option<Instant>,
    /// How long there is none after the next failure.
    pause: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Tried {
    /// Where losses last became smaller, or the steps began …
    from: Fidelity,
    /// … and their part then.
    part: Fraction,
}

impl Losses {
    pub(super) const fn new(config: &FidelityConfig) -> Self {
        Self {
            since: None,
            lost: 0,
            seen: 0,
            tried: None,
            not_before: None,
            pause: config.improve_dwell,
        }
    }

    /// The part that was lost, at the end of a window.
    pub(super) fn on_look(
        &mut self,
        lost: u64,
        seen: u64,
        config: &FidelityConfig,
        now: Instant,
    ) -> Option<Fraction> {
        self.lost = self.lost.saturating_add(lost);
        self.seen = self.seen.saturating_add(seen);
        let since = *self.since.get_or_insert(now);
        if now.saturating_since(since) < config.losses_window {
            return None;
        }
        let (lost, all) = (self.lost, self.lost.saturating_add(self.seen));
        (self.since, self.lost, self.seen) = (Some(now), 0, 0);
        let ppm = u128::from(lost) * 1_000_000 / u128::from(all.max(1));
        // At most a million.
        Some(Fraction::from_ppm(ppm as u32))
    }

    /// A window without losses: what was tried has paid, or the load has fallen.
    pub(super) fn on_calm(&mut self) {
        self.tried = None;
    }

    /// Where to go back to, if what was tried has not paid.
    pub(super) fn judge(
        &mut self,
        fidelity: Fidelity,
        part: Fraction,
        config: &FidelityConfig,
        now: Instant,
    ) -> Option<Fidelity> {
        let tried = self.tried.as_mut()?;
        if tried.from >= fidelity {
            return None;
        }
        let enough = tried.part.as_ppm() / 100 * GAIN_PERCENT;
        if part.as_ppm() <= enough {
            *tried = Tried {
                from: fidelity,
                part,
            };
            return None;
        }
        let from = tried.from;
        self.tried = None;
        self.not_before = Some(now + self.pause);
        self.pause = self.pause.saturating_mul(2).min(config.improve_dwell_max);
        Some(from)
    }

    /// Whether a step may be taken for the ring's sake. One that is not to be judged yet goes on
    /// from where they began.
    pub(super) fn may_try(
        &mut self,
        from: Fidelity,
        part: Fraction,
        config: &FidelityConfig,
        now: Instant,
    ) -> bool {
        if self.tried.is_some() {
            return true;
        }
        if let Some(not_before) = self.not_before {
            if now < not_before {
                return false;
            }
            if now.saturating_since(not_before) > self.pause {
                self.pause = config.improve_dwell;
            }
        }
        self.tried = Some(Tried { from, part });
        true
    }
}
