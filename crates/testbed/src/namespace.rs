//! A host: a network namespace with a CPU, and the two ways of running things
//! in it.
//!
//! The namespaces are ordinary named ones (`ip netns list` shows them, `ip
//! netns exec` enters them), so that any tool can look at a testbed.

use std::fs::{self, File};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns, unshare};
use nix::unistd::Pid;

use crate::process::Command;
use crate::registry::{RUN_DIR, Registration};
use crate::{Error, link};

/// Where named namespaces live (ip-netns(8)).
pub(crate) const NETNS_DIR: &str = "/run/netns";

/// Names of all testbeds' namespaces start with this. The load generator sends
/// inside such a namespace without asking.
pub(crate) const PREFIX: &str = "plimsoll-";

/// Names of one testbed's namespaces start with this.
pub(crate) fn prefix(id: &str) -> String {
    format!("{PREFIX}{id}-")
}

/// One of the two hosts of a testbed.
#[derive(Debug)]
pub struct Host {
    pub(crate) name: String,
    pub(crate) cpu: usize,
    pub(crate) end: link::End,
    namespace: File,
    pub(crate) registration: Arc<Registration>,
}

impl Host {
    /// Makes the namespace `name`; `end` says how it will be joined to the
    /// other host.
    pub(crate) fn create(
        registration: &Arc<Registration>,
        role: &str,
        cpu: usize,
        end: link::End,
    ) -> Result<Self, Error> {
        let name = prefix(registration.id()) + role;
        registration.add_namespace(&name)?;
        let namespace = create(&name)?;
        Ok(Self {
            name,
            cpu,
            end,
            namespace,
            registration: Arc::clone(registration),
        })
    }

    /// The name of the network namespace, for `ip netns exec`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The CPU that [`Host::command`]s and [`Host::run_on_cpu`] run on.
    #[must_use]
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// The name of this host's end of the link.
    #[must_use]
    pub fn device(&self) -> &'static str {
        self.end.device
    }

    /// The interface index of [`Host::device`] in this host's namespace. Both
    /// hosts may have the same: an index means nothing outside its namespace.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        self.end.ifindex
    }

    /// The Ethernet address of [`Host::device`].
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.end.mac
    }

    /// This host's IPv4 address.
    #[must_use]
    pub fn ipv4(&self) -> Ipv4Addr {
        self.end.ipv4
    }

    /// This host's IPv6 address.
    #[must_use]
    pub fn ipv6(&self) -> Ipv6Addr {
        self.end.ipv6
    }

    /// Runs `work` on a new thread inside this host: sockets, `/proc/thread-self/net`,
    /// `/proc/sys/net` and `/sys/class/net` are the host's own. (`/proc/net` is not:
    /// it follows the process, not the thread.) Threads that `work` starts are inside
    /// as well, and sockets it returns stay the host's.
    ///
    /// The thread keeps the caller's CPU affinity, so that looking at a
    /// flooded host neither costs that host nor waits for it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the namespace cannot be entered.
    ///
    /// # Panics
    ///
    /// If `work` does.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        self.run_in_thread(None, work)
    }

    /// As [`Host::run`], on the host's CPU.
    ///
    /// # Errors
    ///
    /// As [`Host::run`].
    ///
    /// # Panics
    ///
    /// If `work` does.
    pub fn run_on_cpu<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        self.run_in_thread(Some(self.cpu), work)
    }

    fn run_in_thread<T: Send>(
        &self,
        cpu: Option<usize>,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, Error> {
        let run = || {
            enter(&self.namespace).map_err(Error::io(format!("enter namespace {}", self.name)))?;
            if let Some(cpu) = cpu {
                pin(cpu).map_err(Error::io(format!("run on CPU {cpu}")))?;
            }
            Ok(work())
        };
        thread::scope(|scope| scope.spawn(run).join())
            .unwrap_or_else(|payload| panic::resume_unwind(payload))
    }

    /// A program to be started inside this host, on its CPU. It sees the
    /// host's `/sys/class/net`, and it dies with the thread that started it.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command<'_> {
        Command::new(self, program.as_ref())
    }

    /// Sets a network sysctl of this host; `name` as in sysctl(8), dots or slashes.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] naming the setting.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<(), Error> {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        self.run(|| fs::write(&path, value))?
            .map_err(Error::io(format!("set {name} = {value} in {}", self.name)))
    }

    /// A handle by which a forked child enters this host.
    pub(crate) fn namespace(&self) -> &File {
        &self.namespace
    }
}

