//! Every cost that a profile may declare is charged somewhere: raised alone, it changes
//! what some scenario gives. An audit had found one that never was.

use plimsoll_sim::profile::COSTS;
use plimsoll_sim::round_trip::{Guarding, RoundTrips, Watchdog};
use plimsoll_sim::timers::{Purpose, Timer, Timers};
use plimsoll_sim::{Profile, round_trip, run, timers};

use crate::common::{self, PATHS, machine, scenario};

/// What every scenario of this file costs where it is not raised, in ns.
const BASE: u64 = 2_000;
const RAISED: u64 = 9_000;

/// All kinds of work on one host, some of it more than it can take.
const WORK: &str = r#"
    duration_ms = 60
    warmup_ms = 10
    adapter = [{ name = "in" }, { name = "out" }, { name = "slow", link = { rate_mbps = 0.05 } }]
    [[source]]
    name = "flood"
    to = "sink"
    traffic = { kind = "poisson", rate_pps = 9000 }
    [[source]]
    name = "ping"
    to = "echo"
    traffic = { kind = "ping-pong" }
    [[source]]
    name = "corrupt"
    to = "sink"
    corrupt = true
    traffic = { kind = "constant", rate_pps = 500 }
    [[source]]
    name = "forwarded"
    to = "router"
    traffic = { kind = "constant", rate_pps = 700 }
    [[source]]
    name = "excess"
    to = "full"
    traffic = { kind = "constant", rate_pps = 5000 }
    [[source]]
    name = "screened"
    to = "screen"
    traffic = { kind = "constant", rate_pps = 700 }
    [[source]]
    name = "captured"
    to = "monitor"
    traffic = { kind = "constant", rate_pps = 700 }
    [[source]]
    name = "clients"
    to = "web"
    traffic = { kind = "http", clients = 8, requests_per_connection = 2, response_bytes = 6000, timeout_ms = 10 }
    [[source]]
    name = "stray"
    to = "closed"
    traffic = { kind = "constant", rate_pps = 300 }
    [[consumer]]
    name = "closed"
    role = { kind = "closed" }
    [[consumer]]
    name = "sink"
    queue = 4
    role = { kind = "sink", work_us = 50 }
    [[consumer]]
    name = "echo"
    role = { kind = "echo" }
    [[consumer]]
    name = "router"
    role = { kind = "forward", out = "out" }
    [[consumer]]
    name = "full"
    role = { kind = "forward", out = "slow" }
    [[consumer]]
    name = "screen"
    role = { kind = "screen", out = "out" }
    [[consumer]]
    name = "monitor"
    role = { kind = "capture", disk = true }
    [[consumer]]
    name = "web"
    role = { kind = "web", processes = 2 }
"#;

fn costs(raised: &str) -> Vec<(&str, u64)> {
    let of = |name: &'static str| match name {
        _ if name == raised => RAISED,
        // More than protocol_lookup, which is a part of it.
        "protocol_input" => 2 * RAISED,
        _ => BASE,
    };
    COSTS.iter().map(|(name, _)| (*name, of(name))).collect()
}

/// What the host gives on a path.
fn host(raised: &str, path: &str) -> Vec<(String, f64)> {
    let text = format!("path = {{ {path} }}\n{WORK}");
    let outcome = run(&machine(&costs(raised), 100), &scenario(&text), 1);
    outcome
        .unwrap_or_else(|error| panic!("{path}: {error}"))
        .measures()
}

/// What the models give that receive nothing.
fn other_models(raised: &str) -> Vec<(String, f64)> {
    let mut profile = Profile::named("pentium2-300").unwrap();
    profile.costs = machine(&costs(raised), 100).costs;
    let clocked = [Timer::Soft, Timer::OnChip, Timer::OffChip].map(|timer| Purpose::Clocked {
        timer,
        interval_us: 20.0,
        backlogged: false,
    });
    let deadlines = Purpose::Deadlines { deadline_us: 50.0 };
    let mut all = Vec::new();
    for purpose in clocked.into_iter().chain([deadlines]) {
        let timers = Timers {
            workload: "ST-Apache".to_owned(),
            seconds: 0.2,
            purpose,
            backup_hz: 1000,
        };
        all.extend(timers::run(&profile, &timers, 1).unwrap());
    }
    for (guard, watchdog) in [
        (Guarding::Levels, Watchdog::Eager),
        (Guarding::Flags, Watchdog::Lazy),
    ] {
        let trips = RoundTrips {
            trials: 10,
            pause_ms: 500.0,
            write: guard,
            read: guard,
            watchdog,
            reserved_segment: false,
        };
        all.extend(round_trip::run(&profile, &trips).unwrap());
    }
    all
}

