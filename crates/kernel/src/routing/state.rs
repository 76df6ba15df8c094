//! What the kernel told, and how a notification changes it.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// `ip link set up` was said.
    pub up: bool,
    /// It has a carrier.
    pub carrier: bool,
    /// Longest IP packet, in bytes.
    pub mtu: u32,
    /// Its Ethernet address; nothing if it has none.
    pub mac: Option<[u8; 6]>,
}

/// A neighbour: its interface and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Neighbour {
    /// Index of the interface.
    pub interface: u32,
    /// Its IP address.
    pub address: IpAddr,
}

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// Index of the interface.
    pub interface: u32,
    /// The router; nothing if the destination itself is a neighbour.
    pub gateway: Option<IpAddr>,
    /// Its part of the traffic, beside those of the others; at least 1.
    pub weight: u16,
}

/// What a route does with a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// It is this host's.
    Local,
    /// To one of these; not empty.
    Forward(Vec<Hop>),
    /// It is refused: unreachable, prohibited or thrown away.
    Refused,
    /// The kernel decides by more than a next hop: tunnels, types of service.
    Kernel,
}

/// Of which table a route is. For IPv4 without policy rules the kernel looks into both at
/// once: the longest prefix counts, and of equal ones that of `local`. Otherwise it asks `local`
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Table `local`.
    Local,
    /// Table `main`.
    Main,
}

/// A route of a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Its table.
    pub kind: Kind,
    /// The least is taken.
    pub metric: u32,
    /// For packets of this type of service alone, if not 0.
    pub tos: u8,
    /// Index of the interface that it belongs to, which tells own addresses and groups
    /// of several interfaces apart; 0 if it is of none or of several.
    pub interface: u32,
    /// The number of the next hop object that it goes by, if it does (`ip nexthop`).
    pub next_hop: Option<u32>,
    /// What is done.
    pub target: Target,
}

/// Where a route goes among those of its prefix and metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    First,
    Last,
    /// In the place of the first.
    Replaces,
}

impl Route {
    fn has_key_of(&self, other: &Self) -> bool {
        (self.kind, self.metric, self.tos) == (other.kind, other.metric, other.tos)
    }
}

/// The kernel's routing state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Interfaces by index.
    pub links: HashMap<u32, Link>,
    /// Routes by prefix. Of several with the same metric the first counts.
    pub routes: HashMap<IpNet, Vec<Route>>,
    /// Ethernet addresses of the neighbours that have a valid one.
    pub neighbours: HashMap<Neighbour, [u8; 6]>,
    /// There are routing rules beyond the default ones.
    pub has_policy: bool,
}

/// An entry that differs between two states.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Difference {
    Link(u32),
    Routes(IpNet),
    Neighbour(Neighbour),
    Policy,
}

impl State {
    /// What counts of the routes of `prefix`.
    #[must_use]
    pub fn target(&self, prefix: &IpNet) -> Option<&Target> {
        let routes = self.routes.get(prefix)?;
        if routes.iter().any(|route| route.tos != 0) {
            return Some(&Target::Kernel);
        }
        // The first of the least: min_by_key takes the first of equals.
        let route = routes.iter().min_by_key(|route| (route.kind, route.metric));
        route.map(|route| &route.target)
    }

    /// Whether anything changed; `None` if the notification does not tell enough.
    pub(super) fn add_route(&mut self, prefix: IpNet, route: Route, place: Place) -> Option<bool> {
        let routes = self.routes.entry(prefix).or_default();
        if routes.contains(&route) {
            return Some(false);
        }
        let first = routes.iter().position(|other| other.has_key_of(&route));
        let is_ipv6 = prefix.addr().is_ipv6();
        match (first, place) {
            (None, _) => routes.push(route),
            (Some(first), Place::Replaces) => routes[first] = route,
            // IPv6 adds it to the next hops that are there.
            (Some(_), _) if is_ipv6 && route.target != Target::Local => return None,
            (Some(first), Place::First) if !is_ipv6 => routes.insert(first, route),
            (Some(_), _) => routes.push(route),
        }
        Some(true)
    }

    /// Whether a route goes by this next hop object.
    pub(super) fn goes_by(&self, next_hop: u32) -> bool {
        let mut routes = self.routes.values().flatten();
        routes.any(|route| route.next_hop == Some(next_hop))
    }

    /// Whether it was there.
    pub(super) fn remove_route(&mut self, prefix: IpNet, route: &Route) -> bool {
        let Some(routes) = self.routes.get_mut(&prefix) else {
            return false;
        };
        let place = routes.iter().position(|other| other == route);
        // A route whose next hops died meanwhile is told with other ones.
        let place = place.or_else(|| routes.iter().position(|other| other.has_key_of(route)));
        let Some(place) = place else { return false };
        routes.remove(place);
        if routes.is_empty() {
            self.routes.remove(&prefix);
        }
        true
    }

    /// Whether anything changed.
    pub(super) fn set_neighbour(&mut self, neighbour: Neighbour, mac: Option<[u8; 6]>) -> bool {
        match mac {
            Some(mac) => self.neighbours.insert(neighbour, mac) != Some(mac),
            None => self.neighbours.remove(&neighbour).is_some(),
        }
    }

