//! Multicast groups of this host, and what routers and switches are told of them: IGMP versions 1
//! to 3 (RFC 1112, RFC 2236, RFC 3376) and MLD versions 1 and 2 (RFC 2710, RFC 3810).
//!
//! A group is reported when its first socket joins, and again in answer to each query, at a random
//! moment within the time that the query gives. Its last socket's leave is told, too. Switches that
//! snoop deliver a group where it was reported.
//!
//! Where it departs from the RFCs, and its limits:
//!
//! - As long as no query tells the version, reports are IGMPv2's and MLDv1's: routers and switches
//!   of every later version take them. (The RFCs begin with the latest one.)
//! - As long as there are no queries, all groups are reported every minute: there are switches that
//!   forget a group, and nobody who asks.
//! - Members want all sources. A query about single sources is answered with that.
//! - Others' reports do not suppress ours: behind a switch that snoops they are not heard anyway.
//! - All groups are reported at one moment of that time, in place of one moment for each.
//! - At most ten answers a second about a group, however many queries there are.
//! - Queries of IGMP count without a router alert as well: there are switches that send it so, and
//!   Linux takes them.
//! - Whether the kernel is in a group, too, is not looked for. After a leave a router asks, and the
//!   kernel answers. A switch that ends a group at the first leave does not ask.
//! - A kill, and the stack's end, tell nothing of its own addresses' groups: they are forgotten.

mod query;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use plimsoll_core::time::Instant;

pub(crate) use self::query::{ALL_NODES, ALL_SYSTEMS, Query, is_query, parse as parse_query};

/// Between two reports of a group that nobody asks about.
const UNASKED_EVERY: Duration = Duration::from_secs(60);
/// How often a change is told, in case that one frame is lost (the Robustness Variable).
const TOLD: u8 = 2;
/// Between the two (RFC 3376, 8.11; RFC 2236, 8.10).
const REPEAT_WITHIN: Duration = Duration::from_secs(1);
const REPEAT_WITHIN_OLD: Duration = Duration::from_secs(10);
/// So long a querier of a version counts as there after a query (RFC 3376, 8.12): two intervals of
/// 125 s and the time for an answer.
const QUERIER_STAYS: Duration = Duration::from_secs(260);
/// Between two answers about a group. Whoever asks for faster ones gets these.
const ANSWER_EVERY: Duration = Duration::from_millis(100);

/// Of IGMP. MLD's first is as IGMP's second, and its second as IGMP's third.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    One,
    Two,
    Three,
}

/// What is told of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// This host is in them.
    Is,
    /// It has joined them.
    Joined,
    /// It has left them.
    Left,
}

/// Something to be told now, of groups of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Telling {
    pub(crate) version: Version,
    pub(crate) what: What,
    pub(crate) groups: Vec<IpAddr>,
}

/// The groups that sockets are in.
#[derive(Debug)]
pub(crate) struct Memberships(Mutex<State>);

#[derive(Debug)]
struct State {
    groups: BTreeMap<IpAddr, Group>,
    /// Of IPv4 and of IPv6.
    links: [Link; 2],
    random: Rng,
}

/// What is known of the queriers of a family.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// By version: until when one counts as there.
    heard_until: [Option<Instant>; 3],
    /// All groups are to be reported.
    answer_at: Option<Instant>,
    answered_at: Option<Instant>,
    /// The same if nobody asks.
    unasked_at: Instant,
}

#[derive(Debug, Default)]
struct Group {
    sockets: u32,
    /// What became of it, and how often that is still to be told.
    change: Option<Change>,
    answer_at: Option<Instant>,
    answered_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    what: What,
    times: u8,
    at: Instant,
}

impl Memberships {
    pub(crate) fn new() -> Self {
        Self::with(Rng::new())
    }

    fn with(random: Rng) -> Self {
        Self(Mutex::new(State {
            groups: BTreeMap::new(),
            links: [Link::default(); 2],
            random,
        }))
    }

    /// One more socket is in the group. What is to be told then [`poll`](Self::poll) has.
    pub(crate) fn join(&self, group: IpAddr, now: Instant) {
        let mut state = self.0.lock();
        let link = family(group);
        if !state.has_members(link) {
            state.links[link].unasked_at = now + UNASKED_EVERY;
        }
        let joined = state.groups.entry(group).or_default();
        joined.sockets += 1;
        if joined.sockets == 1 {
            joined.change = Change::now(group, What::Joined, now);
        }
    }

    /// One socket less is in it.
    pub(crate) fn leave(&self, group: IpAddr, now: Instant) {
        let mut state = self.0.lock();
        let Some(left) = state.groups.get_mut(&group) else {
            return;
        };
        left.sockets = left.sockets.saturating_sub(1);
        if left.sockets == 0 {
            left.answer_at = None;
            left.change = Change::now(group, What::Left, now);
            if left.change.is_none() {
                state.groups.remove(&group);
            }
        }
    }

    /// A router or a switch asks.
    pub(crate) fn on_query(&self, query: &Query, now: Instant) {
        let mut state = self.0.lock();
        let state = &mut *state;
        let link = &mut state.links[family(query.group)];
        let within = query.within.max(ANSWER_EVERY);
        let at = now + random_part(&mut state.random, within);
        if query.group.is_unspecified() {
            link.heard_until[query.version as usize] = Some(now + QUERIER_STAYS);
            link.answer_at = sooner(link.answer_at, not_before(link.answered_at, at));
        } else if link.answer_at.is_none_or(|all| all > at) {
            let group = state.groups.get_mut(&query.group);
            // What nobody is told of would stay due for ever.
            if let Some(group) = group.filter(|group| group.is_told_of(query.group)) {
                group.answer_at = sooner(group.answer_at, at);
            }
        }
    }

