//! Reads whose packets came: see [`crate::company`].

use std::collections::HashMap;

use libbpf_rs::{MapCore, MapFlags};
use plimsoll_core::demux::Kind;

use super::address::bound_address;
use super::{Program, types};
use crate::company::{Bound, Flood, Reading};
use crate::counters::Outcome;
use crate::error::Error;
use crate::protection::ProtectedPort;
use plimsoll_kernel::error::bpf;
use plimsoll_kernel::mapped::read_struct;

const UNKNOWN: usize = types::source_class::CLASS_UNKNOWN.0 as usize;

impl Program<'_> {
    /// Whose packets came so far: those of floods, by channel, and all others.
    pub(crate) fn company(&mut self) -> Result<Reading, Error> {
        let map = &self.skeleton.maps.totals;
        let by_cpu = map.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        let by_cpu = by_cpu.map_err(bpf("read the totals"))?.unwrap_or_default();
        let company = by_cpu
            .iter()
            .map(|value| read_struct::<types::totals>(value).company);
        let company = company.sum();
        self.read_channels();
        let mut floods: HashMap<Bound, Flood> = HashMap::new();
        for (slot, parts) in self.books.slots() {
            let Some(owner) = self.owner(slot) else {
                continue;
            };
            if Kind::ALL.get(usize::from(owner.kind)) != Some(&Kind::UdpSocket) {
                continue;
            }
            let flood = floods
                .entry((bound_address(&owner), owner.port))
                .or_default();
            flood.protected |= owner.protected != 0;
            flood.protected |= self
                .protection
                .ports
                .contains(&ProtectedPort::udp(owner.port));
            let mut queued = 0;
            for part in parts.of(&owner) {
                let unknown = part.judged[UNKNOWN];
                flood.packets += unknown.admitted + unknown.discarded;
                flood.admitted += part.packets[Outcome::Admitted as usize];
                queued = queued.max(part.queued);
            }
            flood.queued += u64::from(queued);
        }
        Ok(Reading { company, floods })
    }

    /// Whether whoever sends from some prefix is protected.
    pub(crate) fn protects_prefixes(&mut self) -> bool {
        self.settings().protect_prefixes != 0
    }
}
