//! A hash table with a fixed limit, which never allocates after construction
//! and whose keyed hash an attacker cannot predict.
//!
//! The table is hashbrown's, the one inside std's `HashMap`. It would grow or
//! move to fresh memory only if more than half of its capacity were in use when
//! deletions have used up the rest, so it gets twice the capacity of its limit;
//! it then tidies up in place. With half of the slots empty, almost every
//! deletion leaves an empty slot, so that is rare as well.
//!
//! Keys hold addresses and ports that the sender chooses. The hash is
//! SipHash-1-3 under a secret seed, as in std: whoever does not know the seed
//! cannot make keys collide.

use core::hash::Hasher;
use core::net::{Ipv4Addr, Ipv6Addr};

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

/// The secret that keys all hashes: 128 bits that nobody outside can guess.
///
/// The crate draws no random numbers, so the caller draws them, from the
/// operating system's generator. A constant is fine in tests and simulations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub [u64; 2]);

impl core::fmt::Debug for Seed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Seed(secret)")
    }
}

impl Seed {
    #[inline]
    pub(super) fn hash<K: Key>(self, key: &K) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1]);
        key.feed(&mut hasher);
        hasher.finish()
    }
}

/// What can be looked up.
pub(super) trait Key: Copy + Eq {
    /// Gives all of the key to the hash: words of 64 bits first, at most 7
    /// bytes last, which then cost nothing more.
    fn feed(&self, hasher: &mut SipHasher13);
}

/// IPv4 or IPv6 addresses, packed tightly for the hash.
pub(super) trait Address: Copy + Ord {
    fn feed_one(self, rest: u32, hasher: &mut SipHasher13);
    fn feed_two(self, other: Self, rest: u32, hasher: &mut SipHasher13);
}

impl Address for Ipv4Addr {
    #[inline]
    fn feed_one(self, rest: u32, hasher: &mut SipHasher13) {
        hasher.write_u64(u64::from(self.to_bits()) << 32 | u64::from(rest));
    }

    #[inline]
    fn feed_two(self, other: Self, rest: u32, hasher: &mut SipHasher13) {
        hasher.write_u64(u64::from(self.to_bits()) << 32 | u64::from(other.to_bits()));
        hasher.write_u32(rest);
    }
}

impl Address for Ipv6Addr {
    #[inline]
    fn feed_one(self, rest: u32, hasher: &mut SipHasher13) {
        hasher.write_u64((self.to_bits() >> 64) as u64);
        hasher.write_u64(self.to_bits() as u64);
        hasher.write_u32(rest);
    }

    #[inline]
    fn feed_two(self, other: Self, rest: u32, hasher: &mut SipHasher13) {
        hasher.write_u64((self.to_bits() >> 64) as u64);
        hasher.write_u64(self.to_bits() as u64);
        hasher.write_u64((other.to_bits() >> 64) as u64);
        hasher.write_u64(other.to_bits() as u64);
        hasher.write_u32(rest);
    }
}

/// At most `limit` keys with a value each.
#[derive(Debug)]
pub(super) struct Table<K, V> {
    slots: HashTable<(K, V)>,
    limit: usize,
    seed: Seed,
}

/// As many are held as may be.
#[derive(Debug)]
pub(super) struct Full;

impl<K: Key, V> Table<K, V> {
    pub(super) fn new(limit: usize, seed: Seed) -> Self {
        Self {
            slots: HashTable::with_capacity(2 * limit),
            limit,
            seed,
        }
    }

    #[inline]
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        if self.slots.is_empty() {
            return None;
        }
        let found = self.slots.find(self.seed.hash(key), |slot| slot.0 == *key);
        found.map(|slot| &slot.1)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let hash = self.seed.hash(key);
        let found = self.slots.find_mut(hash, |slot| slot.0 == *key);
        found.map(|slot| &mut slot.1)
    }

    /// Adds a key that is not there yet.
    pub(super) fn insert(&mut self, key: K, value: V) -> Result<(), Full> {
        debug_assert!(self.get(&key).is_none(), "keys are unique");
        if self.slots.len() == self.limit {
            return Err(Full);
        }
        let seed = self.seed;
        let hash = seed.hash(&key);
        self.slots
            .insert_unique(hash, (key, value), |slot| seed.hash(&slot.0));
        Ok(())
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let hash = self.seed.hash(key);
        let found = self.slots.find_entry(hash, |slot| slot.0 == *key);
        found.ok().map(|entry| entry.remove().0.1)
    }

    /// Bytes of heap memory, from construction on.
    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Number(u64);

    impl Key for Number {
        fn feed(&self, hasher: &mut SipHasher13) {
            hasher.write_u64(self.0);
        }
    }

    const SEED: Seed = Seed([1, 2]);

    #[test]
    fn memory_stays_as_it_was_made_through_any_number_of_changes() {
        for limit in [1, 2, 3, 7, 8, 100, 1792] {
            let mut table = Table::new(limit, SEED);
            let bytes = table.memory_bytes();
            for n in 0..20_000 {
                if table.insert(Number(n), n).is_err() {
                    let oldest = n - limit as u64;
                    assert_eq!(table.remove(&Number(oldest)), Some(oldest));
                    table.insert(Number(n), n).expect("room was made");
                }
                assert_eq!(table.get(&Number(n)), Some(&n));
            }
            assert_eq!(table.slots.len(), limit);
            assert_eq!(table.memory_bytes(), bytes, "limit {limit}");
        }
    }

    #[test]
    fn another_seed_gives_another_order() {
        let one = Seed([1, 2]).hash(&Number(5));
        assert_ne!(one, Seed([1, 3]).hash(&Number(5)));
        assert_ne!(one, Seed([2, 2]).hash(&Number(5)));
        assert_ne!(one, SEED.hash(&Number(6)));
    }

    #[test]
    fn the_seed_is_not_printed() {
        extern crate std;
        assert_eq!(std::format!("{SEED:?}"), "Seed(secret)");
    }
}