    /// The entries that are not the same in `other`. The order of routes of one prefix
    /// does not count: notifications do not tell all of it.
    pub(super) fn differences(&self, other: &Self) -> HashSet<Difference> {
        let mut differences = HashSet::new();
        differences.extend(unequal(&self.links, &other.links).map(Difference::Link));
        differences.extend(unequal(&self.neighbours, &other.neighbours).map(Difference::Neighbour));
        let prefixes = self.routes.keys().chain(other.routes.keys());
        let targets = prefixes.filter(|prefix| self.target(prefix) != other.target(prefix));
        differences.extend(targets.copied().map(Difference::Routes));
        differences.extend((self.has_policy != other.has_policy).then_some(Difference::Policy));
        differences
    }
}

/// Keys whose values are not the same in both.
fn unequal<'a, K: Copy + Eq + std::hash::Hash, V: PartialEq>(
    one: &'a HashMap<K, V>,
    other: &'a HashMap<K, V>,
) -> impl Iterator<Item = K> + 'a {
    let keys = one.keys().chain(other.keys()).copied();
    keys.filter(|key| one.get(key) != other.get(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(metric: u32, gateway: &str) -> Route {
        Route {
            kind: Kind::Main,
            metric,
            tos: 0,
            interface: 2,
            next_hop: None,
            target: Target::Forward(vec![Hop {
                interface: 2,
                gateway: Some(gateway.parse().unwrap()),
                weight: 1,
            }]),
        }
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn own_addresses_come_first_then_the_least_metric() {
        let mut state = State::default();
        let prefix = net("10.0.0.1/32");
        let (near, far) = (route(1, "10.0.0.2"), route(9, "10.0.0.3"));
        assert_eq!(
            state.add_route(prefix, far.clone(), Place::Last),
            Some(true)
        );
        assert_eq!(
            state.add_route(prefix, near.clone(), Place::Last),
            Some(true)
        );
        assert_eq!(state.target(&prefix), Some(&near.target));
        let own = Route {
            kind: Kind::Local,
            target: Target::Local,
            ..far.clone()
        };
        assert_eq!(
            state.add_route(prefix, own.clone(), Place::Last),
            Some(true)
        );
        assert_eq!(state.target(&prefix), Some(&Target::Local));
        assert!(state.remove_route(prefix, &own));
        assert!(state.remove_route(prefix, &near));
        assert_eq!(state.target(&prefix), Some(&far.target));
        assert!(state.remove_route(prefix, &far));
        assert!(state.routes.is_empty());
        assert!(!state.remove_route(prefix, &far), "told twice");
    }

    #[test]
    fn an_equal_metric_is_appended_replaced_or_asked_for() {
        let mut state = State::default();
        let (first, second) = (route(1, "10.0.0.2"), route(1, "10.0.0.3"));
        let four = net("10.1.0.0/16");
        assert_eq!(
            state.add_route(four, first.clone(), Place::Last),
            Some(true)
        );
        assert_eq!(
            state.add_route(four, first.clone(), Place::Last),
            Some(false)
        );
        assert_eq!(
            state.add_route(four, second.clone(), Place::Last),
            Some(true)
        );
        assert_eq!(state.target(&four), Some(&first.target));
        let prepended = route(1, "10.0.0.5");
        assert_eq!(
            state.add_route(four, prepended.clone(), Place::First),
            Some(true)
        );
        assert_eq!(state.target(&four), Some(&prepended.target));
        let third = route(1, "10.0.0.4");
        assert_eq!(
            state.add_route(four, third.clone(), Place::Replaces),
            Some(true)
        );
        assert_eq!(state.target(&four), Some(&third.target));
        let six = net("2001:db8::/32");
        assert_eq!(state.add_route(six, first, Place::Last), Some(true));
        assert_eq!(state.add_route(six, second, Place::Last), None);
    }

    #[test]
    fn a_route_for_a_type_of_service_is_the_kernels() {
        let mut state = State::default();
        let prefix = net("10.1.0.0/16");
        let special = Route {
            tos: 0x10,
            ..route(1, "10.0.0.2")
        };
        state.add_route(prefix, route(1, "10.0.0.3"), Place::Last);
        state.add_route(prefix, special, Place::Last);
        assert_eq!(state.target(&prefix), Some(&Target::Kernel));
    }

    #[test]
    fn differences_are_found_in_both_directions() {
        let (mut one, mut other) = (State::default(), State::default());
        let neighbour = Neighbour {
            interface: 2,
            address: "10.0.0.2".parse().unwrap(),
        };
        one.set_neighbour(neighbour, Some([2; 6]));
        other.add_route(net("10.1.0.0/16"), route(1, "10.0.0.2"), Place::Last);
        other.has_policy = true;
        let expected = HashSet::from([
            Difference::Neighbour(neighbour),
            Difference::Routes(net("10.1.0.0/16")),
            Difference::Policy,
        ]);
        assert_eq!(one.differences(&other), expected);
        assert_eq!(other.differences(&one), expected);
        assert!(one.differences(&one).is_empty());
    }
}
