//! The channels of sockets: what they have counted and queued, and how those are forgotten
//! that nothing comes for.

use std::collections::BTreeMap;

use libbpf_rs::MapCore;
use plimsoll_core::demux::Kind;
use plimsoll_kernel::error::bpf;

use super::address::bound_address;
use super::{Program, SLOT_SOCKETS, release_slot, sources, types};
use crate::counters::{Channel, Key, Outcome, Packets};
use crate::delay::Queue;
use crate::error::Error;

/// What the members of groups have counted whose sockets have gone: a channel's counts never fall
/// while it has a socket. (The kernel gives a socket's memory to the next one, which then has its
/// slot.)
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// Of each slot whose channel has others, or has had: its owner's generation, and counts.
    members: BTreeMap<u32, (u32, Key, Packets)>,
    /// Of members that have gone.
    packets: BTreeMap<Key, Packets>,
}

/// A slot's part of a reading.
struct Seat {
    slot: u32,
    generation: u32,
    channel: Channel,
}

impl Gone {
    /// Takes a reading, in the order of keys.
    fn on_reading(&mut self, seats: &[Seat]) {
        let present: BTreeMap<_, _> = match self.members.is_empty() {
            true => BTreeMap::new(),
            false => seats
                .iter()
                .map(|seat| (seat.slot, seat.generation))
                .collect(),
        };
        for (slot, (generation, key, packets)) in std::mem::take(&mut self.members) {
            if present.get(&slot) != Some(&generation) {
                self.packets.entry(key).or_default().add_all(&packets);
            }
        }
        let mut left = std::mem::take(&mut self.packets);
        for group in seats.chunk_by(|one, other| one.channel.key() == other.channel.key()) {
            let key = group[0].channel.key();
            let gone = left.remove(&key);
            if group.len() > 1 || gone.is_some() {
                let members = group.iter().map(|seat| {
                    let Seat {
                        slot,
                        generation,
                        channel,
                    } = seat;
                    (*slot, (*generation, key, channel.packets))
                });
                self.members.extend(members);
            }
            self.packets.extend(gone.map(|packets| (key, packets)));
        }
    }
}

/// A socket without packets for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    socket: u64,
    slot: u32,
}

impl Program<'_> {
    /// Reads what has changed in the channels; returns how many parts were read.
    pub(crate) fn read_channels(&mut self) -> usize {
        let settings = self.settings();
        settings.reading = settings.reading.wrapping_add(1).max(1);
        let epoch = settings.epoch;
        self.books.read(self.slots_end(), epoch)
    }

    /// Which reading of the channels was the last one.
    #[cfg(test)]
    pub(crate) fn reading(&mut self) -> u32 {
        self.settings().reading
    }

    /// The live channels, and the sockets idle since before `epoch`.
    pub(crate) fn channels(&mut self, idle_before: u32) -> (Vec<Channel>, Vec<Idle>) {
        self.read_channels();
        let mut seats: Vec<Seat> = Vec::with_capacity(self.books.len());
        let mut idle = Vec::new();
        for (slot, parts) in self.books.slots() {
            let Some(owner) = self.owner(slot) else {
                continue;
            };
            let of_cpus = parts.of(&owner).filter_map(|part| channel_of(&owner, part));
            let channel = of_cpus.reduce(|mut channel, part| {
                merge(&mut channel, &part);
                channel
            });
            let generation = owner.generation;
            seats.extend(channel.map(|channel| Seat {
                slot,
                generation,
                channel,
            }));
            if parts.changed < idle_before {
                let socket = owner.socket;
                idle.push(Idle { socket, slot });
            }
        }
        seats.sort_unstable_by_key(|seat| seat.channel.key());
        self.gone.on_reading(&seats);
        let mut channels: Vec<Channel> = seats.into_iter().map(|seat| seat.channel).collect();
        // Members of a group share an address.
        channels.dedup_by(|part, channel| {
            let same = part.key() == channel.key();
            if same {
                merge(channel, part);
            }
            same
        });
        for channel in &mut channels {
            if let Some(packets) = self.gone.packets.get(&channel.key()) {
                channel.packets.add_all(packets);
            }
        }
        (channels, idle)
    }

    /// The queues of UDP sockets, by slot; their admissions on all CPUs.
    pub(crate) fn queues(&mut self) -> impl Iterator<Item = (u32, Queue)> + '_ {
        self.read_channels();
        self.books.slots().filter_map(|(slot, parts)| {
            let owner = self.owner(slot)?;
            if Kind::ALL.get(usize::from(owner.kind)) != Some(&Kind::UdpSocket) {
                return None;
            }
            let latest = parts.of(&owner).max_by_key(|part| part.reading)?;
            let admitted = parts
                .of(&owner)
                .map(|part| part.packets[Outcome::Admitted as usize]);
            let queue = Queue {
                admitted: admitted.sum(),
                queued: latest.queued,
                occupancy: latest.occupancy,
            };
            Some((slot, queue))
        })
    }

    /// Past the highest slot that ever was taken. Two CPUs that take slots at
    /// once may leave the mark one too low until the next one is taken.
    fn slots_end(&self) -> u32 {
        let bss = self.skeleton.maps.bss_data.as_deref();
        let last = bss.map_or(0, |bss| bss.last_slot);
        let slots = u32::try_from(self.allowances.len()).unwrap_or(u32::MAX);
        last.max(SLOT_SOCKETS).saturating_add(2).min(slots)
    }

    /// Forgets idle sockets; their packets stay in the totals.
    pub(crate) fn forget(&mut self, idle: &[Idle]) -> Result<(), Error> {
        for Idle { socket, slot } in idle {
            self.skeleton
                .maps
                .slots
                .delete(&socket.to_ne_bytes())
                .map_err(bpf("forget a socket"))?;
            // The next owner's generation is another one, on whatever CPU.
            let generation = self.allowances.get(*slot as usize).generation;
            let nobody = types::allowance {
                generation,
                ..types::allowance::default()
            };
            self.allowances.set(*slot as usize, nobody);
            self.books.forget(*slot);
            release_slot(&self.skeleton.maps.free_slots, *slot)?;
        }
        // Whoever found none left need not wait for the next second.
        if let Some(bss) = self.skeleton.maps.bss_data.as_deref_mut() {
            bss.no_slot_in = 0;
        }
        Ok(())
    }
}

