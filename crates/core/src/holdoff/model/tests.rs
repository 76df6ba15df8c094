//! The equations by hand, then random goals against a search of all settings.

extern crate std;
use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const US: Duration = Duration::from_micros(1);
const COSTS: Costs = Costs {
    enter: US,
    dequeue: Duration::from_nanos(50),
    leave: US,
};
const LIMITS: Limits = Limits {
    range: HoldoffRange::FINE,
    buffers_max: 256,
    link_pps: 1_488_095.0,
    latency_max: Duration::from_millis(1),
};

fn setting(holdoff_us: u64, buffers: u32) -> Setting {
    Setting {
        holdoff: Duration::from_micros(holdoff_us),
        buffers,
    }
}

fn near(left: f64, right: f64) -> bool {
    (left - right).abs() <= right.abs() * 1e-9
}

#[test]
fn the_equations_by_hand() {
    let model = Model::new(COSTS);
    let at = setting(200, 20);
    // Cycle: 200 + 1 + 20 · 0.05 = 202 µs.
    assert!(near(model.rate_pps(at), 20.0 / 202e-6));
    assert!(near(model.cpu_share(at), 3.0 / 202.0));
    // At 500,000 packets/s the 20 arrive within 40 µs, on average 20 µs
    // after the first.
    assert!(near(model.latency(at, 5e5), 200e-6 - 20e-6 + 1e-6 + 0.5e-6));
    assert!(near(Model::approximate_rate_pps(at), 1e5));
    assert!(near(Model::approximate_latency(at, 5e5), 180e-6));
    assert!(near(Model::interrupts_per_second_max(US * 100), 10_000.0));
    // Only 10 arrive within the holdoff: they wait half of it.
    assert!(near(model.latency(at, 5e4), 100e-6 + 1e-6 + 0.25e-6));
}

/// The surface of figure 2, from N/P.
#[test]
fn the_rates_of_figure_2() {
    for (buffers, at_100, at_1000) in [(4, 40e3, 4e3), (16, 160e3, 16e3), (64, 640e3, 64e3)] {
        assert!(near(
            Model::approximate_rate_pps(setting(100, buffers)),
            at_100
        ));
        assert!(near(
            Model::approximate_rate_pps(setting(1000, buffers)),
            at_1000
        ));
    }
}

#[test]
fn the_shortest_holdoff_that_makes_the_rate() {
    let model = Model::new(COSTS);
    let five_percent = Fraction::from_percent(5);
    let found = model.for_rate(&LIMITS, 200e3, five_percent, 1e6).unwrap();
    let rate = model.rate_pps(found);
    assert!((190e3..=200e3).contains(&rate), "{found:?}: {rate}");
    // At 10 µs two buffers make 180,180/s, at 20 µs four make 188,679/s: not
    // near enough.
    assert_eq!(found, setting(30, 6));
}

/// Shows MH-25.
#[test]
fn the_longest_holdoff_within_the_latency() {
    let model = Model::new(COSTS);
    let limits = Limits {
        latency_max: US * 300,
        ..LIMITS
    };
    let found = model.for_latency(&limits, 200e3, 1e6).unwrap();
    assert_eq!(found, setting(330, 66));
    assert!(model.latency(found, 1e6) <= 300e-6);
    assert!(model.rate_pps(found) <= 200e3);
    // Who can wait longer leaves more of the CPU to the packets.
    let patient = model.for_latency(&LIMITS, 200e3, 1e6).unwrap();
    assert!(model.latency(patient, 1e6) > model.latency(found, 1e6));
    assert!(model.cpu_share(patient) < model.cpu_share(found));
}

