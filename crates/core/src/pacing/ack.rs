//! Acknowledgements that come in bursts, and what to do with the packets they
//! release.
//!
//! A self-clocked sender sends when an acknowledgement comes, and relies on
//! acknowledgements being spaced as the packets were at the bottleneck. Two
//! things destroy the spacing: queues on the way back (ACK compression), and
//! receivers that acknowledge a whole train at once (big ACKs: a reader outranked
//! by receive interrupts or busy elsewhere, a delayed-ACK timer, a gateway that
//! filters ACKs). Each burst of ACKs becomes a burst of packets, and a big ACK
//! sustains itself, since the burst it triggers arrives as a train again.
//! [`AckSpacer`] keeps the rate at which packets were acknowledged on average and
//! says when the released packets should be paced at that rate instead.
//!
//! Source: Aron and Druschel, appendix A.1 and A.3 and section 6: ST-43, ST-44,
//! ST-49, with the normal case of ST-45. How much faster is "significantly" and
//! how the average is taken is unpublished; both are settings.
//!
//! The average forgets exponentially, by time and not by ACKs. So a gap on the
//! way back and the compressed burst behind it cancel out, and the burst does
//! not pass for a faster path.
//!
//! Limits: the average must span several acknowledgements; below one per
//! averaging time it says no more than "slow". It loses when the path really
//! became faster: for about an averaging time the new rate is mistaken for
//! compression and smoothed (never stopped). So it is with a sender whose flights
//! still grow. Whoever sends with a window should not let fewer leave than fit into
//! a round trip ([`SlowStart::longest_interval`](super::SlowStart::longest_interval)).
//!
//! Left out: closing the congestion window or a burst limit (ST-48), which keep
//! bursts off the path by draining it.

use core::time::Duration;

use crate::config::{ConfigError, Field, NANOSECOND};
use crate::time::Instant;

/// 2³⁴ ns, about 17 s.
const AVERAGING_MAX: Duration = Duration::from_nanos(1 << 34);
/// Packets are counted in parts of 1/256.
const PACKET: u64 = 256;
/// Four million packets per averaging time.
const PACKETS_MAX: u64 = (1 << 30) - 1;
const _: () = assert!(AVERAGING_MAX.as_nanos() * PACKETS_MAX as u128 <= u64::MAX as u128);

/// When released packets are paced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckSpacingConfig {
    /// An ACK that releases more packets than this is big. Lower values pace
    /// more; below 2 they pace normal delayed ACKs. Default 3, the paper's.
    pub big_ack_packets: u32,
    /// How many times faster than on average ACKs must come to count as
    /// compressed. Default 2.
    pub compression_factor: u32,
    /// How many such ACKs in a row make a burst. The first ones of each burst
    /// pass unpaced. Default 2.
    pub burst_acks: u32,
    /// Averaging time: several round-trip times. Longer is steadier, and follows
    /// a changed path more slowly. At most 17 s; default 400 ms.
    pub averaging: Duration,
    /// Time per acknowledged packet to assume before any was measured.
    /// Default 1 ms.
    pub initial_interval: Duration,
}

impl Default for AckSpacingConfig {
    fn default() -> Self {
        Self {
            big_ack_packets: 3,
            compression_factor: 2,
            burst_acks: 2,
            averaging: Duration::from_millis(400),
            initial_interval: Duration::from_millis(1),
        }
    }
}

// The average multiplies the two.

impl AckSpacingConfig {
    /// Says which field cannot be worked with.
    ///
    /// # Errors
    ///
    /// The first field out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Field("big_ack_packets", self.big_ack_packets).must_be_in(1.., "at least 1")?;
        Field("compression_factor", self.compression_factor)
            .must_be_in(2..=1000, "at least 2 and at most 1000")?;
        Field("burst_acks", self.burst_acks).must_be_in(1.., "at least 1")?;
        Field("averaging", self.averaging)
            .must_be_in(NANOSECOND..=AVERAGING_MAX, "at least 1 ns and at most 17 s")?;
        Field("initial_interval", self.initial_interval).must_be_in(
            NANOSECOND..=self.averaging,
            "at least 1 ns and at most averaging",
        )
    }
}

/// What to do with the packets an acknowledgement released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckRelease {
    /// Send them now, as self-clocking does.
    AtOnce,
    /// Send them one by one, this far apart: the average time per acknowledged
    /// packet ([`Rate::from_interval`](super::Rate::from_interval) makes it a
    /// flow's target rate).
    Paced(Duration),
}

