//! Addresses and prefixes as the program holds them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use libbpf_rs::{MapCore, MapFlags};

use super::types;
use crate::counters::{from_mapped, to_mapped};

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

/// A prefix as the program's trie wants it: `struct prefix`.
fn prefix_key(prefix: &IpNet) -> Vec<u8> {
    let bits = match prefix {
        IpNet::V4(v4) => 96 + u32::from(v4.prefix_len()),
        IpNet::V6(v6) => v6.prefix_len().into(),
    };
    [&bits.to_ne_bytes()[..], &to_mapped(prefix.network())[..]].concat()
}

/// Makes these prefixes the whole of a map. Those that are in it already stay all the time.
pub(super) fn set_prefixes(map: &impl MapCore, prefixes: &[IpNet]) -> libbpf_rs::Result<()> {
    let old: BTreeSet<_> = map.keys().collect();
    let new = prefixes.iter().map(prefix_key).collect();
    // First, so that there is room.
    for gone in old.difference(&new) {
        map.delete(gone)?;
    }
    for key in new.difference(&old) {
        map.update(key, &[1], MapFlags::ANY)?;
    }
    Ok(())
}
