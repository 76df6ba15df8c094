//! Gives up what only the start needed, before other threads start and, in the guard, before
//! its program is attached.
//!
//! The descriptors of maps, links and sysfs stay usable without capabilities
//! (since Linux 5.19 reading a map takes none). What is kept is what turning
//! settings back takes, and what was asked for.

use std::collections::HashSet;

use caps::{CapSet, Capability};
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::prctl::set_no_new_privs;
use nix::unistd::{Pid, gettid};

use crate::error::{CallError, os};
use crate::scheduling::{Class, set_class};

/// What the guard goes on to do, and which capabilities that takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Turn settings of the interface and restore them: `CAP_NET_ADMIN`.
    Settings,
    /// Schedule polling threads and itself: `CAP_SYS_NICE`.
    Scheduling,
    /// Allocate while its memory is locked: `CAP_IPC_LOCK`.
    LockedMemory,
    /// Find and hold attachments of other processes' programs: `CAP_SYS_ADMIN`.
    Links,
    /// Name the processes of all users that own sockets: `CAP_SYS_PTRACE` and
    /// `CAP_DAC_READ_SEARCH`. The widest of all: who has these can read any
    /// file.
    Owners,
}

impl Need {
    const fn capabilities(self) -> &'static [Capability] {
        match self {
            Self::Settings => &[Capability::CAP_NET_ADMIN],
            Self::Scheduling => &[Capability::CAP_SYS_NICE],
            Self::Links => &[Capability::CAP_SYS_ADMIN],
            Self::LockedMemory => &[Capability::CAP_IPC_LOCK],
            Self::Owners => &[Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH],
        }
    }
}

/// Drops all capabilities but those for `needs`, from every set, for good: no
/// program started later can regain them. Capabilities belong to a thread, so
/// call this before starting others.
///
/// # Errors
///
/// The kernel refuses, or this process has other threads already.
pub fn drop_capabilities(needs: &[Need]) -> Result<(), CallError> {
    require_single_thread("give up capabilities, which other threads would keep")?;
    let wanted: HashSet<Capability> = needs
        .iter()
        .flat_map(|need| need.capabilities())
        .copied()
        .collect();
    let drop_from_sets = || -> Result<(), caps::errors::CapsError> {
        let permitted = caps::read(None, CapSet::Permitted)?;
        let kept: HashSet<Capability> = permitted.intersection(&wanted).copied().collect();
        // The bounding set first: changing it takes CAP_SETPCAP.
        if permitted.contains(&Capability::CAP_SETPCAP) {
            for capability in caps::read(None, CapSet::Bounding)?.difference(&kept) {
                caps::drop(None, CapSet::Bounding, *capability)?;
            }
        }
        caps::clear(None, CapSet::Ambient)?;
        caps::clear(None, CapSet::Inheritable)?;
        caps::set(None, CapSet::Effective, &kept)?;
        caps::set(None, CapSet::Permitted, &kept)
    };
    let dropped = drop_from_sets().map_err(std::io::Error::other);
    dropped.map_err(os("give up capabilities"))?;
    set_no_new_privs().map_err(os("give up new privileges"))
}

/// For what must be done before other threads start.
pub fn require_single_thread(action: &'static str) -> Result<(), CallError> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(os(action))?;
    if gettid() == Pid::this() && threads.count() == 1 {
        return Ok(());
    }
    let others = std::io::Error::other("this process has other threads already");
    Err(os(action)(others))
}

/// Stack of a thread beside the guard's own, in bytes: memory is locked as a
/// whole, and the usual 2 MiB of each would be, too.
const STACK_BYTES: usize = 256 << 10;

/// Starts a thread beside the guard's own that leaves little memory locked.
///
/// # Errors
///
/// There are no more threads.
pub fn start_thread(work: impl FnOnce() + Send + 'static) -> Result<(), CallError> {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    let started = thread.spawn(work).map_err(os("start a thread"));
    started.map(|_| ())
}

/// What those who answer an operator's questions run at: before ordinary processes,
/// since overload is when questions are asked, but no class of its own.
const ANSWERING_NICE: i32 = -10;

/// Lets this thread answer soon also on a host that is busy. Where the kernel
/// refuses, answers take longer.
pub fn answer_soon() {
    // Of the calling thread only, against POSIX: setpriority(2).
    let _ = rustix::process::setpriority_process(None, ANSWERING_NICE);
}

/// Blocks of memory from this size on go back to the kernel when they are freed.
/// Readings of ten thousand channels are such blocks. By default the C library
/// keeps them from the second one on, and each thread its own.
const RETURNED_BYTES: i32 = 128 << 10;

/// Keeps little memory that is not in use.
#[allow(unsafe_code, reason = "a setting of the C library")]
fn return_freed_memory() {
    // SAFETY: takes two numbers and is safe to call from any thread; what it
    // refuses changes nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, RETURNED_BYTES);
    }
}

/// Keeps this process running whatever the network does: this thread before
/// every process and polling thread, its memory in place. Threads started later
/// are like it; call this last.
///
/// # Errors
///
/// The kernel refuses one or the other.
pub fn outlive_overload() -> Result<(), CallError> {
    return_freed_memory();
    mlockall(MlockAllFlags::MCL_CURRENT).map_err(os("lock this process's memory"))?;
    set_class(0, Class::Watcher).map_err(os("make this thread real-time"))
}
