//! What has been read of the channels so far. The program marks, CPU by CPU, the
//! slots that had packets since the reading before; only these are copied. So a
//! reading costs what has changed, however many CPUs there may be.

use std::collections::BTreeMap;

use super::types;
use crate::error::Error;
use plimsoll_kernel::mapped::Mapped;

/// Slots in one element of the map `changes`.
const BITS: u32 = types::limit::CHANGES_BITS.0;
const SLOTS: u32 = types::limit::CHANNELS_MAX.0;

/// What each CPU saw of a socket, as last read.
#[derive(Debug, Default)]
pub(super) struct Parts {
    by_cpu: BTreeMap<u32, types::channel>,
    /// The epoch of the reading that last found something new.
    pub(super) changed: u32,
}

/// One CPU's part of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    slot: u32,
    cpu: u32,
}

#[derive(Debug)]
pub(super) struct Books {
    /// Slot `s` of CPU `c` is element `c * SLOTS + s`.
    channels: Mapped<types::channel>,
    changes: Mapped<u64>,
    cpus: u32,
    sockets: BTreeMap<u32, Parts>,
    /// Read last time. A packet was perhaps not yet counted, so once more.
    recent: Vec<Place>,
}

impl Books {
    pub(super) fn of(maps: &super::skeleton::GuardMaps<'_>, cpus: u32) -> Result<Self, Error> {
        Ok(Self {
            channels: Mapped::of(&maps.channels)?,
            changes: Mapped::of(&maps.changes)?,
            cpus,
            sockets: BTreeMap::new(),
            recent: Vec::new(),
        })
    }

    /// As if a CPU had found the queue of a slot full at `tick`.
    #[cfg(test)]
    pub(super) fn press(&mut self, slot: u32, cpu: u32, tick: u32) {
        let index = (cpu * SLOTS + slot) as usize;
        self.channels.set(
            index,
            types::channel {
                pressed: 1,
                pressed_tick: tick,
                ..self.channels.get(index)
            },
        );
    }

    /// Reads what has changed in the slots below `slots_end`, in the epoch given,
    /// after the program was told of a new reading. Returns how many parts of
    /// channels it read.
    pub(super) fn read(&mut self, slots_end: u32, epoch: u32) -> usize {
        let changed = self.take_changes(slots_end);
        let again = std::mem::take(&mut self.recent);
        for place in again.iter().filter(|place| !changed.contains(place)) {
            self.copy(*place);
        }
        for place in &changed {
            self.copy(*place).changed = epoch;
        }
        let read = changed.len() + again.len();
        self.recent = changed;
        read
    }

    fn copy(&mut self, place: Place) -> &mut Parts {
        let channel = self.channels.get((place.cpu * SLOTS + place.slot) as usize);
        let parts = self.sockets.entry(place.slot).or_default();
        parts.by_cpu.insert(place.cpu, channel);
        parts
    }

    fn take_changes(&self, slots_end: u32) -> Vec<Place> {
        let mut changed = Vec::new();
        for cpu in 0..self.cpus {
            for word in 0..slots_end.div_ceil(BITS) {
                let mut bits = self.changes.take((cpu * (SLOTS / BITS) + word) as usize);
                while bits != 0 {
                    let slot = word * BITS + bits.trailing_zeros();
                    changed.push(Place { slot, cpu });
                    bits &= bits - 1;
                }
            }
        }
        changed
    }

    /// Slots that had packets and were not forgotten.
    pub(super) fn slots(&self) -> impl Iterator<Item = (u32, &Parts)> {
        self.sockets.iter().map(|(slot, parts)| (*slot, parts))
    }

    /// How many these are.
    pub(super) fn len(&self) -> usize {
        self.sockets.len()
    }

    /// One CPU's part of a slot as it is now.
    pub(super) fn part(&self, slot: u32, cpu: u32) -> types::channel {
        self.channels.get((cpu * SLOTS + slot) as usize)
    }

    pub(super) fn forget(&mut self, slot: u32) {
        self.sockets.remove(&slot);
        self.recent.retain(|place| place.slot != slot);
    }
}

impl Parts {
    /// What the CPUs saw of the slot's present owner.
    pub(super) fn of(&self, owner: &types::allowance) -> impl Iterator<Item = &types::channel> {
        self.by_cpu(owner).map(|(_, part)| part)
    }

    /// The same with the CPUs.
    pub(super) fn by_cpu(
        &self,
        owner: &types::allowance,
    ) -> impl Iterator<Item = (u32, &types::channel)> {
        let generation = owner.generation;
        self.all()
            .filter(move |(_, part)| part.generation == generation)
    }

    /// What each CPU saw of whoever had the slot then.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &types::channel)> {
        self.by_cpu.iter().map(|(cpu, part)| (*cpu, part))
    }
}