#[test]
fn what_cannot_be_met_is_said() {
    let model = Model::new(COSTS);
    let tenth = Fraction::from_percent(10);
    let solve = |limits: Limits, rate| model.for_rate(&limits, rate, tenth, 1e6).unwrap_err();
    assert_eq!(
        solve(LIMITS, 2e6).to_string(),
        "the link brings no more than 1488095 packets/s"
    );
    assert_eq!(
        solve(LIMITS, 500.0).to_string(),
        "one buffer and the longest holdoff accept 999 packets/s"
    );
    let few = Limits {
        buffers_max: 2,
        range: HoldoffRange::DP83820,
        ..LIMITS
    };
    assert_eq!(
        solve(few, 300e3).to_string(),
        "the nearest rate that can be set is 19782 packets/s"
    );
    let hasty = Limits {
        latency_max: US * 5,
        ..LIMITS
    };
    assert!(matches!(
        solve(hasty, 200e3),
        Infeasible::LatencyTooShort { .. }
    ));
    assert!(matches!(
        model.for_latency(&hasty, 20e3, 1e6),
        Err(Infeasible::LatencyTooShort { .. })
    ));
    for given in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        assert!(matches!(solve(LIMITS, given), Infeasible::NotARate { .. }));
    }
    let endless = Limits {
        range: HoldoffRange {
            step: Duration::from_nanos(1),
            ..HoldoffRange::FINE
        },
        ..LIMITS
    };
    assert_eq!(
        solve(endless, 1e5).to_string(),
        "range.step = 1: must be such that the range has at most 100000 holdoffs"
    );
}

proptest! {
    /// The solvers find what trying every pair finds.
    #[test]
    fn no_pair_is_better(
        (alpha, beta, gamma) in (0_u32..20_000, 0_u32..2_000, 0_u32..20_000),
        (steps, step_us, buffers_max) in (0_u32..12, 1_u32..200, 1_u32..40),
        rate in 1e3_f64..2e6,
        applied in 1e3_f64..2e6,
        latency_us in 1_u32..2_000,
        precision in 0_u32..500_000,
    ) {
        let model = Model::new(Costs {
            enter: Duration::from_nanos(alpha.into()),
            dequeue: Duration::from_nanos(beta.into()),
            leave: Duration::from_nanos(gamma.into()),
        });
        let step = US * step_us;
        let limits = Limits {
            range: HoldoffRange { min: step, max: step * (steps + 1), step },
            buffers_max, link_pps: 1.5e6, latency_max: US * latency_us,
        };
        let all: Vec<Setting> = (1..=steps + 1)
            .flat_map(|k| (1..=buffers_max).map(move |buffers| Setting { holdoff: step * k, buffers }))
            .collect();
        // Of every holdoff only the most buffers within the rate.
        let fullest = |limit: f64| -> Vec<Setting> {
            let within = |s: &Setting| model.rate_pps(*s) <= limit;
            let more = |s: &Setting| Setting { buffers: s.buffers + 1, ..*s };
            all.iter().copied().filter(within)
                .filter(|s| s.buffers == buffers_max || !within(&more(s)))
                .collect()
        };
        let soon = |s: &Setting| model.latency(*s, applied) <= limits.latency_max.as_secs_f64();

        let precision = Fraction::from_ppm(precision);
        let least = rate * f64::from(precision.complement().as_ppm()) / 1e6;
        let wanted = fullest(rate).into_iter()
            .filter(|s| rate <= limits.link_pps && model.rate_pps(*s) >= least && soon(s))
            .map(|s| model.latency(s, applied))
            .reduce(f64::min);
        let found = model.for_rate(&limits, rate, precision, applied).ok();
        prop_assert_eq!(found.map(|s| model.latency(s, applied)), wanted);

        let wanted = fullest(rate.min(limits.link_pps)).into_iter().rfind(soon);
        prop_assert_eq!(model.for_latency(&limits, rate, applied).ok(), wanted);
    }

    /// Equations 4 and 5 agree with 1 and 2 within 2 % where the handler
    /// takes a hundredth of the holdoff.
    #[test]
    fn the_approximations_are_good_where_they_claim_to_be(buffers in 1_u32..100, holdoff_us in 600_u64..2_000) {
        let at = setting(holdoff_us, buffers);
        let model = Model::new(COSTS);
        let applied = 2.0 * model.rate_pps(at);
        let rate = Model::approximate_rate_pps(at) / model.rate_pps(at);
        prop_assert!((1.0..1.02).contains(&rate));
        let latency = Model::approximate_latency(at, applied) / model.latency(at, applied);
        prop_assert!((0.98..1.02).contains(&latency));
    }
}
