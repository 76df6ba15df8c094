//! A modelled host: a ring, one CPU that polls it, a flood, its consumer, and bystanders
//! whose packets are polled with the probability that any has.

extern crate std;
use std::vec::Vec;

use proptest::prelude::{prop, prop_assert, proptest};

use super::solitude::{LOOK_INTERVAL, QUIET_MIN, Solitude};
use super::*;
use crate::governor::{CpuObservation, Governor, GovernorConfig, Losses, Mode, Setting};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const RING: f64 = 256.0;

struct Host {
    governor: Governor,
    now: Instant,
    flood_pps: f64,
    /// What a polled packet costs, in seconds.
    cost_s: f64,
    /// What the consumer takes with the whole CPU.
    mlfrr_pps: f64,
    queued: u64,
    goodput_pps: f64,
    /// Part of what arrived that was polled in the last interval.
    polled: f64,
    /// Others' packets of the next interval that are polled for certain.
    others: u64,
    /// Frames that the ring loses in each interval.
    lost: u64,
}

impl Host {
    fn new(flood_pps: f64) -> Self {
        Self {
            governor: Governor::new(GovernorConfig::default()).unwrap(),
            now: Instant::ZERO,
            flood_pps,
            cost_s: 200e-9,
            mlfrr_pps: 100_000.0,
            queued: 1000,
            goodput_pps: 0.0,
            polled: 1.0,
            others: 0,
            lost: 0,
        }
    }

    /// A cycle is a holdoff, in which the ring fills up at most, and a run that ends when
    /// the ring is empty.
    fn step(&mut self) -> Setting {
        let span = self.governor.interval();
        self.now += span;
        let setting = self.governor.setting();
        let holdoff_s = match setting.mode {
            Mode::Interrupts => 1e-6,
            Mode::Overload => setting.holdoff.as_secs_f64(),
        };
        let load = (self.flood_pps * self.cost_s).min(0.95);
        let waiting = (self.flood_pps * holdoff_s).clamp(1.0, RING);
        let frames = waiting / (1.0 - load);
        let run_s = frames * self.cost_s + 3e-6;
        let cycle_s = holdoff_s + run_s;
        self.polled = (frames / (self.flood_pps * cycle_s)).min(1.0);
        let polled_pps = self.flood_pps * self.polled;
        self.goodput_pps = polled_pps.min(self.mlfrr_pps * (1.0 - run_s / cycle_s));
        let seconds = span.as_secs_f64();
        let discarded = ((polled_pps - self.goodput_pps) * seconds) as u64;
        let cpu = CpuObservation {
            cpu: 0,
            elapsed: span,
            network: span.mul_f64(run_s / cycle_s),
            contended: true,
            idle: Duration::ZERO,
            frames: (polled_pps * seconds) as u64 + self.others,
            runs: (seconds / cycle_s) as u64,
            run_frames_max: frames as u32,
        };
        self.governor.on_company(Company {
            others: std::mem::take(&mut self.others),
            flood: (polled_pps * seconds) as u64,
            admitted: (self.goodput_pps * seconds) as u64,
            queued: self.queued,
        });
        let losses = Losses {
            discarded,
            ring: self.lost,
            ..Losses::default()
        };
        self.governor.on_interval(&[cpu], losses, self.now)
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.step();
        }
    }

    /// Nothing comes.
    fn rest(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            let span = self.governor.interval();
            self.now += span;
            let cpu = CpuObservation {
                elapsed: span,
                idle: span,
                ..CpuObservation::default()
            };
            self.governor.on_company(Company::default());
            let nothing = Losses::default();
            self.governor.on_interval(&[cpu], nothing, self.now);
        }
    }

    /// One packet of somebody else comes in the next interval, and is polled by chance.
    fn bystander(&mut self, random: &mut fastrand::Rng) -> bool {
        let part = if self.governor.setting().is_lazy {
            self.polled
        } else {
            1.0
        };
        let is_polled = random.f64() < part;
        self.others = u64::from(is_polled);
        self.step();
        is_polled
    }
}

