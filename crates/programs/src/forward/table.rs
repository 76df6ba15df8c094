//! Where a plain packet goes: the kernel's routes, neighbours and links in the form
//! that a data path asks.
//!
//! Pure: [`Table::decide`] looks up and changes nothing; [`Table::apply`] takes over
//! what the mirror says has changed. Own addresses stand among the routes, as in the
//! kernel, and the longest prefix counts. Of several next hops the pair of addresses
//! chooses one.
//!
//! Whatever the table cannot decide is the kernel's: it has all the rules.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use plimsoll_kernel::routing::{Change, Hop, Neighbour, State, Target};
use plimsoll_stack::device::Mac;
use prefix_trie::PrefixMap;

use super::outcome::Outcome;
use super::packet::Plain;

/// How the source's way back is looked at (RFC 3704).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReversePath {
    /// Not at all.
    #[default]
    Off,
    /// It must lead to the interface that the packet came in by.
    Strict,
    /// There must be one.
    Loose,
}

/// An interface that is forwarded between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its index.
    pub interface: u32,
    /// Its Ethernet address.
    pub station: Mac,
    /// Longest IP packet, in bytes.
    pub mtu: usize,
    /// It is up and has a carrier.
    pub is_running: bool,
    /// For packets that come in by it.
    pub reverse_path: ReversePath,
    /// The kernel forwards IPv4 packets that come in by it.
    pub forwards_v4: bool,
    /// The same for IPv6.
    pub forwards_v6: bool,
}

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// Place of the port among the table's.
    pub port: usize,
    /// The next hop's Ethernet address.
    pub station: Mac,
}

/// The tables of a router.
#[derive(Clone, Debug, Default)]
pub struct Table {
    ports: Vec<Port>,
    v4: PrefixMap<Ipv4Net, Target>,
    v6: PrefixMap<Ipv6Net, Target>,
    neighbours: HashMap<Neighbour, Mac, foldhash::fast::RandomState>,
    has_policy: bool,
}

impl Table {
    /// A table for these ports, as the kernel's state is.
    #[must_use]
    pub fn new(ports: Vec<Port>, state: &State) -> Self {
        let mut table = Self {
            ports,
            ..Self::default()
        };
        table.take_all(state);
        table
    }

    /// The ports, in the order in which they were given.
    #[must_use]
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// This host's addresses as far as they are single ones.
    pub fn own(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let is_own = |target: &&Target| **target == Target::Local;
        let v4 = self.v4.iter().filter(move |(_, target)| is_own(target));
        let v6 = self.v6.iter().filter(move |(_, target)| is_own(target));
        let v4 = v4.filter(|(prefix, _)| prefix.prefix_len() == 32);
        let v6 = v6.filter(|(prefix, _)| prefix.prefix_len() == 128);
        let v4 = v4.map(|(prefix, _)| IpAddr::from(prefix.addr()));
        v4.chain(v6.map(|(prefix, _)| IpAddr::from(prefix.addr())))
    }

    /// Takes over what has changed. `state` is the state after the change.
    pub fn apply(&mut self, change: Change, state: &State) {
        match change {
            Change::Routes(prefix) => self.take_route(prefix, state),
            Change::Neighbour(neighbour) => match state.neighbours.get(&neighbour) {
                Some(mac) => drop(self.neighbours.insert(neighbour, *mac)),
                None => drop(self.neighbours.remove(&neighbour)),
            },
            Change::Everything => self.take_all(state),
        }
    }

    fn take_all(&mut self, state: &State) {
        self.v4.clear();
        self.v6.clear();
        for prefix in state.routes.keys() {
            self.take_route(*prefix, state);
        }
        self.neighbours = state.neighbours.iter().map(|(n, mac)| (*n, *mac)).collect();
        self.has_policy = state.has_policy;
        for port in &mut self.ports {
            let link = state.links.get(&port.interface);
            port.is_running = link.is_some_and(|link| link.up && link.carrier);
            if let Some(link) = link {
                port.mtu = link.mtu as usize;
                port.station = link.mac.unwrap_or(port.station);
            }
        }
    }

