//! The loaded BPF program: typed access to its maps and settings.

#![allow(
    unsafe_code,
    reason = "map values are read as C structs, and one is written by words"
)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::BuildHasher;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject, ProgramInput};
use plimsoll_core::demux::Kind;
use plimsoll_core::time::TICK_SHIFT;

use crate::address::{Class, LocalAddress};
use crate::counters::{Packets, from_mapped, to_mapped};
use crate::error::Error;
use crate::hidden;
use crate::protection::Protection;
use address::{Stored, bound_address, set_prefixes, words};
use books::Books;
use channels::Gone;
use plimsoll_kernel::clock::monotonic_ns;
use plimsoll_kernel::error::{bpf, os};
use plimsoll_kernel::mapped::{Mapped, Plain, read_struct};
use plimsoll_kernel::namespace;
use ports::Ports;
pub use sources::SourcesReader;
use sources::{Overloaded, Tables};

include!(concat!(env!("OUT_DIR"), "/guard.rs")); // mod skeleton

mod address;
#[cfg(test)]
mod address_tests;
mod books;
mod channels;
mod company;
#[cfg(test)]
mod cpus_tests;
#[cfg(test)]
mod fairness_tests;
#[cfg(test)]
mod flooded_tests;
#[cfg(test)]
mod group_tests;
mod known;
#[cfg(test)]
mod known_tests;
#[cfg(test)]
mod limit_tests;
#[cfg(test)]
mod listener_tests;
mod memory;
mod ports;
#[cfg(test)]
mod protection_tests;
mod settings;
#[cfg(test)]
mod share_tests;
mod sources;
#[cfg(test)]
mod sources_tests;
#[cfg(test)]
pub(crate) mod test_host;
mod test_run;
#[cfg(test)]
mod translated_tests;
#[cfg(test)]
mod tunnel_tests;
#[cfg(test)]
mod verifier_tests;

pub(crate) use skeleton::types;
use skeleton::{GuardSkel, GuardSkelBuilder};

/// The slot of all protected traffic.
pub(crate) const SLOT_PROTECTED: u32 = types::slot::SLOT_PROTECTED.0;
/// The first slot of a socket.
const SLOT_SOCKETS: u32 = types::slot::SLOT_SOCKETS.0;
const SLOTS_OF_SOCKETS: u32 = types::limit::CHANNELS_MAX.0 - SLOT_SOCKETS;
/// The test-run facility takes none that is shorter than an Ethernet header.
const SHORTEST_FRAME_BYTES: usize = 14;
/// Fills unused places for frequent addresses: multicast, so never looked for there.
const UNUSED: [u32; 4] = [u32::MAX; 4];

/// Room for the BPF object, which must outlive the [`crate::Guard`] in it.
#[derive(Debug)]
pub struct Storage(MaybeUninit<OpenObject>);

impl Default for Storage {
    fn default() -> Self {
        Self(MaybeUninit::uninit())
    }
}

/// A socket that has a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seated {
    pub(crate) slot: u32,
    /// The slot's next owner has another one.
    generation: u32,
    pub(crate) kind: Kind,
    /// What it is bound to.
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

/// The program in the kernel.
pub(crate) struct Program<'obj> {
    skeleton: GuardSkel<'obj>,
    books: Books,
    gone: Gone,
    sources: Arc<Tables>,
    allowances: Mapped<types::allowance>,
    /// Slots with a share of their own.
    shared: BTreeSet<u32>,
    /// The host's addresses, as the program has them.
    local: Stored,
    ports: Ports,
    /// The host could have so many.
    cpus: u32,
    /// What is protected now.
    protection: Protection,
}

impl fmt::Debug for Program<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").finish_non_exhaustive()
    }
}

/// What one CPU has judged since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuTotals {
    pub(crate) kinds: [Packets; Kind::ALL.len()],
    /// Packets of established TCP connections, but for what these do not take.
    pub(crate) established: u64,
    /// Packets that a tunnel takes in the kernel.
    pub(crate) tunnelled: u64,
    /// Packets of translated flows that go on to other hosts, by a sample.
    pub(crate) translated: u64,
}

impl CpuTotals {
    /// Packets that go on to other hosts, and those for tunnels that end in the kernel.
    pub(crate) fn forwarded(&self) -> u64 {
        self.kinds[Kind::Forward as usize].offered() + self.tunnelled + self.translated
    }
}

