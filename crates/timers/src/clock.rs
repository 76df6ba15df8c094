//! The clocks that soft timers are asked with.
//!
//! A check is made every few microseconds, so reading the clock is most of its
//! cost. [`CycleClock`] reads the processor's counter without a call into the
//! kernel or its shared page.
//!
//! **Why `quanta`.** Four crates read the counter. `quanta` finds by CPUID
//! whether it is invariant, works on x86-64 and `AArch64`, converts with integers
//! and calibrates when the first clock is made. `minstant` is no longer kept;
//! `fastant`, its successor, runs code before `main` and converts with floating
//! point; `tsc` and `tsc-time` read the counter and nothing else.

use std::cell::Cell;
use std::fs;
use std::rc::Rc;
use std::time;

use plimsoll_core::time::Instant;

/// Where the kernel lists the counters that it trusts.
const TRUSTED_COUNTERS: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

/// A source of points in time, for one thread or for several.
///
/// It should not step. Forward steps fire events early by as much, backward
/// steps delay them; no event is lost or fired twice by either.
pub trait Clock {
    /// The present time, since an origin of the clock's own.
    fn now(&self) -> Instant;
}

impl<C: Clock> Clock for &C {
    #[inline]
    fn now(&self) -> Instant {
        (**self).now()
    }
}

/// The processor's cycle counter in nanoseconds, or the kernel's monotonic
/// clock where the counter cannot be trusted.
///
/// The counter is trusted if the processor calls it invariant and the kernel
/// has not struck it from its own list (it does so when CPUs disagree). Setting
/// the time of day moves neither clock. The first clock of a process is
/// calibrated for 1 to 200 ms. Against the kernel's clock it then runs fast or
/// slow by some parts in 100,000, so it measures intervals, no dates.
///
/// **A machine that sleeps.** While the whole machine sleeps the counter may go on, which
/// fires events early by as much; or it begins anew, and then the clock stands still until
/// the counter has passed where this clock began. Where a machine may sleep, take
/// [`CycleClock::from_kernel`], which does not count that time.
#[derive(Clone, Debug)]
pub struct CycleClock {
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Counter { clock: quanta::Clock, origin: u64 },
    Kernel { origin: time::Instant },
}

impl CycleClock {
    /// The cycle counter if it can be trusted, else the kernel's clock.
    #[must_use]
    pub fn new() -> Self {
        if !counter_is_trusted() {
            return Self::from_kernel();
        }
        let clock = quanta::Clock::new();
        let origin = clock.raw();
        Self {
            source: Source::Counter { clock, origin },
        }
    }

    /// The kernel's monotonic clock (`clock_gettime`), whatever the processor
    /// has.
    #[must_use]
    pub fn from_kernel() -> Self {
        Self {
            source: Source::Kernel {
                origin: time::Instant::now(),
            },
        }
    }

    /// Whether the processor's counter is read.
    #[must_use]
    pub fn reads_counter(&self) -> bool {
        matches!(self.source, Source::Counter { .. })
    }
}

impl Default for CycleClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for CycleClock {
    #[inline]
    fn now(&self) -> Instant {
        Instant::from_nanos(match &self.source {
            Source::Counter { clock, origin } => clock.delta_as_nanos(*origin, clock.raw()),
            Source::Kernel { origin } => {
                u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
            }
        })
    }
}

/// The kernel watches the counters of all CPUs and strikes one that drifts.
/// Where its list cannot be read, the processor's word is enough.
fn counter_is_trusted() -> bool {
    fs::read_to_string(TRUSTED_COUNTERS).map_or(true, |list| is_counter_in(&list))
}

fn is_counter_in(list: &str) -> bool {
    list.split_whitespace()
        .any(|name| name == "tsc" || name == "arch_sys_counter")
}

/// A clock that stands still until it is moved: for tests of programs that use
/// soft timers. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct MovedClock(Rc<Cell<Instant>>);

impl MovedClock {
    /// Moves the clock to `now`, forward or back.
    pub fn set(&self, now: Instant) {
        self.0.set(now);
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: time::Duration) {
        self.0.set(self.0.get() + by);
    }
}

impl Clock for MovedClock {
    fn now(&self) -> Instant {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_the_kernel_struck_is_not_read() {
        assert!(is_counter_in("tsc kvm-clock acpi_pm\n"));
        assert!(is_counter_in("arch_sys_counter"));
        assert!(!is_counter_in("kvm-clock hpet acpi_pm\n"));
    }

    /// Each reading lies between two readings of the kernel's clock, however
    /// long this thread was interrupted between them.
    #[test]
    fn both_sources_run_as_fast_as_the_kernels_clock() {
        for clock in [CycleClock::new(), CycleClock::from_kernel()] {
            let read = || {
                let before = time::Instant::now();
                let now = clock.now();
                (before, now, time::Instant::now())
            };
            let (before, start, after) = read();
            std::thread::sleep(time::Duration::from_millis(300));
            let (end_before, end, end_after) = read();
            let span = end.saturating_since(start);
            let tolerance = (end_after - before) / 1000;
            assert!(span + tolerance >= end_before - after, "{clock:?} is slow");
            assert!(span <= end_after - before + tolerance, "{clock:?} is fast");
        }
    }

    #[test]
    fn a_clock_does_not_go_back() {
        let clock = CycleClock::new();
        let mut last = clock.now();
        for _ in 0..100_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
