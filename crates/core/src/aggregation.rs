//! The poll interval that finds a wanted number of packets per poll.
//!
//! Polling from soft events takes no interrupts, and handling several packets
//! at once uses the caches better. How long to wait between two polls depends
//! on the load: [`Aggregation`] measures the rate of arrivals and sets the
//! interval in which a quota of packets arrives on average. When a CPU becomes
//! idle there is nothing to be gained, and a packet would wait for the next poll
//! for no reason: polling ends and interrupts are on until no CPU is idle.
//!
//! Source: Aron and Druschel, sections 4.2, 5.8 and 6. Covers ST-52 to ST-55. Of
//! Mogul and Ramakrishnan, a fixed interval (`interval_min` equal to
//! `interval_max`) is the pure polling that MR-28 rejects, kept for comparison;
//! the switch at a rate threshold of MR-82 is not here, since idleness decides
//! (ST-54).
//!
//! **The rule**, which the paper leaves open. Each poll gives a rate of arrivals,
//! packets found by time since the last poll; their fading average over some
//! polls is the load. Quota by load is the wanted interval. The interval moves
//! there by a bounded step per poll, within its limits. The next poll is scheduled from the time at
//! which this one should have been, not from when its trigger state came, so
//! that the delays of soft events do not add to the interval.
//!
//! **When the load changes.** It rises tenfold: the polls find up to ten times
//! the quota at first, and the interval is right to a quarter after about 25 of
//! them (which soon are short ones). It falls to a tenth: likewise after about
//! 60 polls, and until then packets are found sooner than they need be. A poll that finds all it can hold says only that the
//! rate is at least that, and the interval shrinks by a whole step.
//!
//! **When it loses.** A packet waits half an interval on average: with little
//! load and no idle CPU up to `interval_max`. A burst shorter than the interval
//! must fit the receive ring.

use core::time::Duration;

use crate::config::{ConfigError, Field, Fraction, NANOSECOND, PPM};
use crate::time::Instant;

const QUOTA_MAX: u32 = 1 << 12;
const INTERVAL_MAX: Duration = Duration::from_secs(1);
const AVERAGING_POLLS_MAX: u32 = 1 << 8;
/// A rate is counted in packets per 2⁴⁰ ns (18 minutes), so that the slowest
/// that matters, one per second, is known to a thousandth.
const RATE_BITS: u32 = 40;
/// What fits beside these bits.
const FOUND_MAX: u32 = (1 << (u64::BITS - RATE_BITS)) - 1;

/// The quota, and how the interval may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AggregationConfig {
    /// Aggregation quota: packets to find per poll on average. Higher saves
    /// more per packet and delays more; most is gained by 5, the default. At
    /// most 4096.
    pub quota: u32,
    /// The most packets one poll can find: the receive ring, or the poll's
    /// packet-count quota. Above `quota`. Default 256.
    pub found_max: u32,
    /// The shortest interval. Default 10 µs.
    pub interval_min: Duration,
    /// The longest interval, which bounds the latency that polling adds. At most
    /// 1 s; default 1 ms, the paper's backup period.
    pub interval_max: Duration,
    /// The part of itself by which the interval may change per poll. Larger
    /// follows a load sooner and its noise as well. Default one half.
    pub step: Fraction,
    /// How many polls the memory of the rate spans. More is steadier and
    /// slower. 1 to 256, default 16.
    pub averaging_polls: u32,
}

impl Default for AggregationConfig {
    fn default() -> Self {
        Self {
            quota: 5,
            found_max: 256,
            interval_min: Duration::from_micros(10),
            interval_max: Duration::from_millis(1),
            step: Fraction::from_percent(50),
            averaging_polls: 16,
        }
    }
}

impl AggregationConfig {
    /// Says which field cannot be worked with.
    ///
    /// # Errors
    ///
    /// The first field out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Field("quota", self.quota).must_be_in(1..=QUOTA_MAX, "at least 1 and at most 4096")?;
        Field("found_max", self.found_max).must_be_in(
            self.quota + 1..=FOUND_MAX,
            "above quota and at most 16777215",
        )?;
        Field("interval_max", self.interval_max)
            .must_be_in(NANOSECOND..=INTERVAL_MAX, "at least 1 ns and at most 1 s")?;
        Field("interval_min", self.interval_min).must_be_in(
            NANOSECOND..=self.interval_max,
            "at least 1 ns and at most interval_max",
        )?;
        Field("step", self.step).must_be_in(PPM.., "above 0")?;
        Field("averaging_polls", self.averaging_polls)
            .must_be_in(1..=AVERAGING_POLLS_MAX, "at least 1 and at most 256")
    }
}

