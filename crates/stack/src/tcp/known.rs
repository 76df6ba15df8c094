//! Sources that have ended a handshake. What they ask of a listener is not lost among what a flood asks.
//!
//! **Intuition.** Of a flood of SYNs from forged addresses a listener answers a part, and the rest
//! ends at the demultiplexer. A client's SYN had the chance of any other there, and asked again
//! after a second. But whoever has ended a handshake gets what is sent to its address. So its SYNs
//! may pass where others end, within a bound of their own.
//!
//! **Rules.**
//! 1. A source is known for [`LIFETIME`] after a handshake that it ended. It has one place, by a
//!    keyed hash, and only another known source can take that.
//! 2. Beyond the backlog a [part](PART) of as many SYNs as are answered with cookies may pass from known
//!    sources, in each [`PERIOD`]. They are answered, whatever others have taken.
//!
//! **Limits.** Whoever knows who the clients are can forge their addresses, and a known client can flood
//! itself. Then the others have no chance but any SYN's. So has a client that comes for the first time. Where the
//! device answers SYNs itself it answers all of these alike, and known sources have a way of their own for
//! what is beyond its bound alone.

use std::hash::Hasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_core::time::Instant;
use siphasher::sip::SipHasher24;

use super::cookie::{PERIOD, PERIODS_PER_S, octets};
use crate::error::Error;
use crate::random::secret;

/// As many sources are known, if no two have one place.
const PLACES: u64 = 4096;
/// How long one stays known.
const LIFETIME: Duration = Duration::from_mins(10);
/// When one that comes again is noted again.
const NOTED_FOR: Duration = Duration::from_mins(1);
/// So many times as many cookies are answered as SYNs of known sources may pass beside them.
const PART: u32 = 4;
/// Two numbers share a word.
const LOW: u64 = u32::MAX as u64;

/// The known sources of a stack.
#[derive(Debug)]
pub(crate) struct Known {
    key: [u64; 2],
    /// Half a hash, and the second in which the source was noted; 0: nobody.
    places: Box<[AtomicU64]>,
    per_period: u32,
    /// The period, and how many have passed in it. Changed under the table's lock.
    passed: AtomicU64,
}

impl Known {
    /// Beside so many cookies a second. `None`: there are none.
    pub(crate) fn new(cookies_per_s: u32) -> Result<Option<Self>, Error> {
        let per_period = cookies_per_s.div_ceil(PERIODS_PER_S).div_ceil(PART);
        let known = Self {
            key: [secret()?, secret()?],
            places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            per_period,
            passed: AtomicU64::new(0),
        };
        Ok((per_period > 0).then_some(known))
    }

    /// It has ended a handshake. False: that was noted shortly before.
    pub(super) fn note(&self, source: IpAddr, now: Instant) -> bool {
        let (place, mark) = self.find(source);
        if is_within(place.load(Ordering::Relaxed), mark, NOTED_FOR, now) {
            return false;
        }
        place.store(mark << 32 | second(now), Ordering::Relaxed);
        true
    }

    pub(crate) fn has(&self, source: IpAddr, now: Instant) -> bool {
        let (place, mark) = self.find(source);
        is_within(place.load(Ordering::Relaxed), mark, LIFETIME, now)
    }

    /// Whether a SYN from there may pass although the listener is beyond its backlog. To be called under the
    /// table's lock.
    pub(crate) fn lets_pass(&self, source: IpAddr, now: Instant) -> bool {
        if !self.has(source, now) {
            return false;
        }
        let period = now.as_nanos() / PERIOD.as_nanos() as u64;
        let before = self.passed.load(Ordering::Relaxed);
        let passed = match before >> 32 == period & LOW {
            true => before & LOW,
            false => 0,
        };
        let passes = passed < self.per_period.into();
        if passes {
            self.passed
                .store(period << 32 | (passed + 1), Ordering::Relaxed);
        }
        passes
    }

    fn find(&self, source: IpAddr) -> (&AtomicU64, u64) {
        let mut hasher = SipHasher24::new_with_keys(self.key[0], self.key[1]);
        hasher.write(&octets(source));
        let hash = hasher.finish();
        (&self.places[(hash % PLACES) as usize], hash >> 32)
    }
}

/// One more than there were, so that no place is as one of nobody.
fn second(now: Instant) -> u64 {
    (now.as_nanos() / 1_000_000_000 + 1) & LOW
}

fn is_within(place: u64, mark: u64, time: Duration, now: Instant) -> bool {
    let noted = place & LOW;
    place >> 32 == mark && noted > 0 && second(now).saturating_sub(noted) < time.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn source(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0x0a00_0000 + number).into()
    }

    #[test]
    fn who_has_ended_a_handshake_is_known_for_a_while() {
        assert!(Known::new(0).unwrap().is_none());
        let known = Known::new(1).unwrap().unwrap();
        assert!(!known.has(source(1), at(0)));
        assert!(known.note(source(1), at(0)));
        assert!(!known.note(source(1), at(59)), "noted");
        assert!(known.has(source(1), at(599)) && !known.has(source(1), at(600)));
        assert!(known.note(source(1), at(60)));
        assert!(known.has(source(1), at(659)));
        let strangers = (2..10_000).filter(|number| known.has(source(*number), at(61)));
        assert_eq!(strangers.count(), 0);
    }

    #[test]
    fn so_many_may_pass_in_a_period() {
        let known = Known::new(800).unwrap().unwrap();
        assert!(known.note(source(1), at(0)));
        for period in 1..4 {
            let now = at(0) + PERIOD * period;
            let passed = (0..100).filter(|_| known.lets_pass(source(1), now)).count();
            assert_eq!(passed, 10);
            assert!(!known.lets_pass(source(2), now));
        }
    }
}
