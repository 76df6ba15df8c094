//! The host: what this process may do there, and whether its kernel is new enough, describes its
//! types, and receives as most do.

use plimsoll_kernel::error::HostError;
use plimsoll_kernel::host;

use super::{Finding, Verdict, finding};

const PRIVILEGES: &str = "all capabilities that the start takes are there";

pub(super) fn findings() -> [Finding; 3] {
    let privileges = host::check_capabilities().and_then(|()| host::check_real_time());
    [
        host_finding(privileges, "privileges", PRIVILEGES),
        kernel(host::check_release(), host::preempts_receiving()),
        host_finding(host::check_btf(), "btf", "the kernel describes its types"),
    ]
}

fn host_finding(result: Result<(), HostError>, id: &'static str, good: &str) -> Finding {
    match result {
        Ok(()) => finding(id, Verdict::Ok, good, "needs no more"),
        Err(error) => finding(id, Verdict::Missing, error.to_string(), "does not start"),
    }
}

fn kernel(release: Result<(), HostError>, preempts_receiving: bool) -> Finding {
    match (release, preempts_receiving) {
        (Ok(()), true) => finding(
            "kernel",
            Verdict::Limited,
            "Linux is new enough, with PREEMPT_RT",
            "tells receiving from tasks that preempt it in a way that was measured on no such kernel, and may hold interrupts off or shed without need (`--strategy off --cpu-limit 100` does neither)",
        ),
        (release, _) => host_finding(release, "kernel", "Linux is new enough"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preempt_rt_is_told_and_is_no_obstacle() {
        let old = || {
            let release = "5.10.0".to_owned();
            Err(HostError::KernelTooOld { release })
        };
        for (release, preempts_receiving, verdict) in [
            (Ok(()), false, Verdict::Ok),
            (Ok(()), true, Verdict::Limited),
            (old(), false, Verdict::Missing),
            (old(), true, Verdict::Missing),
        ] {
            let found = kernel(release, preempts_receiving);
            assert_eq!((found.id, found.verdict), ("kernel", verdict));
        }
    }
}
