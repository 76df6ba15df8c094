//! The model against formulas that are known to be right.

use std::time::Duration;

use plimsoll_core::holdoff::{Costs, Model, Setting};
use plimsoll_sim::{Outcome, Profile};

use crate::common::{self, figure, machine, simulate};

fn close(measured: f64, expected: f64, percent: f64) {
    let off = (measured - expected).abs() * 100.0 / expected;
    assert!(off <= percent, "measured {measured}, expected {expected}");
}

/// Poisson arrivals and constant service: the mean time in the system is
/// `S + ρ·S / (2·(1 − ρ))` (Pollaczek and Khinchine).
#[test]
fn one_server_with_constant_service_is_an_m_d_1_queue() {
    let service_ns = 10_000;
    let profile = machine(&[("driver_receive", service_ns)], 100_000);
    for load in [0.2, 0.5, 0.8, 0.9] {
        let rate = load * 1e9 / service_ns as f64;
        let text = format!(
            r#"
            duration_ms = 20000
            path = {{ kind = "high-level" }}
            adapter = [{{ name = "in" }}, {{ name = "out" }}]
            [[source]]
            name = "source"
            to = "router"
            traffic = {{ kind = "poisson", rate_pps = {rate} }}
            [[consumer]]
            name = "router"
            role = {{ kind = "forward", out = "out" }}
            "#
        );
        let outcome = simulate(&profile, &text);
        let service_us = service_ns as f64 / 1e3;
        let expected = service_us + load * service_us / (2.0 * (1.0 - load));
        close(
            figure(&outcome, "consumer.router.latency_mean_us"),
            expected,
            3.0,
        );
        close(figure(&outcome, "cpu.interrupt_pct"), load * 100.0, 1.0);
    }
}

/// Above what the settings below can take.
const APPLIED_PPS: f64 = 500_000.0;

/// A flooded host with this holdoff, in microseconds, and so many buffers.
fn held_off(profile: &Profile, holdoff_us: u64, buffers: u32) -> (Outcome, Setting) {
    let text = format!(
        r#"
        duration_ms = 2000
        path = {{ kind = "fixed-holdoff", holdoff_us = {holdoff_us}, free_late = true }}
        adapter = [{{ name = "in", receive_ring = {buffers} }}]
        [[source]]
        name = "source"
        to = "sink"
        traffic = {{ kind = "constant", rate_pps = {APPLIED_PPS} }}
        [[consumer]]
        name = "sink"
        role = {{ kind = "sink" }}
        "#
    );
    let setting = Setting {
        holdoff: Duration::from_micros(holdoff_us),
        buffers,
    };
    (simulate(profile, &text), setting)
}

/// Equations 1 to 3 of Macpherson & Heiser: rate, latency and handler's share of a
/// fixed holdoff with a number of buffers, under overload.
/// Shows MH-02, MH-04.
#[test]
fn a_fixed_holdoff_obeys_the_papers_equations() {
    let (enter, dequeue, leave) = (2_000, 1_500, 1_000);
    let costs = [
        ("interrupt_enter", enter),
        ("driver_receive", dequeue),
        ("interrupt_exit", leave),
    ];
    let model = Model::new(Costs {
        enter: Duration::from_nanos(enter),
        dequeue: Duration::from_nanos(dequeue),
        leave: Duration::from_nanos(leave),
    });
    let profile = machine(&costs, 1000);
    for (holdoff_us, buffers) in [(200, 8), (500, 16), (500, 64), (1000, 32)] {
        let (outcome, setting) = held_off(&profile, holdoff_us, buffers);
        // The model's holdoff begins with the first packet, and its cycle has no
        // return from the handler: 3 us of hundreds.
        close(
            figure(&outcome, "path.taken_pps"),
            model.rate_pps(setting),
            2.0,
        );
        let latency_us = model.latency(setting, APPLIED_PPS) * 1e6;
        close(figure(&outcome, "path.ring_wait_mean_us"), latency_us, 2.0);
        close(
            figure(&outcome, "cpu.interrupt_pct"),
            model.cpu_share(setting) * 100.0,
            3.0,
        );
        // One interrupt for all buffers; the device drops the rest.
        let taken = figure(&outcome, "path.taken_pps");
        let interrupts = figure(&outcome, "interrupts_hz");
        close(interrupts, taken / f64::from(buffers), 2.0);
        let dropped = figure(&outcome, "loss.interface_pps");
        close(dropped, APPLIED_PPS - taken, 2.0);
    }
}

