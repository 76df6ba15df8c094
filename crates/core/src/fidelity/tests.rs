extern crate std;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn control() -> FidelityControl {
    FidelityControl::new(FidelityConfig::default()).unwrap()
}

/// All steps that a queue of this length leads to within `span`, looked at every ms.
fn steps(
    control: &mut FidelityControl,
    from: Instant,
    span: Duration,
    queued: u64,
) -> Vec<Fidelity> {
    let looks = (0..span.as_millis() as u32).map(|ms| from + MS * ms);
    looks
        .filter_map(|now| control.on_occupancy(queued, 100, now))
        .map(|change| change.to)
        .collect()
}

/// MR-44, MR-72: nothing is given up below the high watermark.
#[test]
fn nothing_is_given_up_below_the_high_watermark() {
    assert!(steps(&mut control(), Instant::ZERO, SECOND, 49).is_empty());
}

/// MR-78: the sources go on, so all steps are taken, and in order.
#[test]
fn a_queue_that_stays_full_leads_through_all_steps_in_order() {
    let mut control = control();
    let all = steps(&mut control, Instant::ZERO, SECOND, 100);
    let sampled = (1..=10).map(|one_in_log2| Fidelity::Sampled { one_in_log2 });
    let expected = [Fidelity::Short, Fidelity::Headers]
        .into_iter()
        .chain(sampled);
    assert_eq!(all, expected.collect::<Vec<_>>());
    assert_eq!(control.fidelity().one_in(), 1024);
}

#[test]
fn a_queue_that_drains_is_left_to_drain() {
    let mut control = control();
    assert!(control.on_occupancy(90, 100, Instant::ZERO).is_some());
    for ms in 1..40 {
        let now = Instant::ZERO + MS * ms;
        assert_eq!(control.on_occupancy(90 - u64::from(ms), 100, now), None);
    }
    assert_eq!(control.fidelity(), Fidelity::Short);
}

#[test]
fn steps_are_taken_back_one_at_a_time_when_the_queue_stays_short() {
    let mut control = control();
    let _ = steps(&mut control, Instant::ZERO, MS * 11, 100);
    assert_eq!(control.fidelity(), Fidelity::Sampled { one_in_log2: 1 });
    let calm = Instant::ZERO + SECOND;
    assert!(steps(&mut control, calm, SECOND, 10).is_empty());
    let back = steps(&mut control, calm + SECOND, SECOND * 3, 10);
    assert_eq!(back, [Fidelity::Headers, Fidelity::Short, Fidelity::Full]);
}

#[test]
fn a_queue_between_the_watermarks_changes_nothing_and_ends_the_wait() {
    let mut control = control();
    let _ = control.on_occupancy(100, 100, Instant::ZERO);
    for second in 0..5 {
        let at = Instant::ZERO + SECOND * second + MS;
        assert!(steps(&mut control, at, MS * 900, 10).is_empty());
        assert!(steps(&mut control, at + MS * 900, MS * 50, 30).is_empty());
    }
}

