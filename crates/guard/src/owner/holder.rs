//! Which process has a socket open: a walk through `/proc/*/fd`, a bounded
//! part of it at a time.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use super::OwnerProcess;
use plimsoll_kernel::process::Process;

/// Descriptors looked at per refresh: some 20 ms of work.
const DESCRIPTORS_MAX: usize = 20_000;
/// Refreshes until a socket that nobody seems to have is looked for again.
const REFRESHES_UNTIL_RETRY: u32 = 60;

#[derive(Debug)]
struct Held {
    process: Process,
    owner: OwnerProcess,
}

/// Processes by socket inode.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    held: HashMap<u32, Held>,
    /// Inodes that a whole walk did not find, and for how long to leave them.
    nobodys: HashMap<u32, u32>,
    walk: Walk,
}

/// A walk through all processes that may take several refreshes.
#[derive(Debug, Default)]
struct Walk {
    /// Processes still to visit, the last one first.
    to_visit: Vec<u32>,
    /// What the walk looks for. Inodes that come later wait for the next one.
    wanted: HashSet<u32>,
}

impl Holders {
    pub(crate) fn of(&self, inode: u32) -> Option<&OwnerProcess> {
        self.held.get(&inode).map(|held| &held.owner)
    }

    /// Looks for the holders of `inodes` and forgets all others.
    pub(crate) fn refresh(&mut self, inodes: &HashSet<u32>) {
        self.refresh_within(inodes, DESCRIPTORS_MAX, Path::new("/proc"));
    }

    fn refresh_within(&mut self, inodes: &HashSet<u32>, budget: usize, proc: &Path) {
        let mut alive = HashMap::new();
        self.held.retain(|inode, held| {
            let is_alive = || held.process.is_alive();
            inodes.contains(inode) && *alive.entry(held.owner.pid).or_insert_with(is_alive)
        });
        self.nobodys.retain(|inode, left| {
            *left -= 1;
            *left > 0 && inodes.contains(inode)
        });
        if self.walk.wanted.is_empty() {
            self.walk = self.new_walk(inodes, proc);
        }
        self.go_on(budget, proc);
    }

    /// Inode 0 is no socket of a process: the kernel's own, or orphaned.
    fn new_walk(&self, inodes: &HashSet<u32>, proc: &Path) -> Walk {
        let unknown = |inode: &&u32| {
            **inode != 0 && !self.held.contains_key(inode) && !self.nobodys.contains_key(inode)
        };
        let wanted: HashSet<u32> = inodes.iter().filter(unknown).copied().collect();
        let to_visit = if wanted.is_empty() {
            Vec::new()
        } else {
            processes(proc)
        };
        Walk { to_visit, wanted }
    }

    fn go_on(&mut self, budget: usize, proc: &Path) {
        let mut looked_at = 0;
        while looked_at < budget && !self.walk.wanted.is_empty() {
            let Some(pid) = self.walk.to_visit.pop() else {
                let nobodys = self.walk.wanted.drain();
                self.nobodys
                    .extend(nobodys.map(|inode| (inode, REFRESHES_UNTIL_RETRY)));
                return;
            };
            looked_at += self.visit(pid, proc);
        }
    }

    /// Notes which of the wanted sockets a process has; returns the number of
    /// its descriptors. A process that ends meanwhile has none.
    fn visit(&mut self, pid: u32, proc: &Path) -> usize {
        let directory = proc.join(pid.to_string());
        let Ok(descriptors) = fs::read_dir(directory.join("fd")) else {
            return 1;
        };
        let mut count = 1;
        for descriptor in descriptors.flatten() {
            count += 1;
            let Ok(target) = fs::read_link(descriptor.path()) else {
                continue;
            };
            let inode = target.to_str().and_then(socket_inode);
            let Some(inode) = inode.filter(|inode| self.walk.wanted.remove(inode)) else {
                continue;
            };
            let Ok(process) = Process::of(pid) else {
                continue;
            };
            // Any bytes but a zero, whatever they were meant to be.
            let name = fs::read(directory.join("comm")).unwrap_or_default();
            let name = String::from_utf8_lossy(&name).trim_end().to_owned();
            let owner = OwnerProcess { pid, name };
            self.held.insert(inode, Held { process, owner });
        }
        count
    }
}