/// What one CPU saw of a socket.
fn channel_of(owner: &types::allowance, seen: &types::channel) -> Option<Channel> {
    let kind = Kind::ALL.get(usize::from(owner.kind)).copied()?;
    let mut packets = Packets::default();
    packets.add(&seen.packets);
    Some(Channel {
        kind,
        address: bound_address(owner),
        port: owner.port,
        packets,
        discarding: seen.discarding != 0,
        occupancy: seen.occupancy,
        capacity: seen.capacity,
        queued: seen.queued,
        charged_ns: 0,
        sources: sources::judged(seen),
    })
}

/// Adds another part of a channel; the fullest queue is the one to tell of.
fn merge(channel: &mut Channel, part: &Channel) {
    channel.packets.add_all(&part.packets);
    channel.discarding |= part.discarding;
    sources::merge(&mut channel.sources, part.sources.as_ref());
    if (part.occupancy, part.capacity) > (channel.occupancy, channel.capacity) {
        channel.occupancy = part.occupancy;
        channel.capacity = part.capacity;
        channel.queued = part.queued;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many packets of a member in a slot, and what the channel has in all.
    fn reading(gone: &mut Gone, members: &[(u32, u32, u64)]) -> u64 {
        let seat = |&(slot, generation, packets): &(u32, u32, u64)| Seat {
            slot,
            generation,
            channel: Channel::sample(53, packets, 0),
        };
        let seats: Vec<_> = members.iter().map(seat).collect();
        gone.on_reading(&seats);
        let here = members.iter().map(|(_, _, packets)| packets).sum::<u64>();
        here + gone.packets.values().map(Packets::offered).sum::<u64>()
    }

    /// A group's counts fell when one of its sockets was closed and another socket got its
    /// memory: `rate` of Prometheus took all that was left for new packets.
    #[test]
    fn counts_of_a_group_do_not_fall_when_members_go() {
        let mut gone = Gone::default();
        assert_eq!(reading(&mut gone, &[(1, 1, 10), (2, 1, 20)]), 30);
        assert_eq!(reading(&mut gone, &[(1, 1, 10), (2, 1, 25)]), 35);
        assert_eq!(reading(&mut gone, &[(1, 1, 11)]), 36, "the second has gone");
        assert_eq!(reading(&mut gone, &[(1, 2, 0)]), 36, "and so has the first");
        assert_eq!(reading(&mut gone, &[(1, 2, 4), (3, 1, 1)]), 41);
        assert_eq!(reading(&mut gone, &[]), 0, "nobody is left");
        assert_eq!(reading(&mut gone, &[(1, 2, 4)]), 4, "a channel of its own");
        assert!(gone.members.is_empty() && gone.packets.is_empty());
    }
}
