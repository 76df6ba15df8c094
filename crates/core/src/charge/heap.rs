//! A binary heap of numbered items whose keys can change, with all memory
//! allocated at construction. `std`'s and the crates' heaps either cannot change
//! a key or allocate when they do.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Items 0 to n−1, each at most once; the one of the least key is on top.
#[derive(Clone, Debug)]
pub(super) struct Heap<K> {
    entries: Vec<(K, u32)>,
    /// Where an item is in `entries`; [`ABSENT`] if it is not.
    places: Box<[u32]>,
}

const ABSENT: u32 = u32::MAX;

impl<K: Ord + Copy> Heap<K> {
    pub(super) fn new(items: usize) -> Self {
        Self {
            entries: Vec::with_capacity(items),
            places: alloc::vec![ABSENT; items].into_boxed_slice(),
        }
    }

    pub(super) fn top(&self) -> Option<(K, u32)> {
        self.entries.first().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn contains(&self, item: u32) -> bool {
        self.places[item as usize] != ABSENT
    }

    /// Puts `item` in, or gives it another key.
    pub(super) fn set(&mut self, item: u32, key: K) {
        let place = self.places[item as usize];
        if place == ABSENT {
            self.entries.push((key, item));
            self.rise(self.entries.len() - 1, (key, item));
            return;
        }
        let place = place as usize;
        if key < self.entries[place].0 {
            self.rise(place, (key, item));
        } else {
            self.sink(place, (key, item));
        }
    }

    /// Takes `item` out, if it is in.
    pub(super) fn remove(&mut self, item: u32) {
        let place = core::mem::replace(&mut self.places[item as usize], ABSENT);
        let Some(last) = (place != ABSENT).then(|| self.entries.pop()).flatten() else {
            return;
        };
        let place = place as usize;
        if place == self.entries.len() {
            return;
        }
        if last.0 < self.entries[place].0 {
            self.rise(place, last);
        } else {
            self.sink(place, last);
        }
    }

    fn put(&mut self, place: usize, entry: (K, u32)) {
        self.entries[place] = entry;
        self.places[entry.1 as usize] = place as u32;
    }

    /// Puts `entry` at `place` or above.
    fn rise(&mut self, mut place: usize, entry: (K, u32)) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.entries[parent].0 <= entry.0 {
                break;
            }
            self.put(place, self.entries[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    /// Puts `entry` at `place` or below.
    fn sink(&mut self, mut place: usize, entry: (K, u32)) {
        loop {
            let left = 2 * place + 1;
            let Some(mut least) = self.entries.get(left) else {
                break;
            };
            let mut child = left;
            if let Some(right) = self.entries.get(left + 1)
                && right.0 < least.0
            {
                (child, least) = (left + 1, right);
            }
            if entry.0 <= least.0 {
                break;
            }
            self.put(place, *least);
            place = child;
        }
        self.put(place, entry);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_top_is_the_least_of_a_plain_map(
            ops in prop::collection::vec((0..20u32, prop::option::of(0..50u32)), 0..300)
        ) {
            let mut heap = Heap::new(20);
            let mut map = BTreeMap::new();
            for (item, key) in ops {
                if let Some(key) = key {
                    heap.set(item, key);
                    map.insert(item, key);
                } else {
                    heap.remove(item);
                    map.remove(&item);
                }
                prop_assert_eq!(heap.top().map(|(key, _)| key), map.values().min().copied());
                prop_assert!(heap.top().is_none_or(|(key, item)| map[&item] == key));
                prop_assert_eq!(heap.contains(item), map.contains_key(&item));
                prop_assert_eq!(heap.is_empty(), map.is_empty());
            }
        }
    }
}
