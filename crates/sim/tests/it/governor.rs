//! The core's governor on the modelled host, through changing load, with each of the
//! strategies the guard has.

use plimsoll_sim::{Outcome, Profile, run};

use crate::common::{figure, scenario, simulate};

/// The strategies that do something.
const ACTIVE: [&str; 2] = ["holdoff", "thread"];
const ALL: [&str; 3] = ["holdoff", "thread", "off"];

/// A flooded sink and an echo process that is probed.
fn text(path: &str, flood: &str, duration_ms: u32) -> String {
    format!(
        r#"
        duration_ms = {duration_ms}
        warmup_ms = 0
        path = {{ kind = "governed-guard", {path} }}
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

fn measured(strategy: &str, flood: &str, duration_ms: u32) -> Outcome {
    let profile = Profile::named("modern-veth").unwrap();
    let path = format!("strategy = \"{strategy}\"");
    simulate(&profile, &text(&path, flood, duration_ms))
}

fn steady(rate_pps: f64) -> String {
    format!(r#"{{ kind = "constant", rate_pps = {rate_pps}, jitter_pct = 20 }}"#)
}

#[test]
fn light_load_is_received_by_interrupts() {
    for strategy in ALL {
        let outcome = measured(strategy, &steady(1e5), 300);
        assert_eq!(figure(&outcome, "path.overload_pct"), 0.0, "{strategy}");
        let latency = figure(&outcome, "consumer.echo.latency_p50_us");
        assert!(latency < 10.0, "{strategy}: {latency}");
    }
}

/// Light load, then overload from 200 to 500 ms, then light load.
const PULSE: &str = r#"{ kind = "steps", steps = [
    { at_ms = 0, rate_pps = 1000 },
    { at_ms = 200, rate_pps = 1500000 },
    { at_ms = 500, rate_pps = 1000 } ] }"#;

#[test]
fn overload_is_polled_and_calm_brings_the_interrupts_back() {
    for strategy in ACTIVE {
        let changes = |duration| figure(&measured(strategy, PULSE, duration), "path.mode_changes");
        assert_eq!(changes(190), 0.0, "{strategy}: before");
        assert_eq!(changes(500), 1.0, "{strategy}: begun");
        // Calm has to last for a second.
        assert_eq!(changes(1480), 1.0, "{strategy}: calm, but not for long");
        assert_eq!(changes(2000), 2.0, "{strategy}: over");
        let overload = figure(&measured(strategy, PULSE, 2000), "path.overload_pct");
        assert!((60.0..72.0).contains(&overload), "{strategy}: {overload}");
    }
    let off = measured("off", PULSE, 2000);
    assert_eq!(figure(&off, "path.mode_changes"), 0.0);
}

/// After overload the host receives as if there had been none: each packet by an
/// interrupt of its own, none by a timer or thread.
#[test]
fn what_was_turned_is_turned_back() {
    for strategy in ACTIVE {
        let path = format!("strategy = \"{strategy}\"");
        let mut scenario = scenario(&text(&path, PULSE, 500));
        scenario.warmup_ms = 2000.0;
        let profile = Profile::named("modern-veth").unwrap();
        let after = run(&profile, &scenario, 1).unwrap();
        assert_eq!(figure(&after, "path.overload_pct"), 0.0, "{strategy}");
        assert_eq!(figure(&after, "cpu.timer_pct"), 0.0, "{strategy}");
        assert_eq!(figure(&after, "cpu.thread.guard-0_pct"), 0.0, "{strategy}");
        let interrupts = figure(&after, "interrupts_hz");
        // 2000 packets a second, and the echo's answers leave as well.
        assert!((1_800.0..3_500.0).contains(&interrupts), "{interrupts}");
        assert_eq!(figure(&after, "lost_pps"), 0.0, "{strategy}");
    }
}

#[test]
fn a_load_that_comes_and_goes_does_not_make_it_swing() {
    let mut steps = String::new();
    for pulse in 0..9 {
        let at = pulse * 200;
        steps += &format!("{{ at_ms = {at}, rate_pps = 600000 }}, ");
        steps += &format!("{{ at_ms = {}, rate_pps = 1000 }}, ", at + 100);
    }
    let flood = format!(r#"{{ kind = "steps", steps = [ {steps} ] }}"#);
    for strategy in ACTIVE {
        let changes = figure(&measured(strategy, &flood, 1800), "path.mode_changes");
        assert_eq!(changes, 1.0, "{strategy}");
    }
}

/// A load at the edge of what interrupts can take looks calm as soon as it is polled:
/// the core may probe that, ever more seldom, but not swing.
#[test]
fn a_load_at_the_edge_of_overload_does_not_make_it_swing_either() {
    for strategy in ACTIVE {
        for rate in [240e3, 300e3] {
            let changes = figure(
                &measured(strategy, &steady(rate), 9000),
                "path.mode_changes",
            );
            assert!(changes <= 3.0, "{strategy} at {rate}: {changes}");
        }
    }
}

/// The holdoff is what the ring has room for: it falls as the load grows.
#[test]
fn the_holdoff_falls_as_the_load_grows_and_stays_in_its_range() {
    for strategy in ACTIVE {
        let holdoff = |rate| {
            let outcome = measured(strategy, &steady(rate), 300);
            assert_eq!(figure(&outcome, "path.mode_changes"), 1.0);
            figure(&outcome, "path.holdoff_us")
        };
        let holdoffs = [400e3, 1e6, 2e6, 5e6].map(holdoff);
        assert!(
            holdoffs.windows(2).all(|pair| pair[0] > pair[1]),
            "{strategy}: {holdoffs:?}"
        );
        let in_range = |us: &f64| (5.0..=200.0).contains(us);
        assert!(holdoffs.iter().all(in_range), "{strategy}: {holdoffs:?}");
    }
}

/// The limit to approach: MLFRR × (1 − offered / discard capacity), and no loss of
/// a bystander.
#[test]
fn a_flood_costs_what_discarding_it_costs_and_no_bystander_anything() {
    let profile = Profile::named("modern-veth").unwrap();
    let discard_ns = profile.costs["driver_receive"].ns + profile.costs["demux"].ns;
    for strategy in ACTIVE {
        let mut peak = 0.0f64;
        for rate in [300_000.0, 1e6, 2e6, 4e6] {
            let path = format!("strategy = \"{strategy}\"");
            let mut scenario = scenario(&text(&path, &steady(rate), 200));
            scenario.warmup_ms = 100.0;
            let outcome = run(&profile, &scenario, 1).unwrap();
            let goodput = figure(&outcome, "consumer.sink.delivered_pps");
            peak = peak.max(goodput);
            let bound = peak * (1.0 - rate * discard_ns as f64 / 1e9);
            let at = format!("{strategy} at {rate}");
            assert!(goodput > 0.85 * bound, "{goodput} of {bound}, {at}");
            assert_eq!(figure(&outcome, "source.probe.lost_pps"), 0.0, "{at}");
        }
    }
}

/// Packets that no queue bounds: 700,000 a second to a port without a consumer that
/// could be full. What receiving takes of the CPU is held to the limit by a longer
/// holdoff or by inhibiting the thread; a compute-bound process gets the rest.
#[test]
fn the_cpu_limit_is_kept_whoever_polls() {
    let profile = Profile::named("modern-veth").unwrap();
    let simulate = |path: &str| {
        let text = format!(
            r#"
            duration_ms = 400
            warmup_ms = 200
            path = {{ kind = "governed-guard", {path} }}
            [[source]]
            name = "flood"
            to = "compute"
            corrupt = true
            traffic = {{ kind = "constant", rate_pps = 2000000, jitter_pct = 20 }}
            [[consumer]]
            name = "compute"
            role = {{ kind = "compute" }}
            "#
        );
        simulate(&profile, &text)
    };
    for strategy in ACTIVE {
        let path = format!("strategy = \"{strategy}\", share_pct = 100");
        let free = figure(&simulate(&path), "path.network_pct");
        assert!(free > 80.0, "{strategy} without a limit: {free}");
        for limit in [20.0, 50.0, 70.0] {
            let path = format!("strategy = \"{strategy}\", share_pct = {limit}");
            let outcome = simulate(&path);
            let network = figure(&outcome, "path.network_pct");
            assert!(network < limit + 3.0, "{strategy} {limit}: {network}");
            assert!(network > limit - 12.0, "{strategy} {limit}: {network}");
            let rest = figure(&outcome, "consumer.compute.cpu_pct");
            assert!(rest > 92.0 - limit, "{strategy} {limit}: {rest} left");
        }
    }
}

/// While shares are needed, one consumer's flood does not take another's: forwarding
/// has no queue that would be full. The rest of the bystander's loss is the ring's,
/// which overflows while a share is being used up.
#[test]
fn a_flood_that_no_queue_bounds_leaves_others_their_share() {
    let profile = Profile::named("modern-veth").unwrap();
    let answered_pct = |path: &str| {
        let text = format!(
            r#"
            duration_ms = 700
            warmup_ms = 300
            path = {{ kind = "governed-guard", {path} }}
            adapter = [{{ name = "in" }}, {{ name = "out" }}]
            [[source]]
            name = "flood"
            to = "router"
            traffic = {{ kind = "constant", rate_pps = 2000000, jitter_pct = 20 }}
            [[source]]
            name = "probe"
            to = "echo"
            traffic = {{ kind = "poisson", rate_pps = 20000 }}
            [[consumer]]
            name = "router"
            role = {{ kind = "forward", out = "out" }}
            [[consumer]]
            name = "echo"
            role = {{ kind = "echo" }}
            "#
        );
        let outcome = simulate(&profile, &text);
        let offered = figure(&outcome, "source.probe.sent_pps");
        let answered = figure(&outcome, "consumer.echo.delivered_pps");
        100.0 * answered / offered
    };
    for strategy in ALL {
        let with = answered_pct(&format!("strategy = \"{strategy}\", share_pct = 60"));
        let without = answered_pct(&format!("strategy = \"{strategy}\", share_pct = 100"));
        assert!(with > 70.0, "{strategy}: {with} %");
        assert!(without < 40.0, "{strategy} without a limit: {without} %");
    }
}

/// Packets that no queue bounds, with one setting of the guard changed.
fn forwarding(setting: &str) -> Outcome {
    let text = format!(
        r#"
        duration_ms = 300
        warmup_ms = 200
        path = {{ kind = "governed-guard", holdoff_us = 30, {setting} }}
        adapter = [{{ name = "in" }}, {{ name = "out" }}]
        [[source]]
        name = "flood"
        to = "router"
        traffic = {}
        [[consumer]]
        name = "router"
        role = {{ kind = "forward", out = "out" }}
        "#,
        steady(1e6)
    );
    simulate(&Profile::named("modern-veth").unwrap(), &text)
}

/// Within a tick the budget is used up at once: the ring has to hold what comes meanwhile.
#[test]
fn a_budget_of_a_shorter_time_spares_the_ring() {
    let lost = |setting| figure(&forwarding(setting), "loss.interface_pps");
    let (long, short) = (lost("tick_us = 4194.304"), lost("tick_us = 250"));
    assert!(long > 100_000.0 && short == 0.0, "{long} {short}");
    assert_eq!(lost("quota = 64"), long, "the guard's own");
    // Nothing is lost by rounding: as much is admitted.
    let admitted = |setting| figure(&forwarding(setting), "transmitted_pps");
    let (long, short) = (admitted("tick_us = 4194.304"), admitted("tick_us = 250"));
    assert!((0.9..1.1).contains(&(short / long)), "{long} {short}");
}

/// As the guard sheds where sources are told apart: what no queue bounds is due in parts.
#[test]
fn a_budget_in_parts_spares_the_ring_as_well() {
    let whole = forwarding("fair = false");
    let parts = forwarding("fair = true");
    let lost = |outcome| figure(outcome, "loss.interface_pps");
    let (long, short) = (lost(&whole), lost(&parts));
    assert!(long > 100_000.0 && short < 0.2 * long, "{long} {short}");
    let admitted = |outcome| figure(outcome, "transmitted_pps");
    let (whole, parts) = (admitted(&whole), admitted(&parts));
    assert!((0.9..1.1).contains(&(parts / whole)), "{whole} {parts}");
}

#[test]
fn a_lower_aim_admits_less() {
    let admitted = |setting| figure(&forwarding(setting), "transmitted_pps");
    let (guard, low) = (admitted("aim_pct = 95"), admitted("aim_pct = 70"));
    assert!(low < 0.8 * guard, "{low} {guard}");
    assert_eq!(admitted("quota = 64"), guard, "the guard's own");
}

/// A socket that was full takes no more than its watermarks allow.
#[test]
fn watermarks_bound_how_long_packets_wait() {
    let profile = Profile::named("modern-veth").unwrap();
    let waited = |setting: &str| {
        let outcome = simulate(&profile, &text(setting, &steady(1e6), 300));
        figure(&outcome, "consumer.sink.latency_p50_us")
    };
    let (guard, low) = (
        waited("high_pct = 70"),
        waited("high_pct = 20, low_pct = 5"),
    );
    assert!(low < 0.5 * guard, "{low} {guard}");
    assert_eq!(waited("quota = 64"), guard, "the guard's own");
    let drained = waited("low_pct = 5, drained_kib = 512");
    assert!(drained < guard, "{drained} {guard}");
}

#[test]
fn the_longest_holdoff_is_a_setting() {
    let holdoff = |setting: &str| {
        let profile = Profile::named("modern-veth").unwrap();
        let outcome = simulate(&profile, &text(setting, &steady(3e5), 500));
        figure(&outcome, "consumer.echo.latency_p99_us")
    };
    let (short, long) = (
        holdoff("holdoff_max_us = 30"),
        holdoff("holdoff_max_us = 200"),
    );
    assert!(short < 0.7 * long, "{short} {long}");
}

/// The worst CPU decides for all, and each CPU is governed.
#[test]
fn several_cpus_are_governed_together() {
    let profile = Profile::named("modern-veth").unwrap();
    for strategy in ACTIVE {
        let text = text(&format!("strategy = \"{strategy}\""), &steady(4e6), 300);
        let text = format!("cpus = 4\nadapter = [{{ name = \"in\", queues = 4 }}]\n{text}");
        let outcome = simulate(&profile, &text);
        assert_eq!(figure(&outcome, "path.mode_changes"), 1.0, "{strategy}");
        assert_eq!(figure(&outcome, "source.probe.lost_pps"), 0.0, "{strategy}");
        let goodput = figure(&outcome, "consumer.sink.delivered_pps");
        assert!(goodput > 200_000.0, "{strategy}: {goodput}");
    }
}
