//! The clock by which programs in the kernel tell the time.

use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds by the clock that `bpf_ktime_get_ns` reads. In a time namespace, as of a container that was
/// moved here, processes see another one (`time_namespaces(7)`): what that is ahead is taken off.
///
/// # Panics
///
/// Never: every Linux has this clock.
#[must_use]
pub fn monotonic_ns() -> u64 {
    static AHEAD_NS: OnceLock<i128> = OnceLock::new();
    let ahead_ns = *AHEAD_NS.get_or_init(|| {
        // There is no such file where the kernel has no time namespaces.
        let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        monotonic_offset_ns(&offsets).unwrap_or(0)
    });
    let here = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    let here_ns = Duration::from(here).as_nanos() as i128;
    u64::try_from(here_ns - ahead_ns).expect("584 years from the start of the machine")
}

/// How far a time namespace's monotonic clock is ahead of the machine's; `offsets` has a line for each clock,
/// with its name, seconds and nanoseconds.
fn monotonic_offset_ns(offsets: &str) -> Option<i128> {
    let mut lines = offsets.lines().map(str::split_ascii_whitespace);
    let mut fields = lines.find_map(|mut line| (line.next()? == "monotonic").then_some(line))?;
    let seconds: i64 = fields.next()?.parse().ok()?;
    let nanos: u32 = fields.next()?.parse().ok()?;
    Some(i128::from(seconds) * 1_000_000_000 + i128::from(nanos))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn an_offset_is_seconds_and_nanoseconds() {
        let offset = |monotonic| {
            let text = format!("monotonic {monotonic}\nboottime 7 0\n");
            monotonic_offset_ns(&text)
        };
        assert_eq!(offset("          0         0"), Some(0));
        assert_eq!(offset("12 34"), Some(12_000_000_034));
        assert_eq!(offset("-2 500000000"), Some(-1_500_000_000));
        for wrong in ["", "12", "a b", "1 -1"] {
            assert_eq!(offset(wrong), None, "{wrong}");
        }
        assert_eq!(monotonic_offset_ns("boottime 7 0"), None);
    }

    /// Says the time, for the test below.
    #[test]
    fn it_does_not_go_back() {
        let before = monotonic_ns();
        let now = monotonic_ns();
        assert!(now >= before);
        println!("it is {now}");
    }

    /// A guard there told the program in the kernel that it was alive in the future: it went on discarding
    /// when nobody answered for it any more. Needs root.
    #[test]
    fn in_a_time_namespace_it_is_the_machine_s_clock() {
        let before = monotonic_ns();
        let inside = Command::new("unshare")
            .args(["--time", "--fork", "--monotonic", "1000000", "--"])
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "clock::tests::it_does_not_go_back",
                "--nocapture",
            ])
            .output()
            .unwrap();
        let said = String::from_utf8(inside.stdout).unwrap();
        let mut words = said.split_whitespace().skip_while(|word| *word != "is");
        let there: u64 = words.nth(1).unwrap().parse().unwrap();
        assert!((before..=monotonic_ns()).contains(&there), "{said}");
    }
}
