//! The search for the maximum loss-free receive rate (MLFRR): bisection on a logarithmic
//! scale, each rate at the best of some tries. A machine that was busy with something
//! else for a moment loses packets at any rate. For paths that lose a little at every
//! moment of this kind, the search from above.

use std::time::Duration;

use crate::Error;

/// How long a rate is tried.
pub(crate) const TRIAL: Duration = Duration::from_millis(500);
/// Loss below this part is the machine's noise, not overload.
const LOSS_MAX: f64 = 0.001;
/// Loss below this part is no loss to the lab.
const NEARLY: f64 = 0.01;
const TRIES: usize = 3;
/// From a rate to the next one below, searched from above.
const DESCENT: f64 = 1.25;
/// Halvings of one such step: to 3 percent.
const HALVINGS: usize = 3;

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

/// Whether less than 1 percent is missing: what loss-free means to the lab.
pub(crate) fn is_nearly_loss_free(offered: u64, arrived: u64) -> bool {
    offered.saturating_sub(arrived) as f64 <= offered as f64 * NEARLY
}

/// The highest rate that `passes`; `None` if the lowest does not.
pub(crate) fn search(
    bounds: Bounds,
    mut passes: impl FnMut(u64) -> Result<bool, Error>,
) -> Result<Option<f64>, Error> {
    let (low, high) = (bounds.lowest_pps as f64, bounds.highest_pps as f64);
    if !at_best(low, &mut passes)? {
        return Ok(None);
    }
    Ok(Some(halve(low, high, bounds.steps, &mut passes)?))
}

/// The highest rate that `passes`, from the highest on downwards; `None` if none does.
///
/// A rate that fails by chance in all its tries costs one step at most. In [`search`] it
/// costs all rates above.
pub(crate) fn search_from_above(
    bounds: Bounds,
    mut passes: impl FnMut(u64) -> Result<bool, Error>,
) -> Result<Option<f64>, Error> {
    let mut rate = bounds.highest_pps as f64;
    while !at_best(rate, &mut passes)? {
        if rate <= bounds.lowest_pps as f64 {
            return Ok(None);
        }
        rate = (rate / DESCENT).max(bounds.lowest_pps as f64);
    }
    if rate >= bounds.highest_pps as f64 {
        return Ok(Some(rate));
    }
    Ok(Some(halve(rate, rate * DESCENT, HALVINGS, &mut passes)?))
}

/// The highest rate that passes, from `low`, which does, to `high`, which does not.
fn halve(
    mut low: f64,
    mut high: f64,
    steps: usize,
    passes: &mut impl FnMut(u64) -> Result<bool, Error>,
) -> Result<f64, Error> {
    for _ in 0..steps {
        let middle = (low * high).sqrt();
        if at_best(middle, passes)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// Whether a rate passes in one of its tries.
fn at_best(rate: f64, passes: &mut impl FnMut(u64) -> Result<bool, Error>) -> Result<bool, Error> {
    for _ in 0..TRIES {
        if passes(rate as u64)? {
            return Ok(true);
        }
    }
    Ok(false)
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

    /// The unit of `real-lrp-sockets` was 10,000 to 27,000 packets/s of 200,000: a pause of
    /// the machine failed one low rate, and bisection never came back above it.
    #[test]
    fn a_pause_costs_the_search_from_above_one_step() {
        let paused = |from: usize| {
            let mut tries = 0;
            move |rate: u64| {
                tries += 1;
                let pause = (from..from + TRIES).contains(&tries);
                Ok(rate <= 200_000 && !pause)
            }
        };
        // The lowest rate passes in its first try; the next three are paused.
        assert!(search(BOUNDS, paused(2)).unwrap().unwrap() < 145_000.0);
        for from in 1..40 {
            let found = search_from_above(BOUNDS, paused(from)).unwrap().unwrap();
            assert!((128_000.0..=200_000.0).contains(&found), "{from}: {found}");
        }
        let found = search_from_above(BOUNDS, paused(1000)).unwrap().unwrap();
        assert!((194_000.0..=200_000.0).contains(&found), "{found}");
    }

    #[test]
    fn the_search_from_above_ends_at_both_bounds() {
        let found = search_from_above(BOUNDS, |_| Ok(true)).unwrap();
        assert_eq!(found, Some(1_000_000.0));
        assert_eq!(search_from_above(BOUNDS, |_| Ok(false)).unwrap(), None);
        let lowest = search_from_above(BOUNDS, |rate| Ok(rate <= 20_000));
        assert!((20_000.0..21_000.0).contains(&lowest.unwrap().unwrap()));
    }

    #[test]
    fn to_the_lab_a_hundredth_may_be_missing() {
        assert!(is_nearly_loss_free(1000, 990) && !is_nearly_loss_free(1000, 989));
    }

    #[test]
    fn a_thousandth_may_be_missing() {
        assert!(is_loss_free(1000, 999) && !is_loss_free(1000, 998));
        // Somebody else's packets arrive as well.
        assert!(is_loss_free(1000, 1001));
    }
}
