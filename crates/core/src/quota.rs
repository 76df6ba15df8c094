//! How many packets a turn may take: fixed, or found by trying.
//!
//! **Intuition.** A small quota wastes CPU on going round; a large one lets the
//! input monopolise the CPU until output and applications starve. Goodput under
//! overload therefore rises with the quota, peaks, and falls into livelock, and
//! where it peaks depends on the machine. The tuner stands on a quota, lends some
//! intervals to a neighbour, and moves there if that delivered clearly more.
//!
//! **Source.** Mogul & Ramakrishnan, section 6.6.2: the best fixed quota (MR-48),
//! its costs (MR-49), and the proposal to tune it to just below the point of
//! livelock (MR-50), which the paper did not build.
//!
//! **How a trial is judged.** Base and trial take turns in pairs (base, trial,
//! trial, base, …), so that a drifting load affects both alike. The trial wins or
//! loses if its mean lead exceeds the hysteresis *and* three standard errors of
//! the pairs' differences; otherwise it is a tie and nothing moves. Steps double
//! after a win or a tie, and are halved after a loss, so that far-off optima are
//! reached in few trials and a flat stretch (all livelock, or all alike) is
//! stepped over. With both neighbours lost or tied the tuner rests, then asks
//! again: so it follows an optimum that moves.
//!
//! **Limits.** Goodput says something about the quota only while the poller is
//! saturated; other intervals must be marked so and abandon the trial. An
//! interval has to be long against the time the queues need to drain. One peak is
//! assumed: with several it finds a near one.
//!
//! **When it loses.** While resting at the best quota it loses nothing; each
//! round of trials spends half of `4 · pairs` intervals next to it. If the peak
//! moves faster than trials are made, a fixed small quota does better.

use crate::config::{ConfigError, Field, Fraction};

const BELOW: usize = 0;
const ABOVE: usize = 1;

/// Settings of a [`Quota`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaConfig {
    /// Where to begin. Err on the low side: a quota that is too small costs some
    /// percent, one that is too large costs everything. Default 8.
    pub initial: u32,
    /// The least quota, at least 1. Default 1.
    pub min: u32,
    /// The greatest quota. Equal to `min`: the quota is fixed. Default 256.
    pub max: u32,
    /// Pairs of intervals by which a trial is judged, 2 to 1024. More resist more
    /// noise and answer later. Default 8.
    pub pairs: u32,
    /// A lead smaller than this part of the base's goodput counts as none, at
    /// most one half. Default 1 %.
    pub hysteresis: Fraction,
    /// Saturated intervals to rest after both neighbours were tried in vain, at
    /// least 1. Default 64.
    pub rest: u32,
}

impl Default for QuotaConfig {
    fn default() -> Self {
        Self {
            initial: 8,
            min: 1,
            max: 256,
            pairs: 8,
            hysteresis: Fraction::from_percent(1),
            rest: 64,
        }
    }
}

impl QuotaConfig {
    /// A quota of `packets` that is never changed.
    #[must_use]
    pub const fn fixed(packets: u32) -> Self {
        Self {
            initial: packets,
            min: packets,
            max: packets,
            pairs: 2,
            hysteresis: Fraction::from_percent(1),
            rest: 1,
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Names the first field that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Field("min", self.min).must_be_in(1.., "at least 1")?;
        Field("max", self.max).must_be_in(self.min.., "at least `min`")?;
        Field("initial", self.initial).must_be_in(self.min..=self.max, "from `min` to `max`")?;
        Field("pairs", self.pairs).must_be_in(2..=1024, "from 2 to 1024")?;
        Field("hysteresis", self.hysteresis)
            .must_be_in(..=Fraction::from_percent(50), "at most 500000 ppm")?;
        Field("rest", self.rest).must_be_in(1.., "at least 1")
    }
}

/// The quota in force, and the search for a better one.
#[derive(Clone, Debug)]
pub struct Quota {
    config: QuotaConfig,
    base: u32,
    /// What is known about the quotas below and above the base.
    sides: [Side; 2],
    /// The side that is tried first.
    heading: usize,
    state: State,
}

#[derive(Clone, Copy, Debug)]
struct Side {
    step: u32,
    /// A larger step lost, so a tie ends the search.
    shrinking: bool,
    closed: bool,
}

impl Side {
    const OPEN: Self = Self {
        step: 1,
        shrinking: false,
        closed: false,
    };
}

#[derive(Clone, Copy, Debug)]
enum State {
    Resting { left: u32 },
    Trying(Trial),
}

impl Quota {
    /// A quota that starts at `config.initial`.
    ///
    /// # Errors
    ///
    /// The config is out of range.
    pub fn new(config: QuotaConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let mut quota = Self {
            config,
            base: config.initial,
            sides: [Side::OPEN; 2],
            heading: BELOW,
            state: State::Resting { left: config.rest },
        };
        quota.try_next();
        Ok(quota)
    }

