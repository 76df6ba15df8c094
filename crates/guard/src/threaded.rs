//! Threaded polling: the interface's receive work as a thread the scheduler
//! sees, with a nice level (Mogul & Ramakrishnan's polling thread at level 0,
//! section 5.3, option B), or with real-time priority.
//!
//! Softirq work outranks every process. As a thread it competes with them, so
//! a flood leaves CPU to the server it is meant for. The nice level is the
//! share: at 19 the flooded server keeps most of its goodput but bystanders
//! starve; at 0 bystanders are safe and goodput is lower. The old setting is
//! restored when the value is dropped.
//!
//! Limits: the switch is the whole interface's (`/sys/class/net/*/threaded`).
//! A process killed with SIGKILL leaves it switched.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use netlink_bindings::netdev;
use netlink_socket2::NetlinkSocket;
use nix::net::if_::if_nametoindex;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::Error;
use crate::host::os;

/// A driver may start its threads a moment after the switch.
const THREAD_WAIT: Duration = Duration::from_millis(10);
const THREAD_TRIES: u32 = 50;

/// How polling threads compete with processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A share like a process of this nice level (-20..=19). The scheduler may
    /// let a process finish its slice first: at high rates the ring overflows
    /// meanwhile.
    Nice(i8),
    /// Real-time (`SCHED_FIFO`, lowest priority): before every process, at
    /// once. Beyond the discard capacity processes keep only what the kernel
    /// reserves for them (`sched_rt_runtime_us`, 5 % by default).
    RealTime,
}

impl Priority {
    fn give_to(self, thread: i32) -> Result<(), Error> {
        match self {
            Self::Nice(nice) => {
                let thread = rustix::process::Pid::from_raw(thread);
                rustix::process::setpriority_process(thread, i32::from(nice)).map_err(|errno| {
                    Error::Os {
                        action: "set the polling thread's nice level",
                        source: errno.into(),
                    }
                })
            }
            Self::RealTime => set_fifo(thread).map_err(|source| Error::Os {
                action: "make the polling thread real-time",
                source,
            }),
        }
    }
}

#[allow(
    unsafe_code,
    reason = "neither nix nor rustix sets another thread's scheduling class"
)]
fn set_fifo(thread: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: `parameters` is initialised and outlives the call.
    let result =
        unsafe { libc::sched_setscheduler(thread, libc::SCHED_FIFO, &raw const parameters) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Threaded polling, switched on; dropping it restores what was.
#[derive(Debug)]
pub struct ThreadedPolling {
    switch: PathBuf,
    before: String,
}

impl ThreadedPolling {
    /// Switches `interface` to threaded polling and sets its threads' priority
    /// and, if given, the only CPU they may run on.
    ///
    /// # Errors
    ///
    /// The interface has no such switch, or the kernel refuses a change; what
    /// was changed by then is restored.
    pub fn enable(interface: &str, priority: Priority, cpu: Option<usize>) -> Result<Self, Error> {
        let switch = PathBuf::from(format!("/sys/class/net/{interface}/threaded"));
        let Ok(before) = fs::read_to_string(&switch) else {
            return Err(Error::NoThreadedPolling {
                interface: interface.to_owned(),
                path: switch,
            });
        };
        let polling = Self {
            switch,
            before: before.trim().to_owned(),
        };
        polling.set("1").map_err(|source| Error::Os {
            action: "switch to threaded polling",
            source,
        })?;
        for thread in wait_for_threads(interface)? {
            priority.give_to(thread)?;
            if let Some(cpu) = cpu {
                let mut cpus = CpuSet::new();
                cpus.set(cpu).map_err(os("name the polling thread's CPU"))?;
                sched_setaffinity(Pid::from_raw(thread), &cpus)
                    .map_err(os("pin the polling thread to its CPU"))?;
            }
        }
        Ok(polling)
    }

    fn set(&self, value: &str) -> io::Result<()> {
        fs::write(&self.switch, value)
    }
}

impl Drop for ThreadedPolling {
    fn drop(&mut self) {
        // The interface may be gone, and its setting with it.
        let _ = self.set(&self.before);
    }
}

fn wait_for_threads(interface: &str) -> Result<Vec<i32>, Error> {
    let ifindex = if_nametoindex(interface).map_err(|_| Error::NoSuchInterface {
        interface: interface.to_owned(),
    })?;
    for _ in 0..THREAD_TRIES {
        let threads = napi_threads(ifindex).map_err(|source| Error::Os {
            action: "ask for the interface's polling threads",
            source,
        })?;
        if !threads.is_empty() {
            return Ok(threads);
        }
        sleep(THREAD_WAIT);
    }
    let source = io::Error::new(
        io::ErrorKind::NotFound,
        "none is reported: the interface must be up, and Linux 6.8 or newer",
    );
    Err(Error::Os {
        action: "find the interface's polling threads",
        source,
    })
}

/// Ids of the threads that poll an interface. Asked of the kernel's netdev
/// family: names in /proc do not tell network namespaces apart.
fn napi_threads(ifindex: u32) -> io::Result<Vec<i32>> {
    let mut socket = NetlinkSocket::new();
    let mut request = netdev::Request::new().op_napi_get_dump();
    request.encode().push_ifindex(ifindex);
    let mut replies = socket.request(&request)?;
    let mut threads = Vec::new();
    while let Some(napi) = replies.recv() {
        let napi = napi.map_err(io::Error::other)?;
        // Present only while the instance is polled by a thread.
        threads.extend(napi.get_pid().ok().and_then(|pid| i32::try_from(pid).ok()));
    }
    Ok(threads)
}