/// All process ids, the highest first.
fn processes(proc: &Path) -> Vec<u32> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable_by(|a, b| b.cmp(a));
    pids
}

/// The number in `socket:[123]`.
fn socket_inode(target: &str) -> Option<u32> {
    let number = target.strip_prefix("socket:[")?.strip_suffix(']')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn only_a_socket_s_link_has_an_inode(inode: u32, link in "(socket|pipe|anon_inode)?:?\\[?[0-9+ ]{0,12}\\]?|.{0,20}") {
            prop_assert_eq!(socket_inode(&format!("socket:[{inode}]")), Some(inode));
            prop_assert_eq!(socket_inode(&format!("pipe:[{inode}]")), None);
            if let Some(read) = socket_inode(&link) {
                prop_assert!(link.starts_with("socket:[") && link.contains(&read.to_string()));
            }
        }
    }

    /// A process may call itself anything, and end while it is looked at.
    #[test]
    fn odd_entries_of_proc_harm_nobody() {
        let proc = tempfile::tempdir().unwrap();
        let inodes = HashSet::from([7]);
        for name in ["self", "99999999999", "-1", "0x10", "1 2"] {
            fs::create_dir_all(proc.path().join(name).join("fd")).unwrap();
        }
        let us = std::process::id().to_string();
        let directory = proc.path().join(&us);
        fs::create_dir_all(directory.join("fd")).unwrap();
        for (fd, target) in [("0", "socket:[8]"), ("1", "socket:[]"), ("2", "socket:[7]")] {
            std::os::unix::fs::symlink(target, directory.join("fd").join(fd)).unwrap();
        }
        for (comm, name) in [("a b) R 1\n", "a b) R 1"), ("", ""), ("\n", "")] {
            fs::write(directory.join("comm"), comm).unwrap();
            let mut holders = Holders::default();
            holders.refresh_within(&inodes, 100, proc.path());
            assert_eq!(holders.of(7).unwrap().name, name);
        }
        // Names are bytes, not text.
        fs::write(directory.join("comm"), [0xff, b'x', b'\n']).unwrap();
        let mut holders = Holders::default();
        holders.refresh_within(&inodes, 100, proc.path());
        assert_eq!(holders.of(7).unwrap().name, "\u{fffd}x");
    }

    fn inode(socket: &UdpSocket) -> u32 {
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        socket_inode(link.to_str().unwrap()).unwrap()
    }

    #[test]
    fn a_walk_goes_on_where_its_budget_ended() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let inodes = HashSet::from([inode(&socket)]);
        let mut holders = Holders::default();
        let mut refreshes = 0;
        while holders.of(inode(&socket)).is_none() {
            holders.refresh_within(&inodes, 1, Path::new("/proc"));
            refreshes += 1;
            assert!(refreshes < 100_000, "the walk ends");
        }
        assert!(refreshes > 1, "there are processes before this one");
        let owner = holders.of(inode(&socket)).unwrap();
        assert_eq!(owner.pid, std::process::id());
    }

    #[test]
    fn a_socket_that_nobody_has_is_not_looked_for_every_time() {
        let nowhere = tempfile::tempdir().unwrap();
        let inodes = HashSet::from([7]);
        let mut holders = Holders::default();
        holders.refresh_within(&inodes, 100, nowhere.path());
        for _ in 1..REFRESHES_UNTIL_RETRY {
            assert!(holders.walk.wanted.is_empty());
            holders.refresh_within(&inodes, 0, nowhere.path());
        }
        holders.refresh_within(&inodes, 0, nowhere.path());
        assert_eq!(holders.walk.wanted, inodes);
    }
}