#[test]
fn a_flood_that_is_alone_leaves_its_server_more_of_the_cpu() {
    for (flood_pps, least, at_most) in [
        (750_000.0, 0.9, 0.88),
        (2_000_000.0, 0.77, 0.65),
        (3_400_000.0, 0.62, 0.4),
    ] {
        let mut host = Host::new(flood_pps);
        host.run(MS * 400);
        assert!(!host.governor.setting().is_lazy, "not yet");
        let attentive = host.goodput_pps / host.mlfrr_pps;
        assert!(attentive < at_most, "{flood_pps}: {attentive} without");
        host.run(SECOND);
        assert!(host.governor.setting().is_lazy);
        let mut parts = Vec::new();
        let mut polled = Vec::new();
        for _ in 0..250 {
            host.step();
            parts.push(host.goodput_pps / host.mlfrr_pps);
            polled.push(host.polled);
        }
        let mean = parts.iter().sum::<f64>() / 250.0;
        assert!(mean > least, "{flood_pps}: {mean}");
        let seldom = polled.iter().copied().fold(1.0, f64::min);
        assert!(seldom > 0.45, "{flood_pps}: {seldom} is polled");
        let looks = polled.iter().filter(|part| **part > 0.8).count();
        assert!((8..=12).contains(&looks), "{looks} of 250 intervals");
    }
}

#[test]
fn a_bystander_is_noticed_after_few_packets() {
    let mut random = fastrand::Rng::with_seed(15);
    let lost: Vec<u32> = (0..400)
        .map(|_| {
            let mut host = Host::new(3_000_000.0);
            host.run(SECOND * 2);
            assert!(host.governor.setting().is_lazy);
            // 100 packets/s: one in each interval.
            let polled = (0..100).filter(|_| host.bystander(&mut random)).count();
            assert!(!host.governor.setting().is_lazy, "it is noticed");
            100 - polled as u32
        })
        .collect();
    let mean = f64::from(lost.iter().sum::<u32>()) / 400.0;
    assert!(mean < 1.2, "{mean} lost on average");
    let many = lost.iter().filter(|lost| **lost > 3).count();
    assert!(many < 400 / 10, "{many} of 400 lost more than three");
}

#[test]
fn company_ends_it_at_once_and_quiet_is_needed_again() {
    let mut host = Host::new(2_000_000.0);
    host.run(SECOND * 2);
    host.others = 1;
    assert!(!host.step().is_lazy);
    assert!(host.governor.setting().holdoff < MS / 10, "all is polled");
    host.run(MS * 400);
    assert!(!host.governor.setting().is_lazy);
}

/// Minutes of calm would count as time in which company was away. After the next visit nobody would
/// be lazy for as long.
#[test]
fn a_calm_is_no_time_in_which_company_was_away() {
    let mut host = Host::new(2_000_000.0);
    host.run(SECOND * 2);
    assert!(host.governor.setting().is_lazy);
    host.rest(SECOND * 100);
    assert_eq!(host.governor.setting().mode, Mode::Interrupts);
    host.run(MS * 400);
    let setting = host.governor.setting();
    assert!(
        setting.mode == Mode::Overload && !setting.is_lazy,
        "not yet"
    );
    host.others = 1;
    host.step();
    host.run(SECOND * 2);
    assert!(host.governor.setting().is_lazy);
}

/// It was to overflow.
#[test]
fn what_the_ring_loses_of_a_lone_flood_shortens_no_holdoff_later() {
    let after_losses_of = |lost| {
        let mut host = Host::new(2_000_000.0);
        host.run(SECOND * 2);
        host.lost = lost;
        host.run(MS * 200);
        assert!(host.governor.setting().is_lazy);
        host.lost = 0;
        host.others = 1;
        host.step().holdoff
    };
    let (nothing, one) = (after_losses_of(0), after_losses_of(1));
    assert!(one * 10 > nothing * 9, "{one:?} of {nothing:?}");
}

#[test]
fn who_comes_every_ten_seconds_is_expected() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut host = Host::new(2_000_000.0);
    let mut lost = Vec::new();
    for second in 0..60 {
        host.run(SECOND * 10);
        if !host.bystander(&mut random) {
            lost.push(second);
        }
    }
    assert!(lost.len() <= 3, "{lost:?}: at first only");
    assert!(lost.iter().all(|second| *second < 4), "{lost:?}");
}

#[test]
fn a_pause_of_the_flood_is_no_company_that_is_remembered() {
    let mut host = Host::new(2_000_000.0);
    host.run(SECOND * 10);
    let flood_pps = host.flood_pps;
    host.flood_pps = 1000.0;
    host.run(MS * 40);
    // What its source has saved makes it look silent.
    host.flood_pps = flood_pps;
    host.others = 300;
    host.step();
    host.run(MS * 700);
    assert!(host.governor.setting().is_lazy, "after the shortest quiet");
}

