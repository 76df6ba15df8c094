//! Where the kernel polls for a program of ours that takes frames: above it or beneath it.
//!
//! **Intuition.** Beneath the program, the kernel polls when the program has worked off
//! what came before. The rest of a flood overflows the adapter's ring at no cost, so the
//! flooded endpoint keeps its goodput (lazy receiver processing: Druschel & Banga 1996).
//! But the ring does not know whose packets it loses. Above the program, every packet is
//! looked at, and a full endpoint's are discarded early: others lose nothing, and the
//! discards take the program's time. So the kernel polls beneath while one endpoint's
//! flood is alone, and above otherwise. When it is alone is the guard's question as well
//! (`alone::solitude`); the answer there is a longer holdoff.
//!
//! **Company** is any packet that is not the flooded endpoint's. A bystander's packet is
//! polled beneath with the probability that any packet has, and the first one that is
//! polled ends it. Some intervals are polled above in any case ([`Looks`]): there a newcomer
//! is seen for certain.
//!
//! **Beneath nothing is discarded early:** the ring overflows instead. So there a flood
//! goes on until the next interval above; others may keep the kernel from polling at all
//! meanwhile. Whether it is still too much is seen there. What its consumer does not take
//! counts as discarded then, also what still finds room in the queue: beneath, a queue may
//! have run dry.
//!
//! **When it loses.** A consumer that pauses during the interval above makes a load that it
//! can take look like a flood until the next one. Beneath it gets that load as well, unless
//! others leave the kernel's polling no time.

use core::time::Duration;

use super::alone::solitude::{Looks, Solitude};
use super::{Company, GovernorConfig};
use crate::charge::shedding::DISCARDED;
use crate::time::{Instant, span_nanos};

/// Where the kernel polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before the program: all packets are looked at.
    Above,
    /// When the program has nothing to do.
    Beneath,
}

/// The decision; see the module's documentation.
#[derive(Debug)]
pub struct Placement {
    config: GovernorConfig,
    solitude: Solitude,
    /// While a flood is alone.
    looks: Option<Looks>,
    /// Discards took time in the interval before, and when they last did.
    mattered: bool,
    mattered_at: Instant,
}

impl Default for Placement {
    fn default() -> Self {
        Self::new()
    }
}

impl Placement {
    /// Begins above.
    #[must_use]
    pub fn new() -> Self {
        Self {
            config: GovernorConfig::default(),
            solitude: Solitude::new(),
            looks: None,
            mattered: false,
            mattered_at: Instant::ZERO,
        }
    }

    /// Where the kernel is to poll now.
    #[must_use]
    pub fn place(&self) -> Place {
        match self.looks {
            Some(looks) if !looks.is_due() => Place::Beneath,
            _ => Place::Above,
        }
    }

    /// Time until the next observation.
    #[must_use]
    pub fn interval(&self) -> Duration {
        match self.mattered {
            true => self.config.busy_interval,
            false => self.config.rest_interval,
        }
    }

    /// Takes whose packets came in the time `elapsed` that ends now, where the flood's admitted
    /// ones are those that its consumer took; `None`: no endpoint is known to be flooded. Says
    /// where the kernel is to poll.
    pub fn on_interval(
        &mut self,
        company: Option<Company>,
        elapsed: Duration,
        now: Instant,
    ) -> Place {
        let Some(company) = company else {
            self.looks = None;
            self.mattered = false;
            self.solitude.end();
            return Place::Above;
        };
        let is_beneath = self.place() == Place::Beneath;
        let is_nothing = company.flood == 0 && company.others == 0;
        if is_beneath && is_nothing {
            self.looks = self.looks.map(|looks| looks.next(now));
            return self.place();
        }
        self.mattered = is_beneath || self.discards_matter(company, elapsed);
        if self.mattered {
            self.mattered_at = now;
        } else if now.saturating_since(self.mattered_at) >= self.config.leave_dwell {
            self.solitude.end();
        }
        let solitude = &mut self.solitude;
        let is_alone = solitude.on_interval(company, self.mattered, self.mattered, now);
        let looks = match self.looks {
            Some(looks) if is_beneath => looks.next(now),
            _ => Looks::after_all(now),
        };
        self.looks = is_alone.then_some(looks);
        self.place()
    }

    /// Discarding took as much time as is a sign of overload to the governor.
    fn discards_matter(&self, company: Company, elapsed: Duration) -> bool {
        let discarded = company.flood.saturating_sub(company.admitted);
        let spent_ns = discarded.saturating_mul(span_nanos(DISCARDED));
        spent_ns > self.config.discard_share.of(span_nanos(elapsed))
    }
}