    fn take_route(&mut self, prefix: IpNet, state: &State) {
        let target = state.target(&prefix).cloned();
        match (prefix, target) {
            (IpNet::V4(prefix), Some(target)) => drop(self.v4.insert(prefix, target)),
            (IpNet::V4(prefix), None) => drop(self.v4.remove(&prefix)),
            (IpNet::V6(prefix), Some(target)) => drop(self.v6.insert(prefix, target)),
            (IpNet::V6(prefix), None) => drop(self.v6.remove(&prefix)),
        }
    }

    /// Where a packet that came in by the port in place `ingress` goes.
    ///
    /// # Errors
    ///
    /// Its outcome if it is not sent on from here.
    pub fn decide(&self, packet: &Plain, ingress: usize) -> Result<Next, Outcome> {
        let port = &self.ports[ingress];
        let target = self.target(packet.destination);
        if target == Some(&Target::Local) {
            return Err(Outcome::Local);
        }
        let forwards = match packet.destination {
            IpAddr::V4(_) => port.forwards_v4,
            IpAddr::V6(_) => port.forwards_v6,
        };
        if !forwards {
            return Err(Outcome::ForwardingOff);
        }
        if self.has_policy {
            return Err(Outcome::KernelRoute);
        }
        let hops = match target {
            None | Some(Target::Refused) => return Err(Outcome::NoRoute),
            Some(Target::Forward(hops)) => hops,
            Some(Target::Local | Target::Kernel) => return Err(Outcome::KernelRoute),
        };
        if !self.comes_from_where_it_should(packet.source, port) {
            return Err(Outcome::ReversePath);
        }
        if packet.ttl <= 1 {
            return Err(Outcome::TtlExpired);
        }
        self.towards(packet, choose(hops, packet.flow()))
    }

    fn towards(&self, packet: &Plain, hop: &Hop) -> Result<Next, Outcome> {
        let of_hop = |port: &Port| port.interface == hop.interface;
        let place = self.ports.iter().position(of_hop);
        let running = place.filter(|&place| self.ports[place].is_running);
        let port = running.ok_or(Outcome::KernelRoute)?;
        if packet.bytes > self.ports[port].mtu {
            return Err(Outcome::TooBig);
        }
        let neighbour = Neighbour {
            interface: hop.interface,
            address: hop.gateway.unwrap_or(packet.destination),
        };
        let station = self.neighbours.get(&neighbour).copied();
        let station = station.ok_or(Outcome::NoNeighbour)?;
        Ok(Next { port, station })
    }

    fn target(&self, address: IpAddr) -> Option<&Target> {
        match address {
            IpAddr::V4(address) => {
                let found = self.v4.get_lpm(&Ipv4Net::from(address));
                found.map(|(_, target)| target)
            }
            IpAddr::V6(address) => {
                let found = self.v6.get_lpm(&Ipv6Net::from(address));
                found.map(|(_, target)| target)
            }
        }
    }

    fn comes_from_where_it_should(&self, source: IpAddr, port: &Port) -> bool {
        if port.reverse_path == ReversePath::Off {
            return true;
        }
        let Some(Target::Forward(hops)) = self.target(source) else {
            return false;
        };
        let by_port = |hop: &Hop| hop.interface == port.interface;
        port.reverse_path == ReversePath::Loose || hops.iter().any(by_port)
    }
}

/// One of the next hops, by their weights.
fn choose(hops: &[Hop], flow: u32) -> &Hop {
    let total: u64 = hops.iter().map(|hop| u64::from(hop.weight)).sum();
    let mut left = (u64::from(flow) * total) >> 32;
    for hop in hops {
        match left.checked_sub(hop.weight.into()) {
            Some(rest) => left = rest,
            None => return hop,
        }
    }
    // A target has at least one hop, and `left` is below the sum of weights.
    &hops[hops.len() - 1]
}

#[cfg(test)]
mod tests;
