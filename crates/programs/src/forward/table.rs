//! Where a plain packet goes: the kernel's routes, neighbours and links in the form
//! that a data path asks.
//!
//! Pure: [`Table::decide`] looks up and changes nothing; [`Table::apply`] takes over
//! what the mirror says has changed. The longest prefix counts. As in the kernel, own
//! addresses of IPv4 stand among the routes, and those of IPv6 come before them. Of several
//! next hops the pair of addresses chooses one.
//!
//! Whatever the table cannot decide is the kernel's: it has all the rules.
//!
//! **Limits.** Once it had a routing rule, the kernel keeps own addresses and routes of IPv4 in
//! separate tables, also when the last rule has gone. Nothing tells of that. Own prefixes come
//! first there, and here longer ones do.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use plimsoll_kernel::routing::{Change, Hop, Neighbour, State, Target};
use plimsoll_stack::device::Mac;
use prefix_trie::{Prefix, PrefixMap};

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

/// What the kernel's switches of an interface say, and whoever asked for something else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// For IPv4 packets that come in by it.
    pub reverse_path_v4: ReversePath,
    /// The same for IPv6, for which the kernel has no such switch.
    pub reverse_path_v6: ReversePath,
    /// The kernel forwards IPv4 packets that come in by it.
    pub forwards_v4: bool,
    /// The same for IPv6.
    pub forwards_v6: bool,
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
    /// What may come in by it.
    pub switches: Switches,
}

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// Place of the port among the table's.
    pub port: usize,
    /// The next hop's Ethernet address.
    pub station: Mac,
}

/// What a prefix is to the driver's program, which else asks the kernel's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixKind {
    /// Not all this host's, but within a prefix that is.
    WithinOwn,
    /// All this host's.
    Own,
    /// The kernel forwards what is for it: the look-up for XDP leaves out a route's own MTU.
    Kernel,
    /// Within such a prefix, and none itself.
    Other,
}

/// The tables of a router.
#[derive(Clone, Debug, Default)]
pub struct Table {
    ports: Vec<Port>,
    v4: PrefixMap<Ipv4Net, Target>,
    v6: PrefixMap<Ipv6Net, Target>,
    /// All [`Target::Local`].
    own_v6: PrefixMap<Ipv6Net, Target>,
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

