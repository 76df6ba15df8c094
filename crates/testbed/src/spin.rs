//! Work of a known amount: a loop calibrated against the monotonic clock.
//!
//! A server that waited for the clock to pass would get its work done while an
//! interrupt handler runs on its CPU. The loop takes CPU time of its own, so a
//! server that is interrupted finishes later, as a real one does.
//!
//! # Limits
//!
//! The amount is as true as the CPU's speed is steady. On a shared virtual
//! machine a calibration that fell into a slow spell came out a third too
//! small. Many short windows over some tens of milliseconds make that rarer,
//! not impossible: compare servers of one process where the amount matters, or
//! repeat with servers started anew and report the median.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// A piece of work that takes a given time on an undisturbed CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    rounds: u64,
}

impl Work {
    /// Calibrates work of `span`. Takes some tens of milliseconds, unless `span` is zero.
    pub(crate) fn calibrate(span: Duration) -> Self {
        if span.is_zero() {
            return Self { rounds: 0 };
        }
        let rounds = ROUNDS_PER_WINDOW as f64 * span.as_secs_f64() / fastest_window().as_secs_f64();
        Self {
            rounds: rounds as u64,
        }
    }

    /// So many times the work, as one piece.
    pub(crate) fn times(self, count: u32) -> Self {
        Self {
            rounds: self.rounds.saturating_mul(count.into()),
        }
    }

    /// Does the work.
    pub(crate) fn run(self) {
        spin(self.rounds);
    }
}

const ROUNDS_PER_WINDOW: u64 = 20_000;
const WINDOWS: usize = 1000;

/// The fastest of many windows is the one that nothing interrupted.
fn fastest_window() -> Duration {
    let windows = (0..WINDOWS).map(|_| {
        let begun = Instant::now();
        spin(ROUNDS_PER_WINDOW);
        begun.elapsed()
    });
    windows
        .min()
        .unwrap_or_default()
        .max(Duration::from_nanos(1))
}

/// A chain of dependent multiplications, which the compiler cannot shorten.
fn spin(rounds: u64) {
    let mut value = 1u64;
    for _ in 0..rounds {
        value = black_box(
            value
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1),
        );
    }
    black_box(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fastest(work: Work) -> Duration {
        let taken = (0..200).map(|_| {
            let begun = Instant::now();
            work.run();
            begun.elapsed()
        });
        taken.min().unwrap_or_default()
    }

    #[test]
    fn work_takes_the_time_asked_for() {
        let span = Duration::from_micros(50);
        // The promise is for an undisturbed CPU, and this one has neighbours:
        // one calibration of several must meet a steady spell.
        let measured: Vec<Duration> = (0..8).map(|_| fastest(Work::calibrate(span))).collect();
        let right = |taken: &Duration| *taken > span.mul_f64(0.8) && *taken < span.mul_f64(1.25);
        assert!(
            measured.iter().any(right),
            "{measured:?} instead of {span:?}"
        );
        assert_eq!(Work::calibrate(Duration::ZERO).rounds, 0);
    }
}
