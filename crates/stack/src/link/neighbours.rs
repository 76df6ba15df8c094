//! The neighbour cache: which Ethernet address an IP address on the link has
//! (RFC 826, RFC 4861).
//!
//! Pure: time comes in, questions to be asked go out. An entry is believed for
//! a minute, then used a little longer while it is asked for again. For an
//! unknown neighbour some frames are kept until it answers. An answer about an
//! unknown neighbour that nobody asked for changes nothing; about a known one any answer
//! counts. A neighbour that asks for us is learnt, since it is about to be answered. Unknown ones
//! push out a quarter of the known ones at most.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use plimsoll_core::time::Instant;

use crate::device::{Frame, Mac};

/// How long an answer is believed, or that a frame came from there.
pub(super) const BELIEVED: Duration = Duration::from_secs(60);
/// How long it is used after that, if nobody answers.
const USED: Duration = Duration::from_secs(5);
/// Between two questions (RFC 4861: `RETRANS_TIMER`).
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Unanswered questions until a neighbour is given up (RFC 4861:
/// `MAX_MULTICAST_SOLICIT`).
const ASK_MAX: u32 = 3;
/// Frames kept for one unknown neighbour: the largest datagram's over Ethernet, and some.
const PENDING_MAX: usize = 64;
/// Frames kept for all of them.
const PENDING_ALL_MAX: usize = 4 * PENDING_MAX;
/// Neighbours known at a time, those that are asked for included.
const ENTRIES_MAX: usize = 1024;
/// Neighbours that are asked for at a time: so many others they can push out.
const UNKNOWN_MAX: usize = 256;

#[derive(Debug)]
struct Entry {
    mac: Option<Mac>,
    /// When it was learnt.
    learnt: Instant,
    asked: u32,
    asked_at: Instant,
    pending: Vec<Frame>,
}

/// What to do with a frame for a neighbour.
#[derive(Debug)]
pub(crate) enum Resolved {
    /// Send it there; and ask again, if told so.
    To { mac: Mac, frame: Frame, ask: bool },
    /// It is kept; ask, if told so.
    Kept { ask: bool },
    /// Too many are unknown, or too many frames wait for this one or for all.
    Dropped,
}

/// The cache.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    entries: HashMap<IpAddr, Entry>,
    /// Frames that wait in all of them.
    pending: usize,
    /// Those without an Ethernet address.
    unknown: usize,
}

impl Neighbours {
    /// Where `frame` goes that is for the neighbour at `address`.
    pub(crate) fn resolve(&mut self, address: IpAddr, frame: Frame, now: Instant) -> Resolved {
        let pending = self.pending;
        if pending == PENDING_ALL_MAX && !self.entries.contains_key(&address) {
            return Resolved::Dropped;
        }
        let Some(entry) = self.entry(address, now) else {
            return Resolved::Dropped;
        };
        if let Some(mac) = entry.mac {
            let ask = entry.is_old(now) && entry.ask(now);
            return Resolved::To { mac, frame, ask };
        }
        if entry.pending.len() == PENDING_MAX || pending == PENDING_ALL_MAX {
            return Resolved::Dropped;
        }
        entry.pending.push(frame);
        let ask = entry.ask(now);
        self.pending += 1;
        Resolved::Kept { ask }
    }

    /// Where the neighbour at `address` is, of which there is doubt, as far as that is known, and
    /// whether to ask for it.
    pub(crate) fn doubt(&mut self, address: IpAddr, now: Instant) -> (Option<Mac>, bool) {
        let entry = self.entry(address, now);
        entry.map_or((None, false), |entry| (entry.mac, entry.ask(now)))
    }

    /// What is known of the neighbour at `address`. Nothing: too many are unknown.
    fn entry(&mut self, address: IpAddr, now: Instant) -> Option<&mut Entry> {
        let is_new = match self.entries.get(&address) {
            Some(entry) if !entry.is_to_be_forgotten(now) => return self.entries.get_mut(&address),
            there => there.is_none(),
        };
        if self.unknown == UNKNOWN_MAX {
            return None;
        }
        if is_new {
            self.make_room();
        }
        self.unknown += 1;
        let entry = self.entries.entry(address);
        Some(entry.insert_entry(Entry::new(now)).into_mut())
    }

