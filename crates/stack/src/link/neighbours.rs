//! The neighbour cache: which Ethernet address an IP address on the link has
//! (RFC 826, RFC 4861).
//!
//! Pure: time comes in, questions to be asked go out. An entry is believed for
//! a minute, then used a little longer while it is asked for again. For an
//! unknown neighbour some frames are kept until it answers. An answer about an
//! unknown neighbour that nobody asked for changes nothing. A neighbour that asks for us is learnt,
//! since it is about to be answered. Unknown ones push out a quarter of the known ones at most, and
//! known ones that nothing was sent to go before those in use.
//!
//! **Who moves is followed, and asked.** Another Ethernet address for a known neighbour replaces the old
//! one, unless an advertisement says that it does not override (RFC 4861, 7.2.5). Unless it answers a
//! question of ours it is only used as an old entry is: until the neighbour was asked again. So what
//! somebody made up lasts until the true neighbour answers, and not for a minute.

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

/// How a neighbour comes to say where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// It asks for us.
    Question,
    /// It asks for somebody else, or for itself, to say where it is now (ARP alone).
    Aside,
    Answer {
        /// To a question.
        solicited: bool,
        /// It counts more than what is known.
        overrides: bool,
    },
}

impl Word {
    /// ARP knows no other.
    pub(crate) const ARP_REPLY: Self = Self::Answer {
        solicited: true,
        overrides: true,
    };
}

#[derive(Debug)]
struct Entry {
    mac: Option<Mac>,
    /// When it was learnt.
    learnt: Instant,
    believed_until: Instant,
    /// When something was sent there.
    used: Option<Instant>,
    asked: u32,
    asked_at: Option<Instant>,
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
            entry.used = Some(now);
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
        let Some(entry) = self.entry(address, now) else {
            return (None, false);
        };
        entry.used = Some(now);
        (entry.mac, entry.ask(now))
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

    /// `address` is at `mac`, by this word. Returns the frames that waited for it. But for a question,
    /// only of neighbours that are known or were asked for.
    pub(crate) fn learn(
        &mut self,
        address: IpAddr,
        mac: Mac,
        word: Word,
        now: Instant,
    ) -> Vec<Frame> {
        let known = self.entries.contains_key(&address);
        let is_station = mac[0] & 1 == 0 && mac != [0; 6];
        if !is_station || !known && word != Word::Question {
            return Vec::new();
        }
        if !known {
            self.make_room();
        }
        let entry = self.entries.entry(address);
        let entry = entry.or_insert_with(|| Entry::new(now));
        self.unknown -= usize::from(known && entry.mac.is_none());
        entry.hear(mac, word, now);
        let pending = std::mem::take(&mut entry.pending);
        self.pending -= pending.len();
        pending
    }

    /// Where the neighbour at `address` is, as was last said.
    pub(crate) fn known(&self, address: IpAddr) -> Option<Mac> {
        self.entries.get(&address)?.mac
    }

    /// The neighbour at `address` has not said where it is. If it answers a question, it is where it was.
    pub(crate) fn confirm(&mut self, address: IpAddr, word: Word, now: Instant) {
        let Some(entry) = self.entries.get_mut(&address) else {
            return;
        };
        if let Some(mac) = entry.mac {
            entry.hear(mac, word, now);
        }
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
        unknown
            .map(|entry| entry.asked_at.map_or(entry.learnt, |at| at + ASK_AGAIN))
            .min()
    }

