//! Settings of `v0` that are turned by a process which is then killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use plimsoll_kernel::knobs::{Knobs, Napi, Queues};
use plimsoll_kernel::scheduling::Priority;
use plimsoll_kernel::threaded::poll_in_threads;
use tempfile::TempDir;

use crate::common::in_namespace;

/// Turns the first `$PLIMSOLL_STEPS` settings of `v0`, says so, and waits to be
/// killed: a guard in miniature. As a test of its own it does nothing.
const CHILD: &str = "turned::turns_settings_until_killed";
pub(crate) const STEPS: usize = 6;
pub(crate) const NONE: [PathBuf; 0] = [];
pub(crate) const DEFER: u32 = 1000;
pub(crate) const HOLDOFF: Duration = Duration::from_micros(50);

/// A child may be told to set another one.
fn defer() -> u32 {
    std::env::var("PLIMSOLL_DEFER").map_or(DEFER, |defer| defer.parse().unwrap())
}

pub(crate) fn turn(knobs: &mut Knobs, step: usize) {
    let thread = |knobs: &mut Knobs| knobs.polling_threads().unwrap()[0].tid;
    match step {
        0 => knobs.set_holdoff(Queues::All, defer(), HOLDOFF).unwrap(),
        1 => {
            poll_in_threads(knobs, Queues::All, Priority::Nice(5), None).unwrap();
        }
        2 => {
            let tid = thread(knobs);
            knobs.set_thread_priority(tid, Priority::RealTime).unwrap();
        }
        3 => {
            let tid = thread(knobs);
            knobs.set_thread_cpus(tid, &[0]).unwrap();
        }
        4 => {
            let tid = thread(knobs);
            let regrouping = knobs.regroup_thread(tid, &groups()).unwrap();
            regrouping.carry_out().unwrap();
            let group = fs::read_to_string(format!("/proc/{tid}/cgroup")).unwrap();
            assert!(group.contains("/plimsoll-v0-"), "{group}");
        }
        _ => knobs.set_threaded(Queues::All, false).unwrap(),
    }
}

/// The topmost control group. Not of version 1's `cpu` controller, whose groups may hold no
/// real-time thread.
fn groups() -> PathBuf {
    let roots = ["unified", ""].map(|name| format!("/sys/fs/cgroup/{name}"));
    let mut roots = roots.iter().map(PathBuf::from);
    roots
        .find(|root| root.join("cgroup.procs").exists())
        .expect("this host has control groups, mounted at /sys/fs/cgroup")
}

#[test]
fn turns_settings_until_killed() {
    let (Ok(directory), Ok(steps)) = (
        std::env::var("PLIMSOLL_RECORDS"),
        std::env::var("PLIMSOLL_STEPS"),
    ) else {
        return;
    };
    let mut knobs = Knobs::open_in(Path::new(&directory), "v0").unwrap();
    for step in 0..steps.parse().unwrap() {
        turn(&mut knobs, step);
    }
    println!("\nturned");
    std::thread::sleep(Duration::from_secs(60));
}

/// The interface's settings, as far as they do not change by themselves.
pub(crate) fn settings() -> (Vec<Napi>, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
    let mut instances = knobs.instances().unwrap();
    let threads: Vec<_> = instances.iter().filter_map(|napi| napi.thread).collect();
    for napi in &mut instances {
        napi.thread = napi.thread.map(|_| 0);
    }
    let scheduling = threads.iter().map(|thread| {
        let stat = fs::read_to_string(format!("/proc/{thread}/stat")).unwrap();
        let nice = stat.split(' ').nth(18).unwrap().to_owned();
        let policy = stat.split(' ').nth(40).unwrap().to_owned();
        let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap();
        let cpus = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list"));
        let groups = fs::read_to_string(format!("/proc/{thread}/cgroup")).unwrap();
        format!("nice {nice} policy {policy} {} {groups}", cpus.unwrap())
    });
    let scheduling = scheduling.collect();
    (instances, scheduling)
}

/// `v0` with NAPI instances, as an adapter has them.
pub(crate) fn with_napi<T: Send>(test: impl FnOnce(&TempDir) -> T + Send) -> T {
    in_namespace(|| {
        let ethtool = Command::new("ethtool")
            .args(["-K", "v0", "gro", "on"])
            .status();
        assert!(ethtool.expect("ethtool is installed").success());
        test(&tempfile::tempdir().unwrap())
    })
}

pub(crate) fn killed_after(steps: usize, directory: &TempDir) {
    let mut child = start_child(steps, directory);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Returns when the child has turned `steps` settings.
pub(crate) fn start_child(steps: usize, directory: &TempDir) -> Child {
    start_child_with(steps, directory, DEFER)
}

pub(crate) fn start_child_with(steps: usize, directory: &TempDir, defer: u32) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", CHILD, "--nocapture"])
        .env("PLIMSOLL_RECORDS", directory.path())
        .env("PLIMSOLL_STEPS", steps.to_string())
        .env("PLIMSOLL_DEFER", defer.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let said = output.lines().any(|line| line.unwrap() == "turned");
    assert!(said, "the child fails at one of {steps} steps");
    child
}

pub(crate) fn files(directory: &TempDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.path()).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}