    /// Packets per turn to be used from now to the next
    /// [`on_interval`](Self::on_interval).
    #[must_use]
    pub fn packets(&self) -> u32 {
        match self.state {
            State::Trying(trial) if trial.takes_this_interval() => trial.quota,
            _ => self.base,
        }
    }

    /// The quota that trials are compared with: the best one known.
    #[must_use]
    pub fn settled(&self) -> u32 {
        self.base
    }

    /// An interval of the caller's fixed length ended, in which `delivered`
    /// packets reached their consumers. `saturated`: work was pending all the
    /// time, so that a better quota could have delivered more.
    pub fn on_interval(&mut self, delivered: u64, saturated: bool) {
        match &mut self.state {
            State::Trying(_) if !saturated => self.rest(),
            State::Resting { .. } if !saturated => {}
            State::Resting { left } if *left > 1 => *left -= 1,
            State::Resting { .. } => {
                // The lower side first: it is the safe one.
                (self.sides, self.heading) = ([Side::OPEN; 2], BELOW);
                self.try_next();
            }
            State::Trying(trial) => {
                trial.record(delivered);
                if trial.intervals == 2 * self.config.pairs {
                    let trial = *trial;
                    self.judge(&trial);
                }
            }
        }
    }

    fn rest(&mut self) {
        let left = self.config.rest;
        self.state = State::Resting { left };
    }

    /// Starts the next trial, or rests if nothing is left to be tried.
    fn try_next(&mut self) {
        for side in [self.heading, 1 - self.heading] {
            let step = self.sides[side].step;
            let quota = match side {
                BELOW => self.base.saturating_sub(step).max(self.config.min),
                _ => self.base.saturating_add(step).min(self.config.max),
            };
            self.sides[side].step = quota.abs_diff(self.base);
            self.sides[side].closed |= quota == self.base;
            if !self.sides[side].closed {
                self.state = State::Trying(Trial::new(quota));
                return;
            }
        }
        self.rest();
    }

    fn judge(&mut self, trial: &Trial) {
        let at_bound = trial.quota == self.config.min || trial.quota == self.config.max;
        self.heading = if trial.quota < self.base {
            BELOW
        } else {
            ABOVE
        };
        let side = &mut self.sides[self.heading];
        match trial.verdict(self.config.hysteresis) {
            Verdict::Won => {
                let step = side.step.saturating_mul(2);
                self.base = trial.quota;
                self.sides = [Side::OPEN; 2];
                self.sides[self.heading].step = step;
            }
            Verdict::Lost if side.step == 1 => side.closed = true,
            Verdict::Lost => (side.step, side.shrinking) = (side.step / 2, true),
            Verdict::Tied if side.shrinking || at_bound => side.closed = true,
            Verdict::Tied => side.step = side.step.saturating_mul(2),
        }
        self.try_next();
    }
}

/// A comparison in progress: `quota` against the base, interval by interval.
#[derive(Clone, Copy, Debug)]
struct Trial {
    quota: u32,
    intervals: u32,
    /// Goodput of the first interval of the pair.
    first: i128,
    base_sum: i128,
    /// Sums over the pairs of the trial's lead and of its square.
    lead_sum: i128,
    lead_square_sum: i128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Won,
    Lost,
    Tied,
}

impl Trial {
    fn new(quota: u32) -> Self {
        Self {
            quota,
            intervals: 0,
            first: 0,
            base_sum: 0,
            lead_sum: 0,
            lead_square_sum: 0,
        }
    }

