//! What each testbed owns, written down where a later run finds it.
//!
//! `/run/plimsoll/ID.testbed` names the namespaces, control groups and directories of one
//! testbed and the processes it started, one per line, appended before the thing is made (but
//! for processes and directories, whose names are known then). The
//! file is locked (`flock`) for as long as its testbed lives: the kernel drops
//! the lock with the process, however that ends. A file without a lock holder
//! is therefore the remains of a killed run, and [`sweep`] removes what it
//! names and nothing else.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use plimsoll_kernel::namespace::delete;
use plimsoll_kernel::process::Process;

use crate::control_group::HIERARCHIES;
use crate::{Error, namespace};

/// Where the files are, and the mount point that namespaces stage sysfs on.
pub(crate) const RUN_DIR: &str = "/run/plimsoll";

/// A process that was killed is gone by then, and so is what it leaves behind.
const PATIENCE: Duration = Duration::from_secs(2);

/// One testbed's entry. Tearing it down, at the latest by dropping it, ends the processes and
/// removes the namespaces, control groups and directories it names.
#[derive(Debug)]
pub(crate) struct Registration {
    id: String,
    path: PathBuf,
    file: Mutex<File>,
    torn_down: AtomicBool,
}

impl Registration {
    /// Opens and locks the entry of a new testbed.
    pub(crate) fn create() -> Result<Self, Error> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        fs::create_dir_all(RUN_DIR).map_err(Error::io(format!("make {RUN_DIR}")))?;
        loop {
            let id = format!("{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = Path::new(RUN_DIR).join(format!("{id}.testbed"));
            let file = match OpenOptions::new().append(true).create_new(true).open(&path) {
                Ok(file) => file,
                // The remains of an earlier process with our id, not yet swept.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(Error::io(format!("create {}", path.display()))(error)),
            };
            file.lock()
                .map_err(Error::io(format!("lock {}", path.display())))?;
            // A sweep may have come between creating and locking.
            if is_current(&file, &path) {
                return Ok(Self {
                    id,
                    path,
                    file: Mutex::new(file),
                    torn_down: AtomicBool::new(false),
                });
            }
        }
    }

    /// What makes this testbed's names unique on this machine.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Writes down a namespace that is about to be made.
    pub(crate) fn add_namespace(&self, name: &str) -> Result<(), Error> {
        self.append(&Entry::Namespace(name.to_owned()))
    }

    /// Writes down a control group that is about to be made.
    pub(crate) fn add_control_group(&self, path: &Path) -> Result<(), Error> {
        self.append(&Entry::ControlGroup(path.to_owned()))
    }

    /// Writes down a directory that was made.
    pub(crate) fn add_directory(&self, path: &Path) -> Result<(), Error> {
        self.append(&Entry::Directory(path.to_owned()))
    }

    /// Writes down a process that was started.
    pub(crate) fn add_process(&self, pid: u32) -> Result<(), Error> {
        match Process::of(pid) {
            Ok(process) => self.append(&Entry::Process(process)),
            // It has ended already; its parent reaps it.
            Err(_) => Ok(()),
        }
    }

    /// Ends the processes and removes all else, once. A failure
    /// leaves the entry for the next sweep.
    pub(crate) fn tear_down(&self) {
        if self.torn_down.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = remove(&self.path, &self.id) {
            // In a drop: unlike `eprintln!`, it does not panic when nobody reads.
            let _ = writeln!(io::stderr(), "plimsoll: left behind: {error}");
        }
    }

    fn append(&self, entry: &Entry) -> Result<(), Error> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(entry.to_line().as_bytes())
            .map_err(Error::io(format!("write {}", self.path.display())))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.tear_down();
    }
}

/// Removes what killed runs left behind: all that is named by
/// every entry that nobody holds the lock of.
pub(crate) fn sweep() -> Result<(), Error> {
    let entries = match fs::read_dir(RUN_DIR) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io(format!("list {RUN_DIR}"))(error)),
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(id) = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_suffix(".testbed"))
        else {
            continue;
        };
        let Ok(file) = File::open(&path) else {
            continue; // Somebody else swept it.
        };
        match file.try_lock() {
            Ok(()) if is_current(&file, &path) => remove(&path, id)?,
            Ok(()) | Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => {
                return Err(Error::io(format!("lock {}", path.display()))(error));
            }
        }
    }
    Ok(())
}

