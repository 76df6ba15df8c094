//! Who sends to a channel that is judged by source: how many there are, what becomes of
//! their packets, and which prefix is the heaviest.
//!
//! **Samples.** The program notes the source of one packet per tick of 4.2 ms, channel and
//! CPU, and how many packets it has judged so far. So each sample stands for the packets
//! until the next one. That costs next to nothing per packet, and it tells of prefixes of any
//! length, where counting would need an entry for each of them.
//!
//! **Limits.** Parts are estimates: of `n` samples they are off by up to 1/√n (about 6 %
//! of all packets after a second, 3 % after four). What has fewer than [`SAMPLES_MIN`] samples
//! is not told: it may be chance.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A prefix is told from so many samples on.
const SAMPLES_MIN: u32 = 16;

/// The sources of one channel. Packets are since the start, all else is of the last four
/// seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sources {
    /// Those that were served before the overload.
    pub known: Class,
    /// All others.
    pub unknown: Class,
    /// There are more sources than the guard can tell apart: `seen` is a lower bound.
    pub at_least: bool,
    /// The heaviest prefix of each level, from hosts to networks. Empty in calm, and
    /// where no prefix stands out.
    pub heaviest: Vec<Heaviest>,
}

/// The known or the unknown sources of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Class {
    /// Hosts that sent something in the last 4.3 s. Of a group of sockets, each one's
    /// sources are counted.
    ///
    /// The program keeps that time in 16 bits, which begin anew after 275 s. So a host of
    /// an earlier overload counts as well for 4.3 s, 275 s after its last packet and after each
    /// multiple of that, if that overload was of this channel (or of one that had the same
    /// slot of the program's before) and nobody has taken the host's entry since. Such hosts
    /// may also be why [`Sources::at_least`] is true.
    pub seen: u32,
    /// Their packets while the channel was overloaded.
    #[serde(flatten)]
    pub judged: Judged,
}

/// What became of packets that were judged by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// Handed to the Linux stack.
    pub admitted: u64,
    /// Discarded early, whatever the cause.
    pub discarded: u64,
}

/// A length of prefixes, as fairness divides by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// One address.
    Host,
    /// A /24, or a /64 of IPv6.
    Subnet,
    /// A /16, or a /48 of IPv6.
    Network,
}

/// The prefix of a level from which most packets come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heaviest {
    /// How long the prefix is.
    pub level: Level,
    /// Where the packets say that they are from.
    pub prefix: IpNet,
    /// Its part of the channel's packets, from 0 to 1: an estimate.
    pub part: f64,
}

impl Level {
    /// All levels, the longest prefix first.
    pub const ALL: [Self; 3] = [Self::Host, Self::Subnet, Self::Network];

    /// The name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Subnet => "subnet",
            Self::Network => "network",
        }
    }

    fn prefix_of(self, source: IpAddr) -> IpNet {
        let bits = match (self, source) {
            (Self::Host, IpAddr::V4(_)) => 32,
            (Self::Host, IpAddr::V6(_)) => 128,
            (Self::Subnet, IpAddr::V4(_)) => 24,
            (Self::Subnet, IpAddr::V6(_)) => 64,
            (Self::Network, IpAddr::V4(_)) => 16,
            (Self::Network, IpAddr::V6(_)) => 48,
        };
        let prefix = IpNet::new(source, bits);
        prefix.expect("no longer than an address").trunc()
    }
}

impl Class {
    pub(crate) fn add(&mut self, other: &Self) {
        self.seen = self.seen.saturating_add(other.seen);
        self.judged.admitted += other.judged.admitted;
        self.judged.discarded += other.judged.discarded;
    }
}

impl Judged {
    pub(crate) const fn sum(&self) -> u64 {
        self.admitted + self.discarded
    }

    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            admitted: self.admitted.saturating_sub(earlier.admitted),
            discarded: self.discarded.saturating_sub(earlier.discarded),
        }
    }
}

