//! Whether others want a CPU that receives: for their sake a limit holds.
//!
//! **Intuition.** What a limit on receiving leaves of a CPU is of use to somebody, or it is wasted:
//! on a gateway that does nothing else, packets are lost for it. Who starves waits for the CPU all
//! the time; a daemon that needs little of it, and gets that, waits seldom.
//!
//! **Source.** Ours. Mogul & Ramakrishnan 1997, section 7, leave the time to a process that wants it.
//!
//! **Rule.** Of the time on receiving in the last second, the part during which another task
//! waited counts. From `WANTED` of it on the CPU is wanted, until less than `UNWANTED` is.
//!
//! **Limits.** A process whose packets are lost sleeps, and waits for no CPU.

use core::time::Duration;

use crate::config::Fraction;
use crate::time::span_nanos;

/// So much time is judged by: a daemon's burst of some milliseconds is a small part of it. (It was
/// a second of receiving. A limit that sheds leaves little receiving, and so went on for seconds
/// after nobody waited any more.)
const WINDOW: Duration = Duration::from_secs(1);
/// Half lies between who starves and who does not.
const WANTED: Fraction = Fraction::from_percent(50);
/// Who gets what a limit leaves waits less than before. (With a fifth, the 7 to 24 % for which kernel
/// threads and the guard itself wait on a gateway kept its limit for good in one of five runs.)
const UNWANTED: Fraction = Fraction::from_percent(40);

/// What is known of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contention {
    network_ns: u64,
    contended_ns: u64,
    is_wanted: bool,
}

impl Contention {
    /// In an interval of the length `elapsed` receiving took `network`, and during `contended` of it
    /// another task waited.
    pub fn on_interval(&mut self, elapsed: Duration, network: Duration, contended: Duration) {
        let window_ns = span_nanos(WINDOW);
        let kept_ns = window_ns - span_nanos(elapsed).min(window_ns);
        // What leaves the window had the mean of all that is in it.
        let kept = |ns: u64| {
            let kept = u128::from(ns) * u128::from(kept_ns) / u128::from(window_ns);
            u64::try_from(kept).unwrap_or(u64::MAX)
        };
        let network_ns = span_nanos(network).min(window_ns);
        let contended_ns = span_nanos(contended).min(network_ns);
        self.network_ns = kept(self.network_ns) + network_ns;
        self.contended_ns = kept(self.contended_ns) + contended_ns;
        let least = if self.is_wanted { UNWANTED } else { WANTED };
        // Of a nanosecond half is nothing.
        self.is_wanted = self.contended_ns > 0 && self.contended_ns >= least.of(self.network_ns);
    }

    /// Others want the CPU.
    #[must_use]
    pub const fn is_wanted(&self) -> bool {
        self.is_wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Intervals of 10 ms: the time on receiving, the contended part, and how many of them.
    fn seen(intervals: &[(u32, u32, usize)]) -> Contention {
        let mut contention = Contention::default();
        for &(network, contended, times) in intervals {
            for _ in 0..times {
                contention.on_interval(MS * 10, MS * network, MS * contended);
            }
        }
        contention
    }

    #[test]
    fn who_starves_is_seen_at_once() {
        assert!(!Contention::default().is_wanted(), "nothing was received");
        assert!(seen(&[(9, 9, 1)]).is_wanted());
        assert!(!seen(&[(9, 0, 1)]).is_wanted());
    }

    #[test]
    fn half_of_the_time_begins_it_and_two_fifths_end_it() {
        assert!(seen(&[(10, 5, 100)]).is_wanted());
        assert!(!seen(&[(100, 49, 100)]).is_wanted());
        assert!(seen(&[(10, 9, 100), (10, 4, 1000)]).is_wanted());
    }

    /// A gateway near its capacity had lost packets for each of them.
    #[test]
    fn a_daemon_s_bursts_want_nothing() {
        let mut contention = seen(&[(9, 0, 100)]);
        for interval in 0..1000 {
            let contended = if interval % 10 == 0 { 9 } else { 1 };
            contention.on_interval(MS * 10, MS * 9, MS * contended);
            assert!(!contention.is_wanted());
        }
    }

    #[test]
    fn who_gets_what_the_limit_leaves_still_wants_it_until_the_end() {
        // It waits for less than half of the time then.
        let served = [(9, 9, 200), (9, 4, 2000)];
        assert!(seen(&served).is_wanted());
        assert!(!seen(&[served[0], served[1], (9, 0, 40)]).is_wanted());
    }

    /// Who had waited for long is forgotten more slowly: the less receiving the limit lets through,
    /// the more weight has what was before.
    #[test]
    fn a_limit_holds_for_a_second_after_a_burst_and_for_some_after_more() {
        for network in 1..=9 {
            let (burst, long) = ((9, 9, 5), (9, 9, 500));
            assert!(seen(&[burst, (network, network, 5)]).is_wanted());
            assert!(!seen(&[burst, (network, 0, 100)]).is_wanted());
            assert!(!seen(&[long, (network, 0, 300)]).is_wanted());
        }
    }

    /// What is left of the last second's time on receiving passes one nanosecond on its way to
    /// none, and half of that is nothing.
    #[test]
    fn a_cpu_that_nobody_waits_for_is_not_wanted_while_receiving_is_forgotten() {
        let mut contention = seen(&[(9, 0, 100)]);
        for interval in 0..10_000 {
            contention.on_interval(MS * 10, Duration::ZERO, Duration::ZERO);
            assert!(!contention.is_wanted(), "{interval}");
        }
    }

    #[test]
    fn intervals_of_any_length_are_taken() {
        let mut contention = Contention::default();
        let mut after = |elapsed, network, contended| {
            contention.on_interval(MS * elapsed, MS * network, MS * contended);
            contention.is_wanted()
        };
        assert!(after(5000, 5000, 5000), "longer than the window");
        assert!(after(0, 0, 0), "nothing passed");
        assert!(!after(5000, 100, 2), "all before has left the window");
        assert!(after(1000, 1, 5000), "no more than all of it");
        assert!(!after(1000, 0, 0), "nothing was received");
        assert!(after(0, 5000, 5000), "clocks that differ");
    }
}
