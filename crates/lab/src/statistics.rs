//! What several seeds say together: a mean, how far chance may have moved it, and
//! whether it lies on the wanted side of a bound.
//!
//! The interval is Student's of the mean, at 95 percent. Where a value is infinite
//! (a curve that never falls so far), it is the interval of the median by order
//! statistics, which asks nothing of the distribution. Below six values not even the least
//! and the greatest enclose the median with 95 percent: such an interval has no ends. A
//! single value has no interval.

/// A value over several seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Mean, or median if a value is infinite.
    pub value: f64,
    /// Its 95 percent interval; nothing for a single value.
    pub interval: Option<(f64, f64)>,
}

impl Estimate {
    /// Of these values, one per seed; nothing of nothing.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let first = *values.first()?;
        if values.len() == 1 {
            return Some(Self {
                value: first,
                interval: None,
            });
        }
        if values.iter().all(|value| *value == first) {
            return Some(Self {
                value: first,
                interval: Some((first, first)),
            });
        }
        Some(if values.iter().all(|value| value.is_finite()) {
            of_mean(values)
        } else {
            of_median(values)
        })
    }

    /// Whether it is at least `bound`; nothing if chance could decide either way.
    #[must_use]
    pub fn at_least(&self, bound: f64) -> Option<bool> {
        let (low, high) = self.interval.unwrap_or((self.value, self.value));
        if low >= bound {
            Some(true)
        } else if high < bound {
            Some(false)
        } else {
            None
        }
    }
}

fn of_mean(values: &[f64]) -> Estimate {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2));
    let variance = squares.sum::<f64>() / (count - 1.0);
    let half = student(values.len() - 1) * (variance / count).sqrt();
    Estimate {
        value: mean,
        interval: Some((mean - half, mean + half)),
    }
}

fn of_median(values: &[f64]) -> Estimate {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len() - 1;
    let enclosed = median_rank(sorted.len()).map(|rank| (sorted[rank], sorted[last - rank]));
    // The lower middle, since the mean of both may be infinite without need.
    Estimate {
        value: sorted[last / 2],
        interval: enclosed.or(Some((f64::NEG_INFINITY, f64::INFINITY))),
    }
}

/// The rank, from 0, whose value and its mirror enclose the median with 95 percent;
/// nothing where there are too few values for that.
fn median_rank(count: usize) -> Option<usize> {
    let mut rank = None;
    let mut probability = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut below = probability;
    for index in 1..=count / 2 {
        if below > 0.025 {
            break;
        }
        rank = Some(index - 1);
        probability *= (count - index + 1) as f64 / index as f64;
        below += probability;
    }
    rank
}

/// The 97.5 percent point of Student's distribution (tables of any textbook).
fn student(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    // Beyond the table its last value, which is a little wide.
    TABLE[freedom.clamp(1, TABLE.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_five_values_has_students_interval() {
        // A textbook's: s = 1.5811, 2.776 · s / √5 = 1.963.
        let estimate = Estimate::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!(estimate.value, 3.0);
        let (low, high) = estimate.interval.unwrap();
        assert!((low - 1.037).abs() < 1e-3 && (high - 4.963).abs() < 1e-3);
    }

    #[test]
    fn twenty_values_enclose_their_median_with_the_sixth_and_the_fifteenth() {
        let mut values: Vec<f64> = (1..20).map(f64::from).collect();
        values.push(f64::INFINITY);
        let estimate = Estimate::of(&values).unwrap();
        assert_eq!(estimate.interval, Some((6.0, 15.0)));
        assert_eq!(estimate.value, 10.0);
    }

    /// The least and the greatest of four enclose the median with 87.5 percent only.
    #[test]
    fn fewer_than_six_values_one_of_which_is_infinite_decide_nothing() {
        let judged = |values: &[f64]| Estimate::of(values).unwrap().at_least(4.0);
        assert_eq!(judged(&[f64::INFINITY, 5.0, 6.0, 7.0]), None);
        assert_eq!(judged(&[f64::INFINITY, 5.0, 6.0, 7.0, 8.0]), None);
        assert_eq!(
            judged(&[f64::INFINITY, 5.0, 6.0, 7.0, 8.0, 9.0]),
            Some(true)
        );
    }

    #[test]
    fn what_never_varies_is_certain_and_one_value_says_nothing_of_chance() {
        let certain = Estimate::of(&[f64::INFINITY; 20]).unwrap();
        assert_eq!(certain.at_least(1.0), Some(true));
        assert_eq!(Estimate::of(&[2.0]).unwrap().interval, None);
        assert_eq!(Estimate::of(&[]), None);
    }

    #[test]
    fn an_interval_across_the_bound_decides_nothing() {
        let estimate = Estimate::of(&[9.0, 10.0, 11.0, 12.0]).unwrap();
        assert_eq!(estimate.at_least(8.0), Some(true));
        assert_eq!(estimate.at_least(10.5), None);
        assert_eq!(estimate.at_least(13.0), Some(false));
    }
}
