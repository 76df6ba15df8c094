//! Fragments, in every order.

use std::net::{IpAddr, Ipv4Addr};

use plimsoll_core::demux::Kind;

use super::{Book, Expected, Family, first};
use crate::frame::{Extension, Fragment, ICMP, ICMPV6, Packet, TCP, TcpFlags, UDP};
use crate::host::Transport;

pub(super) fn add(book: &mut Book) {
    for family in book.families() {
        orders(book, family);
        destinations(book, family);
        strangers(book, family);
        identification_used_again(book, family);
        first_fragments_without_a_port(book, family);
        other_protocols(book, family);
    }
    behind_options(book);
}

/// A datagram of 24 bytes behind its header, cut in four.
struct Cut {
    packet: Packet,
    id: u32,
    datagram: Vec<u8>,
}

impl Cut {
    fn new(book: &mut Book, packet: Packet, source_port: u16, port: u16) -> Self {
        Self {
            datagram: packet.udp_datagram(source_port, port, &[b'x'; 24]),
            id: book.fragment_id(),
            packet,
        }
    }

    /// Fragment 0 to 3, 8 bytes each: the first is just the UDP header.
    fn piece(&self, number: usize) -> Vec<u8> {
        let place = Fragment {
            id: self.id,
            offset: number as u16 * 8,
            more: number < 3,
        };
        let bytes = &self.datagram[number * 8..][..8];
        self.packet.clone().fragment(place).protocol(UDP, bytes)
    }
}

/// All orders of four fragments: those before the first know no channel.
fn orders(book: &mut Book, family: Family) {
    let host = book.host;
    let socket = Expected::endpoint(family.bound(&host, Transport::Udp));
    for order in permutations(&[0, 1, 2, 3]) {
        let cut = Cut::new(book, family.to_local(), 9, host.bound);
        let mut first_came = false;
        let steps = order.iter().map(|number| {
            first_came |= *number == 0;
            let expected = if first_came {
                socket
            } else {
                Expected::kind(Kind::Fragment)
            };
            (cut.piece(*number), expected)
        });
        let steps = steps.collect();
        book.sequence(format!("{}/order {order:?}", family.name), steps);
    }
}

/// Later fragments follow the first wherever it leads, again and again.
fn destinations(book: &mut Book, family: Family) {
    let host = book.host;
    let connected = if family.is_v4() {
        host.connected_v4(Transport::Udp)
    } else {
        host.connected_v6(Transport::Udp)
    };
    let dual = Expected::endpoint(host.dual(Transport::Udp));
    let group = Expected::endpoint(host.group_at(family.group));
    let closed = Expected::kind(Kind::ClosedPort);
    let nobody = Expected::kind(Kind::Multicast);
    let mut cases = vec![
        ("dual stack", family.local, host.dual_stack, dual),
        (
            "connected",
            family.local,
            host.connected,
            Expected::endpoint(connected),
        ),
        ("closed", family.local, host.closed, closed),
        ("group", family.group, host.group, group),
        ("group without members", family.group, host.closed, nobody),
        (
            "elsewhere",
            family.elsewhere,
            host.bound,
            Expected::kind(Kind::Forward),
        ),
    ];
    if family.is_v4() {
        for address in [host.v4_broadcast, Ipv4Addr::BROADCAST] {
            let address = IpAddr::from(address);
            let group = Expected::endpoint(host.group_at(address));
            cases.push(("broadcast", address, host.group, group));
        }
    }
    for (name, destination, port, expected) in cases {
        let cut = Cut::new(book, family.to(destination), host.remote, port);
        let order = [0, 1, 2, 3, 3, 1, 0, 2];
        let steps = order.map(|number| (cut.piece(number), expected)).to_vec();
        let name = format!("{}/fragments to {name} {destination}", family.name);
        book.sequence(name, steps);
    }
}

