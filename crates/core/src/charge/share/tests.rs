//! Turns by hand, then random work: nobody gets further ahead than the bound says.

extern crate std;
use std::vec;

use proptest::prelude::*;

use super::*;
use crate::config::Fraction;

const US: Duration = Duration::from_micros(1);
const A: ConsumerId = ConsumerId(0);
const B: ConsumerId = ConsumerId(1);
const C: ConsumerId = ConsumerId(2);

/// Serves whoever is next, at the same cost each, and returns who got how
/// many turns.
fn serve(shares: &mut Shares, turns: u32) -> [u32; 3] {
    let mut got = [0; 3];
    for _ in 0..turns {
        let next = shares.poll_next().unwrap();
        got[next.index()] += 1;
        shares.on_served(next, US, true);
    }
    got
}

fn backlogged(weights: [Weight; 3]) -> Shares {
    let mut shares = Shares::new(SharesConfig::new(3));
    for (consumer, weight) in [A, B, C].into_iter().zip(weights) {
        shares
            .configure(consumer, Class::BEST_EFFORT, weight)
            .unwrap();
        shares.on_backlog(consumer);
    }
    shares
}

#[test]
fn time_is_shared_by_weight() {
    assert_eq!(serve(&mut backlogged([1, 2, 3]), 600), [100, 200, 300]);
}

#[test]
fn who_costs_more_is_served_less_often() {
    let mut shares = backlogged([1, 1, 1]);
    shares.on_drained(C);
    let mut got = [0u32; 2];
    for _ in 0..400 {
        let next = shares.poll_next().unwrap();
        got[next.index()] += 1;
        shares.on_served(next, US * if next == A { 3 } else { 1 }, true);
    }
    assert_eq!(got, [100, 300]);
    assert_eq!(shares.charged(A), shares.charged(B));
}

#[test]
fn nothing_is_left_idle_and_nothing_saved_up() {
    let mut shares = backlogged([1, 1, 1]);
    shares.on_drained(B);
    shares.on_drained(C);
    assert_eq!(serve(&mut shares, 1000), [1000, 0, 0]);
    shares.on_backlog(B);
    assert_eq!(
        serve(&mut shares, 100),
        [50, 50, 0],
        "B claims nothing for its absence"
    );
    shares.on_drained(A);
    shares.on_drained(B);
    assert_eq!(shares.poll_next(), None);
}

#[test]
fn work_done_for_a_consumer_behind_its_back_lowers_its_claim() {
    let mut shares = backlogged([1, 1, 1]);
    shares.charge(A, US * 100);
    assert_eq!(
        serve(&mut shares, 200),
        [0, 100, 100],
        "until the others have caught up"
    );
    assert_eq!(serve(&mut shares, 300), [100, 100, 100]);
    shares.reset(A);
    assert_eq!(shares.charged(A), Duration::ZERO);
}

#[test]
fn absurd_charges_overflow_nothing() {
    let mut shares = backlogged([1, 1, 1]);
    (0..100).for_each(|_| shares.charge(A, Duration::MAX));
    assert_ne!(shares.poll_next(), Some(A));
}

#[test]
fn a_forwarding_proxy_is_held_to_its_weight() {
    let mut shares = backlogged([1, 3, 1]);
    let forwarding = C;
    shares.on_drained(A);
    assert_eq!(serve(&mut shares, 400)[forwarding.index()], 100);
}

#[test]
fn a_protected_class_gets_its_minimum_against_any_number_of_others() {
    let tenth = Fraction::from_percent(10);
    let (guarantees, protected) = Guarantees::none().with(tenth).unwrap();
    let mut shares = Shares::new(SharesConfig {
        guarantees,
        ..SharesConfig::new(1000)
    });
    shares.configure(A, protected, 1).unwrap();
    for consumer in 0..1000 {
        shares.on_backlog(ConsumerId(consumer));
    }
    let mut got = 0;
    for _ in 0..1000 {
        let next = shares.poll_next().unwrap();
        got += u32::from(next == A);
        shares.on_served(next, US, true);
    }
    assert_eq!(got, 100);
    // Alone it takes all, and comes back to its minimum.
    for consumer in 1..1000 {
        shares.on_drained(ConsumerId(consumer));
    }
    for _ in 0..100 {
        assert_eq!(shares.poll_next(), Some(A));
        shares.on_served(A, US, true);
    }
    shares.on_backlog(B);
    shares.on_backlog(C);
    assert!((9..=11).contains(&serve(&mut shares, 100)[0]));
}

#[test]
fn a_consumer_takes_its_work_along_to_another_class() {
    let (guarantees, protected) = Guarantees::none().with(Fraction::from_percent(10)).unwrap();
    let mut shares = Shares::new(SharesConfig {
        guarantees,
        ..SharesConfig::new(3)
    });
    shares.on_backlog(A);
    shares.configure(A, protected, 5).unwrap();
    assert_eq!(shares.poll_next(), Some(A));
    let refused = |result: Result<(), ConfigError>| result.unwrap_err().field;
    assert_eq!(
        refused(shares.configure(ConsumerId(3), protected, 1)),
        "consumer"
    );
    assert_eq!(refused(shares.configure(A, protected, 0)), "weight");
    assert_eq!(
        refused(Shares::new(SharesConfig::new(1)).configure(A, protected, 1)),
        "class"
    );
}