impl<'obj> Program<'obj> {
    /// Loads the program for so many possible CPUs; nothing is attached yet.
    pub(crate) fn load(
        storage: &'obj mut Storage,
        numa_nodes: u32,
        cpus: u32,
    ) -> Result<Self, Error> {
        let mut open = GuardSkelBuilder::default()
            .open(&mut storage.0)
            .map_err(bpf("open the BPF object"))?;
        if let Some(bss) = open.maps.bss_data.as_deref_mut() {
            bss.settings.numa_nodes = numa_nodes;
            bss.settings.secret = secret();
            bss.settings.fair_keys = std::array::from_fn(|_| secret());
            // No channel has this number before its first packet.
            bss.settings.reading = 1;
            bss.settings.namespace_inode =
                namespace::inode().map_err(os("identify the network namespace"))?;
        }
        let slots = open.maps.allowances.max_entries();
        let words = open.maps.changes.max_entries();
        open.maps
            .channels
            .set_max_entries(slots.saturating_mul(cpus))
            .map_err(bpf("size the channels"))?;
        open.maps
            .changes
            .set_max_entries(words.saturating_mul(cpus))
            .map_err(bpf("size the marks of changes"))?;
        sources::size(&mut open, cpus)?;
        let skeleton = open.load().map_err(bpf("load the BPF program"))?;
        fill_free_slots(&skeleton)?;
        Ok(Self {
            books: Books::of(&skeleton.maps, cpus)?,
            gone: Gone::default(),
            sources: Arc::new(Tables::of(&skeleton.maps, cpus)?),
            allowances: Mapped::of(&skeleton.maps.allowances)?,
            cpus,
            shared: BTreeSet::new(),
            local: Stored::default(),
            ports: Ports::default(),
            protection: Protection {
                ports: Vec::new(),
                connections: false,
                ..Protection::default()
            },
            skeleton,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.skeleton.progs.plimsoll_guard.as_fd()
    }

    /// Whether the kernel has bound it to connection tracking's functions. If the kernel does not run it
    /// to tell, it may not ask either.
    pub(crate) fn asks_tracking(&self) -> bool {
        let frame = [0; SHORTEST_FRAME_BYTES];
        let input = ProgramInput {
            data_in: Some(&frame),
            ..ProgramInput::default()
        };
        let asks = self.skeleton.progs.plimsoll_asks_tracking.test_run(input);
        asks.is_ok_and(|ran| ran.return_value != 0)
    }

    /// From now on the program hears which UDP packets the stack refuses.
    pub(crate) fn watch_refusals(&self) -> Result<Link, Error> {
        let program = &self.skeleton.progs.plimsoll_refused;
        let link = program.attach();
        Ok(link.map_err(bpf("watch what the stack refuses"))?)
    }

    /// What became of answers so far.
    pub(crate) fn answers(&self) -> types::answers {
        let bss = self.skeleton.maps.bss_data.as_deref();
        bss.map_or_else(types::answers::default, |bss| bss.answers)
    }

    /// Has the kernel tell of answers that a link refuses, for as long as the links
    /// that are returned live.
    pub(crate) fn watch_transmission(&self) -> Result<[Link; 4], Error> {
        let programs = &self.skeleton.progs;
        let attach = |program: &libbpf_rs::ProgramMut<'_>| {
            program
                .attach()
                .map_err(bpf("watch whether links take what is sent back"))
        };
        Ok([
            attach(&programs.on_bulk_transmit)?,
            attach(&programs.on_exception)?,
            attach(&programs.on_redirected)?,
            attach(&programs.on_redirect_error)?,
        ])
    }

    /// Makes `addresses` the whole of what the program takes for local; the
    /// first unicast ones are found without a look-up. First are those of the interface
    /// itself, and the first ones of each other. Of more than fit into its map, the last
    /// ones count as others', whose packets are admitted.
    pub(crate) fn set_local_addresses(
        &mut self,
        addresses: &BTreeMap<IpAddr, LocalAddress>,
    ) -> Result<(), Error> {
        let map = &self.skeleton.maps.local_addresses;
        let mapped = |(address, local): (&IpAddr, &LocalAddress)| (to_mapped(*address), *local);
        let mut addresses: Vec<_> = addresses.iter().map(mapped).collect();
        addresses.sort_by_key(|(_, local)| (!local.of_interface, local.place));
        addresses.truncate(map.max_entries() as usize);
        self.local.store(map, &addresses)?;
        let frequent = addresses
            .iter()
            .filter(|(key, local)| local.class == Class::Local && !from_mapped(*key).is_loopback())
            .map(|(key, _)| words(*key))
            .chain(std::iter::repeat(UNUSED));
        for (place, words) in self.settings().frequent.iter_mut().zip(frequent) {
            place.words = words;
        }
        Ok(())
    }

    /// Who sends to the channels that are overloaded, as of the last reading, for
    /// whoever has the time to look.
    pub(crate) fn sources(&mut self) -> SourcesReader {
        let mut overloaded = BTreeMap::new();
        for (slot, parts) in self.books.slots() {
            let Some(owner) = self.owner(slot) else {
                continue;
            };
            let Some(kind) = Kind::ALL.get(usize::from(owner.kind)) else {
                continue;
            };
            let parts = parts.by_cpu(&owner);
            let cpus: Vec<u32> = parts.filter_map(sources::overloaded_cpu).collect();
            if !cpus.is_empty() {
                let channel = (*kind, owner.port, bound_address(&owner));
                let generation = owner.generation;
                overloaded.insert(
                    slot,
                    Overloaded {
                        generation,
                        channel,
                        cpus,
                    },
                );
            }
        }
        let epoch = self.settings().epoch;
        SourcesReader::new(Arc::clone(&self.sources), overloaded, epoch)
    }

    /// Exact sums by kind.
    pub(crate) fn totals(&self) -> Result<[Packets; Kind::ALL.len()], Error> {
        let mut totals = [Packets::default(); Kind::ALL.len()];
        for counts in self.totals_by_cpu()? {
            for (sum, packets) in totals.iter_mut().zip(&counts.kinds) {
                sum.add_all(packets);
            }
        }
        Ok(totals)
    }

    /// Sums of each CPU.
    pub(crate) fn totals_by_cpu(&self) -> Result<Vec<CpuTotals>, Error> {
        let by_cpu = self
            .skeleton
            .maps
            .totals
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf("read the totals"))?
            .unwrap_or_default();
        let sums = |value: &Vec<u8>| {
            let counts: types::totals = read_struct(value);
            let mut sums = CpuTotals {
                established: counts.established,
                tunnelled: counts.tunnelled,
                translated: counts.translated,
                ..CpuTotals::default()
            };
            for (sum, kind) in sums.kinds.iter_mut().zip(&counts.packets) {
                sum.add(kind);
            }
            sums
        };
        Ok(by_cpu.iter().map(sums).collect())
    }