/// The acknowledgements of one connection; see the module's doc.
#[derive(Clone, Copy, Debug)]
pub struct AckSpacer {
    config: AckSpacingConfig,
    averaging_nanos: u64,
    last_ack: Option<Instant>,
    /// Packets per averaging time, in parts of 1/256.
    packets: u64,
    /// ACKs in a row that came too fast.
    fast_acks: u32,
}

impl AckSpacer {
    /// Assumes the configured interval until ACKs were seen.
    ///
    /// # Errors
    ///
    /// A field of `config` is out of its range.
    pub fn new(config: AckSpacingConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let averaging_nanos = config.averaging.as_nanos() as u64;
        let initial_nanos = config.initial_interval.as_nanos() as u64;
        Ok(Self {
            config,
            averaging_nanos,
            last_ack: None,
            packets: (averaging_nanos.saturating_mul(PACKET) / initial_nanos).min(PACKETS_MAX),
            fast_acks: 0,
        })
    }

    /// An ACK lets the sender emit `packets` more (by acknowledging data or by
    /// opening the window).
    pub fn on_ack(&mut self, now: Instant, packets: u32) -> AckRelease {
        let average = self.average_interval();
        let gap = self
            .last_ack
            .map(|last| now.saturating_since(last).as_nanos() as u64);
        self.last_ack = Some(now);
        if let Some(gap) = gap {
            let expected = (average.as_nanos() as u64).saturating_mul(packets.into());
            if gap.saturating_mul(self.config.compression_factor.into()) < expected {
                self.fast_acks = self.fast_acks.saturating_add(1);
            } else {
                self.fast_acks = 0;
            }
            self.average(gap, packets);
        }
        if self.is_big(packets) || self.fast_acks >= self.config.burst_acks {
            AckRelease::Paced(average)
        } else {
            AckRelease::AtOnce
        }
    }

    const fn is_big(&self, packets: u32) -> bool {
        packets > self.config.big_ack_packets
    }

    /// A segment that acknowledges no data opens the window by `packets`. They were counted
    /// when they were acknowledged, so the average stays.
    #[must_use]
    pub fn on_window_update(&self, packets: u32) -> AckRelease {
        if self.is_big(packets) {
            AckRelease::Paced(self.average_interval())
        } else {
            AckRelease::AtOnce
        }
    }

    /// The sender pauses: the time until the next ACK says nothing about the
    /// path.
    pub fn on_idle(&mut self) {
        self.last_ack = None;
        self.fast_acks = 0;
    }

    /// Average time per acknowledged packet.
    #[must_use]
    pub fn average_interval(&self) -> Duration {
        Duration::from_nanos(self.averaging_nanos * PACKET / self.packets.max(1))
    }

