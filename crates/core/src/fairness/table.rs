//! A table of sets of four, in which a newcomer takes over the entry that has been idle
//! for longest.

use alloc::boxed::Box;

use super::numbers::WAYS;

/// The age of an entry that nobody has, above all ages in ticks.
const NOBODYS: u32 = 1 << 17;

/// An entry of a table. A tag of 0 means that nobody has it.
pub(super) trait Entry: Copy + Default {
    fn tag(&self) -> u16;
    /// When it was last used, in the low bits of ticks.
    fn tick(&self) -> u16;
    /// Somebody else has it from now on; the credit stays.
    fn take_over(&mut self, tag: u16);
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

/// The entries, by the upper half of a hash: its low bits name the set, its high ones
/// are the tag.
#[derive(Clone, Debug)]
pub(super) struct Table<E>(Box<[[E; WAYS]]>);

impl<E: Entry> Table<E> {
    pub(super) fn new(sets: usize) -> Self {
        Self(alloc::vec![[E::default(); WAYS]; sets].into_boxed_slice())
    }

    /// The entry of a prefix, and whose it was.
    pub(super) fn find(&mut self, hash: u32, tick: u32) -> (&mut E, Owner) {
        let set = self.set_of(hash);
        let (way, age) = self.oldest_or_own(hash, tick);
        let entry = &mut self.0[set][way];
        let owner = Owner::of(age);
        if owner != Owner::Same {
            entry.take_over(tag_of(hash));
        }
        (entry, owner)
    }

    /// The entry of a prefix, or the one that it would take over, as it is.
    pub(super) fn peek(&self, hash: u32, tick: u32) -> (E, Owner) {
        let (way, age) = self.oldest_or_own(hash, tick);
        (self.0[self.set_of(hash)][way], Owner::of(age))
    }

    fn set_of(&self, hash: u32) -> usize {
        hash as usize & (self.0.len() - 1)
    }

    /// The way of a prefix; or that of the oldest entry of its set, with one tick more
    /// than its age.
    fn oldest_or_own(&self, hash: u32, tick: u32) -> (usize, Option<u32>) {
        let mut oldest = (0, 0);
        for (way, entry) in self.0[self.set_of(hash)].iter().enumerate() {
            if entry.tag() == tag_of(hash) {
                return (way, None);
            }
            let idle = u32::from((tick as u16).wrapping_sub(entry.tick()));
            let age = if entry.tag() == 0 { NOBODYS } else { idle + 1 };
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
