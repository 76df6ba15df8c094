//! The Ethernet addresses that frames lately came from, so that answers go
//! back the way they came, without asking who has the address.
//!
//! Tables in which each IP address has one place. Whoever shares a place with
//! another only makes it forget, which costs a question, where one can be asked.

use std::net::IpAddr;

use plimsoll_core::time::Instant;

use super::neighbours::BELIEVED;
use crate::device::Mac;

const PLACES: usize = 256;

#[derive(Debug)]
pub(crate) struct Peers {
    places: Box<[Option<(IpAddr, Mac, Instant)>]>,
}

impl Peers {
    pub(crate) fn new() -> Self {
        Self {
            places: vec![None; PLACES].into_boxed_slice(),
        }
    }

    /// Whether that is new.
    pub(crate) fn remember(&mut self, address: IpAddr, via: Mac, now: Instant) -> bool {
        let before = self.places[place(address)].replace((address, via, now));
        before.is_none_or(|(known, mac, _)| (known, mac) != (address, via))
    }

    /// Where `address` was within the last minute, and since somebody moved.
    pub(crate) fn get(&self, address: IpAddr, moved_at: Instant, now: Instant) -> Option<Mac> {
        let (known, via, since) = self.places[place(address)]?;
        let is_believed = since >= moved_at && now.saturating_since(since) < BELIEVED;
        (known == address && is_believed).then_some(via)
    }

    /// Where `address` was when it was last heard of.
    pub(super) fn last(&self, address: IpAddr) -> Option<Mac> {
        let (known, via, _) = self.places[place(address)]?;
        (known == address).then_some(via)
    }
}

fn place(address: IpAddr) -> usize {
    let bits = match address {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits() as u64,
    };
    // Fibonacci hashing: the upper bits of a product.
    (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_remembered_for_a_minute_unless_somebody_moved() {
        let mut peers = Peers::new();
        let (address, mac) = ("10.0.0.1".parse().unwrap(), [2; 6]);
        let get = |peers: &Peers, now| peers.get(address, Instant::ZERO, now);
        assert_eq!(get(&peers, Instant::ZERO), None);
        assert!(peers.remember(address, mac, Instant::ZERO));
        assert!(!peers.remember(address, mac, Instant::ZERO));
        assert_eq!(get(&peers, Instant::ZERO), Some(mac));
        let moved_at = Instant::from_nanos(1);
        assert_eq!(peers.get(address, moved_at, moved_at), None);
        let later = Instant::ZERO + BELIEVED;
        assert_eq!(get(&peers, later), None);
        assert_eq!(peers.last(address), Some(mac));
        for k in 0..10_000_u32 {
            peers.remember(IpAddr::from(k.to_be_bytes()), [4; 6], Instant::ZERO);
        }
        assert_ne!(get(&peers, Instant::ZERO), Some([4; 6]));
    }
}