    /// `address` is at `mac`. Returns the frames that waited for it. Unless
    /// `asked_us`, only of neighbours that are known or were asked for.
    pub(crate) fn learn(
        &mut self,
        address: IpAddr,
        mac: Mac,
        asked_us: bool,
        now: Instant,
    ) -> Vec<Frame> {
        let known = self.entries.contains_key(&address);
        if mac[0] & 1 == 1 || !known && !asked_us {
            return Vec::new();
        }
        if !known {
            self.make_room();
        }
        let entry = self
            .entries
            .entry(address)
            .or_insert_with(|| Entry::new(now));
        self.unknown -= usize::from(known && entry.mac.is_none());
        (entry.mac, entry.learnt, entry.asked) = (Some(mac), now, 0);
        let pending = std::mem::take(&mut entry.pending);
        self.pending -= pending.len();
        pending
    }

    /// The neighbours to be asked for now; those that did not answer are given up. Also the frames
    /// that waited for those.
    pub(crate) fn poll_questions(&mut self, now: Instant) -> (Vec<IpAddr>, Vec<Frame>) {
        let mut given_up = Vec::new();
        self.entries.retain(|_, entry| {
            let kept = entry.mac.is_some() || !entry.is_given_up(now);
            if !kept {
                self.unknown -= 1;
                given_up.append(&mut entry.pending);
            }
            kept
        });
        self.pending -= given_up.len();
        let unknown = self
            .entries
            .iter_mut()
            .filter(|(_, entry)| entry.mac.is_none());
        let asked = unknown.filter_map(|(address, entry)| entry.ask(now).then_some(*address));
        (asked.collect(), given_up)
    }

    /// When [`poll_questions`](Self::poll_questions) has something to say.
    pub(crate) fn next_question(&self) -> Option<Instant> {
        let unknown = self.entries.values().filter(|entry| entry.mac.is_none());
        unknown.map(|entry| entry.asked_at + ASK_AGAIN).min()
    }

    /// Room for one more: the known one that was learnt first goes.
    fn make_room(&mut self) {
        if self.entries.len() < ENTRIES_MAX {
            return;
        }
        let known = self.entries.iter().filter(|(_, entry)| entry.mac.is_some());
        let oldest = known
            .min_by_key(|(_, entry)| entry.learnt)
            .map(|(at, _)| *at);
        if let Some(address) = oldest {
            self.entries.remove(&address);
        }
    }
}

impl Entry {
    fn new(now: Instant) -> Self {
        Self {
            mac: None,
            learnt: now,
            asked: 0,
            asked_at: Instant::ZERO,
            pending: Vec::new(),
        }
    }

    /// Nobody has answered for too long: it is as if it had never been known.
    fn is_to_be_forgotten(&self, now: Instant) -> bool {
        self.mac.is_some() && now.saturating_since(self.learnt) > BELIEVED + USED
    }

    /// It is used for a while yet, and asked for.
    fn is_old(&self, now: Instant) -> bool {
        now.saturating_since(self.learnt) > BELIEVED
    }

    /// Whether to ask now; counts the question.
    fn ask(&mut self, now: Instant) -> bool {
        let due = self.asked == 0 || now.saturating_since(self.asked_at) >= ASK_AGAIN;
        if due && self.asked < ASK_MAX {
            self.asked += 1;
            self.asked_at = now;
            return true;
        }
        false
    }

    fn is_given_up(&self, now: Instant) -> bool {
        self.asked >= ASK_MAX && now.saturating_since(self.asked_at) >= ASK_AGAIN
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::Pool;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];
    const NOW: Instant = Instant::ZERO;
    const POOL: usize = 2 * PENDING_ALL_MAX;

    fn address() -> IpAddr {
        "10.0.0.9".parse().unwrap()
    }

    fn pool() -> Arc<Pool> {
        Pool::new(POOL, 2048).unwrap()
    }