    /// Forgets what left the averaging time and adds what came: in the steady
    /// state the sum is exactly packets per averaging time.
    fn average(&mut self, gap: u64, packets: u32) {
        let gap = gap.min(self.averaging_nanos);
        let forgotten = self.packets * gap / self.averaging_nanos;
        let added = u64::from(packets) * PACKET;
        self.packets = (self.packets - forgotten + added).min(PACKETS_MAX);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    const MILLI: u64 = 1_000_000;

    fn spacer() -> AckSpacer {
        let mut spacer = AckSpacer::new(AckSpacingConfig::default()).unwrap();
        for ack in 0..1000 {
            // A delayed ACK for two packets every 2 ms.
            assert_eq!(
                spacer.on_ack(Instant::from_nanos(ack * 2 * MILLI), 2),
                AckRelease::AtOnce
            );
        }
        spacer
    }

    fn assert_close(interval: Duration, expected: Duration) {
        let off = interval.abs_diff(expected);
        assert!(off * 20 <= expected, "{interval:?} is not {expected:?}");
    }

    /// The last of the regular ACKs.
    const NOW: u64 = 999 * 2 * MILLI;

    #[test]
    fn regular_acks_clock_the_sender_and_measure_the_path() {
        assert_close(spacer().average_interval(), Duration::from_millis(1));
        let mut slow = AckSpacer::new(AckSpacingConfig::default()).unwrap();
        for ack in 0..1000 {
            slow.on_ack(Instant::from_nanos(ack * 15 * MILLI), 3);
        }
        assert_close(slow.average_interval(), Duration::from_millis(5));
    }

    #[test]
    fn a_big_ack_is_paced_at_the_average_rate() {
        let mut spacer = spacer();
        let next = Instant::from_nanos(NOW + 40 * MILLI);
        let AckRelease::Paced(interval) = spacer.on_ack(next, 40) else {
            panic!("40 packets at once are a burst");
        };
        assert_close(interval, Duration::from_millis(1));
        // Late and large: its rate was the path's all the same.
        assert_close(spacer.average_interval(), Duration::from_millis(1));
    }

    #[test]
    fn up_to_three_packets_per_ack_are_normal() {
        let mut spacer = spacer();
        assert_eq!(
            spacer.on_ack(Instant::from_nanos(NOW + 3 * MILLI), 3),
            AckRelease::AtOnce
        );
        assert!(matches!(
            spacer.on_ack(Instant::from_nanos(NOW + 7 * MILLI), 4),
            AckRelease::Paced(_)
        ));
    }

    /// A slow reader: the data was acknowledged long ago.
    #[test]
    fn a_window_that_opens_far_is_paced_and_does_not_count_as_acknowledged() {
        let spacer = spacer();
        assert_eq!(spacer.on_window_update(3), AckRelease::AtOnce);
        let AckRelease::Paced(interval) = spacer.on_window_update(40) else {
            panic!("40 packets at once are a burst");
        };
        assert_close(interval, Duration::from_millis(1));
    }

    #[test]
    fn compressed_acks_are_paced_at_the_rate_they_had_before_the_queue() {
        let mut spacer = spacer();
        // The way back is blocked for 20 ms; then ten ACKs come 0.1 ms apart.
        let releases: Vec<AckRelease> = (0..10)
            .map(|ack| spacer.on_ack(Instant::from_nanos(NOW + 20 * MILLI + ack * MILLI / 10), 2))
            .collect();
        assert_eq!(
            releases[..2],
            [AckRelease::AtOnce; 2],
            "the gap and one fast ACK"
        );
        for release in &releases[2..] {
            let AckRelease::Paced(interval) = release else {
                panic!("a compressed ACK went at once");
            };
            assert_close(*interval, Duration::from_millis(1));
        }
        // Gap and burst cancel out.
        assert_close(spacer.average_interval(), Duration::from_millis(1));
    }

    #[test]
    fn a_path_that_became_faster_is_followed_within_some_averaging_times() {
        let mut spacer = spacer();
        let mut last = AckRelease::AtOnce;
        for ack in 1..=4000 {
            last = spacer.on_ack(Instant::from_nanos(NOW + ack * MILLI / 2), 2);
        }
        assert_eq!(last, AckRelease::AtOnce);
        assert_close(spacer.average_interval(), Duration::from_micros(250));
    }

    #[test]
    fn a_pause_of_the_sender_does_not_count_as_a_slow_path() {
        let mut spacer = spacer();
        spacer.on_idle();
        spacer.on_ack(Instant::from_nanos(NOW + 10_000 * MILLI), 2);
        assert_close(spacer.average_interval(), Duration::from_millis(1));
    }

    #[test]
    fn a_pause_of_the_sender_ends_a_burst_of_acks() {
        let mut spacer = spacer();
        let mut ack = |nanos| spacer.on_ack(Instant::from_nanos(NOW + nanos), 2);
        let burst: Vec<AckRelease> = (1..=3).map(&mut ack).collect();
        assert!(matches!(burst[2], AckRelease::Paced(_)));
        spacer.on_idle();
        let next = Instant::from_nanos(NOW + 1000 * MILLI);
        assert_eq!(spacer.on_ack(next, 2), AckRelease::AtOnce);
    }

    #[test]
    fn extreme_times_and_counts_do_not_overflow() {
        let config = AckSpacingConfig {
            averaging: AVERAGING_MAX,
            compression_factor: 1000,
            ..AckSpacingConfig::default()
        };
        let mut spacer = AckSpacer::new(config).unwrap();
        for nanos in [0, 1, 1, u64::MAX, 0] {
            spacer.on_ack(Instant::from_nanos(nanos), u32::MAX);
        }
        assert!(spacer.average_interval() > Duration::ZERO);
    }

    #[test]
    fn configs_name_the_field_that_is_wrong() {
        let valid = AckSpacingConfig::default();
        let wrong = [
            AckSpacingConfig {
                big_ack_packets: 0,
                ..valid
            },
            AckSpacingConfig {
                compression_factor: 1,
                ..valid
            },
            AckSpacingConfig {
                burst_acks: 0,
                ..valid
            },
            AckSpacingConfig {
                averaging: Duration::from_secs(18),
                ..valid
            },
            AckSpacingConfig {
                initial_interval: Duration::from_secs(1),
                ..valid
            },
        ];
        let fields: Vec<&str> = wrong
            .into_iter()
            .filter_map(|config| AckSpacer::new(config).err())
            .map(|error| error.field)
            .collect();
        assert_eq!(
            fields,
            [
                "big_ack_packets",
                "compression_factor",
                "burst_acks",
                "averaging",
                "initial_interval"
            ]
        );
    }
}
