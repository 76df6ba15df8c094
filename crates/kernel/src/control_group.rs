//! Control groups of polling threads: whose share of the CPU polling is part of.
//!
//! A kernel thread begins in the root group, beside all groups. In a group below
//! that of some servers it is paid for by their share (cgroups(7), and the kernel's
//! `Documentation/admin-guide/cgroup-v2.rst`, "CPU"): what a receiver's packets cost is
//! then the receiver's (Druschel & Banga 1996, section 3.2).
//!
//! The thread gets a group of its own there: a group that has groups with a controller below
//! it may hold no process of its own, and a service manager waits until a service's own
//! group is empty.
//!
//! Both versions of control groups: the unified hierarchy, and that of version 1 which has
//! the `cpu` controller.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// The file of a group that lists its processes, and takes them.
const PROCESSES: &str = "cgroup.procs";

/// A thread that ends leaves its group a moment later.
const LEAVE_WAIT: Duration = Duration::from_millis(1);
const LEAVE_TRIES: u32 = 100;
/// A kernel thread that was just made takes another group only once it has run.
const RUN_WAIT: Duration = Duration::from_millis(5);
const RUN_TRIES: u32 = 100;

/// Whether a directory is a control group below the topmost that shares the CPU.
#[must_use]
pub fn shares_cpu(directory: &Path) -> bool {
    let has = |name| directory.join(name).exists();
    let is_below = root_of(directory) != directory;
    is_below && has(PROCESSES) && (has("cpu.weight") || has("cpu.shares"))
}

/// The group, or one above it, that may use the CPU for a part of the time only. Polling that
/// stops with its group would stop packets for everybody.
#[must_use]
pub fn limited(directory: &Path) -> Option<&Path> {
    let limits = |group: &Path| {
        let read = |name| fs::read_to_string(group.join(name)).unwrap_or_default();
        let (unified, first) = (read("cpu.max"), read("cpu.cfs_quota_us"));
        !(unified.is_empty() || unified.starts_with("max"))
            || !(first.is_empty() || first.starts_with('-'))
    };
    let mut groups = directory.ancestors();
    groups.find(|group| limits(group))
}

/// The group for the polling threads of an interface of a network namespace, within
/// `directory`. Another namespace's interface may have the same name.
pub(crate) fn within(directory: &Path, interface: &str, namespace: u64) -> PathBuf {
    directory.join(format!("plimsoll-{interface}-{namespace}"))
}

/// Makes a group; one that is there is as good.
pub(crate) fn make(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Moves a thread, which is a process of its own as kernel threads are.
pub(crate) fn put(thread: i32, group: &Path) -> io::Result<()> {
    let put = || fs::write(group.join(PROCESSES), thread.to_string());
    for _ in 0..RUN_TRIES {
        match put() {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => sleep(RUN_WAIT),
            is_there => return is_there,
        }
    }
    put()
}

/// Moves a thread from the group that was `made` for it to the one it was in `before`, and
/// removes the group if nobody is left. A thread that has ended, or is elsewhere, is left.
pub(crate) fn put_back(thread: Option<i32>, made: &Path, before: &Path) -> io::Result<()> {
    let there = thread.filter(|thread| of_thread(*thread, made).is_ok_and(|group| group == made));
    match there.map_or(Ok(()), |thread| put(thread, before)) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
        moved => moved?,
    }
    remove(made)
}

/// The group of a thread in the hierarchy that `directory` is of.
pub(crate) fn of_thread(thread: i32, directory: &Path) -> io::Result<PathBuf> {
    let root = root_of(directory);
    let unified = root.join("cgroup.controllers").exists();
    let text = fs::read_to_string(format!("/proc/{thread}/cgroup"))?;
    let path = path_of(&text, unified).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    Ok(root.join(path.trim_start_matches('/')))
}

/// Removes a group that nobody is in. One that is gone, or that somebody is in, is left.
pub(crate) fn remove(group: &Path) -> io::Result<()> {
    for _ in 0..LEAVE_TRIES {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            removed => return removed,
        }
        let processes = fs::read_to_string(group.join(PROCESSES)).unwrap_or_default();
        if !processes.is_empty() {
            return Ok(());
        }
        sleep(LEAVE_WAIT);
    }
    fs::remove_dir(group)
}

/// The topmost directory that is a group, where the hierarchy is mounted.
fn root_of(directory: &Path) -> PathBuf {
    let groups = directory.ancestors();
    let groups = groups.take_while(|above| above.join(PROCESSES).exists());
    groups.last().unwrap_or(directory).to_owned()
}

/// The path in `/proc/PID/cgroup`, whose lines are `hierarchy:controllers:path`.
fn path_of(text: &str, unified: bool) -> Option<&str> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match unified {
            true => hierarchy == "0",
            false => controllers.split(',').any(|name| name == "cpu"),
        };
        is_it.then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_read_from_either_version_s_line() {
        let both = "12:cpuset:/a\n4:cpu,cpuacct:/b:c\n0::/system.slice\n";
        assert_eq!(path_of(both, true), Some("/system.slice"));
        assert_eq!(path_of(both, false), Some("/b:c"));
        assert_eq!(path_of("4:cpuacct:/b\n", false), None);
        assert_eq!(path_of("nonsense\n0:\n", true), None);
    }

    #[test]
    fn the_root_is_the_topmost_group() {
        let directory = tempfile::tempdir().unwrap();
        let group = directory.path().join("a/b");
        fs::create_dir_all(&group).unwrap();
        for part in ["a", "a/b"] {
            fs::write(directory.path().join(part).join(PROCESSES), "").unwrap();
        }
        assert_eq!(root_of(&group), directory.path().join("a"));
        assert!(!shares_cpu(&group));
        for part in ["a", "a/b"] {
            fs::write(directory.path().join(part).join("cpu.weight"), "100").unwrap();
        }
        assert!(shares_cpu(&group));
        assert!(!shares_cpu(&directory.path().join("a")), "the topmost");
    }

    #[test]
    fn a_limit_of_any_group_above_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let above = directory.path().join("a");
        let group = above.join("b");
        fs::create_dir_all(&group).unwrap();
        for (name, none, some) in [
            ("cpu.max", "max 100000\n", "50000 100000\n"),
            ("cpu.cfs_quota_us", "-1\n", "50000\n"),
        ] {
            for limits in [&group, &above] {
                fs::write(limits.join(name), none).unwrap();
                assert_eq!(limited(&group), None);
                fs::write(limits.join(name), some).unwrap();
                assert_eq!(limited(&group), Some(limits.as_path()));
                fs::remove_file(limits.join(name)).unwrap();
            }
        }
    }

    #[test]
    fn a_group_that_somebody_is_in_stays_and_one_that_is_gone_is_no_error() {
        let directory = tempfile::tempdir().unwrap();
        let group = within(directory.path(), "v0", 4_026_531_840);
        remove(&group).unwrap();
        make(&group).unwrap();
        make(&group).unwrap();
        remove(&group).unwrap();
        assert!(!group.exists());
    }
}