/// How the next packets are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextPoll {
    /// By a soft event scheduled for this moment; interrupts stay off.
    At(Instant),
    /// By interrupts, which go on now; no event is to be scheduled.
    ByInterrupt,
}

/// The poll interval of a set of interfaces; see the module's doc.
#[derive(Clone, Copy, Debug)]
pub struct Aggregation {
    quota: u64,
    found_max: u32,
    min_nanos: u64,
    max_nanos: u64,
    step: Fraction,
    averaging_polls: u64,
    interval_nanos: u64,
    /// Fading average of the rate of arrivals, in packets per 2⁴⁰ ns.
    rate: u64,
    last_poll: Instant,
    /// `ByInterrupt` while a CPU is idle.
    next: NextPoll,
}

impl Aggregation {
    /// Starts with interrupts, as a host does; and at the shortest interval.
    ///
    /// # Errors
    ///
    /// A field of `config` is out of its range.
    pub fn new(config: AggregationConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let min_nanos = config.interval_min.as_nanos() as u64;
        Ok(Self {
            quota: config.quota.into(),
            found_max: config.found_max,
            min_nanos,
            max_nanos: config.interval_max.as_nanos() as u64,
            step: config.step,
            averaging_polls: config.averaging_polls.into(),
            interval_nanos: min_nanos,
            rate: 0,
            last_poll: Instant::ZERO,
            next: NextPoll::ByInterrupt,
        })
    }

    /// The number of CPUs in the idle loop changed to `idle_cpus`. Polling runs
    /// while it is 0, and begins at the interval that it had.
    pub fn on_idle_cpus(&mut self, now: Instant, idle_cpus: u32) -> NextPoll {
        if idle_cpus > 0 {
            self.next = NextPoll::ByInterrupt;
        } else if self.next == NextPoll::ByInterrupt {
            self.last_poll = now;
            self.next = NextPoll::At(now + self.interval());
        }
        self.next
    }

    /// A poll at `now` found `found` packets on all interfaces together.
    pub fn on_poll(&mut self, now: Instant, found: u32) -> NextPoll {
        let NextPoll::At(planned) = self.next else {
            return NextPoll::ByInterrupt;
        };
        self.remember(now, found);
        let wanted = if found >= self.found_max {
            0
        } else {
            self.wanted_interval()
        };
        let step = self.step.of(self.interval_nanos).max(1);
        let reachable = self.interval_nanos.saturating_sub(step)..=self.interval_nanos + step;
        self.interval_nanos = wanted
            .clamp(*reachable.start(), *reachable.end())
            .clamp(self.min_nanos, self.max_nanos);
        let soonest = now + Duration::from_nanos(self.min_nanos);
        self.next = NextPoll::At((planned + self.interval()).max(soonest));
        self.next
    }

