//! The one system call that neither `nix` nor `rustix` wraps.
#![allow(unsafe_code)] // A direct call into libc.

use std::io;

use nix::libc;

/// Makes the calling thread a real-time one (`SCHED_FIFO`) of `priority` (1..=99).
pub(crate) fn set_fifo(priority: i32) -> io::Result<()> {
    set_scheduler(libc::SCHED_FIFO, priority)
}

/// Gives the calling thread the CPU only when nobody else wants it (`SCHED_IDLE`).
pub(crate) fn set_idle() -> io::Result<()> {
    set_scheduler(libc::SCHED_IDLE, 0)
}

fn set_scheduler(policy: libc::c_int, priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: `parameters` outlives the call, which only reads it.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