/// Fragments that only look like those of a known datagram.
fn strangers(book: &mut Book, family: Family) {
    let host = book.host;
    let socket = Expected::endpoint(family.bound(&host, Transport::Udp));
    let stray = Expected::kind(Kind::Fragment);
    let cut = Cut::new(book, family.to_local(), 9, host.bound);
    let later = Fragment {
        id: cut.id,
        offset: 8,
        more: false,
    };
    let other_id = Fragment {
        id: book.fragment_id(),
        ..later
    };
    let other_source = if family.is_v4() {
        Packet::new(host.v4_elsewhere.into(), family.local)
    } else {
        Packet::new(host.v6_elsewhere.into(), family.local)
    };
    // IPv6 reassembles by addresses and identification alone (RFC 8200, 4.5).
    let other_protocol = if family.is_v4() { stray } else { socket };
    let packet = family.to_local();
    let steps = vec![
        (cut.piece(0), socket),
        (
            packet.clone().fragment(other_id).protocol(UDP, &[1; 8]),
            stray,
        ),
        (other_source.fragment(later).protocol(UDP, &[1; 8]), stray),
        (
            packet.clone().fragment(later).protocol(TCP, &[1; 8]),
            other_protocol,
        ),
        (
            family
                .to(family.group)
                .fragment(later)
                .protocol(UDP, &[1; 8]),
            stray,
        ),
        (packet.clone().fragment(later).protocol(UDP, &[]), socket),
        (
            packet
                .clone()
                .tag(0x8100)
                .fragment(later)
                .protocol(UDP, &[1; 8]),
            socket,
        ),
        (cut.piece(1), socket),
    ];
    book.sequence(format!("{}/strangers", family.name), steps);
}

/// A first fragment takes the identification over, for another socket.
fn identification_used_again(book: &mut Book, family: Family) {
    let host = book.host;
    let socket = Expected::endpoint(family.bound(&host, Transport::Udp));
    let dual = Expected::endpoint(host.dual(Transport::Udp));
    let packet = family.to_local();
    let cut = Cut::new(book, packet.clone(), 9, host.bound);
    let again = Cut {
        datagram: packet.udp_datagram(9, host.dual_stack, &[b'x'; 24]),
        id: cut.id,
        packet,
    };
    let steps = vec![
        (cut.piece(0), socket),
        (cut.piece(1), socket),
        (again.piece(0), dual),
        (again.piece(1), dual),
    ];
    let name = format!("{}/identification used again", family.name);
    book.sequence(name, steps);
}

/// First fragments from which nothing can be learned for the later ones.
fn first_fragments_without_a_port(book: &mut Book, family: Family) {
    let host = book.host;
    let stray = Expected::kind(Kind::Fragment);
    let malformed = Expected::kind(Kind::Malformed);
    let packet = family.to_local();
    let datagram = packet.udp_datagram(9, host.bound, &[b'x'; 24]);
    let mut no_length = datagram.clone();
    no_length[4..6].copy_from_slice(&7u16.to_be_bytes());
    let no_port = packet.udp_datagram(9, 0, &[b'x'; 24]);
    for (name, bytes, expected) in [
        ("0 bytes", &datagram[..0], stray),
        ("7 bytes", &datagram[..7], stray),
        ("length 7", &no_length[..8], malformed),
        ("port 0", &no_port[..8], malformed),
    ] {
        let id = book.fragment_id();
        let later = Fragment {
            id,
            offset: 8,
            more: false,
        };
        let steps = vec![
            (
                packet.clone().fragment(first(id)).protocol(UDP, bytes),
                expected,
            ),
            (packet.clone().fragment(later).protocol(UDP, &[1; 8]), stray),
        ];
        book.sequence(format!("{}/first fragment of {name}", family.name), steps);
    }
    // The length is the whole datagram's: more than what this fragment holds.
    let mut long = datagram[..16].to_vec();
    long[4..6].copy_from_slice(&u16::MAX.to_be_bytes());
    let id = book.fragment_id();
    let frame = packet.fragment(first(id)).protocol(UDP, &long);
    let socket = Expected::endpoint(family.bound(&host, Transport::Udp));
    book.one(
        format!("{}/first fragment of 64 KiB", family.name),
        frame,
        socket,
    );
}

