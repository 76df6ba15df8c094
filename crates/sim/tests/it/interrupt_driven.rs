//! What an interrupt-driven host does, rule by rule: the model that the papers
//! criticise. Costs are chosen so that each rule shows as a number.

use plimsoll_sim::{Outcome, Profile, timers};

use crate::common::{figure, machine, simulate};

/// Asserts that two figures agree to a thousandth.
fn same(measured: f64, expected: f64) {
    let off = (measured - expected).abs();
    assert!(
        off <= expected.abs() * 1e-3 + 1e-9,
        "{measured}, not {expected}"
    );
}

/// A host with these costs, and a process that receives. `load` is the length of all
/// queues, the packets of a burst, one of which comes every 100 ms, and the µs between
/// two of its packets.
fn burst(path: &str, costs: &[(&str, u64)], load: (u32, u32, u32)) -> Outcome {
    let (queues, burst, spacing_us) = load;
    let profile = machine(costs, queues);
    let text = format!(
        r#"
        duration_ms = 1000
        path = {{ {path} }}
        adapter = [{{ name = "in", receive_ring = 1000 }}]
        [[source]]
        name = "source"
        to = "sink"
        traffic = {{ kind = "bursts", burst = {burst}, spacing_us = {spacing_us}, period_us = 100000 }}
        [[consumer]]
        name = "sink"
        role = {{ kind = "sink" }}
        "#
    );
    simulate(&profile, &text)
}

const STAGES: [(&str, u64); 3] = [
    ("driver_receive", 30_000),
    ("protocol_input", 20_000),
    ("receive_call", 7_000),
];

/// Device level works off the whole burst, then the software interrupt, then the
/// process: each level outranks those below, and no handler interrupts its own level
/// (MR-01, MR-02, MR-04, LRP-01, LRP-02). So a packet is delivered in three stages
/// (MR-12, TB-05, ST-56), and the first waits for the whole burst (MR-11).
#[test]
fn each_level_is_done_before_the_next_begins() {
    let path = r#"kind = "batched-interrupts""#;
    for packets in [1, 4] {
        let outcome = burst(path, &STAGES, (100, packets, 10));
        let first = figure(&outcome, "source.source.first_latency_mean_us");
        same(first, f64::from(packets) * (30.0 + 20.0) + 7.0);
        same(figure(&outcome, "interrupts_hz"), 10.0);
    }
}

