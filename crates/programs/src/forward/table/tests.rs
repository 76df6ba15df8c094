//! Decisions, one by one, and against a plain model.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use plimsoll_kernel::routing::{Kind, Link, Route};
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::{prop_assert_eq, proptest};

use super::*;

const MAC: Mac = [2, 0, 0, 0, 0, 9];
const OUT: u32 = 3;

fn port(interface: u32) -> Port {
    Port {
        interface,
        station: [2, 0, 0, 0, 0, interface as u8],
        mtu: 0,
        is_running: false,
        switches: switches(ReversePath::Off, ReversePath::Off),
    }
}

fn switches(reverse_path_v4: ReversePath, reverse_path_v6: ReversePath) -> Switches {
    Switches {
        reverse_path_v4,
        reverse_path_v6,
        forwards_v4: true,
        forwards_v6: true,
    }
}

fn route(target: Target) -> Vec<Route> {
    vec![Route {
        kind: Kind::Main,
        metric: 0,
        tos: 0,
        interface: 0,
        next_hop: None,
        target,
    }]
}

fn via(interface: u32, gateway: &str) -> Target {
    Target::Forward(vec![hop(interface, gateway, 1)])
}

fn hop(interface: u32, gateway: &str, weight: u16) -> Hop {
    Hop {
        interface,
        gateway: gateway.parse().ok(),
        weight,
    }
}

/// Interfaces 2 and 3 are ours, 4 is not; `198.51.100.0/24` and `2001:db8:1::/48` are
/// behind 3.
fn state() -> State {
    let mut state = State::default();
    for index in 2..=4 {
        let link = Link {
            up: true,
            carrier: true,
            mtu: 1500,
            mac: Some([2, 0, 0, 0, 0, index as u8]),
        };
        state.links.insert(index, link);
    }
    let direct = |interface| Target::Forward(vec![hop(interface, "", 1)]);
    for (prefix, target) in [
        ("192.0.2.0/24", direct(2)),
        ("192.0.2.1/32", Target::Local),
        ("203.0.113.0/24", direct(OUT)),
        ("198.51.100.0/24", via(OUT, "203.0.113.9")),
        ("198.51.100.128/25", via(4, "10.0.0.9")),
        ("198.51.100.64/26", Target::Kernel),
        ("198.51.100.32/27", Target::Refused),
        ("2001:db8:1::/48", via(OUT, "2001:db8:2::9")),
        ("2001:db8::1/128", Target::Local),
    ] {
        state.routes.insert(prefix.parse().unwrap(), route(target));
    }
    for address in ["203.0.113.9", "2001:db8:2::9", "203.0.113.77"] {
        let neighbour = Neighbour {
            interface: OUT,
            address: address.parse().unwrap(),
        };
        state.neighbours.insert(neighbour, MAC);
    }
    state
}

fn table(state: &State) -> Table {
    Table::new(vec![port(2), port(OUT)], state)
}

fn packet(source: &str, destination: &str) -> Plain {
    Plain {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        ttl: 64,
        bytes: 100,
    }
}

fn to(destination: &str) -> Plain {
    let source = if destination.contains(':') {
        "2001:db8::7"
    } else {
        "192.0.2.7"
    };
    packet(source, destination)
}

#[test]
fn plain_packets_go_to_the_next_hop() {
    let table = table(&state());
    let next = Ok(Next {
        port: 1,
        station: MAC,
    });
    assert_eq!(table.decide(&to("198.51.100.9"), 0), next);
    assert_eq!(table.decide(&to("2001:db8:1::9"), 0), next);
    assert_eq!(table.decide(&to("203.0.113.77"), 0), next, "on the link");
}

