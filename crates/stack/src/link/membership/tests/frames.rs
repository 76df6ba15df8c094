//! Queries as they are read, and reports as they are built.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use smoltcp::wire::{
    Icmpv6Packet, IgmpPacket, IgmpRepr, IgmpVersion, IpProtocol, Ipv4Packet, MldRepr,
};

use super::super::*;
use super::{SECOND, address, asks};
use crate::device::{Batch, Frame, HEADROOM_BYTES, Pool};
use crate::link::resolution::Builder;
use crate::outcome::Outcome;
use crate::wire::{ETHERNET_BYTES, packet};

const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// A frame with a message whose checksum is right.
fn igmp_query(to: Ipv4Addr, ttl: u8, message: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; ETHERNET_BYTES + 24 + message.len()];
    frame[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[0x08, 0]);
    frame[ETHERNET_BYTES + 24..].copy_from_slice(message);
    IgmpPacket::new_unchecked(&mut frame[ETHERNET_BYTES + 24..]).fill_checksum();
    let bytes = &mut frame[ETHERNET_BYTES..];
    bytes[20..24].copy_from_slice(&[0x94, 4, 0, 0]);
    let length = bytes.len() as u16;
    let mut ip = Ipv4Packet::new_unchecked(bytes);
    ip.set_version(4);
    ip.set_header_len(24);
    ip.set_total_len(length);
    ip.set_hop_limit(ttl);
    ip.set_next_header(IpProtocol::Igmp);
    ip.set_src_addr(ROUTER);
    ip.set_dst_addr(to);
    ip.fill_checksum();
    frame
}

/// `options`: the whole header before the message, if there is one.
fn mld_query(from: Ipv6Addr, to: Ipv6Addr, hops: u8, options: &[u8], message: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend(((options.len() + message.len()) as u16).to_be_bytes());
    frame.extend([if options.is_empty() { 58 } else { 0 }, hops]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(options);
    let at = frame.len();
    frame.extend(message);
    Icmpv6Packet::new_unchecked(&mut frame[at..]).fill_checksum(&from, &to);
    frame
}

const ROUTER_ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];

fn mld_message(code: u16, group: Ipv6Addr, rest: &[u8]) -> Vec<u8> {
    let code = code.to_be_bytes();
    let head = [130, 0, 0, 0, code[0], code[1], 0, 0];
    [&head[..], &group.octets(), rest].concat()
}

#[test]
fn queries_of_igmp_are_understood() {
    let millis = Duration::from_millis;
    let none = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let asked = address("239.1.2.3");
    let to_group = Ipv4Addr::new(239, 1, 2, 3);
    let cases: [(Ipv4Addr, &[u8], Query); 6] = [
        (
            ALL_SYSTEMS,
            &[0x11, 0, 0, 0, 0, 0, 0, 0],
            asks(none, Version::One, SECOND * 10),
        ),
        (
            ALL_SYSTEMS,
            &[0x11, 100, 0, 0, 0, 0, 0, 0],
            asks(none, Version::Two, SECOND * 10),
        ),
        // No floating point before version 3.
        (
            to_group,
            &[0x11, 200, 0, 0, 239, 1, 2, 3],
            asks(asked, Version::Two, SECOND * 20),
        ),
        (
            ALL_SYSTEMS,
            &[0x11, 5, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0],
            asks(none, Version::Three, millis(500)),
        ),
        // (1 | 16) << (1 + 3) tenths.
        (
            to_group,
            &[0x11, 0x91, 0, 0, 239, 1, 2, 3, 2, 125, 0, 1, 10, 0, 0, 9],
            asks(asked, Version::Three, millis(27_200)),
        ),
        (
            ALL_SYSTEMS,
            &[0x11, 0, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0],
            asks(none, Version::Three, Duration::ZERO),
        ),
    ];
    for (to, message, query) in cases {
        let frame = igmp_query(to, 1, message);
        assert!(is_query(&frame), "{message:?}");
        assert_eq!(parse_query(&frame), Ok(query), "{message:?}");
    }
}

