//! What caches cost: work that was away from the CPU finds its code and data replaced.
//!
//! A piece of work has a footprint. Others replace it while they run: after work of
//! `turnover` an e-th part is left. What is gone has to be fetched when the work comes
//! back, which takes `refill` if all of it is gone. So work that comes often, or does much
//! at a time, is cheaper than the same work alone (Soft Timers, Tables II and III).
//!
//! **Limits.** One footprint per CPU in the engine, that of packet input: driver and
//! protocol together. Processes have none; what an interrupt costs them is
//! `handler_pollution`.

use crate::profile::Profile;

/// A footprint and the caches it is in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Footprint {
    refill_ns: f64,
    turnover_ns: f64,
}

impl Footprint {
    /// That of packet input on this machine; without `input_refill` it costs nothing.
    pub(crate) fn of_input(profile: &Profile) -> Self {
        Self::new(
            profile.cost_or_zero("input_refill"),
            profile.cost_or_zero("cache_turnover"),
        )
    }

    /// What an interrupt's handler replaces of whom it interrupts.
    pub(crate) fn of_interrupts(profile: &Profile) -> Self {
        Self::new(
            profile.cost_or_zero("handler_pollution"),
            profile.cost_or_zero("cache_turnover"),
        )
    }

    pub(crate) fn new(refill_ns: u64, turnover_ns: u64) -> Self {
        Self {
            refill_ns: refill_ns as f64,
            turnover_ns: turnover_ns as f64,
        }
    }

    /// Whether it costs anything.
    pub(crate) fn is_none(&self) -> bool {
        self.refill_ns <= 0.0
    }

    /// What coming back costs after others have worked for `away_ns`.
    pub(crate) fn refill(&self, away_ns: u64) -> u64 {
        if self.turnover_ns <= 0.0 {
            return self.refill_ns as u64;
        }
        let left = libm::exp(-(away_ns as f64) / self.turnover_ns);
        (self.refill_ns * (1.0 - left)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The measure: Tables II and III of Soft Timers, a handler every 10 and 20 µs.
    #[test]
    fn the_longer_away_the_colder_as_in_tables_ii_and_iii() {
        let handler = Footprint::new(5_550, 10_000);
        let ratio = handler.refill(20_000) as f64 / handler.refill(10_000) as f64;
        assert!((ratio / (4.8 / 3.5) - 1.0).abs() < 0.01, "{ratio}");
        assert_eq!(handler.refill(0), 0);
        assert_eq!(handler.refill(u64::MAX), 5_550);
    }
}
