//! Polling within a control group that has a share of the CPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::id;

use plimsoll_guard::check::check;
use plimsoll_guard::session::Settings;
use plimsoll_kernel::control_group;
use plimsoll_kernel::pass_all::PassAll;
use plimsoll_kernel::scheduling::{Class, Priority, set_class};

use crate::common::notes::{Notes, Seen, has_xdp, is_polled_by_thread};
use crate::{run, settings, stop_after};

pub(crate) const TESTS: [(&str, fn()); 2] = [
    ("polls_in_a_control_group", polls_in_a_control_group),
    (
        "where_no_thread_may_be_real_time_nothing_is_attached",
        where_no_thread_may_be_real_time_nothing_is_attached,
    ),
];

/// Kernels with `CONFIG_RT_GROUP_SCHED`, as that of the tests, let a group have no real-time threads
/// unless it says how long these may run. The guard attached its program, was refused its class,
/// detached it, and said to run it as root. A service manager had it do so again each second.
fn where_no_thread_may_be_real_time_nothing_is_attached() {
    let group = group_with_a_share();
    let own = id().to_string();
    fs::write(group.join("cgroup.procs"), own).unwrap();
    if set_class(0, Class::Watcher).is_ok() {
        // A kernel without it.
        return;
    }
    // So it is seen what is looked at first.
    let _other = PassAll::attach("v0").unwrap();
    let error = run(settings(), &mut Notes::new(|_| Ok(()))).unwrap_err();
    let said = "the control group of this process may have no real-time threads";
    assert!(error.to_string().starts_with(said), "{error}");
    assert_eq!(error.exit_code(), 3);
    let check = check("v0").unwrap();
    let privileges = check.findings.iter().find(|one| one.id == "privileges");
    let found = &privileges.unwrap().found;
    assert!(found.starts_with(said), "{found}");
}

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
    let mut groups = groups_of(id()).into_iter();
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