#[test]
fn queries_of_mld_are_understood() {
    let millis = Duration::from_millis;
    let six: Ipv6Addr = "ff02::4321".parse().unwrap();
    let none = Ipv6Addr::UNSPECIFIED;
    let cases: [(Ipv6Addr, Vec<u8>, Query); 3] = [
        (
            ALL_NODES,
            mld_message(10_000, none, &[]),
            asks(none.into(), Version::Two, SECOND * 10),
        ),
        (
            six,
            mld_message(1000, six, &[2, 125, 0, 0]),
            asks(six.into(), Version::Three, SECOND),
        ),
        // (1 | 0x1000) << (0 + 3) milliseconds.
        (
            ALL_NODES,
            mld_message(0x8001, none, &[2, 125, 0, 0]),
            asks(none.into(), Version::Three, millis(32_776)),
        ),
    ];
    for (to, message, query) in cases {
        let frame = mld_query(ROUTER_V6, to, 1, &ROUTER_ALERT, &message);
        assert!(is_query(&frame), "{message:?}");
        assert_eq!(parse_query(&frame), Ok(query), "{message:?}");
    }
}

#[test]
fn what_is_no_igmp_query_of_the_links_is_not_believed() {
    let message = [0x11, 100, 0, 0, 0, 0, 0, 0];
    let good = igmp_query(ALL_SYSTEMS, 1, &message);
    let mut damaged = good.clone();
    damaged[ETHERNET_BYTES + 24 + 1] ^= 1;
    let too_many = [0x11, 5, 0, 0, 0, 0, 0, 0, 2, 125, 0, 2, 10, 0, 0, 9];
    let unicast = [0x11, 5, 0, 0, 10, 0, 0, 9];
    for (frame, outcome) in [
        (igmp_query(ALL_SYSTEMS, 2, &message), Outcome::Other),
        (
            igmp_query(Ipv4Addr::new(10, 0, 0, 2), 1, &message),
            Outcome::Other,
        ),
        (
            igmp_query(ALL_SYSTEMS, 1, &[0x11, 100, 0, 0]),
            Outcome::Malformed,
        ),
        // RFC 3376, 7.1: lengths between two versions.
        (
            igmp_query(ALL_SYSTEMS, 1, &[0x11, 100, 0, 0, 0, 0, 0, 0, 0, 0]),
            Outcome::Malformed,
        ),
        (igmp_query(ALL_SYSTEMS, 1, &too_many), Outcome::Malformed),
        (igmp_query(ALL_SYSTEMS, 1, &unicast), Outcome::Malformed),
        (damaged, Outcome::Checksum),
    ] {
        assert_eq!(parse_query(&frame), Err(outcome), "{frame:02x?}");
    }
}

#[test]
fn what_is_no_mld_query_of_the_links_is_not_believed() {
    let none = Ipv6Addr::UNSPECIFIED;
    let (short, message) = (
        mld_message(1000, none, &[]),
        mld_message(1000, none, &[2, 125, 0, 0]),
    );
    let far: Ipv6Addr = "2001:db8::1".parse().unwrap();
    let node: Ipv6Addr = "fd00::2".parse().unwrap();
    let mut damaged = mld_query(ROUTER_V6, ALL_NODES, 1, &ROUTER_ALERT, &message);
    *damaged.last_mut().unwrap() ^= 1;
    let padding = [58, 0, 1, 4, 0, 0, 0, 0];
    for (frame, outcome) in [
        (
            mld_query(far, ALL_NODES, 1, &ROUTER_ALERT, &message),
            Outcome::Other,
        ),
        (
            mld_query(ROUTER_V6, ALL_NODES, 64, &ROUTER_ALERT, &message),
            Outcome::Other,
        ),
        (
            mld_query(ROUTER_V6, node, 1, &ROUTER_ALERT, &message),
            Outcome::Other,
        ),
        (
            mld_query(ROUTER_V6, ALL_NODES, 1, &padding, &message),
            Outcome::Other,
        ),
        (
            mld_query(ROUTER_V6, ALL_NODES, 1, &[], &message),
            Outcome::Other,
        ),
        (
            mld_query(ROUTER_V6, ALL_NODES, 1, &ROUTER_ALERT, &short[..20]),
            Outcome::Malformed,
        ),
        (
            mld_query(ROUTER_V6, ALL_NODES, 1, &ROUTER_ALERT, &message[..26]),
            Outcome::Malformed,
        ),
        (
            mld_query(
                ROUTER_V6,
                ALL_NODES,
                1,
                &ROUTER_ALERT,
                &mld_message(1, node, &[]),
            ),
            Outcome::Malformed,
        ),
        (damaged, Outcome::Checksum),
    ] {
        assert_eq!(parse_query(&frame), Err(outcome), "{frame:02x?}");
    }
}

