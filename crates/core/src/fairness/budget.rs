//! What a channel may have in a tick while input is shed, and for whom.

use super::numbers::{KNOWN_PARTS, OVERDRAWN_PARTS};
use super::{Queue, tick_of};
use crate::time::Instant;

/// A channel's packets of a tick.
///
/// Packets in profile may overdraw it by one of [`OVERDRAWN_PARTS`]. One of [`KNOWN_PARTS`] of
/// it is kept for known sources, who may come last. The next tick has as much less as was
/// overdrawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    tick: u32,
    packets: u32,
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
            let overdrawn = before.admitted.saturating_sub(before.packets);
            *self = Self {
                tick,
                admitted: overdrawn,
                // What those in profile left over in the tick before.
                others: packets.saturating_sub(before.in_profile + overdrawn),
                ..Self::default()
            };
        }
        self.packets = packets;
    }

    /// The budget as a queue of packets.
    pub(super) const fn as_queue(&self) -> Queue {
        Queue {
            occupancy: self.admitted,
            low: self.packets,
            high: self.packets,
            full: self.packets + self.packets / OVERDRAWN_PARTS,
            has_room: false,
        }
    }

    pub(super) const fn has_room(&self) -> bool {
        self.admitted < self.packets
    }

    pub(super) const fn has_room_for_others(&self) -> bool {
        self.has_room() && self.others > 0
    }

    pub(super) const fn keeps_place_for_known(&self) -> bool {
        self.known < self.packets.div_ceil(KNOWN_PARTS)
    }

    pub(super) fn admit_known(&mut self) {
        self.admitted += 1;
        self.known += 1;
    }

    pub(super) fn on_in_profile(&mut self) {
        self.in_profile += 1;
    }

    pub(super) fn admit(&mut self) {
        self.admitted += 1;
    }

    pub(super) fn admit_other(&mut self) {
        self.admitted += 1;
        self.others -= 1;
    }
}
