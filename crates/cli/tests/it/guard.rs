//! `plimsoll guard` as an operator meets it: what it says when it cannot work,
//! and that an interface is free again however it ends. Needs root.

use std::io::BufRead;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plimsoll_testbed::{Config, Host, Testbed};

use crate::common::overload::settings;
use crate::common::{LIMIT, keeper_of, output, refused, start, start_with};

#[test]
fn an_interface_is_free_again_however_the_guard_ends() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL] {
        let (mut guard, _output) = start(host);
        let busy = refused(host, &[host.device()]);
        assert!(busy.contains("is guarded by process"), "{busy}");
        guard.signal(signal).unwrap();
        let status = guard
            .wait(LIMIT)
            .unwrap_or_else(|error| panic!("{signal}: {error}"));
        assert_eq!(
            status.success(),
            signal != Signal::SIGKILL,
            "{signal}: {status}"
        );
    }
    // It attaches once more, so nothing was left.
    drop(start(host));
}

#[test]
fn what_a_killed_guard_left_turned_is_restored_by_command_and_by_the_next_start() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    // Without, veth has nothing to poll once XDP is gone.
    host.command("ethtool")
        .args(["-K", host.device(), "gro", "on"])
        .output(LIMIT)
        .unwrap();
    assert_eq!(threads(host), 0);
    let kill_both = || {
        let (mut guard, _output) = start_with(host, &["--threaded", "3"]);
        assert_eq!(threads(host), 1);
        // Or it would put them back at once.
        let keeper = Pid::from_raw(keeper_of(&guard).cast_signed());
        kill(keeper, Signal::SIGKILL).unwrap();
        guard.signal(Signal::SIGKILL).unwrap();
        guard.wait(LIMIT).unwrap();
        assert_eq!(threads(host), 1);
    };
    kill_both();
    let said = output(host, &["restore", host.device()]);
    assert_eq!(said, format!("{}: restored\n", host.device()));
    assert_eq!(threads(host), 0);
    assert_eq!(output(host, &["restore"]), "nothing to restore\n");
    kill_both();
    let (_guard, _output) = start(host);
    assert_eq!(threads(host), 0);
}

#[test]
fn a_guard_that_ends_leaves_threaded_polling_as_it_was() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let (guard, _output) = start_with(host, &["--threaded", "3"]);
    assert_eq!(threads(host), 1);
    assert!(guard.stop(LIMIT).unwrap().success());
    assert_eq!(threads(host), 0);
}

#[test]
fn after_the_start_only_the_capabilities_it_needs_are_left() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let (guard, mut output) = start_with(host, &["--threaded", "3"]);
    // CAP_NET_ADMIN, CAP_IPC_LOCK and CAP_SYS_NICE by their bits (linux/capability.h).
    let settings = (1 << 12) | (1 << 23);
    assert_capabilities(guard.pid(), settings | (1 << 14));
    let keeper = keeper_of(&guard);
    await_end_of_start(keeper);
    assert_capabilities(keeper, settings);
    // It goes on counting, and can undo what it did.
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert!(line.contains("uptime_s"), "{line}");
    assert!(guard.stop(LIMIT).unwrap().success());
    assert_eq!(threads(host), 0);
}

/// Giving up new privileges is the last thing that a keeper does before it waits.
fn await_end_of_start(keeper: u32) {
    let end = std::time::Instant::now() + LIMIT;
    let status = || std::fs::read_to_string(format!("/proc/{keeper}/status")).unwrap();
    while !status().contains("NoNewPrivs:\t1") {
        assert!(std::time::Instant::now() < end, "{}", status());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Every thread of a process has these capabilities, for good.
fn assert_capabilities(pid: u32, kept: u64) {
    let (kept, none) = (format!("{kept:016x}"), format!("{:016x}", 0));
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        for (set, value) in [
            ("CapInh", &none),
            ("CapPrm", &kept),
            ("CapEff", &kept),
            ("CapBnd", &kept),
            ("CapAmb", &none),
            ("NoNewPrivs", &"1".to_owned()),
        ] {
            let line = format!("{set}:\t{value}");
            assert!(status.lines().any(|l| l == line), "{line}, but:\n{status}");
        }
    }
}

/// How many threads poll the interface.
fn threads(host: &Host) -> usize {
    settings(host).1.len()
}

#[test]
fn check_tells_whether_the_guard_can_run() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let said = output(host, &["check", host.device()]);
    assert!(said.contains("The guard can run here"), "{said}");
    let json = output(host, &["check", host.device(), "--json"]);
    let document: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(document["schema"], 1);
    assert_eq!(document["can_run"], true);
    assert_eq!(document["findings"][0]["id"], "owner");

    let (_guard, _output) = start(host);
    let said = refused(host, &["check", host.device()]);
    assert!(said.contains("cannot run on"), "{said}");
    assert!(said.contains("exit status: 3"), "{said}");
}

#[test]
fn what_cannot_work_is_refused_with_reason_and_exit_code() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    // A driver of which nobody knows whether threads may poll with it.
    let mut tap = host.command("ip");
    tap.args(["tuntap", "add", "tap0", "mode", "tap"]);
    tap.output(LIMIT).unwrap();
    for (arguments, code, reason) in [
        (&["nosuch0"][..], "1", "no interface `nosuch0`"),
        (&["tap0", "--strategy", "thread"], "3", "`any-driver`"),
        (
            &["tap0", "--threaded", "5"],
            "3",
            "not tried with the driver `tun`",
        ),
        (&["lo"], "3", "has no native XDP"),
        (
            &[host.device(), "--low-watermark", "90"],
            "2",
            "low-watermark = 90: must be below high-watermark, which is 70",
        ),
        (
            &[host.device(), "--threaded", "20"],
            "2",
            "must be a nice level from -20 to 19, or rt",
        ),
        (&[], "2", "<IFACE>"),
    ] {
        let said = refused(host, arguments);
        assert!(said.contains(reason), "{arguments:?}: {said}");
        assert!(
            said.contains(&format!("exit status: {code}")),
            "{arguments:?}: {said}"
        );
    }
}
