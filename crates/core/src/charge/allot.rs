//! How much each claimant gets of a budget that not all claims fit in.
//!
//! **Intuition.** Whoever asks for less than its share gets what it asks for, and
//! what it leaves goes to the others by weight: max-min fairness. A guarantee comes
//! first, so that what must survive an overload does not depend on how many others
//! ask.
//!
//! **Source.** Mogul & Ramakrishnan, section 10 and MR-94 (a share for each
//! consumer when input is shed); Druschel & Banga, section 3 (a consumer's flood is
//! its own loss). Max-min fairness: Bertsekas & Gallager, "Data Networks", 6.5.2.
//!
//! Where [`Shedder`](super::Shedder) decides packet by packet, this divides a
//! period's budget beforehand, for those who admit elsewhere: the guard's BPF
//! program counts against what it was granted.
//!
//! **Limits.** Fair over periods in which demand is steady. What is granted and not
//! used within a period is lost. Takes `claims²` steps at worst, a few passes over
//! the claims as a rule.

/// What a claimant asks for. All amounts are in the budget's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What it would take in the period.
    pub demand: u64,
    /// Its part of what is divided, relative to the others'; at least 1.
    pub weight: u32,
    /// What it gets before anything is divided, as far as it asks for it.
    pub guarantee: u64,
}

/// Divides `budget` among `claims`; `grants` is filled in their order.
///
/// No grant exceeds its demand, all together do not exceed the budget, and if the
/// demands do, nothing of the budget is left but less than one unit per claim. If
/// the guarantees alone exceed the budget, each gets its proportion of it.
///
/// # Panics
///
/// If `claims` and `grants` differ in length, or a weight is 0.
pub fn allot(budget: u64, claims: &[Claim], grants: &mut [u64]) {
    assert_eq!(claims.len(), grants.len(), "one grant for each claim");
    assert!(
        claims.iter().all(|claim| claim.weight > 0),
        "every claim has a weight"
    );
    let guaranteed = |claim: &Claim| u128::from(claim.demand.min(claim.guarantee));
    let promised: u128 = claims.iter().map(guaranteed).sum();
    let kept = promised.min(u128::from(budget));
    for (grant, claim) in grants.iter_mut().zip(claims) {
        *grant = portion(guaranteed(claim), kept, promised.max(1));
    }
    let mut left = budget - sum(grants);
    while let Some(level) = Level::of(left, claims, grants) {
        left = level.pour(left, claims, grants);
    }
}

/// How much is left for each unit of weight of those who want more.
#[derive(Clone, Copy)]
struct Level {
    left: u64,
    weights: u64,
}

impl Level {
    fn of(left: u64, claims: &[Claim], grants: &[u64]) -> Option<Self> {
        let weights = claims
            .iter()
            .zip(grants)
            .filter(|(claim, grant)| claim.demand > **grant)
            .map(|(claim, _)| u64::from(claim.weight))
            .sum();
        (left > 0 && weights > 0).then_some(Self { left, weights })
    }

    fn share(self, weight: u32) -> u64 {
        portion(weight.into(), self.left.into(), self.weights.into())
    }

    /// Fills those up whom their share satisfies; if it satisfies nobody,
    /// everybody gets it. Returns what is left then, 0 if that was the end.
    fn pour(self, left: u64, claims: &[Claim], grants: &mut [u64]) -> u64 {
        let is_satisfied =
            |claim: &Claim, grant: u64| claim.demand - grant <= self.share(claim.weight);
        let all = claims.iter().zip(grants.iter());
        let somebody = all
            .filter(|(claim, grant)| claim.demand > **grant)
            .any(|(claim, grant)| is_satisfied(claim, *grant));
        let mut left = left;
        for (claim, grant) in claims.iter().zip(grants) {
            let more = match is_satisfied(claim, *grant) {
                _ if claim.demand == *grant => 0,
                true => claim.demand - *grant,
                false if somebody => 0,
                false => self.share(claim.weight),
            };
            *grant += more;
            left -= more;
        }
        if somebody { left } else { 0 }
    }
}

/// `part` of `whole` of an amount, rounded down.
fn portion(part: u128, amount: u128, whole: u128) -> u64 {
    u64::try_from(amount * part / whole).unwrap_or(u64::MAX)
}

fn sum(grants: &[u64]) -> u64 {
    grants.iter().sum()
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn claim(demand: u64, weight: u32, guarantee: u64) -> Claim {
        Claim {
            demand,
            weight,
            guarantee,
        }
    }

    fn grants(budget: u64, claims: &[Claim]) -> Vec<u64> {
        let mut grants = vec![0; claims.len()];
        allot(budget, claims, &mut grants);
        grants
    }

    #[test]
    fn who_asks_for_little_gets_it_and_the_flood_gets_the_rest() {
        let claims = [claim(10, 1, 0), claim(1_000_000, 1, 0), claim(30, 1, 0)];
        assert_eq!(grants(100, &claims), [10, 60, 30]);
    }

    #[test]
    fn floods_share_by_weight() {
        let claims = [claim(1000, 1, 0), claim(1000, 3, 0)];
        assert_eq!(grants(100, &claims), [25, 75]);
    }

    #[test]
    fn a_guarantee_does_not_depend_on_how_many_others_ask() {
        let mut claims = vec![claim(1000, 1, 0); 99];
        claims.push(claim(40, 1, 30));
        let given = grants(100, &claims);
        assert_eq!(given[99], 30);
        assert!(given[..99].iter().all(|grant| *grant == 0), "{given:?}");
    }

    #[test]
    fn guarantees_beyond_the_budget_are_cut_in_proportion() {
        assert_eq!(
            grants(100, &[claim(500, 1, 100), claim(500, 1, 300)]),
            [25, 75]
        );
    }

    #[test]
    fn what_a_guarantee_does_not_use_goes_to_the_others() {
        assert_eq!(grants(100, &[claim(5, 1, 50), claim(500, 1, 0)]), [5, 95]);
    }

    /// The plain model: one unit at a time to whoever has least per weight.
    fn one_by_one(budget: u64, claims: &[Claim]) -> Vec<u64> {
        let mut given: Vec<u64> = claims.iter().map(|c| c.demand.min(c.guarantee)).collect();
        let guaranteed = given.clone();
        for _ in given.iter().sum::<u64>()..budget {
            let next = (0..claims.len())
                .filter(|&i| given[i] < claims[i].demand)
                .min_by(|&a, &b| {
                    let level = |i: usize| {
                        (given[i] - guaranteed[i] + 1) * 1_000_000 / u64::from(claims[i].weight)
                    };
                    level(a).cmp(&level(b))
                });
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
            claims in prop::collection::vec((0u64..200, 1u32..5, 0u64..20), 0..8),
        ) {
            let claims: Vec<Claim> = claims.into_iter().map(|(d, w, g)| claim(d, w, g)).collect();
            let promised: u64 = claims.iter().map(|c| c.demand.min(c.guarantee)).sum();
            prop_assume!(promised <= budget);
            let given = grants(budget, &claims);
            let model = one_by_one(budget, &claims);
            for (i, claim) in claims.iter().enumerate() {
                prop_assert!(given[i] <= claim.demand);
                let off = given[i].abs_diff(model[i]);
                prop_assert!(off <= u64::from(claim.weight) * 8, "{given:?} {model:?}");
            }
            let total: u64 = given.iter().sum();
            prop_assert!(total <= budget);
            let wanted: u64 = claims.iter().map(|c| c.demand).sum();
            prop_assert!(total + claims.len() as u64 >= budget.min(wanted));
        }
    }
}
