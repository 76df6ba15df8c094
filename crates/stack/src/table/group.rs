//! Sockets that share an address: each flow is one socket's, chosen by a hash (as Linux does
//! with `SO_REUSEPORT`).
//!
//! `core::demux` knows a group as one channel, whose number is above all others. When a member
//! comes or goes, flows change their socket.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use plimsoll_core::demux::ChannelId;

use crate::wire::packet::{self, Part};

/// Sockets that may share an address.
pub(super) const MEMBERS_MAX: usize = 64;
/// The first group's number as a channel.
const FIRST: u32 = 1 << 31;

#[derive(Debug)]
struct Group {
    at: SocketAddr,
    members: Vec<ChannelId>,
}

/// All groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    places: Vec<Option<Group>>,
    /// Nobody can aim flows at one member.
    keys: RandomState,
}

/// What joining came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// There is no group at the address: make one.
    NoGroup,
    Member,
    Full,
}

impl Groups {
    pub(super) fn join(&mut self, at: SocketAddr, channel: ChannelId) -> Joined {
        let mut groups = self.places.iter_mut().flatten();
        match groups.find(|group| group.at == at) {
            None => Joined::NoGroup,
            Some(group) if group.members.len() == MEMBERS_MAX => Joined::Full,
            Some(group) => {
                group.members.push(channel);
                Joined::Member
            }
        }
    }

    /// The number of the next group, as a channel.
    pub(super) fn next(&self) -> ChannelId {
        let free = self.places.iter().position(Option::is_none);
        ChannelId(FIRST + free.unwrap_or(self.places.len()) as u32)
    }

    /// Makes the group `number`, which [`next`](Self::next) has given.
    pub(super) fn create(&mut self, number: ChannelId, at: SocketAddr, channel: ChannelId) {
        let place = (number.0 - FIRST) as usize;
        if place == self.places.len() {
            self.places.push(None);
        }
        let members = vec![channel];
        self.places[place] = Some(Group { at, members });
    }

    /// Whether the channel is in a group with others.
    pub(super) fn has_others(&self, channel: ChannelId) -> bool {
        let mut groups = self.places.iter().flatten();
        groups.any(|group| group.members.len() > 1 && group.members.contains(&channel))
    }

    /// Whether the channel is in a group.
    pub(super) fn contains(&self, channel: ChannelId) -> bool {
        let mut groups = self.places.iter().flatten();
        groups.any(|group| group.members.contains(&channel))
    }

    /// The channel leaves its group, if it is in one.
    pub(super) fn leave(&mut self, channel: ChannelId) {
        for place in &mut self.places {
            let Some(group) = place else { continue };
            group.members.retain(|member| *member != channel);
            if group.members.is_empty() {
                *place = None;
            }
        }
    }

    /// The member that gets a frame for `channel`; `channel` itself if it is no group.
    #[inline]
    pub(super) fn member(&self, channel: ChannelId, frame: &[u8]) -> ChannelId {
        if channel.0 < FIRST {
            return channel;
        }
        self.choose(channel, frame).unwrap_or(channel)
    }

    fn choose(&self, channel: ChannelId, frame: &[u8]) -> Option<ChannelId> {
        let group = self.places.get((channel.0 - FIRST) as usize)?.as_ref()?;
        // What is malformed is counted by whoever gets it.
        let flow = flow(frame).map_or(0, |flow| self.keys.hash_one(flow));
        let place = flow % group.members.len() as u64;
        group.members.get(place as usize).copied()
    }
}

/// What a flow's datagrams have in common. Fragments do not all have ports, but those of one
/// datagram have its number.
fn flow(frame: &[u8]) -> Option<(std::net::IpAddr, u32)> {
    let packet = packet::parse(frame).ok()?;
    let number = match packet.part {
        Part::Fragment { id, .. } => id,
        Part::Whole => {
            let port = frame.get(packet.payload.clone())?.first_chunk()?;
            u16::from_be_bytes(*port).into()
        }
    };
    Some((packet.source, number))
}
