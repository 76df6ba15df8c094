//! Which client a received packet is for, by its netid (Ethernet type).
//!
//! Intuition: consecutive packets are often for the same client, so the search
//! can be skipped by trying a prediction first. The usual prediction, the last
//! packet's netid, is wrong after every packet of a protocol whose messages are
//! single packets (ARP). Here a netid becomes the prediction only if its packets
//! come in runs, which is measured, so that the driver need not know any protocol
//! (Tracey & Banerji, section 3.2). What is not predicted is found by hashing
//! instead of a linear search.
//!
//! The rule: after each run of equal netids its length moves that netid's
//! average by an eighth of the difference. A netid whose average, or whose
//! present run, is at least 2 is predicted until another qualifies. So a lone ARP
//! packet between IP packets leaves IP predicted.
//!
//! When it loses: if nearly all packets have one netid, any prediction is right
//! and this one costs a little more bookkeeping at the rare changes; if no netid
//! comes in runs, the comparison is for nothing.

use core::hash::BuildHasherDefault;

use hashbrown::HashMap;

use crate::config::{ConfigError, Field};

/// Average run lengths have this many fractional bits.
const RUN_FRACTION_BITS: u32 = 8;
/// Mean run from which the next packet is more likely the same than not.
const RUN_MIN: u32 = 2 << RUN_FRACTION_BITS;
/// Weight of the newest run: a shift, 1/8.
const RUN_WEIGHT_BITS: u32 = 3;
/// Longer runs count as this long; keeps the averages within 32 bits.
const RUN_MAX: u32 = 1 << 16;

/// Why a netid could not be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindError {
    /// Another client has it: only one may.
    AlreadyBound,
    /// The table is full: construct it larger.
    Full,
}

impl core::fmt::Display for BindError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::AlreadyBound => "the netid is bound to another client",
            Self::Full => "the netid table is full",
        })
    }
}

impl core::error::Error for BindError {}

/// How the predictions did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetidStatistics {
    /// Packets found by the prediction.
    pub predicted: u64,
    /// Packets found by hashing.
    pub searched: u64,
    /// Packets nobody wants.
    pub unbound: u64,
}

/// Multiplication by 2^64 divided by the golden ratio: netids are few and bound
/// by local clients, so nobody can provoke collisions.
#[derive(Debug, Default)]
struct NetidHasher(u64);

