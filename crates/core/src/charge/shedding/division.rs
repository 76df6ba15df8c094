//! Whose packets a budget admits.

use core::ops::Range;

use super::*;
use crate::charge::level::{Claim, Level};

/// Divides budgets among demands; keeps the memory that it needs for that.
#[derive(Clone, Debug)]
pub(super) struct Division {
    /// Places of the demands, those of one party together.
    order: Vec<u32>,
    shares: Vec<Share>,
    demands_max: usize,
}

/// Who has one share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    Protected,
    Group(u64),
    Slot(u32),
}

impl Party {
    fn of(demand: &Demand) -> Self {
        match demand.group {
            _ if demand.protected => Self::Protected,
            Some(group) => Self::Group(group),
            None => Self::Slot(demand.slot),
        }
    }
}

impl Division {
    pub(super) fn new(demands_max: usize) -> Self {
        Self {
            order: Vec::with_capacity(demands_max),
            shares: Vec::with_capacity(demands_max),
            demands_max,
        }
    }

    /// Divides `budget` packets of an interval that is `elapsed` long. Protected
    /// traffic gets `guarantee` of them first, as far as it asks for it.
    pub(super) fn divide(
        &mut self,
        budget: u64,
        guarantee: u64,
        demands: &[Demand],
        elapsed: Duration,
    ) -> Order<'_> {
        assert!(
            demands.len() <= self.demands_max,
            "at most `demands_max` demands"
        );
        self.sort(demands);
        self.shares.clear();
        let parties = || {
            let same = |a: &u32, b: &u32| party(demands, *a) == party(demands, *b);
            self.order.chunk_by(same)
        };
        let is_protected = |members: &[u32]| party(demands, members[0]) == Party::Protected;
        // What is asked for beyond the guarantee competes with the others.
        let unguaranteed = |members: &[u32]| {
            let demand = sum(members.iter().map(|i| &demands[*i as usize]));
            match is_protected(members) {
                true => demand.saturating_sub(guarantee),
                false => demand,
            }
        };
        let claims = || {
            parties().map(|members| Claim {
                weight: 1,
                demand: unguaranteed(members),
            })
        };
        let protected = sum(demands.iter().filter(|one| one.protected));
        let kept = protected.min(guarantee);
        let level = level_of(budget - kept, claims);
        for members in parties() {
            let allowed = if is_protected(members) {
                let more = unguaranteed(members).min(level);
                // A guarantee holds from the first packet of a burst on.
                level.max(guarantee.max(kept.saturating_add(more)))
            } else if members.len() > 1 {
                level
            } else {
                // As everybody.
                continue;
            };
            self.shares
                .extend(shares_of(demands, members, allowed, elapsed));
        }
        Order::Shed {
            others: per_tick(level, elapsed),
            slots: &self.shares,
        }
    }

    fn sort(&mut self, demands: &[Demand]) {
        let all: Range<u32> = 0..demands.len() as u32;
        self.order.clear();
        self.order.extend(all);
        self.order.sort_unstable_by_key(|i| party(demands, *i));
    }
}

/// The shares of one party's `members`, who may have `allowed` packets of the interval
/// together.
fn shares_of(
    demands: &[Demand],
    members: &[u32],
    allowed: u64,
    elapsed: Duration,
) -> impl Iterator<Item = Share> {
    let member = |i: &u32| demands[*i as usize];
    let own = || {
        members.iter().map(move |i| Claim {
            weight: 1,
            demand: member(i).packets,
        })
    };
    let packets = per_tick(level_of(allowed, own), elapsed);
    members.iter().map(move |i| Share {
        slot: member(i).slot,
        packets,
    })
}

fn party(demands: &[Demand], place: u32) -> Party {
    Party::of(&demands[place as usize])
}

/// What each gets who cannot have all it asks for; everything, if everybody can.
/// Who asks for less may ask for that much at once.
fn level_of<I: Iterator<Item = Claim>>(budget: u64, claims: impl Fn() -> I) -> u64 {
    let level = Level::of(budget, claims);
    if level.all_fit() {
        budget
    } else {
        level.cut(1)
    }
}

fn per_tick(packets: u64, elapsed: Duration) -> u32 {
    let ticks = u128::from(packets) * TICK.as_nanos() / elapsed.as_nanos().max(1);
    u32::try_from(ticks).unwrap_or(u32::MAX).max(1)
}
