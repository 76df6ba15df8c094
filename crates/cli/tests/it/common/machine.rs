//! A machine of its own over this one, for what changes a whole system: packages,
//! services, pinned BPF objects.
//!
//! Its root is an overlay over `/`: all that is installed here is there, and what
//! is written goes into memory with the machine. It has the testbed's network
//! namespace, and its own processes, control groups, `/run` and `/sys/fs/bpf`.
//! With systemd as its process 1 it is a Debian that has booted, with udev.
//! Nothing of this machine is changed; needs root, an overlay file system and
//! control groups of version 2, and says which of these is missing.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_testbed::{Host, Process};
use tempfile::TempDir;

use super::LIMIT;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/common/machine.sh");
const PATH: &str = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";

/// Becomes a systemd that starts its journal and udev, and nothing that sets up the
/// kernel, mounts disks or starts servers. It listens to udev only if that seems to
/// run at its start, as it does on machines where an initial RAM disk started it.
const BOOT: &str = "\
    cd /lib/systemd
    units=/run/systemd/system generators=/run/systemd/system-generators
    mkdir -p $units $generators
    for unit in system/sysinit.target.wants/* /etc/systemd/system/sysinit.target.wants/*; do
        case ${unit##*/} in
            systemd-journald.service | systemd-udevd.service) ;;
            *) ln -sf /dev/null $units/${unit##*/} ;;
        esac
    done
    for generator in system-generators/*; do ln -s /dev/null $generators/${generator##*/}; done
    mkdir /run/udev && touch /run/udev/control
    exec ./systemd --unit=sysinit.target";

/// Dropping it ends everything in it.
pub(crate) struct Machine<'a> {
    host: &'a Host,
    /// `unshare`, which takes process 1 along when it ends; taken when dropped.
    parent: Option<Process>,
    /// Process 1, by its id out here.
    init: u32,
    /// Where its layers are mounted, in its namespace only.
    layers: TempDir,
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        let Some(parent) = self.parent.take() else {
            return;
        };
        let id = parent.pid().to_string();
        drop(parent);
        // Only groups without processes would be left.
        let _ = Command::new("unshare")
            .args(["--mount", SCRIPT, "forget", &id])
            .arg(self.layers.path())
            .status();
    }
}

impl<'a> Machine<'a> {
    /// A machine where nothing runs. It sees the directory as `/tmp/files`.
    pub(crate) fn start(host: &'a Host, files: &Path) -> Self {
        Self::start_with(host, files, &["sleep", "infinity"])
    }

    /// A machine that systemd has booted so far that services can be started.
    /// It runs only its own journal and udev.
    pub(crate) fn boot(host: &'a Host, files: &Path) -> Self {
        for program in ["/lib/systemd/systemd", "/lib/systemd/systemd-udevd"] {
            let is_there = Path::new(program).exists();
            assert!(is_there, "{program} is installed: scripts/setup");
        }
        let machine = Self::start_with(host, files, &["sh", "-c", BOOT]);
        machine.wait("systemd has booted", || {
            machine
                .try_run("systemctl is-active -q sysinit.target")
                .is_ok()
        });
        // As at every start of a machine, for the one device that is its own.
        machine.run(&format!(
            "udevadm trigger --action=add /sys/class/net/{}",
            host.device()
        ));
        machine
    }

    fn start_with(host: &'a Host, files: &Path, init: &[&str]) -> Self {
        let layers = tempfile::tempdir().unwrap();
        let mut command = host.command("unshare");
        command
            .args(["--mount", SCRIPT, "mounts"])
            .args([layers.path(), files])
            .args(init);
        // systemd does not expect to be bound to a CPU, and no test measures here.
        command
            .cpu(None)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut parent = command.spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(parent.take_stdout().unwrap());
        output.read_line(&mut line).unwrap();
        if line != "ready\n" {
            let mut said = String::new();
            let mut errors = parent.take_stderr().unwrap();
            errors.read_to_string(&mut said).unwrap();
            panic!(
                "no machine can be made over this one. It takes root with all namespaces, \
                 overlayfs over /, cgroup2, sysfs and a bpf file system: {said}"
            );
        }
        let children = format!("/proc/{0}/task/{0}/children", parent.pid());
        let children = fs::read_to_string(children).unwrap();
        Self {
            host,
            init: children.trim().parse().expect("one child, process 1"),
            parent: Some(parent),
            layers,
        }
    }

    /// Runs a shell command in it, to its end.
    pub(crate) fn output(&self, command: &str) -> Output {
        let init = self.init.to_string();
        let run = || {
            Command::new("nsenter")
                .args(["--target", &init, "--all", "--root", "--wd"])
                .args(["env", "-i", PATH, "LC_ALL=C", "sh", "-c", command])
                .stdin(Stdio::null())
                .output()
                .unwrap()
        };
        self.host.run(run).unwrap()
    }

    /// As [`Machine::output`]: what it wrote if it succeeded, or all that it said.
    pub(crate) fn try_run(&self, command: &str) -> Result<String, String> {
        let output = self.output(command);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return Ok(text);
        }
        Err(format!("{command}: {}\n{text}{errors}", output.status))
    }

    /// As [`Machine::try_run`], which must succeed.
    #[track_caller]
    pub(crate) fn run(&self, command: &str) -> String {
        self.try_run(command)
            .unwrap_or_else(|problem| panic!("{problem}"))
    }

    /// Waits for what comes soon.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !is_so() {
            let in_time = Instant::now() < deadline;
            assert!(in_time, "not in {LIMIT:?}: {what}\n{}", self.journal());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The end of its journal, for the message of a test that fails.
    pub(crate) fn journal(&self) -> String {
        let journal = self.output("journalctl --no-pager --lines 40 2>&1");
        String::from_utf8_lossy(&journal.stdout).into_owned()
    }

    /// All files that differ from this machine's, by path.
    pub(crate) fn changes(&self) -> BTreeMap<PathBuf, Change> {
        let layer = format!("/proc/{}/root/run/layers/upper", self.init);
        let mut changes = BTreeMap::new();
        collect(Path::new(&layer), Path::new("/"), &mut changes);
        changes
    }
}

/// What a machine did to a file of the machine below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It was not there.
    Added {
        /// It is a directory.
        directory: bool,
        /// Its permissions (inode(7)).
        mode: u32,
        /// User and group.
        owner: (u32, u32),
    },
    /// Written to, or its permissions set.
    Changed,
    /// Removed.
    Removed,
}

/// Adds all changes under a directory of the upper layer. Directories that are
/// there only for their content are none.
fn collect(layer: &Path, directory: &Path, changes: &mut BTreeMap<PathBuf, Change>) {
    let relative = directory.strip_prefix("/").unwrap();
    for entry in fs::read_dir(layer.join(relative)).unwrap() {
        let entry = entry.unwrap();
        let path = directory.join(entry.file_name());
        let found = entry.metadata().unwrap();
        let below = fs::symlink_metadata(&path).ok();
        // Overlayfs notes a removal as a character device 0:0.
        if found.file_type().is_char_device() && found.rdev() == 0 {
            changes.insert(path, Change::Removed);
            continue;
        }
        if found.is_dir() {
            collect(layer, &path, changes);
        }
        let change = match below {
            None => Change::Added {
                directory: found.is_dir(),
                mode: found.mode() & 0o7777,
                owner: (found.uid(), found.gid()),
            },
            Some(below) if found.is_dir() && below.mode() == found.mode() => continue,
            Some(_) => Change::Changed,
        };
        changes.insert(path, change);
    }
}
