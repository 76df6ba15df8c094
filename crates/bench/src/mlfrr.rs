//! The search for the maximum loss-free receive rate (MLFRR): bisection on a logarithmic
//! scale, each rate at the best of some tries. A machine that was busy with something
//! else for a moment loses packets at any rate.

use std::time::Duration;

use crate::Error;

/// How long a rate is tried.
pub(crate) const TRIAL: Duration = Duration::from_millis(500);
/// Loss below this part is the machine's noise, not overload.
const LOSS_MAX: f64 = 0.001;
const TRIES: usize = 3;

/// Between which rates it is searched, in packets per second, and how closely.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) lowest_pps: u64,
    pub(crate) highest_pps: u64,
    /// Each halves the distance of the logarithms.
    pub(crate) steps: usize,
}

/// Whether so little is missing that nothing counts as lost.
pub(crate) fn is_loss_free(offered: u64, arrived: u64) -> bool {
    offered.saturating_sub(arrived) as f64 <= offered as f64 * LOSS_MAX
}

/// The highest rate that `passes`; `None` if the lowest does not.
pub(crate) fn search(
    bounds: Bounds,
    mut passes: impl FnMut(u64) -> Result<bool, Error>,
) -> Result<Option<f64>, Error> {
    let mut at_best = |rate: f64| {
        for _ in 0..TRIES {
            if passes(rate as u64)? {
                return Ok(true);
            }
        }
        Ok::<bool, Error>(false)
    };
    let (mut low, mut high) = (bounds.lowest_pps as f64, bounds.highest_pps as f64);
    if !at_best(low)? {
        return Ok(None);
    }
    for _ in 0..bounds.steps {
        let middle = (low * high).sqrt();
        if at_best(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(Some(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        lowest_pps: 20_000,
        highest_pps: 1_000_000,
        steps: 8,
    };

    #[test]
    fn the_search_ends_just_below_the_limit() {
        let found = search(BOUNDS, |rate| Ok(rate <= 300_000)).unwrap().unwrap();
        assert!((294_000.0..=300_000.0).contains(&found), "{found}");
        assert_eq!(search(BOUNDS, |_| Ok(false)).unwrap(), None);
    }

    #[test]
    fn a_rate_passes_at_its_best_try() {
        let mut tries = 0;
        let found = search(BOUNDS, |_| {
            tries += 1;
            Ok(tries % 3 == 0)
        });
        assert!(found.unwrap().unwrap() > 980_000.0);
    }

    #[test]
    fn a_thousandth_may_be_missing() {
        assert!(is_loss_free(1000, 999) && !is_loss_free(1000, 998));
        // Somebody else's packets arrive as well.
        assert!(is_loss_free(1000, 1001));
    }
}
