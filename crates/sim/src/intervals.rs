//! Times between trigger states, drawn from a published distribution.
//!
//! A paper gives five numbers of such a distribution: mean, median, maximum, and
//! the parts above 100 and 150 µs. The distribution that is drawn from meets all
//! five: half of the values spread evenly up to the median; those from there to
//! 100 µs fall off exponentially, as steeply as the mean demands; the few above
//! lie evenly up to 150 µs and, beyond, evenly on a logarithmic scale.
//!
//! **Limit.** Values are independent of one another, so that phases of a workload
//! are not modelled.

use fastrand::Rng;

use crate::Error;
use crate::profile::Workload;

/// A distribution of intervals, in µs.
#[derive(Clone, Debug)]
pub(crate) struct Intervals {
    median: f64,
    max: f64,
    /// Probability of at most 100 and of at most 150 µs.
    below: [f64; 2],
    /// How steeply the middle part falls off, per µs.
    decay: f64,
}

/// Where the published tails begin, in µs.
const TAIL: f64 = 100.0;
const FAR_TAIL: f64 = 150.0;

impl Intervals {
    /// The distribution of a workload.
    pub(crate) fn new(workload: &Workload) -> Result<Self, Error> {
        let above = [workload.above_100us_pct, workload.above_150us_pct].map(|part| part / 100.0);
        let (median, max) = (workload.median_us, workload.max_us);
        let field = |name: &str| format!("workload.{}.{name}", workload.name);
        if !(0.0 < median && median < TAIL && FAR_TAIL < max) {
            let allowed = "above 0 and below 100, with max_us above 150";
            return Err(Error::scenario(field("median_us"), median, allowed));
        }
        if !(0.0 <= above[1] && above[1] <= above[0] && above[0] < 0.5) {
            let allowed = "at least above_150us_pct and below 50";
            return Err(Error::scenario(field("above_100us_pct"), above[0], allowed));
        }
        let near_tail = (above[0] - above[1]) * f64::midpoint(TAIL, FAR_TAIL);
        let far_tail = above[1] * (max - FAR_TAIL) / libm::log(max / FAR_TAIL);
        let middle = 0.5 - above[0];
        let mean = (workload.mean_us - 0.25 * median - near_tail - far_tail) / middle;
        let decay = decay(median, mean).ok_or_else(|| {
            let allowed = "such that the values from the median to 100 µs can have the rest";
            Error::scenario(field("mean_us"), workload.mean_us, allowed)
        })?;
        Ok(Self {
            median,
            max,
            below: above.map(|part| 1.0 - part),
            decay,
        })
    }

    /// One interval in µs.
    pub(crate) fn draw(&self, rng: &mut Rng) -> f64 {
        let part = rng.f64();
        let within = |low: f64, high: f64| (part - low) / (high - low);
        if part < 0.5 {
            return self.median * within(0.0, 0.5);
        }
        if part < self.below[0] {
            return self.median + self.middle(within(0.5, self.below[0]));
        }
        if part < self.below[1] {
            return TAIL + (FAR_TAIL - TAIL) * within(self.below[0], self.below[1]);
        }
        let exponent = within(self.below[1], 1.0) * libm::log(self.max / FAR_TAIL);
        FAR_TAIL * libm::exp(exponent)
    }

    /// The value of the middle part below which the part `p` of it lies, from the
    /// median on.
    fn middle(&self, p: f64) -> f64 {
        let width = TAIL - self.median;
        let rest = libm::exp(-self.decay * width);
        -libm::log(1.0 - p * (1.0 - rest)) / self.decay
    }
}

/// The decay at which a truncated exponential distribution from `median` to
/// [`TAIL`] has this mean; nothing if only a rising one would.
fn decay(median: f64, mean: f64) -> Option<f64> {
    let width = TAIL - median;
    let excess = mean - median;
    let of = |decay: f64| 1.0 / decay - width / libm::expm1(decay * width);
    let (mut low, mut high) = (1e-6, 1e3);
    if !(of(high)..of(low)).contains(&excess) {
        return None;
    }
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if of(middle) > excess {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn workload(mean: f64, median: f64, above: [f64; 2]) -> Workload {
        Workload {
            name: "made-up".into(),
            mean_us: mean,
            median_us: median,
            max_us: 476.0,
            above_100us_pct: above[0],
            above_150us_pct: above[1],
            sources: BTreeMap::new(),
            source: "a test".into(),
        }
    }

    #[test]
    fn draws_meet_the_published_numbers() {
        for (mean, median, above) in [(31.52, 18.0, [5.3, 0.39]), (8.47, 6.0, [0.025, 0.013])] {
            let intervals = Intervals::new(&workload(mean, median, above)).unwrap();
            let mut rng = Rng::with_seed(3);
            let mut values: Vec<f64> = (0..400_000).map(|_| intervals.draw(&mut rng)).collect();
            values.sort_by(f64::total_cmp);
            let count = values.len() as f64;
            let got = values.iter().sum::<f64>() / count;
            assert!((got / mean - 1.0).abs() < 0.01, "mean {got} for {mean}");
            let got = values[values.len() / 2];
            assert!(
                (got / median - 1.0).abs() < 0.02,
                "median {got} for {median}"
            );
            for (limit, wanted) in [(TAIL, above[0]), (FAR_TAIL, above[1])] {
                let part = values.iter().filter(|value| **value > limit).count() as f64 / count;
                assert!((100.0 * part - wanted).abs() < 0.15, "{part} above {limit}");
            }
            assert!(values[values.len() - 1] <= 476.0);
        }
    }

    #[test]
    fn impossible_numbers_are_refused() {
        assert!(Intervals::new(&workload(90.0, 18.0, [5.3, 0.39])).is_err());
        assert!(Intervals::new(&workload(31.0, 120.0, [5.3, 0.39])).is_err());
        assert!(Intervals::new(&workload(31.0, 18.0, [0.3, 0.39])).is_err());
    }
}