#[test]
fn what_is_not_plain_is_told_by_its_cause() {
    let table = table(&state());
    let outcome = |packet: Plain| table.decide(&packet, 0).unwrap_err();
    assert_eq!(outcome(to("192.0.2.1")), Outcome::Local);
    assert_eq!(outcome(to("2001:db8::1")), Outcome::Local);
    assert_eq!(outcome(to("8.8.8.8")), Outcome::NoRoute);
    assert_eq!(outcome(to("203.0.113.78")), Outcome::NoNeighbour);
    assert_eq!(
        outcome(to("198.51.100.130")),
        Outcome::KernelRoute,
        "not our interface"
    );
    assert_eq!(
        outcome(to("198.51.100.65")),
        Outcome::KernelRoute,
        "a tunnel"
    );
    assert_eq!(outcome(to("198.51.100.33")), Outcome::NoRoute, "refused");
    let expired = |ttl| {
        outcome(Plain {
            ttl,
            ..to("198.51.100.9")
        })
    };
    assert_eq!(
        (expired(0), expired(1)),
        (Outcome::TtlExpired, Outcome::TtlExpired)
    );
    let own = Plain {
        ttl: 1,
        ..to("192.0.2.1")
    };
    assert_eq!(outcome(own), Outcome::Local, "as BGP's neighbours send it");
    let long = Plain {
        bytes: 1501,
        ..to("198.51.100.9")
    };
    assert_eq!(outcome(long), Outcome::TooBig);
    let longest = Plain {
        bytes: 1500,
        ..to("198.51.100.9")
    };
    assert!(table.decide(&longest, 0).is_ok());
}

#[test]
fn rules_and_the_kernels_switches_count() {
    let mut state = state();
    state.has_policy = true;
    assert_eq!(
        table(&state).decide(&to("198.51.100.9"), 0),
        Err(Outcome::KernelRoute)
    );
    assert_eq!(
        table(&state).decide(&to("192.0.2.1"), 0),
        Err(Outcome::Local)
    );
    state.has_policy = false;
    let mut off = port(2);
    off.switches.forwards_v4 = false;
    let mut table = Table::new(vec![off, port(OUT)], &state);
    assert_eq!(
        table.decide(&to("198.51.100.9"), 0),
        Err(Outcome::ForwardingOff)
    );
    assert!(table.decide(&to("2001:db8:1::9"), 0).is_ok());
    table.set_switches(&[port(2).switches]);
    assert!(table.decide(&to("198.51.100.9"), 0).is_ok());
}

/// Why a packet from this source is not sent on, if sources are looked at so.
fn refused(how: Switches, source: &str) -> Option<Outcome> {
    let first = Port {
        switches: how,
        ..port(2)
    };
    let table = Table::new(vec![first, port(OUT)], &state());
    let destination = match source.contains(':') {
        true => "2001:db8:1::9",
        false => "198.51.100.9",
    };
    table.decide(&packet(source, destination), 0).err()
}

#[test]
fn the_way_back_is_looked_at_as_asked() {
    use ReversePath::{Loose, Off, Strict};
    let (right, elsewhere, nowhere) = ("192.0.2.7", "203.0.113.7", "8.8.8.8");
    for source in [right, elsewhere, nowhere] {
        assert_eq!(refused(switches(Off, Strict), source), None);
    }
    let strict = |source| refused(switches(Strict, Off), source);
    let loose = |source| refused(switches(Loose, Off), source);
    let wrong = Some(Outcome::ReversePath);
    assert_eq!([strict(right), strict(elsewhere)], [None, wrong]);
    assert_eq!([loose(elsewhere), loose(nowhere)], [None, wrong]);
    assert_eq!(loose("198.51.100.33"), wrong, "refused");
    assert_eq!(strict("198.51.100.140"), wrong, "not our interface");
    // A tunnel may be the right way back.
    let tunnel = "198.51.100.65";
    assert_eq!(strict(tunnel), Some(Outcome::DoubtfulSource));
    assert_eq!(loose(tunnel), Some(Outcome::DoubtfulSource));
    assert_eq!(refused(switches(Off, Off), tunnel), None);
}

/// The kernel's `rp_filter` is for IPv4, and had counted for both.
#[test]
fn families_have_switches_of_their_own() {
    use ReversePath::{Off, Strict};
    let elsewhere = "2001:db8:1::7";
    assert_eq!(refused(switches(Strict, Off), elsewhere), None);
    let strict = switches(Off, Strict);
    assert_eq!(refused(strict, elsewhere), Some(Outcome::ReversePath));
}

/// They were forwarded, which no kernel does.
#[test]
fn packets_from_own_addresses_are_the_kernels() {
    use ReversePath::{Loose, Off, Strict};
    for how in [Off, Loose, Strict] {
        let refused = refused(switches(how, Off), "192.0.2.1");
        assert_eq!(refused, Some(Outcome::DoubtfulSource));
    }
    let own = "2001:db8::1";
    assert_eq!(refused(switches(Off, Off), own), None, "as the kernel does");
    let loose = refused(switches(Off, Loose), own);
    assert_eq!(loose, Some(Outcome::ReversePath));
}