    /// Packets that asked for a share so far on each of these CPUs, by slot. However many these
    /// are, the channels are read once; for none, not at all.
    pub(crate) fn demands(
        &mut self,
        cpus: impl IntoIterator<Item = u32>,
    ) -> HashMap<u32, HashMap<u32, u64>> {
        let mut cpus = cpus.into_iter().peekable();
        if cpus.peek().is_some() {
            self.read_channels();
        }
        let books = &self.books;
        let of_kinds = |cpu| {
            let kinds = (1..SLOT_SOCKETS).map(|slot| (slot, books.part(slot, cpu).demand));
            (cpu, kinds.collect())
        };
        let mut demands: HashMap<u32, HashMap<u32, u64>> = cpus.map(of_kinds).collect();
        for (slot, parts) in books.slots() {
            for (cpu, part) in parts.all() {
                if let Some(demands) = demands.get_mut(&cpu) {
                    demands.insert(slot, part.demand);
                }
            }
        }
        demands
    }

    /// The sockets that have slots, for whoever finds out whose they are.
    pub(crate) fn sockets(&mut self) -> Vec<Seated> {
        self.read_channels();
        let socket = |(slot, _)| {
            let owner = self.owner(slot)?;
            Some(Seated {
                slot,
                generation: owner.generation,
                kind: *Kind::ALL.get(usize::from(owner.kind))?,
                address: bound_address(&owner),
                port: owner.port,
            })
        };
        self.books.slots().filter_map(socket).collect()
    }

    /// How many sockets have slots.
    pub(crate) fn used_slots(&self) -> usize {
        self.books.len()
    }

    /// Who has a slot now.
    fn owner(&self, slot: u32) -> Option<types::allowance> {
        let owner = self.allowances.get(slot as usize);
        (owner.socket != 0).then_some(owner)
    }

