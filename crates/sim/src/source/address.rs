//! Which address a packet says that it is from.
//!
//! It follows from the seed, the source and the packet's tag alone. So it needs no room in
//! the packet, and who draws it takes no random number from anybody.

use std::net::Ipv4Addr;

use fastrand::Rng;

use crate::packet::Packet;
use crate::scenario::{Addresses, Source as Config};

/// The first network of sources with several.
const FIRST_NETWORK: u32 = 0x1800_0700;
/// Networks lie in prefixes of this length of their own.
const APART: u32 = 16;
/// Forged addresses lie in this eighth of IPv4.
const FORGED: u32 = 0x2000_0000;

/// The addresses of one source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claimed {
    addresses: Addresses,
    key: u64,
    /// The server took its packets before there was overload.
    pub(crate) known: bool,
}

impl Claimed {
    pub(crate) fn new(config: &Config, index: usize, seed: u64) -> Self {
        let key = Rng::with_seed(seed ^ (index as u64) << 32).u64(..);
        Self {
            addresses: config.from,
            key,
            known: config.known,
        }
    }

    /// Where this packet of the source says that it is from.
    pub(crate) fn address(&self, packet: &Packet) -> Ipv4Addr {
        let mut drawn = Rng::with_seed(self.key ^ u64::from(packet.tag));
        match self.addresses {
            Addresses::One => {
                let [high, low] = packet.source.to_be_bytes();
                Ipv4Addr::new(high, low, 0, 1)
            }
            Addresses::Hosts {
                hosts,
                networks,
                first,
                in_turn,
            } => {
                let number = if in_turn {
                    packet.tag % hosts
                } else {
                    drawn.u32(..hosts)
                };
                let (network, host) = (number % networks, number / networks);
                Ipv4Addr::from(FIRST_NETWORK + (network << (32 - APART)) + first + host)
            }
            Addresses::Forged => Ipv4Addr::from(FORGED | drawn.u32(..) >> 3),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::packet::Kind;

    fn claimed(from: &str, seed: u64) -> Claimed {
        let text = format!(
            "name = \"flood\"\nto = \"server\"\nfrom = {from}\n\
             traffic = {{ kind = \"poisson\", rate_pps = 1 }}"
        );
        Claimed::new(&toml::from_str(&text).unwrap(), 3, seed)
    }

    /// The addresses of so many packets, and how often each came.
    fn drawn(from: &str, seed: u64, packets: u32) -> BTreeMap<Ipv4Addr, u32> {
        let claimed = claimed(from, seed);
        let mut counts = BTreeMap::new();
        for tag in 0..packets {
            let packet = Packet {
                arrived: 0,
                work: 0,
                tag,
                source: 3,
                to: 0,
                bytes: 64,
                kind: Kind::Datagram,
            };
            *counts.entry(claimed.address(&packet)).or_default() += 1;
        }
        counts
    }

    #[test]
    fn hosts_send_equally_often_from_their_networks() {
        let counts = drawn(
            "{ kind = \"hosts\", hosts = 1000, networks = 16 }",
            1,
            200_000,
        );
        assert_eq!(counts.len(), 1000);
        assert!(counts.values().all(|count| (130..270).contains(count)));
        let mut networks: Vec<[u8; 3]> = counts
            .keys()
            .map(|address| address.octets()[..3].try_into().unwrap())
            .collect();
        networks.dedup();
        assert_eq!(networks.len(), 16);
        assert_eq!(networks[0], [24, 0, 7]);
        assert_eq!(networks[15], [24, 15, 7]);
    }

    #[test]
    fn those_with_other_numbers_live_beside_them() {
        let fast = drawn("{ kind = \"hosts\", hosts = 90, networks = 5 }", 1, 9000);
        let slow = drawn(
            "{ kind = \"hosts\", hosts = 10, networks = 5, first = 224 }",
            1,
            9000,
        );
        assert_eq!((fast.len(), slow.len()), (90, 10));
        assert!(fast.keys().all(|address| !slow.contains_key(address)));
        let first = |counts: &BTreeMap<Ipv4Addr, u32>| counts.keys().next().unwrap().octets();
        assert_eq!(first(&slow), [24, 0, 7, 224]);
        assert_eq!(first(&fast), [24, 0, 7, 1]);
    }

    #[test]
    fn in_turn_each_sends_regularly() {
        let from = "{ kind = \"hosts\", hosts = 10, networks = 5, in_turn = true }";
        assert!(drawn(from, 1, 30).values().all(|count| *count == 3));
    }

    #[test]
    fn forged_ones_are_of_an_eighth_and_by_the_seed() {
        let counts = drawn("{ kind = \"forged\" }", 1, 10_000);
        assert!(counts.len() > 9990);
        assert!(counts.keys().all(|address| address.octets()[0] >> 5 == 1));
        assert_eq!(counts, drawn("{ kind = \"forged\" }", 1, 10_000));
        assert_ne!(counts, drawn("{ kind = \"forged\" }", 2, 10_000));
    }
}