#[test]
fn the_consumer_is_never_left_without_packets() {
    // Twice what it takes is polled; where that is all, the ring does not overflow.
    for flood_pps in [120_000.0, 180_000.0, 250_000.0, 400_000.0, 1_000_000.0] {
        let mut host = Host::new(flood_pps);
        host.run(SECOND * 2);
        for _ in 0..200 {
            host.step();
            let polled_pps = host.flood_pps * host.polled;
            let needed = (2.0 * host.goodput_pps).min(flood_pps) * 0.9;
            assert!(polled_pps >= needed, "{flood_pps}: {polled_pps}");
        }
    }
    // A short queue bounds the holdoff.
    let mut host = Host::new(2_000_000.0);
    host.queued = 30;
    host.run(SECOND * 2);
    assert!(host.governor.setting().is_lazy);
    let holdoff = host.governor.setting().holdoff;
    assert!(holdoff < MS / 4, "{holdoff:?} drains half of it");
}

#[test]
fn a_flood_that_grows_is_seen_within_the_look_interval() {
    let mut host = Host::new(500_000.0);
    host.run(SECOND * 2);
    host.flood_pps = 3_000_000.0;
    host.run(LOOK_INTERVAL + MS * 20);
    assert!(host.polled > 0.45, "{} is polled", host.polled);
}

/// A lazy interval polls a part, so what it polled is the least that arrives until the next look.
#[test]
fn the_highest_rate_that_was_polled_is_remembered() {
    let (mut alone, mut now) = (Alone::new(256), Instant::ZERO);
    let mut see = |alone: &mut Alone, rate_pps| {
        now += MS * 10;
        let company = Company {
            flood: rate_pps / 100,
            admitted: 1000,
            queued: 1000,
            ..Company::default()
        };
        let seen = Seen {
            company: Some(company),
            rate_pps,
            recent_pps: rate_pps,
            load: Fraction::from_percent(60),
            elapsed: MS * 10,
            discards_matter: true,
        };
        alone.on_interval(&seen, now);
    };
    while !alone.is_lazy() {
        see(&mut alone, 1_000_000);
    }
    for rate_pps in [3_000_000, 1_000_000] {
        see(&mut alone, rate_pps);
    }
    assert_eq!(alone.arriving(1_000_000), 3_000_000);
}

/// A flood, and company of one packet after `away`.
fn visit(solitude: &mut Solitude, now: &mut Instant, away: Duration) {
    let mut company = Company {
        flood: 1000,
        ..Company::default()
    };
    for _ in 0..(away.as_millis() / 10) - 1 {
        *now += MS * 10;
        solitude.on_interval(company, true, true, *now);
    }
    *now += MS * 10;
    company.others = 1;
    solitude.on_interval(company, true, true, *now);
}

/// How long the flood then needs to be alone.
fn quiet(solitude: &Solitude) -> Duration {
    let mut solitude = solitude.clone();
    let company = Company {
        flood: 1000,
        ..Company::default()
    };
    let mut now = Instant::from_nanos(0) + SECOND * 10_000;
    let start = now;
    while !solitude.on_interval(company, true, true, now) {
        now += MS * 10;
    }
    now.saturating_since(start)
}

#[test]
fn quiet_lasts_twice_as_long_as_company_was_away_and_that_is_forgotten_in_time() {
    let (mut solitude, mut now) = (Solitude::new(), Instant::ZERO);
    assert_eq!(quiet(&solitude), QUIET_MIN);
    visit(&mut solitude, &mut now, SECOND * 10);
    visit(&mut solitude, &mut now, SECOND * 10);
    assert_eq!(quiet(&solitude), SECOND * 20);
    for _ in 0..299 {
        visit(&mut solitude, &mut now, SECOND);
    }
    assert_eq!(quiet(&solitude), SECOND * 20, "for five minutes");
    visit(&mut solitude, &mut now, SECOND);
    assert_eq!(quiet(&solitude), SECOND * 2);
}

#[test]
fn who_is_not_told_of_company_is_never_lazy() {
    let mut alone = Alone::new(256);
    let seen = Seen {
        company: None,
        rate_pps: 3_000_000,
        recent_pps: 3_000_000,
        load: Fraction::from_percent(60),
        elapsed: MS * 10,
        discards_matter: true,
    };
    for step in 1..1000 {
        assert_eq!(
            alone.on_interval(&seen, Instant::ZERO + MS * 10 * step),
            None
        );
    }
    assert!(!alone.is_lazy());
}