    /// The interval between two polls.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval_nanos)
    }

    /// Polls closer than the shortest interval count as that far apart.
    fn remember(&mut self, now: Instant, found: u32) {
        let elapsed = now.saturating_since(self.last_poll).as_nanos() as u64;
        self.last_poll = now;
        let found = u64::from(found.min(FOUND_MAX));
        let rate = (found << RATE_BITS) / elapsed.max(self.min_nanos);
        self.rate = self.rate - self.rate / self.averaging_polls + rate / self.averaging_polls;
    }

    /// In which a quota arrives at the remembered rate.
    fn wanted_interval(&self) -> u64 {
        (self.quota << RATE_BITS)
            .checked_div(self.rate)
            .unwrap_or(self.max_nanos)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn aggregation(quota: u32) -> Aggregation {
        Aggregation::new(AggregationConfig {
            quota,
            ..AggregationConfig::default()
        })
        .unwrap()
    }

    /// A busy host that is polled when the decision says, `delay` later.
    struct Host {
        aggregation: Aggregation,
        now: Instant,
        next: NextPoll,
        delay: Duration,
        /// Arrivals not found yet, in parts of a packet per second of ns.
        waiting: u64,
        seed: u64,
    }

    const SECOND: u64 = 1_000_000_000;

    impl Host {
        fn new(mut aggregation: Aggregation) -> Self {
            let next = aggregation.on_idle_cpus(Instant::ZERO, 0);
            Self {
                aggregation,
                now: Instant::ZERO,
                next,
                delay: Duration::ZERO,
                waiting: 0,
                seed: 1,
            }
        }

        /// Polls once at a load of `rate` packets per second; returns how many
        /// packets were found.
        fn poll(&mut self, rate: u64) -> u32 {
            let NextPoll::At(at) = self.next else {
                panic!("the host polls")
            };
            let elapsed = (at + self.delay).saturating_since(self.now);
            self.now = at + self.delay;
            self.waiting += rate * elapsed.as_nanos() as u64;
            let found = self.waiting / SECOND;
            self.waiting %= SECOND;
            self.next = self.aggregation.on_poll(self.now, found as u32);
            found as u32
        }

        /// Average found in each of `polls` polls.
        fn average(&mut self, rate: u64, polls: u32) -> f64 {
            let total: u32 = (0..polls).map(|_| self.poll(rate)).sum();
            f64::from(total) / f64::from(polls)
        }

        /// Uniform in 0 to 1 (xorshift).
        fn random(&mut self) -> f64 {
            self.seed ^= self.seed << 13;
            self.seed ^= self.seed >> 7;
            self.seed ^= self.seed << 17;
            (self.seed >> 11) as f64 / (1_u64 << 53) as f64
        }

        /// As `average`, with independent arrivals (Poisson).
        fn average_of_random_arrivals(&mut self, rate: f64, polls: u32) -> f64 {
            let mut arrival = 0.0;
            let mut total = 0;
            for _ in 0..polls {
                let NextPoll::At(at) = self.next else {
                    panic!("the host polls")
                };
                self.now = at;
                let mut found = 0;
                while arrival <= at.as_nanos() as f64 {
                    arrival -= (1.0 - self.random()).ln() / rate * 1e9;
                    found += 1;
                }
                self.next = self.aggregation.on_poll(at, found);
                total += found;
            }
            f64::from(total) / f64::from(polls)
        }
    }

    #[test]
    fn each_quota_is_found_on_average() {
        for quota in [1, 2, 5, 10, 15] {
            let mut host = Host::new(aggregation(quota));
            host.average(50_000, 200);
            let found = host.average(50_000, 1000);
            assert!(
                (found - f64::from(quota)).abs() < 0.05 * f64::from(quota),
                "{found} for {quota}"
            );
        }
    }

    #[test]
    fn irregular_arrivals_are_found_by_quotas_too() {
        for quota in [1, 2, 5, 10, 15] {
            let mut host = Host::new(aggregation(quota));
            let found = host.average_of_random_arrivals(50_000.0, 20_000);
            assert!(
                (found - f64::from(quota)).abs() < 0.1 * f64::from(quota),
                "{found} for {quota}"
            );
        }
    }

    #[test]
    fn delays_of_soft_events_do_not_add_to_the_interval() {
        let mut host = Host::new(aggregation(5));
        host.delay = micros(30);
        host.average(50_000, 200);
        let found = host.average(50_000, 1000);
        assert!((found - 5.0).abs() < 0.25, "{found}");
    }

    #[test]
    fn a_load_that_jumps_tenfold_is_followed_within_some_polls() {
        let mut host = Host::new(aggregation(5));
        host.average(20_000, 200);
        assert!(host.aggregation.interval().abs_diff(micros(250)) < micros(10));
        for _ in 0..25 {
            host.poll(200_000);
        }
        assert!(host.aggregation.interval().abs_diff(micros(25)) < micros(25) / 4);
        for _ in 0..200 {
            host.poll(200_000);
        }
        for _ in 0..60 {
            host.poll(20_000);
        }
        assert!(host.aggregation.interval().abs_diff(micros(250)) < micros(250) / 4);
    }

    #[test]
    fn one_poll_moves_the_interval_by_half_at_most() {
        let mut host = Host::new(aggregation(5));
        let mut intervals = Vec::new();
        for rate in [0, 0, 0, 5_000_000, 5_000_000, 0] {
            host.poll(rate);
            intervals.push(host.aggregation.interval().as_nanos());
        }
        assert_eq!(intervals[..3], [15_000, 22_500, 33_750]);
        assert_eq!(intervals[3..5], [16_875, 10_000]);
        assert_eq!(intervals[5], 10_000, "the rate is still remembered");
    }

    #[test]
    fn the_limits_hold_at_no_load_and_at_overload() {
        let mut host = Host::new(aggregation(5));
        host.average(0, 50);
        assert_eq!(host.aggregation.interval(), micros(1000));
        host.average(50_000_000, 50);
        assert_eq!(host.aggregation.interval(), micros(10));
    }

    #[test]
    fn a_full_ring_shrinks_the_interval_whatever_the_rate_looks_like() {
        let mut host = Host::new(aggregation(200));
        host.average(1000, 100);
        let before = host.aggregation.interval();
        // 100 ms late, the ring holds no more than its 256: seemingly a lower
        // rate than the quota per interval.
        let late = host.now + Duration::from_millis(100);
        host.aggregation.on_poll(late, 256);
        assert_eq!(host.aggregation.interval(), before / 2);
    }

    /// What two trigger states in a row find did not come within a nanosecond.
    #[test]
    fn polls_closer_than_the_shortest_interval_count_as_that_far_apart() {
        let mut aggregation = aggregation(5);
        aggregation.on_idle_cpus(Instant::ZERO, 0);
        aggregation.on_poll(Instant::from_nanos(1), 5);
        assert_eq!(aggregation.interval(), micros(15));
    }

    #[test]
    fn an_idle_cpu_means_interrupts_and_none_means_polling() {
        let mut aggregation = aggregation(5);
        let at = |nanos| Instant::ZERO + micros(nanos);
        // Boot: interrupts, and their handlers' packets change nothing.
        assert_eq!(aggregation.on_poll(at(1), 9), NextPoll::ByInterrupt);
        assert_eq!(aggregation.on_idle_cpus(at(2), 1), NextPoll::ByInterrupt);
        // Busy, though far from saturated by packets.
        assert_eq!(aggregation.on_idle_cpus(at(100), 0), NextPoll::At(at(110)));
        assert_eq!(aggregation.on_idle_cpus(at(105), 0), NextPoll::At(at(110)));
        assert_eq!(aggregation.on_poll(at(110), 0), NextPoll::At(at(125)));
        assert_eq!(aggregation.on_idle_cpus(at(120), 2), NextPoll::ByInterrupt);
        assert_eq!(aggregation.on_poll(at(125), 3), NextPoll::ByInterrupt);
        // Busy again: the interval goes on where it was.
        assert_eq!(
            aggregation.on_idle_cpus(at(5000), 0),
            NextPoll::At(at(5015))
        );
    }

    #[test]
    fn time_spent_idle_is_not_time_without_packets() {
        let mut host = Host::new(aggregation(5));
        host.average(50_000, 500);
        let learned = host.aggregation.interval();
        host.aggregation.on_idle_cpus(host.now, 1);
        host.now += Duration::from_secs(10);
        host.next = host.aggregation.on_idle_cpus(host.now, 0);
        host.poll(50_000);
        let off = host.aggregation.interval().abs_diff(learned);
        assert!(off * 100 < learned, "{off:?} of {learned:?}");
    }

    /// Shows ST-57: at a high rate a poll finds many packets at once. At a low one nine of
    /// ten polls find none, and a packet that has just missed a poll waits as long as ever.
    #[test]
    fn a_fixed_interval_is_pure_polling() {
        let mut host = Host::new(
            Aggregation::new(AggregationConfig {
                interval_min: micros(100),
                interval_max: micros(100),
                ..AggregationConfig::default()
            })
            .unwrap(),
        );
        for (rate, per_poll) in [(0, 0.0), (1000, 0.1), (5_000_000, 500.0), (0, 0.0)] {
            let begun = host.now;
            assert_eq!(host.average(rate, 20), per_poll);
            assert_eq!(host.now.saturating_since(begun), 20 * micros(100));
        }
    }

    #[test]
    fn a_poll_far_too_late_starts_a_new_schedule() {
        let mut aggregation = aggregation(5);
        aggregation.on_idle_cpus(Instant::ZERO, 0);
        let late = Instant::from_nanos(u64::MAX / 2);
        let NextPoll::At(next) = aggregation.on_poll(late, 255) else {
            panic!("no CPU is idle");
        };
        assert_eq!(next, late + micros(10));
        // There are no arrears: the one after it comes an interval later.
        let after = aggregation.on_poll(next, 0);
        assert_eq!(after, NextPoll::At(next + aggregation.interval()));
        assert!(aggregation.interval() > micros(10));
    }

    #[test]
    fn configs_name_the_field_that_is_wrong() {
        let valid = AggregationConfig::default();
        let wrong = [
            AggregationConfig { quota: 0, ..valid },
            AggregationConfig {
                found_max: 5,
                ..valid
            },
            AggregationConfig {
                interval_max: Duration::from_secs(2),
                ..valid
            },
            AggregationConfig {
                interval_min: Duration::from_millis(2),
                ..valid
            },
            AggregationConfig {
                step: Fraction::NONE,
                ..valid
            },
            AggregationConfig {
                averaging_polls: 0,
                ..valid
            },
        ];
        let fields: Vec<&str> = wrong
            .into_iter()
            .filter_map(|config| Aggregation::new(config).err())
            .map(|error| error.field)
            .collect();
        assert_eq!(
            fields,
            [
                "quota",
                "found_max",
                "interval_max",
                "interval_min",
                "step",
                "averaging_polls"
            ]
        );
    }
}
