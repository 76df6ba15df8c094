//! When what happens next: one pending time per thing that can happen.
//!
//! **Intuition.** A modelled host has few things that can happen next: a CPU ends
//! its step, a source sends, a timer expires. Each is a slot with one time, and a
//! tournament over the slots names the earliest. Setting a time replays one path
//! of the tournament (its depth is the logarithm of the number of slots) and
//! nothing is ever allocated, queued twice, or left behind as a cancelled event.
//!
//! **Order.** Equal times go to the lower slot, so that a run depends on nothing
//! but its seed.
//!
//! **Limit.** Something that can be pending several times (packets on a wire)
//! needs a queue of its own whose head is the slot.

/// Later than everything: the slot is empty.
pub(crate) const NEVER: u64 = u64::MAX;

/// Pending times by slot.
#[derive(Clone, Debug)]
pub(crate) struct Agenda {
    /// The winner of each match: the final is at 1, the slots themselves are the last half.
    winners: Box<[Entry]>,
}

/// What is pending in a slot.
#[derive(Clone, Copy, Debug)]
struct Entry {
    time: u64,
    slot: u32,
}

impl Agenda {
    /// All of `slots` slots empty.
    pub(crate) fn new(slots: usize) -> Self {
        let leaves = slots.next_power_of_two().max(2);
        let mut winners = vec![
            Entry {
                time: NEVER,
                slot: 0
            };
            2 * leaves
        ];
        for (slot, entry) in (0..).zip(&mut winners[leaves..]) {
            entry.slot = slot;
        }
        for index in (1..leaves).rev() {
            winners[index] = winners[2 * index];
        }
        Self {
            winners: winners.into(),
        }
    }

    fn leaves(&self) -> usize {
        self.winners.len() / 2
    }

    /// The earliest time and its slot; [`NEVER`] if all are empty.
    #[inline]
    pub(crate) fn first(&self) -> (u64, usize) {
        let Entry { time, slot } = self.winners[1];
        (time, slot as usize)
    }

    /// What is pending in `slot`; nothing, if it is beyond all that were ever set.
    #[inline]
    pub(crate) fn at(&self, slot: usize) -> u64 {
        let entry = self.winners.get(self.leaves() + slot);
        entry.map_or(NEVER, |entry| entry.time)
    }

    /// Makes room for `slots` slots. What is pending stays.
    #[inline]
    pub(crate) fn make_room(&mut self, slots: usize) {
        if slots > self.leaves() {
            let mut larger = Self::new(slots);
            for (slot, entry) in self.winners[self.leaves()..].iter().enumerate() {
                larger.set(slot, entry.time);
            }
            *self = larger;
        }
    }

    /// Replaces what was pending in `slot`. The winner is carried up the tournament, so
    /// that each match needs its other player only.
    #[inline]
    pub(crate) fn set(&mut self, slot: usize, time: u64) {
        let mut index = self.leaves() + slot;
        let mut winner = Entry {
            time,
            slot: slot as u32,
        };
        self.winners[index] = winner;
        while index > 1 {
            let other = self.winners[index ^ 1];
            // Of equals the left one: its slots are lower.
            let other_is_left = index & 1 == 1;
            let beaten = other.time < winner.time || (other_is_left && other.time == winner.time);
            if beaten {
                winner = other;
            }
            index /= 2;
            self.winners[index] = winner;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pending_stays_when_room_is_made() {
        let mut agenda = Agenda::new(3);
        agenda.set(2, 70);
        assert_eq!(agenda.at(40), NEVER);
        agenda.make_room(41);
        assert_eq!(agenda.first(), (70, 2));
        agenda.set(40, 60);
        assert_eq!((agenda.first(), agenda.at(40)), ((60, 40), 60));
    }

    #[test]
    fn the_earliest_comes_first_and_ties_go_to_the_lower_slot() {
        let mut agenda = Agenda::new(5);
        assert_eq!(agenda.first().0, NEVER);
        agenda.set(4, 30);
        agenda.set(2, 20);
        agenda.set(1, 20);
        assert_eq!(agenda.first(), (20, 1));
        agenda.set(1, NEVER);
        assert_eq!(agenda.first(), (20, 2));
        agenda.set(2, 40);
        assert_eq!(agenda.first(), (30, 4));
        assert_eq!(agenda.at(2), 40);
    }

    #[test]
    fn agrees_with_a_scan_over_random_settings() {
        let mut rng = fastrand::Rng::with_seed(7);
        for slots in [1, 2, 3, 17, 64] {
            let mut agenda = Agenda::new(slots);
            let mut plain = vec![NEVER; slots];
            for _ in 0..2_000 {
                let slot = rng.usize(..slots);
                let time = if rng.bool() { rng.u64(..50) } else { NEVER };
                agenda.set(slot, time);
                plain[slot] = time;
                let earliest = plain.iter().copied().min().unwrap_or(NEVER);
                let first = plain.iter().position(|&time| time == earliest);
                assert_eq!(agenda.first().0, earliest);
                if earliest != NEVER {
                    assert_eq!(Some(agenda.first().1), first);
                }
            }
        }
    }
}
