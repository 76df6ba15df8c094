//! IPv6 extension headers.

use plimsoll_core::demux::Kind;

use super::{Book, Expected};
use crate::frame::{ETHERNET_BYTES, Extension, Fragment, ICMPV6, Packet, TcpFlags, UDP};
use crate::host::Transport;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;
const IPV6_BYTES: usize = 40;
/// Where a routing header says how many segments are left (RFC 8200, 4.4).
const SEGMENTS_LEFT: usize = 3;

pub(super) fn add(book: &mut Book) {
    single(book);
    routed(book);
    chains(book);
    ends(book);
    atomic_fragments(book);
    malformed(book);
}

/// Each header alone, in several lengths, before UDP, TCP and ICMPv6.
fn single(book: &mut Book) {
    let host = book.host;
    let [_, family] = book.families();
    let mut headers = Vec::new();
    for number in [HOP_BY_HOP, ROUTING, DESTINATION] {
        for units in [0, 1, 2, 30] {
            headers.push(Extension::Options { number, units });
        }
    }
    for words in [0, 1, 3, 4] {
        headers.push(Extension::Authentication { words });
    }
    for header in headers {
        // An authentication header's length field is its words less two, and 0
        // is too little for its fixed fields: `words: 0` gives 1, which is fine.
        let packet = family.to_local().extension(header);
        let udp = Expected::endpoint(host.bound_v6(Transport::Udp));
        let tcp = Expected::endpoint(host.bound_v6(Transport::Tcp)).asking();
        let name = format!("ipv6/{header:?}");
        book.one(format!("{name}/Udp"), packet.udp(9, host.bound, b"x"), udp);
        let segment = packet.tcp(9, host.bound, TcpFlags::SYN, b"");
        book.one(format!("{name}/Tcp"), segment, tcp);
        let icmp = Expected::kind(Kind::Icmp);
        book.one(format!("{name}/echo"), packet.icmp(128, b""), icmp);
        let neighbour = Expected::kind(Kind::Neighbour);
        let solicitation = packet.icmp(135, &[0; 16]);
        book.one(format!("{name}/solicitation"), solicitation, neighbour);
        let group = family.to(family.group).extension(header);
        let multicast = Expected::endpoint(host.group_at(family.group));
        let datagram = group.udp(9, host.group, b"x");
        book.one(format!("{name}/group"), datagram, multicast);
    }
}

/// What goes on to another segment is for no socket here.
fn routed(book: &mut Book) {
    let host = book.host;
    let [_, family] = book.families();
    for units in [0, 2] {
        let number = ROUTING;
        let packet = family
            .to_local()
            .extension(Extension::Options { number, units });
        for (segments_left, expected) in [
            (0, Expected::endpoint(host.bound_v6(Transport::Udp))),
            (1, Expected::kind(Kind::Other)),
            (255, Expected::kind(Kind::Other)),
        ] {
            let mut frame = packet.udp(9, host.bound, b"x");
            frame[ETHERNET_BYTES + IPV6_BYTES + SEGMENTS_LEFT] = segments_left;
            let name = format!("ipv6/routed/{units}/{segments_left}");
            book.one(name, frame, expected);
        }
    }
}

/// Eight headers are walked, the ninth is not.
fn chains(book: &mut Book) {
    let host = book.host;
    let [_, family] = book.families();
    let kinds = [
        [DESTINATION; 9],
        [
            HOP_BY_HOP,
            DESTINATION,
            ROUTING,
            DESTINATION,
            HOP_BY_HOP,
            ROUTING,
            DESTINATION,
            DESTINATION,
            ROUTING,
        ],
    ];
    for (number, chain) in kinds.iter().enumerate() {
        for length in 2..=9 {
            let packet = chain[..length]
                .iter()
                .fold(family.to_local(), |packet, number| {
                    packet.extension(Extension::Options {
                        number: *number,
                        units: 0,
                    })
                });
            let expected = if length <= 8 {
                Expected::endpoint(host.bound_v6(Transport::Udp))
            } else {
                Expected::kind(Kind::Other)
            };
            let frame = packet.udp(9, host.bound, b"x");
            book.one(format!("ipv6/chain {number} of {length}"), frame, expected);
        }
    }
    for (last, expected) in [
        (
            Extension::Authentication { words: 3 },
            Expected::kind(Kind::Other),
        ),
        (
            Extension::Fragment(atomic(book)),
            Expected::kind(Kind::Other),
        ),
    ] {
        let eight = options(family.to_local(), 8);
        let frame = eight.extension(last).udp(9, host.bound, b"x");
        book.one(format!("ipv6/ninth is {last:?}"), frame, expected);
        let seven = options(family.to_local(), 7);
        let frame = seven.extension(last).udp(9, host.bound, b"x");
        let expected = Expected::endpoint(host.bound_v6(Transport::Udp));
        book.one(format!("ipv6/eighth is {last:?}"), frame, expected);
    }
    // Too many headers is said before the ninth is looked at, whatever it lacks.
    let ninth = options(family.to_local(), 8).protocol(DESTINATION, &[UDP, 200]);
    let other = Expected::kind(Kind::Other);
    book.one("ipv6/ninth is cut off", ninth, other);
}