/// The one to name first: the longest prefix with at least half of what the heaviest
/// network has.
#[must_use]
pub fn culprit(heaviest: &[Heaviest]) -> Option<&Heaviest> {
    let most = heaviest
        .iter()
        .map(|prefix| prefix.part)
        .fold(0.0, f64::max);
    heaviest.iter().find(|prefix| prefix.part * 2.0 >= most)
}

/// A sampled packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Where it was from.
    pub(crate) source: IpAddr,
    /// As many packets it stands for.
    pub(crate) packets: u32,
}

/// The heaviest prefix of each level, as far as it stands out.
pub(crate) fn heaviest(samples: &[Sample]) -> Vec<Heaviest> {
    let all: u64 = samples.iter().map(|sample| u64::from(sample.packets)).sum();
    let of_level = |level: Level| {
        let mut prefixes: HashMap<IpNet, (u64, u32)> = HashMap::new();
        for sample in samples {
            let (packets, count) = prefixes.entry(level.prefix_of(sample.source)).or_default();
            *packets += u64::from(sample.packets);
            *count += 1;
        }
        let told = prefixes.into_iter().filter(|(_, (_, n))| *n >= SAMPLES_MIN);
        let most = told.max_by_key(|(prefix, (packets, _))| (*packets, *prefix));
        most.map(|(prefix, (packets, _))| Heaviest {
            level,
            prefix,
            part: packets as f64 / all.max(1) as f64,
        })
    };
    Level::ALL.into_iter().filter_map(of_level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(of: &[(&str, u32, u32)]) -> Vec<Sample> {
        let each = of.iter().flat_map(|(source, count, packets)| {
            let source = source.parse().unwrap();
            let packets = *packets;
            (0..*count).map(move |_| Sample { source, packets })
        });
        each.collect()
    }

    fn told(samples: &[Sample]) -> Vec<(String, f64)> {
        let heaviest = heaviest(samples);
        let told = heaviest
            .iter()
            .map(|one| (one.prefix.to_string(), one.part));
        told.collect()
    }

    fn named(samples: &[Sample]) -> Option<String> {
        culprit(&heaviest(samples)).map(|one| one.prefix.to_string())
    }

    #[test]
    fn a_loud_host_is_named_as_a_host() {
        let samples = samples(&[
            ("10.1.1.1", 60, 10),
            ("10.1.2.1", 20, 10),
            ("20.1.1.1", 20, 10),
        ]);
        let expected = [
            ("10.1.1.1/32", 0.6),
            ("10.1.1.0/24", 0.6),
            ("10.1.0.0/16", 0.8),
        ];
        assert_eq!(
            told(&samples),
            expected.map(|(p, part)| (p.to_owned(), part))
        );
        assert_eq!(named(&samples).as_deref(), Some("10.1.1.1/32"));
    }

    #[test]
    fn many_hosts_of_a_network_are_named_as_the_network() {
        let mut samples = samples(&[("2001:db8:2::1", 20, 1)]);
        samples.extend((0..80_u16).map(|n| Sample {
            source: [0x2001, 0xdb8, 1, n, 0, 0, 0, n].into(),
            packets: 1,
        }));
        assert_eq!(named(&samples).as_deref(), Some("2001:db8:1::/48"));
    }

    /// Samples of a busy CPU stand for more packets.
    #[test]
    fn packets_count_and_not_samples() {
        let samples = samples(&[("10.1.1.1", 50, 1), ("20.1.1.1", 50, 9)]);
        assert_eq!(told(&samples)[0], ("20.1.1.1/32".to_owned(), 0.9));
    }

    #[test]
    fn nobody_is_named_by_chance() {
        assert_eq!(named(&[]), None);
        let anybody: Vec<_> = (0..1000_u32)
            .map(|n| Sample {
                source: IpAddr::from((n.wrapping_mul(0x9e37_79b1)).to_be_bytes()),
                packets: 5,
            })
            .collect();
        assert_eq!(named(&anybody), None);
        assert_eq!(named(&samples(&[("10.1.1.1", 15, 1)])), None);
    }
}