/// Fragments of anything but UDP are just fragments. In IPv6 the walk along
/// the headers comes before, and says "other" where it ends in 50 or 59.
fn other_protocols(book: &mut Book, family: Family) {
    let host = book.host;
    let stray = Expected::kind(Kind::Fragment);
    let packet = family.to_local();
    let segment = packet.tcp_segment(9, host.bound, TcpFlags::SYN, &[1; 12]);
    let echo = if family.is_v4() { ICMP } else { ICMPV6 };
    for (number, bytes) in [
        (TCP, &segment[..]),
        (TCP, &[0; 8]),
        (echo, &[128, 0, 0, 0, 0, 0, 0, 0]),
        (echo, &[135, 0]),
        (47, &[0; 16]),
        (50, &[0; 16]),
        (59, &[0; 8]),
        (132, &[]),
    ] {
        let first_expected = if !family.is_v4() && matches!(number, 50 | 59) {
            Expected::kind(Kind::Other)
        } else {
            stray
        };
        for destination in [family.local, family.group] {
            let id = book.fragment_id();
            let later = Fragment {
                id,
                offset: 65_528,
                more: false,
            };
            let packet = family.to(destination);
            let steps = vec![
                (
                    packet.clone().fragment(first(id)).protocol(number, bytes),
                    first_expected,
                ),
                (packet.fragment(later).protocol(number, bytes), stray),
            ];
            let name = format!(
                "{}/fragments of protocol {number}, {} bytes, to {destination}",
                family.name,
                bytes.len()
            );
            book.sequence(name, steps);
        }
    }
}

/// IPv6: options before the fragment header are in every fragment, options
/// after it in the first only.
fn behind_options(book: &mut Book) {
    let host = book.host;
    let [_, family] = book.families();
    let options = Extension::Options {
        number: 60,
        units: 1,
    };
    let socket = Expected::endpoint(host.bound_v6(Transport::Udp));
    let packet = family.to_local();
    let datagram = packet.udp_datagram(9, host.bound, &[b'x'; 24]);
    let id = book.fragment_id();
    let later = Fragment {
        id,
        offset: 32,
        more: false,
    };
    let outside = packet.clone().extension(options);
    let steps = vec![
        (
            outside
                .clone()
                .fragment(first(id))
                .extension(options)
                .protocol(UDP, &datagram[..16]),
            socket,
        ),
        (
            outside.fragment(later).protocol(60, &datagram[16..]),
            socket,
        ),
        (
            packet.clone().fragment(later).protocol(60, &datagram[16..]),
            socket,
        ),
    ];
    book.sequence("ipv6/fragments with options on both sides", steps);

    // A first fragment must hold all headers (RFC 7112).
    let id = book.fragment_id();
    let cut = packet
        .clone()
        .fragment(first(id))
        .protocol(60, &[UDP, 1, 0, 0, 0, 0, 0, 0]);
    let malformed = Expected::kind(Kind::Malformed);
    book.one("ipv6/first fragment ends in options", cut, malformed);
    let nine = (0..8).fold(packet.fragment(first(id)), |packet, _| {
        packet.extension(options)
    });
    let frame = nine.protocol(UDP, &datagram[..8]);
    let other = Expected::kind(Kind::Other);
    book.one("ipv6/first fragment, eight more headers", frame, other);
}

fn permutations(items: &[usize]) -> Vec<Vec<usize>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let mut rest = items.to_vec();
        rest.remove(i);
        for mut tail in permutations(&rest) {
            tail.insert(0, *item);
            all.push(tail);
        }
    }
    all
}
