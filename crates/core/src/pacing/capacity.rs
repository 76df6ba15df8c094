//! What a path can carry, estimated from arrivals, and the rate to start with.
//!
//! Packets sent back to back leave the bottleneck one transmission time apart,
//! so their spacing on arrival is its rate (packet pair). A pair alone errs:
//! cross traffic between the two makes it slow, a queue behind the bottleneck or
//! two parallel channels make it fast. [`CapacityEstimator`] therefore looks at
//! bunches of two to five packets, takes the median over the latest sixteen
//! bunches for each size, and reports the range over the sizes: narrow where the
//! path is plain, wide where the pair is misled. A known capacity lets a sender
//! start at once instead of probing by slow start.
//!
//! Source: Aron and Druschel, sections 5.7 and 6 and appendix A.2: ST-38 to
//! ST-41. The paper names packet pair and packet bunch modes without giving an
//! algorithm; the medians over bunch sizes here are a small form of the latter,
//! without its search for several modes. Receiver-side use needs nothing else:
//! feed it where the packets arrive. Fed with ACK arrivals at the sender it
//! measures the slower of both directions.
//!
//! Limits: arrivals must be stamped when they happen. Stamps taken after
//! interrupt holdoff or in one poll are equal or microseconds apart and measure
//! the host; equal ones are dropped. It loses on paths whose capacity changes
//! faster than sixteen bunches come.

use core::time::Duration;

use super::Rate;
use crate::config::{ConfigError, Field, Fraction, PPM};
use crate::time::Instant;

/// The bunch sizes that are looked at: two to five packets.
const BUNCH_MAX: usize = 5;
const SIZES: usize = BUNCH_MAX - 1;

/// Bunches remembered per size, and how many of them make an estimate.
const SAMPLES: usize = 16;
const SAMPLES_MIN: usize = 3;

/// Bytes that arrived after the first packet of a bunch, and how long after.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    bytes: u32,
    nanos: u32,
}

impl Sample {
    fn rate(self) -> Rate {
        Rate::from_interval(self.bytes.into(), Duration::from_nanos(self.nanos.into()))
    }
}

/// The latest samples of one bunch size.
#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    ring: [Sample; SAMPLES],
    /// How many were ever written.
    written: usize,
}

impl Samples {
    fn push(&mut self, sample: Sample) {
        self.ring[self.written % SAMPLES] = sample;
        self.written += 1;
    }

    fn median(&self) -> Option<Rate> {
        let held = self.written.min(SAMPLES);
        if held < SAMPLES_MIN {
            return None;
        }
        let mut rates = self.ring.map(Sample::rate);
        let rates = &mut rates[..held];
        rates.sort_unstable();
        Some(rates[(held - 1) / 2])
    }
}

/// What the bunches of different sizes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityEstimate {
    /// The lowest median over the bunch sizes: the estimate to use.
    pub low: Rate,
    /// The highest. Far above `low`, the path reorders, has parallel channels
    /// or much cross traffic, and `low` should be trusted less.
    pub high: Rate,
}

/// Estimates a path's capacity from arrival times; see the module's doc.
/// 600 bytes, nothing on the heap.
#[derive(Clone, Copy, Debug, Default)]
pub struct CapacityEstimator {
    samples: [Samples; SIZES],
    /// When the bunch's first packet arrived.
    first: Option<Instant>,
    /// Packets and bytes of the bunch after the first.
    packets: usize,
    bytes: u32,
}

// What one path's estimator occupies, as its doc promises.
const _: () = assert!(size_of::<CapacityEstimator>() <= 600);

impl CapacityEstimator {
    /// Knows nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next arrival belongs to packets sent back to back anew.
    pub fn on_bunch_start(&mut self) {
        self.first = None;
        self.packets = 0;
        self.bytes = 0;
    }

    /// A packet of `bytes` arrived (headers included, as they take time on the
    /// line too).
    pub fn on_arrival(&mut self, now: Instant, bytes: u32) {
        let Some(first) = self.first else {
            self.first = Some(now);
            return;
        };
        if self.packets == SIZES {
            return;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        let elapsed = now.saturating_since(first).as_nanos();
        if let Ok(nanos @ 1..) = u32::try_from(elapsed) {
            self.samples[self.packets].push(Sample {
                bytes: self.bytes,
                nanos,
            });
        }
        self.packets += 1;
    }

    /// The estimate; `None` before three bunches came.
    #[must_use]
    pub fn estimate(&self) -> Option<CapacityEstimate> {
        let medians = || self.samples.iter().filter_map(Samples::median);
        Some(CapacityEstimate {
            low: medians().min()?,
            high: medians().max()?,
        })
    }
}

/// What is known about a path before the first packet is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownCapacity {
    /// The network guarantees it (reserved, or a configured link).
    Reserved(Rate),
    /// Measured, as by [`CapacityEstimator`].
    Estimated(Rate),
    /// The average rate of the connection's last busy period
    /// ([`Train::average_rate`](super::Train::average_rate)).
    LastBusyPeriod(Rate),
    /// Nothing.
    Unknown,
}

