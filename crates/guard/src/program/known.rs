//! What the program knows of sources from before an overload, out of it and into it; and
//! that it forgets them in time.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::MapCore;
use memmap2::{MmapOptions, MmapRaw};
use plimsoll_core::fairness::numbers::{KNOWN_AGE_PERIODS, KNOWN_PERIOD_SHIFT, KNOWN_PERIODS_MIN};
use plimsoll_kernel::error::os;
use plimsoll_kernel::mapped::{Plain, read_struct};

use super::Program;
use super::types::{self, limit};
use crate::error::Error;
use crate::known::{Known, KnownSources};

/// Entries of this age in periods are forgotten: two hours.
const FORGOTTEN_PERIODS: u16 = 2 * KNOWN_AGE_PERIODS;
/// The logarithm of the seconds between two times of forgetting: eight minutes and a half.
const FORGET_SHIFT: u32 = 9;
/// The period is 16 bits: each entry is met long before its age would begin anew.
const _: () = assert!(
    FORGOTTEN_PERIODS as u32 + (1 << FORGET_SHIFT >> KNOWN_PERIOD_SHIFT) < u16::MAX as u32 / 2
);

/// Entries of a set.
const WAYS: usize = limit::KNOWN_SOURCE_WAYS.0 as usize;

impl Program<'_> {
    /// Those that are known now.
    pub(crate) fn known_sources(&mut self) -> KnownSources {
        let settings = self.settings();
        let (keys, period) = (settings.fair_keys, period_of(settings.epoch));
        let known = self.sources.known.all(period).map(|(index, source)| Known {
            age: period.wrapping_sub(source.seen).into(),
            set: u32::try_from(index / WAYS).unwrap_or(u32::MAX),
            tag: source.tag,
        });
        KnownSources::new(keys, known)
    }

    /// Makes these known, and nobody else. Call it before the program is attached: from now on all
    /// prefixes are hashed by their keys.
    pub(crate) fn remember(&mut self, known: &KnownSources) {
        let settings = self.settings();
        settings.fair_keys = known.keys;
        let period = period_of(settings.epoch);
        for (set, sources) in known.still_known().into_iter().enumerate() {
            for way in 0..WAYS {
                let source = sources.get(way).map(|source| types::known_source {
                    tag: source.tag,
                    seen: period.wrapping_sub(source.age as u16),
                    periods: KNOWN_PERIODS_MIN,
                });
                let entries = &self.sources.known;
                entries.set(set * WAYS + way, &source.unwrap_or_default());
            }
        }
    }
}

/// The table of known sources, by its entries, set after set: words that the program may write
/// to at any time.
#[derive(Debug)]
pub(super) struct Entries {
    memory: MmapRaw,
    len: usize,
}

impl Entries {
    /// Maps the table.
    pub(super) fn of(map: &impl MapCore) -> Result<Self, Error> {
        let bytes = map.value_size() as usize * map.max_entries() as usize;
        let memory = MmapOptions::new()
            .len(bytes)
            .map_raw(map.as_fd().as_raw_fd())
            .map_err(os("map the table of known sources"))?;
        let len = bytes / size_of::<types::known_source>();
        Ok(Self { memory, len })
    }

    /// How many sources are known in this period, at whatever port.
    pub(super) fn count(&self, period: u16) -> u32 {
        u32::try_from(self.all(period).count()).unwrap_or(u32::MAX)
    }

    /// The entries of those who are known in this period, each with its place.
    fn all(&self, period: u16) -> impl Iterator<Item = (usize, types::known_source)> {
        let entries = (0..self.len).map(|index| {
            let word = self.word(index).load(Ordering::Relaxed);
            (index, read_struct(&word.to_ne_bytes()))
        });
        entries.filter(move |(_, source)| is_known(source, period))
    }

    fn set(&self, index: usize, entry: &types::known_source) {
        self.word(index).store(word_of(entry), Ordering::Relaxed);
    }

    /// Whether it is time to forget again, now that one epoch follows another.
    pub(super) const fn is_due(before: u32, epoch: u32) -> bool {
        before >> FORGET_SHIFT != epoch >> FORGET_SHIFT
    }

