//! What the program knows of sources from before an overload, out of it and into it.

use super::{Program, types};
use crate::error::Error;
use crate::known::{Known, KnownSources};
use plimsoll_core::fairness::numbers::{KNOWN_AGE_PERIODS, KNOWN_PERIOD_SHIFT, KNOWN_PERIODS_MIN};
use plimsoll_kernel::mapped::Mapped;

impl Program<'_> {
    /// Those that are known now.
    pub(crate) fn known_sources(&mut self) -> Result<KnownSources, Error> {
        let table = self.known_table()?;
        let settings = self.settings();
        let period = period_of(settings.epoch);
        let known = (0..table.len()).flat_map(|set| {
            let ways = table.get(set).ways.into_iter();
            let known = ways.filter(move |source| is_known(source, period));
            known.map(move |source| Known {
                age: period.wrapping_sub(source.seen).into(),
                set: u32::try_from(set).unwrap_or(u32::MAX),
                tag: source.tag,
            })
        });
        Ok(KnownSources::new(settings.fair_keys, known))
    }

    /// Makes these known, and nobody else, before the first packet: from now on, all
    /// prefixes are hashed by their keys.
    pub(crate) fn remember(&mut self, known: &KnownSources) -> Result<(), Error> {
        let mut table: Mapped<types::known_sources> = self.known_table()?;
        let settings = self.settings();
        settings.fair_keys = known.keys;
        let period = period_of(settings.epoch);
        for (set, sources) in known.still_known().into_iter().enumerate() {
            let mut ways = types::known_sources::default();
            for (way, source) in ways.ways.iter_mut().zip(sources) {
                way.tag = source.tag;
                way.seen = period.wrapping_sub(source.age as u16);
                way.periods = KNOWN_PERIODS_MIN;
            }
            table.set(set, ways);
        }
        Ok(())
    }

    fn known_table(&self) -> Result<Mapped<types::known_sources>, Error> {
        Ok(Mapped::of(&self.skeleton.maps.known_sources)?)
    }
}

/// The period of an epoch, as the program counts them.
pub(super) const fn period_of(epoch: u32) -> u16 {
    (epoch >> KNOWN_PERIOD_SHIFT) as u16
}

/// Whether a source is known in this period.
pub(super) fn is_known(source: &types::known_source, period: u16) -> bool {
    source.tag != 0
        && source.periods >= KNOWN_PERIODS_MIN
        && period.wrapping_sub(source.seen) < KNOWN_AGE_PERIODS
}
