//! The modified timing wheel under [`SoftTimers`](super::SoftTimers): pending
//! events in the order in which they become due, in whole ticks.
//!
//! Intuition: a tick number is written in digits of six bits. An event waits
//! in the level of the highest digit in which its due tick differs from the
//! wheel's position, in the slot that this digit names. So level 0 holds the
//! next 64 ticks exactly, level 1 the next 64 blocks of 64 ticks, and eleven
//! levels hold every 64-bit tick: there is no overflow list. When the wheel's
//! position enters a slot of a higher level, its events move down (cascade).
//!
//! What differs from Varghese and Lauck's hierarchical wheel, and why:
//!
//! - The wheel does not turn tick by tick. Bit maps of the occupied slots lead
//!   to the first one at once, and each slot knows the earliest due tick in
//!   it, so that the check of a trigger state compares with the earliest
//!   event, not with the next tick or the next cascade.
//! - Each slot knows the earliest deadline in it. The deadline that the
//!   hardware timer must cover is found from a few slots, without a second
//!   queue ordered by deadline.
//! - Events live in one array whose size never changes, linked by index.
//!
//! All events of one tick are always in one slot (the level depends on nothing
//! but the due tick and the position), and slots are queues that cascade in
//! order: so events of one tick leave in the order in which they came.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU32;

const DIGIT_BITS: u32 = 6;
const SLOTS_PER_LEVEL: usize = 1 << DIGIT_BITS;
const LEVELS: usize = u64::BITS.div_ceil(DIGIT_BITS) as usize;

/// "No entry" in a link.
const NIL: u32 = u32::MAX;

/// The most events a wheel can hold.
pub(super) const CAPACITY_MAX: u32 = NIL - 1;

/// A pending event, or a vacant place linked into the free list by `next`.
#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    due: u64,
    payload: T,
    /// Ticks from `due` to the deadline.
    slack: u32,
    next: u32,
    prev: u32,
    /// Counts the events that left this place, so that a handle of one of them
    /// does not match its successors. Never 0, so that an optional handle is no
    /// larger than a handle.
    generation: NonZeroU32,
}

impl<T> Entry<T> {
    fn deadline(&self) -> u64 {
        self.due.saturating_add(self.slack.into())
    }
}

// What one pending event occupies, as the module's doc promises.
const _: () = assert!(size_of::<Entry<u64>>() == 32);
const _: () = assert!(size_of::<Entry<u32>>() == 32);

/// A queue of events whose due ticks share all digits above the slot's level.
#[derive(Clone, Copy, Debug)]
struct Slot {
    head: u32,
    tail: u32,
    /// No event in the slot is due before.
    earliest_due: u64,
    /// No event in the slot has a deadline before.
    earliest_deadline: u64,
}

impl Slot {
    const EMPTY: Self = Self {
        head: NIL,
        tail: NIL,
        earliest_due: u64::MAX,
        earliest_deadline: u64::MAX,
    };
}

// What the wheel occupies besides, as the module's doc promises.
const _: () = assert!(LEVELS * SLOTS_PER_LEVEL * size_of::<Slot>() <= 17 * 1024);

/// Names one pending event: the place and which of its tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    index: u32,
    generation: NonZeroU32,
}

impl Key {
    /// Names no event: no place has this number.
    pub(super) const NONE: Self = Self {
        index: NIL,
        generation: NonZeroU32::MIN,
    };
}

/// An event that left the wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due<T> {
    pub(super) due: u64,
    pub(super) deadline: u64,
    pub(super) payload: T,
}

/// The wheel; see the module's doc.
#[derive(Clone, Debug)]
pub(super) struct Wheel<T> {
    /// Grows up to the capacity reserved at construction, never beyond.
    entries: Vec<Entry<T>>,
    capacity: u32,
    /// First vacant place below `entries.len()`.
    free: u32,
    pending: u32,
    /// No pending event's slack is less.
    slack_min: u32,
    /// Not after any pending event's due tick.
    position: u64,
    slots: Box<[Slot]>,
    /// Bit s of element l: slot s of level l has events.
    occupied: [u64; LEVELS],
    /// Bit l: level l has events.
    occupied_levels: u32,
}

