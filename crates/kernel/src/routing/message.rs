//! Messages of rtnetlink(7) as events. Netlink's own decoders read the attributes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_bindings::{rt_link, rt_neigh, rt_route, rt_rule};

use super::state::{Hop, Kind, Link, Neighbour, Place, Route, Target};

/// A notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Route {
        prefix: IpNet,
        route: Route,
        place: Place,
    },
    RouteGone {
        prefix: IpNet,
        route: Route,
    },
    /// Its Ethernet address, if it has a valid one.
    Neighbour(Neighbour, Option<[u8; 6]>),
    /// `None`: it is gone.
    Link(u32, Option<Link>),
    /// Some own address came or went.
    Address,
    /// Some rule came or went.
    Rule,
    /// This next hop object came, went, or changed.
    NextHop(u32),
    /// Some switch of an interface was turned, such as forwarding.
    Switch,
    /// About nothing that is mirrored.
    Other,
    /// A message that is too short for its type.
    Unreadable,
}

/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
const NLMSG_ALIGN: usize = 4;
const ROUTE_BYTES: usize = size_of::<rt_route::Rtmsg>();
const NEIGHBOUR_BYTES: usize = size_of::<rt_neigh::Ndmsg>();
const LINK_BYTES: usize = size_of::<rt_link::Ifinfomsg>();
/// `struct rtnexthop`.
const NEXT_HOP_BYTES: usize = 8;
/// `struct nhmsg`, `NHA_ID` of linux/nexthop.h, and messages about next hop objects.
const NEXT_HOP_OBJECT_BYTES: usize = 8;
const NHA_ID: u16 = 1;
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_DELNEXTHOP: u16 = 105;
/// Of linux/rtnetlink.h, which has no name in libc.
const RTM_NEWNETCONF: u16 = 80;
/// Table numbers of linux/rtnetlink.h.
const TABLE_LOCAL: u32 = libc::RT_TABLE_LOCAL as u32;
const TABLE_MAIN: u32 = libc::RT_TABLE_MAIN as u32;
const TABLE_DEFAULT: u32 = libc::RT_TABLE_DEFAULT as u32;
/// A neighbour in one of these states has a valid address (`NUD_VALID`).
const VALID: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_PROBE
    | libc::NUD_STALE
    | libc::NUD_DELAY;
/// A route learnt by a redirect or path MTU, not one of the table (`RTM_F_CLONED`).
pub(super) const CLONED: u32 = 0x200;
/// A next hop that cannot be used: `RTNH_F_DEAD`, `RTNH_F_LINKDOWN`.
const UNUSABLE: u8 = 1 | 16;

/// The events of a datagram.
pub(super) fn events(datagram: &[u8]) -> impl Iterator<Item = Event> + '_ {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length: [u8; 4] = rest.get(..4)?.try_into().ok()?;
        let length = u32::from_ne_bytes(length) as usize;
        if length < HEADER_BYTES || length > rest.len() {
            return None;
        }
        let message = &rest[..length];
        rest = rest
            .get(length.next_multiple_of(NLMSG_ALIGN)..)
            .unwrap_or(&[]);
        Some(event(message))
    })
}

fn event(message: &[u8]) -> Event {
    let number = |at: usize| u16::from_ne_bytes([message[at], message[at + 1]]);
    let (kind, flags) = (number(4), number(6));
    let body = &message[HEADER_BYTES..];
    let event = match kind {
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => {
            route_event(body, kind == libc::RTM_NEWROUTE, flags)
        }
        libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => neighbour_event(body, kind),
        libc::RTM_NEWLINK | libc::RTM_DELLINK => link_event(body, kind),
        libc::RTM_NEWADDR | libc::RTM_DELADDR => Some(Event::Address),
        libc::RTM_NEWRULE | libc::RTM_DELRULE => Some(Event::Rule),
        RTM_NEWNEXTHOP | RTM_DELNEXTHOP => next_hop_event(body),
        RTM_NEWNETCONF => Some(Event::Switch),
        _ => Some(Event::Other),
    };
    event.unwrap_or(Event::Unreadable)
}

fn route_event(body: &[u8], is_new: bool, flags: u16) -> Option<Event> {
    let header = rt_route::Rtmsg::new_from_slice(body.get(..ROUTE_BYTES)?)?;
    let attributes = rt_route::RouteAttrs::new(&body[ROUTE_BYTES..]);
    let Some((prefix, route)) = route(&header, &attributes) else {
        return Some(Event::Other);
    };
    Some(if is_new {
        let is = |flag| i32::from(flags) & flag != 0;
        let place = match is(libc::NLM_F_APPEND | libc::NLM_F_EXCL) {
            _ if is(libc::NLM_F_REPLACE) => Place::Replaces,
            true => Place::Last,
            false => Place::First,
        };
        Event::Route {
            prefix,
            route,
            place,
        }
    } else {
        Event::RouteGone { prefix, route }
    })
}

