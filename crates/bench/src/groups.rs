//! Control groups for two servers and a worker: two thirds of the CPU for the servers
//! together, one third for the worker.

use std::fs;
use std::path::Path;

use plimsoll_kernel::control_group;
use plimsoll_testbed::{ControlGroup, Host};

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
    servers: ControlGroup,
    worker: ControlGroup,
    /// Around the others, so that it is dropped after them.
    _both: ControlGroup,
}

impl Groups {
    /// Makes them for processes of this host.
    pub(crate) fn make(host: &Host) -> Result<Self, Error> {
        let roots = ROOTS.iter().map(Path::new);
        let mut made = roots.filter_map(|root| Self::within(host, root));
        let problem = "that share the CPU cannot be made in /sys/fs/cgroup";
        made.next().ok_or_else(|| refused(problem.to_owned()))
    }

    fn within(host: &Host, root: &Path) -> Option<Self> {
        let both = ControlGroup::make(host, root, "both").ok()?;
        // Of the unified hierarchy only.
        let control = both.path().join("cgroup.subtree_control");
        if control.exists() {
            fs::write(control, "+cpu").ok()?;
        }
        let group = |name, thirds: u32| {
            let group = ControlGroup::make(host, both.path(), name).ok()?;
            if !control_group::shares_cpu(group.path()) {
                return None;
            }
            let (file, share) = match group.path().join("cpu.weight").exists() {
                true => ("cpu.weight", 100 * thirds),
                false => ("cpu.shares", 1024 * thirds),
            };
            fs::write(group.path().join(file), share.to_string()).ok()?;
            Some(group)
        };
        Some(Self {
            servers: group("servers", 2)?,
            worker: group("worker", 1)?,
            _both: both,
        })
    }

    /// The servers' group.
    pub(crate) fn servers(&self) -> &Path {
        self.servers.path()
    }

    /// Moves the processes there.
    pub(crate) fn take(&self, servers: &[u32], worker: u32) -> Result<(), Error> {
        let servers = servers.iter().map(|server| (server, &self.servers));
        let mut all = servers.chain([(&worker, &self.worker)]);
        let moved = all.try_for_each(|(process, group)| {
            fs::write(group.path().join("cgroup.procs"), process.to_string())
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
