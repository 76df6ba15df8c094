//! The governor on a real interface: a flood makes it turn the host's settings,
//! the flood's end makes it turn them back, and however the guard ends nothing
//! stays turned. Needs root.
//!
//! Beside each flood a process computes, so that the host's CPU has no time to
//! spare whatever else the machine does.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sched::sched_getaffinity;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plimsoll_testbed::{Config, Host, Process, Testbed};

use crate::common::overload::{
    Settings, await_mode, await_report, busy_server, class_of, flood, flooded, receive_on_test_cpu,
    settings,
};
use crate::common::{LIMIT, keeper_of, output, start_logging, start_with};

const PORT: u16 = 7000;
const RATE_PPS: u64 = 600_000;
/// The governor's deferral: interrupts stay off while overload lasts.
const DEFER_FOREVER: u32 = plimsoll_kernel::knobs::DEFER_MARK;
const FIFO: u32 = 1;
const IDLE: u32 = 5;
const NONE: [i32; 0] = [];
/// Polling threads that a flood makes use up their fifth of a CPU.
const LIMITED: [&str; 6] = [
    "--interval-ms",
    "100",
    "--strategy",
    "thread",
    "--cpu-limit",
    "20",
];

fn testbed() -> Testbed {
    let testbed = Testbed::create(Config::default()).unwrap();
    // With GRO, veth keeps its instances without XDP, as adapters do.
    receive_on_test_cpu(&testbed);
    testbed
}

/// The one polling thread.
fn thread(host: &Host) -> i32 {
    let threads = settings(host).1;
    assert_eq!(threads.len(), 1, "one queue, one thread");
    threads[0]
}

/// Holdoffs of all instances are the governor's.
fn assert_held_off(turned: &Settings) {
    for napi in &turned.instances {
        assert_eq!(napi.defer_hard_irqs, Some(DEFER_FOREVER));
        let holdoff_ns = napi.gro_flush_timeout.unwrap();
        // As `GovernorConfig` has it, unless a CPU limit is kept by it.
        assert!((10_000..=10_000_000).contains(&holdoff_ns), "{holdoff_ns}");
    }
}

