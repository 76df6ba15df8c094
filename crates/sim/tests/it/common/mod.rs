//! What the tests share: machines on which only chosen things cost anything.

use plimsoll_sim::profile::{COSTS, Cost, QUEUES, QueueLength};
use plimsoll_sim::{Outcome, Profile, Scenario, run};

/// A machine on which nothing costs anything but what is listed, in ns, every
/// queue is as long as told, and an interrupt takes all packets that wait.
pub(crate) fn machine(costs: &[(&str, u64)], queues: u32) -> Profile {
    let cost = |name: &str| {
        let given = costs.iter().find(|(known, _)| *known == name);
        Cost {
            ns: given.map_or(0, |(_, ns)| *ns),
            source: "chosen by the test".into(),
        }
    };
    let mut profile = Profile::named("sparcstation-20").expect("a built-in profile");
    profile.name = "test".into();
    profile.calibration.clear();
    profile.costs = COSTS
        .iter()
        .map(|(name, _)| ((*name).to_owned(), cost(name)))
        .collect();
    let length = |name: &str| {
        let queue = QueueLength {
            packets: queues,
            source: "chosen by the test".into(),
        };
        (name.to_owned(), queue)
    };
    profile.queues = QUEUES.iter().map(|(name, _)| length(name)).collect();
    profile.queues.remove("receive_batch");
    profile
}

pub(crate) fn scenario(text: &str) -> Scenario {
    Scenario::from_toml(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

pub(crate) fn simulate(profile: &Profile, text: &str) -> Outcome {
    run(profile, &scenario(text), 1).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The figure called `name`.
pub(crate) fn figure(outcome: &Outcome, name: &str) -> f64 {
    outcome
        .measure(name)
        .unwrap_or_else(|| panic!("no figure {name}"))
}

/// Every receive path, with settings that make it do something.
pub(crate) const PATHS: &[&str] = &[
    r#"kind = "interrupt-per-packet""#,
    r#"kind = "batched-interrupts""#,
    r#"kind = "batched-interrupts", protocol_thread = true"#,
    r#"kind = "batched-interrupts", receive_first = true"#,
    r#"kind = "vendor-driver""#,
    r#"kind = "overload-disable", share_pct = 50"#,
    r#"kind = "overload-disable", share_pct = 50, samples = 2"#,
    r#"kind = "fixed-holdoff", holdoff_us = 0"#,
    r#"kind = "fixed-holdoff", holdoff_us = 100"#,
    r#"kind = "fixed-holdoff", holdoff_us = 100, free_late = true"#,
    r#"kind = "adaptive-holdoff""#,
    r#"kind = "adaptive-holdoff", free_early = true, tolerated_loss_pct = 5, idle_excuses = true"#,
    r#"kind = "busy-polling""#,
    r#"kind = "periodic-polling", interval_us = 500, quota = 8"#,
    r#"kind = "code-point-polling", interval_us = 50"#,
    r#"kind = "polling-watchdog", interval_us = 100, poll_us = 1000"#,
    r#"kind = "clocked-interrupts", rate_hz = 2000"#,
    r#"kind = "freebsd-polling""#,
    r#"kind = "hip", threshold_pps = 5000, interval_min_us = 20"#,
    r#"kind = "hip", threshold_pps = 5000, interval_min_us = 200, buffers = 8"#,
    r#"kind = "rate-switched", threshold_pps = 5000, interval_us = 1000"#,
    r#"kind = "soft-timer-polling", quota = 5"#,
    r#"kind = "high-level""#,
    r#"kind = "polling-thread""#,
    r#"kind = "polling-thread", quota = 8"#,
    r#"kind = "polling-thread", quota = 8, feedback = {}, queue_while_active = true"#,
    r#"kind = "polling-thread", quota = 8, feedback = { watermark = { kind = "room", packets = 8 }, timeout_ms = 1 }"#,
    r#"kind = "polling-thread", quota = 5, cycle_limit = { share_pct = 50 }"#,
    r#"kind = "polling-thread", quota = 5, cycle_limit = { share_pct = 50, count_interrupts = true, per_host = true }"#,
    r#"kind = "polling-thread", quota = 4, tune_quota = true"#,
    r#"kind = "polling-thread", disabled = true"#,
    r#"kind = "early-demux""#,
    r#"kind = "soft-lrp""#,
    r#"kind = "ni-lrp""#,
    r#"kind = "user-level""#,
    r#"kind = "user-level", adapter = true"#,
    r#"kind = "napi""#,
    r#"kind = "napi", weight = 4, budget = 6, rounds = 2, gro_ns = 100"#,
    r#"kind = "napi", threaded = true"#,
    r#"kind = "governed-guard""#,
    r#"kind = "governed-guard", holdoff_us = 30, share_pct = 40"#,
    r#"kind = "governed-guard", strategy = "thread", share_pct = 40"#,
    r#"kind = "governed-guard", strategy = "off", holdoff_us = 30"#,
    r#"kind = "governed-guard", fair = true, lazy = true"#,
    r#"kind = "governed-guard", source_limit_pps = 1000.0"#,
];
