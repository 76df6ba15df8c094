//! Overload that the host carries.
//!
//! Overload that has lost nothing for a second, though its CPUs have no time to spare, is
//! settled. It is looked at as rarely as calm is, and CPU time need not be metered all the
//! time ([`Governor::on_unmetered`](super::Governor::on_unmetered)), until something is lost.
//! A CPU limit is kept by looking, so near one nothing is settled.

use core::time::Duration;

use crate::config::Fraction;
use crate::time::Instant;

/// Nothing was lost for so long.
const SETTLING: Duration = Duration::from_secs(1);
/// A load above this part of the CPU limit is near it.
const NEAR_LIMIT: Fraction = Fraction::from_percent(90);

/// Whether overload is settled.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// When last metered, all CPUs were well below the CPU limit.
    is_below_limit: bool,
    /// Since when overload has lost nothing.
    since: Option<Instant>,
    is_settled: bool,
}

impl Settled {
    /// So much of each CPU receiving took in a metered interval.
    pub(super) fn on_loads(
        &mut self,
        mut loads: impl Iterator<Item = Fraction>,
        limit: Option<Fraction>,
    ) {
        let near = |limit: Fraction| NEAR_LIMIT.of(u64::from(limit.as_ppm()));
        let limit = limit.map_or(u64::MAX, near);
        self.is_below_limit = loads.all(|load| u64::from(load.as_ppm()) < limit);
    }

    /// Whether overload lasts, and lost nothing in the interval that ends now.
    pub(super) fn on_interval(&mut self, is_carried: bool, now: Instant) {
        let is_carried = is_carried && self.is_below_limit;
        self.since = is_carried.then(|| self.since.unwrap_or(now));
        let lasts = |since| now.saturating_since(since) >= SETTLING;
        self.is_settled = self.since.is_some_and(lasts);
    }

    pub(super) const fn is_settled(&self) -> bool {
        self.is_settled
    }
}