    /// Room for one more: the known one goes that was not used for the longest time, and before all
    /// others those that never were. Who asks for us in others' names must not have us forget who we talk to.
    fn make_room(&mut self) {
        if self.entries.len() < ENTRIES_MAX {
            return;
        }
        let known = self.entries.iter().filter(|(_, entry)| entry.mac.is_some());
        let oldest = known
            .min_by_key(|(_, entry)| (entry.used, entry.learnt))
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
            believed_until: now,
            used: None,
            asked: 0,
            asked_at: None,
            pending: Vec::new(),
        }
    }

    /// It is at `mac`, by this word (RFC 4861, 7.2.3 and 7.2.5).
    fn hear(&mut self, mac: Mac, word: Word, now: Instant) {
        let (confirms, overrides) = match word {
            Word::Question | Word::Aside => (true, true),
            Word::Answer {
                solicited,
                overrides,
            } => (solicited, overrides),
        };
        let is_answer = matches!(word, Word::Answer { .. }) && confirms && self.asked > 0;
        match self.mac {
            None => {
                (self.mac, self.learnt) = (Some(mac), now);
                if confirms {
                    self.believe(now);
                } else {
                    self.distrust(now);
                }
            }
            Some(known) if known == mac => {
                if confirms {
                    self.believe(now);
                }
            }
            Some(_) if !overrides => {
                if !self.is_old(now) {
                    self.distrust(now);
                }
            }
            Some(_) => {
                (self.mac, self.learnt) = (Some(mac), now);
                if is_answer {
                    self.believe(now);
                } else {
                    self.distrust(now);
                }
            }
        }
    }

    fn believe(&mut self, now: Instant) {
        (self.believed_until, self.asked) = (now + BELIEVED, 0);
    }

    /// From now on it is old. Two that claim one address have no question asked for each of their words.
    fn distrust(&mut self, now: Instant) {
        self.believed_until = now;
        self.asked = u32::from(!self.is_rested(now));
    }

    /// Nobody has answered for too long: it is as if it had never been known.
    fn is_to_be_forgotten(&self, now: Instant) -> bool {
        self.mac.is_some() && now > self.believed_until + USED
    }

    /// It is used for a while yet, and asked for.
    fn is_old(&self, now: Instant) -> bool {
        now > self.believed_until
    }

    /// Whether to ask now; counts the question.
    fn ask(&mut self, now: Instant) -> bool {
        let due = self.asked == 0 || self.is_rested(now);
        if due && self.asked < ASK_MAX {
            self.asked += 1;
            self.asked_at = Some(now);
            return true;
        }
        false
    }

    /// The last question was long enough ago.
    fn is_rested(&self, now: Instant) -> bool {
        let since = |at| now.saturating_since(at);
        self.asked_at.is_none_or(|at| since(at) >= ASK_AGAIN)
    }

    fn is_given_up(&self, now: Instant) -> bool {
        self.asked >= ASK_MAX && self.is_rested(now)
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
            cache.learn(address(), MAC, Word::ARP_REPLY, NOW).len(),
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
        assert_eq!(cache.learn(address(), MAC, Word::ARP_REPLY, NOW).len(), 0);
        // However fresh it is: the peer may have moved.
        for second in 0..u64::from(ASK_MAX) {
            assert_eq!(cache.doubt(address(), at(second)), (Some(MAC), true));
        }
        assert_eq!(cache.doubt(address(), at(10)), (Some(MAC), false));
        assert_eq!(
            cache.learn(address(), MAC, Word::ARP_REPLY, at(10)).len(),
            0
        );
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
        cache.learn(address(), MAC, Word::ARP_REPLY, NOW);
        let mut resolve = |now| cache.resolve(address(), pool.take().unwrap(), now);
        assert!(matches!(resolve(at(60)), Resolved::To { ask: false, .. }));
        assert!(matches!(resolve(at(61)), Resolved::To { ask: true, .. }));
        assert!(matches!(resolve(at(66)), Resolved::Kept { .. }));
    }

    /// It was given up without one: what was asked while the entry was used counted.
    #[test]
    fn a_forgotten_neighbour_is_asked_three_times_again() {
        let (pool, mut cache) = (pool(), Neighbours::default());
        cache.learn(address(), MAC, Word::Question, NOW);
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
            cache.learn(
                IpAddr::from(k.to_be_bytes()),
                MAC,
                Word::Question,
                at(k.into()),
            );
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

    /// Who had an address was whoever said so last, for a minute (RFC 4861, 7.2.3 and 7.2.5).
    #[test]
    fn a_word_is_believed_as_far_as_it_goes() {
        const OTHER: Mac = [2, 0, 0, 0, 0, 8];
        let answer = |solicited, overrides| Word::Answer {
            solicited,
            overrides,
        };
        // A minute after it was learnt it is asked for if somebody uses it.
        let (fresh, old) = (at(10), at(62));
        for (when, asked, mac, word, expected) in [
            (fresh, false, MAC, answer(true, false), (MAC, false)),
            (fresh, false, MAC, answer(false, true), (MAC, false)),
            (fresh, false, OTHER, answer(true, false), (MAC, true)),
            (fresh, false, OTHER, answer(false, false), (MAC, true)),
            (fresh, false, OTHER, answer(true, true), (OTHER, true)),
            (fresh, false, OTHER, answer(false, true), (OTHER, true)),
            (fresh, false, OTHER, Word::Question, (OTHER, true)),
            (fresh, false, OTHER, Word::Aside, (OTHER, true)),
            (fresh, false, [0; 6], Word::Aside, (MAC, false)),
            (old, true, MAC, answer(true, false), (MAC, false)),
            (old, true, OTHER, answer(true, true), (OTHER, false)),
            (old, true, OTHER, answer(true, false), (MAC, true)),
            (old, true, OTHER, answer(false, true), (OTHER, true)),
            (old, true, OTHER, Word::Question, (OTHER, true)),
            (old, false, MAC, answer(false, false), (MAC, true)),
            (old, false, MAC, Word::Question, (MAC, false)),
        ] {
            let (pool, mut cache) = (pool(), Neighbours::default());
            let resolve = |cache: &mut Neighbours, now| match cache.resolve(
                address(),
                pool.take().unwrap(),
                now,
            ) {
                Resolved::To { mac, ask, .. } => (mac, ask),
                other => panic!("{other:?}"),
            };
            cache.learn(address(), MAC, Word::Question, NOW);
            if asked {
                assert_eq!(resolve(&mut cache, when), (MAC, when == old));
            }
            cache.learn(address(), mac, word, when);
            let then = when + ASK_AGAIN;
            let found = resolve(&mut cache, then);
            assert_eq!(found, expected, "{when:?} {mac:?} {word:?}");
        }
    }

    /// Each of their words would have led to a question, which both answer.
    #[test]
    fn two_that_claim_one_address_are_asked_once_a_second() {
        const OTHER: Mac = [2, 0, 0, 0, 0, 8];
        let (pool, mut cache) = (pool(), Neighbours::default());
        cache.learn(address(), MAC, Word::Question, NOW);
        let mut questions = 0;
        for tenth in 0..100 {
            let now = NOW + Duration::from_millis(100) * tenth;
            for mac in [OTHER, MAC] {
                cache.learn(address(), mac, Word::ARP_REPLY, now);
                let resolved =
                    cache.resolve(address(), pool.take().unwrap(), now + ASK_AGAIN / 100);
                questions += u32::from(matches!(resolved, Resolved::To { ask: true, .. }));
            }
        }
        assert!((9..=11).contains(&questions), "{questions}");
    }

    #[test]
    fn nobody_is_learnt_who_was_not_asked_for_and_did_not_ask() {
        let (pool, mut cache) = (pool(), Neighbours::default());
        cache.learn(address(), MAC, Word::ARP_REPLY, NOW);
        let unknown = cache.resolve(address(), pool.take().unwrap(), NOW);
        assert!(matches!(unknown, Resolved::Kept { .. }));
        cache.learn(address(), [0xff; 6], Word::ARP_REPLY, NOW);
        let group = cache.resolve(address(), pool.take().unwrap(), NOW);
        assert!(matches!(group, Resolved::Kept { .. }), "no unicast address");
        for k in 0..5000_u32 {
            cache.learn(
                IpAddr::from(k.to_be_bytes()),
                MAC,
                Word::Question,
                at(k.into()),
            );
        }
        assert!(cache.entries.len() <= ENTRIES_MAX);
        let _ = cache.learn(address(), MAC, Word::ARP_REPLY, NOW);
        let known = cache.resolve(address(), pool.take().unwrap(), NOW);
        assert!(matches!(known, Resolved::To { .. }), "waited for, so kept");
    }
}
