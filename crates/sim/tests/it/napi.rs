//! How Linux receives, rule by rule: budgets, ksoftirqd, threaded polling and merging.

use plimsoll_sim::profile::Scheduler;
use plimsoll_sim::{Outcome, Profile};

use crate::common::{figure, machine, simulate};

const COSTS: [(&str, u64); 8] = [
    ("interrupt_enter", 1_000),
    ("interrupt_exit", 1_000),
    ("soft_dispatch", 2_000),
    ("poll_pass", 500),
    ("driver_receive", 1_000),
    ("protocol_input", 8_000),
    ("receive_call", 1_000),
    // Or the clock's handler never ends a step.
    ("clock_tick", 100),
];

/// A host with Linux's scheduler, 250 ticks a second, and 100 packets in each queue.
fn linux() -> Profile {
    let mut profile = machine(&COSTS, 100);
    profile.scheduler = Scheduler::FairShare;
    profile.clock_hz = 250;
    profile
}

/// A flood of one sink, beside whatever `rest` has.
fn flooded(path: &str, rate_pps: u32, rest: &str) -> Outcome {
    flood(path, rate_pps, "sink", rest)
}

/// A flood of a socket that nobody reads, so that no thread wants the CPU.
fn unread(path: &str, rate_pps: u32) -> Outcome {
    flood(path, rate_pps, "deaf", "")
}

fn flood(path: &str, rate_pps: u32, role: &str, rest: &str) -> Outcome {
    simulate(&linux(), &scenario(path, rate_pps, role, rest))
}

fn scenario(path: &str, rate_pps: u32, role: &str, rest: &str) -> String {
    format!(
        r#"
        duration_ms = 1000
        warmup_ms = 500
        path = {{ {path} }}
        [[source]]
        name = "flood"
        to = "sink"
        traffic = {{ kind = "constant", rate_pps = {rate_pps} }}
        [[consumer]]
        name = "sink"
        role = {{ kind = "{role}" }}
        {rest}
        "#
    )
}

const COMPUTING: &str = r#"
    [[consumer]]
    name = "computing"
    role = { kind = "compute", demand = { kind = "endless" } }
"#;

fn share(outcome: &Outcome, thread: &str) -> f64 {
    let threads = &outcome.cpu.threads;
    let (_, ns) = threads.iter().find(|(name, _)| name == thread).unwrap();
    *ns as f64 / outcome.cpu.total_ns as f64
}

