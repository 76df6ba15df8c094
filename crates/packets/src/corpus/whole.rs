//! Well-formed packets that are not fragments.

use std::net::{IpAddr, Ipv4Addr};

use plimsoll_core::demux::Kind;

use super::{Book, Expected, Family, unspecified};
use crate::frame::{self, Packet, SERVICE_VLAN, TcpFlags, VLAN};
use crate::host::{Host, Transport};

pub(super) fn add(book: &mut Book) {
    for family in book.families() {
        sockets(book, family);
        tcp_flags(book, family);
        link(book, family);
        icmp(book, family);
        protocols(book, family);
        forwarded(book, family);
    }
    groups(book);
    icmpv6_types(book);
    ipv4_options(book);
    arp_and_other_ethertypes(book);
}

/// One packet to each socket, and to a port without one.
fn sockets(book: &mut Book, family: Family) {
    let host = book.host;
    for transport in [Transport::Udp, Transport::Tcp] {
        for (name, port, source_port, expected) in socket_cases(&host, family, transport) {
            let packet = family.to_local();
            let frame = match transport {
                Transport::Udp => packet.udp(source_port, port, b"payload"),
                Transport::Tcp => packet.tcp(source_port, port, TcpFlags::ACK, b"payload"),
            };
            let name = format!("{}/{transport:?}/{name}", family.name);
            book.one(name, frame, expected);
        }
    }
    for length in [0, 1, 1000] {
        let frame = family.to_local().udp(9, host.bound, &vec![b'x'; length]);
        let expected = Expected::endpoint(family.bound(&host, Transport::Udp));
        let name = format!("{}/Udp/{length} bytes", family.name);
        book.one(name, frame, expected);
    }
}

