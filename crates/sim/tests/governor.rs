//! The core's governor on the modelled host, through changing load.

mod common;

use common::{figure, scenario, simulate};
use plimsoll_sim::{Profile, run};

fn text(flood: &str, duration_ms: u32) -> String {
    format!(
        r#"
        duration_ms = {duration_ms}
        warmup_ms = 0
        path = {{ kind = "governed-guard" }}
        [[source]]
        name = "flood"
        to = "sink"
        traffic = {flood}
        [[source]]
        name = "probe"
        to = "echo"
        traffic = {{ kind = "poisson", rate_pps = 1000 }}
        [[consumer]]
        name = "sink"
        role = {{ kind = "sink", work_us = 2 }}
        [[consumer]]
        name = "echo"
        role = {{ kind = "echo" }}
        "#
    )
}

fn measured(flood: &str, duration_ms: u32, name: &str) -> f64 {
    let profile = Profile::named("modern-veth").unwrap();
    figure(&simulate(&profile, &text(flood, duration_ms)), name)
}

#[test]
fn light_load_is_received_by_interrupts() {
    let flood = r#"{ kind = "constant", rate_pps = 100000 }"#;
    assert_eq!(measured(flood, 300, "path.polling_pct"), 0.0);
    assert!(measured(flood, 300, "consumer.echo.latency_p50_us") < 10.0);
}

#[test]
fn overload_is_polled_and_calm_brings_the_interrupts_back() {
    let pulse = r#"{ kind = "steps", steps = [
        { at_ms = 0, rate_pps = 1000 },
        { at_ms = 200, rate_pps = 1500000 },
        { at_ms = 500, rate_pps = 1000 } ] }"#;
    assert_eq!(measured(pulse, 500, "path.mode_changes"), 1.0);
    // Calm has to last for a second.
    assert_eq!(measured(pulse, 2000, "path.mode_changes"), 2.0);
    let polled = measured(pulse, 2000, "path.polling_pct");
    assert!((55.0..80.0).contains(&polled), "{polled}");
}

#[test]
fn a_load_that_comes_and_goes_does_not_make_it_swing() {
    let mut steps = String::new();
    for pulse in 0..30 {
        let at = pulse * 60;
        steps += &format!("{{ at_ms = {at}, rate_pps = 600000 }}, ");
        steps += &format!("{{ at_ms = {}, rate_pps = 1000 }}, ", at + 30);
    }
    let flood = format!(r#"{{ kind = "steps", steps = [ {steps} ] }}"#);
    assert!(measured(&flood, 1800, "path.mode_changes") <= 1.0);
}

/// The limit to approach: MLFRR × (1 − offered / discard capacity), and no loss of
/// a bystander.
#[test]
fn a_flood_costs_what_discarding_it_costs_and_no_bystander_anything() {
    let profile = Profile::named("modern-veth").unwrap();
    let discard_ns = profile.costs["driver_receive"].ns + profile.costs["demux"].ns;
    let mut peak = 0.0f64;
    for rate in [300_000.0, 1e6, 2e6, 4e6] {
        let flood = format!(r#"{{ kind = "constant", rate_pps = {rate}, jitter_pct = 20 }}"#);
        let mut scenario = scenario(&text(&flood, 200));
        scenario.warmup_ms = 100.0;
        let outcome = run(&profile, &scenario, 1).unwrap();
        let goodput = figure(&outcome, "consumer.sink.delivered_pps");
        peak = peak.max(goodput);
        let bound = peak * (1.0 - rate * discard_ns as f64 / 1e9);
        assert!(goodput > 0.85 * bound, "{goodput} of {bound} at {rate}");
        assert_eq!(figure(&outcome, "source.probe.lost_pps"), 0.0, "at {rate}");
    }
}
