//! Fragments to datagrams, in a bounded amount of memory taken beforehand.
//!
//! * At most [`ReassemblyConfig::datagrams`] at a time; a further one takes the
//!   place of the oldest. So a flood of fragments costs what it costs to store
//!   them and no memory; it does cost honest fragmented datagrams.
//! * A fragment that overlaps another ends its datagram (RFC 5722, and RFC 8200
//!   section 4.5); one that is wholly there already is ignored, since networks
//!   duplicate. Both also for IPv4.
//! * Every fragment ends in one outcome: see [`Reassembler::incomplete`].
//!
//! smoltcp's `Assembler` keeps the ranges (up to 32 holes; a datagram with more
//! ends). smoltcp's own reassembly is private to its interface.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use plimsoll_core::demux::FRAGMENT_LIFETIME_S;
use plimsoll_core::time::Instant;
use smoltcp::storage::Assembler;
use smoltcp::wire::IpProtocol;

use super::packet::{Packet, Part};
use crate::outcome::Outcome;

/// The longest payload of an IP packet, in bytes.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// Bounds of reassembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReassemblyConfig {
    /// Datagrams that may be incomplete at a time, and as many again that the
    /// application may hold. Each takes 64 KiB. At least 1. Default 16.
    pub datagrams: usize,
    /// How long a datagram may be incomplete. Default: [`FRAGMENT_LIFETIME_S`]
    /// (RFC 8200 says 60 s).
    pub lifetime: Duration,
}

impl Default for ReassemblyConfig {
    fn default() -> Self {
        Self {
            datagrams: 16,
            lifetime: Duration::from_secs(FRAGMENT_LIFETIME_S),
        }
    }
}

type Buffers = Arc<ArrayQueue<Box<[u8]>>>;

/// A complete datagram. Dropping it gives its memory back.
pub(crate) struct Reassembled {
    /// `None` only while being dropped.
    buffer: Option<Box<[u8]>>,
    length: usize,
    home: Buffers,
}

impl fmt::Debug for Reassembled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reassembled")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl Reassembled {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer
            .as_deref()
            .map_or(&[], |buffer| &buffer[..self.length])
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer
            .as_deref_mut()
            .map_or(&mut [], |buffer| &mut buffer[..self.length])
    }

    pub(crate) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

impl Drop for Reassembled {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            // There is a place for every buffer.
            let _ = self.home.push(buffer);
        }
    }
}

/// What became of a fragment.
#[derive(Debug)]
pub(crate) enum Added {
    /// It was the last; the others are counted as reassembled.
    Complete(Reassembled),
    Kept,
    Ended(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    source: IpAddr,
    destination: IpAddr,
    protocol: IpProtocol,
    id: u32,
}

struct Incomplete {
    key: Key,
    since: Instant,
    buffer: Box<[u8]>,
    ranges: Assembler,
    /// Known once the last fragment is there.
    length: Option<usize>,
    fragments: u64,
}

/// The datagrams that are incomplete.
pub(crate) struct Reassembler {
    config: ReassemblyConfig,
    incomplete: Vec<Incomplete>,
    buffers: Buffers,
    /// Fragments ended since the caller last asked.
    lost: u64,
    reassembled: u64,
}

impl fmt::Debug for Reassembler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reassembler")
            .field("incomplete", &self.incomplete.len())
            .finish_non_exhaustive()
    }
}

impl Reassembler {
    pub(crate) fn new(config: ReassemblyConfig) -> Self {
        let datagrams = config.datagrams.max(1);
        let buffers = ArrayQueue::new(2 * datagrams);
        for _ in 0..2 * datagrams {
            let _ = buffers.push(vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice());
        }
        Self {
            config: ReassemblyConfig {
                datagrams,
                ..config
            },
            incomplete: Vec::with_capacity(datagrams),
            buffers: Arc::new(buffers),
            lost: 0,
            reassembled: 0,
        }
    }

    /// Fragments that wait now.
    pub(crate) fn incomplete(&self) -> u64 {
        self.incomplete
            .iter()
            .map(|datagram| datagram.fragments)
            .sum()
    }

