//! Which arriving packets are admitted when not all of them fit.
//!
//! Where packets can wait in a queue each, [`Shares`](super::Shares) orders their
//! service and full queues discard what is too much. Where a packet has to be
//! taken or dropped the moment it arrives, shares have to be kept by counting
//! (section 11.4, MR-95): time is cut into intervals, each interval has a budget
//! of processing time, and every consumer may have so much of it admitted as the
//! last interval's demand lets it claim.
//!
//! **Allowances** are max-min fair in two levels, classes and consumers, by
//! weight: who asks for less than its share gets all it asks for, and what it
//! leaves is divided among those who ask for more. While something is shed a
//! consumer's entitlement (its share if everybody were asking) is never taken
//! away, so that one that was quiet is served at once when it speaks up; what is
//! then admitted beyond the budget is deducted from the next one. While all
//! demands fit, entitlements are kept for the protected classes only, and the rest
//! of the budget is a pool for whoever comes with more than before.
//!
//! **How exact.** With steady demands every consumer's admitted time is its
//! max-min share, to within one packet over any number of intervals: what a packet
//! exceeds an allowance by is carried over. A change of demand is followed one
//! interval later.
//!
//! **Limits.** Costs are the caller's estimates. Within an interval admission is
//! first come, first served; intervals of about the scheduler's quantum keep such
//! bursts short. Ending an interval is linear in the consumers for each level of
//! fairness found, typically three or four times, at worst quadratic.
//!
//! **When it loses.** Demands that alternate from one interval to the next are
//! always answered too late, and leave budget unused. Preferring the running
//! process ([`Preference`]) gains locality and loses fairness.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Class, ConsumerId, Guarantees, SPAN_MAX_NS, Weight, nanos, validate_share};
use crate::config::ConfigError;

/// Whether running processes are preferred while something must be shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// No.
    None,
    /// The weight of a consumer that runs when an interval begins counts so many
    /// times in that interval (MR-91). 0 counts as 1.
    Weight(u32),
    /// Only packets for running processes are admitted, whatever the budget
    /// (MR-94). Does not conserve work and knows no guarantees.
    Only,
}

/// Settings of a [`Shedder`].
#[derive(Clone, Copy, Debug)]
pub struct ShedderConfig {
    /// The classes.
    pub guarantees: Guarantees,
    /// Consumers are numbered below this.
    pub consumers_max: usize,
    /// See [`Preference`].
    pub preference: Preference,
}

impl ShedderConfig {
    /// Up to `consumers_max` best-effort consumers, none preferred.
    #[must_use]
    pub const fn new(consumers_max: usize) -> Self {
        Self {
            guarantees: Guarantees::none(),
            consumers_max,
            preference: Preference::None,
        }
    }
}

/// Admits by proportional share.
#[derive(Clone, Debug)]
pub struct Shedder {
    config: ShedderConfig,
    consumers: Vec<Consumer>,
    /// The budget of this interval in nanoseconds, less what the last one owed;
    /// `None`: admit everything.
    budget_ns: Option<u64>,
    /// What nobody was expected to ask for.
    pool_ns: u64,
    pool_used_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Consumer {
    class: u8,
    weight: Weight,
    running: bool,
    /// Offered in this interval.
    demand_ns: u64,
    /// Admitted in this interval, or carried over into it.
    admitted_ns: u64,
    allowance_ns: u64,
}

impl Shedder {
    /// Consumers 0 to `consumers_max` − 1, all of weight 0 (without a share) and
    /// best effort; everything is admitted.
    #[must_use]
    pub fn new(config: ShedderConfig) -> Self {
        let consumer = Consumer {
            class: Class::BEST_EFFORT.0,
            weight: 0,
            running: false,
            demand_ns: 0,
            admitted_ns: 0,
            allowance_ns: 0,
        };
        Self {
            config,
            consumers: alloc::vec![consumer; config.consumers_max],
            budget_ns: None,
            pool_ns: 0,
            pool_used_ns: 0,
        }
    }