    /// Sheds by these packets per tick and CPU: for each slot named, and for
    /// every other; or no longer.
    pub(crate) fn set_shares(&mut self, shares: Option<(u32, &BTreeMap<u32, u32>)>) {
        let none = BTreeMap::new();
        let slots = shares.map_or(&none, |(_, slots)| slots);
        let named: BTreeSet<u32> = slots.keys().copied().collect();
        for slot in self.shared.union(&named) {
            let mut allowance = self.allowances.get(*slot as usize);
            let packets = slots.get(slot).copied().unwrap_or(0);
            if allowance.share_packets != packets {
                allowance.share_packets = packets;
                self.allowances.set(*slot as usize, allowance);
            }
        }
        self.shared = named;
        let settings = self.settings();
        settings.share_packets = shares.map_or(0, |(others, _)| others);
        settings.shedding = shares.is_some().into();
    }

    /// Marks a socket's packets as protected traffic, or no longer. False if its slot is
    /// another's by now.
    pub(crate) fn set_protected(&mut self, socket: &Seated, protected: bool) -> bool {
        let index = socket.slot as usize;
        let mut allowance = self.allowances.get(index);
        let is_its = allowance.socket != 0 && allowance.generation == socket.generation;
        if is_its && (allowance.protected != 0) != protected {
            allowance.protected = protected.into();
            self.allowances.set(index, allowance);
        }
        is_its
    }

    /// Sets from which occupancy in bytes on a socket gets no more packets,
    /// beside its watermark; 0: none.
    pub(crate) fn set_limit(&mut self, slot: u32, bytes: u32) {
        let mut allowance = self.allowances.get(slot as usize);
        if allowance.limit_bytes != bytes {
            allowance.limit_bytes = bytes;
            self.allowances.set(slot as usize, allowance);
        }
    }

    /// Makes `protection` what is protected, instead of what was. If the kernel refuses,
    /// what was stays.
    pub(crate) fn set_protection(&mut self, protection: &Protection) -> Result<(), Error> {
        if let Err(error) = self.store_protection(protection) {
            // It fitted before. A session does it once more, and tells if it cannot.
            let _ = self.store_protection(&self.protection.clone());
            return Err(error);
        }
        self.protection = protection.clone();
        let settings = self.settings();
        settings.protect_connections = protection.connections.into();
        settings.protect_prefixes = (!protection.sources.is_empty()).into();
        settings.know_prefixes = (!protection.known.is_empty()).into();
        Ok(())
    }

    /// Stores the prefixes and ports of `protection` instead of those before.
    fn store_protection(&mut self, protection: &Protection) -> Result<(), Error> {
        let maps = &self.skeleton.maps;
        set_prefixes(&maps.protected_prefixes, &protection.sources)
            .map_err(bpf("store the protected prefixes"))?;
        set_prefixes(&maps.known_prefixes, &protection.known)
            .map_err(bpf("store the known prefixes"))?;
        self.ports
            .set_protected(&maps.ports, &protection.ports)
            .map_err(bpf("protect a port"))?;
        Ok(())
    }

    /// Tells the program at which ports it may find another socket than the stack does.
    pub(crate) fn set_hidden(&mut self, hidden: &hidden::Ports) -> Result<(), Error> {
        self.settings().hiding = ports::hiding(hidden);
        let stored = self.ports.set_hidden(&self.skeleton.maps.ports, hidden);
        Ok(stored.map_err(bpf("tell of hidden sockets"))?)
    }
}

/// The number of the tick under way.
fn now_tick() -> u64 {
    monotonic_ns() >> TICK_SHIFT
}

fn fill_free_slots(skeleton: &GuardSkel<'_>) -> Result<(), Error> {
    let input = ProgramInput {
        data_in: Some(&[0; SHORTEST_FRAME_BYTES]),
        ..ProgramInput::default()
    };
    let filled = skeleton.progs.fill_free_slots.test_run(input);
    let free = filled.and_then(|output| match output.return_value {
        SLOTS_OF_SOCKETS => Ok(()),
        free => Err(io::Error::other(format!("{free} are free")).into()),
    });
    Ok(free.map_err(bpf("release every channel's slot"))?)
}

fn release_slot(free_slots: &impl MapCore, slot: u32) -> Result<(), Error> {
    let released = free_slots.update(&[], &slot.to_ne_bytes(), MapFlags::ANY);
    Ok(released.map_err(bpf("release a channel's slot"))?)
}

/// A number that nobody outside this process can know: from the system, by way of
/// the keys that every hash map of the standard library gets.
fn secret() -> u64 {
    std::hash::RandomState::new().hash_one(0)
}

// SAFETY: generated from structs of guard.h that hold integers only.
unsafe impl Plain for types::totals {}
// SAFETY: as above.
unsafe impl Plain for types::channel {}
// SAFETY: as above.
unsafe impl Plain for types::allowance {}
