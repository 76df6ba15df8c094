//! Who pays for a channel that several processes read, and at what priority its
//! packets are processed: the foremost of them (LRP footnotes 5 and 8; LRP-14,
//! LRP-37). Also whether an arriving packet may interrupt the running process
//! (section 3; LRP-16).
//!
//! The foremost participant pays even for packets that others will read too: a
//! multicast packet is processed once, by whoever runs first.

use alloc::vec::Vec;

use super::ConsumerId;
use crate::config::{ConfigError, Field};

/// Scheduling priority; greater runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub u32);

/// Whether a packet for a receiver of priority `receiver` interrupts what runs at
/// `running` (`None`: the CPU is idle). An equal priority waits.
#[must_use]
pub fn interrupts(receiver: Priority, running: Option<Priority>) -> bool {
    running.is_none_or(|running| receiver > running)
}

/// The processes that share a socket, or have joined a multicast group.
#[derive(Clone, Debug)]
pub struct Participants {
    /// In descending priority; among equals the longest there is first.
    members: Vec<(ConsumerId, Priority)>,
    participants_max: usize,
}

impl Participants {
    /// Room for `participants_max`.
    #[must_use]
    pub fn new(participants_max: usize) -> Self {
        Self {
            members: Vec::with_capacity(participants_max),
            participants_max,
        }
    }

    /// Adds `consumer`, or changes its priority (the process scheduler does so
    /// whenever it decays usage).
    ///
    /// # Errors
    ///
    /// It is one too many.
    pub fn set(&mut self, consumer: ConsumerId, priority: Priority) -> Result<(), ConfigError> {
        self.leave(consumer);
        Field("participants", self.members.len() + 1)
            .must_be_in(..=self.participants_max, "at most `participants_max`")?;
        let place = self
            .members
            .partition_point(|&(_, other)| other >= priority);
        self.members.insert(place, (consumer, priority));
        Ok(())
    }

    /// Removes `consumer`.
    pub fn leave(&mut self, consumer: ConsumerId) {
        self.members.retain(|&(member, _)| member != consumer);
    }

    /// Who does and pays for the channel's work, and at what priority.
    #[must_use]
    pub fn foremost(&self) -> Option<(ConsumerId, Priority)> {
        self.members.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_channel_has_the_highest_priority_of_its_participants() {
        let mut group = Participants::new(2);
        let [a, b, c] = [0, 1, 2].map(ConsumerId);
        assert_eq!(group.foremost(), None);
        group.set(a, Priority(5)).unwrap();
        group.set(b, Priority(7)).unwrap();
        assert_eq!(group.foremost(), Some((b, Priority(7))));
        assert_eq!(group.set(c, Priority(9)).unwrap_err().field, "participants");
        group.set(b, Priority(5)).unwrap();
        assert_eq!(
            group.foremost(),
            Some((a, Priority(5))),
            "the longest there"
        );
        group.leave(a);
        assert_eq!(group.foremost(), Some((b, Priority(5))));
    }

    #[test]
    fn only_a_higher_priority_interrupts() {
        assert!(interrupts(Priority(6), Some(Priority(5))));
        assert!(!interrupts(Priority(5), Some(Priority(5))));
        assert!(interrupts(Priority(0), None));
    }
}