#[test]
fn every_cost_is_charged_somewhere() {
    let hosts: Vec<_> = PATHS.iter().map(|path| (path, host("", path))).collect();
    let others = other_models("");
    let free = COSTS.iter().map(|(name, _)| *name).filter(|name| {
        let changes = |(path, base): &(&&str, Vec<_>)| host(name, path) != *base;
        other_models(name) == others && !hosts.iter().any(changes)
    });
    let free: Vec<&str> = free.collect();
    assert!(free.is_empty(), "declared, but never charged: {free:?}");
}

/// A polling thread pays for starting each time it has slept.
#[test]
fn a_polling_thread_pays_for_each_start() {
    let used = |start_ns: u64| {
        let text = "duration_ms = 1000\npath = { kind = \"polling-thread\", quota = 8 }\n\
             [[source]]\nname = \"source\"\nto = \"sink\"\n\
             traffic = { kind = \"constant\", rate_pps = 101 }\n\
             [[consumer]]\nname = \"sink\"\nrole = { kind = \"deaf\" }\n";
        let outcome = common::simulate(&machine(&[("poll_start", start_ns)], 1000), text);
        outcome.cpu.total_ns - outcome.cpu.idle_ns
    };
    // One start for each of 101 packets.
    let starts = (used(30_000) - used(0)) / 30_000;
    assert!((100..=102).contains(&starts), "{starts}");
}

/// Whoever finds a queue full pays for discarding the packet.
#[test]
fn a_full_queue_costs_a_discard_per_packet() {
    let run = |discard_ns: u64| {
        let text = "duration_ms = 1000\npath = { kind = \"batched-interrupts\" }\n\
             [[source]]\nname = \"source\"\nto = \"sink\"\n\
             traffic = { kind = \"constant\", rate_pps = 5000 }\n\
             [[consumer]]\nname = \"sink\"\nrole = { kind = \"deaf\" }\n";
        let costs = [("protocol_input", 20_000), ("discard", discard_ns)];
        let outcome = common::simulate(&machine(&costs, 10), text);
        let losses = outcome.losses.iter();
        let lost: u64 = losses.map(|loss| loss.packets).sum();
        (lost, outcome.cpu.total_ns - outcome.cpu.idle_ns)
    };
    let ((lost, with), (_, without)) = (run(7_000), run(0));
    assert!(lost > 4_900, "{lost}");
    let each = (with - without) as f64 / lost as f64;
    assert!((each / 7_000.0 - 1.0).abs() < 0.01, "{each} ns per packet");
}

/// One read takes all captured packets that wait.
#[test]
fn a_monitor_reads_in_batches() {
    let captured = |burst: u32| {
        let text = format!(
            "duration_ms = 1000\npath = {{ kind = \"polling-thread\", quota = 100 }}\n\
             [[source]]\nname = \"source\"\nto = \"monitor\"\n\
             traffic = {{ kind = \"bursts\", burst = {burst}, spacing_us = 1, period_us = {} }}\n\
             [[consumer]]\nname = \"monitor\"\nrole = {{ kind = \"capture\" }}\n",
            1000 * burst
        );
        let costs = [("capture_read", 100_000), ("capture_filter", 1_000)];
        let outcome = common::simulate(&machine(&costs, 100), &text);
        let read: u64 = outcome.consumers.iter().map(|one| one.cpu_ns).sum();
        read as f64 / outcome.delivered as f64 / 100_000.0
    };
    // The first of a burst is read alone, the others together.
    let (alone, together) = (captured(1), captured(20));
    assert!((alone - 1.0).abs() < 0.02, "{alone}");
    assert!((together - 0.1).abs() < 0.03, "{together}");
}

