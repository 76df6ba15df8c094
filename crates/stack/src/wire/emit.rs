//! Frames to be sent: headers in front of a payload.

use std::net::{IpAddr, SocketAddr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6FragmentHeader,
    Ipv6Packet, Ipv6Repr, UdpPacket, UdpRepr,
};

use super::{ETHERNET_BYTES, UDP_BYTES};
use crate::device::{Frame, Mac};

const IPV4_BYTES: usize = smoltcp::wire::IPV4_HEADER_LEN;
const IPV6_BYTES: usize = smoltcp::wire::IPV6_HEADER_LEN;
/// Of the extension header of IPv6 fragments.
pub(crate) const FRAGMENT_HEADER_BYTES: usize = 8;
/// What Linux sends (`ip_default_ttl`).
const HOP_LIMIT: u8 = 64;
/// The longest UDP datagram without options, over IPv4 and over IPv6.
const UDP_PAYLOAD_MAX: [usize; 2] = [65_507, 65_527];

/// Bytes of the network header without extensions.
pub(crate) fn network_bytes(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => IPV4_BYTES,
        IpAddr::V6(_) => IPV6_BYTES,
    }
}

/// The longest payload of a UDP datagram to such an address, in bytes.
pub(crate) fn payload_max(destination: IpAddr) -> usize {
    UDP_PAYLOAD_MAX[usize::from(destination.is_ipv6())]
}

/// What a fragment's header says, beside its datagram's.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) id: u32,
    pub(super) offset: usize,
    pub(super) more: bool,
}

/// Writes the Ethernet header at the beginning of `frame`. The destination is
/// left to [`set_link_destination`].
fn write_ethernet(frame: &mut [u8], source: Mac, ethertype: EthernetProtocol) {
    let mut ethernet = EthernetFrame::new_unchecked(frame);
    ethernet.set_src_addr(EthernetAddress(source));
    ethernet.set_ethertype(ethertype);
}

/// Writes the Ethernet header in front of a complete IP packet; as
/// [`write_headers`], without the destination.
pub(crate) fn write_link(frame: &mut [u8], mac: Mac) {
    let version = frame.get(ETHERNET_BYTES).map_or(0, |byte| byte >> 4);
    let ethertype = match version {
        6 => EthernetProtocol::Ipv6,
        _ => EthernetProtocol::Ipv4,
    };
    write_ethernet(frame, mac, ethertype);
}

/// Fills in whom a frame goes to on the link.
pub(crate) fn set_link_destination(frame: &mut [u8], to: Mac) {
    EthernetFrame::new_unchecked(frame).set_dst_addr(EthernetAddress(to));
}

/// Has a packet that is built pass so many links.
pub(crate) fn set_hop_limit(frame: &mut [u8], hop_limit: u8) {
    let bytes = &mut frame[ETHERNET_BYTES..];
    if bytes.first().is_some_and(|byte| byte >> 4 == 6) {
        Ipv6Packet::new_unchecked(bytes).set_hop_limit(hop_limit);
    } else {
        let mut packet = Ipv4Packet::new_unchecked(bytes);
        packet.set_hop_limit(hop_limit);
        packet.fill_checksum();
    }
}

/// Writes Ethernet and IP headers in front of `payload_bytes` bytes.
///
/// `frame` begins with the Ethernet header. The addresses are of one family.
pub(crate) fn write_headers(
    frame: &mut [u8],
    mac: Mac,
    (source, destination): (IpAddr, IpAddr),
    protocol: IpProtocol,
    hop_limit: Option<u8>,
) {
    write_network(frame, mac, (source, destination), protocol, hop_limit, None);
}

pub(super) fn write_network(
    frame: &mut [u8],
    mac: Mac,
    ends: (IpAddr, IpAddr),
    protocol: IpProtocol,
    hop_limit: Option<u8>,
    piece: Option<Piece>,
) {
    let hop_limit = hop_limit.unwrap_or(HOP_LIMIT);
    match ends {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            write_ethernet(frame, mac, EthernetProtocol::Ipv4);
            let bytes = &mut frame[ETHERNET_BYTES..];
            let length = bytes.len() as u16;
            let mut packet = Ipv4Packet::new_unchecked(bytes);
            packet.set_version(4);
            packet.set_header_len(IPV4_BYTES as u8);
            packet.set_dscp(0);
            packet.set_ecn(0);
            packet.set_total_len(length);
            packet.clear_flags();
            // Without fragments the identification means nothing (RFC 6864).
            packet.set_dont_frag(piece.is_none());
            packet.set_ident(piece.map_or(0, |piece| piece.id as u16));
            packet.set_more_frags(piece.is_some_and(|piece| piece.more));
            packet.set_frag_offset(piece.map_or(0, |piece| piece.offset as u16));
            packet.set_hop_limit(hop_limit);
            packet.set_next_header(protocol);
            packet.set_src_addr(source);
            packet.set_dst_addr(destination);
            packet.fill_checksum();
        }
        (IpAddr::V6(src_addr), IpAddr::V6(dst_addr)) => {
            write_ethernet(frame, mac, EthernetProtocol::Ipv6);
            let bytes = &mut frame[ETHERNET_BYTES..];
            let header = Ipv6Repr {
                src_addr,
                dst_addr,
                next_header: piece.map_or(protocol, |_| IpProtocol::Ipv6Frag),
                payload_len: bytes.len() - IPV6_BYTES,
                hop_limit,
            };
            header.emit(&mut Ipv6Packet::new_unchecked(&mut *bytes));
            if let Some(piece) = piece {
                write_fragment_header(&mut bytes[IPV6_BYTES..], protocol, piece);
            }
        }
        _ => unreachable!("addresses of one family, chosen by us"),
    }
}

