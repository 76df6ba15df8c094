//! Headers that contradict themselves or the frame's length.

use plimsoll_core::demux::Kind;

use super::{Book, Expected, Family};
use crate::frame::{self, ETHERNET_BYTES, ICMP, ICMPV6, TCP, TcpFlags, UDP, VLAN};
use crate::host::Transport;

pub(super) fn add(book: &mut Book) {
    link(book);
    ipv4(book);
    ipv6(book);
    for family in book.families() {
        udp(book, family);
        tcp(book, family);
        icmp(book, family);
        checksums(book, family);
    }
}

fn link(book: &mut Book) {
    let host = book.host;
    let malformed = Expected::kind(Kind::Malformed);
    let good = book.families()[0].to_local().udp(9, host.bound, b"x");
    for length in 0..ETHERNET_BYTES {
        let name = format!("ethernet/{length} bytes");
        book.one(name, good[..length].to_vec(), malformed);
    }
    for tags in 1..=3 {
        let tagged = frame::ethertype(&vec![VLAN; tags], 0x0800, &[]);
        // The last four bytes are the last tag's rest and the ethertype under it.
        for missing in 1..=4 {
            let frame = tagged[..tagged.len() - missing].to_vec();
            let expected = if tags == 3 {
                Kind::Other
            } else {
                Kind::Malformed
            };
            let name = format!("vlan/{tags} tags, {missing} bytes missing");
            book.one(name, frame, Expected::kind(expected));
        }
    }
    let arp = frame::arp(host.v4_peer, host.v4, 0);
    for length in [0, 1, 27] {
        let frame = arp[..ETHERNET_BYTES + length].to_vec();
        book.one(format!("arp/{length} bytes"), frame, malformed);
    }
    for ethertype in [0x0800, 0x86dd] {
        let frame = frame::ethertype(&[], ethertype, &[]);
        book.one(format!("ethertype {ethertype:04x}/empty"), frame, malformed);
    }
}

fn ipv4(book: &mut Book) {
    let host = book.host;
    let malformed = Expected::kind(Kind::Malformed);
    let family = book.families()[0];
    for (name, destination) in [("local", family.local), ("elsewhere", family.elsewhere)] {
        let good = family.to(destination).udp(9, host.bound, b"payload");
        let packet_bytes = (good.len() - ETHERNET_BYTES) as u16;
        for first_byte in [
            0x00, 0x05, 0x35, 0x55, 0x65, 0xf5, 0x40, 0x41, 0x42, 0x43, 0x44,
        ] {
            let frame = patched(&good, ETHERNET_BYTES, &[first_byte]);
            let name = format!("ipv4/{name}/first byte {first_byte:02x}");
            book.one(name, frame, malformed);
        }
        for total in [0, 1, 19, packet_bytes + 1, 1500, u16::MAX] {
            let frame = patched(&good, ETHERNET_BYTES + 2, &total.to_be_bytes());
            book.one(
                format!("ipv4/{name}/total length {total}"),
                frame,
                malformed,
            );
        }
        // 6 words of header, but only 20 to 23 bytes of packet.
        for total in 20..24u16 {
            let longer = patched(&good, ETHERNET_BYTES, &[0x46]);
            let frame = patched(&longer, ETHERNET_BYTES + 2, &total.to_be_bytes());
            let name = format!("ipv4/{name}/header beyond total length {total}");
            book.one(name, frame, malformed);
        }
        let frame = good[..ETHERNET_BYTES + 19].to_vec();
        book.one(format!("ipv4/{name}/19 bytes"), frame, malformed);
    }
    let only_header = family.to_local().protocol(UDP, &[]);
    book.one("ipv4/only a header", only_header, malformed);
}

fn ipv6(book: &mut Book) {
    let host = book.host;
    let malformed = Expected::kind(Kind::Malformed);
    let family = book.families()[1];
    for (name, destination) in [("local", family.local), ("elsewhere", family.elsewhere)] {
        let good = family.to(destination).udp(9, host.bound, b"payload");
        let payload_bytes = (good.len() - ETHERNET_BYTES - 40) as u16;
        for first_byte in [0x00, 0x40, 0x45, 0x50, 0x70, 0xf0] {
            let frame = patched(&good, ETHERNET_BYTES, &[first_byte]);
            let name = format!("ipv6/{name}/first byte {first_byte:02x}");
            book.one(name, frame, malformed);
        }
        for length in [payload_bytes + 1, 1460, u16::MAX] {
            let frame = patched(&good, ETHERNET_BYTES + 4, &length.to_be_bytes());
            book.one(format!("ipv6/{name}/payload {length}"), frame, malformed);
        }
        let frame = good[..ETHERNET_BYTES + 39].to_vec();
        book.one(format!("ipv6/{name}/39 bytes"), frame, malformed);

        // Without a payload it could be a jumbogram (RFC 2675); with next header
        // 59 it is just empty. Neither is looked at on its way elsewhere.
        let expected = Expected::kind(if destination == family.local {
            Kind::Other
        } else {
            Kind::Forward
        });
        let empty = patched(&good, ETHERNET_BYTES + 4, &[0, 0]);
        let nothing_follows = patched(&empty, ETHERNET_BYTES + 6, &[59]);
        let name = format!("ipv6/{name}/no payload");
        book.one(name.clone(), empty, expected);
        book.one(format!("{name}, none expected"), nothing_follows, expected);
    }
}