    /// Gives `consumer` a class and a weight in it, from the next interval on.
    ///
    /// # Errors
    ///
    /// Consumer, class or weight is out of range.
    pub fn configure(
        &mut self,
        consumer: ConsumerId,
        class: Class,
        weight: Weight,
    ) -> Result<(), ConfigError> {
        validate_share(
            consumer,
            self.consumers.len(),
            class,
            self.config.guarantees.classes,
            weight,
        )?;
        let state = &mut self.consumers[consumer.index()];
        (state.class, state.weight) = (class.0, weight);
        Ok(())
    }

    /// Takes the share of `consumer`, which is gone, from the next interval on.
    pub fn remove(&mut self, consumer: ConsumerId) {
        self.consumers[consumer.index()].weight = 0;
    }

    /// `consumer` is scheduled, or no longer.
    pub fn set_running(&mut self, consumer: ConsumerId, running: bool) {
        self.consumers[consumer.index()].running = running;
    }

    /// Whether to admit a packet for `consumer` whose processing will cost `cost`.
    #[must_use]
    pub fn admits(&mut self, consumer: ConsumerId, cost: Duration) -> bool {
        let cost_ns = nanos(cost);
        let state = &mut self.consumers[consumer.index()];
        state.demand_ns = (state.demand_ns + cost_ns).min(SPAN_MAX_NS);
        let shedding = self.budget_ns.is_some();
        let admitted = match self.config.preference {
            Preference::Only if shedding => state.running,
            _ => !shedding || state.admitted_ns < state.allowance_ns,
        };
        if admitted {
            state.admitted_ns = (state.admitted_ns + cost_ns).min(SPAN_MAX_NS);
        } else if self.pool_used_ns < self.pool_ns {
            self.pool_used_ns += cost_ns;
            return true;
        }
        admitted
    }

    /// A packet for `consumer` was taken although it was not admitted, such as the
    /// rest of a frame that was begun: it is deducted from what comes.
    pub fn force(&mut self, consumer: ConsumerId, cost: Duration) {
        let state = &mut self.consumers[consumer.index()];
        state.admitted_ns = (state.admitted_ns + nanos(cost)).min(SPAN_MAX_NS);
    }

    /// An interval begins that may spend `budget` on packets, or any amount. Of
    /// intervals without a budget only the demand matters.
    pub fn on_interval(&mut self, budget: Option<Duration>) {
        let owed_ns = self.owed();
        for consumer in &mut self.consumers {
            let kept = if self.budget_ns.is_some() {
                consumer.admitted_ns.saturating_sub(consumer.allowance_ns)
            } else {
                0
            };
            consumer.admitted_ns = kept;
        }
        // What a whole budget cannot pay back is forgiven.
        self.budget_ns = budget.map(|budget| nanos(budget).saturating_sub(owed_ns));
        (self.pool_ns, self.pool_used_ns) = (0, 0);
        if let Some(budget_ns) = self.budget_ns
            && self.config.preference != Preference::Only
        {
            self.divide(budget_ns);
        }
        for consumer in &mut self.consumers {
            consumer.demand_ns = 0;
        }
    }

    /// What the last interval admitted beyond its budget, apart from what each
    /// consumer carries over by itself.
    fn owed(&self) -> u64 {
        let Some(budget_ns) = self.budget_ns else {
            return 0;
        };
        let within = |consumer: &Consumer| consumer.admitted_ns.min(consumer.allowance_ns);
        let spent = self.consumers.iter().map(within).sum::<u64>() + self.pool_used_ns;
        spent.saturating_sub(budget_ns)
    }

    fn divide(&mut self, budget_ns: u64) {
        let preference = self.config.preference;
        let mut classes = [Claim::default(); Class::COUNT_MAX];
        for (index, claim) in classes.iter_mut().enumerate() {
            claim.weight = self.config.guarantees.share(index);
        }
        for consumer in &self.consumers {
            classes[usize::from(consumer.class)].demand += consumer.claim(preference).demand;
        }
        let level = Level::of(budget_ns, || classes.iter().copied());
        let mut given_ns = 0;
        for (class, claim) in classes.iter().enumerate() {
            let protected = class != Class::BEST_EFFORT.index();
            let entitled = protected || !level.all_fit();
            let part_ns = level.allowance(*claim, entitled);
            given_ns += part_ns;
            self.divide_class(class, part_ns, entitled);
        }
        if level.all_fit() {
            self.pool_ns = budget_ns.saturating_sub(given_ns);
        }
    }