/// Packets that are found together share what input has to fetch into the caches; one that
/// comes soon after another finds a part of it there.
#[test]
fn packet_input_pays_for_its_footprint_once_per_visit_and_by_time_away() {
    let per_packet = |burst: u32, rate_pps: u32| {
        let text = format!(
            "duration_ms = 1000\npath = {{ kind = \"batched-interrupts\" }}\n\
             [[source]]\nname = \"source\"\nto = \"sink\"\n\
             traffic = {{ kind = \"constant\", rate_pps = {rate_pps}, burst = {burst} }}\n\
             [[consumer]]\nname = \"sink\"\nrole = {{ kind = \"sink\" }}\n\
             [[consumer]]\nname = \"worker\"\nrole = {{ kind = \"compute\" }}\nnice = 20\n"
        );
        let used = |refill_ns: u64| {
            let costs = [("input_refill", refill_ns), ("cache_turnover", 100_000)];
            let outcome = common::simulate(&machine(&costs, 100), &text);
            (outcome.cpu.interrupt_ns, outcome.delivered)
        };
        let ((with, packets), (without, _)) = (used(10_000), used(0));
        (with - without) as f64 / packets as f64
    };
    let alone = per_packet(1, 100);
    assert!((alone / 10_000.0 - 1.0).abs() < 0.01, "{alone}");
    let together = per_packet(10, 100);
    assert!((together / 1_000.0 - 1.0).abs() < 0.05, "{together}");
    // Away for 100 µs, the turnover: all but the e-th part is gone, 63 percent.
    let soon = per_packet(1, 10_000);
    assert!((soon / 6_321.0 - 1.0).abs() < 0.15, "{soon}");
}

/// An interrupt costs the thread that it interrupts, and nobody if the CPU was idle.
#[test]
fn an_interrupt_pollutes_the_thread_it_interrupts() {
    let used = |pollution_ns: u64, worker: &str| {
        let text = format!(
            "duration_ms = 1000\npath = {{ kind = \"batched-interrupts\" }}\n\
             [[source]]\nname = \"source\"\nto = \"nobody\"\n\
             traffic = {{ kind = \"constant\", rate_pps = 1009 }}\n\
             [[consumer]]\nname = \"nobody\"\nrole = {{ kind = \"deaf\" }}\n{worker}"
        );
        let costs = [
            ("handler_pollution", pollution_ns),
            ("interrupt_enter", 1_000),
        ];
        let outcome = common::simulate(&machine(&costs, 2000), &text);
        outcome.cpu.total_ns - outcome.cpu.idle_ns
    };
    assert_eq!(used(5_000, ""), used(0, ""), "nobody was interrupted");
    let half = "[[consumer]]\nname = \"worker\"\n\
                role = { kind = \"compute\", demand = { kind = \"periodic\", period_us = 1000, busy_us = 500 } }\n";
    // Half of the interrupts find the worker at work; the clock's 100 ticks find it begin.
    let polluted = (used(5_000, half) - used(0, half)) as f64 / 5_000.0;
    assert!((450.0..=650.0).contains(&polluted), "{polluted}");
}

/// The second of two interrupts finds the less to replace, the sooner it comes. Each cost the
/// whole, though the cost stands for caches with nothing left (`cache_turnover`).
#[test]
fn an_interrupt_soon_after_another_pollutes_less() {
    let used = |pollution_ns: u64, rate_pps: u32| {
        let text = format!(
            "duration_ms = 1000\npath = {{ kind = \"batched-interrupts\" }}\n\
             [[source]]\nname = \"source\"\nto = \"nobody\"\n\
             traffic = {{ kind = \"constant\", rate_pps = {rate_pps} }}\n\
             [[consumer]]\nname = \"nobody\"\nrole = {{ kind = \"deaf\" }}\n\
             [[consumer]]\nname = \"worker\"\n\
             role = {{ kind = \"compute\", demand = {{ kind = \"periodic\", period_us = 1000, busy_us = 500 }} }}\n"
        );
        let costs = [
            ("handler_pollution", pollution_ns),
            ("cache_turnover", 1_000_000),
            ("interrupt_enter", 1_000),
        ];
        let outcome = common::simulate(&machine(&costs, 4000), &text);
        (outcome.cpu.total_ns - outcome.cpu.idle_ns) as f64
    };
    let each = |rate_pps| (used(50_000, rate_pps) - used(0, rate_pps)) / f64::from(rate_pps);
    let (often, seldom) = (each(2_000), each(100));
    assert!(often > 100.0, "{often}");
    assert!(seldom > 2.0 * often, "{seldom} {often}");
}

