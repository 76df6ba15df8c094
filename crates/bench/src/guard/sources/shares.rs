//! Fair shares: what max-min fairness would give, and how near to it a result is.

/// What max-min fairness gives each of `demands` of `capacity`: nobody gets more than
/// they ask for, and whoever gets less than they ask for gets as much as anybody
/// (Bertsekas and Gallager, *Data Networks*, 2nd ed., section 6.5.2).
pub(super) fn max_min(demands: &[f64], capacity: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by(|&one, &other| demands[one].total_cmp(&demands[other]));
    let mut left = capacity;
    let mut shares = vec![0.0; demands.len()];
    for (served, &index) in order.iter().enumerate() {
        let equal = left / (demands.len() - served) as f64;
        shares[index] = demands[index].min(equal);
        left -= shares[index];
    }
    shares
}

/// Jain's fairness index (Jain, Chiu and Hawe, DEC-TR-301, 1984) of non-negative
/// values: 1 if all are equal, 1/n if one has all; nothing if there is nothing.
pub(super) fn jain(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

/// Jain's index of what each got relative to its max-min share of what all got.
pub(super) fn jain_of_max_min(demands: &[f64], got: &[f64]) -> Option<f64> {
    let shares = max_min(demands, got.iter().sum());
    let relative: Vec<f64> = got
        .iter()
        .zip(&shares)
        .filter(|(_, share)| **share > 0.0)
        .map(|(got, share)| got / share)
        .collect();
    jain(&relative)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_little_gets_it_and_others_share_the_rest() {
        assert_eq!(max_min(&[2.0, 8.0, 4.0, 10.0], 16.0), [2.0, 5.0, 4.0, 5.0]);
        // Enough for all.
        assert_eq!(max_min(&[3.0, 1.0], 10.0), [3.0, 1.0]);
        // Enough for nobody.
        assert_eq!(max_min(&[3.0, 1.0, 9.0], 1.5), [0.5, 0.5, 0.5]);
        assert!(max_min(&[], 1.0).is_empty());
    }

    #[test]
    fn shares_add_up_and_no_two_unserved_differ() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..1000 {
            let count = random.usize(1..60);
            let demands: Vec<f64> = (0..count).map(|_| random.f64() * 100.0).collect();
            let capacity = random.f64() * 3000.0;
            let shares = max_min(&demands, capacity);
            let sum: f64 = shares.iter().sum();
            let asked: f64 = demands.iter().sum();
            assert!((sum - asked.min(capacity)).abs() < 1e-6, "{sum}");
            let unserved: Vec<f64> = demands
                .iter()
                .zip(&shares)
                .filter(|(demand, share)| *demand - *share > 1e-9)
                .map(|(_, share)| *share)
                .collect();
            let most = shares.iter().copied().fold(0.0, f64::max);
            assert!(unserved.iter().all(|share| (share - most).abs() < 1e-6));
        }
    }

    #[test]
    fn the_index_tells_how_many_share() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), Some(1.0));
        assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[0.0]), None);
        assert_eq!(jain(&[]), None);
    }

    #[test]
    fn who_gets_max_min_shares_is_perfectly_fair_and_who_gets_in_proportion_is_not() {
        let demands = [10.0, 100.0, 1000.0];
        assert_eq!(jain_of_max_min(&demands, &[10.0, 50.0, 50.0]), Some(1.0));
        // A tenth for each: 1, 10 and 100 of 111, where 10, 50.5 and 50.5 are due.
        let relative = [1.0 / 10.0, 10.0 / 50.5, 100.0 / 50.5];
        let index = jain_of_max_min(&demands, &[1.0, 10.0, 100.0]).unwrap();
        assert!((index - jain(&relative).unwrap()).abs() < 1e-9, "{index}");
        assert!(index < 0.5, "{index}");
    }
}
