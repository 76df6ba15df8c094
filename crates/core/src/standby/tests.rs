//! Floods, bursts and transfers by a hand-moved clock, then random readings beside a plain
//! model.

mod metering;
mod staying;

extern crate std;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const READING: Duration = Duration::from_millis(100);
const QUIET: Duration = Duration::from_secs(60);
const NONE: Evidence = Evidence {
    ring: 0,
    backlog: 0,
    sockets: 0,
    listeners: 0,
    cookies: 0,
    received: 0,
    segments: 0,
    resets: 0,
    forwarded: 0,
    share: None,
    is_wanted: false,
    judged: 0,
    is_busy: false,
};

/// A standby with its clock.
struct Host {
    standby: Standby,
    now: Instant,
}

impl Host {
    fn new() -> Self {
        let mut host = Self {
            standby: Standby::new(Config::default()).unwrap(),
            now: Instant::ZERO,
        };
        assert_eq!(host.read(&NONE), Order::Keep);
        host
    }

    fn read(&mut self, evidence: &Evidence) -> Order {
        self.now += READING;
        self.standby.on_reading(evidence, self.now)
    }

    /// Does as it is told. True if it attached or detached.
    fn follow(&mut self, evidence: &Evidence) -> bool {
        match self.read(evidence) {
            Order::Keep => return false,
            Order::Attach(_) => self.standby.on_attached(self.now),
            Order::Detach => self.standby.on_detached(self.now),
        }
        true
    }

    /// Readings until it changes, at most so many; `None` if it does not.
    fn until_change(&mut self, evidence: &Evidence, readings: u32) -> Option<u32> {
        (1..=readings).find(|_| self.follow(evidence))
    }

    fn attached() -> Self {
        let mut host = Self::new();
        assert!(host.follow(&flood(60_000)));
        assert!(host.standby.is_attached());
        host
    }
}

fn flood(lost: u64) -> Evidence {
    Evidence {
        sockets: lost,
        received: lost + 10,
        ..NONE
    }
}

/// A transfer that fills a CPU; its slow start overflows the ring.
fn bulk(lost: u64) -> Evidence {
    Evidence {
        ring: lost,
        backlog: lost,
        received: 3_000,
        segments: 2_950,
        share: Some(Fraction::WHOLE),
        ..NONE
    }
}

fn readings(span: Duration) -> u32 {
    u32::try_from(span.as_millis() / READING.as_millis()).unwrap()
}

#[test]
fn a_flood_attaches_in_one_reading_by_whatever_it_overflows() {
    let many = 5_000;
    let of = |change: fn(&mut Evidence, u64)| {
        let mut evidence = Evidence {
            received: 10,
            ..NONE
        };
        change(&mut evidence, many);
        evidence
    };
    for (evidence, sign) in [
        (of(|e, n| e.ring = n), Sign::Ring),
        (of(|e, n| (e.ring, e.backlog) = (n, n + 1)), Sign::Backlog),
        (of(|e, n| e.sockets = n), Sign::Socket),
        (of(|e, n| e.listeners = n), Sign::Listener),
        (of(|e, n| (e.cookies, e.segments) = (n, n)), Sign::Listener),
    ] {
        let mut host = Host::new();
        assert_eq!(host.read(&evidence), Order::Attach(sign));
        // The driver refused: it is said again, and not for long after the flood.
        assert_eq!(host.read(&evidence), Order::Attach(sign));
        assert!(host.read(&NONE) != Order::Keep);
        host.now += DEBT_KEPT;
        assert_eq!(host.read(&NONE), Order::Keep);
    }
}

/// A second after its begin at the latest.
#[test]
fn a_flood_that_is_just_too_much_attaches_soon() {
    let waits = [200, 300, 1_000].map(|lost_each| Host::new().until_change(&flood(lost_each), 10));
    assert_eq!(waits, [Some(6), Some(4), Some(2)]);
}

