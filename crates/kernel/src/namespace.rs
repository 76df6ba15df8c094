//! Network namespaces: named ones as ip-netns(8) makes them, and what a thread
//! needs to be inside one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns, unshare};
use nix::unistd::Pid;

use crate::error::{FAILED, errno, remedy_of};

/// Where named namespaces live (ip-netns(8)).
pub const NETNS_DIR: &str = "/run/netns";

/// The number of the calling thread's network namespace, `net->ns.inum` in the
/// kernel.
///
/// # Errors
///
/// `/proc` cannot be read.
pub fn inode() -> io::Result<u32> {
    let inode = fs::metadata("/proc/thread-self/ns/net")?.ino();
    u32::try_from(inode).map_err(io::Error::other)
}

/// Runs `work` on a new thread in a network namespace of its own, which ends with
/// the last that is in it. `/sys` is not changed.
///
/// # Errors
///
/// This process may not make namespaces: it takes `CAP_SYS_ADMIN`.
///
/// # Panics
///
/// If `work` does.
pub fn in_new<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    on_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        Ok(work())
    })
}

/// Whoever changes its namespace is a thread that ends.
fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|payload| panic::resume_unwind(payload))
}

/// Moves the calling thread into `namespace`, and into a mount namespace of
/// its own where `/sys/class/net` shows that namespace's devices. Everything
/// else under `/sys` (BPF pins, cgroups, tracing) stays as it was.
///
/// Async-signal-safe: called between fork and exec.
///
/// # Errors
///
/// The first refusal of the kernel; the thread may be inside by then.
pub fn enter(namespace: &File) -> nix::Result<()> {
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
///
/// # Errors
///
/// No such CPU.
pub fn pin(cpu: usize) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

/// A network namespace cannot be made or removed: it is there already, or this
/// process is not root.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} the network namespace `{name}`{}", remedy_for(.source, .name))]
pub struct NamespaceError {
    /// What was being done.
    pub action: &'static str,
    /// Its name, as ip-netns(8) lists it.
    pub name: String,
    /// The kernel's answer.
    pub source: io::Error,
}

fn remedy_for(source: &io::Error, name: &str) -> String {
    match errno(source) {
        Some(Errno::EEXIST) => format!(" (`ip netns del {name}` removes the one that is there)"),
        Some(Errno::ENOSPC) => {
            " (raise the host's limit: `sysctl user.max_net_namespaces`)".to_owned()
        }
        answer => remedy_of("", answer),
    }
}

impl NamespaceError {
    /// The exit code of a command that ends by it.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        FAILED
    }
}

/// A named namespace of which the name is removed when this is dropped.
#[derive(Debug)]
pub struct Named {
    name: String,
    namespace: File,
}

impl Named {
    /// Makes it.
    ///
    /// # Errors
    ///
    /// As [`create`].
    pub fn create(name: &str) -> Result<Self, NamespaceError> {
        Ok(Self {
            name: name.to_owned(),
            namespace: create(name)?,
        })
    }

    /// For `ip link … netns`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a new thread in there. `/sys` is not changed.
    ///
    /// # Errors
    ///
    /// This process may not enter namespaces: it takes `CAP_SYS_ADMIN`.
    ///
    /// # Panics
    ///
    /// If `work` does.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_thread(|| {
            setns(&self.namespace, CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        })
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = delete(&self.name);
    }
}

/// Makes the named namespace, as `ip netns add` does, and opens it.
///
/// # Errors
///
/// It is there already, or this process is not root.
pub fn create(name: &str) -> Result<File, NamespaceError> {
    make(name).map_err(failed("make", name))
}

fn make(name: &str) -> io::Result<File> {
    fs::create_dir_all(STAGE.to_string_lossy().as_ref())?;
    prepare_directory()?;
    let path = path(name);
    File::create_new(&path)?;
    // The bind mount keeps the namespace.
    on_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let own = Path::new("/proc/thread-self/ns/net");
        let none = None::<&Path>;
        Ok(mount(Some(own), &path, none, MsFlags::MS_BIND, none)?)
    })?;
    File::open(&path)
}

/// Removes the named namespace, if it is there.
///
/// # Errors
///
/// The kernel refuses.
pub fn delete(name: &str) -> Result<(), NamespaceError> {
    let path = path(name);
    match umount2(&path, MntFlags::MNT_DETACH) {
        // EINVAL: killed between creating the file and mounting onto it.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
        Err(errno) => return Err(failed("unmount", name)(errno.into())),
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", name)(error)),
        _ => Ok(()),
    }
}

fn failed(action: &'static str, name: &str) -> impl FnOnce(io::Error) -> NamespaceError {
    move |source| NamespaceError {
        action,
        name: name.to_owned(),
        source,
    }
}

fn path(name: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(name)
}

/// Makes `/run/netns` a shared mount, so that removing a namespace also
/// reaches the mount namespaces of processes that were started meanwhile.
fn prepare_directory() -> io::Result<()> {
    const NONE: Option<&Path> = None;
    let directory = Path::new(NETNS_DIR);
    let shared = MsFlags::MS_REC | MsFlags::MS_SHARED;
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
}
