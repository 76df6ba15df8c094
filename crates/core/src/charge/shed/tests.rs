//! Intervals by hand, then random demands against their exact shares.

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
    let first_of_two_runs = |preference| {
        let config = ShedderConfig {
            preference,
            ..ShedderConfig::new(2)
        };
        let mut shedder = shedder_of(config, &[1, 1]);
        shedder.set_running(ConsumerId(0), true);
        shedder
    };
    let mut shedder = first_of_two_runs(Preference::Weight(3));
    interval(&mut shedder, &[3000, 3000]);
    assert_eq!(interval(&mut shedder, &[3000, 3000]), [750, 250]);

    let mut shedder = first_of_two_runs(Preference::Only);
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
        let part = |(&weight, &demand): (&u32, &u64)| demand.min(level * u64::from(weight) / 10);
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
