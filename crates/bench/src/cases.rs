//! The cases of a comparison: every load with every protection, and the runs
//! of each.

use plimsoll_report::median;

use crate::protection::Protection;

/// One load with one protection (or one router), and what each of its runs measured.
#[derive(Debug)]
pub(crate) struct Case<L, R, P = Protection> {
    pub(crate) protection: P,
    pub(crate) load: L,
    pub(crate) runs: Vec<R>,
}

impl<L, R, P> Case<L, R, P> {
    /// Median of one value over the runs.
    pub(crate) fn middle(&self, value: impl Fn(&R) -> f64) -> f64 {
        let values: Vec<f64> = self.runs.iter().map(value).collect();
        median(&values).unwrap_or(f64::NAN)
    }

    /// Sum of one count over the runs.
    pub(crate) fn total(&self, value: impl Fn(&R) -> u64) -> u64 {
        self.runs.iter().map(value).sum()
    }
}

/// What takes turns, as it does in this round: backwards in every second one, so that no side
/// always comes first.
pub(crate) fn in_round<T>(
    round: usize,
    all: impl IntoIterator<Item = T>,
) -> impl Iterator<Item = T> {
    let mut all: Vec<T> = all.into_iter().collect();
    if round.is_multiple_of(2) {
        all.reverse();
    }
    all.into_iter()
}

/// All cases, in the order in which they take turns in the first round.
#[derive(Debug)]
pub(crate) struct Cases<L, R, P = Protection>(pub(crate) Vec<Case<L, R, P>>);

impl<L, R, P> Default for Cases<L, R, P> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<L: Copy + PartialEq, R, P: Copy + PartialEq> Cases<L, R, P> {
    /// No runs yet.
    pub(crate) fn new(protections: &[P], loads: &[L]) -> Self {
        let all = |&load: &L| {
            protections.iter().map(move |&protection| Case {
                protection,
                load,
                runs: Vec::new(),
            })
        };
        Self(loads.iter().flat_map(all).collect())
    }

    /// All cases as they take turns in this round.
    pub(crate) fn in_round(&mut self, round: usize) -> impl Iterator<Item = &mut Case<L, R, P>> {
        in_round(round, &mut self.0)
    }

    /// One value of each run of a case; nothing if there is no such case.
    pub(crate) fn values(&self, protection: P, load: L, value: impl Fn(&R) -> f64) -> Vec<f64> {
        let is_meant = |case: &&Case<L, R, P>| case.protection == protection && case.load == load;
        let case = self.0.iter().find(is_meant);
        case.map_or_else(Vec::new, |case| case.runs.iter().map(value).collect())
    }

    /// The last load: floods are listed from light to heavy.
    pub(crate) fn heaviest(&self) -> Option<L> {
        self.0.last().map(|case| case.load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_meets_every_protection_and_keeps_its_own_runs() {
        let mut cases = Cases::new(&[Protection::Stock, Protection::Guard], &[0, 5]);
        for (number, case) in cases.0.iter_mut().enumerate() {
            case.runs = vec![number as f64, 10.0, 11.0];
        }
        assert_eq!(cases.0.len(), 4);
        assert_eq!(
            cases.values(Protection::Guard, 5, |run| *run),
            [3.0, 10.0, 11.0]
        );
        assert!(cases.values(Protection::Stock, 7, |run| *run).is_empty());
        assert_eq!(cases.heaviest(), Some(5));
        let mut sides = |round| -> Vec<_> {
            let in_turn = cases.in_round(round);
            in_turn.map(|case| (case.protection, case.load)).collect()
        };
        let (first, mut second) = (sides(1), sides(2));
        assert_eq!(first[0], (Protection::Stock, 0));
        second.reverse();
        assert_eq!(first, second, "backwards");
        assert_eq!(cases.0[0].middle(|run| *run), 10.0);
        assert_eq!(cases.0[0].total(|run| *run as u64), 21);
    }
}