    /// Base, trial, trial, base, and so on.
    fn takes_this_interval(&self) -> bool {
        matches!(self.intervals % 4, 1 | 2)
    }

    fn record(&mut self, delivered: u64) {
        // Bounded so that the products in `verdict` stay within 128 bits.
        let delivered = i128::from(delivered.min(1 << 40));
        let tried = self.takes_this_interval();
        self.intervals += 1;
        if self.intervals % 2 == 1 {
            self.first = delivered;
            return;
        }
        let (trial, base) = if tried {
            (delivered, self.first)
        } else {
            (self.first, delivered)
        };
        self.base_sum += base;
        self.lead_sum += trial - base;
        self.lead_square_sum += (trial - base) * (trial - base);
    }

    fn verdict(&self, hysteresis: Fraction) -> Verdict {
        let pairs = i128::from(self.intervals / 2);
        let lead = self.lead_sum;
        let tolerated = self.base_sum * i128::from(hysteresis.as_ppm());
        let noticeable = lead.abs() * i128::from(Fraction::WHOLE.as_ppm()) > tolerated;
        // mean² > (3 standard errors)², multiplied out.
        let spread = pairs * self.lead_square_sum - lead * lead;
        let significant = lead * lead * (pairs - 1) >= 9 * spread;
        match noticeable && significant {
            true if lead > 0 => Verdict::Won,
            true => Verdict::Lost,
            false => Verdict::Tied,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use proptest::prelude::*;

    use super::*;

    /// Goodput of a host whose cost per turn is worth three packets, and which
    /// starts to starve its output above a quota of `peak`.
    fn goodput(quota: u32, peak: u32) -> u64 {
        let amortised = 1_000_000 * u64::from(quota) / (u64::from(quota) + 3);
        let beyond = u64::from(quota.saturating_sub(peak));
        amortised.saturating_sub(amortised * beyond / (u64::from(peak) * 2))
    }

    /// Noise of up to `ppm` around 1, from a fixed sequence.
    struct Noise {
        state: u64,
        ppm: u64,
    }

    impl Noise {
        fn on(&mut self, value: u64) -> u64 {
            let step = self.state.wrapping_mul(6_364_136_223_846_793_005);
            self.state = step.wrapping_add(1_442_695_040_888_963_407);
            let factor = 1_000_000 - self.ppm + (self.state >> 33) % (2 * self.ppm + 1);
            value * factor / 1_000_000
        }
    }

    fn run(quota: &mut Quota, intervals: u32, peak: u32, noise: &mut Noise) {
        for _ in 0..intervals {
            let delivered = noise.on(goodput(quota.packets(), peak));
            quota.on_interval(delivered, true);
        }
    }

    fn silent() -> Noise {
        Noise { state: 1, ppm: 0 }
    }

    #[test]
    fn configs_name_the_field_that_is_wrong() {
        let field = |config: QuotaConfig| config.validate().unwrap_err().field;
        let default = QuotaConfig::default();
        assert_eq!(field(QuotaConfig { min: 0, ..default }), "min");
        assert_eq!(field(QuotaConfig { max: 0, ..default }), "max");
        assert_eq!(
            field(QuotaConfig {
                initial: 257,
                ..default
            }),
            "initial"
        );
        assert_eq!(
            field(QuotaConfig {
                pairs: 1,
                ..default
            }),
            "pairs"
        );
        assert_eq!(
            field(QuotaConfig {
                hysteresis: Fraction::WHOLE,
                ..default
            }),
            "hysteresis"
        );
        assert_eq!(field(QuotaConfig { rest: 0, ..default }), "rest");
        assert_eq!(default.validate(), Ok(()));
    }

    #[test]
    fn a_fixed_quota_stays() {
        let mut quota = Quota::new(QuotaConfig::fixed(10)).unwrap();
        for delivered in 0..1000 {
            assert_eq!(quota.packets(), 10);
            quota.on_interval(delivered, true);
        }
    }

    #[test]
    fn it_settles_at_the_peak_and_follows_it() {
        let mut quota = Quota::new(QuotaConfig::default()).unwrap();
        for peak in [8, 40, 100, 12] {
            run(&mut quota, 2000, peak, &mut silent());
            let (found, best) = (goodput(quota.settled(), peak), goodput(peak, peak));
            assert!(found * 100 >= best * 97, "{} for {peak}", quota.settled());
        }
    }

    #[test]
    fn it_climbs_out_of_livelock_where_every_neighbour_delivers_nothing() {
        let config = QuotaConfig {
            initial: 250,
            ..QuotaConfig::default()
        };
        let mut quota = Quota::new(config).unwrap();
        assert_eq!(goodput(200, 8), 0);
        run(&mut quota, 1000, 8, &mut silent());
        assert!(quota.settled() <= 10, "{}", quota.settled());
    }

    #[test]
    fn light_load_teaches_nothing_and_ends_a_trial() {
        let mut quota = Quota::new(QuotaConfig::default()).unwrap();
        quota.on_interval(1000, true);
        assert_eq!(quota.packets(), 7, "a trial");
        quota.on_interval(10, false);
        for offered in 0..1000 {
            assert_eq!(quota.packets(), 8);
            quota.on_interval(offered, false);
        }
    }

    #[test]
    fn differences_below_the_hysteresis_move_nothing() {
        let mut quota = Quota::new(QuotaConfig::default()).unwrap();
        for _ in 0..5000 {
            let delivered = 1_000_000 + u64::from(quota.packets());
            quota.on_interval(delivered, true);
            assert_eq!(quota.settled(), 8);
        }
    }

    /// A step is as good, two are worse: then nothing is tried for a while.
    #[test]
    fn a_tie_after_a_loss_ends_the_search() {
        let mut quota = Quota::new(QuotaConfig::default()).unwrap();
        let mut trials = 0;
        for _ in 0..4000 {
            let away = quota.packets().abs_diff(8);
            trials += u32::from(away > 0);
            quota.on_interval(if away > 1 { 500_000 } else { 1_000_000 }, true);
        }
        // Three trials on each side, 16 intervals long, then 64 of rest.
        assert!(trials < 4000 * 32 / 100, "{trials}");
    }

    #[test]
    fn noise_is_not_taken_for_a_lead() {
        let mut quota = Quota::new(QuotaConfig::default()).unwrap();
        let mut noise = Noise {
            state: 7,
            ppm: 200_000,
        };
        let mut moves = 0;
        for _ in 0..20_000 {
            let before = quota.settled();
            quota.on_interval(noise.on(1_000_000), true);
            moves += u32::from(quota.settled() != before);
        }
        assert!(moves <= 12, "{moves} moves in about 500 trials of equals");
    }

    proptest! {
        #[test]
        fn it_converges_on_a_unimodal_curve_and_follows_its_move(
            initial in 1..=256u32,
            peaks in prop::collection::vec(2..=128u32, 1..4),
            ppm in 0..20_000u64,
            state in any::<u64>(),
        ) {
            let mut quota = Quota::new(QuotaConfig { initial, ..QuotaConfig::default() }).unwrap();
            let mut noise = Noise { state, ppm };
            for peak in peaks {
                run(&mut quota, 4000, peak, &mut noise);
                let (found, best) = (goodput(quota.settled(), peak), goodput(peak, peak));
                prop_assert!(found * 100 >= best * 90, "{} for {}", quota.settled(), peak);
            }
        }

        #[test]
        fn it_keeps_to_its_bounds_whatever_it_is_told(
            (min, initial, max) in (1..300u32, 0..300u32, 0..300u32)
                .prop_map(|(min, more, most)| (min, min + more, min + more + most)),
            told in prop::collection::vec(any::<(u64, bool)>(), 0..500),
        ) {
            let config = QuotaConfig { initial, min, max, pairs: 2, ..QuotaConfig::default() };
            let mut quota = Quota::new(config).unwrap();
            for (delivered, saturated) in told {
                prop_assert!((min..=max).contains(&quota.packets()));
                quota.on_interval(delivered, saturated);
            }
        }
    }
}