#[cfg(test)]
mod tests {
    //! A modelled host with one CPU: a flooded server, and the kernel that polls for it.

    extern crate std;
    use std::vec::Vec;

    use proptest::prelude::{prop, prop_assert, proptest};

    use super::*;
    use crate::governor::alone::solitude::{LOOK_INTERVAL, QUIET_MIN};

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    struct Host {
        placement: Placement,
        now: Instant,
        flood_pps: f64,
        mlfrr_pps: f64,
        /// Part of what comes that is polled beneath.
        polled: f64,
        /// Others' packets of the next interval that are polled for certain.
        others: u64,
    }

    impl Host {
        fn new(flood_pps: f64) -> Self {
            Self {
                placement: Placement::new(),
                now: Instant::ZERO,
                flood_pps,
                mlfrr_pps: 100_000.0,
                polled: 0.25,
                others: 0,
            }
        }

        fn step(&mut self) -> Place {
            let span = self.placement.interval();
            self.now += span;
            let polled = match self.placement.place() {
                Place::Above => 1.0,
                Place::Beneath => self.polled,
            };
            let frames = self.flood_pps * polled * span.as_secs_f64();
            let taken = self.mlfrr_pps * span.as_secs_f64();
            let company = Company {
                others: std::mem::take(&mut self.others),
                flood: frames as u64,
                admitted: frames.min(taken) as u64,
                queued: 0,
            };
            self.placement.on_interval(Some(company), span, self.now)
        }

        /// Where the kernel polled, interval by interval.
        fn run(&mut self, span: Duration) -> Vec<Place> {
            let end = self.now + span;
            let mut places = Vec::new();
            while self.now < end {
                places.push(self.step());
            }
            places
        }

        /// One packet of somebody else, which is polled by chance.
        fn bystander(&mut self, random: &mut fastrand::Rng) -> bool {
            let is_polled = self.placement.place() == Place::Above || random.f64() < self.polled;
            self.others = u64::from(is_polled);
            self.step();
            is_polled
        }
    }

    #[test]
    fn a_flood_that_is_alone_is_polled_for_beneath_and_looked_at_now_and_then() {
        for flood_pps in [200_000.0, 1_000_000.0, 4_000_000.0] {
            let mut host = Host::new(flood_pps);
            assert!(!host.run(MS * 400).contains(&Place::Beneath), "not yet");
            host.run(SECOND);
            let places = host.run(SECOND * 10);
            let above = places.iter().filter(|place| **place == Place::Above);
            let above = above.count() * 1000 / places.len();
            assert!(
                (20..=45).contains(&above),
                "{flood_pps}: {above} of a thousand"
            );
        }
    }

    #[test]
    fn a_load_that_is_taken_is_polled_for_above() {
        let mut host = Host::new(90_000.0);
        assert!(!host.run(SECOND * 10).contains(&Place::Beneath));
        assert_eq!(host.placement.interval(), MS * 40, "and seldom looked at");
        // Nothing comes, and nothing is known to be flooded.
        let mut placement = Placement::new();
        for step in 1..1000 {
            let now = Instant::ZERO + MS * 10 * step;
            assert_eq!(placement.on_interval(None, MS * 10, now), Place::Above);
        }
    }

    #[test]
    fn company_ends_it_at_once_and_quiet_is_needed_again() {
        let mut host = Host::new(1_000_000.0);
        host.run(SECOND * 2);
        assert_eq!(host.placement.place(), Place::Beneath);
        host.others = 1;
        assert_eq!(host.step(), Place::Above);
        assert!(!host.run(QUIET_MIN - MS * 20).contains(&Place::Beneath));
    }

    /// Such an interval is none in which nothing was polled.
    #[test]
    fn company_ends_it_also_where_none_of_the_flood_was_polled() {
        let mut host = Host::new(1_000_000.0);
        host.run(SECOND * 2);
        assert_eq!(host.placement.place(), Place::Beneath);
        (host.polled, host.others) = (0.0, 1);
        assert_eq!(host.step(), Place::Above);
    }