    fn at(seconds: u64) -> Instant {
        NOW + Duration::from_secs(seconds)
    }

    #[test]
    fn frames_wait_until_the_neighbour_answers() {
        let (pool, mut cache) = (pool(), Neighbours::default());
        let mut resolve = |to, now| cache.resolve(to, pool.take().unwrap(), now);
        assert!(matches!(
            resolve(address(), NOW),
            Resolved::Kept { ask: true }
        ));
        for _ in 1..PENDING_MAX {
            assert!(matches!(
                resolve(address(), NOW),
                Resolved::Kept { ask: false }
            ));
        }
        assert!(matches!(resolve(address(), NOW), Resolved::Dropped));
        // All together have a bound of their own.
        for k in PENDING_MAX..PENDING_ALL_MAX {
            let other = IpAddr::from([10, 0, 1, (k / 32) as u8]);
            assert!(matches!(resolve(other, NOW), Resolved::Kept { .. }));
        }
        let last = IpAddr::from([10, 0, 2, 1]);
        assert!(matches!(resolve(last, NOW), Resolved::Dropped));
        assert_eq!(
            cache.learn(address(), MAC, false, NOW).len(),
            PENDING_MAX,
            "all that waited"
        );
        assert!(matches!(
            cache.resolve(last, pool.take().unwrap(), NOW),
            Resolved::Kept { .. }
        ));
        let known = cache.resolve(address(), pool.take().unwrap(), NOW);
        assert!(matches!(
            known,
            Resolved::To {
                mac: MAC,
                ask: false,
                ..
            }
        ));
    }

    #[test]
    fn who_is_in_doubt_asks_and_waits_for_nothing() {
        let mut cache = Neighbours::default();
        assert_eq!(cache.doubt(address(), NOW), (None, true));
        assert_eq!(
            cache.doubt(address(), NOW),
            (None, false),
            "asked a moment ago"
        );
        assert_eq!(cache.learn(address(), MAC, false, NOW).len(), 0);
        // However fresh it is: the peer may have moved.
        for second in 0..u64::from(ASK_MAX) {
            assert_eq!(cache.doubt(address(), at(second)), (Some(MAC), true));
        }
        assert_eq!(cache.doubt(address(), at(10)), (Some(MAC), false));
        assert_eq!(cache.learn(address(), MAC, false, at(10)).len(), 0);
        assert_eq!(cache.doubt(address(), at(11)), (Some(MAC), true));
    }

    #[test]
    fn questions_are_repeated_and_then_given_up() {
        let (pool, mut cache) = (pool(), Neighbours::default());
        let _ = cache.resolve(address(), pool.take().unwrap(), NOW);
        let mut poll = |now| {
            let (asked, given_up) = cache.poll_questions(now);
            (asked, given_up.len(), cache.next_question())
        };
        assert_eq!(poll(NOW), (vec![], 0, Some(at(1))), "asked a moment ago");
        assert_eq!(poll(at(1)), (vec![address()], 0, Some(at(2))));
        assert_eq!(poll(at(2)), (vec![address()], 0, Some(at(3))));
        assert_eq!(poll(at(3)), (vec![], 1, None), "the frame that waited");
        assert_eq!(cache.pending, 0);
        assert_eq!(pool.available(), POOL);
    }

    #[test]
    fn an_old_entry_is_used_while_it_is_asked_for_again() {
        let (pool, mut cache) = (pool(), Neighbours::default());
        let _ = cache.resolve(address(), pool.take().unwrap(), NOW);
        cache.learn(address(), MAC, false, NOW);
        let mut resolve = |now| cache.resolve(address(), pool.take().unwrap(), now);
        assert!(matches!(resolve(at(60)), Resolved::To { ask: false, .. }));
        assert!(matches!(resolve(at(61)), Resolved::To { ask: true, .. }));
        assert!(matches!(resolve(at(66)), Resolved::Kept { .. }));
    }