impl core::hash::Hasher for NetidHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u16((*byte).into());
        }
    }

    fn write_u16(&mut self, netid: u16) {
        self.0 = (self.0 ^ u64::from(netid)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry<C> {
    client: C,
    average_run: u32,
}

/// The table of bound netids and their clients.
#[derive(Debug)]
pub struct NetidTable<C> {
    entries: HashMap<u16, Entry<C>, BuildHasherDefault<NetidHasher>>,
    capacity: usize,
    prediction: Option<(u16, C)>,
    /// The last packet's netid and how many had it in a row.
    run: (u16, u32),
    statistics: NetidStatistics,
}

impl<C: Copy> NetidTable<C> {
    /// A table for up to `capacity` netids, at least 1.
    ///
    /// # Errors
    /// If the capacity is 0.
    pub fn new(capacity: u16) -> Result<Self, ConfigError> {
        let capacity = usize::from(capacity);
        Field("capacity", capacity).must_be_in(1.., "at least 1")?;
        Ok(Self {
            // Twice the room: so a table full of removed entries is cleaned up in
            // place instead of being allocated anew.
            entries: HashMap::with_capacity_and_hasher(2 * capacity, BuildHasherDefault::new()),
            capacity,
            prediction: None,
            run: (0, 0),
            statistics: NetidStatistics::default(),
        })
    }

    /// From now on packets with this netid are for `client`.
    ///
    /// # Errors
    /// If the netid is bound already or the table is full.
    pub fn bind(&mut self, netid: u16, client: C) -> Result<(), BindError> {
        if self.entries.contains_key(&netid) {
            return Err(BindError::AlreadyBound);
        }
        if self.entries.len() == self.capacity {
            return Err(BindError::Full);
        }
        let entry = Entry {
            client,
            average_run: RUN_MIN,
        };
        self.entries.insert(netid, entry);
        Ok(())
    }

    /// The client that had the netid, if anyone had.
    pub fn unbind(&mut self, netid: u16) -> Option<C> {
        if self.prediction.is_some_and(|(id, _)| id == netid) {
            self.prediction = None;
        }
        self.entries.remove(&netid).map(|entry| entry.client)
    }

    /// A packet arrived: the client it is for.
    pub fn on_packet(&mut self, netid: u16) -> Option<C> {
        self.count_run(netid);
        if let Some((predicted, client)) = self.prediction
            && predicted == netid
        {
            self.statistics.predicted += 1;
            return Some(client);
        }
        let Some(entry) = self.entries.get(&netid) else {
            self.statistics.unbound += 1;
            return None;
        };
        self.statistics.searched += 1;
        if entry.average_run >= RUN_MIN || self.run.1 >= RUN_MIN >> RUN_FRACTION_BITS {
            self.prediction = Some((netid, entry.client));
        }
        Some(entry.client)
    }

    /// How the predictions did so far.
    #[must_use]
    pub fn statistics(&self) -> NetidStatistics {
        self.statistics
    }

    fn count_run(&mut self, netid: u16) {
        let (last, length) = self.run;
        if last == netid {
            self.run.1 = length.saturating_add(1);
            return;
        }
        self.run = (netid, 1);
        if let Some(entry) = self.entries.get_mut(&last) {
            let length = length.min(RUN_MAX) << RUN_FRACTION_BITS;
            let average = entry.average_run;
            // Rounded towards the run, so that the average can reach it.
            entry.average_run = if length > average {
                average + (length - average).div_ceil(1 << RUN_WEIGHT_BITS)
            } else {
                average - (average - length).div_ceil(1 << RUN_WEIGHT_BITS)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const IP: u16 = 0x0800;
    const ARP: u16 = 0x0806;
    const NETWARE: u16 = 0x8137;

    fn table() -> NetidTable<&'static str> {
        let mut table = NetidTable::new(8).unwrap();
        table.bind(IP, "ip").unwrap();
        table.bind(ARP, "arp").unwrap();
        table.bind(NETWARE, "netware").unwrap();
        table
    }

    #[test]
    fn runs_are_found_without_a_search() {
        let mut table = table();
        for _ in 0..100 {
            assert_eq!(table.on_packet(IP), Some("ip"));
        }
        assert_eq!(table.statistics().predicted, 99);
        assert_eq!(table.on_packet(NETWARE), Some("netware"));
        assert_eq!(table.on_packet(0x86DD), None);
        assert_eq!(table.statistics().unbound, 1);
    }

    /// The last-netid rule mispredicts twice per ARP packet: the packet itself
    /// and the one behind it.
    #[test]
    fn single_packets_do_not_displace_a_prediction() {
        let mut table = table();
        for _ in 0..100 {
            for netid in [IP, IP, IP, ARP] {
                table.on_packet(netid);
            }
        }
        let before = table.statistics();
        for _ in 0..100 {
            for netid in [IP, IP, IP, ARP] {
                table.on_packet(netid);
            }
        }
        let after = table.statistics();
        assert_eq!(after.searched - before.searched, 100, "only ARP itself");
        assert_eq!(after.predicted - before.predicted, 300);
    }

    #[test]
    fn a_burst_is_recognised_at_its_second_packet() {
        let mut table = table();
        for _ in 0..100 {
            table.on_packet(IP);
            table.on_packet(ARP);
        }
        let before = table.statistics();
        for _ in 0..50 {
            table.on_packet(IP);
        }
        assert_eq!(table.statistics().searched - before.searched, 2);
        assert_eq!(table.statistics().predicted - before.predicted, 48);
    }

    #[test]
    fn one_client_per_netid_and_no_more_than_fit() {
        let mut table = NetidTable::new(2).unwrap();
        table.bind(IP, 1).unwrap();
        assert_eq!(table.bind(IP, 2), Err(BindError::AlreadyBound));
        table.bind(ARP, 2).unwrap();
        assert_eq!(table.bind(NETWARE, 3), Err(BindError::Full));
        table.on_packet(ARP);
        assert_eq!(table.unbind(ARP), Some(2));
        assert_eq!(table.on_packet(ARP), None, "the prediction went with it");
        table.bind(NETWARE, 3).unwrap();
        assert_eq!(table.on_packet(NETWARE), Some(3));
        assert_eq!(NetidTable::<u8>::new(0).unwrap_err().field, "capacity");
    }

    proptest! {
        /// Whatever is predicted, the client is the right one.
        #[test]
        fn finds_what_a_plain_map_finds(ops in prop::collection::vec((0_u8..6, 0_u16..12), 1..400)) {
            let mut table = NetidTable::new(8).unwrap();
            let mut model = BTreeMap::new();
            for (k, (op, netid)) in ops.into_iter().enumerate() {
                match op {
                    0 => {
                        let expected = if model.contains_key(&netid) {
                            Err(BindError::AlreadyBound)
                        } else if model.len() == 8 {
                            Err(BindError::Full)
                        } else {
                            model.insert(netid, k);
                            Ok(())
                        };
                        prop_assert_eq!(table.bind(netid, k), expected);
                    }
                    1 => prop_assert_eq!(table.unbind(netid), model.remove(&netid)),
                    _ => prop_assert_eq!(table.on_packet(netid), model.get(&netid).copied()),
                }
            }
        }
    }
}
