//! Which process has a socket open: a walk through `/proc/*/fd`, a bounded
//! part of it at a time.

use std::collections::{HashMap, HashSet};
use std::fs::{self, ReadDir};
use std::path::{Path, PathBuf};

use super::OwnerProcess;
use plimsoll_kernel::process::Process;

/// Descriptors looked at per refresh: 2 to 10 ms of work, by the machine, each second.
const DESCRIPTORS_MAX: usize = 2_000;
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
    /// The process that is being visited.
    under_way: Option<Visit>,
}

#[derive(Debug)]
struct Visit {
    pid: u32,
    descriptors: ReadDir,
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
        self.walk.wanted.retain(|inode| inodes.contains(inode));
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
        Walk {
            to_visit,
            wanted,
            under_way: None,
        }
    }

    fn go_on(&mut self, budget: usize, proc: &Path) {
        for _ in 0..budget {
            if self.walk.wanted.is_empty() {
                break;
            }
            if let Some(visit) = &mut self.walk.under_way {
                let pid = visit.pid;
                // A process that has ended has no more.
                match visit.descriptors.next() {
                    Some(Ok(descriptor)) => self.look_at(&descriptor.path(), pid, proc),
                    _ => self.walk.under_way = None,
                }
            } else if let Some(pid) = self.walk.to_visit.pop() {
                let descriptors = fs::read_dir(directory(pid, proc).join("fd")).ok();
                let visit = descriptors.map(|descriptors| Visit { pid, descriptors });
                self.walk.under_way = visit;
            } else {
                let nobodys = self.walk.wanted.drain();
                self.nobodys
                    .extend(nobodys.map(|inode| (inode, REFRESHES_UNTIL_RETRY)));
            }
        }
        if self.walk.wanted.is_empty() {
            self.walk = Walk::default();
        }
    }

    /// Notes the process that has a descriptor, if that is of a wanted socket.
    fn look_at(&mut self, descriptor: &Path, pid: u32, proc: &Path) {
        let Ok(target) = fs::read_link(descriptor) else {
            return;
        };
        let inode = target.to_str().and_then(socket_inode);
        let Some(inode) = inode.filter(|inode| self.walk.wanted.remove(inode)) else {
            return;
        };
        let Ok(process) = Process::of(pid) else {
            return;
        };
        // Any bytes but a zero, whatever they were meant to be.
        let name = fs::read(directory(pid, proc).join("comm")).unwrap_or_default();
        let name = String::from_utf8_lossy(&name).trim_end().to_owned();
        let owner = OwnerProcess { pid, name };
        self.held.insert(inode, Held { process, owner });
    }
}

/// What `/proc` shows of a process.
fn directory(pid: u32, proc: &Path) -> PathBuf {
    proc.join(pid.to_string())
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

    /// However many descriptors a process has, a refresh holds nobody up for long.
    #[test]
    fn a_process_with_many_descriptors_is_looked_at_in_parts() {
        let proc = tempfile::tempdir().unwrap();
        let directory = proc.path().join(std::process::id().to_string());
        fs::create_dir_all(directory.join("fd")).unwrap();
        let inodes: HashSet<u32> = (1..=50).collect();
        for inode in &inodes {
            let target = format!("socket:[{inode}]");
            let link = directory.join("fd").join(inode.to_string());
            std::os::unix::fs::symlink(target, link).unwrap();
        }
        let mut holders = Holders::default();
        let mut found = 0;
        for refresh in 0..6 {
            assert!(found < 50, "{refresh}");
            holders.refresh_within(&inodes, 10, proc.path());
            assert!(
                (1..=10).contains(&(holders.held.len() - found)),
                "{refresh}"
            );
            found = holders.held.len();
        }
        assert_eq!(found, 50);
        assert!(holders.walk.under_way.is_none(), "a directory stays open");
    }

    /// Sockets that live for a moment would keep those that come later waiting.
    #[test]
    fn a_socket_that_is_closed_is_not_looked_for_any_more() {
        let nowhere = tempfile::tempdir().unwrap();
        let mut holders = Holders::default();
        for inodes in [[7, 8], [8, 9], [9, 10]].map(HashSet::from) {
            holders.refresh_within(&inodes, 0, nowhere.path());
            assert!(holders.walk.wanted.is_subset(&inodes), "{inodes:?}");
        }
        assert_eq!(holders.walk.wanted, HashSet::from([9, 10]));
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
