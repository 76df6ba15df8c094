//! Exactly one outcome per packet.

use hdrhistogram::Histogram;

use crate::outcome::{Latency, Place};
use crate::packet::Packet;

/// The longest time told apart: longer ones count as this, an hour.
const TIME_MAX_NS: u64 = 3_600_000_000_000;

/// Counts that only grow; what is measured is the growth after the warm-up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Packets that sources and the host made.
    pub(crate) created: u64,
    /// Packets that came to an end, however.
    pub(crate) ended: u64,
    pub(crate) offered: u64,
    /// Packets the host took from receive rings.
    pub(crate) taken: u64,
    /// How long these had been there, in ns.
    pub(crate) ring_wait_ns: u64,
    pub(crate) delivered: u64,
    pub(crate) transmitted: u64,
    pub(crate) interrupts: u64,
    pub(crate) soft_interrupts: u64,
    pub(crate) polls: u64,
    pub(crate) switches: u64,
    pub(crate) lost: [u64; Place::ALL.len()],
    pub(crate) lost_work_ns: [u64; Place::ALL.len()],
}

/// What a source's packets came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SourceCounts {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    pub(crate) completed: u64,
    pub(crate) timeouts: u64,
}

/// All counts of a run.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) counts: Counts,
    pub(crate) sources: Vec<SourceCounts>,
    pub(crate) round_trips: Vec<Times>,
    /// Packets per burst, by source; 0 for those that send none.
    pub(crate) bursts: Vec<u32>,
    /// Of the first packets of bursts.
    pub(crate) first_latencies: Vec<Times>,
    /// The same until a transmitter has them.
    pub(crate) first_handovers: Vec<Times>,
    /// True once the warm-up is over.
    pub(crate) measuring: bool,
}

impl Ledger {
    pub(crate) fn new(sources: usize) -> Self {
        Self {
            counts: Counts::default(),
            sources: vec![SourceCounts::default(); sources],
            round_trips: (0..sources).map(|_| Times::default()).collect(),
            bursts: vec![0; sources],
            first_latencies: (0..sources).map(|_| Times::default()).collect(),
            first_handovers: (0..sources).map(|_| Times::default()).collect(),
            measuring: false,
        }
    }

    #[inline]
    pub(crate) fn lose(&mut self, packet: &Packet, place: Place) {
        let counts = &mut self.counts;
        counts.ended += 1;
        counts.lost[place as usize] += 1;
        counts.lost_work_ns[place as usize] += u64::from(packet.work);
        self.sources[usize::from(packet.source)].lost += 1;
    }

    /// A packet served its purpose after `latency` ns on the host.
    #[inline]
    pub(crate) fn deliver(&mut self, packet: &Packet, latency: u64) {
        self.counts.ended += 1;
        self.counts.delivered += 1;
        if self.is_first(packet) {
            self.first_latencies[usize::from(packet.source)].add(latency);
        }
    }

    /// A forwarded packet was given to a transmitter after `latency` ns on the host.
    #[inline]
    pub(crate) fn hand_over(&mut self, packet: &Packet, latency: u64) {
        if self.is_first(packet) {
            self.first_handovers[usize::from(packet.source)].add(latency);
        }
    }

    /// The first packet of a burst, while measuring.
    #[inline]
    fn is_first(&self, packet: &Packet) -> bool {
        let burst = self.bursts[usize::from(packet.source)];
        self.measuring && burst > 0 && packet.tag.is_multiple_of(burst)
    }

    /// A packet came to an end that is neither goodput nor loss.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.counts.ended += 1;
    }
}

/// A distribution of times, of fixed size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    /// Made at the first value: most scenarios need few.
    histogram: Option<Box<Histogram<u64>>>,
    sum_ns: u128,
    sum_squares: f64,
}

impl Times {
    #[inline]
    pub(crate) fn add(&mut self, ns: u64) {
        let histogram = self.histogram.get_or_insert_with(|| {
            let made = Histogram::new_with_bounds(1, TIME_MAX_NS, 3);
            Box::new(made.expect("bounds and digits are in range"))
        });
        histogram.saturating_record(ns.max(1));
        self.sum_ns += u128::from(ns);
        self.sum_squares += ns as f64 * ns as f64;
    }

    pub(crate) fn latency(&self) -> Latency {
        let Some(histogram) = &self.histogram else {
            return Latency::default();
        };
        let micros = |ns: u64| ns as f64 / 1e3;
        let at = |quantile| micros(histogram.value_at_quantile(quantile));
        let count = histogram.len();
        let mean = self.sum_ns as f64 / count as f64;
        let variance = (self.sum_squares / count as f64 - mean * mean).max(0.0);
        Latency {
            count,
            mean_us: mean / 1e3,
            stddev_us: libm::sqrt(variance) / 1e3,
            min_us: micros(histogram.min()),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            max_us: micros(histogram.max()),
        }
    }
}