/// Equations 4 and 5, which need no knowledge of the host: they hold where handling
/// takes next to nothing of the holdoff.
#[test]
fn a_cheap_handler_obeys_the_approximations() {
    let costs = [
        ("interrupt_enter", 200),
        ("driver_receive", 20),
        ("interrupt_exit", 100),
    ];
    let profile = machine(&costs, 1000);
    for (holdoff_us, buffers) in [(200, 8), (500, 16), (1000, 64), (1000, 256)] {
        let (outcome, setting) = held_off(&profile, holdoff_us, buffers);
        let rate = Model::approximate_rate_pps(setting);
        close(figure(&outcome, "path.taken_pps"), rate, 2.0);
        let latency_us = Model::approximate_latency(setting, APPLIED_PPS) * 1e6;
        close(figure(&outcome, "path.ring_wait_mean_us"), latency_us, 2.0);
    }
}

/// A wire transmits a packet in exactly `size · 8 / rate` (ST-E01).
#[test]
fn a_wire_spaces_packets_by_their_length() {
    let profile = machine(&[], 10_000);
    for (rate_mbps, gap_us) in [(100.0, 120.0), (1000.0, 12.0)] {
        let text = format!(
            r#"
            duration_ms = 1000
            path = {{ kind = "high-level" }}
            adapter = [{{ name = "in" }}, {{ name = "out", link = {{ rate_mbps = {rate_mbps} }} }}]
            [[source]]
            name = "source"
            to = "router"
            bytes = 1500
            traffic = {{ kind = "constant", rate_pps = 500000 }}
            [[consumer]]
            name = "router"
            role = {{ kind = "forward", out = "out" }}
            "#
        );
        let outcome = simulate(&profile, &text);
        close(figure(&outcome, "transmitted_pps"), 1e6 / gap_us, 0.01);
    }
}

/// What one packet costs on its way adds up, at light load.
/// Shows TB-05.
#[test]
fn latency_at_light_load_is_the_sum_of_the_costs() {
    let costs = [
        ("interrupt_enter", 1_000),
        ("driver_receive", 2_000),
        ("queue_packet", 500),
        ("interrupt_exit", 700),
        ("soft_dispatch", 900),
        ("protocol_input", 3_000),
        ("wakeup", 400),
        ("context_switch", 1_100),
        ("receive_call", 5_000),
    ];
    let text = r#"
        duration_ms = 1000
        path = { kind = "batched-interrupts" }
        [[source]]
        name = "source"
        to = "sink"
        traffic = { kind = "constant", rate_pps = 1000 }
        [[consumer]]
        name = "sink"
        role = { kind = "sink" }
    "#;
    let mut profile = machine(&costs, 100);
    let sum: u64 = costs.iter().map(|(_, ns)| ns).sum();
    let outcome = simulate(&profile, text);
    let latency = figure(&outcome, "consumer.sink.latency_mean_us");
    // Nobody ran in between: the process is the one that ran last, and only what
    // else ran would have to be changed from.
    let switch = 1.1;
    close(latency, sum as f64 / 1e3 - switch, 0.1);
    profile.costs.retain(|name, _| name != "receive_call");
    let scenario = common::scenario(text);
    let error = plimsoll_sim::run(&profile, &scenario, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "profile test gives no cost `receive_call`, which a consumer with a socket needs: \
         add it with its source"
    );
}

/// Found by a worker that got more than its share: what is left of a long step in
/// user mode was taken for kernel mode after a change of threads, and went on to
/// its end whatever its priority.
#[test]
fn three_that_always_want_to_run_get_a_third_each_however_long_their_steps() {
    let profile = machine(&[("context_switch", 10_000)], 100);
    let outcome = simulate(
        &profile,
        r#"
        duration_ms = 10000
        scheduler = "decay-usage"
        path = { kind = "batched-interrupts" }
        [[source]]
        name = "caller"
        to = "worker"
        traffic = { kind = "ping-pong", timeout_ms = 60000 }
        [[consumer]]
        name = "worker"
        role = { kind = "worker", compute_ms = 1150 }
        [[consumer]]
        name = "a"
        role = { kind = "compute" }
        [[consumer]]
        name = "b"
        role = { kind = "compute" }
        "#,
    );
    for name in ["worker", "a", "b"] {
        close(
            figure(&outcome, &format!("consumer.{name}.cpu_pct")),
            33.3,
            3.0,
        );
    }
}

