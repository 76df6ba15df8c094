//! Whether the flood of one socket is alone on the interface, as the program counts it.

use std::collections::HashMap;
use std::net::IpAddr;

use plimsoll_core::governor::Company;

use crate::error::Error;
use crate::guard::Guard;

/// Sockets that are bound to the same address and port are one channel.
pub(crate) type Bound = (IpAddr, u16);

/// What an overloaded channel has had since the guard's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flood {
    /// Packets of unknown sources that were judged by source.
    pub(crate) packets: u64,
    /// Packets that it admitted, whosoever they were.
    pub(crate) admitted: u64,
    /// Packets in its queue when last looked at.
    pub(crate) queued: u64,
    /// It is protected traffic: nobody is lazy about that.
    pub(crate) protected: bool,
}

/// One reading.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// Packets of no flood.
    pub(crate) company: u64,
    pub(crate) floods: HashMap<Bound, Flood>,
}

impl Reading {
    /// What came since the reading before. With several floods, the largest is the
    /// flood, and the others are company.
    pub(crate) fn since(&self, before: &Self) -> Company {
        let new = |bound: &Bound, flood: &Flood| {
            let before = before.floods.get(bound).copied().unwrap_or_default();
            Flood {
                packets: flood.packets.saturating_sub(before.packets),
                admitted: flood.admitted.saturating_sub(before.admitted),
                ..*flood
            }
        };
        let floods = self.floods.iter().map(|(bound, flood)| new(bound, flood));
        let mut others = self.company.saturating_sub(before.company);
        let mut largest = Flood::default();
        for flood in floods {
            let (more, less) = if flood.packets > largest.packets {
                (flood, largest)
            } else {
                (largest, flood)
            };
            others += less.packets;
            largest = more;
        }
        if largest.protected {
            others += largest.packets;
        }
        Company {
            others,
            flood: largest.packets,
            admitted: largest.admitted,
            queued: largest.queued,
        }
    }
}

impl Guard<'_> {
    /// Whose packets came since the last call: whether one socket's flood is alone. `None`
    /// where that cannot be told: at the first call, without fairness among sources, and
    /// while sources are protected by prefix.
    ///
    /// # Errors
    ///
    /// The program's maps cannot be read.
    pub fn company(&mut self) -> Result<Option<Company>, Error> {
        if !self.config.fairness || self.config.observe || self.program.protects_prefixes() {
            self.company = None;
            return Ok(None);
        }
        let now = self.program.company()?;
        let company = self.company.as_ref().map(|before| now.since(before));
        self.company = Some(now);
        Ok(company)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn reading(company: u64, floods: &[(u16, u64)]) -> Reading {
        let flood = |packets| Flood {
            packets,
            admitted: packets / 2,
            queued: 9,
            protected: false,
        };
        let address = IpAddr::from(Ipv4Addr::LOCALHOST);
        let floods = floods.iter();
        Reading {
            company,
            floods: floods
                .map(|(port, packets)| ((address, *port), flood(*packets)))
                .collect(),
        }
    }

    #[test]
    fn the_largest_flood_of_an_interval_is_alone_if_nobody_else_comes() {
        let before = reading(7, &[(53, 100), (54, 5000)]);
        let now = reading(7, &[(53, 1100), (54, 5000)]);
        let company = now.since(&before);
        assert_eq!(
            company,
            Company {
                others: 0,
                flood: 1000,
                admitted: 500,
                queued: 9
            }
        );
    }

    #[test]
    fn others_and_other_floods_and_protected_ones_are_company() {
        let before = reading(7, &[(53, 100), (54, 5000)]);
        let now = reading(8, &[(53, 1100), (54, 5020), (55, 3)]);
        assert_eq!(now.since(&before).others, 1 + 20 + 3);
        let mut protected = reading(7, &[(53, 1100), (54, 5000)]);
        for flood in protected.floods.values_mut() {
            flood.protected = true;
        }
        assert_eq!(protected.since(&before).others, 1000);
    }
}
