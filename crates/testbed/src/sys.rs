//! The few system calls that `nix` does not wrap.
#![allow(unsafe_code)] // Direct calls into libc; each takes plain values only.

use std::io;

use nix::libc;

/// Sets the nice level of the task `tid` (0: the calling thread).
/// Async-signal-safe.
pub(crate) fn set_nice(tid: u32, nice: i8) -> io::Result<()> {
    // SAFETY: plain values; the kernel checks them.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, nice.into()) };
    check(result)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