/// Protocol work in a software interrupt costs the thread that it interrupted, packet by
/// packet, and not the packets' receiver.
/// Shows LRP-05, LRP-06.
#[test]
fn a_software_interrupt_pollutes_the_thread_it_interrupts() {
    let used = |pollution_ns: u64| {
        let text = "duration_ms = 1000\npath = { kind = \"batched-interrupts\" }\n\
             [[source]]\nname = \"source\"\nto = \"sink\"\n\
             traffic = { kind = \"constant\", rate_pps = 1009, burst = 2 }\n\
             [[consumer]]\nname = \"sink\"\nrole = { kind = \"sink\", work_us = 1 }\n\
             [[consumer]]\nname = \"worker\"\n\
             role = { kind = \"compute\", demand = { kind = \"periodic\", period_us = 1000, busy_us = 500 } }\n";
        let costs = [("soft_pollution", pollution_ns), ("protocol_input", 1_000)];
        let outcome = common::simulate(&machine(&costs, 2000), text);
        [0, 1].map(|consumer| outcome.consumers[consumer].cpu_ns as f64)
    };
    let ([receiver, worker], [before, undisturbed]) = (used(5_000), used(0));
    // Half of the bursts find the worker at work, for both of their packets. The others find
    // it asleep, and the receiver takes over caches of which it has a microsecond's work.
    let disturbed = (worker - undisturbed) / 5_000.0;
    assert!((450.0..=560.0).contains(&disturbed), "{disturbed}");
    assert!(receiver <= 2.0 * before, "{receiver} {before}");
}

/// Nobody has more to fetch again than it has fetched: however much interrupts replace, a
/// program runs at half of its speed at least in the time that they leave it.
#[test]
fn a_program_with_cold_caches_runs_at_half_of_its_speed_at_least() {
    let elapsed_us = |pollution_ns: u64| {
        let text = "duration_ms = 3000\npath = { kind = \"batched-interrupts\" }\n\
             [[source]]\nname = \"flood\"\nto = \"nobody\"\n\
             traffic = { kind = \"constant\", rate_pps = 10000 }\n\
             [[source]]\nname = \"caller\"\nto = \"worker\"\n\
             traffic = { kind = \"ping-pong\", timeout_ms = 1000 }\n\
             [[consumer]]\nname = \"nobody\"\nrole = { kind = \"deaf\" }\n\
             [[consumer]]\nname = \"worker\"\nrole = { kind = \"worker\", compute_ms = 10 }\n";
        let costs = [("soft_pollution", pollution_ns), ("protocol_input", 20_000)];
        let outcome = common::simulate(&machine(&costs, 2000), text);
        common::figure(&outcome, "source.caller.round_trip_mean_us")
    };
    let (warm, little, much) = (elapsed_us(0), elapsed_us(8_000), elapsed_us(1_000_000));
    assert!((warm / 12_500.0 - 1.0).abs() < 0.02, "{warm}");
    // 8 of the 80 us that each interrupt leaves.
    assert!((little / warm - 80.0 / 72.0).abs() < 0.02, "{little}");
    assert!((much / warm - 2.0).abs() < 0.03, "{much}");
}

/// Who slept while packets were worked on is at most as cold as after a change of context.
#[test]
fn a_program_that_slept_pays_for_cold_caches_once() {
    let used = |pollution_ns: u64| {
        let text = "duration_ms = 1000\npath = { kind = \"batched-interrupts\" }\n\
             [[source]]\nname = \"flood\"\nto = \"nobody\"\n\
             traffic = { kind = \"constant\", rate_pps = 1000 }\n\
             [[consumer]]\nname = \"nobody\"\nrole = { kind = \"deaf\" }\n\
             [[consumer]]\nname = \"worker\"\n\
             role = { kind = \"compute\", demand = { kind = \"periodic\", period_us = 500000, busy_us = 100000 } }\n";
        let costs = [
            ("soft_pollution", pollution_ns),
            ("protocol_input", 1_000),
            ("context_switch", 50_000),
        ];
        let outcome = common::simulate(&machine(&costs, 2000), text);
        outcome.consumers[1].cpu_ns
    };
    // Twice 100 packets while it ran, and at most one change after each sleep.
    let paid = used(5_000) - used(0);
    assert!((900_000..=1_150_000).contains(&paid), "{paid}");
}

/// To look at an interface has its price for each of them, whatever makes the host look.
#[test]
fn a_poll_pays_for_each_interface_that_it_looks_at() {
    let paths = [
        r#"kind = "periodic-polling", interval_us = 1000"#,
        r#"kind = "clocked-interrupts", rate_hz = 1000"#,
        r#"kind = "freebsd-polling""#,
    ];
    for path in paths {
        for adapters in [1, 4] {
            let names = (0..adapters).map(|index| format!("{{ name = \"a{index}\" }}"));
            let list = names.collect::<Vec<_>>().join(", ");
            let text = format!(
                "duration_ms = 500\npath = {{ {path} }}\nadapter = [{list}]\n\
                 [[source]]\nname = \"none\"\nto = \"sink\"\n\
                 traffic = {{ kind = \"constant\", rate_pps = 0 }}\n\
                 [[consumer]]\nname = \"sink\"\nrole = {{ kind = \"sink\" }}\n"
            );
            let outcome = common::simulate(&machine(&[("poll_pass", 10_000)], 100), &text);
            let per_poll_us = common::figure(&outcome, "cpu.busy_pct") * 1e4
                / common::figure(&outcome, "polls_hz");
            let expected = 10.0 * f64::from(adapters);
            assert!(
                (per_poll_us - expected).abs() < 0.1,
                "{path}: {per_poll_us}"
            );
        }
    }
}

