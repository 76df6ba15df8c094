//! Control groups for two servers and a worker: two thirds of the CPU for the servers
//! together, one third for the worker.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use plimsoll_kernel::control_group;

use crate::Error;

/// Where hierarchies are that may have the `cpu` controller: the unified one, and those of
/// version 1.
const ROOTS: [&str; 3] = [
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/cpu",
    "/sys/fs/cgroup/cpu,cpuacct",
];

/// Removed when dropped; whoever is in them must have ended.
#[derive(Debug)]
pub(crate) struct Groups {
    directory: PathBuf,
}

impl Groups {
    /// Makes them.
    pub(crate) fn make() -> Result<Self, Error> {
        let roots = ROOTS.iter().map(Path::new);
        let mut made = roots.filter_map(|root| Self::within(root).ok());
        let problem = "that share the CPU cannot be made in /sys/fs/cgroup";
        made.next().ok_or_else(|| refused(problem.to_owned()))
    }

    fn within(root: &Path) -> io::Result<Self> {
        let directory = root.join(format!("plimsoll-bench-{}", process::id()));
        fs::create_dir(&directory)?;
        let groups = Self { directory };
        // Of the unified hierarchy only.
        let control = groups.directory.join("cgroup.subtree_control");
        if control.exists() {
            fs::write(control, "+cpu")?;
        }
        for (group, thirds) in [(groups.servers(), 2), (groups.worker(), 1)] {
            fs::create_dir(&group)?;
            if !control_group::shares_cpu(&group) {
                return Err(io::Error::from(io::ErrorKind::Unsupported));
            }
            let (file, share) = match group.join("cpu.weight").exists() {
                true => ("cpu.weight", 100 * thirds),
                false => ("cpu.shares", 1024 * thirds),
            };
            fs::write(group.join(file), share.to_string())?;
        }
        Ok(groups)
    }

    /// The servers' group.
    pub(crate) fn servers(&self) -> PathBuf {
        self.directory.join("servers")
    }

    fn worker(&self) -> PathBuf {
        self.directory.join("worker")
    }

    /// Moves the processes there.
    pub(crate) fn take(&self, servers: [u32; 2], worker: u32) -> Result<(), Error> {
        let mut all = servers.map(|server| (server, self.servers())).to_vec();
        all.push((worker, self.worker()));
        let moved = all.into_iter().try_for_each(|(process, group)| {
            fs::write(group.join("cgroup.procs"), process.to_string())
        });
        moved.map_err(|error| refused(format!("do not take a process: {error}")))
    }
}

fn refused(problem: String) -> Error {
    Error::Tool {
        tool: "control groups",
        problem,
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in [self.servers(), self.worker(), self.directory.clone()] {
            // One that was not made, or that is not empty, stays as it is.
            let _ = fs::remove_dir(group);
        }
    }
}