#[test]
fn the_running_consumer_goes_first_within_its_lead() {
    let mut shares = Shares::new(SharesConfig {
        running_lead: US * 4,
        ..SharesConfig::new(3)
    });
    shares.on_backlog(A);
    shares.on_backlog(B);
    shares.set_running(Some(B));
    let mut order = vec![];
    for _ in 0..8 {
        let next = shares.poll_next().unwrap();
        order.push(next.0);
        shares.on_served(next, US, true);
    }
    assert_eq!(order, [1, 1, 1, 1, 1, 0, 1, 0], "a batch, then in turns");
}

proptest! {
    /// Consumers come and go at random; of any two that had work throughout a
    /// stretch neither gets ahead by more than its costliest packet.
    #[test]
    fn consumers_with_work_keep_within_a_packet_of_each_other(
        weights in prop::collection::vec(1..100u64, 2..12),
        costs in prop::collection::vec(1..1000u64, 1..50),
        churn in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..50),
    ) {
        let count = weights.len();
        let mut shares = Shares::new(SharesConfig::new(count));
        for (id, &weight) in (0..).map(ConsumerId).zip(&weights) {
            shares.configure(id, Class::BEST_EFFORT, weight as u32).unwrap();
            shares.on_backlog(id);
        }
        // The first two always have work.
        let mut working = vec![true; count];
        let mut got = vec![0u64; count];
        let steps = churn.iter().cycle().take(churn.len() * 20).map(Some);
        for (step, change) in steps.chain([None; 500]).enumerate() {
            if let Some((which, comes)) = change && count > 2 {
                let which = 2 + which.index(count - 2);
                working[which] = *comes;
                let id = ConsumerId(which as u32);
                if *comes { shares.on_backlog(id) } else { shares.on_drained(id) }
            }
            let next = shares.poll_next().unwrap();
            prop_assert!(working[next.index()], "only who has work is served");
            let cost = costs[step % costs.len()];
            got[next.index()] += cost;
            shares.on_served(next, Duration::from_nanos(cost), true);
            // |got0/w0 - got1/w1| <= most/w0 + most/w1, multiplied out.
            let most = costs.iter().max().unwrap();
            let lead = (got[0] * weights[1]).abs_diff(got[1] * weights[0]);
            prop_assert!(lead <= most * (weights[0] + weights[1]), "{got:?}");
        }
    }

    #[test]
    fn classes_with_work_keep_within_a_packet_of_their_guarantee(
        percent in 1..=99u64,
        costs in prop::collection::vec(1..1000u64, 1..50),
        busy in prop::collection::vec(any::<bool>(), 1..200),
    ) {
        let share = Fraction::from_percent(percent as u32);
        let (guarantees, protected) = Guarantees::none().with(share).unwrap();
        let mut shares = Shares::new(SharesConfig { guarantees, ..SharesConfig::new(3) });
        shares.configure(A, protected, 1).unwrap();
        shares.on_backlog(A);
        shares.on_backlog(B);
        let (mut got, most) = ([0, 0], costs.iter().max().unwrap());
        for (cost, more) in costs.iter().cycle().zip(busy.iter().cycle().take(1000)) {
            // C comes and goes; its class has work all the time.
            if *more { shares.on_backlog(C) } else { shares.on_drained(C) }
            let next = shares.poll_next().unwrap();
            shares.on_served(next, Duration::from_nanos(*cost), true);
            got[usize::from(next != A)] += cost;
            let lead = (got[0] * (100 - percent)).abs_diff(got[1] * percent);
            prop_assert!(lead <= most * 100 + 1, "{got:?}");
        }
    }

    /// Against the ideal: its weight's part of all that was served.
    #[test]
    fn service_stays_within_a_bounded_lag_of_the_ideal_share(
        weights in prop::collection::vec(1..100u64, 1..12),
        costs in prop::collection::vec(1..1000u64, 1..50),
    ) {
        let count = weights.len() as u64;
        let all: u64 = weights.iter().sum();
        let mut shares = Shares::new(SharesConfig::new(weights.len()));
        for (id, &weight) in (0..).map(ConsumerId).zip(&weights) {
            shares.configure(id, Class::BEST_EFFORT, weight as u32).unwrap();
            shares.on_backlog(id);
        }
        let (mut got, mut total) = (vec![0u64; weights.len()], 0);
        for cost in costs.iter().cycle().take(1000) {
            let next = shares.poll_next().unwrap();
            shares.on_served(next, Duration::from_nanos(*cost), true);
            got[next.index()] += cost;
            total += cost;
            let most = costs.iter().max().unwrap();
            for (got, weight) in got.iter().zip(&weights) {
                let lag = (got * all).abs_diff(total * weight);
                prop_assert!(lag <= most * (all + count * weight), "{got} of {total}");
            }
        }
    }
}