fn udp(book: &mut Book, family: Family) {
    let host = book.host;
    let malformed = Expected::kind(Kind::Malformed);
    let name = family.name;
    for bytes in 0..8 {
        if bytes == 0 && !family.is_v4() {
            continue; // A payload length of 0 is the jumbogram's case.
        }
        let datagram = family.to_local().udp_datagram(9, host.bound, b"");
        for destination in [family.local, family.group] {
            let frame = family.to(destination).protocol(UDP, &datagram[..bytes]);
            let name = format!("{name}/Udp/{bytes} bytes to {destination}");
            book.one(name, frame, malformed);
        }
    }
    let padded = family.to_local().padding(32);
    let datagram = padded.udp_datagram(9, host.bound, b"payload");
    let bytes = datagram.len() as u16;
    for length in [0, 1, 7, bytes + 1, bytes + 32, u16::MAX] {
        let broken = patched(&datagram, 4, &length.to_be_bytes());
        let name = format!("{name}/Udp/length {length}");
        book.one(name, padded.protocol(UDP, &broken), malformed);
    }
    let socket = Expected::endpoint(family.bound(&host, Transport::Udp));
    for length in [8, bytes - 1] {
        let shorter = patched(&datagram, 4, &length.to_be_bytes());
        let name = format!("{name}/Udp/length {length} of {bytes}");
        book.one(name, padded.protocol(UDP, &shorter), socket);
    }
    for destination in [family.local, family.group] {
        let frame = family.to(destination).udp(9, 0, b"x");
        book.one(
            format!("{name}/Udp/port 0 of {destination}"),
            frame,
            malformed,
        );
    }
    let from_zero = family.to_local().udp(0, host.bound, b"x");
    book.one(format!("{name}/Udp/from port 0"), from_zero, socket);
}

fn tcp(book: &mut Book, family: Family) {
    let host = book.host;
    let malformed = Expected::kind(Kind::Malformed);
    let listener = Expected::endpoint(family.bound(&host, Transport::Tcp));
    let packet = family.to_local().padding(64);
    let segment = packet.tcp_segment(9, host.bound, TcpFlags::ACK, &[1; 20]);
    let name = family.name;
    for bytes in [1, 12, 13, 19] {
        let frame = packet.protocol(TCP, &segment[..bytes]);
        book.one(format!("{name}/Tcp/{bytes} bytes"), frame, malformed);
    }
    for words in 0..16u8 {
        // The segment has 40 bytes, so 5 to 10 words of header fit.
        let expected = if (5..=10).contains(&words) {
            listener
        } else {
            malformed
        };
        let frame = packet.protocol(TCP, &patched(&segment, 12, &[words << 4]));
        book.one(format!("{name}/Tcp/offset {words}"), frame, expected);
        let to_group = family.to(family.group);
        let frame = to_group.protocol(TCP, &patched(&segment, 12, &[words << 4]));
        let expected = if expected == listener {
            Expected::kind(Kind::Other)
        } else {
            malformed
        };
        let name = format!("{name}/Tcp to group/offset {words}");
        book.one(name, frame, expected);
    }
    let frame = packet.tcp(9, 0, TcpFlags::SYN, b"");
    let name = format!("{name}/Tcp/port 0");
    book.one(name, frame, Expected::kind(Kind::ClosedPort));
}

fn icmp(book: &mut Book, family: Family) {
    let (number, least) = if family.is_v4() {
        (ICMP, 8)
    } else {
        (ICMPV6, 4)
    };
    // Destination unreachable in both; then a neighbour solicitation in IPv6.
    for kind in [3, 135] {
        let message = [kind, 0, 0, 0, 0, 0, 0, 0, 0];
        for bytes in 1..=9 {
            let expected = if bytes < least {
                Kind::Malformed
            } else if kind == 135 && !family.is_v4() {
                Kind::Neighbour
            } else {
                Kind::Icmp
            };
            let packet = family.to_local().padding(16);
            let frame = packet.protocol(number, &message[..bytes]);
            let name = format!("{}/icmp {kind}/{bytes} bytes", family.name);
            book.one(name, frame, Expected::kind(expected));
        }
    }
}

/// Wrong checksums are for the receiver's protocol processing to find.
fn checksums(book: &mut Book, family: Family) {
    let host = book.host;
    let udp = Expected::endpoint(family.bound(&host, Transport::Udp));
    let packet = family.to_local();
    let datagram = packet.udp_datagram(9, host.bound, b"payload");
    let frame = packet.protocol(UDP, &patched(&datagram, 6, &[0x12, 0x34]));
    book.one(format!("{}/Udp/wrong checksum", family.name), frame, udp);
    if family.is_v4() {
        let good = packet.udp(9, host.bound, b"payload");
        let frame = patched(&good, ETHERNET_BYTES + 10, &[0x12, 0x34]);
        book.one("ipv4/wrong header checksum", frame, udp);
    }
}

/// `bytes` with `new` written over what begins at `at`.
fn patched(bytes: &[u8], at: usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}
