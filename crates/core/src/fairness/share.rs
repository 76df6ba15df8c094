//! A channel's share: what each network gets, and how it follows the consumer.

use super::level::{Node, is_over, moved};
use super::numbers::{
    BACKLOG_BURST_TICKS, CALM_TICKS, CHANNEL_EPOCH_PACKETS, CHANNEL_UNWANTED_PARTS,
    EMPTY_CALM_TICKS, KNOWN_PARTS, LEVEL_MAX, LEVEL_MIN, PACKET, PACKET_SHIFT, PART, STALE_TICKS,
    STRANGERS_LOOK, STRANGERS_MAX, STRANGERS_MIN, STRANGERS_TICKS, TURNS_EPOCH_PACKETS,
};
use super::table::Owner;
use super::{Queue, Source};

/// What is remembered of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    level: u32,
    /// Credit that the consumer's packets are worth, per tick.
    taken: u32,
    tick: u32,
    began: u32,
    /// Admitted in this epoch, …
    admitted: u32,
    /// … and in profile, whatever became of it.
    used: u32,
    /// When there was last no room for everybody.
    pressed: Option<u32>,
    discarding: bool,
    /// When a packet last found a listener's server behind, …
    behind_at: u16,
    /// … and when one first did.
    behind_since: u16,
    /// All known sources together.
    known: Node,
    /// The first source of this tick that was found waiting for credit.
    loudest: Option<Source>,
    /// Strangers, less all others.
    strangers: u32,
    /// Since the last one that was looked at.
    strangers_passed_over: u32,
    /// The last source that was looked at has turns.
    has_turns: bool,
    /// Packets of sources that ask for far less than their share.
    silent: u64,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            level: PACKET,
            taken: 0,
            tick: 0,
            began: 0,
            admitted: 0,
            used: 0,
            pressed: None,
            discarding: false,
            behind_at: 0,
            behind_since: 0,
            known: Node::default(),
            loudest: None,
            strangers: 0,
            strangers_passed_over: 0,
            has_turns: false,
            silent: 0,
        }
    }
}

impl Share {
    /// Credit per tick of each network: 65,536 are a packet.
    #[must_use]
    pub const fn level(&self) -> u32 {
        self.level
    }

    /// Credit per tick of all known sources together: one of [`KNOWN_PARTS`] of what the
    /// consumer takes, and never less than one network has, nor more than [`LEVEL_MAX`].
    #[must_use]
    pub fn reserve(&self) -> u32 {
        self.level.max((self.taken / KNOWN_PARTS).min(LEVEL_MAX))
    }

    /// Whether packets are judged by their source: there was no room a moment ago.
    #[must_use]
    pub const fn is_pressed(&self) -> bool {
        self.pressed.is_some()
    }

    /// Packets so far of sources that ask for far less than their share. Whoever lets a
    /// receive ring overflow takes them from these.
    #[must_use]
    pub const fn silent(&self) -> u64 {
        self.silent
    }

    /// Takes notice of the queue; returns whether it has room for packets in profile only.
    pub(super) fn on_occupancy(&mut self, queue: &Queue, tick: u32) -> bool {
        if queue.occupancy == 0 {
            self.end_if_calm(tick, EMPTY_CALM_TICKS);
        }
        let limit = if self.discarding {
            queue.low
        } else {
            queue.high
        };
        let is_over = queue.occupancy >= limit;
        let takes_all = queue.occupancy >= queue.high && queue.has_room && !self.is_pressed();
        self.discarding = is_over && !takes_all;
        self.on_room(!self.discarding, tick);
        self.discarding
    }

    /// Takes notice of whether there is room for everybody; returns whether packets are
    /// judged by their source.
    pub(super) fn on_room(&mut self, has_room: bool, tick: u32) -> bool {
        if !has_room {
            self.on_discarded(tick);
        } else {
            self.end_if_calm(tick, CALM_TICKS);
        }
        self.is_pressed()
    }

    /// There was room for everybody for so long.
    fn end_if_calm(&mut self, tick: u32, ticks: u32) {
        self.pressed
            .take_if(|last| tick.wrapping_sub(*last) >= ticks);
    }

