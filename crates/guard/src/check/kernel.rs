//! The kernel: whether it is new enough, and what it does otherwise than most.

use plimsoll_kernel::error::HostError;

use super::{Finding, Verdict, finding, host_finding};

pub(super) fn kernel(release: Result<(), HostError>, preempts_receiving: bool) -> Finding {
    match (release, preempts_receiving) {
        (Ok(()), true) => finding(
            "kernel",
            Verdict::Limited,
            "Linux is new enough, with PREEMPT_RT",
            "may take the time of tasks that preempt receiving for that of receiving, and hold interrupts off or shed without need (`--strategy off --cpu-limit 100` does neither)",
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
