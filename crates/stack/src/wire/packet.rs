//! A frame's network layer: whose it is, and where in the frame its payload is.
//!
//! Stricter than `core::demux`, which only has to choose a channel: checksums
//! are verified, and frames with VLAN tags or for other Ethernet addresses are
//! not taken, since an answer could not go back the way they came.

use std::net::IpAddr;
use std::ops::Range;

use plimsoll_core::demux::EXTENSIONS_MAX;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6ExtHeader, Ipv6FragmentHeader,
    Ipv6Packet,
};

use super::ETHERNET_BYTES;
use crate::device::Mac;
use crate::outcome::Outcome;

const FRAGMENT_HEADER_BYTES: usize = 8;
/// The only option without a length (RFC 8200, 4.2).
const OPTION_PAD_1: u8 = 0;
/// In an option's type: all values but "skip" have the packet discarded.
const OPTION_DISCARDS: u8 = 0xc0;

/// How much of a datagram a packet holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    Fragment {
        id: u32,
        /// Of the payload in the datagram, in bytes.
        offset: usize,
        last: bool,
    },
}

impl Part {
    /// Nothing of the datagram follows in another packet.
    pub(crate) const fn is_last(self) -> bool {
        matches!(self, Self::Whole | Self::Fragment { last: true, .. })
    }
}

/// What the headers up to the network layer say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) via: Mac,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: IpProtocol,
    pub(crate) part: Part,
    pub(crate) hop_limit: u8,
    /// Where in the frame the network header begins.
    pub(crate) network: usize,
    /// Where in the frame the payload is, without Ethernet padding.
    pub(crate) payload: Range<usize>,
}

/// Whether a frame is for this Ethernet address, a group or everybody.
#[inline]
pub(crate) fn is_for(frame: &[u8], mac: Mac) -> bool {
    frame.len() >= ETHERNET_BYTES && (frame[0] & 1 == 1 || frame[..6] == mac)
}

/// Takes an IP frame apart. One from where nobody can be is malformed.
#[inline]
pub(crate) fn parse(frame: &[u8]) -> Result<Packet, Outcome> {
    let ethernet = EthernetFrame::new_checked(frame).map_err(|_| Outcome::Malformed)?;
    let via = ethernet.src_addr().0;
    let packet = match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => parse_ipv4(frame, via),
        EthernetProtocol::Ipv6 => parse_ipv6(frame, via),
        _ => Err(Outcome::Other),
    }?;
    match is_sender(packet.source) {
        true => Ok(packet),
        false => Err(Outcome::Malformed),
    }
}

/// Whether a packet on a link may come from there: not from a group, everybody, or a host's own loopback (RFC 1122,
/// 3.2.1.3; RFC 4291, 2.5.3 and 2.7), nor over IPv6 from an address of IPv4, whose answers would leave over
/// IPv4. A host without an address is nobody yet, and may be.
#[inline]
fn is_sender(source: IpAddr) -> bool {
    match source {
        IpAddr::V4(source) => {
            !(source.is_multicast() || source.is_broadcast() || source.is_loopback())
        }
        IpAddr::V6(source) => {
            !(source.is_multicast() || source.is_loopback() || source.to_ipv4_mapped().is_some())
        }
    }
}

fn parse_ipv4(frame: &[u8], via: Mac) -> Result<Packet, Outcome> {
    let bytes = &frame[ETHERNET_BYTES..];
    let packet = Ipv4Packet::new_checked(bytes).map_err(|_| Outcome::Malformed)?;
    if packet.version() != 4 {
        return Err(Outcome::Malformed);
    }
    if !packet.verify_checksum() {
        return Err(Outcome::Checksum);
    }
    let (offset, more) = (packet.frag_offset(), packet.more_frags());
    let part = match (offset, more) {
        (0, false) => Part::Whole,
        _ => Part::Fragment {
            id: packet.ident().into(),
            offset: offset.into(),
            last: !more,
        },
    };
    let header = usize::from(packet.header_len());
    Ok(Packet {
        via,
        source: packet.src_addr().into(),
        destination: packet.dst_addr().into(),
        protocol: packet.next_header(),
        part,
        hop_limit: packet.hop_limit(),
        network: ETHERNET_BYTES,
        payload: ETHERNET_BYTES + header..ETHERNET_BYTES + usize::from(packet.total_len()),
    })
}

fn parse_ipv6(frame: &[u8], via: Mac) -> Result<Packet, Outcome> {
    let bytes = &frame[ETHERNET_BYTES..];
    let packet = Ipv6Packet::new_checked(bytes).map_err(|_| Outcome::Malformed)?;
    if packet.version() != 6 {
        return Err(Outcome::Malformed);
    }
    let start = ETHERNET_BYTES + smoltcp::wire::IPV6_HEADER_LEN;
    let mut parsed = Packet {
        via,
        source: packet.src_addr().into(),
        destination: packet.dst_addr().into(),
        protocol: packet.next_header(),
        part: Part::Whole,
        hop_limit: packet.hop_limit(),
        network: ETHERNET_BYTES,
        payload: start..start + usize::from(packet.payload_len()),
    };
    walk_extensions(frame, &mut parsed)?;
    Ok(parsed)
}

/// Walks to the transport header, or behind the fragment header of a fragment.
fn walk_extensions(frame: &[u8], packet: &mut Packet) -> Result<(), Outcome> {
    for _ in 0..EXTENSIONS_MAX {
        let bytes = &frame[packet.payload.clone()];
        match packet.protocol {
            IpProtocol::Ipv6Frag => {
                let fields = bytes
                    .get(2..FRAGMENT_HEADER_BYTES)
                    .ok_or(Outcome::Malformed)?;
                let header =
                    Ipv6FragmentHeader::new_checked(fields).map_err(|_| Outcome::Malformed)?;
                let (offset, more) = (header.frag_offset(), header.more_frags());
                packet.protocol = IpProtocol::from(bytes[0]);
                packet.payload.start += FRAGMENT_HEADER_BYTES;
                if offset != 0 || more {
                    packet.part = Part::Fragment {
                        id: header.ident(),
                        // smoltcp gives units of 8 bytes.
                        offset: usize::from(offset) * 8,
                        last: !more,
                    };
                    return Ok(());
                }
            }
            IpProtocol::HopByHop | IpProtocol::Ipv6Route | IpProtocol::Ipv6Opts => {
                let header = Ipv6ExtHeader::new_checked(bytes).map_err(|_| Outcome::Malformed)?;
                if packet.protocol != IpProtocol::Ipv6Route {
                    pass_options(header.payload())?;
                }
                packet.protocol = header.next_header();
                packet.payload.start += (usize::from(header.header_len()) + 1) * 8;
            }
            _ => return Ok(()),
        }
    }
    Err(Outcome::Other)
}

/// Whether a host that does not know these options may go past them: the two high bits of a type say so (RFC
/// 8200, 4.2). Those that are known, pads and the router alert, have neither. No error is sent.
fn pass_options(mut options: &[u8]) -> Result<(), Outcome> {
    while let [kind, rest @ ..] = options {
        if kind & OPTION_DISCARDS != 0 {
            return Err(Outcome::Other);
        }
        options = match (*kind, rest) {
            (OPTION_PAD_1, _) => rest,
            (_, [length, data @ ..]) => {
                data.get(usize::from(*length)..).ok_or(Outcome::Malformed)?
            }
            _ => return Err(Outcome::Malformed),
        };
    }
    Ok(())
}