    /// Fragments that ended in other calls than the one that added them, as
    /// (reassembled, lost), since this was last asked.
    pub(crate) fn take_ended(&mut self) -> (u64, u64) {
        (
            std::mem::take(&mut self.reassembled),
            std::mem::take(&mut self.lost),
        )
    }

    /// Adds a fragment whose payload is `bytes`.
    pub(crate) fn add(&mut self, packet: &Packet, bytes: &[u8], now: Instant) -> Added {
        self.expire(now);
        let Part::Fragment { id, offset, last } = packet.part else {
            return Added::Ended(Outcome::Malformed);
        };
        let end = offset + bytes.len();
        // All but the last come in units of 8 bytes.
        if bytes.is_empty() || end > DATAGRAM_BYTES_MAX || (!last && !bytes.len().is_multiple_of(8))
        {
            return Added::Ended(Outcome::Malformed);
        }
        let key = Key {
            source: packet.source,
            destination: packet.destination,
            protocol: packet.protocol,
            id,
        };
        let Some(place) = self.find_or_begin(key, now) else {
            return Added::Ended(Outcome::FragmentLost);
        };
        let datagram = &mut self.incomplete[place];
        match datagram.fit(offset..end, last) {
            Fit::There => return Added::Ended(Outcome::FragmentOverlap),
            Fit::Overlaps => {
                self.forget(place);
                return Added::Ended(Outcome::FragmentOverlap);
            }
            Fit::New => {}
        }
        datagram.buffer[offset..end].copy_from_slice(bytes);
        datagram.fragments += 1;
        if last {
            datagram.length = Some(end);
        }
        if datagram.length != Some(datagram.ranges.peek_front()) {
            return Added::Kept;
        }
        let datagram = self.incomplete.swap_remove(place);
        self.reassembled += datagram.fragments - 1;
        Added::Complete(Reassembled {
            length: datagram.length.unwrap_or(0),
            buffer: Some(datagram.buffer),
            home: Arc::clone(&self.buffers),
        })
    }

    fn find_or_begin(&mut self, key: Key, now: Instant) -> Option<usize> {
        let known = self.incomplete.iter().position(|one| one.key == key);
        if known.is_some() {
            return known;
        }
        if self.incomplete.len() == self.config.datagrams {
            let oldest = (0..self.incomplete.len()).min_by_key(|&one| self.incomplete[one].since);
            self.forget(oldest?);
        }
        let buffer = self.buffers.pop()?;
        self.incomplete.push(Incomplete {
            key,
            since: now,
            buffer,
            ranges: Assembler::new(),
            length: None,
            fragments: 0,
        });
        Some(self.incomplete.len() - 1)
    }

    fn forget(&mut self, place: usize) {
        let datagram = self.incomplete.swap_remove(place);
        self.lost += datagram.fragments;
        let _ = self.buffers.push(datagram.buffer);
    }

    /// Ends datagrams that are too old.
    pub(crate) fn expire(&mut self, now: Instant) {
        for place in (0..self.incomplete.len()).rev() {
            let age = now.saturating_since(self.incomplete[place].since);
            if age > self.config.lifetime {
                self.forget(place);
            }
        }
    }
}

enum Fit {
    New,
    There,
    Overlaps,
}