#[test]
fn bursts_and_trickles_do_not_attach() {
    for (lost, pause) in [(1_000, 100), (700, 70), (10, 1), (1, 1)] {
        let mut host = Host::new();
        for _ in 0..1_000 {
            assert!(!host.follow(&flood(lost)), "{lost} each {pause}");
            assert_eq!(host.until_change(&NONE, pause - 1), None, "{lost}");
        }
    }
}

#[test]
fn a_bulk_transfer_never_attaches_and_holds_nothing() {
    let mut host = Host::new();
    for lost in [0, 1, 500, 100_000] {
        assert_eq!(host.until_change(&bulk(lost), 10_000), None, "{lost}");
    }
    let mut host = Host::attached();
    let all = readings(QUIET);
    assert_eq!(host.until_change(&bulk(7), all), Some(all));
    // A flood beside it is one.
    let mut host = Host::new();
    let beside = Evidence {
        received: 63_000,
        ..bulk(50_000)
    };
    assert!(host.follow(&beside));
}

#[test]
fn what_goes_on_to_other_hosts_attaches_only_where_others_want_the_cpu() {
    let router = |is_wanted| Evidence {
        ring: 20_000,
        received: 60_000,
        forwarded: 59_000,
        share: Some(Fraction::WHOLE),
        is_wanted,
        ..NONE
    };
    assert_eq!(Host::new().until_change(&router(false), 1_000), None);
    let mut host = Host::new();
    host.read(&router(false));
    assert!(host.standby.needs_meter(), "else nobody knows who waits");
    assert_eq!(host.until_change(&router(true), 3), Some(3));
    // For a moment somebody always waits.
    let mut host = Host::new();
    for _ in 0..100 {
        assert_eq!(host.until_change(&router(true), 2), None);
        assert_eq!(host.until_change(&router(false), 1), None);
    }
}

#[test]
fn a_full_cpu_attaches_by_itself_where_enough_comes() {
    let full = |received, percent| Evidence {
        received,
        share: Some(Fraction::from_percent(percent)),
        ..NONE
    };
    let mut host = Host::new();
    assert_eq!(host.read(&full(20_000, 90)), Order::Keep);
    // An interval that nobody metered says nothing.
    assert_eq!(
        host.read(&Evidence {
            share: None,
            ..full(20_000, 0)
        }),
        Order::Keep
    );
    assert_eq!(host.read(&full(20_000, 85)), Order::Keep);
    assert_eq!(host.read(&full(20_000, 99)), Order::Attach(Sign::Cpu));
    for (received, percent) in [(20_000, 84), (4_000, 100), (0, 100)] {
        let calm = full(received, percent);
        assert_eq!(Host::new().until_change(&calm, 1_000), None, "{calm:?}");
    }
    // A burst of two readings.
    let mut host = Host::new();
    for _ in 0..100 {
        assert!(!host.follow(&full(20_000, 99)) && !host.follow(&full(20_000, 99)));
        assert!(!host.follow(&full(20_000, 10)));
    }
}

/// Segments to closed ports and SYNs are no connections.
#[test]
fn segments_that_are_refused_excuse_nothing() {
    let closed = Evidence {
        resets: 2_900,
        ..bulk(5_000)
    };
    assert_eq!(Host::new().read(&closed), Order::Attach(Sign::Ring));
}

/// The link of the guard before was taken over.
#[test]
fn it_may_begin_attached() {
    let mut host = Host::new();
    host.standby.on_attached(host.now);
    let all = readings(QUIET);
    assert_eq!(host.until_change(&NONE, 2 * all), Some(all));
}

#[test]
fn new_settings_hold_from_the_next_reading_on() {
    let mut host = Host::attached();
    let quiet = Duration::from_secs(2);
    let config = |quiet| Config {
        quiet,
        ..Config::default()
    };
    assert!(host.standby.configure(config(Duration::ZERO)).is_err());
    host.standby.configure(config(quiet)).unwrap();
    assert_eq!(host.until_change(&NONE, 99), Some(readings(quiet)));
}

