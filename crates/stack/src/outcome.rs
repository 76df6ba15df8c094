//! What became of every frame: exactly one counted outcome each.
//!
//! Whoever ends a frame's way counts it, in a tally of its own, so that counting
//! shares no cache line: the receive path, the proxies, and every socket ([`crate::account`]). Frames
//! that end in a channel are counted there (`core::channel`) and added when
//! asked. Received frames = the sum over all outcomes + those that are queued
//! or wait for the rest of their datagram.

use std::ops::{AddAssign, Index};
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_core::channel;

/// How a frame ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Given to the application, or to its TCP connection.
    Delivered,
    /// Part of a datagram that was given to the application as a whole; its
    /// last fragment is [`Delivered`](Self::Delivered).
    Reassembled,
    /// ARP, neighbour discovery, ICMP or a query about groups, dealt with by its proxy; or a segment
    /// of no connection, dealt with by the TCP thread.
    Control,
    /// Discarded at its channel, which was full.
    Full,
    /// Discarded at its channel, which had all its buffers in use.
    NoBuffer,
    /// Discarded by a channel's delay target.
    Late,
    /// In a channel whose socket was closed.
    Closed,
    /// The shared IP queue was full (receive path `eager` only).
    IpQueueFull,
    /// A SYN beyond its listener's backlog, or the end of a handshake by cookie without a place:
    /// discarded.
    Backlog,
    /// A SYN beyond its listener's backlog, answered with a cookie: here, or by the device.
    SynCookie,
    /// For a local port where nobody listens.
    ClosedPort,
    /// For a socket that is connected to somebody else.
    OtherPeer,
    /// For a multicast group or broadcast address that nobody joined.
    Group,
    /// IP for another host, and not sent on.
    Forward,
    /// IP for another host, sent on to the next, or waiting for that to answer. Where it does not,
    /// [`Stack::unsent`](crate::Stack::unsent) counts it as well.
    Forwarded,
    /// For another Ethernet address.
    OtherMac,
    /// Well formed, and nothing that this stack serves.
    Other,
    /// Headers that contradict themselves or the frame's length, or name a sender that nobody can be.
    Malformed,
    /// A checksum was wrong.
    Checksum,
    /// A fragment of a datagram that was not completed in time or in memory.
    FragmentLost,
    /// A fragment that was there already, or overlapped another.
    FragmentOverlap,
}

impl Outcome {
    /// All of them, in the order of [`Counts`].
    pub const ALL: [Self; 21] = [
        Self::Delivered,
        Self::Reassembled,
        Self::Control,
        Self::Full,
        Self::NoBuffer,
        Self::Late,
        Self::Closed,
        Self::IpQueueFull,
        Self::Backlog,
        Self::SynCookie,
        Self::ClosedPort,
        Self::OtherPeer,
        Self::Group,
        Self::Forward,
        Self::Forwarded,
        Self::OtherMac,
        Self::Other,
        Self::Malformed,
        Self::Checksum,
        Self::FragmentLost,
        Self::FragmentOverlap,
    ];

    /// The word used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Reassembled => "reassembled",
            Self::Control => "control",
            Self::Full => "full",
            Self::NoBuffer => "no_buffer",
            Self::Late => "late",
            Self::Closed => "closed",
            Self::IpQueueFull => "ip_queue_full",
            Self::Backlog => "backlog",
            Self::SynCookie => "syn_cookie",
            Self::ClosedPort => "closed_port",
            Self::OtherPeer => "other_peer",
            Self::Group => "group",
            Self::Forward => "forward",
            Self::Forwarded => "forwarded",
            Self::OtherMac => "other_mac",
            Self::Other => "other",
            Self::Malformed => "malformed",
            Self::Checksum => "checksum",
            Self::FragmentLost => "fragment_lost",
            Self::FragmentOverlap => "fragment_overlap",
        }
    }
}

/// What ends in channels.
const OF_CHANNELS: [(Outcome, channel::Outcome); 4] = [
    (Outcome::Full, channel::Outcome::Full),
    (Outcome::NoBuffer, channel::Outcome::NoBuffer),
    (Outcome::Late, channel::Outcome::Late),
    (Outcome::Closed, channel::Outcome::Closed),
];

/// Frames by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames taken from devices, and SYNs that these answered.
    pub received: u64,
    /// Frames that are in a channel now.
    pub queued: u64,
    /// Fragments that wait for the rest of their datagram now.
    pub incomplete: u64,
    by_outcome: [u64; Outcome::ALL.len()],
}

impl Counts {
    /// Frames that have an outcome.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.by_outcome.iter().sum()
    }

    /// Adds SYNs that the device answered with cookies.
    pub(crate) fn add_answered(&mut self, syns: u64) {
        self.received += syns;
        self.by_outcome[Outcome::SynCookie as usize] += syns;
    }

    /// Adds what ended in channels; what was delivered there is counted by the
    /// receivers.
    pub(crate) fn add_channels(&mut self, channels: &channel::Counts) {
        self.queued += channels.queued;
        for (outcome, of_channel) in OF_CHANNELS {
            self.by_outcome[outcome as usize] += channels[of_channel];
        }
    }

    /// Those of one channel since `before`.
    pub(crate) fn of_channel(channel: &channel::Counts, before: &channel::Counts) -> Self {
        let mut counts = Self {
            queued: channel.queued.saturating_sub(before.queued),
            ..Self::default()
        };
        for (outcome, of_channel) in OF_CHANNELS {
            let since = channel[of_channel].saturating_sub(before[of_channel]);
            counts.by_outcome[outcome as usize] = since;
        }
        counts
    }

    /// Nobody will take what is queued.
    pub(crate) fn closed(mut self) -> Self {
        self.by_outcome[Outcome::Closed as usize] += std::mem::take(&mut self.queued);
        self
    }
}

impl Index<Outcome> for Counts {
    type Output = u64;

    fn index(&self, outcome: Outcome) -> &u64 {
        &self.by_outcome[outcome as usize]
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.queued += other.queued;
        self.incomplete += other.incomplete;
        for (mine, theirs) in self.by_outcome.iter_mut().zip(other.by_outcome) {
            *mine += theirs;
        }
    }
}

/// The counts of one writer; a cache line or more to itself.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    received: AtomicU64,
    by_outcome: [AtomicU64; Outcome::ALL.len()],
}

impl Tally {
    /// One more frame ended like this. One writer at a time.
    #[inline]
    pub(crate) fn count(&self, outcome: Outcome) {
        self.add(outcome, 1);
    }

    pub(crate) fn add(&self, outcome: Outcome, frames: u64) {
        bump(&self.by_outcome[outcome as usize], frames);
    }

    /// Frames were taken from a device.
    pub(crate) fn received(&self, frames: usize) {
        bump(&self.received, frames as u64);
    }

    pub(crate) fn received_so_far(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts {
            received: self.received.load(Ordering::Relaxed),
            ..Counts::default()
        };
        for (count, tally) in counts.by_outcome.iter_mut().zip(&self.by_outcome) {
            *count = tally.load(Ordering::Relaxed);
        }
        counts
    }
}

/// Cheaper than `fetch_add`, and right with one writer.
#[inline]
fn bump(tally: &AtomicU64, by: u64) {
    tally.store(
        tally.load(Ordering::Relaxed).wrapping_add(by),
        Ordering::Relaxed,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_own_place_and_name() {
        for (place, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, place);
            let same = Outcome::ALL.iter().filter(|o| o.name() == outcome.name());
            assert_eq!(same.count(), 1);
        }
    }
}