impl Incomplete {
    /// Enters the range, if it fits the others.
    fn fit(&mut self, range: std::ops::Range<usize>, last: bool) -> Fit {
        let mut contained = false;
        for (start, end) in self.ranges.iter_data() {
            if start <= range.start && range.end <= end {
                contained = true;
            } else if range.start < end && start < range.end {
                return Fit::Overlaps;
            }
            // Data behind the end.
            if last && end > range.end {
                return Fit::Overlaps;
            }
        }
        if self
            .length
            .is_some_and(|length| range.end > length || last && range.end != length)
        {
            return Fit::Overlaps;
        }
        if contained {
            return Fit::There;
        }
        match self.ranges.add(range.start, range.len()) {
            Ok(()) => Fit::New,
            Err(_) => Fit::Overlaps,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn fragment(id: u32, offset: usize, last: bool) -> Packet {
        Packet {
            via: [2, 0, 0, 0, 0, 1],
            source: Ipv4Addr::new(10, 0, 0, 1).into(),
            destination: Ipv4Addr::new(10, 0, 0, 2).into(),
            protocol: IpProtocol::Udp,
            part: Part::Fragment { id, offset, last },
            hop_limit: 64,
            network: 14,
            payload: 34..34,
        }
    }

    const NOW: Instant = Instant::ZERO;

    fn small() -> Reassembler {
        Reassembler::new(ReassemblyConfig {
            datagrams: 2,
            ..ReassemblyConfig::default()
        })
    }

    proptest! {
        /// In any order, with any of them twice, the datagram comes out once.
        #[test]
        fn a_datagram_comes_out_whole(
            length in 9_usize..20_000,
            order in proptest::collection::vec(any::<prop::sample::Index>(), 0..40),
        ) {
            let content: Vec<u8> = (0..length).map(|k| k as u8).collect();
            let parts: Vec<_> = content.chunks(1480).enumerate().collect();
            let mut reassembler = Reassembler::new(ReassemblyConfig::default());
            let mut whole = None;
            let mut ended = 0;
            let mut added = 0;
            let shuffled = order.iter().map(|index| index.index(parts.len()));
            for part in shuffled.chain(0..parts.len()) {
                if whole.is_some() {
                    break;
                }
                let (number, bytes) = parts[part];
                let last = number == parts.len() - 1;
                added += 1;
                match reassembler.add(&fragment(7, number * 1480, last), bytes, NOW) {
                    Added::Complete(done) => whole = Some(done.bytes().to_vec()),
                    Added::Kept => {}
                    Added::Ended(outcome) => {
                        prop_assert_eq!(outcome, Outcome::FragmentOverlap);
                        ended += 1;
                    }
                }
            }
            prop_assert_eq!(whole, Some(content));
            // Every fragment has one outcome: the last is delivered.
            let (reassembled, lost) = reassembler.take_ended();
            prop_assert_eq!(lost, 0);
            prop_assert_eq!(reassembled + ended + 1, added);
        }
    }

    #[test]
    fn an_overlap_ends_the_datagram() {
        let mut reassembler = small();
        reassembler.add(&fragment(1, 0, false), &[1; 16], NOW);
        let overlap = reassembler.add(&fragment(1, 8, false), &[2; 16], NOW);
        assert!(matches!(overlap, Added::Ended(Outcome::FragmentOverlap)));
        assert_eq!(reassembler.take_ended(), (0, 1));
        assert_eq!(reassembler.incomplete(), 0);
    }

    #[test]
    fn two_different_ends_are_a_contradiction() {
        let mut reassembler = small();
        reassembler.add(&fragment(1, 16, true), &[1; 8], NOW);
        let other = reassembler.add(&fragment(1, 32, true), &[1; 8], NOW);
        assert!(matches!(other, Added::Ended(Outcome::FragmentOverlap)));
        assert_eq!(reassembler.take_ended(), (0, 1));
    }

    #[test]
    fn the_oldest_makes_room_and_time_runs_out() {
        let mut reassembler = small();
        for (id, second) in [(1, 0), (2, 1), (3, 2)] {
            let now = NOW + Duration::from_secs(second);
            reassembler.add(&fragment(id, 0, false), &[0; 8], now);
        }
        assert_eq!(
            (reassembler.incomplete(), reassembler.take_ended()),
            (2, (0, 1))
        );
        reassembler.expire(NOW + Duration::from_secs(32));
        assert_eq!(
            (reassembler.incomplete(), reassembler.take_ended()),
            (1, (0, 1))
        );
    }

    #[test]
    fn impossible_fragments_begin_nothing() {
        let mut reassembler = small();
        for (packet, bytes) in [
            (fragment(1, 65_528, true), &[0; 8][..]),
            (fragment(1, 0, false), &[0; 7]),
            (fragment(1, 0, true), &[]),
        ] {
            let added = reassembler.add(&packet, bytes, NOW);
            assert!(matches!(added, Added::Ended(Outcome::Malformed)));
        }
        assert_eq!(reassembler.incomplete(), 0);
    }
}