#[test]
fn settings_out_of_range_are_named() {
    for (config, field) in [
        (
            Config {
                quiet: Duration::ZERO,
                ..Config::default()
            },
            "quiet",
        ),
        (
            Config {
                quiet: QUIET_LONGEST * 2,
                ..Config::default()
            },
            "quiet",
        ),
        (
            Config {
                cpu_limit: Fraction::NONE,
                ..Config::default()
            },
            "cpu_limit",
        ),
    ] {
        assert_eq!(Standby::new(config).unwrap_err().field, field);
    }
}

/// The same rules, said without care for cost: every reading is remembered.
#[derive(Default)]
struct Model {
    readings: Vec<(u64, Evidence)>,
    /// Milliseconds at which it was attached and detached, in turns.
    changes: Vec<u64>,
}

impl Model {
    fn is_attached(&self) -> bool {
        self.changes.len() % 2 == 1
    }

    fn counts(evidence: &Evidence) -> (bool, u64) {
        let refused = evidence.resets + evidence.listeners + evidence.cookies;
        let connections = evidence.segments.saturating_sub(refused);
        let forwarded = if evidence.is_wanted {
            0
        } else {
            evidence.forwarded
        };
        let pressing = evidence.received.saturating_sub(connections + forwarded);
        let is_excused = evidence.received > 0 && 4 * pressing < evidence.received;
        let frames = if is_excused {
            0
        } else {
            evidence.ring.max(evidence.backlog)
        };
        let lost = frames + evidence.sockets + evidence.listeners + evidence.cookies;
        (is_excused, lost)
    }

    fn is_full(evidence: &Evidence, elapsed: u64) -> bool {
        let Some(share) = evidence.share else {
            return false;
        };
        let forwarded = if evidence.is_wanted {
            0
        } else {
            evidence.forwarded
        };
        let refused = evidence.resets + evidence.listeners + evidence.cookies;
        let excused = evidence.segments.saturating_sub(refused) + forwarded;
        // 20 µs for each packet, in 85 % of the time.
        let enough = 20 * evidence.received.saturating_sub(excused) >= 850 * elapsed;
        share.as_ppm() >= 850_000 && enough && !Self::counts(evidence).0
    }

    /// The quiet of the last attachment, in milliseconds.
    fn quiet(&self) -> u64 {
        let mut quiet = 60_000;
        for pair in self.changes[1..].chunks(2) {
            if let [detached, attached] = pair {
                let is_soon = attached - detached < 8 * quiet;
                quiet = if is_soon {
                    (2 * quiet).min(64 * 60_000)
                } else {
                    60_000
                };
            }
        }
        quiet
    }

    /// Whoever waited in three metered readings in a row wants the CPU.
    fn wanted_for_long(seen: &[(u64, u64, Evidence)]) -> Vec<(u64, u64, Evidence)> {
        let is_wanted = |last: usize| {
            let metered = seen[..=last].iter().rev().map(|(.., evidence)| evidence);
            let metered = metered.filter(|evidence| evidence.share.is_some());
            metered.take_while(|evidence| evidence.is_wanted).count() >= 3
        };
        let of = |(place, (at, elapsed, evidence)): (usize, &(u64, u64, Evidence))| {
            let is_wanted = is_wanted(place);
            (
                *at,
                *elapsed,
                Evidence {
                    is_wanted,
                    ..*evidence
                },
            )
        };
        seen.iter().enumerate().map(of).collect()
    }