    /// A packet finds a listener's server behind; returns whether it has been for longer
    /// than a burst.
    pub(super) fn on_behind(&mut self, tick: u32) -> bool {
        let tick = tick as u16;
        if tick.wrapping_sub(self.behind_at) >= BACKLOG_BURST_TICKS {
            self.behind_since = tick;
        }
        self.behind_at = tick;
        tick.wrapping_sub(self.behind_since) >= BACKLOG_BURST_TICKS
    }

    /// Not everybody finds room.
    pub(super) fn on_discarded(&mut self, tick: u32) {
        self.pressed = Some(tick);
    }

    /// A packet in profile came.
    pub(super) fn on_used(&mut self) {
        self.used += 1;
    }

    /// A packet of a source that asks for far less than its share came.
    pub(super) fn on_silent(&mut self) {
        self.silent += 1;
    }

    /// A packet was admitted.
    pub(super) fn on_admitted(&mut self) {
        self.admitted += 1;
    }

    /// Once per tick: ends the epoch, if it is long enough.
    pub(super) fn on_tick(&mut self, tick: u32) {
        if self.tick == tick {
            return;
        }
        self.tick = tick;
        self.loudest = None;
        let ticks = tick.wrapping_sub(self.began);
        let enough = if self.has_turns {
            TURNS_EPOCH_PACKETS
        } else {
            CHANNEL_EPOCH_PACKETS
        };
        if !is_over(ticks, self.level, self.admitted >= enough) {
            return;
        }
        if ticks < STALE_TICKS {
            self.follow(ticks);
        }
        self.began = tick;
        self.admitted = 0;
        self.used = 0;
    }

    /// Whether this source has had its share in this tick, as is known already.
    pub(super) fn is_loudest(&self, source: Source) -> bool {
        self.loudest == Some(source)
    }

    /// A source waits for credit, at least until the tick ends.
    pub(super) fn note_loudest(&mut self, source: Source) {
        self.loudest.get_or_insert(source);
    }

    /// Strangers, less all others.
    #[cfg(test)]
    pub(super) const fn strangers(&self) -> u32 {
        self.strangers
    }

    /// A packet's source was looked at.
    pub(super) fn note_stranger(&mut self, is_stranger: bool) {
        self.strangers = if is_stranger {
            (self.strangers + 1).min(STRANGERS_MAX)
        } else {
            self.strangers.saturating_sub(1)
        };
    }

    /// A packet's source was looked at, and has turns or credit.
    pub(super) fn note_turn(&mut self, has_turns: bool) {
        self.has_turns = has_turns;
    }

    /// Whether the last source that was looked at has turns.
    pub(super) const fn has_turns(&self) -> bool {
        self.has_turns
    }

    /// Whether a packet is not looked at; the hosts of its network have this at most.
    pub(super) fn passes_over(&mut self, bound: Option<u32>) -> bool {
        let is_low = bound.is_some_and(|level| level < PACKET / STRANGERS_TICKS);
        if self.strangers < STRANGERS_MIN || !is_low {
            return false;
        }
        self.strangers_passed_over = (self.strangers_passed_over + 1) % STRANGERS_LOOK;
        self.strangers_passed_over != 0
    }

    /// All known sources together, up to date; nobody's until the first of them came.
    pub(super) fn known(&mut self, tick: u32) -> (&mut Node, Owner) {
        let level = self.reserve();
        let owner = if self.known.level() == 0 {
            Owner::Nobody
        } else {
            Owner::Same
        };
        self.known.refresh(level, tick, owner);
        (&mut self.known, owner)
    }

    fn follow(&mut self, ticks: u32) {
        let admitted = u64::from(self.admitted);
        if admitted == 0 {
            // The consumer takes nothing: nothing is known of its rate.
            return;
        }
        let taken = (admitted << PACKET_SHIFT) / u64::from(ticks);
        self.taken = taken.min(u32::MAX.into()) as u32;
        let wanted = admitted * u64::from(PART - PART / CHANNEL_UNWANTED_PARTS);
        let factor = wanted / u64::from(self.used.max(1));
        let has_discarded = self
            .pressed
            .is_some_and(|last| last.wrapping_sub(self.began) < STALE_TICKS);
        // Without a discard nobody has too large a share.
        let factor = if has_discarded {
            factor
        } else {
            factor.max(PART.into())
        };
        let level = moved(self.level, factor);
        self.level = level.clamp(LEVEL_MIN.into(), LEVEL_MAX.into()) as u32;
    }
}