/// Its number is the first attribute.
fn next_hop_event(body: &[u8]) -> Option<Event> {
    let attribute = body.get(NEXT_HOP_OBJECT_BYTES..)?.get(..8)?;
    let id: [u8; 4] = attribute[4..].try_into().ok()?;
    let is_id = u16::from_ne_bytes([attribute[2], attribute[3]]) == NHA_ID;
    is_id.then_some(Event::NextHop(u32::from_ne_bytes(id)))
}

fn neighbour_event(body: &[u8], kind: u16) -> Option<Event> {
    let header = rt_neigh::Ndmsg::new_from_slice(body.get(..NEIGHBOUR_BYTES)?)?;
    let attributes = rt_neigh::NeighbourAttrs::new(&body[NEIGHBOUR_BYTES..]);
    Some(match neighbour(&header, &attributes) {
        Some((neighbour, mac)) => {
            Event::Neighbour(neighbour, mac.filter(|_| kind == libc::RTM_NEWNEIGH))
        }
        None => Event::Other,
    })
}

fn link_event(body: &[u8], kind: u16) -> Option<Event> {
    let header = rt_link::Ifinfomsg::new_from_slice(body.get(..LINK_BYTES)?)?;
    let attributes = rt_link::LinkAttrs::new(&body[LINK_BYTES..]);
    // Bridges tell about their ports in a message of their own family.
    if header.ifi_family != 0 {
        return Some(Event::Other);
    }
    let (index, link) = link(&header, &attributes);
    Some(Event::Link(
        index,
        (kind == libc::RTM_NEWLINK).then_some(link),
    ))
}

/// An interface and its index.
pub(super) fn link(
    header: &rt_link::Ifinfomsg,
    attributes: &rt_link::IterableLinkAttrs<'_>,
) -> (u32, Link) {
    let flag = |flag: i32| header.ifi_flags & flag.cast_unsigned() != 0;
    let mac = attributes.get_address().ok();
    let link = Link {
        up: flag(libc::IFF_UP),
        carrier: flag(libc::IFF_LOWER_UP),
        mtu: attributes.get_mtu().unwrap_or(0),
        mac: mac.and_then(|mac| mac.try_into().ok()),
    };
    (header.ifi_index.cast_unsigned(), link)
}

/// Whether it is one of those that the kernel makes: look into `local`, `main` and
/// `default`, whatever the packet.
pub(super) fn is_default_rule(
    header: &rt_rule::FibRuleHdr,
    attributes: &rt_rule::IterableFibRuleAttrs<'_>,
) -> bool {
    if !is_ip(header.family) {
        return true;
    }
    let table = attributes.get_table().unwrap_or(header.table.into());
    let priority = attributes.get_priority().unwrap_or(0);
    let place = matches!(
        (priority, table),
        (0, TABLE_LOCAL) | (32766, TABLE_MAIN) | (32767, TABLE_DEFAULT)
    );
    let has_selector = header.src_len != 0
        || header.dst_len != 0
        || header.tos != 0
        || attributes.get_iifname().is_ok()
        || attributes.get_oifname().is_ok()
        || attributes.get_fwmark().is_ok();
    place && !has_selector
}

/// A neighbour and its Ethernet address; nothing if it is none of an IP address.
pub(super) fn neighbour(
    header: &rt_neigh::Ndmsg,
    attributes: &rt_neigh::IterableNeighbourAttrs<'_>,
) -> Option<(Neighbour, Option<[u8; 6]>)> {
    if !is_ip(header.ndm_family) {
        return None;
    }
    let neighbour = Neighbour {
        interface: header.ndm_ifindex.cast_unsigned(),
        address: attributes.get_dst().ok()?,
    };
    let mac = attributes.get_lladdr().ok();
    let mac = mac.and_then(|mac| mac.try_into().ok());
    Some((neighbour, mac.filter(|_| header.ndm_state & VALID != 0)))
}

/// A route and its prefix; nothing if it is of no table that is mirrored.
pub(super) fn route(
    header: &rt_route::Rtmsg,
    attributes: &rt_route::IterableRouteAttrs<'_>,
) -> Option<(IpNet, Route)> {
    let table = attributes.get_table().unwrap_or(header.rtm_table.into());
    let kind = match table {
        TABLE_LOCAL => Kind::Local,
        TABLE_MAIN => Kind::Main,
        // The kernel looks into `default` for what `main` does not have: who decides
        // by the mirror has no route for that, and leaves it to the kernel.
        _ => return None,
    };
    if !is_ip(header.rtm_family) || header.rtm_flags & CLONED != 0 {
        return None;
    }
    let any = match i32::from(header.rtm_family) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let destination = attributes.get_dst().unwrap_or(any);
    let prefix = IpNet::new(destination, header.rtm_dst_len).ok()?.trunc();
    let route = Route {
        kind,
        metric: attributes.get_priority().unwrap_or(0),
        tos: header.rtm_tos,
        interface: attributes.get_oif().unwrap_or(0),
        next_hop: attributes.get_nh_id().ok(),
        target: target(header, attributes),
    };
    Some((prefix, route))
}