    /// It was given up without one: what was asked while the entry was used counted.
    #[test]
    fn a_forgotten_neighbour_is_asked_three_times_again() {
        let (pool, mut cache) = (pool(), Neighbours::default());
        cache.learn(address(), MAC, true, NOW);
        let resolve = |cache: &mut Neighbours, second| {
            cache.resolve(address(), pool.take().unwrap(), at(second))
        };
        for second in [61, 62, 63] {
            let known = resolve(&mut cache, second);
            assert!(matches!(known, Resolved::To { ask: true, .. }));
        }
        let forgotten = resolve(&mut cache, 70);
        assert!(matches!(forgotten, Resolved::Kept { ask: true }));
        for second in [71, 72] {
            let (asked, given_up) = cache.poll_questions(at(second));
            assert_eq!((asked.len(), given_up.len()), (1, 0), "{second}");
        }
        assert_eq!(cache.poll_questions(at(73)).1.len(), 1);
    }

    /// A program that sends to each address of a large network had the stack forget who it talks to.
    #[test]
    fn unknown_neighbours_push_out_a_quarter_of_the_known_ones_at_most() {
        let (pool, mut cache) = (pool(), Neighbours::default());
        for k in 0..ENTRIES_MAX as u32 {
            cache.learn(IpAddr::from(k.to_be_bytes()), MAC, true, at(k.into()));
        }
        let known = |cache: &Neighbours| {
            let entries = cache.entries.values();
            entries.filter(|entry| entry.mac.is_some()).count()
        };
        let now = at(ENTRIES_MAX as u64);
        // Most known ones are so old that they are forgotten when they are looked for.
        let mut dropped = 0;
        for k in 0..5000_u32 {
            let address = IpAddr::from(k.to_be_bytes());
            match k % 2 {
                0 => drop(cache.doubt(address, now)),
                _ => {
                    let resolved = cache.resolve(address, pool.take().unwrap(), now);
                    dropped += usize::from(matches!(resolved, Resolved::Dropped));
                }
            }
            let unknown = cache.entries.len() - known(&cache);
            assert_eq!(unknown, cache.unknown);
        }
        assert_eq!(known(&cache), ENTRIES_MAX - UNKNOWN_MAX);
        assert!(dropped > 1000, "{dropped}");
        // They do not answer.
        for second in 1..=3 {
            cache.poll_questions(now + Duration::from_secs(second));
        }
        assert_eq!((cache.unknown, cache.pending), (0, 0));
    }

    /// Each left an entry behind.
    #[test]
    fn a_dropped_frame_leaves_nothing_behind() {
        let (pool, mut cache) = (pool(), Neighbours::default());
        for k in 0..PENDING_ALL_MAX {
            let address = IpAddr::from([10, 0, 1, (k / PENDING_MAX) as u8]);
            let _ = cache.resolve(address, pool.take().unwrap(), NOW);
        }
        let before = cache.entries.len();
        let last = cache.resolve(address(), pool.take().unwrap(), NOW);
        assert!(matches!(last, Resolved::Dropped));
        assert_eq!(cache.entries.len(), before);
    }

    #[test]
    fn nobody_is_learnt_who_was_not_asked_for_and_did_not_ask() {
        let (pool, mut cache) = (pool(), Neighbours::default());
        cache.learn(address(), MAC, false, NOW);
        let unknown = cache.resolve(address(), pool.take().unwrap(), NOW);
        assert!(matches!(unknown, Resolved::Kept { .. }));
        cache.learn(address(), [0xff; 6], false, NOW);
        let group = cache.resolve(address(), pool.take().unwrap(), NOW);
        assert!(matches!(group, Resolved::Kept { .. }), "no unicast address");
        for k in 0..5000_u32 {
            cache.learn(IpAddr::from(k.to_be_bytes()), MAC, true, at(k.into()));
        }
        assert!(cache.entries.len() <= ENTRIES_MAX);
        let _ = cache.learn(address(), MAC, false, NOW);
        let known = cache.resolve(address(), pool.take().unwrap(), NOW);
        assert!(matches!(known, Resolved::To { .. }), "waited for, so kept");
    }
}