/// Moves the calling thread into `namespace`, and into a mount namespace of
/// its own where `/sys/class/net` shows that namespace's devices. Everything
/// else under `/sys` (BPF pins, cgroups, tracing) stays as it was.
///
/// Async-signal-safe: called between fork and exec.
pub(crate) fn enter(namespace: &File) -> nix::Result<()> {
    const NONE: Option<&std::ffi::CStr> = None;
    setns(namespace, CloneFlags::CLONE_NEWNET)?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Later unmounts of namespaces still reach this copy, ours reach nobody.
    mount(NONE, c"/", NONE, MsFlags::MS_REC | MsFlags::MS_SLAVE, NONE)?;
    mount(
        Some(c"sysfs"),
        STAGE,
        Some(c"sysfs"),
        MsFlags::empty(),
        NONE,
    )?;
    for (from, to) in SYSFS_PARTS {
        mount(Some(from), to, NONE, MsFlags::MS_BIND, NONE)?;
    }
    umount2(STAGE, MntFlags::MNT_DETACH)
}

/// Where [`enter`] mounts the namespace's sysfs before it binds parts of it.
const STAGE: &std::ffi::CStr = c"/run/plimsoll/sys";

/// `class/net` holds links into `devices/virtual/net`, where all devices of a
/// testbed are.
const SYSFS_PARTS: [(&std::ffi::CStr, &std::ffi::CStr); 2] = [
    (
        c"/run/plimsoll/sys/devices/virtual/net",
        c"/sys/devices/virtual/net",
    ),
    (c"/run/plimsoll/sys/class/net", c"/sys/class/net"),
];

/// Binds the calling thread to `cpu`. Async-signal-safe.
pub(crate) fn pin(cpu: usize) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

/// Makes the named namespace, as `ip netns add` does.
fn create(name: &str) -> Result<File, Error> {
    let stage = Path::new(RUN_DIR).join("sys");
    fs::create_dir_all(&stage).map_err(Error::io(format!("make {}", stage.display())))?;
    prepare_directory()?;
    let path = path(name);
    File::create_new(&path).map_err(Error::io(format!("create {}", path.display())))?;
    // A thread that unshares and ends: the bind mount keeps the namespace.
    let make = || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let own = Path::new("/proc/thread-self/ns/net");
        mount(
            Some(own),
            &path,
            None::<&Path>,
            MsFlags::MS_BIND,
            None::<&Path>,
        )
    };
    thread::scope(|scope| scope.spawn(make).join())
        .unwrap_or_else(|payload| panic::resume_unwind(payload))
        .map_err(Error::io(format!("make namespace {name}")))?;
    File::open(&path).map_err(Error::io(format!("open {}", path.display())))
}

/// Removes the named namespace, if it is there.
pub(crate) fn delete(name: &str) -> Result<(), Error> {
    let path = path(name);
    match umount2(&path, MntFlags::MNT_DETACH) {
        // EINVAL: killed between creating the file and mounting onto it.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
        Err(errno) => return Err(Error::io(format!("unmount {}", path.display()))(errno)),
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

fn path(name: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(name)
}

/// Makes `/run/netns` a shared mount, so that removing a namespace also
/// reaches the mount namespaces of processes that were started meanwhile.
fn prepare_directory() -> Result<(), Error> {
    const NONE: Option<&Path> = None;
    let directory = Path::new(NETNS_DIR);
    let shared = MsFlags::MS_REC | MsFlags::MS_SHARED;
    let prepare = || -> std::io::Result<()> {
        fs::create_dir_all(directory)?;
        // The lock that ip netns takes too: two must not both bind it.
        let handle = File::open(directory)?;
        handle.lock()?;
        if mount(NONE, directory, NONE, shared, NONE) == Err(Errno::EINVAL) {
            let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(directory), directory, NONE, bind, NONE)?;
            mount(NONE, directory, NONE, shared, NONE)?;
        }
        Ok(())
    };
    prepare().map_err(Error::io(format!("prepare {NETNS_DIR}")))
}
