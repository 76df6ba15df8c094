//! What the program knows of sources from before an overload, out of it and into it.

use super::{Program, types};
use crate::error::Error;
use crate::known::{Known, KnownSources};
use plimsoll_kernel::mapped::Mapped;
use types::fair_limit as L;

impl Program<'_> {
    /// Those that are known now.
    pub(crate) fn known_sources(&mut self) -> Result<KnownSources, Error> {
        let table = self.known_table()?;
        let settings = self.settings();
        let period = (settings.epoch >> L::KNOWN_PERIOD_SHIFT.0) as u16;
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
        let period = (settings.epoch >> L::KNOWN_PERIOD_SHIFT.0) as u16;
        for (set, sources) in known.still_known().into_iter().enumerate() {
            let mut ways = types::known_sources::default();
            for (way, source) in ways.ways.iter_mut().zip(sources) {
                way.tag = source.tag;
                way.seen = period.wrapping_sub(source.age as u16);
                way.periods = L::KNOWN_PERIODS_MIN.0 as u16;
            }
            table.set(set, ways);
        }
        Ok(())
    }

    fn known_table(&self) -> Result<Mapped<types::known_sources>, Error> {
        Ok(Mapped::of(&self.skeleton.maps.known_sources)?)
    }
}

/// Whether a source is known in this period.
pub(super) fn is_known(source: &types::known_source, period: u16) -> bool {
    source.tag != 0
        && u32::from(source.periods) >= L::KNOWN_PERIODS_MIN.0
        && u32::from(period.wrapping_sub(source.seen)) < L::KNOWN_AGE_PERIODS.0
}