    fn divide_class(&mut self, class: usize, budget_ns: u64, entitled: bool) {
        let preference = self.config.preference;
        let is_member = |consumer: &&Consumer| usize::from(consumer.class) == class;
        let members = self.consumers.iter().filter(is_member);
        let level = Level::of(budget_ns, || {
            members.clone().map(|one| one.claim(preference))
        });
        for consumer in &mut self.consumers {
            if usize::from(consumer.class) == class {
                consumer.allowance_ns = level.allowance(consumer.claim(preference), entitled);
            }
        }
    }
}

impl Consumer {
    fn claim(&self, preference: Preference) -> Claim {
        let factor = match preference {
            Preference::Weight(factor) if self.running => factor.max(1),
            _ => 1,
        };
        Claim {
            weight: u64::from(self.weight) * u64::from(factor),
            // Without a share there is the pool only.
            demand: if self.weight == 0 { 0 } else { self.demand_ns },
        }
    }
}

/// What somebody asks for, in nanoseconds, and the weight of that.
#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    weight: u64,
    demand: u64,
}

/// How a budget is divided among claims.
#[derive(Clone, Copy, Debug)]
struct Level {
    everybody: Ratio,
    /// What is left for those who ask for more than their share, by weight.
    rest: Ratio,
}

/// Nanoseconds divided by weight.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    nanos: u64,
    weight: u64,
}

