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

use super::level::{Claim, Level};
use super::{Class, ConsumerId, Guarantees, SPAN_MAX_NS, Weight, nanos};
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
        let consumers = self.consumers.len();
        let guarantees = &self.config.guarantees;
        guarantees.check(consumer, consumers, class, weight)?;
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

#[cfg(test)]
mod tests;
