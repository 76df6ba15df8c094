//! What the program has to know of ports.

use std::collections::BTreeMap;

use libbpf_rs::{MapCore, MapFlags};

use super::types::port_property;
use crate::hidden;
use crate::owner::diag::Protocol;
use crate::protection::{ProtectedPort, Transport};

/// Bits of `enum port_property` by port.
type Properties = BTreeMap<u16, u8>;

/// What the map of ports has. Nobody else writes it.
#[derive(Debug, Default)]
pub(super) struct Ports {
    protected: Properties,
    hidden: Properties,
}

impl Ports {
    pub(super) fn set_protected(
        &mut self,
        map: &impl MapCore,
        ports: &[ProtectedPort],
    ) -> libbpf_rs::Result<()> {
        let bit = |transport| match transport {
            Transport::Tcp => port_property::PROTECTED_TCP,
            Transport::Udp => port_property::PROTECTED_UDP,
        };
        let new = ports.iter().map(|one| (one.port, bit(one.transport)));
        let old = std::mem::replace(&mut self.protected, properties(new));
        self.store(map, &old)
    }

    pub(super) fn set_hidden(
        &mut self,
        map: &impl MapCore,
        ports: &hidden::Ports,
    ) -> libbpf_rs::Result<()> {
        let new = ports.some.iter();
        let new = new.map(|(protocol, port)| (*port, hidden_of(*protocol)));
        let new = properties(new);
        if new == self.hidden {
            return Ok(());
        }
        let old = std::mem::replace(&mut self.hidden, new);
        self.store(map, &old)
    }

    /// Writes all ports that have properties now, and those that had some before.
    fn store(&self, map: &impl MapCore, before: &Properties) -> libbpf_rs::Result<()> {
        for port in [before, &self.protected, &self.hidden]
            .into_iter()
            .flat_map(|all| all.keys())
        {
            let of = |properties: &Properties| properties.get(port).copied().unwrap_or(0);
            let value = of(&self.protected) | of(&self.hidden);
            map.update(&u32::from(*port).to_ne_bytes(), &[value], MapFlags::ANY)?;
        }
        Ok(())
    }
}

/// Whether some ports have hidden sockets, and those of which protocol all may have; and whether
/// what comes for any may be for other hosts.
pub(super) fn hiding(ports: &hidden::Ports) -> u8 {
    let every = ports.every.iter().map(|one| hidden_of(one.protocol));
    let some = (!ports.some.is_empty()).then_some(port_property::HIDDEN_SOMEWHERE);
    let leaves = ports.every.iter().any(|one| one.taker.may_send_on());
    let leaves = leaves.then_some(port_property::MAY_LEAVE);
    let all = every.chain(some).chain(leaves);
    all.fold(0, |bits, bit| bits | bit.0 as u8)
}

fn hidden_of(protocol: Protocol) -> port_property {
    match protocol {
        Protocol::Tcp => port_property::HIDDEN_TCP,
        Protocol::Udp => port_property::HIDDEN_UDP,
    }
}

fn properties(bits: impl Iterator<Item = (u16, port_property)>) -> Properties {
    let mut properties = Properties::new();
    for (port, bit) in bits {
        *properties.entry(port).or_default() |= bit.0 as u8;
    }
    properties
}