    #[test]
    fn a_bystander_loses_a_bounded_number_before_it_is_noticed() {
        let mut random = fastrand::Rng::with_seed(23);
        let mut worst = 0;
        for _ in 0..300 {
            let mut host = Host::new(4_000_000.0);
            host.run(SECOND * 2);
            // 100 packets/s: one in each interval.
            let polled = (0..200).filter(|_| host.bystander(&mut random)).count();
            assert_eq!(host.placement.place(), Place::Above, "it is noticed");
            worst = worst.max(200 - polled);
        }
        // At the next look for certain.
        let looks = (LOOK_INTERVAL.as_millis() / 10) as usize;
        assert!(worst <= looks + 1, "{worst} lost");
    }

    #[test]
    fn who_comes_every_ten_seconds_is_expected() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut host = Host::new(1_000_000.0);
        let mut lost = Vec::new();
        for time in 0..40 {
            host.run(SECOND * 10);
            if !host.bystander(&mut random) {
                lost.push(time);
            }
        }
        // Beneath, three of four are lost until the first is seen.
        assert!(lost.len() <= 20, "{lost:?}");
        let last = lost.last().copied().unwrap_or(0);
        assert!(last < 20, "{lost:?}: at first only");
    }

    /// The calm between two floods was taken for company that stayed away: after a second
    /// flood's first packet of company nobody was lazy for five minutes.
    #[test]
    fn nobody_was_away_while_nobody_looked() {
        for is_known in [false, true] {
            let mut host = Host::new(1_000_000.0);
            host.run(SECOND);
            let calm = SECOND * 100;
            if is_known {
                // The endpoint that was flooded last.
                let flood_pps = std::mem::take(&mut host.flood_pps);
                host.run(calm);
                host.flood_pps = flood_pps;
            } else {
                host.now += calm;
                host.placement.on_interval(None, calm, host.now);
            }
            host.run(MS * 100);
            host.others = 1;
            host.step();
            host.run(QUIET_MIN + MS * 20);
            assert_eq!(host.placement.place(), Place::Beneath, "{is_known}");
        }
    }

    /// A pause of the flood is no reason to forget who comes every ten seconds.
    #[test]
    fn company_is_remembered_over_pauses_of_the_flood() {
        let mut host = Host::new(1_000_000.0);
        let flood_pps = host.flood_pps;
        for _ in 0..5 {
            host.run(SECOND * 2);
            host.flood_pps = 0.0;
            host.run(MS * 100);
            host.flood_pps = flood_pps;
            host.run(MS * 50);
        }
        host.others = 1;
        host.step();
        let places = host.run(SECOND * 10);
        assert!(!places.contains(&Place::Beneath), "twice ten seconds");
    }

    /// Two processes beside the server kept the kernel from polling for some intervals, and
    /// each time the flood had to be alone for half a second again.
    #[test]
    fn nothing_polled_is_no_end_of_the_flood() {
        let mut host = Host::new(1_000_000.0);
        host.run(SECOND * 2);
        host.polled = 0.0;
        host.run(MS * 100);
        host.polled = 0.25;
        let places = host.run(SECOND);
        let above = places.iter().filter(|place| **place == Place::Above);
        assert!(above.count() <= 4, "but for looks");
    }

    #[test]
    fn a_flood_that_ends_is_polled_for_above_soon() {
        for left_pps in [0.0, 50_000.0] {
            let mut host = Host::new(1_000_000.0);
            host.run(SECOND * 2);
            host.flood_pps = left_pps;
            host.run(LOOK_INTERVAL + MS * 20);
            assert!(
                !host.run(SECOND * 5).contains(&Place::Beneath),
                "{left_pps}"
            );
        }
    }

    proptest! {
        /// Whatever comes: beneath only after a time without company, and never for longer
        /// than until the next look.
        #[test]
        fn it_is_beneath_only_when_alone(
            steps in prop::collection::vec((0_u64..3, 0_u64..40_000, 0_u64..4000, 1_u32..60), 1..200),
        ) {
            let mut placement = Placement::new();
            let mut now = Instant::ZERO;
            let (mut company_at, mut above_at) = (now, now);
            for (others, flood, admitted, repeats) in steps {
                for repeat in 0..repeats {
                    now += MS * 10;
                    let others = if repeat == 0 { others } else { 0 };
                    let company = Company { others, flood, admitted, queued: 0 };
                    if others > 0 {
                        company_at = now;
                    }
                    let place = placement.on_interval(Some(company), MS * 10, now);
                    match place {
                        Place::Above => above_at = now,
                        Place::Beneath => {
                            prop_assert!(now.saturating_since(company_at) >= QUIET_MIN);
                            prop_assert!(now.saturating_since(above_at) <= LOOK_INTERVAL + MS * 10);
                        }
                    }
                }
            }
        }
    }
}