fn target(header: &rt_route::Rtmsg, attributes: &rt_route::IterableRouteAttrs<'_>) -> Target {
    use rt_route::RouteAttrs;
    match header.rtm_type {
        libc::RTN_LOCAL | libc::RTN_BROADCAST | libc::RTN_ANYCAST | libc::RTN_MULTICAST => {
            return Target::Local;
        }
        libc::RTN_BLACKHOLE | libc::RTN_UNREACHABLE | libc::RTN_PROHIBIT => {
            return Target::Refused;
        }
        libc::RTN_UNICAST => {}
        _ => return Target::Kernel,
    }
    // What is longer than such a route's own MTU is the kernel's to cut or to refuse.
    let metrics = attributes.get_metrics();
    if metrics.is_ok_and(|metrics| metrics.get_mtu().is_ok_and(|mtu| mtu > 0)) {
        return Target::Kernel;
    }
    // A tunnel, a router of the other family, a rule about sources, or unreadable.
    let special = attributes.clone().any(|attribute| {
        matches!(
            attribute,
            Err(_) | Ok(RouteAttrs::Via(_) | RouteAttrs::Encap(_) | RouteAttrs::EncapType(_))
        )
    });
    if special || header.rtm_src_len != 0 {
        return Target::Kernel;
    }
    let hops = match attributes.get_multipath() {
        Ok(hops) => next_hops(hops),
        Err(_) => single_hop(header, attributes),
    };
    match hops {
        Some(hops) if !hops.is_empty() => Target::Forward(hops),
        _ => Target::Kernel,
    }
}

fn single_hop(
    header: &rt_route::Rtmsg,
    attributes: &rt_route::IterableRouteAttrs<'_>,
) -> Option<Vec<Hop>> {
    if header.rtm_flags & u32::from(UNUSABLE) != 0 {
        return None;
    }
    Some(vec![Hop {
        interface: attributes.get_oif().ok()?,
        gateway: attributes.get_gateway().ok(),
        weight: 1,
    }])
}

/// The usable ones of `RTA_MULTIPATH`; nothing if one of them is a tunnel or unreadable.
fn next_hops(mut bytes: &[u8]) -> Option<Vec<Hop>> {
    use rt_route::RouteAttrs;
    let mut hops = Vec::new();
    while bytes.len() >= NEXT_HOP_BYTES {
        let length = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        if length < NEXT_HOP_BYTES || length > bytes.len() {
            return None;
        }
        let attributes = RouteAttrs::new(&bytes[NEXT_HOP_BYTES..length]);
        let plain =
            |attribute| matches!(attribute, Ok(RouteAttrs::Gateway(_) | RouteAttrs::Flow(_)));
        if !attributes.clone().all(plain) {
            return None;
        }
        if bytes[2] & UNUSABLE == 0 {
            hops.push(Hop {
                interface: u32::from_ne_bytes(bytes[4..8].try_into().ok()?),
                gateway: attributes.get_gateway().ok(),
                weight: u16::from(bytes[3]) + 1,
            });
        }
        bytes = bytes
            .get(length.next_multiple_of(NLMSG_ALIGN)..)
            .unwrap_or(&[]);
    }
    Some(hops)
}

fn is_ip(family: u8) -> bool {
    matches!(i32::from(family), libc::AF_INET | libc::AF_INET6)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::proptest;

    use super::*;

    proptest! {
        /// The kernel is believed, but no message of it may make us fail.
        #[test]
        fn any_bytes_are_events(mut bytes in vec(any::<u8>(), 16..200), kind in 16..120u16) {
            let length = bytes.len() as u32;
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            assert_eq!(events(&bytes).count(), 1);
        }

        #[test]
        fn any_bytes_are_next_hops_or_none(bytes in vec(any::<u8>(), 0..100)) {
            let hops = next_hops(&bytes).unwrap_or_default();
            assert!(hops.iter().all(|hop| hop.weight > 0));
        }
    }

    #[test]
    fn a_short_message_is_unreadable_and_not_the_end() {
        let mut bytes = Vec::new();
        for kind in [libc::RTM_NEWROUTE, libc::RTM_NEWRULE] {
            bytes.extend(16u32.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 10]);
        }
        let events: Vec<_> = events(&bytes).collect();
        assert_eq!(events, [Event::Unreadable, Event::Rule]);
    }
}
