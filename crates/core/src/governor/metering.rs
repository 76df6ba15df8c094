//! When CPU time is metered: always where it may matter, else now and then.
//!
//! **Intuition.** To meter CPU time costs some at each task switch, interrupt and
//! softirq. A calm host should not pay that for a meter that tells it again and again
//! that it is calm. What could make it overloaded is seen for nothing: more frames, early
//! discards, a ring that gets full. So the time is metered while any of these may be
//! overload. Else a look now and then is enough.
//!
//! **Rules.**
//! - While overload is suspected, or lasts and is not settled, and while input is shed, all
//!   time is metered.
//! - So many frames that receiving them could reach the limit, or so many discards that
//!   they could matter, *may matter*. There an interval is looked at as soon as it has
//!   more of them by a quarter than any that was found calm lately, and each [`SOON`].
//! - Else an interval is looked at each [`LATER`], to know what packets cost.
//!
//! **Source.** Ours. The governor's own limits say what may matter ([`Limits`]).
//!
//! **When it loses.** A process that takes the CPU while the same frames arrive as
//! before is seen up to [`SOON`] late. Where other interfaces take the CPU time and this
//! one receives little, its share of their load is seen up to [`LATER`] late.

use core::time::Duration;

use super::observation::FRAME_MOST;
use crate::charge::shedding::DISCARDED;
use crate::config::Fraction;
use crate::time::{Instant, NANOS_PER_SECOND, span_nanos};

/// Longest time between two looks where load may matter: a twelfth of the time with
/// looks of 40 ms.
pub const SOON: Duration = Duration::from_millis(500);
/// Longest time between two looks elsewhere: a fiftieth of the time.
pub const LATER: Duration = Duration::from_secs(2);
/// So much more than what was calm is looked at at once.
const RISE: Fraction = Fraction::from_percent(25);
/// What was calm counts for less with each later look that found less: a rise after a
/// long calm is to be seen, the next of many bursts need not be.
const KEPT: Fraction = Fraction::from_percent(75);
/// A second's packets that are remembered for what packets cost; then half is forgotten.
const WEIGHT_NS_MAX: u64 = NANOS_PER_SECOND;

/// Rates from which on load may matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Frames per second of one CPU.
    pub frames_pps: u64,
    /// Packets discarded early per second.
    pub discarded_pps: u64,
}

impl Limits {
    /// Of receiving that may take `limit` of a CPU, and discarding that may take
    /// `discard_share`.
    #[must_use]
    pub fn new(limit: Fraction, discard_share: Fraction) -> Self {
        let packets = |part: Fraction, each| part.of(NANOS_PER_SECOND) / span_nanos(each);
        Self {
            frames_pps: packets(limit, FRAME_MOST),
            discarded_pps: packets(discard_share, DISCARDED),
        }
    }
}

/// What is seen without metering, in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Frames per second of the CPU that polled most from the interface.
    pub frames_pps: u64,
    /// Packets discarded early per second.
    pub discarded_pps: u64,
    /// Overload is suspected, or lasts and is not settled, or input is shed.
    pub is_strained: bool,
}

/// What is metered in the next interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Nothing.
    Rest,
    /// One interval, to look.
    Look,
    /// One interval, and it should be short: load has risen.
    Alarm,
    /// All, until the strain is over.
    Strain,
}

impl Attention {
    /// Whether CPU time is metered.
    #[must_use]
    pub const fn is_metered(self) -> bool {
        !matches!(self, Self::Rest)
    }
}

/// The decision; see the module's documentation. Begins with a look.
#[derive(Debug)]
pub struct Metering {
    limits: Limits,
    attention: Attention,
    calm: Option<Calm>,
}

/// What was found calm, and when last.
#[derive(Clone, Copy, Debug)]
struct Calm {
    at: Instant,
    frames_pps: u64,
    discarded_pps: u64,
}

impl Metering {
    /// Nothing is known yet.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            attention: Attention::Look,
            calm: None,
        }
    }

    /// What is metered now.
    #[must_use]
    pub const fn attention(&self) -> Attention {
        self.attention
    }

    /// Takes the signs of the interval that ends now. Says what is metered in the next.
    pub fn on_interval(&mut self, signs: Signs, now: Instant) -> Attention {
        self.attention = self.next(signs, now);
        self.attention
    }

    fn next(&mut self, signs: Signs, now: Instant) -> Attention {
        if signs.is_strained {
            self.calm = None;
            return Attention::Strain;
        }
        if self.attention.is_metered() {
            self.calm = Some(Calm::found(self.calm, signs, now));
        }
        let Some(calm) = self.calm else {
            return Attention::Look;
        };
        let may_matter = signs.frames_pps >= self.limits.frames_pps
            || signs.discarded_pps >= self.limits.discarded_pps;
        if may_matter && calm.is_below(signs) {
            return Attention::Alarm;
        }
        let wait = if may_matter { SOON } else { LATER };
        if now.saturating_since(calm.at) < wait {
            Attention::Rest
        } else {
            Attention::Look
        }
    }
}