/// 1000 packets/s, one at a time: each takes an interrupt, a run, a visit, and a call.
#[test]
fn a_packet_alone_is_worked_on_by_the_softirq_and_ksoftirqd_sleeps() {
    let outcome = flooded(r#"kind = "napi""#, 1000, "");
    let cpu = &outcome.cpu;
    // 2 of interrupt; 2 of dispatch, 0.5 of visit, 1 of driver and 8 of protocol.
    assert!(cpu.interrupt_ns.abs_diff(2_000_000) < 20_000, "{cpu:?}");
    assert!(
        cpu.soft_interrupt_ns.abs_diff(11_500_000) < 40_000,
        "{cpu:?}"
    );
    assert!(share(&outcome, "ksoftirqd-0") < 1e-9);
    assert!((figure(&outcome, "delivered_pps") - 1000.0).abs() < 2.0);
}

/// With one queue a round is one visit, which leaves a full queue noted again; with a
/// budget for it, a round visits both queues.
#[test]
fn a_run_takes_its_rounds_times_its_budget_and_no_more() {
    let path = r#"kind = "napi", weight = 4, budget = 6, rounds = 2"#;
    let outcome = unread(path, 200_000);
    let per_run = figure(&outcome, "path.taken_pps") / outcome.soft_interrupts as f64;
    assert!((per_run - 8.0).abs() < 0.1, "two rounds of 4: {per_run}");
    let per_visit = figure(&outcome, "path.taken_pps") / outcome.polls as f64;
    assert!((per_visit - 4.0).abs() < 0.1, "{per_visit}");
    // A round has 1 packet, since its budget is spent before a second visit.
    let path = r#"kind = "napi", weight = 1, budget = 1, rounds = 3"#;
    let outcome = unread(path, 200_000);
    let per_run = figure(&outcome, "path.taken_pps") / outcome.soft_interrupts as f64;
    assert!((per_run - 3.0).abs() < 0.1, "{per_run}");
}

/// 64 packets take 64 times 9 and 0.5 µs: 576.5. The fourth round ends beyond 2 ms.
#[test]
fn a_run_ends_after_its_time() {
    let outcome = unread(r#"kind = "napi""#, 200_000);
    let per_run = figure(&outcome, "path.taken_pps") / outcome.soft_interrupts as f64;
    assert!((per_run - 256.0).abs() < 3.0, "{per_run}");
    let outcome = unread(r#"kind = "napi", rounds_us = 1000"#, 200_000);
    let per_run = figure(&outcome, "path.taken_pps") / outcome.soft_interrupts as f64;
    assert!((per_run - 128.0).abs() < 2.0, "{per_run}");
}

/// The sink is woken by its first packet. It wants the CPU when it has fallen behind, and
/// the round that is under way is the run's last. (A run in its own call is in nobody's way.)
#[test]
fn a_run_ends_when_a_thread_should_run() {
    let per_run =
        |outcome: &Outcome| figure(outcome, "path.taken_pps") / outcome.soft_interrupts as f64;
    let (read, unread) = (
        per_run(&flooded(r#"kind = "napi", in_calls = false"#, 200_000, "")),
        per_run(&unread(r#"kind = "napi""#, 200_000)),
    );
    assert!(read < 0.5 * unread, "{read} {unread}");
}

/// Without ksoftirqd a flood takes the whole CPU. ksoftirqd shares it.
#[test]
fn ksoftirqd_is_a_thread_like_any_other() {
    let computing = |path: &str| {
        let outcome = flooded(path, 200_000, COMPUTING);
        (share(&outcome, "computing"), outcome)
    };
    let (alone, _) = computing(r#"kind = "batched-interrupts""#);
    assert!(alone < 0.01, "{alone}");
    let (beside, outcome) = computing(r#"kind = "napi""#);
    let ksoftirqd = share(&outcome, "ksoftirqd-0");
    // The sink wants next to nothing of its third: it waits for ksoftirqd. What the ticks
    // make of the softirq while ksoftirqd waits comes on top.
    assert!((0.25..0.55).contains(&beside), "{beside}");
    assert!((0.25..0.55).contains(&ksoftirqd), "{ksoftirqd}");
    assert!(outcome.cpu.soft_interrupt_ns > 0);
}

#[test]
fn a_thread_that_polls_is_one_like_any_other_and_no_softirq_runs() {
    let outcome = flooded(r#"kind = "napi", threaded = true"#, 200_000, COMPUTING);
    let (computing, polling) = (share(&outcome, "computing"), share(&outcome, "napi-0-0"));
    assert!((0.3..0.6).contains(&computing), "{computing}");
    assert!((0.3..0.6).contains(&polling), "{polling}");
    assert_eq!(outcome.cpu.soft_interrupt_ns, 0);
    assert!(share(&outcome, "ksoftirqd-0") < 1e-9);
}

/// It has no address space: each of 1000 packets a second takes a change to it and one back
/// to whom it interrupted for less than a full change, 10 µs each.
#[test]
fn changing_to_a_thread_that_polls_is_cheap() {
    let mut profile = linux();
    for (name, ns) in [("context_switch", 100_000), ("thread_switch", 10_000)] {
        profile.costs.get_mut(name).unwrap().ns = ns;
    }
    let path = r#"kind = "napi", threaded = true"#;
    let outcome = simulate(&profile, &scenario(path, 1000, "deaf", COMPUTING));
    let switch_ns = outcome.cpu.switch_ns;
    assert!(switch_ns.abs_diff(20_000_000) < 400_000, "{switch_ns}");
}

/// In a visit of 64 the first pays 8 µs for the protocol and 63 pay 1.
#[test]
fn merged_packets_pay_for_the_protocol_once() {
    let path = r#"kind = "napi", threaded = true, gro_ns = 1000"#;
    let outcome = unread(path, 1_000_000);
    let (taken, polls) = (figure(&outcome, "path.taken_pps"), outcome.polls as f64);
    assert!((taken / polls - 64.0).abs() < 0.5, "{}", taken / polls);
    assert!((figure(&outcome, "path.merged_packets") / taken - 63.0 / 64.0).abs() < 0.01);
    let per_visit = share(&outcome, "napi-0-0") * 1e9 / polls;
    let expected = 500.0 + 64.0 * 1000.0 + 8000.0 + 63.0 * 1000.0;
    assert!(
        (per_visit / expected - 1.0).abs() < 0.01,
        "{per_visit} {expected}"
    );
}

/// A packet every 100 µs: the first after a visit waits for 500 µs, and the visit takes those
/// that came meanwhile as well.
#[test]
fn a_holdoff_lets_packets_wait_for_one_interrupt() {
    let held = flooded(r#"kind = "napi", holdoff_us = 500"#, 10_000, "");
    let interrupts = figure(&held, "interrupts_hz");
    assert!((1_600.0..2_050.0).contains(&interrupts), "{interrupts}");
    assert!((figure(&held, "delivered_pps") - 10_000.0).abs() < 10.0);
    let at_once = flooded(r#"kind = "napi""#, 10_000, "");
    assert!(figure(&at_once, "interrupts_hz") > 9_900.0);
}

/// The sink's calls run what is due: while ksoftirqd waits for its turn the sink gets a
/// packet, and then pays for a run of the softirq, which adds hundreds to its full queue.
#[test]
fn a_receive_call_runs_the_softirq_that_is_due() {
    let delivered = |path: &str| figure(&flooded(path, 400_000, ""), "delivered_pps");
    let kept_out = delivered(r#"kind = "napi", in_calls = false"#);
    let outcome = flooded(r#"kind = "napi""#, 400_000, "");
    let let_in = figure(&outcome, "delivered_pps");
    assert!(let_in < 0.1 * kept_out, "{let_in} {kept_out}");
    // No more than one packet per run.
    assert!(let_in <= outcome.soft_interrupts as f64, "{outcome:?}");
    // Where nothing is due a call runs nothing.
    let light = |path: &str| flooded(path, 1000, "").soft_interrupts;
    assert_eq!(
        light(r#"kind = "napi""#),
        light(r#"kind = "napi", in_calls = false"#)
    );
}

/// Such runs count as the sink's own time, so that it has to let others run. If they counted
/// for nobody it would have used next to nothing, and nobody would ever be in front of it.
#[test]
fn what_interrupts_take_counts_as_the_time_of_whom_they_interrupt() {
    let computing = |path: &str| share(&flooded(path, 400_000, COMPUTING), "computing");
    let charged = computing(r#"kind = "napi""#);
    let free = computing(r#"kind = "napi", charged = false"#);
    assert!(charged > 0.1 && free < 0.01, "{charged} {free}");
}