    /// Forgets who was not seen for two hours. The program compares 16 bits of the time, which
    /// begin anew after three days: who came back then would be known again.
    ///
    /// Nobody who is known loses anything. The program has taken such an entry for unknown
    /// for an hour, so it does not renew it, and an entry that changes meanwhile stays. It
    /// learns a source in three steps, though: if it does so just then, the first of that
    /// source's periods may be lost.
    ///
    /// The program could not do it by itself: it looks at an entry only when somebody comes,
    /// and who stays away is what matters. More bits of time would make entries larger.
    pub(super) fn forget(&self, period: u16) {
        for index in 0..self.len {
            let word = self.word(index);
            let old = word.load(Ordering::Relaxed);
            if let Some(new) = forgotten(&read_struct(&old.to_ne_bytes()), period) {
                // Else the program was here.
                let _ =
                    word.compare_exchange(old, word_of(&new), Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len, "an entry of the table");
        let words = self.memory.as_mut_ptr().cast::<u64>();
        // SAFETY: the word is in the mapping, which lives as long as `self`, is writable and
        // page-aligned, so that words are aligned. The program writes to it as well,
        // and the bytes of a word are valid whatever they are. This process reads and writes it
        // by way of here alone.
        unsafe { AtomicU64::from_ptr(words.wrapping_add(index)) }
    }
}

/// What an entry is to be if it is to be forgotten. It grows no older then, so that it
/// is still the first one whose place a newcomer takes.
fn forgotten(entry: &types::known_source, period: u16) -> Option<types::known_source> {
    let is_old = period.wrapping_sub(entry.seen) >= FORGOTTEN_PERIODS;
    (entry.tag != 0 && is_old).then_some(types::known_source {
        tag: entry.tag,
        seen: period.wrapping_sub(FORGOTTEN_PERIODS),
        periods: 0,
    })
}

/// An entry as the word that it is in the table: the inverse of `read_struct`.
fn word_of(entry: &types::known_source) -> u64 {
    let mut bytes = [0; size_of::<u64>()];
    bytes[..4].copy_from_slice(&entry.tag.to_ne_bytes());
    bytes[4..6].copy_from_slice(&entry.seen.to_ne_bytes());
    bytes[6..].copy_from_slice(&entry.periods.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

const _: () = assert!(size_of::<types::known_source>() == size_of::<u64>());

// SAFETY: generated from a struct of guard.h that holds integers only.
unsafe impl Plain for types::known_source {}

/// The period of an epoch, as the program counts them.
pub(super) const fn period_of(epoch: u32) -> u16 {
    (epoch >> KNOWN_PERIOD_SHIFT) as u16
}

/// Whether a source is known in this period.
fn is_known(source: &types::known_source, period: u16) -> bool {
    source.tag != 0
        && source.periods >= KNOWN_PERIODS_MIN
        && period.wrapping_sub(source.seen) < KNOWN_AGE_PERIODS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_forgotten_two_hours_after_it_was_seen_and_grows_no_older() {
        const SEEN: u16 = 65_000;
        let entry = types::known_source {
            tag: 0x0102_0304,
            seen: SEEN,
            periods: KNOWN_PERIODS_MIN,
        };
        let last = SEEN.wrapping_add(FORGOTTEN_PERIODS - 1);
        assert!(forgotten(&entry, SEEN).is_none());
        assert!(forgotten(&entry, last).is_none());
        let mut old = forgotten(&entry, last.wrapping_add(1)).unwrap();
        assert_eq!((old.tag, old.periods), (entry.tag, 0));
        for period in last + 1..=u16::MAX {
            old = forgotten(&old, period).unwrap();
            assert!(!is_known(&old, period));
            assert_eq!(period.wrapping_sub(old.seen), FORGOTTEN_PERIODS);
        }
        let nobody = types::known_source { tag: 0, ..entry };
        assert!(forgotten(&nobody, last.wrapping_add(1)).is_none());
    }

    #[test]
    fn an_entry_and_its_word_are_the_same_bytes() {
        let entry = types::known_source {
            tag: 0x0102_0304,
            seen: 0x0506,
            periods: 0x0708,
        };
        let again: types::known_source = read_struct(&word_of(&entry).to_ne_bytes());
        let fields = |entry: &types::known_source| (entry.tag, entry.seen, entry.periods);
        assert_eq!(fields(&again), fields(&entry));
    }
}
