//! What became of every packet: one place each, and the places add up.

use std::fmt;
use std::ops::Sub;

use serde::Serialize;

/// Packets since the beginning, each in one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// The ring between kernel and capture was full.
    pub ring: u64,
    /// There was no buffer to receive into.
    pub no_buffer: u64,
    /// Not a frame: too long for a buffer, or a ring that made no sense.
    pub invalid: u64,
    /// Mode `take`: their receive queue was added later and has no socket, so the kernel got them.
    pub no_socket: u64,
    /// The filter refused them. In mode `copy` also frames that the kernel merged with others, of
    /// which the filter sees one packet, and those that an XDP program dropped.
    pub filtered: u64,
    /// Their flow was not among those that are sampled.
    pub sampled: u64,
    /// The queue between capture and disk was full.
    pub queue: u64,
    /// They could not be written.
    pub disk: u64,
    /// They are in the file, or on their way to it.
    pub recorded: u64,
}

impl Counts {
    /// All that reached the interface, as far as the capture can know.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.dropped_before() + self.filtered + self.accepted()
    }

    /// The same with `disk` as the number of packets that could not be written, all of
    /// which had counted as recorded.
    #[must_use]
    pub(super) const fn with_disk(self, disk: u64) -> Self {
        let recorded = self.recorded + self.disk - disk;
        Self {
            recorded,
            disk,
            ..self
        }
    }

    /// Dropped before the capture saw them.
    #[must_use]
    pub const fn dropped_before(&self) -> u64 {
        self.ring + self.no_buffer + self.invalid + self.no_socket
    }

    /// Accepted by the filter, of those that the capture saw.
    #[must_use]
    pub const fn accepted(&self) -> u64 {
        self.sampled + self.queue + self.disk + self.recorded
    }

    /// Lost without having been chosen.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.dropped_before() + self.queue + self.disk
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            ring: self.ring - earlier.ring,
            no_buffer: self.no_buffer - earlier.no_buffer,
            invalid: self.invalid - earlier.invalid,
            no_socket: self.no_socket - earlier.no_socket,
            filtered: self.filtered - earlier.filtered,
            sampled: self.sampled - earlier.sampled,
            queue: self.queue - earlier.queue,
            disk: self.disk - earlier.disk,
            recorded: self.recorded - earlier.recorded,
        }
    }
}

/// As it stands in the file: `key=value` words, for people and scripts.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "received={} ring={} no_buffer={} invalid={} no_socket={} filtered={} sampled={} queue={} disk={} recorded={}",
            self.received(),
            self.ring,
            self.no_buffer,
            self.invalid,
            self.no_socket,
            self.filtered,
            self.sampled,
            self.queue,
            self.disk,
            self.recorded
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_add_up() {
        let counts = Counts {
            ring: 1,
            no_buffer: 2,
            invalid: 4,
            filtered: 8,
            sampled: 16,
            queue: 32,
            disk: 64,
            recorded: 128,
            no_socket: 256,
        };
        assert_eq!(counts.received(), 511);
        assert_eq!((counts.accepted(), counts.lost()), (240, 359));
        assert_eq!((counts - counts).received(), 0);
        let full = counts.with_disk(100);
        assert_eq!((full.disk, full.recorded), (100, 92));
        assert!(counts.to_string().starts_with("received=511 ring=1 "));
    }
}