impl Calm {
    fn found(before: Option<Self>, signs: Signs, at: Instant) -> Self {
        let kept = |rate: fn(&Self) -> u64| before.as_ref().map_or(0, |calm| KEPT.of(rate(calm)));
        Self {
            at,
            frames_pps: signs.frames_pps.max(kept(|calm| calm.frames_pps)),
            discarded_pps: signs.discarded_pps.max(kept(|calm| calm.discarded_pps)),
        }
    }

    /// Clearly more comes now.
    fn is_below(&self, signs: Signs) -> bool {
        let clearly = |rate: u64| rate.saturating_add(RISE.of(rate));
        signs.frames_pps > clearly(self.frames_pps)
            || signs.discarded_pps > clearly(self.discarded_pps)
    }
}

/// What receiving took, metered or not: while nobody metered, as much for each packet as
/// it took lately when somebody did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    unmetered_ns: u64,
    lately_ns: u64,
    lately_weight_ns: u64,
}

impl Spent {
    /// Receiving took `network` in a metered interval, for packets that should have
    /// taken `weight`.
    pub fn on_metered(&mut self, network: Duration, weight: Duration) {
        self.lately_ns = self.lately_ns.saturating_add(span_nanos(network));
        let weight_ns = span_nanos(weight);
        self.lately_weight_ns = self.lately_weight_ns.saturating_add(weight_ns);
        if self.lately_weight_ns > WEIGHT_NS_MAX {
            self.lately_ns /= 2;
            self.lately_weight_ns /= 2;
        }
    }

    /// Packets that should have taken `weight` came in an interval that was not metered.
    pub fn on_unmetered(&mut self, weight: Duration) {
        let weight_ns = span_nanos(weight);
        let taken = if self.lately_weight_ns == 0 {
            weight_ns
        } else {
            let taken = u128::from(weight_ns) * u128::from(self.lately_ns);
            u64::try_from(taken / u128::from(self.lately_weight_ns)).unwrap_or(u64::MAX)
        };
        self.unmetered_ns = self.unmetered_ns.saturating_add(taken);
    }

