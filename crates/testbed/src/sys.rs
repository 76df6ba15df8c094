//! The few system calls that `nix` does not wrap.
#![allow(unsafe_code)] // Direct calls into libc; each takes plain values only.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

/// Sets the nice level of the task `tid` (0: the calling thread).
/// Async-signal-safe.
pub(crate) fn set_nice(tid: u32, nice: i8) -> io::Result<()> {
    // SAFETY: plain values; the kernel checks them.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, nice.into()) };
    check(result)
}

/// The nice level of the task `tid`.
pub(crate) fn nice(tid: u32) -> io::Result<i8> {
    nix::errno::Errno::clear();
    // SAFETY: plain values; the kernel checks them.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, tid) };
    // -1 is also a nice level, so errno decides.
    match nix::errno::Errno::last_raw() {
        0 => Ok(i8::try_from(nice).unwrap_or(i8::MAX)),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Makes the calling thread a real-time one (`SCHED_FIFO`) of `priority` (1..=99).
pub(crate) fn set_fifo(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: `parameters` outlives the call, which only reads it.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    check(result)
}

/// The CPU on which the kernel processed the socket's last packet
/// (socket(7), `SO_INCOMING_CPU`). A UDP socket keeps it only while connected.
pub(crate) fn incoming_cpu(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut cpu: libc::c_int = -1;
    let mut size = libc::socklen_t::try_from(size_of_val(&cpu)).expect("four bytes");
    // SAFETY: both pointers are to locals that outlive the call, and `size`
    // is the size of `cpu`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_INCOMING_CPU,
            (&raw mut cpu).cast(),
            &raw mut size,
        )
    };
    check(result)?;
    usize::try_from(cpu).map_err(|_| io::Error::other("no packet has arrived yet"))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
