//! What a path did, by its own stamps.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Both directions of a path.
#[derive(Clone, Debug)]
pub struct Report {
    /// From the near host to the far one.
    pub there: Direction,
    /// From the far host to the near one.
    pub back: Direction,
}

/// Every frame that was offered is in one of the counts below it.
#[derive(Clone, Debug)]
pub struct Direction {
    /// Frames that came.
    pub offered: u64,
    /// Frames that left at the other end.
    pub delivered: u64,
    /// Frames that found the bottleneck's queue full.
    pub queue_full: u64,
    /// Frames that the interface at the other end refused.
    pub refused: u64,
    /// Frames that were on their way when the path ended.
    pub travelling: u64,
    /// Frames that the path's own socket lost before they were offered. If there are
    /// any, the path was overloaded, and its figures are none of a path.
    pub unreceived: u64,
    /// How much later than due each delivered frame left, in nanoseconds.
    lateness_ns: Histogram<u64>,
    /// The first delivered frames, as many as asked for.
    pub passages: Vec<Passage>,
}

/// One frame's way. Times are nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The kernel saw it come.
    pub offered_ns: u64,
    /// It was to leave at the other end.
    pub due_ns: u64,
    /// It was given to the interface there.
    pub delivered_ns: u64,
    /// Its length with the Ethernet header.
    pub bytes: u32,
}

/// More is counted as this: nothing on a path takes a minute.
const LATENESS_MAX_NS: u64 = 60_000_000_000;

impl Direction {
    pub(super) fn new(passages_max: usize) -> Self {
        let lateness_ns = Histogram::new_with_max(LATENESS_MAX_NS, 3);
        Self {
            offered: 0,
            delivered: 0,
            queue_full: 0,
            refused: 0,
            travelling: 0,
            unreceived: 0,
            lateness_ns: lateness_ns.expect("three digits up to a minute"),
            passages: Vec::with_capacity(passages_max),
        }
    }

    pub(super) fn count_lateness(&mut self, late: Duration) {
        let nanos = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        self.lateness_ns.saturating_record(nanos);
    }

    /// Frames that are in one of the counts.
    #[must_use]
    pub fn accounted(&self) -> u64 {
        self.delivered + self.queue_full + self.refused + self.travelling
    }

    /// This share of the delivered frames (0 to 1) left no later than that.
    #[must_use]
    pub fn lateness(&self, share: f64) -> Duration {
        Duration::from_nanos(self.lateness_ns.value_at_quantile(share))
    }

    /// The share of the delivered frames (0 to 1) that left at most so late.
    #[must_use]
    pub fn share_within(&self, late: Duration) -> f64 {
        if self.lateness_ns.is_empty() {
            return 0.0;
        }
        let nanos = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        let within = self
            .lateness_ns
            .count_between(0, nanos.min(LATENESS_MAX_NS));
        within as f64 / self.lateness_ns.len() as f64
    }

    /// Adds what another run of the same direction counted.
    pub fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.delivered += other.delivered;
        self.queue_full += other.queue_full;
        self.refused += other.refused;
        self.travelling += other.travelling;
        self.unreceived += other.unreceived;
        // Both have the same bounds.
        let _ = self.lateness_ns.add(&other.lateness_ns);
        self.passages.extend_from_slice(&other.passages);
    }
}