/// Shows MR-80.
#[test]
fn threads_poll_while_a_flood_lasts_and_all_is_as_before_after_it() {
    let testbed = testbed();
    let host = testbed.test();
    let (original, _) = settings(host);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let arguments = ["--interval-ms", "100", "--strategy", "thread"];
    let (guard, mut reports) = start_logging(host, &arguments, File::create(&log).unwrap().into());
    receive_on_test_cpu(&testbed);
    let (before, threads) = settings(host);
    assert_eq!(threads, NONE, "light load touches nothing");
    let _server = busy_server(host, PORT);
    let _computing = host.computing().spawn().unwrap();

    flooded(&testbed, &flood(&testbed, PORT..=PORT, RATE_PPS), || {
        let report = await_mode(&mut reports, "overload");
        assert_eq!(report["governor"]["switches"], 1);
        assert!(report["governor"]["holdoff_us"].as_f64().unwrap() >= 10.0);
        let (turned, threads) = settings(host);
        assert_eq!(turned.instances[0].threaded, Some(1));
        assert_eq!(threads.len(), 1);
        assert!(matches!(class_of(threads[0]), Some(FIFO | IDLE)));
        let allowed = sched_getaffinity(Pid::from_raw(threads[0])).unwrap();
        assert!(allowed.is_set(host.cpu()).unwrap(), "where it was received");
        assert!(!allowed.is_set(testbed.load().cpu()).unwrap());
        assert_held_off(&turned);
        let status = output(host, &["status", host.device(), "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        assert_eq!(status["governor"]["mode"], "overload");
    });

    let report = await_mode(&mut reports, "interrupts");
    assert_eq!(report["governor"]["switches"], 2);
    assert_eq!(report["governor"]["reason"], "calm");
    assert_eq!(settings(host), (before, Vec::new()));
    let keeper = keeper_of(&guard);
    assert!(guard.stop(LIMIT).unwrap().success());
    await_end(keeper);
    assert_eq!(settings(host), (original, Vec::new()));
    let log = fs::read_to_string(log).unwrap();
    let modes: Vec<_> = log
        .lines()
        .filter(|line| line.contains("event=mode"))
        .collect();
    assert_eq!(modes.len(), 2, "{log}");
    assert!(modes[0].contains("interface=test0 event=mode mode=overload reason="));
    assert!(modes[1].ends_with("mode=interrupts reason=calm"), "{log}");
}

/// Shows MH-29.
#[test]
fn holdoff_alone_is_turned_where_threads_are_not_wanted() {
    let testbed = testbed();
    let host = testbed.test();
    let arguments = ["--interval-ms", "100", "--strategy", "holdoff"];
    let (_guard, mut reports) = start_with(host, &arguments);
    receive_on_test_cpu(&testbed);
    let before = settings(host);
    let _server = busy_server(host, PORT);
    let _computing = host.computing().spawn().unwrap();
    flooded(&testbed, &flood(&testbed, PORT..=PORT, RATE_PPS), || {
        await_mode(&mut reports, "overload");
        let (turned, threads) = settings(host);
        assert_eq!(threads, NONE);
        assert_eq!(turned.device, before.0.device);
        assert_held_off(&turned);
    });
    await_mode(&mut reports, "interrupts");
    assert_eq!(settings(host), before);
}

#[test]
fn with_the_governor_off_early_discard_goes_on_and_nothing_is_touched() {
    let testbed = testbed();
    let host = testbed.test();
    let arguments = ["--interval-ms", "100", "--strategy", "off"];
    let (_guard, mut reports) = start_with(host, &arguments);
    receive_on_test_cpu(&testbed);
    let before = settings(host);
    let _server = busy_server(host, PORT);
    let _computing = host.computing().spawn().unwrap();
    let discarded = |report: &serde_json::Value| {
        let count = &report["totals"]["udp_socket"]["source_share"];
        count.as_u64().unwrap()
    };
    flooded(&testbed, &flood(&testbed, PORT..=PORT, RATE_PPS), || {
        let mut reports_with_discards = 0;
        let mut last = 0;
        await_report(&mut reports, "that it discards", |report| {
            assert_eq!(report["governor"]["mode"], "interrupts");
            assert_eq!(report["governor"]["switches"], 0);
            assert_eq!(settings(host), before);
            reports_with_discards += usize::from(discarded(report) > last);
            last = discarded(report);
            reports_with_discards == 10
        });
    });
}

/// The thread's classes while it is looked at, until both were seen.
fn sees_both_classes(thread: i32) -> bool {
    let end = Instant::now() + LIMIT;
    let (mut demoted, mut promoted) = (false, false);
    while !(demoted && promoted) && Instant::now() < end {
        match class_of(thread) {
            Some(IDLE) => demoted = true,
            Some(FIFO) => promoted = true,
            class => panic!("a class that nobody gave: {class:?}"),
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    demoted && promoted
}

/// CPU time of a thread, in nanoseconds (`/proc/PID/schedstat`).
fn cpu_time(thread: i32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn a_polling_thread_is_kept_to_the_cpu_limit() {
    let testbed = testbed();
    let host = testbed.test();
    let (_guard, mut reports) = start_with(host, &LIMITED);
    receive_on_test_cpu(&testbed);
    let before = settings(host);
    let _server = busy_server(host, PORT);
    // With a share of the CPU that floods on other CPUs do not take from it: in their session
    // it was so small that a `SCHED_IDLE` thread had a third of the CPU.
    let _computing = host.computing().own_session().spawn().unwrap();
    // Much more than a fifth of a CPU can poll.
    flooded(&testbed, &flood(&testbed, PORT..=PORT, 3_000_000), || {
        await_mode(&mut reports, "overload");
        let thread = thread(host);
        assert!(sees_both_classes(thread));
        let share = || {
            let (used, start) = (cpu_time(thread), Instant::now());
            std::thread::sleep(Duration::from_secs(2));
            (cpu_time(thread) - used).as_secs_f64() / start.elapsed().as_secs_f64()
        };
        // Without a limit it takes all there is, each time; 20 % would be exact. Other
        // tests on this CPU blur a share now and then.
        // (Until one of nine runs saw 0.41, a single share had to be below 0.4.)
        let mut shares = Vec::new();
        while shares.iter().all(|share| *share >= 0.4) {
            assert!(shares.len() < 3, "{shares:?}");
            shares.push(share());
        }
    });
    await_mode(&mut reports, "interrupts");
    assert_eq!(settings(host), before);
}

/// Has `work` done by a flood while a guard, which it gets, demotes and promotes
/// its polling thread.
fn with_demoting_guard(testbed: &Testbed, work: impl FnOnce(Process)) {
    let host = testbed.test();
    let (guard, mut reports) = start_with(host, &LIMITED);
    receive_on_test_cpu(testbed);
    flooded(testbed, &flood(testbed, PORT..=PORT, 1_000_000), || {
        await_mode(&mut reports, "overload");
        assert!(sees_both_classes(thread(host)));
        work(guard);
    });
}

#[test]
fn a_guard_killed_in_overload_leaves_nothing_turned() {
    let testbed = testbed();
    let host = testbed.test();
    let before = settings(host);
    let server = busy_server(host, PORT);
    let _computing = host.computing().spawn().unwrap();
    for later_us in [0, 700, 1300] {
        with_demoting_guard(&testbed, |mut guard| {
            let keeper = keeper_of(&guard);
            let files = files_of(guard.pid());
            assert!(files.iter().all(|file| file.exists()), "{files:?}");
            // Demoted at some of these moments, promoted at others.
            std::thread::sleep(Duration::from_micros(later_us));
            guard.signal(Signal::SIGKILL).unwrap();
            guard.wait(LIMIT).unwrap();
            await_end(keeper);
            assert_eq!(settings(host), before);
            assert_eq!(output(host, &["restore"]), "nothing to restore\n");
            assert!(!files.iter().any(|file| file.exists()), "{files:?}");
        });
    }
    // It receives on.
    let received = server.counts().received;
    flooded(&testbed, &flood(&testbed, PORT..=PORT, 1000), || {
        let end = Instant::now() + LIMIT;
        while server.counts().received < received + 100 {
            assert!(Instant::now() < end, "nothing arrives any more");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

/// A calm host would have waited for each packet for as long as the guard hung. Whoever
/// is stopped in a flood may go on in none.
#[test]
fn a_guard_that_hangs_in_overload_leaves_nothing_turned_and_goes_on() {
    let testbed = testbed();
    let host = testbed.test();
    let _server = busy_server(host, PORT);
    let _computing = host.computing().spawn().unwrap();
    for strategy in ["holdoff", "thread"] {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let arguments = ["--interval-ms", "100", "--strategy", strategy];
        let file = File::create(&log).unwrap();
        let (guard, mut reports) = start_logging(host, &arguments, file.into());
        receive_on_test_cpu(&testbed);
        let before = settings(host);
        flooded(&testbed, &flood(&testbed, PORT..=PORT, RATE_PPS), || {
            await_mode(&mut reports, "overload");
            guard.signal(Signal::SIGSTOP).unwrap();
            assert_ne!(settings(host), before);
            await_settings(host, |now| now == &before);
            guard.signal(Signal::SIGCONT).unwrap();
            await_settings(host, |now| now != &before);
        });
        await_settings(host, |now| now == &before);
        drop(reports);
        drop(guard);
        let log = fs::read_to_string(log).unwrap();
        for event in ["event=hangs", "event=goes_on"] {
            assert_eq!(log.matches(event).count(), 1, "{event}: {log}");
        }
    }
}

fn await_settings(host: &Host, is_so: impl Fn(&(Settings, Vec<i32>)) -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so(&settings(host)) {
        assert!(Instant::now() < end, "{:?}", settings(host));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The lock, the record and the socket of a guard that has turned something.
fn files_of(guard: u32) -> [PathBuf; 3] {
    let mut entries = fs::read_dir(plimsoll_kernel::knobs::DIRECTORY).unwrap();
    let lock = entries.find_map(|entry| {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap_or_default();
        let is_its = text.starts_with(&format!("{guard} "));
        (is_its && path.extension()? == "lock").then_some(path)
    });
    let lock = lock.expect("a guard holds a lock");
    [
        lock.clone(),
        lock.with_extension("json"),
        lock.with_extension("sock"),
    ]
}

fn await_end(pid: u32) {
    let end = Instant::now() + LIMIT;
    let runs = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
        !state.is_empty() && !state.starts_with(['Z', 'X'])
    };
    while runs() {
        assert!(Instant::now() < end, "process {pid} goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_guard_killed_with_its_keeper_is_put_right_by_command_and_by_the_next_start() {
    let testbed = testbed();
    let host = testbed.test();
    let before = settings(host);
    let _server = busy_server(host, PORT);
    let _computing = host.computing().spawn().unwrap();
    let kill_both = |mut guard: Process| {
        let keeper = Pid::from_raw(keeper_of(&guard).cast_signed());
        kill(keeper, Signal::SIGKILL).unwrap();
        guard.signal(Signal::SIGKILL).unwrap();
        guard.wait(LIMIT).unwrap();
        assert_ne!(settings(host), before, "nobody was left to restore");
    };
    with_demoting_guard(&testbed, |guard| {
        kill_both(guard);
        let said = output(host, &["restore", host.device()]);
        assert_eq!(said, format!("{}: restored\n", host.device()));
        assert_eq!(settings(host), before);
    });
    with_demoting_guard(&testbed, kill_both);
    let (guard, _reports) = start_with(host, &[]);
    assert!(guard.stop(LIMIT).unwrap().success());
    assert_eq!(settings(host), before);
}