    /// All that was taken while nobody metered, as far as can be told.
    #[must_use]
    pub const fn unmetered(&self) -> Duration {
        Duration::from_nanos(self.unmetered_ns)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(40);
    const LIMITS: Limits = Limits {
        frames_pps: 25_000,
        discarded_pps: 6_000,
    };

    fn frames(frames_pps: u64) -> Signs {
        Signs {
            frames_pps,
            ..Signs::default()
        }
    }

    /// Intervals of `count` that are metered, from `start` on.
    fn metered(metering: &mut Metering, signs: Signs, start: u32, count: u32) -> u32 {
        let times = (start..start + count).map(|n| Instant::ZERO + INTERVAL * n);
        let looked = times.filter(|now| metering.on_interval(signs, *now).is_metered());
        u32::try_from(looked.count()).unwrap()
    }

    #[test]
    fn limits_are_the_packets_that_could_take_so_much() {
        let limits = Limits::new(Fraction::from_percent(50), Fraction::from_ppm(1000));
        assert_eq!((limits.frames_pps, limits.discarded_pps), (25_000, 6_250));
    }

    #[test]
    fn a_calm_host_is_looked_at_now_and_then() {
        let mut metering = Metering::new(LIMITS);
        assert_eq!(metering.attention(), Attention::Look, "at first");
        assert_eq!(
            metered(&mut metering, frames(1000), 0, 1000),
            19,
            "each 51st"
        );
        // A look each two seconds, which are 50 intervals, and the interval before it.
        assert_eq!(
            metered(&mut Metering::new(LIMITS), frames(1000), 0, 51 * 30),
            30
        );
        let mut bulk = Metering::new(LIMITS);
        let looked = metered(&mut bulk, frames(28_000), 0, 1000);
        assert!((70..=80).contains(&looked), "{looked} of 1000");
        // As many as could reach the limit may.
        let at_limit = metered(&mut Metering::new(LIMITS), frames(25_000), 0, 1000);
        assert_eq!(at_limit, looked);
    }

    #[test]
    fn discards_are_remembered_as_frames_are() {
        let discards = |discarded_pps| Signs {
            discarded_pps,
            ..Signs::default()
        };
        let mut metering = Metering::new(LIMITS);
        let mut next = |signs, n: u32| metering.on_interval(signs, Instant::ZERO + INTERVAL * n);
        assert_eq!(next(discards(10_000), 0), Attention::Rest, "found calm");
        assert_eq!(next(discards(12_500), 1), Attention::Rest);
        assert_eq!(next(discards(12_501), 2), Attention::Alarm);
        assert_eq!(
            next(discards(6_000), 3),
            Attention::Rest,
            "found calm as well"
        );
        // Three quarters of what was calm before still count.
        assert_eq!(next(discards(9_375), 4), Attention::Rest);
        assert_eq!(next(discards(9_376), 5), Attention::Alarm);
    }

    #[test]
    fn what_rises_is_looked_at_at_once_and_bursts_of_the_same_size_are_not() {
        let mut metering = Metering::new(LIMITS);
        let mut next = |signs, n: u32| metering.on_interval(signs, Instant::ZERO + INTERVAL * n);
        assert_eq!(next(frames(30_000), 0), Attention::Rest, "was looked at");
        assert_eq!(
            next(frames(37_000), 1),
            Attention::Rest,
            "less than a quarter"
        );
        assert_eq!(next(frames(38_000), 2), Attention::Alarm);
        assert_eq!(next(frames(38_000), 3), Attention::Rest, "found calm");
        assert_eq!(next(frames(10), 4), Attention::Rest);
        assert_eq!(next(frames(40_000), 5), Attention::Rest, "as before");
        let discards = Signs {
            discarded_pps: 6_000,
            ..Signs::default()
        };
        assert_eq!(next(discards, 6), Attention::Alarm);
        assert_eq!(next(frames(20_000), 7), Attention::Rest, "cannot matter");
    }

    #[test]
    fn strain_is_metered_until_it_is_over_and_then_looked_at_once_more() {
        let mut metering = Metering::new(LIMITS);
        let strained = Signs {
            is_strained: true,
            ..frames(10)
        };
        for n in 0..100 {
            let now = Instant::ZERO + INTERVAL * n;
            assert_eq!(metering.on_interval(strained, now), Attention::Strain);
        }
        let after = |n: u32| Instant::ZERO + INTERVAL * (100 + n);
        assert_eq!(metering.on_interval(frames(10), after(0)), Attention::Rest);
    }

    #[test]
    fn unmetered_packets_cost_what_packets_cost_lately() {
        let us = Duration::from_micros;
        let mut spent = Spent::default();
        spent.on_unmetered(us(10));
        assert_eq!(spent.unmetered(), us(10), "as assumed");
        spent.on_metered(us(300), us(100));
        spent.on_unmetered(us(10));
        assert_eq!(spent.unmetered(), us(40), "three times as much");
        for _ in 0..100 {
            spent.on_metered(us(100_000), us(100_000));
        }
        spent.on_unmetered(us(100));
        let grown = spent.unmetered() - us(40);
        assert!((us(100)..us(101)).contains(&grown), "{grown:?}");
        let before = spent.unmetered();
        for _ in 0..30 {
            spent.on_metered(us(300_000), us(100_000));
        }
        spent.on_unmetered(us(100));
        let grown = spent.unmetered() - before;
        assert!(grown > us(270), "what was before is forgotten: {grown:?}");
    }

    fn any_signs() -> impl Strategy<Value = Signs> {
        let parts = (0..100_000_u64, 0..20_000_u64, prop::bool::weighted(0.1));
        parts.prop_map(|(frames_pps, discarded_pps, is_strained)| Signs {
            frames_pps,
            discarded_pps,
            is_strained,
        })
    }

    proptest! {
        /// What may matter is unmetered only if as much, but for a quarter, was found calm
        /// since the last strain, and no longer ago than allowed.
        #[test]
        fn nothing_that_may_matter_goes_unseen(all in prop::collection::vec(any_signs(), 1..200)) {
            let mut metering = Metering::new(LIMITS);
            let mut calm: std::vec::Vec<(u32, Signs)> = std::vec::Vec::new();
            for (n, &signs) in (0..).zip(&all) {
                let was = metering.attention();
                let next = metering.on_interval(signs, Instant::ZERO + INTERVAL * n);
                if signs.is_strained {
                    prop_assert_eq!(next, Attention::Strain);
                    calm.clear();
                    continue;
                }
                if was.is_metered() {
                    calm.push((n, signs));
                }
                let may_matter = signs.frames_pps >= LIMITS.frames_pps
                    || signs.discarded_pps >= LIMITS.discarded_pps;
                if next == Attention::Rest {
                    let (last, _) = *calm.last().expect("something was looked at");
                    let wait = if may_matter { SOON } else { LATER };
                    prop_assert!(INTERVAL * (n - last) < wait);
                    let most = |rate: fn(&Signs) -> u64| {
                        calm.iter().map(|(_, signs)| rate(signs)).max().unwrap_or(0)
                    };
                    let within = |rate: fn(&Signs) -> u64| rate(&signs) * 4 <= most(rate) * 5;
                    prop_assert!(
                        !may_matter || (within(|s| s.frames_pps) && within(|s| s.discarded_pps))
                    );
                }
            }
        }
    }
}
