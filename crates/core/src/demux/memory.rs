//! A bounded memory of keys that expire.
//!
//! Used for what must be known for a while and may be forgotten: which channel
//! a datagram's first fragment took, which datagrams had fragments before their
//! first, which connections are in TIME_WAIT. A key's hash gives its set of
//! [`WAYS`] slots, and a newcomer takes the slot of the set's oldest key. So
//! every operation looks at [`WAYS`] slots, whatever the memory's size, and
//! nothing is ever moved, counted down or swept.
//!
//! It loses when more keys are remembered at a time than fit: then the oldest
//! of a set go before their time, on average long before all slots are in use
//! (give it twice the keys expected). The keyed hash keeps senders from aiming
//! at one set.

use alloc::vec::Vec;
use core::time::Duration;

use super::table::{Key, Seed};
use crate::time::Instant;

/// Slots that a key may be in.
pub(super) const WAYS: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct Slot<K, V> {
    entry: Option<(K, V)>,
    expires: Instant,
    /// Number of the insertion, from 1; 0: never used or forgotten.
    insertion: u64,
}

/// What is remembered, each for `lifetime` after its last insertion.
#[derive(Debug)]
pub(super) struct Memory<K, V> {
    slots: Vec<Slot<K, V>>,
    seed: Seed,
    lifetime: Duration,
    insertions: u64,
    /// When the last of all keys expires.
    last_expiry: Instant,
    /// Keys that gave way before they expired.
    displaced: u64,
}

impl<K: Key, V: Copy> Memory<K, V> {
    /// Room for `capacity` keys, rounded up to whole sets.
    pub(super) fn new(capacity: usize, lifetime: Duration, seed: Seed) -> Self {
        let empty = Slot {
            entry: None,
            expires: Instant::ZERO,
            insertion: 0,
        };
        let slots = core::iter::repeat_n(empty, capacity.next_multiple_of(WAYS));
        Self {
            slots: slots.collect(),
            seed,
            lifetime,
            insertions: 0,
            last_expiry: Instant::ZERO,
            displaced: 0,
        }
    }

    /// What is remembered of `key`.
    pub(super) fn get(&self, key: &K, now: Instant) -> Option<V> {
        if self.last_expiry <= now {
            return None;
        }
        let set = self.set(key);
        self.slots[set..set + WAYS]
            .iter()
            .filter(|slot| now < slot.expires)
            .find_map(|slot| slot.entry.filter(|entry| entry.0 == *key))
            .map(|entry| entry.1)
    }

    /// Remembers `value` from now on, in place of what was known of `key`.
    pub(super) fn insert(&mut self, key: K, value: V, now: Instant) {
        let set = self.set(&key);
        let set = &mut self.slots[set..set + WAYS];
        let known = set
            .iter()
            .position(|slot| slot.entry.is_some_and(|entry| entry.0 == key));
        let place = known.unwrap_or_else(|| oldest(set));
        let slot = &mut set[place];
        if known.is_none() && slot.entry.is_some() && now < slot.expires {
            self.displaced += 1;
        }
        self.insertions += 1;
        *slot = Slot {
            entry: Some((key, value)),
            expires: now + self.lifetime,
            insertion: self.insertions,
        };
        self.last_expiry = self.last_expiry.max(slot.expires);
    }

    /// Forgets `key`; says until when it would have been known.
    pub(super) fn forget(&mut self, key: &K) -> Option<Instant> {
        if self.insertions == 0 {
            return None;
        }
        let set = self.set(key);
        let slot = self.slots[set..set + WAYS]
            .iter_mut()
            .find(|slot| slot.entry.is_some_and(|entry| entry.0 == *key))?;
        slot.clear();
        Some(slot.expires)
    }

    /// Forgets every key with such a value. Looks at all slots.
    pub(super) fn forget_values(&mut self, unwanted: impl Fn(V) -> bool) {
        for slot in &mut self.slots {
            if slot.entry.is_some_and(|entry| unwanted(entry.1)) {
                slot.clear();
            }
        }
    }

    /// Keys that gave way to others before they expired.
    pub(super) fn displaced(&self) -> u64 {
        self.displaced
    }

    /// Bytes of heap memory, from construction on.
    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot<K, V>>()
    }

    /// Index of the first slot of the key's set.
    fn set(&self, key: &K) -> usize {
        let sets = (self.slots.len() / WAYS) as u64;
        // The hash's upper half, scaled to the number of sets.
        let set = ((self.seed.hash(key) >> 32) * sets) >> 32;
        set as usize * WAYS
    }
}

