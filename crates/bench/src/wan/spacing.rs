//! How evenly a sender's frames reach the path (the paper's tables VIII and IX: ST-63).

use plimsoll_testbed::wide_area::Passage;
use serde::Serialize;

/// Intervals between full frames, within transfers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spacing {
    /// How many.
    pub intervals: u64,
    /// Their mean in microseconds.
    pub mean_us: f64,
    /// Their standard deviation in microseconds.
    pub stddev_us: f64,
}

/// Data, and not an acknowledgement or a request.
const FULL_BYTES: u32 = 1400;
/// A longer interval lies between transfers, or between the flights of slow start.
const PAUSE_NS: u64 = 5_000_000;

impl Spacing {
    /// Over all that was delivered; nothing without two frames in a row.
    pub(super) fn of(passages: &[Passage]) -> Option<Self> {
        let full: Vec<u64> = passages
            .iter()
            .filter(|passage| passage.bytes >= FULL_BYTES)
            .map(|passage| passage.offered_ns)
            .collect();
        let gaps = full.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        let gaps: Vec<f64> = gaps
            .filter(|gap| *gap < PAUSE_NS)
            .map(|gap| gap as f64 / 1e3)
            .collect();
        let number = gaps.len() as f64;
        let mean_us = gaps.iter().sum::<f64>() / number;
        let squares = gaps.iter().map(|gap| (gap - mean_us).powi(2)).sum::<f64>();
        (!gaps.is_empty()).then_some(Self {
            intervals: gaps.len() as u64,
            mean_us,
            stddev_us: (squares / number).sqrt(),
        })
    }

    /// As if both were one.
    pub(super) fn with(self, other: Self) -> Self {
        let (one, two) = (self.intervals as f64, other.intervals as f64);
        let mean_us = (one * self.mean_us + two * other.mean_us) / (one + two);
        let around =
            |spacing: Self| spacing.stddev_us.powi(2) + (spacing.mean_us - mean_us).powi(2);
        let variance = (one * around(self) + two * around(other)) / (one + two);
        Self {
            intervals: self.intervals + other.intervals,
            mean_us,
            stddev_us: variance.sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passages(times_us: &[u64]) -> Vec<Passage> {
        let passage = |micros: &u64| Passage {
            offered_ns: micros * 1000,
            due_ns: 0,
            delivered_ns: 0,
            bytes: 1514,
        };
        times_us.iter().map(passage).collect()
    }

    #[test]
    fn pauses_and_small_frames_do_not_count() {
        let mut all = passages(&[0, 100, 220, 320, 100_000, 100_120]);
        all[1].bytes = 60;
        let spacing = Spacing::of(&all).unwrap();
        assert_eq!(spacing.intervals, 3);
        assert!((spacing.mean_us - 440.0 / 3.0).abs() < 1e-9);
        assert_eq!(Spacing::of(&passages(&[7])), None);
    }

    #[test]
    fn two_rounds_are_as_one() {
        let (first, second) = (passages(&[0, 100, 220]), passages(&[0, 90, 290, 400]));
        let whole = passages(&[0, 100, 220, 10_000, 10_090, 10_290, 10_400]);
        let (first, second) = (Spacing::of(&first).unwrap(), Spacing::of(&second).unwrap());
        let (joined, whole) = (first.with(second), Spacing::of(&whole).unwrap());
        assert_eq!(joined.intervals, whole.intervals);
        assert!((joined.mean_us - whole.mean_us).abs() < 1e-9);
        assert!((joined.stddev_us - whole.stddev_us).abs() < 1e-9);
    }
}
