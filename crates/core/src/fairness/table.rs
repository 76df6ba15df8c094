//! A table of sets of four, in which a newcomer takes over the entry that has been idle
//! for longest.

use alloc::boxed::Box;

use super::numbers::WAYS;

/// The age of an entry that nobody has, above all ages in ticks.
const NOBODYS: u32 = 1 << 17;

/// An entry of a table.
pub(super) trait Entry: Copy + Default {
    /// When it was last used, in the low bits of ticks.
    fn tick(&self) -> u16;
}

/// An entry's place. A tag of 0 means that nobody has it.
#[derive(Clone, Copy, Debug, Default)]
struct Way<E> {
    tag: u16,
    entry: E,
}

/// Whose an entry was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Same,
    /// Somebody else's, who has lost it.
    Other,
    Nobody,
}

impl Owner {
    /// By the age of the entry that a prefix would take over; `None`: it has one.
    fn of(age: Option<u32>) -> Self {
        match age {
            None => Self::Same,
            Some(NOBODYS) => Self::Nobody,
            Some(_) => Self::Other,
        }
    }
}

/// The entries, by a hash: its low bits name the set, its high ones are the tag.
#[derive(Clone, Debug)]
pub(super) struct Table<E>(Box<[[Way<E>; WAYS]]>);

impl<E: Entry> Table<E> {
    pub(super) fn new(sets: usize) -> Self {
        Self(alloc::vec![[Way::default(); WAYS]; sets].into_boxed_slice())
    }

    /// The entry of a prefix, and whose it was. A newcomer takes it over with its credit.
    pub(super) fn find(&mut self, hash: u32, tick: u32) -> (&mut E, Owner) {
        let set = self.set_of(hash);
        let (way, age) = self.oldest_or_own(hash, tick);
        let way = &mut self.0[set][way];
        way.tag = tag_of(hash);
        (&mut way.entry, Owner::of(age))
    }

    /// The entry of a prefix, or the one that it would take over, as it is.
    pub(super) fn peek(&self, hash: u32, tick: u32) -> (E, Owner) {
        let (way, age) = self.oldest_or_own(hash, tick);
        (self.0[self.set_of(hash)][way].entry, Owner::of(age))
    }

    fn set_of(&self, hash: u32) -> usize {
        hash as usize & (self.0.len() - 1)
    }

    /// The way of a prefix; or that of the oldest entry of its set, with one tick more
    /// than its age.
    fn oldest_or_own(&self, hash: u32, tick: u32) -> (usize, Option<u32>) {
        let mut oldest = (0, 0);
        let ways = self.0[self.set_of(hash)].iter().enumerate();
        for (way, Way { tag, entry }) in ways {
            if *tag == tag_of(hash) {
                return (way, None);
            }
            let idle = u32::from((tick as u16).wrapping_sub(entry.tick()));
            let age = if *tag == 0 { NOBODYS } else { idle + 1 };
            if age > oldest.1 {
                oldest = (way, age);
            }
        }
        (oldest.0, Some(oldest.1))
    }
}

fn tag_of(hash: u32) -> u16 {
    ((hash >> 16) as u16).max(1)
}