/// The rate at which a flow starts, in place of slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartConfig {
    /// The part of an estimate to start with: an estimate may be wrong or the
    /// path shared. Higher starts faster and risks loss for all. A reserved
    /// capacity is used whole. Unpublished; default one half.
    pub fraction: Fraction,
    /// Where nothing is known. Default 10 packets of 1500 bytes per 100 ms, the
    /// usual initial window over a long path.
    pub unknown: Rate,
}

impl Default for StartConfig {
    fn default() -> Self {
        Self {
            fraction: Fraction::from_percent(50),
            unknown: Rate::from_interval(15_000, Duration::from_millis(100)),
        }
    }
}

impl StartConfig {
    /// Says which field cannot be worked with.
    ///
    /// # Errors
    ///
    /// A fraction of nothing.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Field("fraction", self.fraction).must_be_in(PPM.., "above 0")
    }

    /// The rate to start with.
    #[must_use]
    pub fn rate(&self, capacity: KnownCapacity) -> Rate {
        match capacity {
            KnownCapacity::Reserved(rate) => rate,
            KnownCapacity::Estimated(rate) | KnownCapacity::LastBusyPeriod(rate) => {
                Rate::clamped(self.fraction.of(rate.bits_per_second()))
            }
            KnownCapacity::Unknown => self.unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn megabits(rate: u64) -> Rate {
        Rate::from_bits_per_second(rate * 1_000_000).unwrap()
    }

    /// A bunch of five full-size packets with these gaps in µs.
    fn bunch(estimator: &mut CapacityEstimator, start: u64, gaps: [u64; 4]) {
        estimator.on_bunch_start();
        let mut now = Instant::from_nanos(start * 1_000_000);
        estimator.on_arrival(now, 1500);
        for gap in gaps {
            now += Duration::from_micros(gap);
            estimator.on_arrival(now, 1500);
        }
    }

    #[test]
    fn packets_back_to_back_arrive_at_the_bottlenecks_rate() {
        let mut estimator = CapacityEstimator::new();
        bunch(&mut estimator, 0, [240; 4]);
        bunch(&mut estimator, 1, [240; 4]);
        assert_eq!(estimator.estimate(), None, "two bunches are chance");
        bunch(&mut estimator, 2, [240; 4]);
        let fifty = megabits(50);
        assert_eq!(
            estimator.estimate(),
            Some(CapacityEstimate {
                low: fifty,
                high: fifty
            })
        );
    }

    #[test]
    fn cross_traffic_in_some_bunches_does_not_move_the_median() {
        let mut estimator = CapacityEstimator::new();
        for start in 0..16 {
            // Every third bunch has foreign packets between its own.
            let foreign = if start % 3 == 0 { 700 } else { 0 };
            bunch(&mut estimator, start, [120 + foreign, 120, 120, 120]);
        }
        assert_eq!(estimator.estimate().unwrap().low, megabits(100));
    }

    #[test]
    fn a_pair_misled_by_parallel_channels_shows_as_a_wide_range() {
        let mut estimator = CapacityEstimator::new();
        for start in 0..16 {
            // Two channels: packets arrive two by two.
            bunch(&mut estimator, start, [1, 239, 1, 239]);
        }
        let estimate = estimator.estimate().unwrap();
        assert!(estimate.high > megabits(10_000));
        // Four packets after the first, in 480 µs.
        assert_eq!(estimate.low, megabits(100));
    }

    #[test]
    fn old_bunches_are_forgotten() {
        let mut estimator = CapacityEstimator::new();
        for start in 0..40 {
            let gap = if start < 20 { 120 } else { 1200 };
            bunch(&mut estimator, start, [gap; 4]);
        }
        assert_eq!(estimator.estimate().unwrap().high, megabits(10));
    }

    #[test]
    fn arrivals_stamped_alike_and_longer_bunches_are_left_out() {
        let mut estimator = CapacityEstimator::new();
        for start in 0..8 {
            bunch(&mut estimator, start, [0; 4]);
            // A sixth packet, long after.
            estimator.on_arrival(Instant::MAX, 1500);
        }
        assert_eq!(estimator.estimate(), None);
    }

    #[test]
    fn a_reserved_capacity_is_used_whole_and_an_estimate_in_part() {
        let config = StartConfig::default();
        config.validate().unwrap();
        let fifty = megabits(50);
        assert_eq!(config.rate(KnownCapacity::Reserved(fifty)), fifty);
        assert_eq!(config.rate(KnownCapacity::Estimated(fifty)), megabits(25));
        assert_eq!(
            config.rate(KnownCapacity::LastBusyPeriod(fifty)),
            megabits(25)
        );
        assert_eq!(
            config.rate(KnownCapacity::Unknown).interval(1500),
            Duration::from_millis(10)
        );
        assert_eq!(config.rate(KnownCapacity::Estimated(Rate::MIN)), Rate::MIN);
    }

    #[test]
    fn a_fraction_of_nothing_is_refused() {
        let config = StartConfig {
            fraction: Fraction::NONE,
            ..StartConfig::default()
        };
        assert_eq!(config.validate().unwrap_err().field, "fraction");
    }
}