/// What ends a chain without a transport header.
fn ends(book: &mut Book) {
    let [_, family] = book.families();
    for headers in 0..=8 {
        for number in [59, 50] {
            let frame = options(family.to_local(), headers).protocol(number, &[0; 16]);
            let name = format!("ipv6/{headers} headers, then {number}");
            book.one(name, frame, Expected::kind(Kind::Other));
        }
    }
    let port = book.host.bound;
    let frame = options(family.to(family.elsewhere), 9).udp(9, port, b"");
    let forward = Expected::kind(Kind::Forward);
    book.one("ipv6/nine headers elsewhere", frame, forward);
}

/// A fragment header on a packet that is whole (RFC 6946) changes nothing.
fn atomic_fragments(book: &mut Book) {
    let host = book.host;
    let [_, family] = book.families();
    let packet = family.to_local().fragment(atomic(book));
    let udp = Expected::endpoint(host.bound_v6(Transport::Udp));
    book.one("ipv6/atomic/Udp", packet.udp(9, host.bound, b"x"), udp);
    let tcp = Expected::endpoint(host.bound_v6(Transport::Tcp)).asking();
    let segment = packet.tcp(9, host.bound, TcpFlags::SYN, b"");
    book.one("ipv6/atomic/Tcp", segment, tcp);
    let icmp = Expected::kind(Kind::Icmp);
    book.one("ipv6/atomic/echo", packet.icmp(128, b""), icmp);
    let neighbour = Expected::kind(Kind::Neighbour);
    let solicitation = packet.icmp(135, &[0; 16]);
    book.one("ipv6/atomic/solicitation", solicitation, neighbour);
    // Its length checks are those of a whole packet.
    let malformed = Expected::kind(Kind::Malformed);
    let short = packet.protocol(UDP, &[0; 7]);
    book.one("ipv6/atomic/7 bytes of Udp", short, malformed);

    let destination = Extension::Options {
        number: DESTINATION,
        units: 0,
    };
    let between = options(family.to_local(), 1)
        .fragment(atomic(book))
        .extension(destination);
    let frame = between.udp(9, host.bound, b"x");
    book.one("ipv6/atomic between options", frame, udp);

    // A second fragment header is not looked into, of whatever sort.
    let other = Expected::kind(Kind::Other);
    let twice = family.to_local().fragment(atomic(book));
    for second in [atomic(book), super::first(book.fragment_id())] {
        let frame = twice.clone().fragment(second).udp(9, host.bound, b"x");
        book.one(format!("ipv6/atomic, then {second:?}"), frame, other);
    }
    let cut = twice.protocol(44, &[UDP, 0, 0, 0]);
    book.one("ipv6/atomic, then cut off", cut, malformed);
    let nested = family
        .to_local()
        .fragment(super::first(book.fragment_id()))
        .fragment(atomic(book));
    let frame = nested.udp(9, host.bound, b"x");
    book.one("ipv6/first fragment, then atomic", frame, other);
}

fn malformed(book: &mut Book) {
    let [_, family] = book.families();
    let malformed = Expected::kind(Kind::Malformed);
    for number in [HOP_BY_HOP, ROUTING, DESTINATION, 51, 44] {
        for bytes in 1..8 {
            // Next header UDP, length field 1 (12 bytes in the authentication header's units).
            let header = [UDP, 1, 0, 0, 0, 0, 0, 0];
            let frame = family.to_local().protocol(number, &header[..bytes]);
            let name = format!("ipv6/header {number} of {bytes} bytes");
            book.one(name, frame, malformed);
        }
        if number != 44 {
            // Longer than what is there, though the frame goes on after the packet.
            for length in [2, 255] {
                let header = [UDP, length, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                let frame = family.to_local().padding(64).protocol(number, &header);
                let name = format!("ipv6/header {number}, length field {length}");
                book.one(name, frame, malformed);
            }
        }
    }
    let empty_authentication = [ICMPV6, 0, 0, 0, 0, 0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 0];
    let frame = family.to_local().protocol(51, &empty_authentication);
    book.one("ipv6/authentication, length field 0", frame, malformed);
    // The packet ends where the next header should begin.
    let frame = options(family.to_local(), 1).protocol(DESTINATION, &[]);
    book.one("ipv6/header missing", frame, malformed);
    let cut = options(family.to_local(), 1).protocol(UDP, &[]);
    book.one("ipv6/transport missing", cut, malformed);
    let mut late_end = options(family.to_local(), 2).udp(9, book.host.bound, b"");
    late_end[ETHERNET_BYTES + 5] = 12;
    book.one("ipv6/payload ends in a header", late_end, malformed);
}

/// `packet` with `count` more destination options headers.
fn options(packet: Packet, count: usize) -> Packet {
    (0..count).fold(packet, |packet, _| {
        packet.extension(Extension::Options {
            number: DESTINATION,
            units: 0,
        })
    })
}

fn atomic(book: &mut Book) -> Fragment {
    Fragment {
        id: book.fragment_id(),
        offset: 0,
        more: false,
    }
}