impl<T: Copy> Wheel<T> {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            entries: Vec::with_capacity(capacity as usize),
            capacity,
            free: NIL,
            pending: 0,
            slack_min: u32::MAX,
            position: 0,
            slots: vec![Slot::EMPTY; LEVELS * SLOTS_PER_LEVEL].into_boxed_slice(),
            occupied: [0; LEVELS],
            occupied_levels: 0,
        }
    }

    pub(super) fn pending(&self) -> u32 {
        self.pending
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The tick before which no pending event is due; `u64::MAX` without any.
    ///
    /// Exact, unless the earliest event of a slot was cancelled: then it may be
    /// early until the wheel is asked at that tick.
    pub(super) fn earliest_due(&self) -> u64 {
        self.first_slot()
            .map_or(u64::MAX, |slot| self.slots[slot].earliest_due)
    }

    /// The tick before which no pending event's deadline lies; `u64::MAX`
    /// without any. Exact but for cancelled events, as [`Self::earliest_due`].
    pub(super) fn earliest_deadline(&self) -> u64 {
        let mut earliest = u64::MAX;
        for slot in self.occupied_slots().map(|slot| &self.slots[slot]) {
            // Slots come in order of time, and no deadline is closer to its event
            // than the least slack: with equal slacks the first slot decides.
            if slot.earliest_due.saturating_add(self.slack_min.into()) >= earliest {
                break;
            }
            earliest = earliest.min(slot.earliest_deadline);
        }
        earliest
    }

    /// Adds an event, due after `now`; `None` if the wheel is full.
    pub(super) fn insert(&mut self, now: u64, due: u64, slack: u32, payload: T) -> Option<Key> {
        self.follow(now);
        let due = due.max(self.position);
        let index = self.occupy(due, slack, payload)?;
        self.append(self.slot_of(due), index);
        let others = if self.pending == 0 {
            u32::MAX
        } else {
            self.slack_min
        };
        self.slack_min = slack.min(others);
        self.pending += 1;
        let generation = self.entries[index as usize].generation;
        Some(Key { index, generation })
    }

    /// Removes the event `key` names; `None` if it left before.
    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = *self.entries.get(key.index as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        let slot = self.slot_of(entry.due);
        match entry.prev {
            NIL => self.slots[slot].head = entry.next,
            prev => self.entries[prev as usize].next = entry.next,
        }
        match entry.next {
            NIL => self.slots[slot].tail = entry.prev,
            next => self.entries[next as usize].prev = entry.prev,
        }
        if self.slots[slot].head == NIL {
            self.clear(slot);
        }
        self.vacate(key.index);
        Some(entry.payload)
    }

    /// Takes out the first event due at or before `now`, in the order of due
    /// ticks and, within one tick, of insertion.
    pub(super) fn pop_due(&mut self, now: u64) -> Option<Due<T>> {
        loop {
            let slot = self.first_slot()?;
            let earliest_due = self.slots[slot].earliest_due;
            if earliest_due > now {
                return None;
            }
            self.position = earliest_due;
            if slot < SLOTS_PER_LEVEL {
                return Some(self.pop_front(slot));
            }
            self.cascade(slot);
        }
    }

    /// Moves the position up to `now` as far as no slot is entered, so that new
    /// events wait as low as possible: each level costs a move later.
    fn follow(&mut self, now: u64) {
        let start = self
            .first_slot()
            .map_or(u64::MAX, |slot| self.start_of(slot));
        if now > self.position && now < start {
            self.position = now;
        }
    }

    /// The slot in which an event due at `due` waits.
    fn slot_of(&self, due: u64) -> usize {
        let differing = (due ^ self.position) | (SLOTS_PER_LEVEL as u64 - 1);
        let level = (u64::BITS - 1 - differing.leading_zeros()) / DIGIT_BITS;
        let digit = (due >> (level * DIGIT_BITS)) as usize % SLOTS_PER_LEVEL;
        level as usize * SLOTS_PER_LEVEL + digit
    }

    /// The first tick that a slot covers.
    fn start_of(&self, slot: usize) -> u64 {
        let shift = (slot / SLOTS_PER_LEVEL) as u32 * DIGIT_BITS;
        let digit = (slot % SLOTS_PER_LEVEL) as u64;
        // Above the top level there are no digits to keep.
        let above = self.position.checked_shr(shift + DIGIT_BITS).unwrap_or(0);
        ((above << DIGIT_BITS) | digit) << shift
    }

    /// The slot with the earliest events: a lower level precedes a higher one,
    /// since it subdivides the block in which the position is.
    fn first_slot(&self) -> Option<usize> {
        if self.occupied_levels == 0 {
            return None;
        }
        let level = self.occupied_levels.trailing_zeros() as usize;
        let digit = self.occupied[level].trailing_zeros() as usize;
        Some(level * SLOTS_PER_LEVEL + digit)
    }

    /// All slots with events, earliest first.
    fn occupied_slots(&self) -> impl Iterator<Item = usize> {
        self.occupied.iter().enumerate().flat_map(|(level, &bits)| {
            let mut bits = bits;
            core::iter::from_fn(move || {
                let digit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(level * SLOTS_PER_LEVEL + digit)
            })
        })
    }

    /// Moves a slot's events down; the position is already inside it.
    fn cascade(&mut self, slot: usize) {
        let mut index = self.slots[slot].head;
        self.clear(slot);
        while index != NIL {
            let entry = &self.entries[index as usize];
            let (due, next) = (entry.due, entry.next);
            self.append(self.slot_of(due), index);
            index = next;
        }
    }

    fn append(&mut self, slot_index: usize, index: u32) {
        let entry = &mut self.entries[index as usize];
        let slot = &mut self.slots[slot_index];
        let tail = slot.tail;
        entry.prev = tail;
        entry.next = NIL;
        slot.tail = index;
        slot.earliest_due = slot.earliest_due.min(entry.due);
        slot.earliest_deadline = slot.earliest_deadline.min(entry.deadline());
        if tail == NIL {
            slot.head = index;
            let level = slot_index / SLOTS_PER_LEVEL;
            self.occupied[level] |= 1 << (slot_index % SLOTS_PER_LEVEL);
            self.occupied_levels |= 1 << level;
        } else {
            self.entries[tail as usize].next = index;
        }
    }

    fn pop_front(&mut self, slot: usize) -> Due<T> {
        let index = self.slots[slot].head;
        let entry = self.entries[index as usize];
        if entry.next == NIL {
            self.clear(slot);
        } else {
            self.slots[slot].head = entry.next;
            self.entries[entry.next as usize].prev = NIL;
        }
        self.vacate(index);
        Due {
            due: entry.due,
            deadline: entry.deadline(),
            payload: entry.payload,
        }
    }

    /// Marks a slot whose events were unlinked as empty.
    fn clear(&mut self, slot: usize) {
        self.slots[slot] = Slot::EMPTY;
        let level = slot / SLOTS_PER_LEVEL;
        self.occupied[level] &= !(1 << (slot % SLOTS_PER_LEVEL));
        if self.occupied[level] == 0 {
            self.occupied_levels &= !(1 << level);
        }
    }

    /// Finds a place for an event, the most recently vacated one first, since
    /// its cache line is likely still near.
    fn occupy(&mut self, due: u64, slack: u32, payload: T) -> Option<u32> {
        let mut entry = Entry {
            due,
            payload,
            slack,
            next: NIL,
            prev: NIL,
            generation: NonZeroU32::MIN,
        };
        if self.free != NIL {
            let index = self.free;
            let place = &mut self.entries[index as usize];
            self.free = place.next;
            entry.generation = place.generation;
            *place = entry;
            return Some(index);
        }
        let index = self.entries.len() as u32;
        if index == self.capacity {
            return None;
        }
        self.entries.push(entry);
        Some(index)
    }

    fn vacate(&mut self, index: u32) {
        let place = &mut self.entries[index as usize];
        place.generation = place.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        place.next = self.free;
        self.free = index;
        self.pending -= 1;
    }
}
