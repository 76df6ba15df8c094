//! What is remembered of each channel from one reading to the next.
//!
//! Readings are sorted, and so is what is remembered: one pass through both finds
//! all, where ten thousand channels would be ten thousand look-ups.

use std::borrow::Borrow;

use crate::counters::{Channel, Key};

/// Something of each channel of the last reading.
#[derive(Debug)]
pub(crate) struct ByChannel<T>(Vec<(Key, T)>);

impl<T> Default for ByChannel<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Copy> ByChannel<T> {
    /// The channels of a reading, each with what is remembered of it.
    pub(crate) fn with<'a, C: Borrow<Channel> + 'a>(
        &'a self,
        channels: impl IntoIterator<Item = C> + 'a,
    ) -> impl Iterator<Item = (C, Option<T>)> + 'a {
        let mut rest = self.0.as_slice();
        channels.into_iter().map(move |channel| {
            let key = channel.borrow().key();
            let gone = rest.iter().take_while(|(old, _)| *old < key).count();
            rest = &rest[gone..];
            let old = rest.first().filter(|(old, _)| *old == key);
            (channel, old.map(|(_, old)| *old))
        })
    }

    /// Remembers something else of each channel of a reading, by what was
    /// remembered before. Channels that are gone are forgotten.
    pub(crate) fn carry<C: Borrow<Channel>>(
        &mut self,
        channels: impl IntoIterator<Item = C>,
        mut next: impl FnMut(C, Option<T>) -> T,
    ) {
        let carried = self.with(channels).map(|(channel, old)| {
            let key = channel.borrow().key();
            (key, next(channel, old))
        });
        self.0 = carried.collect();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::{btree_set, vec};
    use proptest::{prop_assert_eq, proptest};

    use super::*;

    proptest! {
        /// As a map would remember them.
        #[test]
        fn channels_come_and_go(readings in vec(btree_set(1_u16..40, 0..30), 4)) {
            let mut remembered = ByChannel::default();
            let mut expected = BTreeMap::new();
            for ports in readings {
                let channels: Vec<_> = ports.iter().map(|port| Channel::sample(*port, 0, 0)).collect();
                remembered.carry(&channels, |_, old: Option<u32>| old.unwrap_or(0) + 1);
                expected = ports
                    .iter()
                    .map(|port| (*port, expected.get(port).copied().unwrap_or(0) + 1))
                    .collect();
                let with = remembered.with(&channels);
                let with: Vec<_> = with.map(|(channel, seen)| (channel.port, seen.unwrap())).collect();
                prop_assert_eq!(with, expected.clone().into_iter().collect::<Vec<_>>());
            }
        }
    }
}
