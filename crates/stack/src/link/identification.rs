//! The numbers of fragmented datagrams. Who gets one must not know others' (RFC 7739).

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

/// A number for each datagram. Between two ends they go up, so none comes again soon; where they
/// begin is a secret of each pair of ends.
#[derive(Debug, Default)]
pub(super) struct Identification {
    counter: AtomicU32,
    secret: RandomState,
}

impl Identification {
    pub(super) fn next(&self, source: IpAddr, destination: IpAddr) -> u32 {
        let begin = self.secret.hash_one((source, destination)) as u32;
        begin.wrapping_add(self.counter.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knows_its_own_numbers_does_not_know_those_of_others() {
        let ours: IpAddr = "10.0.0.2".parse().unwrap();
        let ids = Identification::default();
        let distances = (0..=255).map(|host| {
            let before = ids.next(ours, "192.0.2.1".parse().unwrap());
            let other = ids.next(ours, [10, 0, 0, host].into());
            let after = ids.next(ours, "192.0.2.1".parse().unwrap());
            assert_eq!(after.wrapping_sub(before), 2, "they go up");
            other.wrapping_sub(before)
        });
        // As IPv4 has them. Of 256 random ones more than eight are as near once in 10^15 runs.
        let near = distances
            .filter(|&distance| (distance as u16) < 256)
            .count();
        assert!(near <= 8, "{near}");
        let another = Identification::default();
        let starts: Vec<_> = (0..4).map(|host| [ours, [10, 9, 0, host].into()]).collect();
        let differs = |[from, to]: &[IpAddr; 2]| another.next(*from, *to) != ids.next(*from, *to);
        assert!(starts.iter().any(differs), "a secret of each stack");
    }
}
