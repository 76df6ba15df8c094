//! Names for what a poller polls: sources, their two directions, and sets.

use crate::config::ConfigError;

/// What a source has to be served for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Frames that arrived.
    Receive,
    /// Transmit completions: descriptors and buffers to be released, and the
    /// transmitter to be started again.
    Transmit,
}

/// Neither, one or both directions of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Directions {
    /// Receive is meant.
    pub receive: bool,
    /// Transmit is meant.
    pub transmit: bool,
}

impl Directions {
    /// Neither direction.
    pub const NONE: Self = Self {
        receive: false,
        transmit: false,
    };
    /// Receive only.
    pub const RECEIVE: Self = Self {
        receive: true,
        transmit: false,
    };
    /// Transmit only.
    pub const TRANSMIT: Self = Self {
        receive: false,
        transmit: true,
    };
    /// Both directions.
    pub const BOTH: Self = Self {
        receive: true,
        transmit: true,
    };

    /// Neither direction is meant.
    #[must_use]
    pub const fn is_none(self) -> bool {
        !self.receive && !self.transmit
    }
}

/// A source of one poller, as numbered by [`register`](super::Poller::register).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(u8);

impl SourceId {
    /// Sources that one poller can have: a set of them fits one word.
    pub const COUNT_MAX: usize = 64;

    /// The source registered as number `index`, counted from 0.
    ///
    /// # Errors
    ///
    /// `index` is not below [`COUNT_MAX`](Self::COUNT_MAX).
    pub const fn from_index(index: usize) -> Result<Self, ConfigError> {
        if index < Self::COUNT_MAX {
            Ok(Self(index as u8))
        } else {
            Err(ConfigError {
                field: "source",
                given: index as u64,
                allowed: "below 64, the most that one poller has",
            })
        }
    }

    /// Place in the order of registration, from 0.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A set of sources of one poller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SourceSet(u64);

impl SourceSet {
    /// No source.
    pub const EMPTY: Self = Self(0);

    /// This set and `source`.
    #[must_use]
    pub const fn with(self, source: SourceId) -> Self {
        Self(self.0 | 1 << source.0)
    }

    /// `source` belongs to the set.
    #[must_use]
    pub const fn contains(self, source: SourceId) -> bool {
        self.0 >> source.0 & 1 == 1
    }

    /// No source belongs to the set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The sources of the set, in order of registration.
    pub fn iter(self) -> impl Iterator<Item = SourceId> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let lowest = (rest != 0).then(|| rest.trailing_zeros() as u8)?;
            rest &= rest - 1;
            Some(SourceId(lowest))
        })
    }
}

/// Directions of up to 64 sources, as a bit each, in the order of a round:
/// receive of source 0, transmit of source 0, receive of source 1, …
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slots(u128);

/// A place in the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot(u8);

impl Slot {
    pub(super) const LAST: Self = Self(127);

    pub(super) const fn new(source: SourceId, direction: Direction) -> Self {
        Self(source.0 << 1 | direction as u8)
    }

    pub(super) const fn source(self) -> SourceId {
        SourceId(self.0 >> 1)
    }

    pub(super) const fn direction(self) -> Direction {
        if self.0 & 1 == 0 {
            Direction::Receive
        } else {
            Direction::Transmit
        }
    }
}

impl Slots {
    pub(super) const NONE: Self = Self(0);
    const EVERY_RECEIVE: Self = Self(u128::MAX / 3);

    pub(super) const fn one(slot: Slot) -> Self {
        Self(1 << slot.0)
    }

    pub(super) const fn of(source: SourceId, which: Directions) -> Self {
        Self((which.receive as u128 | (which.transmit as u128) << 1) << (source.0 << 1))
    }

    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) const fn receive(self) -> Self {
        self.and(Self::EVERY_RECEIVE)
    }

    pub(super) const fn transmit(self) -> Self {
        self.without(Self::EVERY_RECEIVE)
    }

    pub(super) const fn is_none(self) -> bool {
        self.0 == 0
    }

    pub(super) const fn has(self, slot: Slot) -> bool {
        self.0 >> slot.0 & 1 == 1
    }

    pub(super) const fn at(self, source: SourceId) -> Directions {
        let pair = self.0 >> (source.0 << 1);
        Directions {
            receive: pair & 1 == 1,
            transmit: pair & 2 == 2,
        }
    }

    /// The first slot after `slot` in this round, if there is one left.
    pub(super) const fn after(self, slot: Slot) -> Option<Slot> {
        Self(self.0 & (u128::MAX << 1 << slot.0)).first()
    }

    pub(super) const fn first(self) -> Option<Slot> {
        if self.0 == 0 {
            None
        } else {
            Some(Slot(self.0.trailing_zeros() as u8))
        }
    }

    /// The sources whose receive direction is in this set.
    pub(super) fn receiving_sources(self) -> SourceSet {
        let mut set = SourceSet::EMPTY;
        let mut rest = self.receive();
        while let Some(slot) = rest.first() {
            set = set.with(slot.source());
            rest = rest.without(Self::one(slot));
        }
        set
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    fn source(index: usize) -> SourceId {
        SourceId::from_index(index).unwrap()
    }

    #[test]
    fn sets_hold_the_first_and_the_last_source() {
        let set = SourceSet::EMPTY.with(source(63)).with(source(0));
        assert!(set.contains(source(0)) && set.contains(source(63)));
        assert!(!set.contains(source(1)) && !set.is_empty());
        assert_eq!(set.iter().map(SourceId::index).collect::<Vec<_>>(), [0, 63]);
        assert!(SourceId::from_index(64).is_err());
    }

    #[test]
    fn a_round_goes_source_by_source_and_receive_first() {
        let all =
            Slots::of(source(0), Directions::BOTH).or(Slots::of(source(63), Directions::BOTH));
        let mut at = all.first().unwrap();
        let mut order = Vec::new();
        loop {
            order.push((at.source().index(), at.direction()));
            let Some(next) = all.after(at) else { break };
            at = next;
        }
        let (receive, transmit) = (Direction::Receive, Direction::Transmit);
        assert_eq!(
            order,
            [(0, receive), (0, transmit), (63, receive), (63, transmit)]
        );
        assert_eq!(
            all.receiving_sources(),
            SourceSet::EMPTY.with(source(0)).with(source(63))
        );
        assert_eq!(all.transmit().at(source(63)), Directions::TRANSMIT);
    }
}
