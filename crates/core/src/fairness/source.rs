//! Where a packet is from, and the keyed hashes of its prefixes.

use core::net::IpAddr;

use super::Request;
use super::numbers::{
    MIX_FIRST_FACTOR, MIX_MIDDLE_SHIFT, MIX_SECOND_FACTOR, MIX_SHIFT, NETWORK_BITS, SUBNET_BITS,
};

/// A packet's source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// In network byte order; IPv4 in the last one.
    words: [u32; 4],
    is_ipv6: bool,
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self {
                words: [0, 0, 0, u32::from(v4)],
                is_ipv6: false,
            },
            IpAddr::V6(v6) => {
                let bits = u128::from(v6);
                let word = |place: u32| (bits >> (96 - 32 * place)) as u32;
                Self {
                    words: [word(0), word(1), word(2), word(3)],
                    is_ipv6: true,
                }
            }
        }
    }
}

/// The secret of the hash: whoever knows it can choose whose entries he shares.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Keys(pub [u64; Keys::COUNT]);

impl Keys {
    /// The place of the one that a hash begins with.
    pub const FIRST: usize = 0;
    /// The place of the first of those for the four words of an address.
    pub const WORDS: usize = 1;
    /// The place of the one for a channel's number.
    pub const CHANNEL: usize = Self::WORDS + 4;
    /// The place of the one that tells known sources from others, and IPv6 from IPv4.
    pub const CLASS: usize = Self::CHANNEL + 1;
    /// One for each word that is hashed, and one to begin with.
    pub const COUNT: usize = Self::CLASS + 1;

    /// The hash of words whose products with their keys have this sum: its upper half, mixed.
    /// Sums of addresses side by side lie at equal distances, which some keys would fold onto
    /// few sets. No two halves mix to the same, so no more prefixes collide.
    #[must_use]
    pub const fn hash(sum: u64) -> u32 {
        let mut half = (sum >> 32) as u32;
        half ^= half >> MIX_SHIFT;
        half = half.wrapping_mul(MIX_FIRST_FACTOR);
        half ^= half >> MIX_MIDDLE_SHIFT;
        half = half.wrapping_mul(MIX_SECOND_FACTOR);
        half ^ half >> MIX_SHIFT
    }
}

impl core::fmt::Debug for Keys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// The hashes of a packet's prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Paths {
    pub(super) network: u32,
    pub(super) subnet: u32,
    pub(super) host: u32,
}

impl Paths {
    pub(super) fn of(keys: &Keys, request: &Request) -> Self {
        let [first, channel, class] =
            [Keys::FIRST, Keys::CHANNEL, Keys::CLASS].map(|place| keys.0[place]);
        let [k0, k1, k2, k3] = [0, 1, 2, 3].map(|word| keys.0[Keys::WORDS + word]);
        let Source { words, is_ipv6 } = request.source;
        let [w0, w1, w2, w3] = words.map(u64::from);
        let add = |sum: u64, key: u64, word: u64| sum.wrapping_add(key.wrapping_mul(word));
        let without = |bits: u32| u64::MAX << bits;
        let known = u64::from(request.known);
        let of_channel = add(first, channel, request.channel.into());
        let base = add(of_channel, class, known | u64::from(is_ipv6) << 1);
        let (network, subnet, host) = if is_ipv6 {
            let upper = add(base, k0, w0);
            let subnet = add(upper, k1, w1);
            let host = add(add(subnet, k2, w2), k3, w3);
            // A known host of IPv6 is its /64: interface identifiers change.
            let host = if request.known { subnet } else { host };
            (add(upper, k1, w1 & without(NETWORK_BITS)), subnet, host)
        } else {
            let to = |mask: u64| add(base, k3, w3 & mask);
            (
                to(without(NETWORK_BITS)),
                to(without(SUBNET_BITS)),
                to(without(0)),
            )
        };
        Self {
            network: Keys::hash(network),
            subnet: Keys::hash(subnet),
            host: Keys::hash(host),
        }
    }
}