/// Whoever is not on the link could otherwise fill the neighbours' channel.
#[test]
fn what_came_from_far_away_has_no_channel_of_the_links() {
    let igmp = [0x11, 100, 0, 0, 0, 0, 0, 0];
    let mld = mld_message(1000, Ipv6Addr::UNSPECIFIED, &[]);
    let (here, here_v6) = (Ipv4Addr::new(10, 0, 0, 2), "fe80::2".parse().unwrap());
    assert!(is_query(&igmp_query(ALL_SYSTEMS, 1, &igmp)));
    assert!(!is_query(&igmp_query(ALL_SYSTEMS, 64, &igmp)));
    assert!(!is_query(&igmp_query(here, 1, &igmp)));
    assert!(!is_query(&igmp_query(Ipv4Addr::UNSPECIFIED, 1, &igmp)));
    let from = ROUTER_V6;
    assert!(is_query(&mld_query(
        from,
        ALL_NODES,
        1,
        &ROUTER_ALERT,
        &mld
    )));
    assert!(!is_query(&mld_query(
        from,
        ALL_NODES,
        64,
        &ROUTER_ALERT,
        &mld
    )));
    assert!(!is_query(&mld_query(from, here_v6, 1, &ROUTER_ALERT, &mld)));
}

/// A report goes to its group with a hop limit of 1 and the router alert, as a query does. On AF_XDP it
/// is overheard, and two members that took it for one would answer each other for ever.
#[test]
fn a_report_is_no_query() {
    for group in ["239.1.2.3", "ff02::4321"] {
        let ours = ["10.0.0.2", "fe80::2"];
        for version in [Version::Two, Version::Three] {
            for what in [What::Is, What::Left] {
                for frame in frames(version, what, &[address(group)], &ours) {
                    assert!(!is_query(&frame));
                    assert_eq!(parse_query(&frame), Err(Outcome::Other), "{frame:02x?}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(
        v6 in any::<bool>(),
        bytes in vec(any::<u8>(), 0..120),
        cut in 0..200_usize,
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut frame = match v6 {
            false => igmp_query(ALL_SYSTEMS, 1, &[&[0x11], &bytes[..], &[0; 8]].concat()),
            true => {
                let message = [&[130, 0, 0, 0], &bytes[..]].concat();
                mld_query(ROUTER_V6, ALL_NODES, 1, &ROUTER_ALERT, &message)
            }
        };
        for (place, value) in changes {
            let place = place.index(frame.len());
            frame[place] = value;
        }
        frame.truncate(cut);
        let _ = (is_query(&frame), parse_query(&frame), is_query(&bytes), parse_query(&bytes));
    }
}

/// The frames of a telling, as a host with these addresses builds them.
fn frames(version: Version, what: What, groups: &[IpAddr], ours: &[&str]) -> Vec<Vec<u8>> {
    let pool: Arc<Pool> = Pool::new(64, 2048).unwrap();
    let builder = Builder {
        pool: &pool,
        mac: [2, 0, 0, 0, 0, 9],
    };
    let telling = Telling {
        version,
        what,
        groups: groups.to_vec(),
    };
    let mut out = Batch::new();
    let ours = ours.iter().map(|ours| address(ours));
    builder.tell(&telling, ours, 1500, &mut out);
    let bytes = |frame: Frame| {
        assert_eq!(frame.range().start, HEADROOM_BYTES);
        frame.to_vec()
    };
    out.into_iter().map(bytes).collect()
}

/// Destination and message of a frame, whose headers are as they must be.
fn taken_apart(frame: &[u8]) -> (IpAddr, IpAddr, &[u8]) {
    let packet = packet::parse(frame).unwrap();
    assert_eq!((packet.hop_limit, packet.part), (1, packet::Part::Whole));
    let to = crate::link::egress::group_mac(packet.destination);
    assert_eq!(frame[..6], to);
    let message = &frame[packet.payload.clone()];
    match (packet.source, packet.destination) {
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            assert_eq!(frame[54..62], ROUTER_ALERT);
            assert!(Icmpv6Packet::new_unchecked(message).verify_checksum(&from, &to));
        }
        _ => {
            assert_eq!(frame[34..38], [0x94, 4, 0, 0]);
            assert!(IgmpPacket::new_unchecked(message).verify_checksum());
        }
    }
    (packet.source, packet.destination, message)
}

#[test]
fn reports_of_the_old_versions_are_understood() {
    let group = address("239.1.2.3");
    let (report, leave) = (
        |version| IgmpRepr::MembershipReport {
            group_addr: Ipv4Addr::new(239, 1, 2, 3),
            version,
        },
        IgmpRepr::LeaveGroup {
            group_addr: Ipv4Addr::new(239, 1, 2, 3),
        },
    );
    for (version, what, to, expected) in [
        (Version::One, What::Is, group, report(IgmpVersion::Version1)),
        (Version::Two, What::Is, group, report(IgmpVersion::Version2)),
        (
            Version::Two,
            What::Joined,
            group,
            report(IgmpVersion::Version2),
        ),
        (Version::Two, What::Left, address("224.0.0.2"), leave),
    ] {
        let frames = frames(version, what, &[group], &["fe80::2", "10.0.0.2"]);
        assert_eq!(frames.len(), 1);
        let (from, destination, message) = taken_apart(&frames[0]);
        assert_eq!((from, destination), (address("10.0.0.2"), to));
        let packet = IgmpPacket::new_checked(message).unwrap();
        assert_eq!(IgmpRepr::parse(&packet).unwrap(), expected);
    }
    assert!(frames(Version::One, What::Left, &[group], &["10.0.0.2"]).is_empty());
    let group = address("ff02::4321");
    for (what, to, kind) in [
        (What::Is, group, 131),
        (What::Joined, group, 131),
        (What::Left, address("ff02::2"), 132),
    ] {
        let frames = frames(Version::Two, what, &[group], &["fd00::2", "fe80::2"]);
        let (from, destination, message) = taken_apart(&frames[0]);
        assert_eq!((from, destination), (address("fe80::2"), to));
        assert_eq!((message.len(), message[0]), (24, kind));
        let IpAddr::V6(group) = group else {
            unreachable!()
        };
        assert_eq!(message[8..], group.octets());
    }
    // Without an address of the link nobody says it.
    let frames = frames(Version::Two, What::Is, &[group], &["fd00::2"]);
    assert_eq!(taken_apart(&frames[0]).0, address("::"));
}

#[test]
fn reports_with_records_name_each_group_once() {
    let four: Vec<IpAddr> = (0..300_u16)
        .map(|k| Ipv4Addr::new(239, 1, (k >> 8) as u8, k as u8).into())
        .collect();
    let six: Vec<IpAddr> = (0..300_u16)
        .map(|k| Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, k).into())
        .collect();
    for (groups, to, kind, address_bytes) in
        [(four, "224.0.0.22", 0x22, 4), (six, "ff02::16", 143, 16)]
    {
        for (what, record) in [(What::Is, 2), (What::Left, 3), (What::Joined, 4)] {
            let frames = frames(Version::Three, what, &groups, &["10.0.0.2", "fe80::2"]);
            let mut named = Vec::new();
            for frame in &frames {
                assert!(frame.len() <= ETHERNET_BYTES + 1500, "{}", frame.len());
                let (_, destination, message) = taken_apart(frame);
                assert_eq!((destination, message[0]), (address(to), kind));
                let count = u16::from_be_bytes([message[6], message[7]]);
                let records = message[8..].chunks_exact(4 + address_bytes);
                assert_eq!(records.len(), usize::from(count));
                assert!(records.remainder().is_empty());
                for bytes in records {
                    assert_eq!(bytes[..4], [record, 0, 0, 0]);
                    named.push(match <[u8; 16]>::try_from(&bytes[4..]) {
                        Ok(six) => Ipv6Addr::from(six).into(),
                        Err(_) => IpAddr::from(<[u8; 4]>::try_from(&bytes[4..]).unwrap()),
                    });
                }
                if kind == 143 {
                    let packet = Icmpv6Packet::new_checked(message).unwrap();
                    assert!(matches!(
                        MldRepr::parse(&packet),
                        Ok(MldRepr::Report { .. })
                    ));
                }
            }
            assert_eq!(named, groups);
        }
    }
}
