//! Frames of every kind that a router meets, each with the outcome that it should have,
//! written down by hand. [`super::packet::examine`] and the XDP program both get them.

use plimsoll_packets::frame::{Extension, Fragment, Packet, VLAN};
use plimsoll_stack::device::Mac;

use super::outcome::Outcome;

/// The Ethernet address that the frames are for.
pub(super) const STATION: Mac = [2, 0, 0, 0, 0, 2];

/// A frame and the outcome of looking at it; none: it is plain.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) frame: Vec<u8>,
    pub(super) outcome: Option<Outcome>,
}

pub(super) fn packet(source: &str, destination: &str) -> Packet {
    let address = |text: &str| text.parse().expect("an address");
    Packet::new(address(source), address(destination))
}

fn four() -> Packet {
    packet("192.0.2.7", "198.51.100.9")
}

fn six() -> Packet {
    packet("2001:db8::7", "2001:db8:1::9")
}

pub(super) fn udp(packet: &Packet) -> Vec<u8> {
    packet.udp(1000, 2000, b"four")
}

fn changed(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// All of them.
pub(super) fn corpus() -> Vec<Case> {
    let case = |name, frame, outcome| Case {
        name,
        frame,
        outcome,
    };
    let mut cases = Vec::new();
    for (name, frame) in plain() {
        cases.push(case(name, frame, None));
    }
    for (name, frame, outcome) in ethernet().into_iter().chain(special()).chain(wrong()) {
        cases.push(case(name, frame, Some(outcome)));
    }
    cases
}

fn plain() -> Vec<(&'static str, Vec<u8>)> {
    let fragment = |offset, more| Fragment {
        id: 7,
        offset,
        more,
    };
    let options = |number| Extension::Options { number, units: 1 };
    vec![
        ("udp", udp(&four())),
        ("udp over IPv6", udp(&six())),
        (
            "tcp",
            four().tcp(1, 2, plimsoll_packets::frame::TcpFlags::SYN, b""),
        ),
        ("an echo request", four().icmp(8, b"ping")),
        ("an unknown protocol", six().protocol(253, b"what")),
        ("padded", udp(&four().padding(14))),
        (
            "a first fragment",
            four().fragment(fragment(0, true)).protocol(17, &[0; 16]),
        ),
        (
            "a last fragment",
            four().fragment(fragment(16, false)).protocol(17, &[0; 16]),
        ),
        (
            "a fragment of IPv6",
            six().fragment(fragment(16, false)).protocol(17, &[0; 16]),
        ),
        ("a routing header", udp(&six().extension(options(43)))),
        ("destination options", udp(&six().extension(options(60)))),
        ("class E", udp(&packet("192.0.2.7", "240.1.2.3"))),
    ]
}

fn ethernet() -> Vec<(&'static str, Vec<u8>, Outcome)> {
    let to = |mac: Mac| udp(&four().macs([2, 0, 0, 0, 0, 9], mac));
    vec![
        ("too short for Ethernet", vec![0; 13], Outcome::Malformed),
        (
            "ARP",
            changed(udp(&four()), 12, &[8, 6]),
            Outcome::AddressResolution,
        ),
        (
            "LLDP",
            changed(udp(&four()), 12, &[0x88, 0xcc]),
            Outcome::OtherProtocol,
        ),
        ("a VLAN tag", udp(&four().tag(VLAN)), Outcome::OtherProtocol),
        ("Ethernet broadcast", to([0xff; 6]), Outcome::Multicast),
        (
            "Ethernet multicast",
            to([1, 0, 0x5e, 0, 0, 5]),
            Outcome::Multicast,
        ),
        (
            "another station",
            to([2, 0, 0, 0, 0, 8]),
            Outcome::OtherHost,
        ),
    ]
}

fn special() -> Vec<(&'static str, Vec<u8>, Outcome)> {
    let hop_by_hop = Extension::Options {
        number: 0,
        units: 0,
    };
    let options = [
        ("IPv4 options", udp(&four().ipv4_options(1))),
        ("hop-by-hop options", udp(&six().extension(hop_by_hop))),
    ];
    let options = options.map(|(name, frame)| (name, frame, Outcome::Options));
    let far = "198.51.100.9";
    let near = "2001:db8::9";
    let addresses = [
        ("OSPF's group", "192.0.2.7", "224.0.0.5", Outcome::Multicast),
        (
            "broadcast",
            "192.0.2.7",
            "255.255.255.255",
            Outcome::Multicast,
        ),
        ("all nodes", "fe80::7", "ff02::1", Outcome::Multicast),
        ("from a group", "224.0.0.5", far, Outcome::Martian),
        ("from broadcast", "255.255.255.255", far, Outcome::Martian),
        ("from nobody", "0.0.0.0", far, Outcome::Martian),
        ("from loopback", "127.0.0.1", far, Outcome::Martian),
        ("to loopback", "192.0.2.7", "127.1.2.3", Outcome::Martian),
        ("to nobody", "192.0.2.7", "0.0.0.0", Outcome::Martian),
        ("from ::", "::", near, Outcome::Martian),
        ("from ::1", "::1", near, Outcome::Martian),
        ("to ::1", "2001:db8::7", "::1", Outcome::Martian),
        ("from a group of IPv6", "ff02::1", near, Outcome::Martian),
        ("from the link", "fe80::7", near, Outcome::LinkLocal),
        ("to the link", "2001:db8::7", "fe80::9", Outcome::LinkLocal),
    ];
    let addressed = addresses
        .into_iter()
        .map(|(name, source, destination, outcome)| {
            let frame = udp(&packet(source, destination));
            (name, frame, outcome)
        });
    options.into_iter().chain(addressed).collect()
}

fn wrong() -> Vec<(&'static str, Vec<u8>, Outcome)> {
    let cut = |mut frame: Vec<u8>, bytes: usize| {
        frame.truncate(bytes);
        frame
    };
    let frames = vec![
        ("a bad checksum", changed(udp(&four()), 24, &[0xba, 0xad])),
        ("version 5", changed(udp(&four()), 14, &[0x55])),
        ("a header of 16 bytes", changed(udp(&four()), 14, &[0x44])),
        (
            "shorter than its header",
            changed(udp(&four()), 16, &[0, 19]),
        ),
        ("longer than the frame", changed(udp(&four()), 16, &[0, 99])),
        ("half a header", cut(udp(&four()), 30)),
        ("version 4 in IPv6", changed(udp(&six()), 14, &[0x40])),
        ("half a header of IPv6", cut(udp(&six()), 50)),
        (
            "IPv6 longer than the frame",
            changed(udp(&six()), 18, &[1, 0]),
        ),
    ];
    let wrong = |(name, frame)| (name, frame, Outcome::Malformed);
    frames.into_iter().map(wrong).collect()
}
