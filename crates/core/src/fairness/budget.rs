//! What a channel may have in a tick while input is shed, and for whom.

use super::numbers::{BUDGET_AHEAD, BUDGET_PARTS_SHIFT, KNOWN_PARTS, OVERDRAWN_PARTS};
use super::{Queue, tick_of};
use crate::time::{Instant, TICK_SHIFT};

/// A channel's packets of a tick.
///
/// Packets in profile may overdraw it by one of [`OVERDRAWN_PARTS`]. One of [`KNOWN_PARTS`] of
/// it is kept for known sources, who may come last. The next tick has as much less as was
/// overdrawn. Packets that came before a cut within their tick were allowed, and are no debt. A
/// channel whose packets no queue bounds gets them in parts, as they are due, once they are
/// judged by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    tick: u32,
    packets: u32,
    /// The most that they were in this tick.
    packets_most: u32,
    /// What of them is due by now.
    due: u32,
    /// Admitted in this tick, and what the one before has overdrawn.
    admitted: u32,
    /// Room for packets out of profile.
    others: u32,
    /// Packets in profile that came.
    in_profile: u32,
    /// Packets of known sources that were admitted in places kept for them.
    known: u32,
}

impl Budget {
    /// The channel may have so many packets in the tick of `now`. Call it before each
    /// packet.
    pub fn allow(&mut self, packets: u32, now: Instant) {
        let tick = tick_of(now);
        if self.tick != tick {
            let is_next = tick.wrapping_sub(self.tick) == 1;
            let before = if is_next { *self } else { Self::default() };
            let overdrawn = before.admitted.saturating_sub(before.packets_most);
            *self = Self {
                tick,
                admitted: overdrawn,
                // What those in profile left over in the tick before.
                others: packets.saturating_sub(before.in_profile + overdrawn),
                ..Self::default()
            };
        }
        self.packets = packets;
        self.packets_most = self.packets_most.max(packets);
        self.due = packets;
    }

    /// As [`Budget::allow`], of packets that no queue bounds: they are due in parts of the tick.
    pub fn allow_in_parts(&mut self, packets: u32, now: Instant) {
        self.allow(packets, now);
        self.due = due_by(now, packets);
    }

    /// Admits a packet while any of those due are left, whoever sent it: where sources are not told
    /// apart.
    pub fn take(&mut self) -> bool {
        let is_left = self.admitted < self.due;
        self.admitted += u32::from(is_left);
        is_left
    }

    /// The budget as a queue of packets.
    pub(super) const fn as_queue(&self) -> Queue {
        Queue {
            occupancy: self.admitted,
            low: self.due,
            high: self.due,
            full: self.due.saturating_add(self.packets / OVERDRAWN_PARTS),
            has_room: false,
        }
    }

    pub(super) const fn has_room(&self) -> bool {
        self.admitted < self.packets
    }

    pub(super) const fn has_room_for_others(&self) -> bool {
        self.admitted < self.due && self.others > 0
    }

    pub(super) const fn keeps_place_for_known(&self) -> bool {
        self.known < self.due.div_ceil(KNOWN_PARTS)
    }

    pub(super) fn admit_known(&mut self) {
        self.admitted += 1;
        self.known += 1;
    }

    pub(super) fn on_in_profile(&mut self) {
        self.in_profile += 1;
    }

    /// Before it was due: its place is left for others.
    pub(super) fn on_refused_in_profile(&mut self) {
        self.in_profile -= u32::from(self.due < self.packets);
    }

    pub(super) fn admit(&mut self) {
        self.admitted += 1;
    }

    pub(super) fn admit_other(&mut self) {
        self.admitted += 1;
        self.others -= 1;
    }
}

/// What of a tick's packets is due by now: all in its last part.
fn due_by(now: Instant, packets: u32) -> u32 {
    let parts = 1 << BUDGET_PARTS_SHIFT;
    let part = (now.as_nanos() >> (TICK_SHIFT - BUDGET_PARTS_SHIFT)) % parts;
    let due = (u64::from(packets) * (part + 1)).div_ceil(parts);
    u32::try_from(due + u64::from(BUDGET_AHEAD)).map_or(packets, |due| due.min(packets))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::TICK;

    #[test]
    fn whoever_comes_takes_what_is_left_of_a_tick() {
        let mut budget = Budget::default();
        let mut taken = |(tick, packets): (u32, u32)| {
            let now = Instant::from_nanos(0) + TICK * tick;
            (0..5)
                .filter(|_| {
                    budget.allow(packets, now);
                    budget.take()
                })
                .count()
        };
        // In the second tick the share is cut after it was taken.
        let ticks = [(7, 3), (7, 3), (8, 3), (8, 1), (9, 1)];
        assert_eq!(ticks.map(&mut taken), [3, 0, 3, 0, 1]);
    }

    /// The next hundred ticks had nothing for anybody else.
    #[test]
    fn a_cut_within_a_tick_is_no_debt() {
        let at = |tick: u32| Instant::ZERO + TICK * tick;
        let mut budget = Budget::default();
        budget.allow(1000, at(7));
        (0..1000).for_each(|_| budget.admit());
        budget.allow(8, at(7));
        assert!(!budget.has_room(), "this tick's are used up");
        budget.allow(8, at(8));
        assert_eq!(budget.admitted, 0);
        // What those in profile overdraw of the smaller share still is one.
        (0..10).for_each(|_| budget.admit());
        budget.allow(8, at(9));
        assert_eq!(budget.admitted, 2);
    }

    #[test]
    fn any_number_of_packets_may_be_allowed() {
        let mut budget = Budget::default();
        budget.allow(u32::MAX, Instant::ZERO + TICK);
        assert!(budget.as_queue().full == u32::MAX && budget.keeps_place_for_known());
    }

    /// At the beginning of a tick all of them came, faster than they were worked on.
    #[test]
    fn packets_are_due_in_parts_and_all_of_them_in_the_last() {
        let at = |eighth: u32| Instant::from_nanos(0) + TICK * 7 + TICK / 8 * eighth;
        let due = |packets| [0, 1, 3, 6, 7].map(|eighth| due_by(at(eighth), packets));
        assert_eq!(due(1600), [328, 528, 928, 1528, 1600]);
        assert_eq!(due(128), [128; 5]);
        assert_eq!(due(u32::MAX)[4], u32::MAX);
    }
}