#[test]
fn a_step_back_that_fails_doubles_the_wait_for_the_next() {
    let mut control = control();
    let mut now = Instant::ZERO;
    let mut waits = Vec::new();
    for _ in 0..8 {
        assert_eq!(steps(&mut control, now, MS, 100), [Fidelity::Short]);
        now += MS * 10;
        let calm = now;
        while control.on_occupancy(0, 100, now).is_none() {
            now += MS;
        }
        waits.push(now.saturating_since(calm).as_secs());
        now += MS * 10;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    // It lasts this time, so the wait is short again.
    now += SECOND * 120;
    assert_eq!(steps(&mut control, now, MS, 100), [Fidelity::Short]);
    assert_eq!(
        steps(&mut control, now + MS, SECOND + MS, 0),
        [Fidelity::Full]
    );
}

#[test]
fn settings_are_checked() {
    let good = FidelityConfig::default();
    let field = |config: FidelityConfig| config.validate().unwrap_err().field;
    good.validate().unwrap();
    assert_eq!(
        field(FidelityConfig {
            low: good.high,
            ..good
        }),
        "low"
    );
    assert_eq!(
        field(FidelityConfig {
            worsen_dwell: Duration::ZERO,
            ..good
        }),
        "worsen_dwell"
    );
    assert_eq!(
        field(FidelityConfig {
            improve_dwell_max: MS,
            ..good
        }),
        "improve_dwell_max"
    );
    assert_eq!(
        field(FidelityConfig {
            losses_low: good.losses_high,
            ..good
        }),
        "losses_low"
    );
    assert_eq!(
        field(FidelityConfig {
            sampling_log2_max: 17,
            ..good
        }),
        "sampling_log2_max"
    );
    let never = FidelityConfig {
        sampling_log2_max: 0,
        ..good
    };
    let mut control = FidelityControl::new(never).unwrap();
    let all = steps(&mut control, Instant::ZERO, SECOND, 100);
    assert_eq!(all, [Fidelity::Short, Fidelity::Headers]);
}

/// A monitor that loses at its ring what this says of each step, for `span`, looked at every ms.
/// Its queue stays short. Returns the steps.
fn with_losses(
    control: &mut FidelityControl,
    now: &mut Instant,
    span: Duration,
    lost_percent: impl Fn(Fidelity) -> u64,
) -> Vec<FidelityChange> {
    let end = *now + span;
    let mut changes = Vec::new();
    while *now < end {
        let lost = lost_percent(control.fidelity());
        changes.extend(control.on_losses(lost, 100 - lost, *now));
        changes.extend(control.on_occupancy(0, 100, *now));
        *now += MS;
    }
    changes
}

/// The queue to the disk stayed empty while a capturing CPU lost half of all packets, and full
/// packets were kept of the others.
#[test]
fn losses_at_the_ring_lead_to_steps_that_end_them() {
    let (mut control, mut now) = (control(), Instant::ZERO);
    let sampled_is_enough = |fidelity| match fidelity {
        Fidelity::Sampled { one_in_log2: 2.. } => 0,
        Fidelity::Sampled { .. } => 20,
        _ => 50,
    };
    let changes = with_losses(&mut control, &mut now, MS * 900, sampled_is_enough);
    let to: Vec<Fidelity> = changes.iter().map(|change| change.to).collect();
    let sampled = [1, 2].map(|one_in_log2| Fidelity::Sampled { one_in_log2 });
    assert_eq!(
        to,
        [Fidelity::Short, Fidelity::Headers, sampled[0], sampled[1]]
    );
    assert!(changes.iter().all(|change| change.why == Why::Losses));
    // And back when nothing is lost any more.
    let back = with_losses(&mut control, &mut now, SECOND * 6, |_| 0);
    assert!(back.iter().all(|change| change.why == Why::Calm));
    assert_eq!(control.fidelity(), Fidelity::Full);
}

/// Harm: all would be given up for nothing.
#[test]
fn losses_that_no_step_makes_smaller_cost_little_for_long() {
    let (mut control, mut now) = (control(), Instant::ZERO);
    let first = with_losses(&mut control, &mut now, SECOND, |_| 50);
    let whys: Vec<Why> = first.iter().map(|change| change.why).collect();
    assert_eq!(whys, [Why::Losses, Why::Losses, Why::Losses, Why::NoGain]);
    assert_eq!(control.fidelity(), Fidelity::Full);
    let mut full = 0;
    let mut changes = 0;
    for _ in 0..6_000 {
        changes += with_losses(&mut control, &mut now, MS * 100, |_| 50).len();
        full += u32::from(control.fidelity() == Fidelity::Full);
    }
    // After 1, 2, 4, …, 60 s it is tried again, for four windows each.
    assert!(changes <= 4 * 16, "{changes}");
    assert!(full > 5_900, "{full}");
}

#[test]
fn a_step_that_has_paid_is_kept_when_the_next_has_not() {
    let (mut control, mut now) = (control(), Instant::ZERO);
    let lost = |fidelity| match fidelity {
        Fidelity::Sampled { .. } => 20,
        _ => 50,
    };
    let changes = with_losses(&mut control, &mut now, SECOND, lost);
    let back = changes.iter().find(|change| change.why == Why::NoGain);
    let [first, second] = [1, 2].map(|one_in_log2| Fidelity::Sampled { one_in_log2 });
    let back = back.map(|change| (change.from, change.to));
    assert_eq!(back, Some((second, first)));
}

/// How long after steps that have not paid one is tried again.
fn retried_after(control: &mut FidelityControl, now: &mut Instant) -> Duration {
    let mut failed = None;
    loop {
        for change in with_losses(control, now, MS, |_| 50) {
            match (change.why, failed) {
                (Why::NoGain, _) => failed = Some(*now),
                (Why::Losses, Some(at)) => return now.saturating_since(at),
                _ => {}
            }
        }
    }
}

#[test]
fn after_a_long_calm_losses_are_taken_as_at_first() {
    let (mut control, mut now) = (control(), Instant::ZERO);
    let first = retried_after(&mut control, &mut now);
    assert!((SECOND..SECOND + MS * 200).contains(&first), "{first:?}");
    let _ = with_losses(&mut control, &mut now, SECOND * 60, |_| 0);
    assert_eq!(retried_after(&mut control, &mut now), first);
}

/// A step back that fails is tried ever more seldom, as with the queue.
#[test]
fn a_load_between_two_steps_makes_no_oscillation() {
    let (mut control, mut now) = (control(), Instant::ZERO);
    let lost = |fidelity| if fidelity >= Fidelity::Headers { 0 } else { 10 };
    let changes = with_losses(&mut control, &mut now, SECOND * 600, lost);
    assert_eq!(control.fidelity(), Fidelity::Headers);
    // One pair after 1, 2, 4, …, 60 s each.
    assert!(changes.len() <= 2 + 2 * 16, "{}", changes.len());
}

#[test]
fn a_burst_that_overflows_the_ring_changes_nothing() {
    let (mut control, mut now) = (control(), Instant::ZERO);
    assert_eq!(control.on_losses(500, 100_000, now), None);
    let changes = with_losses(&mut control, &mut now, SECOND, |_| 0);
    assert_eq!(changes, []);
}

#[test]
fn without_sampling_headers_have_to_pay() {
    let config = FidelityConfig {
        sampling_log2_max: 0,
        ..FidelityConfig::default()
    };
    let mut control = FidelityControl::new(config).unwrap();
    let mut now = Instant::ZERO;
    let changes = with_losses(&mut control, &mut now, MS * 900, |_| 30);
    let whys: Vec<Why> = changes.iter().map(|change| change.why).collect();
    assert_eq!(whys, [Why::Losses, Why::Losses, Why::NoGain]);
    assert_eq!(control.fidelity(), Fidelity::Full);
}

/// How far down a step is.
fn depth(fidelity: Fidelity) -> u32 {
    match fidelity {
        Fidelity::Full => 0,
        Fidelity::Short => 1,
        Fidelity::Headers => 2,
        Fidelity::Sampled { one_in_log2 } => 2 + u32::from(one_in_log2),
    }
}

proptest! {
    /// Whatever the queue does: one step at a time, to the worse only at the high
    /// watermark and after the dwell, to the better only at the low one.
    #[test]
    fn steps_follow_the_rules(
        looks in prop::collection::vec((0_u64..=100, 0_u32..2000), 1..300),
    ) {
        let config = FidelityConfig::default();
        let mut control = FidelityControl::new(config).unwrap();
        let (mut now, mut worsened, mut low_since) = (Instant::ZERO, None, None);
        for (queued, ms) in looks {
            now += MS * ms;
            if queued > 10 { low_since = None } else { low_since = low_since.or(Some(now)) }
            let before = control.fidelity();
            let Some(change) = control.on_occupancy(queued, 100, now) else {
                prop_assert_eq!(control.fidelity(), before);
                continue;
            };
            prop_assert_eq!(change.from, before);
            prop_assert_eq!(change.to, control.fidelity());
            prop_assert_eq!(depth(change.from).abs_diff(depth(change.to)), 1);
            if change.to > change.from {
                prop_assert!(queued >= 50);
                let dwell = worsened.is_none_or(|at| now.saturating_since(at) >= config.worsen_dwell);
                prop_assert!(dwell);
                worsened = Some(now);
            } else {
                prop_assert!(now.saturating_since(low_since.unwrap()) >= config.improve_dwell);
            }
        }
    }
}
