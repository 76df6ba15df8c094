//! What the papers' remedies do on a modelled host, rule by rule, beside what they
//! replace. Figures of whole experiments are claims of the lab.

use plimsoll_sim::Outcome;
use plimsoll_sim::profile::QueueLength;

use crate::common::{figure, machine, simulate};

/// A host with these costs, the rest of its scenario as given.
fn host(costs: &[(&str, u64)], queues: u32, path: &str, rest: &str) -> Outcome {
    let text = format!("duration_ms = 2000\nwarmup_ms = 500\npath = {{ {path} }}\n{rest}");
    simulate(&machine(costs, queues), &text)
}

const COSTS: [(&str, u64); 5] = [
    ("driver_receive", 10_000),
    ("protocol_input", 20_000),
    ("receive_call", 10_000),
    ("send_call", 5_000),
    ("queue_packet", 2_000),
];

/// A burst for one socket overflows the queue that all share, so that another socket
/// loses packets; with a channel each only the first does (LRP-08).
#[test]
fn a_shared_queue_makes_neighbours_pay_for_a_burst() {
    let sockets = r#"
        [[source]]
        name = "burst"
        to = "flooded"
        traffic = { kind = "bursts", burst = 100, spacing_us = 1, period_us = 20000 }
        [[source]]
        name = "steady"
        to = "neighbour"
        traffic = { kind = "constant", rate_pps = 1000 }
        [[consumer]]
        name = "flooded"
        role = { kind = "sink" }
        [[consumer]]
        name = "neighbour"
        role = { kind = "sink" }
    "#;
    let lost = |path: &str| {
        let outcome = host(
            &COSTS,
            20,
            path,
            &format!("adapter = [{{ name = \"in\", receive_ring = 1000 }}]\n{sockets}"),
        );
        assert!(figure(&outcome, "source.burst.lost_pps") > 1000.0, "{path}");
        figure(&outcome, "source.steady.lost_pps")
    };
    assert!(lost(r#"kind = "batched-interrupts""#) > 20.0);
    for path in ["soft-lrp", "ni-lrp"] {
        assert!(lost(&format!("kind = \"{path}\"")) < 1e-9, "{path}");
    }
}

/// Demultiplexing in the host takes an interrupt for each packet (LRP-28). An adapter
/// that demultiplexes interrupts only for a receiver that waits.
#[test]
fn demultiplexing_in_the_host_takes_an_interrupt_per_packet() {
    let interrupts = |path: &str| {
        let outcome = host(
            &COSTS,
            50,
            &format!("kind = \"{path}\""),
            r#"
            [[source]]
            name = "source"
            to = "busy"
            traffic = { kind = "constant", rate_pps = 5000 }
            [[consumer]]
            name = "busy"
            role = { kind = "sink", work_us = 500 }
            "#,
        );
        figure(&outcome, "interrupts_hz")
    };
    assert!((interrupts("soft-lrp") - 5000.0).abs() < 5.0);
    assert!(interrupts("ni-lrp") < 5.0);
}

/// Where the machine says that each packet interrupts, those of a burst do not share an
/// interrupt (LRP-28): had none of them to be announced, the first would bring in all.
#[test]
fn packets_of_a_burst_interrupt_one_by_one_on_a_machine_that_says_so() {
    let interrupts = |path: &str, batch: Option<u32>| {
        let mut profile = machine(&COSTS, 50);
        let given = batch.map(|packets| QueueLength {
            packets,
            source: "chosen by the test".into(),
        });
        let given = given.map(|batch| ("receive_batch".to_owned(), batch));
        profile.queues.extend(given);
        let text = format!(
            r#"
            duration_ms = 1000
            path = {{ kind = "{path}" }}
            [[source]]
            name = "source"
            to = "sink"
            traffic = {{ kind = "bursts", burst = 4, spacing_us = 1, period_us = 10000 }}
            [[consumer]]
            name = "sink"
            role = {{ kind = "sink" }}
            "#
        );
        figure(&simulate(&profile, &text), "interrupts_hz")
    };
    for path in ["batched-interrupts", "early-demux", "soft-lrp"] {
        assert!((interrupts(path, None) - 100.0).abs() < 2.0, "{path}");
        assert!((interrupts(path, Some(1)) - 400.0).abs() < 8.0, "{path}");
    }
}

/// A web server passes a trigger state at the end of each of its system calls, and not
/// only at the end of a request.
#[test]
fn a_web_servers_system_calls_are_trigger_states() {
    let states_per_request = |call: u64| {
        let costs = [("web_request", 100_000), ("web_call", call)];
        let outcome = host(
            &costs,
            50,
            r#"kind = "soft-timer-polling", quota = 1"#,
            r#"
            [[source]]
            name = "client"
            to = "server"
            traffic = { kind = "http", clients = 1, client_us = 100 }
            [[consumer]]
            name = "server"
            role = { kind = "web" }
            "#,
        );
        let requests = figure(&outcome, "delivered_pps") * 2.0;
        figure(&outcome, "path.trigger_states") / requests
    };
    let one = states_per_request(0);
    for (call, more) in [(100_000, 0.0), (60_000, 1.0), (10_000, 9.0)] {
        let off = states_per_request(call) - one - more;
        assert!(off.abs() < 0.1, "{call}: {off}");
    }
}

/// Classifying in the host only postpones livelock: at some rate it takes the whole CPU
/// (LRP-29). An adapter that classifies leaves the host its work.
#[test]
fn demultiplexing_in_the_host_livelocks_later() {
    let delivered = |path: &str, rate_pps: u32| {
        let source = format!(
            r#"
            [[source]]
            name = "flood"
            to = "sink"
            traffic = {{ kind = "constant", rate_pps = {rate_pps} }}
            [[consumer]]
            name = "sink"
            role = {{ kind = "sink" }}
            "#
        );
        let outcome = host(&COSTS, 50, &format!("kind = \"{path}\""), &source);
        figure(&outcome, "delivered_pps")
    };
    let all_cpu_pps = 1_000_000 / 10;
    let eager = "batched-interrupts";
    assert!(delivered(eager, all_cpu_pps / 2) < 5.0);
    assert!(delivered("soft-lrp", all_cpu_pps / 2) > 10_000.0);
    assert!(delivered("soft-lrp", all_cpu_pps) < 5.0);
    assert!(delivered("ni-lrp", all_cpu_pps) > 10_000.0);
}

/// Each process has its own thread for TCP (LRP-40): it runs at that process's priority,
/// and a flood of another one's connections waits behind it.
#[test]
fn tcp_work_has_the_priority_of_its_own_process() {
    let costs = [
        ("driver_receive", 1_000),
        ("tcp_syn", 50_000),
        ("tcp_ack", 50_000),
        ("tcp_data", 50_000),
        ("web_request", 500_000),
    ];
    let requests = |path: &str, flood_pps: u32| {
        let servers = format!(
            r#"
            [[source]]
            name = "clients"
            to = "server"
            traffic = {{ kind = "http", clients = 8 }}
            [[source]]
            name = "flood"
            to = "other"
            traffic = {{ kind = "syn-flood", rate_pps = {flood_pps} }}
            [[consumer]]
            name = "server"
            role = {{ kind = "web" }}
            [[consumer]]
            name = "other"
            nice = 20
            role = {{ kind = "web" }}
            "#
        );
        let outcome = host(&costs, 50, &format!("kind = \"{path}\""), &servers);
        figure(&outcome, "consumer.server.delivered_pps")
    };
    let kept = |path: &str| requests(path, 15_000) / requests(path, 0);
    assert!(kept("batched-interrupts") < 0.5);
    assert!(kept("soft-lrp") > 0.95);
}

/// Sending is the caller's work, and the interface's queue is drained as packets are
/// completed (LRP-03). Lazy receiving changes nothing about it (LRP-33).
/// Shows TB-04.
#[test]
fn sending_is_the_callers_on_every_path() {
    let costs = [
        ("send_call", 200_000),
        ("driver_transmit", 50_000),
        ("transmit_complete", 30_000),
    ];
    for path in ["batched-interrupts", "soft-lrp", "ni-lrp"] {
        let outcome = host(
            &costs,
            50,
            &format!("kind = \"{path}\""),
            r#"
            [[source]]
            name = "client"
            to = "server"
            traffic = { kind = "constant", rate_pps = 1000 }
            [[consumer]]
            name = "server"
            role = { kind = "echo" }
            "#,
        );
        let server = figure(&outcome, "consumer.server.cpu_pct");
        assert!((server - 25.0).abs() < 0.1, "{path}: {server}");
        let interrupt = figure(&outcome, "cpu.interrupt_pct");
        assert!((interrupt - 3.0).abs() < 0.1, "{path}: {interrupt}");
    }
}

/// A file server's threads get no CPU beside polling. Feedback from their queue gives
/// it to them, and so does a limit of what packets may take (MR-61).
#[test]
fn feedback_or_a_limit_gives_a_servers_threads_their_time() {
    let answered = |path: &str| {
        let outcome = host(
            &COSTS,
            32,
            path,
            r#"
            [[source]]
            name = "flood"
            to = "server"
            traffic = { kind = "constant", rate_pps = 50000 }
            [[consumer]]
            name = "server"
            role = { kind = "rpc-server", compute_us = 100 }
            "#,
        );
        figure(&outcome, "delivered_pps")
    };
    assert!(answered(r#"kind = "polling-thread", quota = 5"#) < 1.0);
    assert!(answered(r#"kind = "polling-thread", quota = 5, feedback = {}"#) > 3000.0);
    let limit = r#"kind = "polling-thread", quota = 5, cycle_limit = { share_pct = 50 }"#;
    assert!(answered(limit) > 2000.0);
}

/// A limit leaves a process that computes its part of the CPU, and does nothing for
/// sessions over the network: their packets are lost with the flood's (MR-60).
#[test]
fn a_limit_helps_processes_and_no_sessions() {
    let outcome = host(
        &COSTS,
        32,
        r#"kind = "polling-thread", quota = 5, cycle_limit = { share_pct = 50 }"#,
        r#"
        [[source]]
        name = "flood"
        to = "deaf"
        traffic = { kind = "poisson", rate_pps = 100000 }
        [[source]]
        name = "session"
        to = "login"
        traffic = { kind = "ping-pong", timeout_ms = 20 }
        [[consumer]]
        name = "deaf"
        role = { kind = "deaf" }
        [[consumer]]
        name = "login"
        role = { kind = "echo" }
        [[consumer]]
        name = "compute"
        role = { kind = "compute" }
        "#,
    );
    let compute = figure(&outcome, "consumer.compute.cpu_pct");
    assert!(compute > 35.0, "{compute}");
    let lost = figure(&outcome, "source.session.timeouts_hz");
    assert!(lost > 10.0, "{lost}");
}

/// How long the first packet of a burst waits for the process that reads it, in µs.
fn first_waits(path: &str, burst: u32) -> f64 {
    let rest = format!(
        r#"
        adapter = [{{ name = "in", receive_ring = 4000 }}]
        [[source]]
        name = "burst"
        to = "sink"
        traffic = {{ kind = "bursts", burst = {burst}, spacing_us = 20, period_us = 500000 }}
        [[consumer]]
        name = "sink"
        role = {{ kind = "sink" }}
        "#
    );
    let outcome = host(&COSTS, 4000, path, &rest);
    figure(&outcome, "source.burst.first_latency_mean_us")
}

/// A polling thread outranks all consumers, so none begins before a burst is over
/// (MR-69). With a limit of m in each n ms the next consumer waits m ms at most, and a
/// turn (MR-71).
#[test]
fn a_cpu_limit_bounds_the_wait_for_a_burst_to_end() {
    let path = r#"kind = "polling-thread", quota = 5"#;
    for burst in [100, 1000] {
        let waits = first_waits(path, burst);
        // Polling takes 30 µs of each packet.
        let expected = f64::from(burst) * 30.0;
        assert!((waits - expected).abs() < 0.05 * expected, "{waits}");
    }
    let limit = format!("{path}, cycle_limit = {{ share_pct = 40 }}");
    let waits = first_waits(&limit, 1000);
    assert!((3000.0..=4500.0).contains(&waits), "{waits}");
}

/// Called by the driver itself, the protocol needs no queue in front of it, TCP's
/// either (MR-62).
#[test]
fn tcp_called_by_the_driver_saves_the_queue() {
    let costs = [
        ("driver_receive", 10_000),
        ("queue_packet", 10_000),
        ("soft_dispatch", 10_000),
        ("tcp_syn", 5_000),
        ("tcp_ack", 5_000),
        ("tcp_data", 5_000),
        ("web_request", 100_000),
    ];
    let per_request = |path: &str| {
        let outcome = host(
            &costs,
            100,
            path,
            r#"
            [[source]]
            name = "clients"
            to = "server"
            traffic = { kind = "http", clients = 1 }
            [[consumer]]
            name = "server"
            role = { kind = "web" }
            "#,
        );
        figure(&outcome, "cpu.per_delivered_us")
    };
    let polled = per_request(r#"kind = "polling-thread", quota = 5"#);
    let queued = per_request(r#"kind = "batched-interrupts""#);
    assert!(queued - polled > 30.0, "{queued} {polled}");
}

/// A monitor that writes to a disk file captures less than one that throws away
/// (MR-77).
#[test]
fn a_disk_costs_a_monitor_packets() {
    let costs = [
        ("driver_receive", 10_000),
        ("capture_filter", 5_000),
        ("capture_copy", 50_000),
        ("capture_disk", 50_000),
    ];
    let captured = |disk: bool| {
        let rest = format!(
            r#"
            [[source]]
            name = "source"
            to = "monitor"
            traffic = {{ kind = "constant", rate_pps = 20000 }}
            [[consumer]]
            name = "monitor"
            role = {{ kind = "capture", disk = {disk} }}
            "#
        );
        let path = r#"kind = "polling-thread", quota = 5, feedback = {}"#;
        figure(&host(&costs, 32, path, &rest), "delivered_pps")
    };
    let (null, disk) = (captured(false), captured(true));
    assert!(disk > 1000.0 && null > 1.5 * disk, "{null} {disk}");
}

/// The handler's own time samples miss what an interrupt takes to begin and to return; 12 µs
/// stand for that (MH-10, MH-11). With exactly these 12 the handler has the share it is to have.
#[test]
fn an_adaptive_holdoff_counts_an_interrupts_way_once() {
    let outcome = host(
        &[
            ("interrupt_enter", 7_000),
            ("interrupt_exit", 5_000),
            ("driver_receive", 4_000),
        ],
        1000,
        r#"kind = "adaptive-holdoff", load_pct = 50, granularity_us = 1"#,
        r#"
        [[source]]
        name = "load"
        to = "sink"
        traffic = { kind = "constant", rate_pps = 60000 }
        [[consumer]]
        name = "sink"
        role = { kind = "sink" }
        "#,
    );
    let share = figure(&outcome, "cpu.interrupt_pct");
    assert!((share - 50.0).abs() < 1.0, "{share}");
}

/// Whoever finds a receiver asleep pays for waking it, on each path.
#[test]
fn waking_a_receiver_costs_the_same_on_every_path() {
    for (kind, wakeups) in [
        ("batched-interrupts", 1.0),
        ("early-demux", 1.0),
        ("soft-lrp", 1.0),
        ("ni-lrp", 1.0),
        // The thread that works for the receiver, and then the receiver.
        ("user-level", 2.0),
    ] {
        let outcome = host(
            &[("wakeup", 100_000), ("interrupt_exit", 10)],
            100,
            &format!("kind = \"{kind}\""),
            r#"
            [[source]]
            name = "steady"
            to = "sink"
            traffic = { kind = "constant", rate_pps = 1000 }
            [[consumer]]
            name = "sink"
            role = { kind = "sink" }
            "#,
        );
        let busy = figure(&outcome, "cpu.busy_pct");
        assert!((busy - 10.0 * wakeups).abs() < 0.1, "{kind}: {busy}");
    }
}

/// A turn of 3 ms in each period of 10, where 1 may be used: the timer that ends a period clears
/// the total (MR-55).
#[test]
fn a_cycle_limit_forgets_what_a_turn_used_beyond_it() {
    let outcome = host(
        &[("driver_receive", 100_000)],
        1000,
        r#"kind = "polling-thread", quota = 30, cycle_limit = { share_pct = 10 }"#,
        r#"
        [[source]]
        name = "flood"
        to = "sink"
        traffic = { kind = "constant", rate_pps = 20000 }
        [[consumer]]
        name = "sink"
        role = { kind = "sink" }
        [[consumer]]
        name = "user"
        role = { kind = "compute" }
        "#,
    );
    let share = figure(&outcome, "cpu.thread.polling-0_pct");
    assert!((share - 30.0).abs() < 0.5, "{share}");
}
