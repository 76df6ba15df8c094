//! Queries about multicast groups, as routers and switches send them.
//!
//! MLD's come from a link-local address. A hop limit of 1, which both need, keeps out most of what comes
//! from beyond it. Where multicast is routed, an IGMP query about a group can come from afar: it has us
//! send reports for somebody who is not there, ten a second at most.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use smoltcp::wire::{Icmpv6Packet, IgmpPacket, IpProtocol, Ipv6OptionRepr, Ipv6OptionsIterator};

use super::Version;
use crate::outcome::Outcome;
use crate::wire::ETHERNET_BYTES;
use crate::wire::packet::{self, Packet, Part};

/// The groups that all hosts of a link are in.
pub(crate) const ALL_SYSTEMS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

const IGMP_QUERY: u8 = 0x11;
const MLD_QUERY: u8 = 130;
const IPV6_BYTES: usize = 40;
/// Of a query of IGMP's first two versions, and of MLD's first one.
const IGMP_OLD_BYTES: usize = 8;
const MLD_OLD_BYTES: usize = 24;
/// With what IGMPv3 and MLDv2 have more, before the list of sources.
const IGMP_BYTES: usize = 12;
const MLD_BYTES: usize = 28;
/// Version 1 of IGMP does not say (RFC 2236, 4).
const IGMP_ONE_WITHIN: Duration = Duration::from_secs(10);

/// Who is in a group?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    /// Unspecified: all are asked for.
    pub(crate) group: IpAddr,
    pub(crate) version: Version,
    /// The time for an answer.
    pub(crate) within: Duration,
}

/// Whether a frame is a query, as far as its channel is concerned. Any bytes will do.
///
/// That channel is the neighbours'. So it must not be open to whoever is far away: a query went to a
/// group, and no router passed it on.
#[inline]
pub(crate) fn is_query(frame: &[u8]) -> bool {
    let at = |place: usize| frame.get(place).copied();
    let network = ETHERNET_BYTES;
    match frame.get(network - 2..network) {
        Some([0x08, 0x00]) => {
            let header = at(network).map_or(0, |first| usize::from(first & 0xf) * 4);
            at(network + 9) == Some(IpProtocol::Igmp.into())
                && at(network + header) == Some(IGMP_QUERY)
                && at(network + 8) == Some(1)
                && at(network + 16).is_some_and(|to| to & 0xf0 == 0xe0)
        }
        // Behind the header with the router alert.
        Some([0x86, 0xdd]) => {
            let options = network + IPV6_BYTES;
            let length = at(options + 1).map_or(0, |units| (usize::from(units) + 1) * 8);
            at(network + 6) == Some(IpProtocol::HopByHop.into())
                && at(options) == Some(IpProtocol::Icmpv6.into())
                && at(options + length) == Some(MLD_QUERY)
                && at(network + 7) == Some(1)
                && at(network + 24) == Some(0xff)
        }
        _ => false,
    }
}

/// Reads a query. `Err`: how the frame ends, if it is none that counts.
pub(crate) fn parse(frame: &[u8]) -> Result<Query, Outcome> {
    // A report has the same form. To answer it would have two hosts answer each other for ever.
    if !is_query(frame) {
        return Err(Outcome::Other);
    }
    let packet = packet::parse(frame)?;
    if packet.part != Part::Whole {
        return Err(Outcome::FragmentLost);
    }
    let bytes = &frame[packet.payload.clone()];
    let query = match (packet.source, packet.destination, packet.protocol) {
        (_, IpAddr::V4(_), IpProtocol::Igmp) => igmp(bytes)?,
        (IpAddr::V6(source), IpAddr::V6(to), IpProtocol::Icmpv6) => {
            let options = &frame[packet.network + IPV6_BYTES..packet.payload.start];
            if !source.is_unicast_link_local() || !has_router_alert(options) {
                return Err(Outcome::Other);
            }
            mld(bytes, (source, to))?
        }
        _ => return Err(Outcome::Other),
    };
    match is_addressed(&query, &packet) {
        true => Ok(query),
        false => Err(Outcome::Other),
    }
}