/// In Digital UNIX a driver starts nothing before the transmit interrupt of what it started
/// last (MR-66): the second packet of a burst waits until the first, 67 µs on the wire, has left.
#[test]
fn a_driver_starts_nothing_while_its_transmitter_is_active() {
    let second_waits = |path: &str| {
        let text = format!(
            r#"
            duration_ms = 1000
            path = {{ {path} }}
            adapter = [{{ name = "in" }}, {{ name = "out", link = {{ rate_mbps = 10, overhead_bytes = 20 }} }}]
            [[source]]
            name = "source"
            to = "router"
            traffic = {{ kind = "bursts", burst = 2, spacing_us = 1, period_us = 10000 }}
            [[consumer]]
            name = "router"
            role = {{ kind = "forward", out = "out" }}
            "#
        );
        let outcome = simulate(&machine(&[("forward", 10_000)], 50), &text);
        let mean = figure(&outcome, "consumer.router.handover_mean_us");
        2.0 * mean - figure(&outcome, "source.source.first_handover_mean_us")
    };
    // It arrived 1 µs after the first, and both take 10 µs.
    same(second_waits(r#"kind = "batched-interrupts""#), 19.0);
    let waits = second_waits(r#"kind = "batched-interrupts", protocol_thread = true"#);
    same(waits, 10.0 + 67.2 - 1.0);
}

/// The queue between two levels holds what its limit says, and loses what comes later
/// (MR-03). Work on a lost packet is booked where it was lost: nothing on the receive
/// ring, the driver's part on the IP queue, the protocol's too on the socket queue
/// (MR-15).
#[test]
fn a_full_queue_loses_the_newest_and_the_work_done_on_it() {
    let path = r#"kind = "batched-interrupts""#;
    // What comes faster than it is taken from the ring: 20 packets for an IP queue of 5.
    let outcome = burst(path, &STAGES, (5, 20, 10));
    same(figure(&outcome, "loss.ip-queue_pps"), 150.0);
    same(figure(&outcome, "delivered_pps"), 50.0);
    let percent = |lost_pps: f64, us: f64| lost_pps * us / 1e4;
    let work = figure(&outcome, "loss.ip-queue_work_pct");
    same(work, percent(150.0, 30.0));
    // What comes as fast as the protocol works: 20 packets for a socket queue of 5,
    // from which the process takes few.
    let costs = [
        ("driver_receive", 1_000),
        ("protocol_input", 20_000),
        ("receive_call", 500_000),
    ];
    let outcome = burst(path, &costs, (5, 20, 30));
    same(figure(&outcome, "loss.ip-queue_pps"), 0.0);
    let lost = figure(&outcome, "loss.socket-queue_pps");
    assert!((130.0..=150.0).contains(&lost), "{lost}");
    let work = figure(&outcome, "loss.socket-queue_work_pct");
    same(work, percent(lost, 21.0));
    // A receive ring of 5, and the packet that a polling thread has taken from it.
    let profile = machine(&STAGES, 5);
    let outcome = simulate(
        &profile,
        r#"
        duration_ms = 1000
        path = { kind = "polling-thread", quota = 5 }
        [[source]]
        name = "source"
        to = "sink"
        traffic = { kind = "bursts", burst = 20, spacing_us = 0, period_us = 100000 }
        [[consumer]]
        name = "sink"
        role = { kind = "sink" }
        "#,
    );
    same(figure(&outcome, "loss.interface_pps"), 140.0);
    same(figure(&outcome, "loss.interface_work_pct"), 0.0);
}

/// 4.2BSD does protocol work in a software interrupt, Digital UNIX in a thread of the
/// kernel (MR-05): the same time on two accounts.
#[test]
fn protocol_work_is_a_software_interrupt_s_or_a_thread_s() {
    let bsd = burst(r#"kind = "batched-interrupts""#, &STAGES, (100, 4, 10));
    let path = r#"kind = "batched-interrupts", protocol_thread = true"#;
    let unix = burst(path, &STAGES, (100, 4, 10));
    let work = 40.0 * 20.0 / 1e4;
    same(figure(&bsd, "cpu.soft_interrupt_pct"), work);
    same(figure(&unix, "cpu.soft_interrupt_pct"), 0.0);
    let threads = unix.cpu.threads.iter();
    let protocol = threads.filter(|(name, _)| name != "sink");
    let ns: u64 = protocol.map(|(_, ns)| ns).sum();
    same(ns as f64 * 100.0 / unix.cpu.total_ns as f64, work);
}

/// A server whose next request arrives while it runs, and a process that computes:
/// the CPU time of both, in percent.
fn server_and_process(scheduler: &str) -> [f64; 3] {
    let profile = machine(&[("driver_receive", 300_000)], 100);
    let text = format!(
        r#"
        duration_ms = 20000
        warmup_ms = 2000
        scheduler = "{scheduler}"
        path = {{ kind = "batched-interrupts" }}
        [[source]]
        name = "client"
        to = "server"
        traffic = {{ kind = "ping-pong", outstanding = 4, timeout_ms = 60000 }}
        [[consumer]]
        name = "server"
        role = {{ kind = "rpc-server", compute_us = 700 }}
        [[consumer]]
        name = "other"
        role = {{ kind = "compute" }}
        "#
    );
    let outcome = simulate(&profile, &text);
    [
        "consumer.server.cpu_pct",
        "consumer.other.cpu_pct",
        "cpu.interrupt_pct",
    ]
    .map(|name| figure(&outcome, name))
}

/// 4.4BSD books interrupts on whom they interrupt (LRP-04), here always the server;
/// other schedulers do not see them at all (MR-06).
#[test]
fn interrupts_count_against_whom_they_interrupt_or_against_nobody() {
    let [server, other, interrupts] = server_and_process("decay-usage");
    assert!(interrupts > 10.0, "{interrupts}");
    assert!(
        (server + interrupts - other).abs() < 3.0,
        "{server} {other} {interrupts}"
    );
    let [server, other, interrupts] = server_and_process("fair-share");
    assert!(interrupts > 10.0, "{interrupts}");
    assert!(
        (server - other).abs() < 3.0,
        "{server} {other} {interrupts}"
    );
}

/// Under a flood nothing is delivered, sources go on sending (MR-78), and when the flood
/// ends work goes on by itself: a livelock is no deadlock (MR-08).
#[test]
fn a_livelocked_host_recovers_when_the_load_falls() {
    let profile = machine(&STAGES, 50);
    let run = |warmup_ms: u32, duration_ms: u32| {
        let text = format!(
            r#"
            warmup_ms = {warmup_ms}
            duration_ms = {duration_ms}
            path = {{ kind = "batched-interrupts" }}
            [[source]]
            name = "source"
            to = "sink"
            traffic = {{ kind = "steps", steps = [{{ at_ms = 0, rate_pps = 50000 }}, {{ at_ms = 500, rate_pps = 1000 }}] }}
            [[consumer]]
            name = "sink"
            role = {{ kind = "sink" }}
            "#
        );
        simulate(&profile, &text)
    };
    let flooded = run(100, 300);
    same(figure(&flooded, "delivered_pps"), 0.0);
    same(figure(&flooded, "source.source.sent_pps"), 50_000.0);
    let after = run(600, 1000);
    same(figure(&after, "delivered_pps"), 1000.0);
}

/// A router under more than it can take: what leaves it per second, and what its
/// output queue lost.
fn router(path: &str, costs: &[(&str, u64)], rate_pps: u32) -> Outcome {
    router_to(100, path, costs, rate_pps)
}

/// The same with a wire of another rate behind it.
fn router_to(rate_mbps: u32, path: &str, costs: &[(&str, u64)], rate_pps: u32) -> Outcome {
    let profile = machine(costs, 32);
    let text = format!(
        r#"
        duration_ms = 1000
        path = {{ {path} }}
        adapter = [{{ name = "in" }}, {{ name = "out", link = {{ rate_mbps = {rate_mbps} }} }}]
        [[source]]
        name = "source"
        to = "router"
        traffic = {{ kind = "constant", rate_pps = {rate_pps} }}
        [[consumer]]
        name = "router"
        role = {{ kind = "forward", out = "out" }}
        [[consumer]]
        name = "compute"
        role = {{ kind = "compute" }}
        "#
    );
    simulate(&profile, &text)
}

const ROUTER: [(&str, u64); 4] = [
    ("driver_receive", 20_000),
    ("forward", 15_000),
    ("driver_transmit", 10_000),
    ("transmit_complete", 5_000),
];

/// A packet goes from the output queue to the transmitter, and its descriptor is free
/// again after its completion, which has its cost (MR-13, TB-04, ST-56): 50 µs in all. What the
/// kernel forwards pays for no call and no copy of a process (TB-33).
#[test]
fn a_transmission_ends_with_its_completion() {
    let path = r#"kind = "batched-interrupts""#;
    let outcome = router(path, &ROUTER, 1000);
    same(figure(&outcome, "transmitted_pps"), 1000.0);
    let kernel = ["cpu.interrupt_pct", "cpu.soft_interrupt_pct"];
    let kernel: f64 = kernel.map(|name| figure(&outcome, name)).iter().sum();
    same(kernel, 1000.0 * 50.0 / 1e4);
}

/// A forwarded packet is handed over when the driver's call begins that gives it to the
/// transmitter, and delivered when it has left, which takes that call and a wire's time more: 64
/// bytes at 100 Mbit/s.
#[test]
fn a_packet_is_handed_over_before_it_has_left() {
    let path = r#"kind = "batched-interrupts""#;
    let outcome = router(path, &ROUTER, 1000);
    let handed = figure(&outcome, "consumer.router.handover_mean_us");
    same(handed, 20.0 + 15.0);
    let left = figure(&outcome, "consumer.router.latency_mean_us");
    same(left - handed, 10.0 + 64.0 * 8.0 / 100.0);
}

/// Completions that wait while packets arrive are never seen under overload, so
/// descriptors never come back (MR-14). Without a quota a polling thread does the same
/// (MR-16), and packets are lost behind the queue in front of a busy output, which even
/// polling keeps (MR-40).
#[test]
fn without_turns_for_completions_output_stops() {
    let starved = [
        r#"kind = "batched-interrupts", receive_first = true"#,
        r#"kind = "polling-thread""#,
    ];
    for path in starved {
        let outcome = router(path, &ROUTER, 60_000);
        same(figure(&outcome, "transmitted_pps"), 0.0);
    }
    let outcome = router(starved[1], &ROUTER, 60_000);
    assert!(figure(&outcome, "loss.output-queue_pps") > 10_000.0);
    let outcome = router(r#"kind = "polling-thread", quota = 8"#, &ROUTER, 60_000);
    same(figure(&outcome, "transmitted_pps"), 20_000.0);
}

/// 4.3BSD's routers tell the source of a packet that found the output queue full, for which they
/// make a packet and send it back: it costs more than the lost one did. A machine without this
/// cost tells nobody.
#[test]
fn a_full_output_queue_costs_a_source_quench() {
    let silent = router_to(1, r#"kind = "batched-interrupts""#, &ROUTER, 5_000);
    let costs = [&ROUTER[..], &[("source_quench", 7_000)]].concat();
    let telling = router_to(1, r#"kind = "batched-interrupts""#, &costs, 5_000);
    let left = 1e6 / (64.0 * 8.0);
    for outcome in [&silent, &telling] {
        same(figure(outcome, "delivered_pps"), left);
        same(figure(outcome, "loss.output-queue_pps"), 5_000.0 - left);
    }
    let kernel = |outcome| {
        let accounts = ["cpu.interrupt_pct", "cpu.soft_interrupt_pct"];
        accounts
            .map(|name| figure(outcome, name))
            .iter()
            .sum::<f64>()
    };
    // 7 µs to make it, 10 to hand it over, and 5 to release it.
    same(
        kernel(&telling) - kernel(&silent),
        (5_000.0 - left) * 22.0 / 1e4,
    );
}

/// With everything at device level no work is begun and then lost between levels, and
/// under overload no process gets anything (MR-29). Since a handler without a quota goes
/// on for ever then, a router's completions starve as well (MR-14).
#[test]
fn at_device_level_packets_are_worked_off_and_processes_starve() {
    let path = r#"kind = "high-level""#;
    let outcome = router(path, &ROUTER, 15_000);
    same(figure(&outcome, "transmitted_pps"), 15_000.0);
    same(figure(&outcome, "consumer.compute.cpu_pct"), 25.0);
    let outcome = router(path, &ROUTER, 60_000);
    same(figure(&outcome, "loss.ip-queue_pps"), 0.0);
    same(figure(&outcome, "consumer.compute.cpu_pct"), 0.0);
    same(figure(&outcome, "transmitted_pps"), 0.0);
}

/// Without a queue between driver and protocol nothing is lost there (MR-32): what is
/// too much stays on the interface.
#[test]
fn a_polling_thread_has_no_ip_queue() {
    let polled = router(r#"kind = "polling-thread", quota = 8"#, &ROUTER, 60_000);
    same(figure(&polled, "loss.ip-queue_pps"), 0.0);
    assert!(figure(&polled, "loss.interface_pps") > 39_000.0);
    let queued = router(r#"kind = "batched-interrupts""#, &ROUTER, 60_000);
    assert!(figure(&queued, "loss.ip-queue_pps") > 39_000.0);
}

/// With half the costs everything is twice as fast, and twice the load livelocks it
/// again (MR-43, MR-100).
#[test]
fn cheaper_code_moves_livelock_and_does_not_remove_it() {
    let path = r#"kind = "batched-interrupts""#;
    let half = ROUTER.map(|(name, ns)| (name, ns / 2));
    let [slow, fast] = [&ROUTER[..], &half[..]].map(|costs| {
        [15_000, 50_000, 100_000].map(|rate_pps| {
            let outcome = router(path, costs, rate_pps);
            figure(&outcome, "transmitted_pps")
        })
    });
    same(slow[0], 15_000.0);
    same(slow[1], 0.0);
    assert!(fast[1] > 15_000.0, "{fast:?}");
    same(fast[2], 0.0);
}

/// An adapter may announce many transmissions at once (ST-58).
#[test]
fn one_interrupt_may_stand_for_many_transmissions() {
    let profile = machine(&ROUTER, 200);
    let interrupts = |batch: u32| {
        let text = format!(
            r#"
            duration_ms = 1000
            path = {{ kind = "batched-interrupts" }}
            adapter = [{{ name = "in" }}, {{ name = "out", transmit_batch = {batch} }}]
            [[source]]
            name = "source"
            to = "router"
            traffic = {{ kind = "constant", rate_pps = 1000 }}
            [[consumer]]
            name = "router"
            role = {{ kind = "forward", out = "out" }}
            "#
        );
        figure(&simulate(&profile, &text), "interrupts_hz")
    };
    same(interrupts(1), 2000.0);
    same(interrupts(100), 1010.0);
}

/// A transmitter that announces that it has nothing more does so after each burst. Without,
/// what is fewer than a batch is never announced (ST-58).
#[test]
fn a_transmitter_may_announce_that_it_has_nothing_more() {
    let profile = machine(&ROUTER, 200);
    let interrupts = |announces: bool| {
        let text = format!(
            r#"
            duration_ms = 1000
            path = {{ kind = "batched-interrupts" }}
            adapter = [{{ name = "in" }}, {{ name = "out", transmit_batch = 128, announces_idle = {announces}, link = {{ rate_mbps = 10 }} }}]
            [[source]]
            name = "source"
            to = "router"
            traffic = {{ kind = "constant", rate_pps = 200, burst = 4 }}
            [[consumer]]
            name = "router"
            role = {{ kind = "forward", out = "out" }}
            "#
        );
        figure(&simulate(&profile, &text), "interrupts_hz")
    };
    // 50 bursts a second, of which an interrupt receives all four.
    same(interrupts(true) - interrupts(false), 50.0 - 1.0);
}

/// A faster machine passes trigger states more often, and an off-chip timer takes as much of
/// its time as of the slower one's (ST-65). Both rest on what the paper measured, which the
/// profiles have as input.
#[test]
fn an_off_chip_timer_gets_no_faster_with_the_cpu() {
    let measured = |machine: &str, purpose: &str, name: &str| {
        let text = format!("workload = \"ST-Flash\"\nseconds = 2\npurpose = {purpose}\n");
        let timers = toml::from_str(&text).unwrap();
        let figures = timers::run(&Profile::named(machine).unwrap(), &timers, 1).unwrap();
        figures.iter().find(|(known, _)| known == name).unwrap().1
    };
    let both =
        |purpose, name| ["pentium2-300", "pentium3-500"].map(|of| measured(of, purpose, name));
    let [slow, fast] = both(r#"{ kind = "watch" }"#, "interval_mean_us");
    assert!(fast < 0.7 * slow, "{fast} and {slow} us");
    let clocked = r#"{ kind = "clocked", timer = "off-chip" }"#;
    let [slow, fast] = both(clocked, "overhead_pct");
    assert!(fast > 0.9 * slow, "{fast} and {slow} %");
}

/// Buffers that are free as soon as their packets are taken let packets in that are taken
/// almost at once, beside those that have waited for the whole holdoff: the jitter rises, and an
/// interrupt takes more packets than the adapter has buffers (MH-23).
#[test]
fn a_buffer_that_is_free_early_lets_in_packets_that_hardly_wait() {
    let flooded = |late: bool| {
        let text = format!(
            r#"
            duration_ms = 1000
            path = {{ kind = "fixed-holdoff", holdoff_us = 200, free_late = {late} }}
            adapter = [{{ name = "in", receive_ring = 8 }}]
            [[source]]
            name = "flood"
            to = "sink"
            traffic = {{ kind = "constant", rate_pps = 60000 }}
            [[consumer]]
            name = "sink"
            role = {{ kind = "sink" }}
            "#
        );
        let outcome = simulate(&machine(&[("driver_receive", 10_000)], 100), &text);
        let packets = figure(&outcome, "path.taken_pps") / figure(&outcome, "interrupts_hz");
        (figure(&outcome, "consumer.sink.latency_stddev_us"), packets)
    };
    let ((late, few), (early, many)) = (flooded(true), flooded(false));
    assert!(early > 1.5 * late, "{early} and {late} µs");
    assert!(few < 8.1 && many > 12.0, "{few} and {many}");
}