fn write_fragment_header(bytes: &mut [u8], protocol: IpProtocol, piece: Piece) {
    bytes[0] = protocol.into();
    bytes[1] = 0;
    let mut header = Ipv6FragmentHeader::new_unchecked(&mut bytes[2..FRAGMENT_HEADER_BYTES]);
    header.clear_reserved();
    header.set_frag_offset((piece.offset / 8) as u16);
    header.set_more_frags(piece.more);
    header.set_ident(piece.id);
}

/// A UDP datagram in one frame: the frame's range is the payload's, with room
/// for headers in front; afterwards it is all of the frame.
pub(crate) fn wrap_udp(frame: &mut Frame, mac: Mac, source: SocketAddr, destination: SocketAddr) {
    let headers = ETHERNET_BYTES + network_bytes(destination.ip()) + UDP_BYTES;
    let payload = frame.range();
    frame.set_range(payload.start - headers..payload.end);
    let ends = (source.ip(), destination.ip());
    write_headers(frame, mac, ends, IpProtocol::Udp, None);
    let udp = &mut frame[headers - UDP_BYTES..];
    write_udp(udp, source, destination);
}

/// Writes the header at the beginning of a whole UDP datagram.
fn write_udp(datagram: &mut [u8], source: SocketAddr, destination: SocketAddr) {
    let payload_bytes = datagram.len() - UDP_BYTES;
    let header = UdpRepr {
        src_port: source.port(),
        dst_port: destination.port(),
    };
    let (from, to) = (source.ip().into(), destination.ip().into());
    header.emit(
        &mut UdpPacket::new_unchecked(datagram),
        &from,
        &to,
        payload_bytes,
        |_| {},
        &ChecksumCapabilities::default(),
    );
}

#[cfg(test)]
mod tests {
    use plimsoll_core::time::Instant;

    use super::super::datagram::{Input, input, no_reassembler};
    use super::*;
    use crate::device::Pool;

    const MAC: Mac = [2, 0, 0, 0, 0, 9];

    fn ends() -> [(SocketAddr, SocketAddr); 2] {
        let ends = |one: &str, other: &str| (one.parse().unwrap(), other.parse().unwrap());
        [
            ends("10.0.0.1:1000", "10.0.0.2:2000"),
            ends("[2001:db8::1]:1000", "[2001:db8::2]:2000"),
        ]
    }

    fn read(frame: Frame) -> Input {
        input(frame, false, no_reassembler, Instant::ZERO)
    }

    #[test]
    fn what_is_built_is_understood() {
        let pool = Pool::new(8, 2048).unwrap();
        for (source, destination) in ends() {
            for length in [0, 1, 2, 999, 1400] {
                let payload: Vec<u8> = (0..length).map(|k| k as u8).collect();
                let mut frame = pool.take().unwrap();
                assert!(frame.copy_from(&payload));
                wrap_udp(&mut frame, MAC, source, destination);
                let Input::Datagram(datagram) = read(frame) else {
                    panic!("not understood: {length} bytes to {destination}");
                };
                assert_eq!(datagram.payload(), payload);
                assert_eq!((datagram.source(), datagram.via), (source, MAC));
                assert_eq!(datagram.destination(), destination);
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed_behind_the_ethernet_header() {
        let pool = Pool::new(8, 2048).unwrap();
        for (source, destination) in ends() {
            let mut frame = pool.take().unwrap();
            assert!(frame.copy_from(b"sixteen bytes .."));
            wrap_udp(&mut frame, MAC, source, destination);
            let bytes = frame.to_vec();
            for bit in ETHERNET_BYTES * 8..bytes.len() * 8 {
                let mut frame = pool.take().unwrap();
                frame.copy_from(&bytes);
                frame[bit / 8] ^= 1 << (bit % 8);
                let Input::Datagram(datagram) = read(frame) else {
                    continue;
                };
                // No checksum covers these fields of IPv6.
                let in_ipv6_header = destination.is_ipv6() && bit / 8 < ETHERNET_BYTES + 8;
                assert!(in_ipv6_header, "bit {bit} of {datagram:?}");
            }
        }
    }
}
