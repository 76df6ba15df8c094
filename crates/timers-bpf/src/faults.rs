//! The kernel's counts of handled page faults, as events that a program is attached to.
//!
//! A count grows at the end of a fault's handling, where the kernel has no tracepoint.

#![allow(unsafe_code, reason = "perf_event_open(2) has no safe wrapper here")]

use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{
    PERF_COUNT_SW_PAGE_FAULTS_MAJ, PERF_COUNT_SW_PAGE_FAULTS_MIN, PERF_TYPE_SOFTWARE,
    perf_event_attr, perf_event_attr__bindgen_ty_1,
};
use libbpf_rs::{Link, ProgramMut};
use nix::errno::Errno;
use nix::libc;

/// Of `linux/perf_event.h`.
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;

/// An event for each of both counts on each CPU.
#[derive(Debug)]
pub(crate) struct FaultCounts(Vec<OwnedFd>);

impl FaultCounts {
    /// Those of all CPUs that are online.
    pub(crate) fn open(cpus: usize) -> io::Result<Self> {
        let mut events = Vec::with_capacity(2 * cpus);
        for cpu in 0..cpus {
            for count in [PERF_COUNT_SW_PAGE_FAULTS_MIN, PERF_COUNT_SW_PAGE_FAULTS_MAJ] {
                match open(cpu, count.into()) {
                    Ok(event) => events.push(event),
                    // It is offline.
                    Err(Errno::ENODEV) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(Self(events))
    }

    /// Has `program` run at each count from now on, until the links are dropped.
    pub(crate) fn attach(self, program: &ProgramMut<'_>) -> libbpf_rs::Result<Vec<Link>> {
        let attach = |event: OwnedFd| {
            // The link closes it.
            program.attach_perf_event(event.into_raw_fd())
        };
        self.0.into_iter().map(attach).collect()
    }
}

fn open(cpu: usize, count: u64) -> nix::Result<OwnedFd> {
    let mut attributes = perf_event_attr {
        type_: PERF_TYPE_SOFTWARE,
        size: size_of::<perf_event_attr>() as u32,
        config: count,
        __bindgen_anon_1: perf_event_attr__bindgen_ty_1 { sample_period: 1 },
        ..perf_event_attr::default()
    };
    let (every_process, no_group) = (-1, -1);
    // SAFETY: the kernel reads `size` bytes of the attributes, which live here.
    let event = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw mut attributes,
            every_process,
            cpu as libc::c_int,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    let event = Errno::result(event)?;
    // SAFETY: it is a descriptor that the kernel has just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(event as libc::c_int) })
}