/// A process that loops at the lowest priority leaves no idle time, and what it misses is what
/// the others use without it.
#[test]
fn a_process_that_loops_misses_what_others_use() {
    let used = |meter: &str, name: &str| {
        let text = format!(
            "duration_ms = 500\npath = {{ kind = \"batched-interrupts\" }}\n\
             [[source]]\nname = \"load\"\nto = \"sink\"\n\
             traffic = {{ kind = \"constant\", rate_pps = 1000 }}\n\
             [[consumer]]\nname = \"sink\"\nrole = {{ kind = \"sink\" }}\n{meter}"
        );
        let costs = [("protocol_input", 100_000), ("receive_call", 50_000)];
        common::figure(&common::simulate(&machine(&costs, 100), &text), name)
    };
    let meter = "[[consumer]]\nname = \"meter\"\nnice = 20\nrole = { kind = \"compute\" }\n";
    let alone = used("", "cpu.busy_pct");
    assert!((alone - 15.0).abs() < 0.1, "{alone}");
    let missed = used(meter, "consumer.meter.missed_pct");
    assert!((missed - alone).abs() < 0.1, "{missed}");
    let each = used(meter, "consumer.meter.missed_per_delivered_us");
    assert!((each - 150.0).abs() < 1.0, "{each}");
    assert_eq!(used(meter, "cpu.idle_pct"), 0.0);
}

/// 4.4BSD answers each datagram for a port that nobody has: input, the error, handing it over and
/// releasing it, all in the kernel. A listener without a process would cost the input alone.
#[test]
fn a_closed_port_costs_an_icmp_error_for_each_datagram() {
    let text = "duration_ms = 1000\npath = { kind = \"batched-interrupts\" }\n\
         [[source]]\nname = \"flood\"\nto = \"closed\"\n\
         traffic = { kind = \"constant\", rate_pps = 1000 }\n\
         [[consumer]]\nname = \"closed\"\nrole = { kind = \"closed\" }\n";
    let costs = [
        ("protocol_input", 20_000),
        ("port_unreachable", 7_000),
        ("driver_transmit", 10_000),
        ("transmit_complete", 5_000),
    ];
    let outcome = common::simulate(&machine(&costs, 100), text);
    let kernel = ["cpu.interrupt_pct", "cpu.soft_interrupt_pct"];
    let kernel = kernel.map(|name| common::figure(&outcome, name));
    let per_packet_us = kernel.iter().sum::<f64>() * 1e4 / 1000.0;
    assert!((per_packet_us - 42.0).abs() < 0.1, "{per_packet_us}");
    // The errors are nobody's output.
    assert_eq!(common::figure(&outcome, "transmitted_pps"), 0.0);
}

/// LRP's threads for what no receive call does have the priority of the process that they work
/// for, or of a daemon's (sections 3.4 and 3.5): no strict one, as a process that sleeps in a call
/// gets with its wake-up. A flood of a closed port leaves others their part of the CPU.
#[test]
fn protocol_work_of_a_lazy_path_comes_before_no_process() {
    let share = |rate_pps: u32| {
        let text = format!(
            "duration_ms = 5000\npath = {{ kind = \"soft-lrp\" }}\n\
             [[source]]\nname = \"flood\"\nto = \"closed\"\n\
             traffic = {{ kind = \"constant\", rate_pps = {rate_pps} }}\n\
             [[consumer]]\nname = \"closed\"\nrole = {{ kind = \"closed\" }}\n\
             [[consumer]]\nname = \"other\"\nrole = {{ kind = \"compute\" }}\n"
        );
        let outcome = common::simulate(&machine(&[("protocol_input", 100_000)], 100), &text);
        common::figure(&outcome, "consumer.other.cpu_pct")
    };
    let alone = share(0);
    assert!((alone - 100.0).abs() < 0.1, "{alone}");
    // The flood wants twice the CPU.
    let flooded = share(20_000);
    assert!((40.0..=60.0).contains(&flooded), "{flooded}");
}