proptest! {
    /// Whatever comes: the ring overflows only after a time without company, while there
    /// is a flood, and no holdoff is longer than a bystander may wait.
    #[test]
    fn it_is_lazy_only_when_alone(
        steps in prop::collection::vec(
            (0_u64..3, 0_u64..40_000, 0_u64..4000, 0_u64..5000, 0_u32..1_100_000, 1_u32..60),
            1..200,
        ),
    ) {
        let mut alone = Alone::new(256);
        let mut now = Instant::ZERO;
        let mut company_at = Instant::ZERO;
        for (others, flood, admitted, queued, load, repeats) in steps {
            for repeat in 0..repeats {
                now += MS * 10;
                // Company in the first interval only: quiet does come.
                let others = if repeat == 0 { others } else { 0 };
                let seen = Seen {
                    company: Some(Company { others, flood, admitted, queued }),
                    rate_pps: (flood + others) * 100,
                    recent_pps: (flood + others) * 100,
                    load: Fraction::from_ppm(load.min(1_000_000)),
                    elapsed: MS * 10,
                    discards_matter: flood > admitted,
                };
                if others > 0 || flood == 0 || flood <= admitted {
                    company_at = now;
                }
                let holdoff = alone.on_interval(&seen, now);
                let alone_for = now.saturating_since(company_at);
                prop_assert!(!alone.is_lazy() || alone_for >= QUIET_MIN);
                prop_assert!(holdoff.is_none() || alone.is_lazy());
                prop_assert!(holdoff.unwrap_or_default() <= HOLDOFF_MAX);
            }
        }
    }
}

/// A flood that nobody but it is there for, seen each 10 ms.
fn seen(company: Option<Company>) -> Seen {
    Seen {
        company,
        rate_pps: 1_000_000,
        recent_pps: 1_000_000,
        load: Fraction::from_percent(50),
        elapsed: 10 * MS,
        discards_matter: true,
    }
}

const FLOOD: Company = Company {
    others: 0,
    flood: 10_000,
    admitted: 100,
    queued: 1000,
};

/// One that has become lazy at this moment.
fn lazy() -> (Alone, Instant) {
    let (mut alone, mut now) = (Alone::new(256), Instant::ZERO);
    while !alone.is_lazy() {
        now += 10 * MS;
        alone.on_interval(&seen(Some(FLOOD)), now);
        assert!(now < Instant::ZERO + 2 * QUIET_MIN);
    }
    (alone, now)
}

/// How long a flood is then alone before the ring may overflow.
fn until_lazy(alone: &mut Alone, from: Instant) -> Duration {
    let mut now = from;
    while !alone.is_lazy() {
        now += 10 * MS;
        alone.on_interval(&seen(Some(FLOOD)), now);
    }
    now.saturating_since(from)
}

/// What the ring loses would be taken for meant.
#[test]
fn who_is_no_longer_told_of_company_lets_no_ring_overflow() {
    let (mut alone, now) = lazy();
    assert_eq!(alone.on_interval(&seen(None), now + 10 * MS), None);
    assert!(!alone.is_lazy());
    assert!(until_lazy(&mut alone, now + 10 * MS) >= QUIET_MIN);
}

#[test]
fn the_next_overload_is_looked_at_anew() {
    let (mut alone, now) = lazy();
    alone.end();
    assert!(!alone.is_lazy());
    assert!(until_lazy(&mut alone, now) >= QUIET_MIN);
}

#[test]
fn where_nothing_of_a_flood_came_nobody_is_alone() {
    let nothing = Company { flood: 0, ..FLOOD };
    let (mut alone, mut now) = (Alone::new(256), Instant::ZERO);
    for _ in 0..200 {
        now += 10 * MS;
        assert_eq!(alone.on_interval(&seen(Some(nothing)), now), None);
    }
    assert!(!alone.is_lazy());
}

/// Who would take all that comes loses what the ring does.
#[test]
fn a_consumer_that_takes_half_of_a_flood_is_polled_for() {
    let hungry = Company {
        admitted: 5_000,
        ..FLOOD
    };
    let (mut alone, mut now) = (Alone::new(256), Instant::ZERO);
    for _ in 0..200 {
        now += 10 * MS;
        assert_eq!(alone.on_interval(&seen(Some(hungry)), now), None);
    }
    assert!(!alone.is_lazy());
}