/// Single addresses were known to the driver's program alone.
#[test]
fn own_prefixes_are_told_with_what_is_not_own_within_them() {
    let mut state = state();
    let within: IpNet = "192.0.2.64/26".parse().unwrap();
    let own: IpNet = "192.0.2.0/24".parse().unwrap();
    state.routes.insert(own, route(Target::Local));
    state.routes.insert(within, route(via(OUT, "203.0.113.9")));
    let mut table = table(&state);
    let expected = [
        ("192.0.2.0/24", PrefixKind::Own),
        ("192.0.2.1/32", PrefixKind::Own),
        ("192.0.2.64/26", PrefixKind::WithinOwn),
        ("2001:db8::1/128", PrefixKind::Own),
    ];
    let expected = expected.map(|(prefix, kind)| (prefix.to_owned(), kind));
    assert_eq!(told_own(&table), expected.clone().into());
    assert!(table.is_told(within) && table.is_told(own));
    assert!(!table.is_told("203.0.113.0/24".parse().unwrap()));
    assert!(!table.is_told("192.0.0.0/16".parse().unwrap()));
    state.routes.remove(&own);
    table.apply(Change::Routes(own), &state);
    let expected = [expected[1].clone(), expected[3].clone()];
    assert_eq!(told_own(&table), expected.into());
}

/// Longer prefixes had counted there, too.
#[test]
fn own_prefixes_of_ipv6_and_with_rules_come_first() {
    let mut state = state();
    for (own, within) in [
        ("2001:db8::/32", "2001:db8:1::/48"),
        ("198.51.0.0/16", "198.51.100.0/24"),
    ] {
        let (own, within): (IpNet, IpNet) = (own.parse().unwrap(), within.parse().unwrap());
        assert!(state.routes.contains_key(&within));
        state.routes.insert(own, route(Target::Local));
    }
    let mut table = table(&state);
    assert_eq!(table.decide(&to("2001:db8:1::9"), 0), Err(Outcome::Local));
    assert!(table.decide(&to("198.51.100.9"), 0).is_ok());
    assert_eq!(
        told_own(&table).get("198.51.100.0/24"),
        Some(&PrefixKind::WithinOwn)
    );
    assert_eq!(told_own(&table).get("2001:db8:1::/48"), None);
    state.has_policy = true;
    table.apply(Change::Everything, &state);
    assert!(
        told_own(&table)
            .into_values()
            .all(|kind| kind == PrefixKind::Own)
    );
    state.has_policy = false;
    table.apply(Change::Everything, &state);
    let own: IpNet = "2001:db8::/32".parse().unwrap();
    assert!(table.is_told(own));
    state.routes.remove(&own);
    table.apply(Change::Routes(own), &state);
    assert!(table.decide(&to("2001:db8:1::9"), 0).is_ok());
    assert!(!table.is_told(own));
}

/// Of own prefixes, and of what is within them.
fn told_own(table: &Table) -> BTreeMap<String, PrefixKind> {
    let is_of_own = |kind: &PrefixKind| matches!(kind, PrefixKind::Own | PrefixKind::WithinOwn);
    let mut told = told(table);
    told.retain(|_, kind| is_of_own(kind));
    told
}

fn told(table: &Table) -> BTreeMap<String, PrefixKind> {
    let prefixes = table.prefixes();
    prefixes
        .map(|(prefix, kind)| (prefix.to_string(), kind))
        .collect()
}

/// The driver's program sent on whatever a route's own MTU was.
#[test]
fn prefixes_that_the_kernel_forwards_to_are_told_with_others_within_them() {
    let mut state = state();
    let mut table = table(&state);
    let before = told(&table);
    for (kernels, within, own) in [
        ("198.51.0.0/16", "198.51.100.0/24", "198.51.7.1/32"),
        ("2001:db8::/32", "2001:db8:1::/48", "2001:db8:7::1/128"),
    ] {
        let (kernels, own): (IpNet, IpNet) = (kernels.parse().unwrap(), own.parse().unwrap());
        state.routes.insert(kernels, route(Target::Kernel));
        state.routes.insert(own, route(Target::Local));
        for prefix in [kernels, own] {
            table.apply(Change::Routes(prefix), &state);
            assert!(table.is_told(prefix));
        }
        assert!(table.has_kernel_routes() && table.is_told(within.parse().unwrap()));
        let told = told(&table);
        let kind = |prefix: &str| told.get(prefix).copied();
        assert_eq!(kind(&kernels.to_string()), Some(PrefixKind::Kernel));
        assert_eq!(kind(within), Some(PrefixKind::Other));
        assert_eq!(kind(&own.to_string()), Some(PrefixKind::Own));
        for prefix in [kernels, own] {
            state.routes.remove(&prefix);
            table.apply(Change::Routes(prefix), &state);
        }
        assert_eq!(self::told(&table), before);
    }
}