/// Found by a message that waited for all of a burst to another process: who was woken while
/// another woken process was in its call was not looked at when that call returned. 4.4BSD
/// chooses again there, and the other one is in user mode then.
#[test]
fn a_process_woken_during_anothers_call_runs_when_that_call_returns() {
    let outcome = simulate(
        &machine(&[("receive_call", 1_000_000)], 100),
        r#"
        duration_ms = 30
        warmup_ms = 0
        scheduler = "decay-usage"
        path = { kind = "batched-interrupts" }
        [[source]]
        name = "burst"
        to = "busy"
        traffic = { kind = "steps", steps = [{ at_ms = 10, rate_pps = 1000000 }, { at_ms = 10.0055, rate_pps = 0 }] }
        [[source]]
        name = "single"
        to = "other"
        traffic = { kind = "steps", steps = [{ at_ms = 10.5, rate_pps = 1 }] }
        [[consumer]]
        name = "busy"
        role = { kind = "sink" }
        [[consumer]]
        name = "other"
        role = { kind = "sink" }
        "#,
    );
    // All seven of the burst came, and the single one waits for the rest of the first one's call.
    let busy = figure(&outcome, "consumer.busy.delivered_pps");
    close(busy, 7.0 / 0.03, 0.1);
    close(
        figure(&outcome, "consumer.other.latency_mean_us"),
        500.0 + 1_000.0,
        0.1,
    );
}

/// Processes whose priorities share a run queue take turns whenever one is woken: in 30 ms, which
/// is less than a quantum and than what lowers a priority, two that compute get half each.
#[test]
fn who_is_put_aside_goes_to_the_end_of_its_run_queue() {
    let outcome = simulate(
        &machine(&[], 100),
        r#"
        duration_ms = 30
        warmup_ms = 0
        scheduler = "decay-usage"
        path = { kind = "batched-interrupts" }
        [[source]]
        name = "caller"
        to = "woken"
        traffic = { kind = "constant", rate_pps = 1000 }
        [[consumer]]
        name = "woken"
        role = { kind = "sink" }
        [[consumer]]
        name = "a"
        role = { kind = "compute" }
        [[consumer]]
        name = "b"
        role = { kind = "compute" }
        "#,
    );
    for name in ["a", "b"] {
        let share = figure(&outcome, &format!("consumer.{name}.cpu_pct"));
        assert!((45.0..=55.0).contains(&share), "{name}: {share}");
    }
}

/// Found by four flooded processes that shared two of four CPUs: two were woken for the
/// same idle one.
#[test]
fn processes_spread_over_idle_cpus() {
    let profile = Profile::named("modern-veth").unwrap();
    let consumers: String = (0..4)
        .map(|sink| {
            format!(
                "[[source]]\nname = \"s{sink}\"\nto = \"c{sink}\"\n\
                 traffic = {{ kind = \"constant\", rate_pps = 250000, jitter_pct = 20 }}\n\
                 [[consumer]]\nname = \"c{sink}\"\nrole = {{ kind = \"sink\", work_us = 2 }}\n"
            )
        })
        .collect();
    let text = format!(
        "duration_ms = 200\nwarmup_ms = 50\ncpus = 4\n\
         path = {{ kind = \"governed-guard\" }}\n\
         adapter = [{{ name = \"in\", queues = 4 }}]\n{consumers}"
    );
    let outcome = simulate(&profile, &text);
    close(figure(&outcome, "delivered_pps"), 1e6, 1.0);
}

/// A process that a busy kernel thread puts aside goes on where a CPU is idle.
#[test]
fn a_process_leaves_the_cpu_that_a_kernel_thread_takes() {
    let profile = machine(&[("driver_receive", 10_000)], 100);
    let outcome = simulate(
        &profile,
        r#"
        duration_ms = 300
        cpus = 2
        path = { kind = "polling-thread" }
        [[source]]
        name = "flood"
        to = "deaf"
        traffic = { kind = "constant", rate_pps = 200000 }
        [[consumer]]
        name = "deaf"
        role = { kind = "deaf" }
        [[consumer]]
        name = "compute"
        role = { kind = "compute" }
        "#,
    );
    // Of both CPUs.
    close(figure(&outcome, "consumer.compute.cpu_pct"), 50.0, 1.0);
}