    /// The prefixes that the driver's program is told of, in the order of their weight: own ones,
    /// those that are the kernel's to forward to, and what is within either.
    pub fn prefixes(&self) -> impl Iterator<Item = (IpNet, PrefixKind)> + '_ {
        // With rules the kernel asks own prefixes first, as it always does for IPv6.
        let own = within(&self.v4, is_local).filter_map(|(prefix, target)| {
            let kind = match is_local(target) {
                true => PrefixKind::Own,
                false if self.has_policy => return None,
                false => PrefixKind::WithinOwn,
            };
            Some((prefix.into(), kind))
        });
        let own_v6 = self.own_v6.keys();
        let own = own.chain(own_v6.map(|prefix| (prefix.into(), PrefixKind::Own)));
        let kernel = |is_kernel| {
            let v4 = within(&self.v4, is_for_kernel).map(|(prefix, to)| (prefix.into(), to));
            let v6 = within(&self.v6, is_for_kernel).map(|(prefix, to)| (prefix.into(), to));
            let of_kind = move |(_, to): &(IpNet, &Target)| is_for_kernel(to) == is_kernel;
            let prefixes = v4.chain(v6).filter(of_kind).map(|(prefix, _)| prefix);
            prefixes.filter(|prefix| !self.is_of_own(*prefix))
        };
        let kernels = kernel(true).map(|prefix| (prefix, PrefixKind::Kernel));
        let others = kernel(false).map(|prefix| (prefix, PrefixKind::Other));
        own.chain(kernels).chain(others)
    }

    /// Whether a route leads where the kernel alone forwards to.
    #[must_use]
    pub fn has_kernel_routes(&self) -> bool {
        let mut targets = self.v4.values().chain(self.v6.values());
        targets.any(is_for_kernel)
    }

    /// Whether [`Self::prefixes`] may depend on what this prefix is.
    #[must_use]
    pub fn is_told(&self, prefix: IpNet) -> bool {
        let is_of_kernel = match prefix {
            IpNet::V4(prefix) => self.v4.cover_values(&prefix).any(is_for_kernel),
            IpNet::V6(prefix) => self.v6.cover_values(&prefix).any(is_for_kernel),
        };
        is_of_kernel || self.is_of_own(prefix)
    }

    /// Whether a prefix is this host's, or within such a one.
    fn is_of_own(&self, prefix: IpNet) -> bool {
        match prefix {
            IpNet::V4(prefix) => self.v4.cover_values(&prefix).any(is_local),
            IpNet::V6(prefix) => self.own_v6.cover_values(&prefix).next().is_some(),
        }
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

    /// The ports' switches are these from now on, in their order.
    pub fn set_switches(&mut self, switches: &[Switches]) {
        for (port, switches) in self.ports.iter_mut().zip(switches) {
            port.switches = *switches;
        }
    }

    fn take_all(&mut self, state: &State) {
        self.v4.clear();
        self.v6.clear();
        self.own_v6.clear();
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
        match prefix {
            IpNet::V4(prefix) => put(&mut self.v4, prefix, target),
            IpNet::V6(prefix) => {
                let (own, other) = match target {
                    Some(Target::Local) => (target, None),
                    _ => (None, target),
                };
                put(&mut self.own_v6, prefix, own);
                put(&mut self.v6, prefix, other);
            }
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
            IpAddr::V4(_) => port.switches.forwards_v4,
            IpAddr::V6(_) => port.switches.forwards_v6,
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
        self.examine_source(packet.source, port)?;
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
                let address = Ipv6Net::from(address);
                let own = self.own_v6.get_lpm(&address);
                let found = own.or_else(|| self.v6.get_lpm(&address));
                found.map(|(_, target)| target)
            }
        }
    }

    /// By all ways back. Linux takes no IPv4 packet that claims to be from itself, unless
    /// `accept_local` says so. It forwards those of IPv6.
    fn examine_source(&self, source: IpAddr, port: &Port) -> Result<(), Outcome> {
        let how = match source {
            IpAddr::V4(_) => port.switches.reverse_path_v4,
            IpAddr::V6(_) => port.switches.reverse_path_v6,
        };
        if how == ReversePath::Off && source.is_ipv6() {
            return Ok(());
        }
        let hops = match self.target(source) {
            Some(Target::Local) if source.is_ipv4() => return Err(Outcome::DoubtfulSource),
            _ if how == ReversePath::Off => return Ok(()),
            Some(Target::Forward(hops)) => hops,
            Some(Target::Kernel) => return Err(Outcome::DoubtfulSource),
            None | Some(Target::Local | Target::Refused) => return Err(Outcome::ReversePath),
        };
        let is_right =
            how == ReversePath::Loose || hops.iter().any(|hop| hop.interface == port.interface);
        is_right.then_some(()).ok_or(Outcome::ReversePath)
    }
}

fn is_local(target: &Target) -> bool {
    *target == Target::Local
}

fn is_for_kernel(target: &Target) -> bool {
    *target == Target::Kernel
}

fn put<P: Prefix>(routes: &mut PrefixMap<P, Target>, prefix: P, target: Option<Target>) {
    match target {
        Some(target) => drop(routes.insert(prefix, target)),
        None => drop(routes.remove(&prefix)),
    }
}

/// The prefixes of which this holds, and those within them.
fn within<P: Prefix>(
    routes: &PrefixMap<P, Target>,
    holds: impl Fn(&Target) -> bool,
) -> impl Iterator<Item = (P, &Target)> {
    let outer = routes.iter().filter(move |(_, target)| holds(target));
    outer.flat_map(|(prefix, _)| routes.children(&prefix))
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
