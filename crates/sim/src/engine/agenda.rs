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
    /// By slot; a power of two long.
    times: Box<[u64]>,
    /// Winner of each match; the final is at 1, the first round at the end.
    winners: Box<[u16]>,
}

impl Agenda {
    /// All of `slots` slots empty; at most 32,768.
    pub(crate) fn new(slots: usize) -> Self {
        let leaves = slots.next_power_of_two().max(2);
        assert!(leaves <= 1 << 15, "slots are numbered in 16 bits");
        let mut agenda = Self {
            times: vec![NEVER; leaves].into(),
            winners: vec![0; leaves].into(),
        };
        for index in (1..leaves).rev() {
            agenda.replay(index);
        }
        agenda
    }

    /// The earliest time and its slot; [`NEVER`] if all are empty.
    #[inline]
    pub(crate) fn first(&self) -> (u64, usize) {
        let slot = usize::from(self.winners[1]);
        (self.times[slot], slot)
    }

    /// What is pending in `slot`; nothing, if it is beyond all that were ever set.
    #[inline]
    pub(crate) fn at(&self, slot: usize) -> u64 {
        self.times.get(slot).copied().unwrap_or(NEVER)
    }

    /// Makes room for `slots` slots. What is pending stays.
    #[inline]
    pub(crate) fn make_room(&mut self, slots: usize) {
        if slots > self.times.len() {
            let mut larger = Self::new(slots);
            for (slot, &time) in self.times.iter().enumerate() {
                larger.set(slot, time);
            }
            *self = larger;
        }
    }

    /// Replaces what was pending in `slot`.
    #[inline]
    pub(crate) fn set(&mut self, slot: usize, time: u64) {
        self.times[slot] = time;
        let mut index = (self.times.len() + slot) / 2;
        while index > 0 {
            self.replay(index);
            index /= 2;
        }
    }

    #[inline]
    fn replay(&mut self, index: usize) {
        let (left, right) = (self.player(2 * index), self.player(2 * index + 1));
        let earlier = self.times[usize::from(right)] < self.times[usize::from(left)];
        self.winners[index] = if earlier { right } else { left };
    }

    #[inline]
    fn player(&self, index: usize) -> u16 {
        let leaves = self.times.len();
        if index >= leaves {
            (index - leaves) as u16
        } else {
            self.winners[index]
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