/// Name, destination port, source port, and what it is.
fn socket_cases(
    host: &Host,
    family: Family,
    transport: Transport,
) -> [(&'static str, u16, u16, Expected); 8] {
    let (wildcard, own, foreign, connected, behind) = if family.is_v4() {
        (
            host.v4_wildcard,
            host.wildcard_v4(transport),
            host.v6_wildcard,
            host.connected_v4(transport),
            host.behind_connected_v4(transport),
        )
    } else {
        (
            host.v6_wildcard,
            host.wildcard_v6(transport),
            host.v4_wildcard,
            host.connected_v6(transport),
            host.behind_connected_v6(transport),
        )
    };
    let own = Expected::endpoint(own);
    let bound = Expected::endpoint(family.bound(host, transport));
    let dual = Expected::endpoint(host.dual(transport));
    let connected = Expected::endpoint(connected);
    let behind = Expected::endpoint(behind);
    let closed = Expected::kind(Kind::ClosedPort);
    let (port, remote) = (host.connected, host.remote);
    [
        ("bound", host.bound, 9, bound),
        ("wildcard", wildcard, 9, own),
        ("dual stack", host.dual_stack, 9, dual),
        ("other family's wildcard", foreign, 9, closed),
        ("connected", port, remote, connected),
        ("connected, other remote port", port, remote + 1, behind),
        ("closed", host.closed, 9, closed),
        ("remote's port", remote, port, closed),
    ]
}

/// Only SYN without ACK, RST and FIN is new demand.
fn tcp_flags(book: &mut Book, family: Family) {
    let host = book.host;
    let listener = Expected::endpoint(family.bound(&host, Transport::Tcp));
    let connection = Expected::endpoint(if family.is_v4() {
        host.connected_v4(Transport::Tcp)
    } else {
        host.connected_v6(Transport::Tcp)
    });
    for bits in 0..16 {
        let flags = TcpFlags {
            syn: bits & 1 != 0,
            ack: bits & 2 != 0,
            fin: bits & 4 != 0,
            rst: bits & 8 != 0,
        };
        let frame = family.to_local().tcp(9, host.bound, flags, b"");
        let expected = if flags == TcpFlags::SYN {
            listener.asking()
        } else {
            listener
        };
        book.one(
            format!("{}/listener/flags {bits:04b}", family.name),
            frame,
            expected,
        );
        let known = family
            .to_local()
            .tcp(host.remote, host.connected, flags, b"");
        let name = format!("{}/connection/flags {bits:04b}", family.name);
        book.one(name, known, connection);
    }
    let closed = family.to_local().tcp(9, host.closed, TcpFlags::SYN, b"");
    let name = format!("{}/closed/syn", family.name);
    book.one(name, closed, Expected::kind(Kind::ClosedPort));
}

/// VLAN tags and Ethernet padding change nothing, up to two tags.
fn link(book: &mut Book, family: Family) {
    let host = book.host;
    let udp = Expected::endpoint(family.bound(&host, Transport::Udp));
    let tcp = Expected::endpoint(family.bound(&host, Transport::Tcp));
    let other = Expected::kind(Kind::Other);
    let tagged = [
        (&[VLAN][..], udp, tcp),
        (&[SERVICE_VLAN], udp, tcp),
        (&[SERVICE_VLAN, VLAN], udp, tcp),
        (&[VLAN, VLAN], udp, tcp),
        (&[VLAN, VLAN, VLAN], other, other),
        (&[SERVICE_VLAN, VLAN, SERVICE_VLAN], other, other),
    ];
    for (tags, udp, tcp) in tagged {
        let packet = tags
            .iter()
            .fold(family.to_local(), |packet, tag| packet.tag(*tag));
        let name = format!("{}/tags {tags:x?}", family.name);
        book.one(format!("{name}/Udp"), packet.udp(9, host.bound, b"x"), udp);
        let segment = packet.tcp(9, host.bound, TcpFlags::ACK, b"x");
        book.one(format!("{name}/Tcp"), segment, tcp);
    }
    for padding in [1, 18, 40] {
        let packet = family.to_local().padding(padding);
        let name = format!("{}/padding {padding}", family.name);
        book.one(format!("{name}/Udp"), packet.udp(9, host.bound, b""), udp);
        let segment = packet.tcp(9, host.bound, TcpFlags::ACK, b"");
        book.one(format!("{name}/Tcp"), segment, tcp);
    }
}

fn icmp(book: &mut Book, family: Family) {
    let echo = if family.is_v4() { 8 } else { 128 };
    for (name, destination) in [("local", family.local), ("group", family.group)] {
        let frame = family.to(destination).icmp(echo, b"ping");
        let name = format!("{}/echo to {name}", family.name);
        book.one(name, frame, Expected::kind(Kind::Icmp));
    }
    let frame = family.to_local().tag(VLAN).icmp(echo, b"ping");
    let name = format!("{}/echo tagged", family.name);
    book.one(name, frame, Expected::kind(Kind::Icmp));
}

/// Neighbour discovery is 133 to 137, to a unicast address or a group.
fn icmpv6_types(book: &mut Book) {
    let [_, family] = book.families();
    for kind in (1..=4).chain(128..=138).chain([143, 255]) {
        let expected = match kind {
            133..=137 => Kind::Neighbour,
            _ => Kind::Icmp,
        };
        for (name, destination) in [("local", family.local), ("group", family.group)] {
            let frame = family.to(destination).icmp(kind, &[0; 16]);
            let name = format!("icmpv6/type {kind} to {name}");
            book.one(name, frame, Expected::kind(expected));
        }
    }
}

/// Protocols that have no channel of their own; each family's ICMP is nothing
/// special in the other, nor are IPv6 extension headers in IPv4.
fn protocols(book: &mut Book, family: Family) {
    let numbers: &[u8] = if family.is_v4() {
        &[0, 2, 4, 41, 43, 44, 47, 50, 51, 58, 59, 60, 89, 132, 255]
    } else {
        &[1, 2, 4, 41, 47, 50, 59, 89, 132, 135, 139, 140, 255]
    };
    for number in numbers {
        for (name, destination) in [("local", family.local), ("group", family.group)] {
            let frame = family.to(destination).protocol(*number, &[0; 64]);
            let name = format!("{}/protocol {number} to {name}", family.name);
            book.one(name, frame, Expected::kind(Kind::Other));
        }
    }
}

/// What is for another host is looked at no further.
fn forwarded(book: &mut Book, family: Family) {
    let expected = Expected::kind(Kind::Forward);
    for (name, destination) in [
        ("elsewhere", family.elsewhere),
        ("unspecified", unspecified(family.local)),
    ] {
        let name = format!("{}/{name}", family.name);
        let packet = family.to(destination);
        let port = book.host.bound;
        book.one(format!("{name}/Udp"), packet.udp(9, port, b"x"), expected);
        let segment = packet.tcp(9, port, TcpFlags::SYN, b"");
        book.one(format!("{name}/Tcp"), segment, expected);
        book.one(format!("{name}/icmp"), packet.icmp(8, b""), expected);
        book.one(
            format!("{name}/traffic class"),
            packet.clone().traffic_class(0xb8).udp(9, port, b"x"),
            expected,
        );
        book.one(
            format!("{name}/malformed transport"),
            packet.protocol(frame::UDP, &[0; 3]),
            expected,
        );
        let id = book.fragment_id();
        book.one(
            format!("{name}/first fragment"),
            packet.fragment(super::first(id)).udp(9, port, b"01234567"),
            expected,
        );
    }
}

fn groups(book: &mut Book) {
    let host = book.host;
    let [v4, v6] = book.families();
    let all_hosts = IpAddr::from(Ipv4Addr::new(224, 0, 0, 1));
    let destinations = [
        ("ipv4 group", v4, v4.group),
        ("ipv6 group", v6, v6.group),
        ("directed broadcast", v4, host.v4_broadcast.into()),
        ("limited broadcast", v4, Ipv4Addr::BROADCAST.into()),
        ("group that nobody joined", v4, all_hosts),
    ];
    for (name, family, destination) in destinations {
        let packet = family.to(destination);
        let joined = if destination == all_hosts {
            Expected::kind(Kind::Multicast)
        } else {
            Expected::endpoint(host.group_at(destination))
        };
        book.one(
            format!("{name}/joined port"),
            packet.udp(9, host.group, b"x"),
            joined,
        );
        let nobody = Expected::kind(Kind::Multicast);
        // Sockets bound to the port at a unicast or wildcard address are not the group's channel.
        for port in [host.closed, host.bound, host.v4_wildcard, host.dual_stack] {
            let frame = packet.udp(9, port, b"x");
            book.one(format!("{name}/port {port}"), frame, nobody);
        }
        let segment = packet.tcp(9, host.bound, TcpFlags::SYN, b"");
        book.one(format!("{name}/Tcp"), segment, Expected::kind(Kind::Other));
    }
    let echo = v4.to(Ipv4Addr::BROADCAST.into()).icmp(8, b"");
    book.one("broadcast/echo", echo, Expected::kind(Kind::Icmp));
    let unicast = v4.to_local().udp(9, host.group, b"x");
    book.one(
        "group's port at the unicast address",
        unicast,
        Expected::kind(Kind::ClosedPort),
    );
}

fn ipv4_options(book: &mut Book) {
    let host = book.host;
    let [family, _] = book.families();
    for words in 1..=10 {
        let packet: Packet = family.to_local().ipv4_options(words);
        let udp = Expected::endpoint(host.bound_v4(Transport::Udp));
        let frame = packet.udp(9, host.bound, b"x");
        book.one(format!("ipv4 options/{words} words/Udp"), frame, udp);
        let tcp = Expected::endpoint(host.bound_v4(Transport::Tcp)).asking();
        let frame = packet.tcp(9, host.bound, TcpFlags::SYN, b"");
        book.one(format!("ipv4 options/{words} words/Tcp"), frame, tcp);
    }
}

fn arp_and_other_ethertypes(book: &mut Book) {
    let host = book.host;
    for tags in 0..=3 {
        let expected = if tags <= 2 {
            Kind::Neighbour
        } else {
            Kind::Other
        };
        book.one(
            format!("arp/{tags} tags"),
            frame::arp(host.v4_peer, host.v4, tags),
            Expected::kind(expected),
        );
    }
    // An 802.3 length, reverse ARP, MPLS, link discovery, and a pre-standard tag.
    for ethertype in [0x0026, 0x0000, 0x8035, 0x8847, 0x88cc, 0x9100, 0xffff] {
        for tags in [&[][..], &[VLAN]] {
            let frame = frame::ethertype(tags, ethertype, &[0x45; 46]);
            let name = format!("ethertype {ethertype:04x}/{} tags", tags.len());
            book.one(name, frame, Expected::kind(Kind::Other));
        }
    }
}