impl<K, V> Slot<K, V> {
    fn clear(&mut self) {
        self.entry = None;
        self.insertion = 0;
    }
}

/// The slot that was filled the longest ago, empty ones first.
fn oldest<K, V>(set: &[Slot<K, V>]) -> usize {
    let slots = set.iter().enumerate();
    let oldest = slots.min_by_key(|(_, slot)| slot.insertion);
    oldest.map_or(0, |(place, _)| place)
}

#[cfg(test)]
mod tests {
    use core::hash::Hasher;

    use siphasher::sip::SipHasher13;

    use super::*;

    impl Key for u32 {
        fn feed(&self, hasher: &mut SipHasher13) {
            hasher.write_u32(*self);
        }
    }

    const LIFETIME: Duration = Duration::from_secs(30);

    fn memory(capacity: usize) -> Memory<u32, char> {
        Memory::new(capacity, LIFETIME, Seed([3, 4]))
    }

    #[test]
    fn a_key_is_known_until_it_expires_and_a_repetition_begins_anew() {
        let mut memory = memory(8);
        let start = Instant::from_nanos(5);
        memory.insert(1, 'a', start);
        let last = start + LIFETIME - Duration::from_nanos(1);
        assert_eq!(memory.get(&1, last), Some('a'));
        assert_eq!(memory.get(&1, start + LIFETIME), None);
        memory.insert(1, 'b', last);
        assert_eq!(memory.get(&1, start + LIFETIME), Some('b'));
        assert_eq!(memory.get(&1, last + LIFETIME), None);
        assert_eq!(memory.displaced(), 0, "a key does not displace itself");
    }

    #[test]
    fn a_key_expires_though_others_live() {
        let mut memory = memory(8);
        memory.insert(1, 'a', Instant::ZERO);
        memory.insert(2, 'b', Instant::ZERO + LIFETIME);
        assert_eq!(memory.get(&1, Instant::ZERO + LIFETIME), None);
        assert_eq!(memory.get(&2, Instant::ZERO + LIFETIME), Some('b'));
    }

    #[test]
    fn a_newcomer_displaces_the_oldest_of_its_set() {
        let mut memory = memory(WAYS);
        for key in 0..20 {
            memory.insert(key, 'x', Instant::ZERO);
        }
        for key in 0..20 {
            let known = memory.get(&key, Instant::ZERO).is_some();
            assert_eq!(known, key >= 20 - WAYS as u32, "key {key}");
        }
        assert_eq!(memory.displaced(), 20 - WAYS as u64);
    }

    #[test]
    fn what_expired_is_not_counted_as_displaced() {
        let mut memory = memory(WAYS);
        for key in 0..8 {
            memory.insert(key, 'x', Instant::ZERO);
        }
        for key in 8..16 {
            memory.insert(key, 'x', Instant::ZERO + LIFETIME);
        }
        assert_eq!(memory.displaced(), 0);
    }

    #[test]
    fn half_full_it_forgets_almost_nothing() {
        let mut memory = memory(4096);
        for key in 0..2048 {
            memory.insert(key, 'x', Instant::ZERO);
        }
        let known = (0..2048).filter(|key| memory.get(key, Instant::ZERO).is_some());
        let known = known.count() as u64;
        assert_eq!(known + memory.displaced(), 2048);
        assert!(memory.displaced() < 2048 / 50, "{}", memory.displaced());
    }

    #[test]
    fn forgotten_keys_are_gone_and_leave_room() {
        let mut memory = memory(WAYS);
        for key in 0..8 {
            memory.insert(key, if key % 2 == 0 { 'e' } else { 'o' }, Instant::ZERO);
        }
        assert_eq!(memory.forget(&0), Some(Instant::ZERO + LIFETIME));
        assert_eq!(memory.forget(&0), None);
        memory.forget_values(|value| value == 'o');
        for key in 10..15 {
            memory.insert(key, 'n', Instant::ZERO);
        }
        assert_eq!(memory.displaced(), 0);
        for (key, value) in [(2, 'e'), (4, 'e'), (6, 'e'), (10, 'n'), (14, 'n')] {
            assert_eq!(memory.get(&key, Instant::ZERO), Some(value));
        }
    }
}
