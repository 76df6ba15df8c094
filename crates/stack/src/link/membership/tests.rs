//! When what is told, with a clock that is moved by hand.

mod frames;

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const START: Instant = Instant::from_nanos(5_000_000_000);

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn groups() -> [IpAddr; 2] {
    ["239.1.2.3", "ff02::4321"].map(address)
}

fn everybody_of(group: IpAddr) -> IpAddr {
    match group {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn asks(group: IpAddr, version: Version, within: Duration) -> Query {
    Query {
        group,
        version,
        within,
    }
}

/// Memberships, and a clock that is moved by hand.
struct Trial {
    memberships: Memberships,
    now: Instant,
}

impl Trial {
    fn new(seed: u64) -> Self {
        Self {
            memberships: Memberships::with(fastrand::Rng::with_seed(seed)),
            now: START,
        }
    }

    fn join(&self, group: IpAddr) {
        self.memberships.join(group, self.now);
    }

    fn leave(&self, group: IpAddr) {
        self.memberships.leave(group, self.now);
    }

    fn query(&self, query: Query) {
        self.memberships.on_query(&query, self.now);
    }

    /// What is told within `time`, and how long after its beginning; the clock is then moved there.
    fn told_in(&mut self, time: Duration) -> Vec<(Duration, Telling)> {
        let (begin, end) = (self.now, self.now + time);
        let mut told = Vec::new();
        loop {
            let (tellings, next) = self.memberships.poll(self.now);
            let after = self.now.saturating_since(begin);
            told.extend(tellings.into_iter().map(|telling| (after, telling)));
            match next {
                Some(next) if next <= end => {
                    assert!(next > self.now, "what is due was not told");
                    self.now = next;
                }
                _ => break,
            }
        }
        self.now = end;
        told
    }

    /// After a join was told as often as it is.
    fn settled(seed: u64, groups: &[IpAddr]) -> Self {
        let mut trial = Self::new(seed);
        groups.iter().for_each(|group| trial.join(*group));
        trial.told_in(SECOND * 11);
        trial
    }
}

/// How each telling was, without its groups.
fn kinds(told: &[(Duration, Telling)]) -> Vec<(What, Version)> {
    let kind = |(_, telling): &(_, Telling)| (telling.what, telling.version);
    told.iter().map(kind).collect()
}

#[test]
fn a_join_is_told_at_once_and_once_more() {
    for (group, seed) in groups().into_iter().zip(0..) {
        let mut trial = Trial::new(seed);
        trial.join(group);
        trial.join(group);
        let told = trial.told_in(REPEAT_WITHIN_OLD);
        assert_eq!(kinds(&told), [(What::Joined, Version::Two); 2]);
        assert_eq!(told[0].0, Duration::ZERO);
        assert!(told.iter().all(|(_, telling)| telling.groups == [group]));
    }
}

#[test]
fn the_last_sockets_leave_is_told() {
    for group in groups() {
        let mut trial = Trial::settled(1, &[group]);
        trial.join(group);
        trial.leave(group);
        assert_eq!(trial.told_in(SECOND), []);
        trial.leave(group);
        let told = trial.told_in(SECOND * 30);
        assert_eq!(kinds(&told), [(What::Left, Version::Two)], "once");
        assert_eq!(told[0].0, Duration::ZERO);
        trial.leave(group);
        assert_eq!(trial.told_in(SECOND * 300), [], "nobody is in it");
    }
}

#[test]
fn version_three_is_told_of_a_leave_twice_within_a_second() {
    for group in groups() {
        let mut trial = Trial::settled(1, &[group]);
        trial.query(asks(everybody_of(group), Version::Three, SECOND));
        trial.told_in(SECOND);
        trial.leave(group);
        let told = trial.told_in(REPEAT_WITHIN);
        assert_eq!(kinds(&told), [(What::Left, Version::Three); 2]);
        // A socket that joins meanwhile stays.
        trial.join(group);
        trial.leave(group);
        trial.join(group);
        let told = trial.told_in(REPEAT_WITHIN);
        assert_eq!(kinds(&told), [(What::Joined, Version::Three); 2]);
    }
}

/// A switch that asked and was not answered stopped to deliver the group.
#[test]
fn a_query_is_answered_within_its_time_for_all_groups() {
    let four = ["239.1.2.3", "239.1.2.4", "ff02::4321", "ff05::9"].map(address);
    for seed in 0..200 {
        for version in [Version::One, Version::Two, Version::Three] {
            for group in groups() {
                let mut trial = Trial::settled(seed, &four);
                let within = SECOND * (1 + seed as u32 % 10);
                trial.query(asks(everybody_of(group), version, within));
                let told = trial.told_in(within);
                assert_eq!(kinds(&told), [(What::Is, version)], "{told:?}");
                let of_family = |other: &&IpAddr| other.is_ipv6() == group.is_ipv6();
                let asked: Vec<_> = four.iter().filter(of_family).copied().collect();
                assert_eq!(told[0].1.groups, asked);
            }
        }
    }
}

/// Otherwise all hosts would answer at once.
#[test]
fn answers_are_spread_over_the_time() {
    let mut in_first_half = 0;
    for seed in 0..400 {
        let mut trial = Trial::settled(seed, &groups());
        trial.query(asks(everybody_of(groups()[0]), Version::Two, SECOND * 10));
        in_first_half += u32::from(trial.told_in(SECOND * 10)[0].0 < SECOND * 5);
    }
    // 200 expected, with a deviation of 10.
    assert!((130..270).contains(&in_first_half), "{in_first_half}");
}

#[test]
fn a_query_about_one_group_is_answered_for_that_alone() {
    let (here, there) = (address("239.1.2.3"), address("239.1.2.4"));
    let mut trial = Trial::settled(7, &[here, there]);
    trial.query(asks(there, Version::Three, SECOND));
    // Nothing but a query about all tells of a querier (RFC 3376, 7.2.1).
    let told = trial.told_in(SECOND);
    assert_eq!(kinds(&told), [(What::Is, Version::Two)]);
    assert_eq!(told[0].1.groups, [there]);
    trial.query(asks(address("239.1.2.5"), Version::Two, SECOND));
    assert_eq!(trial.told_in(SECOND * 10), [], "nobody is in it");
}

#[test]
fn an_answer_that_is_planned_is_not_put_off() {
    for seed in 0..50 {
        let group = groups()[0];
        let mut trial = Trial::settled(seed, &[group]);
        trial.query(asks(everybody_of(group), Version::Two, SECOND));
        trial.told_in(SECOND);
        for asked in [group, everybody_of(group)] {
            trial.query(asks(asked, Version::Two, SECOND));
            trial.query(asks(asked, Version::Two, SECOND * 100));
            let told = trial.told_in(SECOND);
            assert_eq!(told.len(), 1, "{told:?}");
            assert_eq!(trial.told_in(SECOND * 100 - SECOND), []);
        }
    }
}

#[test]
fn the_oldest_querier_decides_the_version_as_long_as_it_is_there() {
    for group in groups() {
        let all = everybody_of(group);
        let mut trial = Trial::settled(3, &[group]);
        let version_after = |trial: &mut Trial, version| {
            trial.query(asks(all, version, SECOND));
            kinds(&trial.told_in(SECOND))[0].1
        };
        assert_eq!(version_after(&mut trial, Version::Three), Version::Three);
        assert_eq!(version_after(&mut trial, Version::Two), Version::Two);
        assert_eq!(version_after(&mut trial, Version::Three), Version::Two);
        trial.told_in(QUERIER_STAYS - SECOND * 3);
        assert_eq!(version_after(&mut trial, Version::Three), Version::Two);
        trial.told_in(SECOND * 3);
        assert_eq!(version_after(&mut trial, Version::Three), Version::Three);
        assert_eq!(version_after(&mut trial, Version::One), Version::One);
    }
}

/// Some switches forget a group, and nobody asks.
#[test]
fn without_a_querier_groups_are_told_of_every_minute() {
    let mut trial = Trial::settled(5, &groups());
    let told = trial.told_in(SECOND * 600);
    assert_eq!(told.len(), 2 * 10, "of each family: {told:?}");
    assert!(kinds(&told).iter().all(|kind| kind.0 == What::Is));
    // While somebody asks, it is that alone.
    for _ in 0..5 {
        trial.query(asks(everybody_of(groups()[0]), Version::Two, SECOND));
        let told = trial.told_in(SECOND * 125);
        let of_four = told
            .iter()
            .filter(|(_, telling)| telling.groups[0].is_ipv4());
        assert_eq!(of_four.count(), 1);
    }
    let told = trial.told_in(SECOND * 300);
    let of_four = told
        .iter()
        .filter(|(_, telling)| telling.groups[0].is_ipv4());
    assert!(
        of_four.count() >= 2,
        "again, now that nobody asks: {told:?}"
    );
}

#[test]
fn a_flood_of_queries_gets_ten_answers_a_second() {
    let group = groups()[0];
    for asked in [group, everybody_of(group)] {
        let mut trial = Trial::settled(9, &[group]);
        let mut answers = 0;
        for _ in 0..10_000 {
            trial.query(asks(asked, Version::Three, Duration::ZERO));
            answers += trial.told_in(Duration::from_millis(1)).len();
        }
        assert!((50..=101).contains(&answers), "{answers} in ten seconds");
    }
}

/// Queries about one group and about all have times of their own: whoever asked in turn got twice as
/// many.
#[test]
fn a_flood_of_queries_of_both_kinds_gets_no_more() {
    let group = groups()[0];
    let mut trial = Trial::settled(9, &[group]);
    let (mut answers, mut asked) = (0, [group, everybody_of(group)].into_iter().cycle());
    let mut of = asked.next().unwrap();
    for _ in 0..10_000 {
        trial.query(asks(of, Version::Three, Duration::ZERO));
        let told = trial.told_in(Duration::from_millis(1));
        if !told.is_empty() {
            answers += told.len();
            of = asked.next().unwrap();
        }
    }
    assert!((50..=101).contains(&answers), "{answers} in ten seconds");
}

#[test]
fn what_all_hosts_are_in_is_not_told_of() {
    let mut trial = Trial::new(1);
    for group in ["224.0.0.1", "ff02::1", "ff01::5", "ff00::5"].map(address) {
        trial.join(group);
        trial.query(asks(everybody_of(group), Version::Three, SECOND));
        trial.leave(group);
    }
    assert_eq!(trial.told_in(SECOND * 1000), []);
    // An answer that is never given stayed due, and the proxy did not sleep any more.
    for group in ["224.0.0.1", "ff02::1", "ff01::5"].map(address) {
        trial.join(group);
        trial.query(asks(group, Version::Three, SECOND));
        assert_eq!(trial.told_in(SECOND * 10), []);
        assert_eq!(trial.memberships.poll(trial.now).1, None, "{group}");
    }
}

proptest! {
    /// Whatever happens, what was told last of a change is true, and nothing is told of what
    /// nobody is in.
    #[test]
    fn what_was_told_last_is_true(
        seed in any::<u64>(),
        steps in vec((0..5usize, 0..3usize, 0..15_000_u64), 0..60),
    ) {
        let three = ["239.1.2.3", "239.1.2.4", "ff02::4321"].map(address);
        let versions = [Version::One, Version::Two, Version::Three];
        let mut trial = Trial::new(seed);
        let (mut sockets, mut told) = ([0; 3], BTreeMap::new());
        let mut note = |told_now: Vec<(Duration, Telling)>| {
            for (_, telling) in told_now {
                let is_in = telling.what != What::Left;
                told.extend(telling.groups.into_iter().map(|group| (group, is_in)));
            }
        };
        for (step, place, millis) in steps {
            let group = three[place];
            match step {
                0 => { trial.join(group); sockets[place] += 1; }
                1 if sockets[place] > 0 => { trial.leave(group); sockets[place] -= 1; }
                2 => trial.query(asks(group, versions[place], SECOND)),
                3 => trial.query(asks(everybody_of(group), versions[place], SECOND)),
                _ => note(trial.told_in(Duration::from_millis(millis))),
            }
        }
        note(trial.told_in(SECOND * 11));
        for (group, sockets) in three.iter().zip(sockets) {
            prop_assert_eq!(told.get(group).copied().unwrap_or(false), sockets > 0);
        }
    }
}
