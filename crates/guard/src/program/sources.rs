//! What the program knows of sources: how large its tables are, and what can be told of
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll_core::fairness::FairnessConfig;
use plimsoll_kernel::error::bpf;
use plimsoll_kernel::mapped::{Mapped, Plain};

use super::address::from_words;
use super::known::{Entries, period_of};
use super::now_tick;
use super::skeleton::{GuardMaps, OpenGuardSkel};
use super::types::{self, limit, source_class};
use crate::counters::{Counters, Key};
use crate::error::Error;
use crate::sources::{Class, Judged, Sample, Sources, heaviest};

/// Known and unknown.
const CLASSES: usize = source_class::CLASS_COUNT.0 as usize;

/// Sizes the tables for so many CPUs, each of which has its part.
pub(super) fn size(open: &mut OpenGuardSkel<'_>, cpus: u32) -> Result<(), Error> {
    let sizes = FairnessConfig::for_cpus(cpus as usize);
    let mask = |sets: usize| u32::try_from(sets - 1).unwrap_or(u32::MAX);
    if let Some(bss) = open.maps.bss_data.as_deref_mut() {
        bss.settings.fair_network_mask = mask(sizes.network_sets);
        bss.settings.fair_subnet_mask = mask(sizes.subnet_sets);
        bss.settings.fair_host_mask = mask(sizes.host_sets);
    }
    let entries = |sets: usize| mask(sets).saturating_add(1).saturating_mul(cpus);
    let maps = &mut open.maps;
    let sized = maps
        .fair_networks
        .set_max_entries(entries(sizes.network_sets));
    sized.map_err(bpf("size the table of networks"))?;
    let sized = maps
        .fair_subnets
        .set_max_entries(entries(sizes.subnet_sets));
    sized.map_err(bpf("size the table of subnets"))?;
    let sized = maps.fair_hosts.set_max_entries(entries(sizes.host_sets));
    sized.map_err(bpf("size the table of hosts"))?;
    let samples = limit::FAIR_SAMPLES.0.saturating_mul(cpus);
    let sized = maps.fair_samples.set_max_entries(samples);
    sized.map_err(bpf("size the ring of samples"))?;
    Ok(())
}

/// A source counts as seen, and a channel as overloaded, for so long.
const RECENT_TICKS: u16 = limit::FAIR_SAMPLES.0 as u16;
/// From one full set of so many on, newcomers often find no place of their own.
const FULL_SETS: usize = 100;

/// What the program knows of sources, as far as it can be told.
#[derive(Debug)]
pub(super) struct Tables {
    /// Set `s` of CPU `c` is element `c * sets + s`.
    hosts: Mapped<types::fair_hosts>,
    samples: Mapped<types::fair_sample>,
    pub(super) known: Entries,
    cpus: usize,
}

/// A slot whose channel is overloaded, or was a moment ago.
#[derive(Clone, Debug)]
pub(super) struct Overloaded {
    /// Of the slot's owner.
    pub(super) generation: u32,
    pub(super) channel: Key,
    /// Where it is overloaded.
    pub(super) cpus: Vec<u32>,
}

/// Finds out who sends to the channels of a reading. That takes a millisecond or two, so
/// it is for whoever asks, and not for the thread that governs.
#[derive(Clone, Debug)]
pub struct SourcesReader {
    tables: Arc<Tables>,
    overloaded: BTreeMap<u32, Overloaded>,
    epoch: u32,
}

impl SourcesReader {
    pub(super) fn new(
        tables: Arc<Tables>,
        overloaded: BTreeMap<u32, Overloaded>,
        epoch: u32,
    ) -> Self {
        Self {
            tables,
            overloaded,
            epoch,
        }
    }

    /// Adds to the reading how many sources each overloaded channel has and which are the
    /// heaviest, and how many sources are known. Looks at each entry of the tables of
    /// those CPUs that have an overloaded channel, 524,288 on two CPUs.
    pub fn tell(&self, counters: &mut Counters) {
        counters.known_sources = self.tables.known.count(period_of(self.epoch));
        if self.overloaded.is_empty() {
            return;
        }
        // They are being written: what is of the next tick is no older than this one.
        let now = (now_tick() as u32).wrapping_add(1);
        let cpus = self.overloaded.values().flat_map(|slot| &slot.cpus);
        let cpus: BTreeSet<u32> = cpus.copied().collect();
        let (seen, is_crowded) = self.tables.seen(&cpus, now);
        let samples = self.tables.samples(&cpus, &self.overloaded, now);
        let mut by_channel: BTreeMap<Key, ([u32; CLASSES], Vec<Sample>)> = BTreeMap::new();
        for (slot, Overloaded { channel, .. }) in &self.overloaded {
            let (sum, all) = by_channel.entry(*channel).or_default();
            for (sum, seen) in sum.iter_mut().zip(seen[*slot as usize]) {
                *sum += seen;
            }
            all.extend(samples.get(slot).into_iter().flatten());
        }
        for channel in &mut counters.channels {
            let Some((seen, samples)) = by_channel.get(&channel.key()) else {
                continue;
            };
            let sources = channel.sources.get_or_insert_default();
            sources.unknown.seen = seen[source_class::CLASS_UNKNOWN.0 as usize];
            sources.known.seen = seen[source_class::CLASS_KNOWN.0 as usize];
            sources.at_least = is_crowded;
            sources.heaviest = heaviest(samples);
        }
    }
}

