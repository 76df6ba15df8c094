//! Addresses and prefixes as the program holds them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};
use libbpf_rs::{MapCore, MapFlags};

use plimsoll_kernel::error::bpf;

use super::types;
use crate::address::LocalAddress;
use crate::counters::{from_mapped, to_mapped};
use crate::error::Error;

/// An address as four words in memory order, as the program holds it.
pub(super) fn words(octets: [u8; 16]) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(octets.chunks_exact(4)) {
        *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    words
}

pub(super) fn bound_address(owner: &types::allowance) -> IpAddr {
    from_words(owner.local.words)
}

/// The inverse of [`words`].
pub(super) fn from_words(words: [u32; 4]) -> IpAddr {
    let mut octets = [0; 16];
    for (bytes, word) in octets.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    from_mapped(octets)
}

/// The length of the prefix of IPv6 that is IPv4.
const IPV4_BITS: u32 = 96;

/// A prefix as the program's trie wants it: `struct prefix`.
fn prefix_key(prefix: &IpNet) -> Vec<u8> {
    let bits = match prefix {
        IpNet::V4(v4) => IPV4_BITS + u32::from(v4.prefix_len()),
        IpNet::V6(v6) => v6.prefix_len().into(),
    };
    [&bits.to_ne_bytes()[..], &to_mapped(prefix.network())[..]].concat()
}

/// What a trie has for these prefixes. IPv4 lies within IPv6 there, but a prefix of IPv6 means IPv6
/// alone: where one covers IPv4, so does a longer one that says no.
fn entries(prefixes: &[IpNet]) -> BTreeMap<Vec<u8>, u8> {
    let all_of_ipv4 = Ipv4Net::default();
    let ipv4_in_ipv6 = Ipv6Addr::from(to_mapped(all_of_ipv4.network().into()));
    let covers = |prefix: &IpNet| match prefix {
        IpNet::V4(_) => false,
        IpNet::V6(v6) => u32::from(v6.prefix_len()) < IPV4_BITS && v6.contains(&ipv4_in_ipv6),
    };
    let mut entries: BTreeMap<_, _> = prefixes.iter().map(|p| (prefix_key(p), 1)).collect();
    if prefixes.iter().any(covers) {
        entries.entry(prefix_key(&all_of_ipv4.into())).or_insert(0);
    }
    entries
}

/// Makes these prefixes the whole of a map. Those that are in it already stay all the time.
pub(super) fn set_prefixes(map: &impl MapCore, prefixes: &[IpNet]) -> libbpf_rs::Result<()> {
    let new = entries(prefixes);
    let old: BTreeSet<_> = map.keys().collect();
    // First, so that there is room.
    for gone in old.iter().filter(|key| !new.contains_key(*key)) {
        map.delete(gone)?;
    }
    for (key, value) in &new {
        if map.lookup(key, MapFlags::ANY)? != Some(vec![*value]) {
            map.update(key, &[*value], MapFlags::ANY)?;
        }
    }
    Ok(())
}

/// What the map of the host's addresses has. Nobody else writes it.
#[derive(Debug, Default)]
pub(super) struct Stored(BTreeMap<[u8; 16], u8>);

impl Stored {
    /// Makes `addresses` the whole of the map, by writing what differs: a host may have
    /// thousands, and they are told once a second.
    pub(super) fn store(
        &mut self,
        map: &impl MapCore,
        addresses: &[([u8; 16], LocalAddress)],
    ) -> Result<(), Error> {
        let value = |(key, local): &([u8; 16], LocalAddress)| (*key, local.value());
        let wanted: BTreeMap<_, _> = addresses.iter().map(value).collect();
        let is_gone = |key: &&[u8; 16]| !wanted.contains_key(*key);
        // First, so that there is room.
        let gone: Vec<_> = self.0.keys().filter(is_gone).copied().collect();
        for key in gone {
            map.delete(&key).map_err(bpf("remove a local address"))?;
            self.0.remove(&key);
        }
        for (key, value) in wanted {
            if self.0.get(&key) != Some(&value) {
                map.update(&key, &[value], MapFlags::ANY)
                    .map_err(bpf("store a local address"))?;
                self.0.insert(key, value);
            }
        }
        Ok(())
    }
}
