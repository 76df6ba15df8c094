//! What is measured of timers: times, and the medians of windows.

use hdrhistogram::Histogram;

/// A distribution of times in ns.
pub(super) struct Times {
    histogram: Histogram<u64>,
    least: i64,
    sum: f64,
    squares: f64,
}

impl Times {
    pub(super) fn new() -> Self {
        Self {
            histogram: Histogram::new_with_bounds(1, 10_000_000_000, 3).expect("fixed bounds"),
            least: i64::MAX,
            sum: 0.0,
            squares: 0.0,
        }
    }

    pub(super) fn record(&mut self, ns: u64) {
        self.record_signed(ns.cast_signed());
    }

    /// Of what may come too early: the least and the mean tell it, where the histogram has 1 ns.
    pub(super) fn record_signed(&mut self, ns: i64) {
        self.histogram.saturating_record(ns.max(1).cast_unsigned());
        self.least = self.least.min(ns);
        self.sum += ns as f64;
        self.squares += (ns as f64).powi(2);
    }

    pub(super) fn record_since(&mut self, last: Option<u64>, now: u64) {
        if let Some(last) = last {
            self.record(now - last);
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// In µs.
    pub(super) fn percentile(&self, percent: f64) -> f64 {
        self.histogram.value_at_percentile(percent) as f64 / 1e3
    }

    /// Percent of the values above `ns`.
    pub(super) fn above(&self, ns: u64) -> f64 {
        let below = self.histogram.count_between(0, ns) as f64;
        100.0 * (1.0 - below / self.count().max(1) as f64)
    }

    pub(super) fn figures(&self, name: &str) -> Vec<(String, f64)> {
        if self.count() == 0 {
            return Vec::new();
        }
        let count = self.count() as f64;
        let mean = self.sum / count;
        let variance = (self.squares / count - mean * mean).max(0.0);
        let values = [
            ("mean", mean / 1e3),
            ("stddev", variance.sqrt() / 1e3),
            ("median", self.percentile(50.0)),
            ("min", self.least as f64 / 1e3),
            ("max", self.histogram.max() as f64 / 1e3),
        ];
        values
            .map(|(part, value)| (format!("{name}_{part}_us"), value))
            .to_vec()
    }
}

/// Medians of the intervals within windows of equal length.
pub(super) struct Windows {
    length_ns: u64,
    current: u64,
    inside: Vec<u64>,
    pub(super) medians: Times,
}

impl Windows {
    pub(super) fn new(length_ns: u64) -> Self {
        Self {
            length_ns,
            current: 0,
            inside: Vec::new(),
            medians: Times::new(),
        }
    }

    pub(super) fn record(&mut self, now: u64, interval: u64) {
        let window = now / self.length_ns;
        if window != self.current {
            self.current = window;
            self.inside.sort_unstable();
            if let Some(median) = self.inside.get(self.inside.len() / 2) {
                self.medians.record(*median);
            }
            self.inside.clear();
        }
        self.inside.push(interval);
    }
}