impl Tables {
    pub(super) fn of(maps: &GuardMaps<'_>, cpus: u32) -> Result<Self, Error> {
        Ok(Self {
            hosts: Mapped::of(&maps.fair_hosts)?,
            samples: Mapped::of(&maps.fair_samples)?,
            known: Entries::of(&maps.known_sources)?,
            cpus: cpus as usize,
        })
    }

    /// Hosts that were seen lately, by slot and class ([`Class::seen`] says which others
    /// cannot be told from them); and whether there are so many that
    /// some had to give way to others.
    fn seen(&self, cpus: &BTreeSet<u32>, now: u32) -> (Vec<[u32; CLASSES]>, bool) {
        let mut seen = vec![[0; CLASSES]; limit::CHANNELS_MAX.0 as usize];
        let sets = self.hosts.len() / self.cpus.max(1);
        let mut full = vec![0; cpus.len()];
        let mut found = Vec::new();
        for set in 0..sets {
            found.clear();
            for (cpu, full) in cpus.iter().zip(&mut full) {
                let before = found.len();
                let ways = self.hosts.get(*cpu as usize * sets + set).ways;
                let is_recent = |host: &&types::fair_host| {
                    host.tag != 0 && (now as u16).wrapping_sub(host.tick) <= RECENT_TICKS
                };
                let recent = ways.iter().filter(is_recent);
                found.extend(recent.map(|host| (host.slot, host.tag, host.class)));
                *full += usize::from(found.len() - before == ways.len());
            }
            // One host on several CPUs is one.
            found.sort_unstable();
            found.dedup();
            for (slot, _, class) in &found {
                let slot = seen.get_mut(usize::from(*slot));
                if let Some(count) = slot.and_then(|slot| slot.get_mut(*class as usize)) {
                    *count += 1;
                }
            }
        }
        (seen, full.iter().any(|full| full * FULL_SETS > sets))
    }

    /// The latest samples of these slots, each with how many packets it stands for. The
    /// last one's are not yet known.
    fn samples(
        &self,
        cpus: &BTreeSet<u32>,
        slots: &BTreeMap<u32, Overloaded>,
        now: u32,
    ) -> BTreeMap<u32, Vec<Sample>> {
        let mut samples: BTreeMap<u32, Vec<Sample>> = BTreeMap::new();
        let length = limit::FAIR_SAMPLES.0 as usize;
        for cpu in cpus.iter().map(|cpu| *cpu as usize) {
            let mut by_slot: BTreeMap<u32, Vec<types::fair_sample>> = BTreeMap::new();
            for place in cpu * length..(cpu + 1) * length {
                let sample = self.samples.get(place);
                let owner = slots.get(&sample.slot);
                if owner.is_some_and(|owner| owner.generation == sample.generation)
                    && now.wrapping_sub(sample.tick) <= RECENT_TICKS.into()
                {
                    by_slot.entry(sample.slot).or_default().push(sample);
                }
            }
            for (slot, mut of_cpu) in by_slot {
                of_cpu.sort_unstable_by_key(|sample| now.wrapping_sub(sample.tick));
                let pairs = of_cpu.windows(2).map(|pair| Sample {
                    source: from_words(pair[1].source.words),
                    packets: pair[0].judged.wrapping_sub(pair[1].judged),
                });
                samples.entry(slot).or_default().extend(pairs);
            }
        }
        samples
    }
}

/// The CPU, if it judged the channel's packets by source a moment ago.
pub(super) fn overloaded_cpu((cpu, part): (u32, &types::channel)) -> Option<u32> {
    let age = (now_tick() as u32).wrapping_sub(part.fair_tick);
    (part.fair_tick != 0 && age <= RECENT_TICKS.into()).then_some(cpu)
}

/// The sources of a channel as one CPU judged them; `None`: it never did.
pub(super) fn judged(part: &types::channel) -> Option<Sources> {
    let class = |class: source_class| {
        let types::judged {
            admitted,
            discarded,
        } = part.judged[class.0 as usize];
        Class {
            seen: 0,
            judged: Judged {
                admitted,
                discarded,
            },
        }
    };
    let sources = Sources {
        known: class(source_class::CLASS_KNOWN),
        unknown: class(source_class::CLASS_UNKNOWN),
        ..Sources::default()
    };
    let judged = sources.known.judged.sum() + sources.unknown.judged.sum();
    (judged > 0).then_some(sources)
}

/// Adds what another CPU, or another member of a group, judged.
pub(super) fn merge(sources: &mut Option<Sources>, other: Option<&Sources>) {
    if let Some(other) = other {
        let sources = sources.get_or_insert_default();
        sources.known.add(&other.known);
        sources.unknown.add(&other.unknown);
    }
}

// SAFETY: generated from structs of guard.h that hold integers only.
unsafe impl Plain for types::fair_hosts {}
// SAFETY: as above.
unsafe impl Plain for types::fair_sample {}