impl Ratio {
    /// What `weight` gets, rounded down.
    fn part_of(self, weight: u64) -> u64 {
        let part = u128::from(self.nanos) * u128::from(weight) / u128::from(self.weight.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    fn covers(self, claim: Claim) -> bool {
        self.weight == 0 || claim.demand <= self.part_of(claim.weight)
    }
}

impl Level {
    /// The max-min fair level: sets aside those whose demand is below the level
    /// and divides what they leave among the rest, until nobody else falls below.
    fn of<I: Iterator<Item = Claim>>(budget_ns: u64, claims: impl Fn() -> I) -> Self {
        let everybody = Ratio {
            nanos: budget_ns,
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
                    next.nanos = next.nanos.saturating_sub(claim.demand);
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

    fn all_fit(self) -> bool {
        self.rest.weight == 0
    }

    /// Its part of the rest for a claim that asks for more than that; otherwise
    /// what it asks for, or the part that it is `entitled` to if that is more.
    fn allowance(self, claim: Claim, entitled: bool) -> u64 {
        match (self.rest.covers(claim), entitled) {
            (false, _) => self.rest.part_of(claim.weight),
            (true, true) => claim.demand.max(self.everybody.part_of(claim.weight)),
            (true, false) => claim.demand,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::config::Fraction;

    const US: Duration = Duration::from_micros(1);
    const MS: Option<Duration> = Some(Duration::from_millis(1));

    fn shedder(weights: &[Weight]) -> Shedder {
        shedder_of(ShedderConfig::new(weights.len()), weights)
    }

    fn shedder_of(config: ShedderConfig, weights: &[Weight]) -> Shedder {
        let mut shedder = Shedder::new(config);
        for (id, &weight) in (0..).map(ConsumerId).zip(weights) {
            shedder.configure(id, Class::BEST_EFFORT, weight).unwrap();
        }
        shedder
    }

    /// One interval in which consumer i is offered `offered[i]` packets of 1 µs,
    /// all interleaved; how many of each were admitted.
    fn interval(shedder: &mut Shedder, offered: &[u32]) -> Vec<u32> {
        shedder.on_interval(MS);
        let mut admitted = vec![0; offered.len()];
        for round in 0..offered.iter().copied().max().unwrap_or(0) {
            for (id, admitted) in admitted.iter_mut().enumerate() {
                let offers = round < offered[id];
                *admitted += u32::from(offers && shedder.admits(ConsumerId(id as u32), US));
            }
        }
        admitted
    }

    #[test]
    fn without_a_budget_everything_is_admitted() {
        let mut shedder = shedder(&[1]);
        assert!((0..10_000).all(|_| shedder.admits(ConsumerId(0), US)));
        shedder.on_interval(None);
        assert!((0..10_000).all(|_| shedder.admits(ConsumerId(0), US)));
    }

    #[test]
    fn the_budget_is_divided_by_weight_and_what_one_leaves_goes_to_the_others() {
        let mut shedder = shedder(&[1, 2, 5]);
        interval(&mut shedder, &[3000, 3000, 100]);
        let admitted = interval(&mut shedder, &[3000, 3000, 100]);
        assert_eq!(admitted, [300, 600, 100], "a third each of the 900 left");
    }

    #[test]
    fn what_nobody_asked_for_is_free_for_all() {
        let mut shedder = shedder(&[1, 1]);
        interval(&mut shedder, &[100, 0]);
        let admitted = interval(&mut shedder, &[3000, 0]);
        assert_eq!(admitted, [1000, 0], "what it had asked for, and the pool");
        // Who wakes up is entitled to its half at once; the excess is paid back.
        assert_eq!(interval(&mut shedder, &[3000, 3000]), [1000, 500]);
        assert_eq!(interval(&mut shedder, &[3000, 3000]), [250, 250]);
        assert_eq!(interval(&mut shedder, &[3000, 3000]), [500, 500]);
    }

    #[test]
    fn a_protected_class_speaks_up_and_is_served_at_once() {
        let (guarantees, protected) = Guarantees::none().with(Fraction::from_percent(10)).unwrap();
        let mut shedder = shedder_of(
            ShedderConfig {
                guarantees,
                ..ShedderConfig::new(11)
            },
            &[1; 11],
        );
        shedder.configure(ConsumerId(0), protected, 1).unwrap();
        let mut offered = vec![3000; 11];
        offered[0] = 0;
        interval(&mut shedder, &offered);
        assert_eq!(interval(&mut shedder, &offered)[1..], [100; 10]);
        offered[0] = 3000;
        assert_eq!(
            interval(&mut shedder, &offered)[0],
            100,
            "before its demand was known"
        );
        let admitted = interval(&mut shedder, &offered);
        assert_eq!(
            (admitted[0], admitted[1]),
            (90, 81),
            "a tenth less was left"
        );
        assert_eq!(interval(&mut shedder, &offered)[..2], [100, 90]);
    }

    #[test]
    fn running_processes_weigh_more_or_are_all_that_is_admitted() {
        let preference = Preference::Weight(3);
        let mut shedder = shedder_of(
            ShedderConfig {
                preference,
                ..ShedderConfig::new(2)
            },
            &[1, 1],
        );
        shedder.set_running(ConsumerId(0), true);
        interval(&mut shedder, &[3000, 3000]);
        assert_eq!(interval(&mut shedder, &[3000, 3000]), [750, 250]);

        let preference = Preference::Only;
        let mut shedder = shedder_of(
            ShedderConfig {
                preference,
                ..ShedderConfig::new(2)
            },
            &[1, 1],
        );
        shedder.set_running(ConsumerId(0), true);
        assert_eq!(interval(&mut shedder, &[3000, 3000]), [3000, 0]);
        shedder.set_running(ConsumerId(0), false);
        assert_eq!(interval(&mut shedder, &[3000, 3000]), [0, 0]);
    }

    #[test]
    fn a_consumer_that_is_gone_has_no_share() {
        let mut shedder = shedder(&[1, 1]);
        interval(&mut shedder, &[3000, 3000]);
        shedder.remove(ConsumerId(1));
        assert_eq!(interval(&mut shedder, &[3000, 3000]), [1000, 0]);
        let refused = |result: Result<(), ConfigError>| result.unwrap_err().field;
        let best = Class::BEST_EFFORT;
        assert_eq!(
            refused(shedder.configure(ConsumerId(2), best, 1)),
            "consumer"
        );
        assert_eq!(refused(shedder.configure(ConsumerId(0), best, 0)), "weight");
        assert_eq!(
            refused(shedder.configure(ConsumerId(0), Class(1), 1)),
            "class"
        );
    }

    #[test]
    fn what_is_admitted_beyond_a_reduced_budget_is_paid_back_too() {
        let mut shedder = shedder(&[1, 1, 1, 1]);
        interval(&mut shedder, &[3000, 0, 0, 0]);
        let admitted = interval(&mut shedder, &[3000, 3000, 0, 0]);
        assert_eq!(admitted, [1000, 250, 0, 0]);
        let admitted = interval(&mut shedder, &[3000, 3000, 3000, 0]);
        assert_eq!(
            admitted,
            [375, 375, 188, 0],
            "750, and a quarter of that for who wakes"
        );
        let admitted = interval(&mut shedder, &[3000, 3000, 3000, 0]);
        assert_eq!(
            admitted[..2],
            [271, 271],
            "1000 less that quarter, in three parts"
        );
    }

    #[test]
    fn absurd_costs_overflow_nothing() {
        let mut shedder = shedder(&[1, 1]);
        for _ in 0..3 {
            shedder.on_interval(Some(Duration::MAX));
            for id in [0, 1].map(ConsumerId) {
                let _ = shedder.admits(id, Duration::MAX);
                shedder.force(id, Duration::MAX);
            }
        }
    }

    #[test]
    fn what_was_forced_is_deducted_later() {
        let mut shedder = shedder(&[1, 1]);
        interval(&mut shedder, &[3000, 3000]);
        assert_eq!(interval(&mut shedder, &[3000, 3000]), [500, 500]);
        shedder.force(ConsumerId(0), US * 20);
        assert_eq!(interval(&mut shedder, &[3000, 3000]), [480, 500]);
    }

    /// Max-min shares by raising the level in small steps, in tenths of a
    /// nanosecond per weight.
    fn by_filling(weights: &[u32], demands: &[u64], budget: u64) -> Vec<u64> {
        let at = |level: u64| {
            let part =
                |(&weight, &demand): (&u32, &u64)| demand.min(level * u64::from(weight) / 10);
            weights.iter().zip(demands).map(part).collect::<Vec<u64>>()
        };
        let (mut low, mut high) = (0, 20 * budget);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if at(middle).iter().sum::<u64>() <= budget {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        at(low)
    }

    proptest! {
        #[test]
        fn steady_demands_get_their_max_min_share_and_the_budget_is_used(
            claims in prop::collection::vec((1..20u32, 0..2000u64, 1..50u64), 1..10),
            intervals in 1..40u64,
        ) {
            let weights: Vec<u32> = claims.iter().map(|claim| claim.0).collect();
            let costs: Vec<u64> = claims.iter().map(|claim| claim.2).collect();
            let packets: Vec<u64> = claims.iter().map(|claim| claim.1 / claim.2).collect();
            let demands: Vec<u64> = packets.iter().zip(&costs).map(|(a, b)| a * b).collect();
            let budget = Some(Duration::from_nanos(1000));
            let mut shedder = shedder(&weights);
            let mut admitted = vec![0; claims.len()];
            // An interval without a budget makes the demands known.
            for interval in 0..=intervals {
                for (id, admitted) in admitted.iter_mut().enumerate() {
                    let cost = Duration::from_nanos(costs[id]);
                    for _ in 0..packets[id] {
                        let taken = shedder.admits(ConsumerId(id as u32), cost);
                        *admitted += costs[id] * u64::from(taken && interval > 0);
                    }
                }
                shedder.on_interval(budget);
            }
            let fair = by_filling(&weights, &demands, 1000);
            for id in 0..claims.len() {
                let (got, due) = (admitted[id], fair[id] * intervals);
                // The model's level is rounded to a tenth, ours to a nanosecond.
                let rounding = intervals * u64::from(weights[id] / 10 + 2);
                prop_assert!(got <= due + costs[id] + rounding, "{id} got {got} of {due}");
                prop_assert!(got + rounding >= due, "{id} got {got} of {due}");
            }
            let total: u64 = admitted.iter().sum();
            let usable = demands.iter().sum::<u64>().min(1000) * intervals;
            prop_assert!(total + 10 * intervals >= usable, "{total} of {usable}");
        }
    }
}
