//! Max-min fairness: how a budget that not all claims fit in is divided.
//!
//! Whoever asks for less than its share gets what it asks for, and what it leaves
//! goes to the others by weight, until nobody else falls below its share
//! (Bertsekas & Gallager, "Data Networks", 6.5.2). Amounts are in the budget's
//! unit: nanoseconds here, packets there.
//!
//! Takes one pass over the claims for each level found: three or four as a rule,
//! as many as there are claims at worst.

/// What somebody asks for, and the weight of that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Claim {
    /// Its part of what is divided, relative to the others'; 0: it gets nothing.
    pub(super) weight: u64,
    pub(super) demand: u64,
}

/// How a budget is divided among claims.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    everybody: Ratio,
    /// What is left for those who ask for more than their share, by weight.
    rest: Ratio,
}

/// An amount divided by weight.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    amount: u64,
    weight: u64,
}

impl Ratio {
    /// What `weight` gets, rounded down.
    fn part_of(self, weight: u64) -> u64 {
        let part = u128::from(self.amount) * u128::from(weight) / u128::from(self.weight.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    fn covers(self, claim: Claim) -> bool {
        self.weight == 0 || claim.demand <= self.part_of(claim.weight)
    }
}

impl Level {
    /// Sets aside those whose demand is below the level and divides what they
    /// leave among the rest, until nobody else falls below.
    pub(super) fn of<I: Iterator<Item = Claim>>(budget: u64, claims: impl Fn() -> I) -> Self {
        let everybody = Ratio {
            amount: budget,
            weight: claims().map(|claim| claim.weight).sum(),
        };
        let mut rest = everybody;
        loop {
            let mut next = Ratio {
                weight: 0,
                ..everybody
            };
            for claim in claims() {
                if rest.covers(claim) {
                    next.amount = next.amount.saturating_sub(claim.demand);
                } else {
                    next.weight += claim.weight;
                }
            }
            if next.weight == rest.weight {
                return Self {
                    everybody,
                    rest: next,
                };
            }
            rest = next;
        }
    }

    pub(super) fn all_fit(self) -> bool {
        self.rest.weight == 0
    }

    /// What those of `weight` get who cannot have all they ask for.
    pub(super) fn cut(self, weight: u64) -> u64 {
        self.rest.part_of(weight)
    }

    /// Its part of the rest for a claim that asks for more than that; otherwise
    /// what it asks for, or the part that it is `entitled` to if that is more.
    pub(super) fn allowance(self, claim: Claim, entitled: bool) -> u64 {
        match (self.rest.covers(claim), entitled) {
            (false, _) => self.cut(claim.weight),
            (true, true) => claim.demand.max(self.everybody.part_of(claim.weight)),
            (true, false) => claim.demand,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn grants(budget: u64, claims: &[(u64, u64)]) -> Vec<u64> {
        let claim = |&(weight, demand): &(u64, u64)| Claim { weight, demand };
        let level = Level::of(budget, || claims.iter().map(claim));
        let granted = claims.iter().map(claim);
        granted.map(|one| level.allowance(one, false)).collect()
    }

    #[test]
    fn who_asks_for_little_gets_it_and_the_flood_gets_the_rest() {
        assert_eq!(
            grants(100, &[(1, 10), (1, 1_000_000), (1, 30)]),
            [10, 60, 30]
        );
    }

    #[test]
    fn floods_share_by_weight() {
        assert_eq!(grants(100, &[(1, 1000), (3, 1000)]), [25, 75]);
    }

    #[test]
    fn who_asks_for_little_is_entitled_to_its_share() {
        let claims = [(1, 10), (1, 1000)].map(|(weight, demand)| Claim { weight, demand });
        let level = Level::of(100, || claims.into_iter());
        assert_eq!(level.allowance(claims[0], true), 50);
        assert_eq!(level.allowance(claims[1], true), 90);
        assert!(!level.all_fit());
    }

    /// The plain model: one unit at a time to whoever has least per weight.
    fn one_by_one(budget: u64, claims: &[(u64, u64)]) -> Vec<u64> {
        let mut given = vec![0; claims.len()];
        for _ in 0..budget {
            let next = (0..claims.len())
                .filter(|&i| given[i] < claims[i].1)
                .min_by_key(|&i| (given[i] + 1) * 1_000_000 / claims[i].0);
            match next {
                Some(i) => given[i] += 1,
                None => break,
            }
        }
        given
    }

    proptest! {
        #[test]
        fn grants_are_those_of_one_unit_at_a_time(
            budget in 0u64..500,
            claims in prop::collection::vec((1u64..5, 0u64..200), 0..8),
        ) {
            let given = grants(budget, &claims);
            let model = one_by_one(budget, &claims);
            for (i, (weight, demand)) in claims.iter().enumerate() {
                prop_assert!(given[i] <= *demand);
                prop_assert!(given[i].abs_diff(model[i]) <= weight * 8, "{given:?} {model:?}");
            }
            let total: u64 = given.iter().sum();
            prop_assert!(total <= budget);
            let wanted: u64 = claims.iter().map(|(_, demand)| demand).sum();
            prop_assert!(total + claims.len() as u64 >= budget.min(wanted));
        }
    }
}
