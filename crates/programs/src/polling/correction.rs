//! Holds the CPU limit by all that polling costs its CPU.
//!
//! A polling thread's own clock lacks what the network takes around it: interrupts that wake
//! it, softirqs in other contexts, switches. A process beside a flooded router got 13 % of
//! the CPU where it was promised 25. So the meter's view of the whole CPU corrects the
//! threads' limit ([`PollingLimit::on_observation`]), as in the guard.
//!
//! **Limits.** The meter sees one CPU, so there is no correction unless polling is kept to
//! one. If the meter cannot be started, the limit is that of the threads' own clocks, and
//! [`Correction::problem`] says why.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use plimsoll_core::config::Fraction;
use plimsoll_kernel::Error;
use plimsoll_kernel::error::os;
use plimsoll_kernel::meter::{CpuMeter, CpuTime, MeterError, Options};
use plimsoll_kernel::polling_limit::{Observation, PollingLimit};

/// Some periods of the limit.
const INTERVAL: Duration = Duration::from_millis(10);
/// A CPU that is idle for more than this part has time for everybody …
const IDLE_MAX: f64 = 0.02;
/// … and where others use less than this part of what the limit leaves, they have all they want: a
/// daemon, for example. Whoever computes takes all that is left, or is kept from it.
const WANTED_MIN: f64 = 1.0 / 3.0;

/// The correcting thread. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Correction {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    problem: Option<MeterError>,
}

impl Correction {
    /// Starts to correct `limit`, or finds out why it cannot.
    pub(super) fn start(limit: &Arc<PollingLimit>, cpu: usize) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let (limit, stopped) = (Arc::clone(limit), Arc::clone(&stop));
        let (began, beginning) = channel();
        let thread = thread::Builder::new()
            .name("limit-meter".to_owned())
            .spawn(move || correct(&limit, cpu, &stopped, &began));
        let thread = thread.map_err(os("start the thread that corrects the CPU limit"))?;
        Ok(Self {
            stop,
            thread: Some(thread),
            problem: beginning.recv().ok().flatten(),
        })
    }

    /// Why nothing is corrected.
    pub(super) const fn problem(&self) -> Option<&MeterError> {
        self.problem.as_ref()
    }
}

impl Drop for Correction {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; the limit is as it was last.
            let _ = thread.join();
        }
    }
}

/// Tells `began` of the problem that keeps it from correcting, if there is one.
fn correct(
    limit: &PollingLimit,
    cpu: usize,
    stop: &AtomicBool,
    began: &Sender<Option<MeterError>>,
) {
    let options = Options {
        cpu: Some(cpu),
        watches: true,
        ..Options::default()
    };
    let (meter, problem) = match CpuMeter::start(options) {
        Ok(meter) => (Some(meter), None),
        Err(problem) => (None, Some(problem)),
    };
    // Whoever started this waits for it.
    let _ = began.send(problem);
    let Some(mut meter) = meter else {
        return;
    };
    meter.watch(std::process::id());
    let mut before = meter.snapshot();
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(INTERVAL);
        let now = meter.snapshot();
        let passed = now.since(&before);
        before = now;
        limit.on_observation(&Observation {
            elapsed: passed.elapsed,
            network: passed.network + own(&passed),
            is_wanted: is_wanted(&passed, limit.limit()),
        });
    }
}

/// What this process used: it takes frames, and it watches its limit.
fn own(passed: &CpuTime) -> Duration {
    passed.processes.iter().map(|process| process.cpu).sum()
}

/// Whether other processes want more of the CPU than they get beside threads with this limit.
fn is_wanted(passed: &CpuTime, limit: Fraction) -> bool {
    let others = passed.app.saturating_sub(own(passed));
    let left = f64::from(limit.complement().as_ppm()) / 1e6;
    passed.share(passed.idle) <= IDLE_MAX && passed.share(others) >= WANTED_MIN * left
}

#[cfg(test)]
mod tests {
    use plimsoll_kernel::meter::ProcessTime;

    use super::*;

    #[test]
    fn a_meter_that_cannot_start_is_told() {
        let limit = PollingLimit::start(Fraction::from_percent(75), Vec::new()).unwrap();
        let correction = Correction::start(&Arc::new(limit), 1 << 20).unwrap();
        let problem = correction.problem().map(ToString::to_string);
        assert!(problem.is_some_and(|problem| problem.contains("CPU 1048576")));
    }

    #[test]
    fn a_limit_is_corrected_only_while_others_want_the_cpu() {
        let own_ms = 100;
        let passed = |app_ms: u64, network_ms: u64, idle_ms: u64| CpuTime {
            elapsed: Duration::from_millis(1000),
            app: Duration::from_millis(app_ms),
            network: Duration::from_millis(network_ms),
            contended: Duration::ZERO,
            other: Duration::ZERO,
            idle: Duration::from_millis(idle_ms),
            processes: vec![ProcessTime {
                pid: 1,
                cpu: Duration::from_millis(own_ms),
            }],
        };
        let limit = Fraction::from_percent(75);
        let is_wanted = |passed| is_wanted(&passed, limit);
        assert!(is_wanted(passed(190, 810, 0)));
        assert!(!is_wanted(passed(own_ms, 900, 0)), "nobody else is there");
        assert!(
            !is_wanted(passed(170, 830, 0)),
            "a daemon has what it wants"
        );
        assert!(!is_wanted(passed(200, 700, 100)), "there is time left");
    }
}