/// Requests that leave evenly interrupt whoever runs: a process that computes is
/// interrupted for its part of the time.
/// Shows LRP-06.
#[test]
fn requests_that_leave_evenly_interrupt_everybody_alike() {
    let profile = machine(
        &[("driver_receive", 50_000), ("receive_call", 50_000)],
        1_000,
    );
    let outcome = simulate(
        &profile,
        r#"
        duration_ms = 20000
        warmup_ms = 2000
        scheduler = "decay-usage"
        path = { kind = "batched-interrupts" }
        [[source]]
        name = "client"
        to = "server"
        traffic = { kind = "ping-pong", outstanding = 800, even = true, timeout_ms = 60000 }
        [[consumer]]
        name = "server"
        role = { kind = "rpc-server", compute_us = 400 }
        [[consumer]]
        name = "other"
        role = { kind = "compute" }
        "#,
    );
    // Both are charged half of the CPU; of each half, interrupts take their part.
    let interrupts = figure(&outcome, "cpu.interrupt_pct");
    assert!(interrupts > 4.0, "{interrupts}");
    close(
        figure(&outcome, "consumer.other.cpu_pct"),
        50.0 - interrupts / 2.0,
        3.0,
    );
}

/// Found by a second packet that made its burst pay for a second interrupt: one
/// that arrives while the handler runs is found by it, and announces nothing.
/// Shows MR-04.
#[test]
fn a_burst_that_one_handler_takes_is_one_interrupt() {
    let profile = machine(&[("driver_receive", 50_000)], 100);
    for path in ["batched-interrupts", "early-demux", "soft-lrp"] {
        let outcome = simulate(
            &profile,
            &format!(
                r#"
                duration_ms = 1000
                path = {{ kind = "{path}" }}
                [[source]]
                name = "source"
                to = "sink"
                traffic = {{ kind = "bursts", burst = 4, spacing_us = 10, period_us = 10000 }}
                [[consumer]]
                name = "sink"
                role = {{ kind = "sink" }}
                "#
            ),
        );
        close(figure(&outcome, "interrupts_hz"), 100.0, 1.0);
        close(figure(&outcome, "delivered_pps"), 400.0, 1.0);
    }
}

/// An even load is not a closed loop, but its answers come back to it as well.
#[test]
fn an_open_loops_round_trip_is_both_wires_and_the_host() {
    let profile = machine(&[("protocol_input", 20_000), ("send_call", 30_000)], 50);
    let text = r#"
        duration_ms = 1000
        path = { kind = "interrupt-per-packet" }
        adapter = [{ name = "in", link = { rate_mbps = 100, delay_us = 7 } }]
        [[source]]
        name = "load"
        to = "echo"
        bytes = 1000
        traffic = { kind = "constant", rate_pps = 100 }
        [[consumer]]
        name = "echo"
        role = { kind = "echo" }
    "#;
    let round_trip = figure(&simulate(&profile, text), "source.load.round_trip_mean_us");
    // 80 µs to transmit and 7 on the way, twice, and 50 in the host.
    assert!((round_trip - 224.0).abs() < 0.01, "{round_trip}");
}

/// Clients of a server that takes next to nothing, with one request per connection.
fn clients(clients: u32, client_us: u32) -> Outcome {
    let text = format!(
        r#"
        duration_ms = 2000
        path = {{ kind = "batched-interrupts" }}
        adapter = [{{ name = "in", transmit_batch = 120 }}]
        [[source]]
        name = "clients"
        to = "server"
        traffic = {{ kind = "http", clients = {clients}, client_us = {client_us} }}
        [[consumer]]
        name = "server"
        role = {{ kind = "web", processes = 8 }}
        "#
    );
    simulate(&machine(&[("interrupt_enter", 1_000)], 1000), &text)
}

/// Of one answer the clients' machine receives two packets, the last segment among them, and
/// its clients send three: they open, ask and close.
#[test]
fn a_clients_machine_does_one_thing_at_a_time() {
    for many in [1, 8] {
        let outcome = clients(many, 100);
        close(figure(&outcome, "delivered_pps"), 1e6 / 500.0, 5.0);
    }
}

/// What one machine sends cannot arrive at the same time: opening, acknowledgement, request
/// and close interrupt one by one.
#[test]
fn packets_of_a_machine_that_takes_time_interrupt_one_by_one() {
    let per_answer = |client_us| {
        let outcome = clients(1, client_us);
        figure(&outcome, "interrupts_hz") / figure(&outcome, "delivered_pps")
    };
    close(per_answer(100), 4.0, 2.0);
    close(per_answer(0), 2.0, 2.0);
}