    /// What is to be told now, and when to ask again.
    pub(crate) fn poll(&self, now: Instant) -> (Vec<Telling>, Option<Instant>) {
        let mut state = self.0.lock();
        let mut tellings = Vec::new();
        for link in 0..state.links.len() {
            state.poll_family(link, &mut tellings, now);
        }
        (tellings, state.next(now))
    }
}

impl State {
    fn has_members(&self, link: usize) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|(group, member)| family(*group) == link && member.is_told_of(*group))
    }

    fn poll_family(&mut self, link: usize, tellings: &mut Vec<Telling>, now: Instant) {
        let version = self.links[link].version(now);
        let all = self.links[link].is_due(now);
        if all {
            let link = &mut self.links[link];
            link.answer_at = None;
            link.answered_at = Some(now);
            link.unasked_at = now + UNASKED_EVERY;
        }
        let (mut is, mut joined, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let of_link = |(group, _): &(&IpAddr, &mut Group)| family(**group) == link;
        for (address, group) in self.groups.iter_mut().filter(of_link) {
            if group.answers(*address, all, now) {
                is.push(*address);
            }
            let change = group.change.filter(|change| change.at <= now);
            if let Some(change) = change {
                group.change = change.again(version, &mut self.random, now);
                match change.what {
                    What::Left => left.push(*address),
                    What::Joined | What::Is => joined.push(*address),
                }
            }
        }
        self.groups
            .retain(|_, group| group.sockets > 0 || group.change.is_some());
        for (what, groups) in [(What::Is, is), (What::Joined, joined), (What::Left, left)] {
            if !groups.is_empty() {
                tellings.push(Telling {
                    version,
                    what,
                    groups,
                });
            }
        }
    }

    /// When something is due next.
    fn next(&self, now: Instant) -> Option<Instant> {
        let of_group = |group: &Group| [group.answer_at, group.change.map(|change| change.at)];
        let groups = self.groups.values().flat_map(of_group).flatten();
        let links = self.links.iter().enumerate();
        let links = links.filter(|(link, _)| self.has_members(*link));
        let links = links.flat_map(|(_, link)| [link.answer_at, Some(link.unasked_at(now))]);
        groups.chain(links.flatten()).min()
    }
}

impl Link {
    /// That of the oldest querier, since it understands no other.
    fn version(&self, now: Instant) -> Version {
        let is_heard = |version: Version| self.is_heard(version, now);
        match [Version::One, Version::Two, Version::Three].map(is_heard) {
            [true, ..] => Version::One,
            [false, false, true] => Version::Three,
            _ => Version::Two,
        }
    }

    fn is_heard(&self, version: Version, now: Instant) -> bool {
        self.heard_until[version as usize].is_some_and(|until| now < until)
    }

    /// When all groups are reported if nobody asks.
    fn unasked_at(&self, now: Instant) -> Instant {
        let heard = self.heard_until.into_iter().flatten();
        let heard = heard.filter(|until| now < *until);
        heard.chain([self.unasked_at]).max().unwrap_or(now)
    }

    fn is_due(&self, now: Instant) -> bool {
        self.answer_at.is_some_and(|at| at <= now) || self.unasked_at(now) <= now
    }
}

impl Group {
    /// Whether routers are to know that this host is in the group.
    fn is_told_of(&self, group: IpAddr) -> bool {
        self.sockets > 0 && is_reported(group)
    }

    /// Whether it is to be reported now, as asked. `all`: every group is.
    fn answers(&mut self, group: IpAddr, all: bool, now: Instant) -> bool {
        let due = all || self.answer_at.is_some_and(|at| at <= now);
        if !due || !self.is_told_of(group) {
            return false;
        }
        let earliest = not_before(self.answered_at, now);
        if earliest > now {
            self.answer_at = Some(earliest);
            return false;
        }
        self.answer_at = None;
        self.answered_at = Some(now);
        true
    }
}

impl Change {
    fn now(group: IpAddr, what: What, now: Instant) -> Option<Self> {
        is_reported(group).then_some(Self {
            what,
            times: TOLD,
            at: now,
        })
    }

    /// What is left of it once it was told.
    fn again(self, version: Version, random: &mut Rng, now: Instant) -> Option<Self> {
        // Before version 3 a leave is told once: the router then asks twice.
        let once = self.what == What::Left && version < Version::Three;
        let within = match version {
            Version::Three => REPEAT_WITHIN,
            Version::One | Version::Two => REPEAT_WITHIN_OLD,
        };
        let times = if once { 0 } else { self.times - 1 };
        (times > 0).then(|| Self {
            times,
            at: now + random_part(random, within),
            ..self
        })
    }
}

/// Everybody's group, and what does not leave a host, are not reported (RFC 3376, 6; RFC 3810, 6).
fn is_reported(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group != ALL_SYSTEMS,
        IpAddr::V6(group) => {
            let scope = group.octets()[1] & 0xf;
            group != ALL_NODES && scope > 1
        }
    }
}

/// The place of its queriers.
fn family(group: IpAddr) -> usize {
    usize::from(group.is_ipv6())
}

fn random_part(random: &mut Rng, of: Duration) -> Duration {
    Duration::from_nanos(random.u64(..=of.as_nanos() as u64))
}

fn not_before(answered_at: Option<Instant>, at: Instant) -> Instant {
    answered_at.map_or(at, |answered| at.max(answered + ANSWER_EVERY))
}

fn sooner(planned: Option<Instant>, at: Instant) -> Option<Instant> {
    Some(planned.map_or(at, |planned| planned.min(at)))
}