/// Whether it went to everybody on the link, or to the group it is about.
fn is_addressed(query: &Query, packet: &Packet) -> bool {
    let everybody = match packet.destination {
        IpAddr::V4(to) => to == ALL_SYSTEMS,
        IpAddr::V6(to) => to == ALL_NODES,
    };
    everybody || packet.destination == query.group
}

fn igmp(bytes: &[u8]) -> Result<Query, Outcome> {
    let packet = IgmpPacket::new_checked(bytes).map_err(|_| Outcome::Malformed)?;
    let code = packet.max_resp_code();
    // RFC 3376, 7.1: the length tells the versions apart, and what is in between is none.
    let (version, within) = match bytes.len() {
        IGMP_OLD_BYTES if code == 0 => (Version::One, IGMP_ONE_WITHIN),
        IGMP_OLD_BYTES => (Version::Two, tenths(code.into())),
        IGMP_BYTES.. => (Version::Three, tenths(igmp_time(code))),
        _ => return Err(Outcome::Malformed),
    };
    if !packet.verify_checksum() {
        return Err(Outcome::Checksum);
    }
    check_sources(bytes, IGMP_BYTES, 4)?;
    of_group(packet.group_addr().into(), version, within)
}

fn mld(bytes: &[u8], (source, destination): (Ipv6Addr, Ipv6Addr)) -> Result<Query, Outcome> {
    let (Some(code), Some(group)) = (bytes.get(4..6), bytes.get(8..MLD_OLD_BYTES)) else {
        return Err(Outcome::Malformed);
    };
    let code = u16::from_be_bytes([code[0], code[1]]);
    let (version, millis) = match bytes.len() {
        MLD_OLD_BYTES => (Version::Two, code.into()),
        MLD_BYTES.. => (Version::Three, mld_time(code)),
        _ => return Err(Outcome::Malformed),
    };
    if !Icmpv6Packet::new_unchecked(bytes).verify_checksum(&source, &destination) {
        return Err(Outcome::Checksum);
    }
    check_sources(bytes, MLD_BYTES, 16)?;
    let group: [u8; 16] = group.try_into().map_err(|_| Outcome::Malformed)?;
    of_group(
        Ipv6Addr::from(group).into(),
        version,
        Duration::from_millis(millis),
    )
}

fn of_group(group: IpAddr, version: Version, within: Duration) -> Result<Query, Outcome> {
    if !group.is_unspecified() && !group.is_multicast() {
        return Err(Outcome::Malformed);
    }
    Ok(Query {
        group,
        version,
        within,
    })
}

/// The sources of a query whose fixed part has `fixed` bytes, the last two of which say how many
/// there are, must all be there.
fn check_sources(bytes: &[u8], fixed: usize, address: usize) -> Result<(), Outcome> {
    let count = bytes.get(fixed - 2..fixed);
    let count = count.map_or(0, |count| u16::from_be_bytes([count[0], count[1]]));
    match fixed + usize::from(count) * address <= bytes.len().max(fixed) {
        true => Ok(()),
        false => Err(Outcome::Malformed),
    }
}

/// `headers`: what is between the IPv6 header and the message.
fn has_router_alert(headers: &[u8]) -> bool {
    let length = headers
        .get(1)
        .map_or(0, |units| (usize::from(*units) + 1) * 8);
    let options = headers.get(2..length).unwrap_or_default();
    Ipv6OptionsIterator::new(options)
        .any(|option| matches!(option, Ok(Ipv6OptionRepr::RouterAlert(_))))
}

fn tenths(tenths: u64) -> Duration {
    Duration::from_millis(tenths * 100)
}

/// Long times as floating point numbers (RFC 3376, 4.1.1).
fn igmp_time(code: u8) -> u64 {
    let code = u64::from(code);
    match code {
        ..128 => code,
        _ => ((code & 0xf) | 0x10) << (((code >> 4) & 7) + 3),
    }
}

/// The same (RFC 3810, 5.1.3).
fn mld_time(code: u16) -> u64 {
    let code = u64::from(code);
    match code {
        ..0x8000 => code,
        _ => ((code & 0xfff) | 0x1000) << (((code >> 12) & 7) + 3),
    }
}