    fn order(&self) -> &'static str {
        let since = self.changes.last().copied().unwrap_or(0);
        let of = |place: usize| {
            let (at, evidence) = self.readings[place];
            let elapsed = place
                .checked_sub(1)
                .map_or(0, |before| at - self.readings[before].0);
            (at, elapsed, evidence)
        };
        let later = (0..self.readings.len())
            .map(of)
            .filter(|(at, ..)| *at > since);
        let later = Self::wanted_for_long(&later.collect::<Vec<_>>());
        let Some((now, ..)) = later.last().copied() else {
            return "keep";
        };
        if self.is_attached() {
            let (mut debt, mut last) = (0_u64, since);
            for (at, elapsed, evidence) in &later {
                let lost = Self::counts(evidence).1 + evidence.judged;
                debt = (debt.saturating_sub(*elapsed) + lost).min(11_000);
                if debt > 10_000 || evidence.is_busy || Self::is_full(evidence, *elapsed) {
                    last = *at;
                }
            }
            return if now - last >= self.quiet() {
                "detach"
            } else {
                "keep"
            };
        }
        let mut debt = 0_u64;
        for (_, elapsed, evidence) in &later {
            debt = debt.saturating_sub(*elapsed) + 10 * Self::counts(evidence).1;
            debt = debt.min(20_000);
        }
        let metered = later
            .iter()
            .filter(|(.., evidence)| evidence.share.is_some());
        let full: Vec<_> = metered
            .map(|(_, elapsed, evidence)| Self::is_full(evidence, *elapsed))
            .collect();
        let full = full.iter().rev().take_while(|full| **full).count();
        if debt > 10_000 || full >= 3 {
            "attach"
        } else {
            "keep"
        }
    }
}

prop_compose! {
    fn some_evidence()(
        kind in 0..6_u8,
        lost in prop_oneof![Just(0_u64), Just(1), 0..50_u64, 0..2_000_u64],
        received in 0..40_000_u64,
        part in 0..=100_u64,
        resets in prop_oneof![Just(0_u64), 0..40_000_u64],
        share in proptest::option::of(prop_oneof![Just(100), 80..=100_u32]),
        is_wanted: bool,
        judged in prop_oneof![4 => Just(0_u64), 1 => 1..9_u64, 1 => 0..2_000_u64],
        is_busy in proptest::bool::weighted(0.1),
    ) -> Evidence {
        let mut evidence = Evidence {
            received,
            resets,
            share: share.map(Fraction::from_percent),
            is_wanted,
            judged,
            is_busy,
            ..NONE
        };
        match kind {
            0 => evidence.ring = lost,
            1 => evidence.backlog = lost,
            2 => evidence.sockets = lost,
            3 => evidence.listeners = lost,
            4 => evidence.cookies = lost,
            _ => return NONE,
        }
        let most = received * part / 100;
        if is_wanted { evidence.forwarded = most } else { evidence.segments = most }
        evidence
    }
}

proptest! {
    /// A pause of minutes now and then; an order that is refused now and then.
    #[test]
    fn it_does_what_the_plain_model_does(
        steps in prop::collection::vec(
            (
                some_evidence(),
                prop_oneof![8 => 50..150_u64, 1 => 1_000..90_000_u64, 1 => 0..1_000_000_u64],
                proptest::bool::weighted(0.8),
            ),
            1..120,
        ),
    ) {
        let mut standby = Standby::new(Config::default()).unwrap();
        let mut model = Model::default();
        let mut now = 0;
        for (evidence, pause, is_done) in steps {
            now += pause.max(1);
            let at = Instant::from_nanos(now * 1_000_000);
            model.readings.push((now, evidence));
            let order = standby.on_reading(&evidence, at);
            let said = match order {
                Order::Keep => "keep",
                Order::Attach(_) => "attach",
                Order::Detach => "detach",
            };
            prop_assert_eq!(said, model.order());
            if order != Order::Keep && is_done {
                match order {
                    Order::Detach => standby.on_detached(at),
                    _ => standby.on_attached(at),
                }
                model.changes.push(now);
            }
            prop_assert_eq!(standby.is_attached(), model.is_attached());
        }
    }

    /// Whoever chooses what is seen has it attached once in nine minutes on the average: eight
    /// quiets and one, or a quiet that grows.
    #[test]
    fn nobody_makes_it_flap(waits in prop::collection::vec(0..500_000_u64, 200)) {
        let mut host = Host::new();
        let mut attached: u64 = 0;
        for wait in waits {
            host.now += Duration::from_millis(wait);
            prop_assert!(host.follow(&flood(60_000)));
            attached += 1;
            while host.standby.is_attached() {
                host.now += READING * 9;
                host.follow(&NONE);
            }
            let minutes = host.now.as_nanos() / 60_000_000_000;
            prop_assert!(attached <= minutes / 9 + 7, "{} in {}", attached, minutes);
        }
    }
}
