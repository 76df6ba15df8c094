//! What became of the items of a channel: exactly one outcome each.

use core::ops::{Add, Index};

/// How an item that was offered to a channel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The consumer took it.
    Delivered,
    /// Discarded on arrival: the queue was above its watermark.
    Full,
    /// Discarded on arrival: the channel's buffers were all in use, queued or
    /// in the hands of the receiver.
    NoBuffer,
    /// Discarded by the delay target after it had queued too long.
    Late,
    /// Discarded because the consumer is gone.
    Closed,
}

impl Outcome {
    /// Every outcome, in the order of [`Counts`].
    pub const ALL: [Self; 5] = [
        Self::Delivered,
        Self::Full,
        Self::NoBuffer,
        Self::Late,
        Self::Closed,
    ];

    /// The word used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Full => "full",
            Self::NoBuffer => "no_buffer",
            Self::Late => "late",
            Self::Closed => "closed",
        }
    }
}

/// Why an item was discarded on arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Discard {
    /// See [`Outcome::Full`].
    Full,
    /// See [`Outcome::NoBuffer`].
    NoBuffer,
    /// See [`Outcome::Closed`].
    Closed,
}

/// The items of one or more channels, by outcome.
///
/// `offered() == queued + the sum over all outcomes`, always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Items that are still in the queue.
    pub queued: u64,
    by_outcome: [u64; Outcome::ALL.len()],
}

impl Counts {
    pub(super) const fn new(queued: u64, by_outcome: [u64; Outcome::ALL.len()]) -> Self {
        Self { queued, by_outcome }
    }

    /// Items ever offered.
    #[must_use]
    pub fn offered(&self) -> u64 {
        self.queued + self.by_outcome.iter().sum::<u64>()
    }

    /// Items discarded, whatever the cause.
    #[must_use]
    pub fn discarded(&self) -> u64 {
        self.offered() - self.queued - self[Outcome::Delivered]
    }
}

impl Index<Outcome> for Counts {
    type Output = u64;

    fn index(&self, outcome: Outcome) -> &u64 {
        &self.by_outcome[outcome as usize]
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self.queued += other.queued;
        for (mine, theirs) in self.by_outcome.iter_mut().zip(other.by_outcome) {
            *mine += theirs;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_own_place_and_name() {
        for (place, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, place);
            let same_name = Outcome::ALL.iter().filter(|o| o.name() == outcome.name());
            assert_eq!(same_name.count(), 1);
        }
    }

    #[test]
    fn counts_add_up() {
        let one = Counts::new(1, [2, 3, 4, 5, 6]);
        assert_eq!(one.offered(), 21);
        assert_eq!(one.discarded(), 18);
        assert_eq!((one + one)[Outcome::Closed], 12);
    }
}