/// Ends and removes everything the entry at `path` names, then the entry. The
/// caller holds its lock.
fn remove(path: &Path, id: &str) -> Result<(), Error> {
    let mut text = String::new();
    File::open(path)
        .and_then(|mut file| file.read_to_string(&mut text))
        .map_err(Error::io(format!("read {}", path.display())))?;
    let entries: Vec<Entry> = text.lines().filter_map(Entry::from_line).collect();
    for entry in &entries {
        if let Entry::Process(process) = *entry {
            end(process);
        }
    }
    for entry in &entries {
        match entry {
            // The prefix guards against a file that is not ours.
            Entry::Namespace(name) if name.starts_with(&namespace::prefix(id)) => {
                delete(name)?;
            }
            _ => {}
        }
    }
    // Those within others were made later.
    for entry in entries.iter().rev() {
        match entry {
            Entry::ControlGroup(group) if is_of(group, id) => remove_group(group).map_err(
                Error::io(format!("remove the control group {}", group.display())),
            )?,
            Entry::Directory(directory) if is_named_of(directory, id) => {
                remove_directory(directory)
                    .map_err(Error::io(format!("remove {}", directory.display())))?;
            }
            _ => {}
        }
    }
    fs::remove_file(path).map_err(Error::io(format!("remove {}", path.display())))
}

/// Whether a control group is one of this testbed.
fn is_of(group: &Path, id: &str) -> bool {
    group.starts_with(HIERARCHIES) && is_named_of(group, id)
}

fn is_named_of(path: &Path, id: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(&namespace::prefix(id)))
}

/// Removes a directory, if it is there, with all that is in it.
fn remove_directory(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes a control group, if it is there, and those that a guard has made within it for
/// the threads of an interface, which may end a moment after their namespace.
fn remove_group(group: &Path) -> io::Result<()> {
    let patience = Instant::now() + PATIENCE;
    loop {
        for within in fs::read_dir(group).into_iter().flatten().flatten() {
            if within.file_type()?.is_dir() {
                remove_group(&within.path())?;
            }
        }
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < patience =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            removed => return removed,
        }
    }
}

/// Kills the process and waits until it is gone, unless the id has passed on
/// to another process. A zombie counts as gone: its parent has to reap it.
fn end(process: Process) {
    let patience = Instant::now() + PATIENCE;
    let id = Pid::from_raw(i32::try_from(process.pid).unwrap_or(i32::MAX));
    while process.is_alive() && Instant::now() < patience {
        if kill(id, Signal::SIGKILL) == Err(Errno::ESRCH) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_current(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[derive(Debug, PartialEq)]
enum Entry {
    Namespace(String),
    ControlGroup(PathBuf),
    Directory(PathBuf),
    Process(Process),
}

impl Entry {
    fn to_line(&self) -> String {
        match self {
            Self::Namespace(name) => format!("namespace {name}\n"),
            Self::ControlGroup(path) => format!("cgroup {}\n", path.display()),
            Self::Directory(path) => format!("directory {}\n", path.display()),
            Self::Process(process) => format!("process {process}\n"),
        }
    }

    /// `None` for a line that was cut short.
    fn from_line(line: &str) -> Option<Self> {
        match line.trim_end().split_once(' ')? {
            ("namespace", name) => Some(Self::Namespace(name.to_owned())),
            ("cgroup", path) => Some(Self::ControlGroup(path.into())),
            ("directory", path) => Some(Self::Directory(path.into())),
            ("process", process) => Process::parse(process).map(Self::Process),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_writing_and_reading() {
        for entry in [
            Entry::Namespace("plimsoll-12-0-test".to_owned()),
            Entry::ControlGroup("/sys/fs/cgroup/cpu/plimsoll-12-0-worker".into()),
            Entry::Directory("/tmp/plimsoll-12-0-nginx-x".into()),
            Entry::Process(Process::current().unwrap()),
        ] {
            assert_eq!(Entry::from_line(&entry.to_line()), Some(entry));
        }
        assert_eq!(Entry::from_line("process 12"), None);
        assert_eq!(Entry::from_line(""), None);
    }

    #[test]
    fn only_a_testbeds_own_control_groups_are_removed() {
        for (group, own) in [
            ("/sys/fs/cgroup/plimsoll-12-0-both", true),
            (
                "/sys/fs/cgroup/cpu/plimsoll-12-0-both/plimsoll-12-0-worker",
                true,
            ),
            ("/sys/fs/cgroup/plimsoll-12-1-both", false),
            ("/sys/fs/cgroup/plimsoll-12-0-both/..", false),
            ("/sys/fs/cgroup/plimsoll-1", false),
            ("/tmp/plimsoll-12-0-both", false),
        ] {
            assert_eq!(is_of(Path::new(group), "12-0"), own, "{group}");
        }
    }
}
