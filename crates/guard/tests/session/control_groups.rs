//! Polling within a control group that has a share of the CPU.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_guard::session::Settings;
use plimsoll_kernel::control_group;
use plimsoll_kernel::scheduling::Priority;

use crate::common::notes::{Notes, Seen, has_xdp, is_polled_by_thread};
use crate::{run, settings, stop_after};

pub(crate) const TESTS: [(&str, fn()); 1] =
    [("polls_in_a_control_group", polls_in_a_control_group)];

/// Polling is paid for by the group's share while the session lasts.
fn polls_in_a_control_group() {
    let group = group_with_a_share();
    let polled_in = |directory: &Path| Settings {
        threaded: Some(Priority::Nice(0)),
        poll_control_group: Some(directory.to_owned()),
        ..settings()
    };
    let within = || {
        let groups = fs::read_dir(&group)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let groups = groups.filter(|path| path.is_dir());
        let processes = groups.map(|group| fs::read_to_string(group.join("cgroup.procs")).unwrap());
        processes.collect::<Vec<_>>()
    };
    let plain = group.join("cgroup.procs");
    let error = run(polled_in(&plain), &mut Notes::new(stop_after(1))).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("no control group with a share"), "{said}");
    assert_eq!(error.exit_code(), 3);
    assert!(!has_xdp() && !is_polled_by_thread());

    let mut seen = Vec::new();
    let mut notes = Notes::new(|told: Seen<'_>| {
        seen = within();
        told.requests.stop();
        Ok(())
    });
    run(polled_in(&group), &mut notes).unwrap();
    let [threads] = &seen[..] else {
        panic!("one group of its own: {seen:?}");
    };
    assert_eq!(threads.lines().count(), 1, "one thread: {threads}");
    let empty: [String; 0] = [];
    assert_eq!(within(), empty);
}

/// Such a group. A session gives up the right to remove it: `run_all` does.
pub(crate) fn group_with_a_share() -> PathBuf {
    let mut groups = groups_of(std::process::id()).into_iter();
    let group =
        groups.find(|group| fs::create_dir_all(group).is_ok() && control_group::shares_cpu(group));
    group.expect("a control group with a share of the CPU can be made in /sys/fs/cgroup")
}

/// Where a group below the topmost may be made that shares the CPU, in either version of
/// control groups.
pub(crate) fn groups_of(test: u32) -> [PathBuf; 3] {
    ["", "cpu", "cpu,cpuacct"].map(|root| {
        let root = Path::new("/sys/fs/cgroup").join(root);
        root.join(format!("plimsoll-test-{test}"))
    })
}