#[test]
fn changes_are_taken_over() {
    let mut state = state();
    let mut table = table(&state);
    let prefix: IpNet = "198.51.100.0/24".parse().unwrap();
    state.routes.insert(prefix, route(via(OUT, "203.0.113.78")));
    table.apply(Change::Routes(prefix), &state);
    assert_eq!(
        table.decide(&to("198.51.100.9"), 0),
        Err(Outcome::NoNeighbour)
    );
    let neighbour = Neighbour {
        interface: OUT,
        address: "203.0.113.78".parse().unwrap(),
    };
    state.neighbours.insert(neighbour, [4; 6]);
    table.apply(Change::Neighbour(neighbour), &state);
    assert_eq!(
        table.decide(&to("198.51.100.9"), 0).unwrap().station,
        [4; 6]
    );
    state.routes.remove(&prefix);
    table.apply(Change::Routes(prefix), &state);
    assert_eq!(table.decide(&to("198.51.100.9"), 0), Err(Outcome::NoRoute));
    state.links.get_mut(&OUT).unwrap().carrier = false;
    table.apply(Change::Everything, &state);
    assert_eq!(
        table.decide(&to("203.0.113.77"), 0),
        Err(Outcome::KernelRoute)
    );
    let own = told_own(&table);
    assert_eq!(own.len(), 2, "{own:?}");
}

#[test]
fn several_next_hops_share_by_weight_and_keep_their_flows() {
    let hops = [hop(OUT, "10.0.0.1", 1), hop(OUT, "10.0.0.2", 3)];
    let mut taken = [0u32; 2];
    for n in 0..4000u32 {
        let source = Ipv4Addr::from_bits(0x0a00_0000 + n);
        let packet = Plain {
            source: source.into(),
            ..to("198.51.100.9")
        };
        let hop = choose(&hops, packet.flow());
        assert_eq!(hop, choose(&hops, packet.flow()));
        taken[usize::from(hop == &hops[1])] += 1;
    }
    assert!((900..1100).contains(&taken[0]), "{taken:?}");
    assert_eq!(choose(&hops, u32::MAX), &hops[1]);
}

/// The longest prefix, found by looking at all of them.
fn plainly<'a>(routes: &'a [(IpNet, u16)], address: &IpAddr) -> Option<&'a (IpNet, u16)> {
    let matching = routes.iter().filter(|(prefix, _)| prefix.contains(address));
    matching.max_by_key(|(prefix, _)| prefix.prefix_len())
}

proptest! {
    #[test]
    fn the_longest_prefix_counts(
        prefixes in vec((any::<u128>(), 0u8..=128, any::<bool>()), 0..40),
        addresses in vec(any::<u128>(), 20),
    ) {
        // Few different bits, so that prefixes nest.
        let squeeze = |bits: u128| bits & 0xf000_0000_f000_0000_f000_0000_f000_0000;
        let address = |bits: u128, four: bool| if four {
            IpAddr::from(Ipv4Addr::from_bits((squeeze(bits) >> 64) as u32))
        } else {
            IpAddr::from(Ipv6Addr::from_bits(squeeze(bits)))
        };
        let mut routes: Vec<(IpNet, u16)> = Vec::new();
        for (number, (bits, length, four)) in prefixes.into_iter().enumerate() {
            let length = if four { length % 33 } else { length };
            let prefix = IpNet::new(address(bits, four), length).unwrap().trunc();
            if routes.iter().all(|(other, _)| *other != prefix) {
                routes.push((prefix, number as u16 + 1));
            }
        }
        let mut state = State::default();
        for (prefix, weight) in &routes {
            let target = Target::Forward(vec![hop(OUT, "", *weight)]);
            state.routes.insert(*prefix, route(target));
        }
        let table = table(&state);
        for bits in addresses {
            for four in [true, false] {
                let address = address(bits, four);
                let weight = table.target(address).map(|target| match target {
                    Target::Forward(hops) => hops[0].weight,
                    _ => 0,
                });
                let expected = plainly(&routes, &address).map(|(_, weight)| *weight);
                prop_assert_eq!(weight, expected, "{}", address);
            }
        }
    }
}
