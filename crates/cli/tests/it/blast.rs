//! `plimsoll blast` as a user meets it: its bounds, Ctrl-C, and what it refuses.
//! Needs root.

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

fn start(arguments: &[&str]) -> Child {
    assert!(
        geteuid().is_root(),
        "this test makes network namespaces and BPF programs: run it as root"
    );
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("blast")
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finish(child: Child) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = status.code().expect("it exits, also when interrupted");
    (code, text(stdout), text(stderr))
}

fn json(child: Child) -> serde_json::Value {
    let (code, stdout, stderr) = finish(child);
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

/// Waits until the generator's thread exists.
fn await_sending(child: &Child) {
    let tasks = format!("/proc/{}/task", child.id());
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        let names = fs::read_dir(&tasks).unwrap().flatten();
        if names
            .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
            .any(|name| name.trim() == "blast")
        {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("no generator thread after a minute");
}

#[test]
fn sends_as_many_as_were_asked_for() {
    let child = start(&["--rate", "20000", "--count", "500", "--json", "-"]);
    let results = &json(child)["results"];
    assert_eq!(results["offered"], 500);
    assert_eq!(results["end"], "frames");
}

#[test]
fn control_c_ends_it_and_it_still_reports() {
    let child = start(&["--rate", "1000", "--duration", "300", "--json", "-"]);
    await_sending(&child);
    thread::sleep(Duration::from_millis(200));
    kill(
        Pid::from_raw(child.id().try_into().unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    let interrupted = Instant::now();
    let results = &json(child)["results"];
    assert!(interrupted.elapsed() < Duration::from_secs(20));
    assert_eq!(results["end"], "stopped");
    assert!(results["offered"].as_u64().unwrap() > 0, "{results}");
}

#[test]
fn an_idle_generator_sends_too() {
    let child = start(&["--idle", "--rate", "1000", "--count", "50", "--json", "-"]);
    assert_eq!(json(child)["results"]["offered"], 50);
}

#[test]
fn an_interface_that_no_testbed_made_is_refused() {
    let (code, _, stderr) = finish(start(&[
        "--interface",
        "lo",
        "--source",
        "127.0.0.1",
        "--destination",
        "127.0.0.1",
    ]));
    assert_eq!(code, 1);
    assert!(stderr.contains("no testbed made it"), "{stderr}");
}

#[test]
fn bad_settings_exit_with_2() {
    for (arguments, message) in [
        (["--rate", "0"], "schedule.rate_pps = 0"),
        (["--duration", "601"], "bound.time = 601s"),
        (["--count", "0"], "bound.frames = 0"),
    ] {
        let (code, _, stderr) = finish(start(&arguments));
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
    }
}
