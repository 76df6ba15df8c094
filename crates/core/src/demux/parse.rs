//! Bytes to headers, as far as the choice of a channel needs them.
//!
//! smoltcp's wire types read the fields and check the lengths; what stands here
//! is the order of questions, and what smoltcp does not know: VLAN tags, and
//! that a first fragment's transport length covers more than the fragment.
//! Every function that fails says which [`Kind`] the frame then is; nothing
//! more is parsed of it.

use core::net::{Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, Icmpv6Packet, IpProtocol, IpSecAuthHeaderPacket, Ipv4Packet,
    Ipv6ExtHeader, Ipv6FragmentHeader, Ipv6Packet, TcpPacket, UDP_HEADER_LEN, UdpPacket,
};

use super::{EXTENSIONS_MAX, Kind, VLAN_TAGS_MAX};

/// 802.1Q and 802.1ad.
const VLAN_ETHERTYPES: [EthernetProtocol; 2] = [
    EthernetProtocol::Unknown(0x8100),
    EthernetProtocol::Unknown(0x88a8),
];
const VLAN_TAG_BYTES: usize = 4;
/// ARP for Ethernet and IPv4 (RFC 826).
const ARP_BYTES: usize = 28;
const ICMPV4_HEADER_BYTES: usize = 8;
const ICMPV6_HEADER_BYTES: usize = 4;
/// Every fragment header, and the least of the others.
const EXTENSION_BYTES: usize = 8;
/// Where a routing header says how many segments are still to be visited (RFC 8200, 4.4).
const SEGMENTS_LEFT: usize = 3;

/// What stands behind the Ethernet header and its tags.
pub(super) enum Link<'a> {
    Arp,
    Ipv4(&'a [u8]),
    Ipv6(&'a [u8]),
}

/// How much of a datagram a packet holds; fragments with their identification.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Whole,
    First(u32),
    Later(u32),
}

/// What the network header says, of either family.
pub(super) struct Datagram<'a, A> {
    pub(super) source: A,
    pub(super) destination: A,
    /// IPv4's type of service, IPv6's traffic class: 6 bits of it.
    pub(super) dscp: u8,
    pub(super) part: Part,
    /// Of the payload; in a later fragment, what the fragment header says.
    pub(super) protocol: IpProtocol,
    pub(super) payload: &'a [u8],
}

/// Source and destination port.
#[derive(Clone, Copy)]
pub(super) struct Ports {
    pub(super) source: u16,
    pub(super) destination: u16,
}

/// Strips the Ethernet header and up to two VLAN tags.
#[inline]
pub(super) fn link(frame: &[u8]) -> Result<Link<'_>, Kind> {
    let ethernet = EthernetFrame::new_checked(frame).map_err(|_| Kind::Malformed)?;
    let mut ethertype = ethernet.ethertype();
    let mut payload = ethernet.payload();
    for _ in 0..VLAN_TAGS_MAX {
        if !VLAN_ETHERTYPES.contains(&ethertype) {
            break;
        }
        let (tag, rest) = payload
            .split_first_chunk::<VLAN_TAG_BYTES>()
            .ok_or(Kind::Malformed)?;
        ethertype = EthernetProtocol::from(u16::from_be_bytes([tag[2], tag[3]]));
        payload = rest;
    }
    match ethertype {
        EthernetProtocol::Ipv4 => Ok(Link::Ipv4(payload)),
        EthernetProtocol::Ipv6 => Ok(Link::Ipv6(payload)),
        EthernetProtocol::Arp if payload.len() < ARP_BYTES => Err(Kind::Malformed),
        EthernetProtocol::Arp => Ok(Link::Arp),
        EthernetProtocol::Unknown(_) => Err(Kind::Other),
    }
}

/// The IPv4 header. The payload ends where the total length says, so Ethernet
/// padding is cut off.
#[inline]
pub(super) fn ipv4(packet: &[u8]) -> Result<Datagram<'_, Ipv4Addr>, Kind> {
    let packet = Ipv4Packet::new_checked(packet).map_err(|_| Kind::Malformed)?;
    if packet.version() != 4 {
        return Err(Kind::Malformed);
    }
    let id = u32::from(packet.ident());
    let part = match (packet.frag_offset(), packet.more_frags()) {
        (0, false) => Part::Whole,
        (0, true) => Part::First(id),
        _ => Part::Later(id),
    };
    Ok(Datagram {
        source: packet.src_addr(),
        destination: packet.dst_addr(),
        dscp: packet.dscp(),
        part,
        protocol: packet.next_header(),
        payload: packet.payload(),
    })
}

/// The fixed IPv6 header; the payload still begins with extension headers.
#[inline]
pub(super) fn ipv6(packet: &[u8]) -> Result<Datagram<'_, Ipv6Addr>, Kind> {
    let packet = Ipv6Packet::new_checked(packet).map_err(|_| Kind::Malformed)?;
    if packet.version() != 6 {
        return Err(Kind::Malformed);
    }
    Ok(Datagram {
        source: packet.src_addr(),
        destination: packet.dst_addr(),
        dscp: packet.traffic_class() >> 2,
        part: Part::Whole,
        protocol: packet.next_header(),
        payload: packet.payload(),
    })
}

/// Walks IPv6 extension headers up to the transport header, or up to the
/// fragment header of a later fragment, behind which there are none.
pub(super) fn extensions(datagram: &mut Datagram<'_, Ipv6Addr>) -> Result<(), Kind> {
    if datagram.payload.is_empty() {
        // A jumbogram (RFC 2675), or nothing at all.
        return Err(Kind::Other);
    }
    let mut fragment_seen = false;
    for headers in 0.. {
        let bytes = match datagram.protocol {
            IpProtocol::Ipv6NoNxt | IpProtocol::IpSecEsp => return Err(Kind::Other),
            IpProtocol::HopByHop
            | IpProtocol::Ipv6Route
            | IpProtocol::Ipv6Opts
            | IpProtocol::IpSecAh
            | IpProtocol::Ipv6Frag
                if headers == EXTENSIONS_MAX =>
            {
                return Err(Kind::Other);
            }
            IpProtocol::Ipv6Route => {
                let bytes = options_bytes(datagram.payload)?;
                if datagram.payload[SEGMENTS_LEFT] > 0 {
                    // For the next segment, not for this host.
                    return Err(Kind::Other);
                }
                bytes
            }
            IpProtocol::HopByHop | IpProtocol::Ipv6Opts => options_bytes(datagram.payload)?,
            IpProtocol::IpSecAh => authentication_bytes(datagram.payload)?,
            IpProtocol::Ipv6Frag => {
                datagram.part = fragment(datagram.payload)?;
                if fragment_seen {
                    return Err(Kind::Other);
                }
                fragment_seen = true;
                EXTENSION_BYTES
            }
            _ => break,
        };
        datagram.protocol = IpProtocol::from(datagram.payload[0]);
        datagram.payload = &datagram.payload[bytes..];
        if matches!(datagram.part, Part::Later(_)) {
            break;
        }
    }
    Ok(())
}

/// Length of a header of options or of routing; all of it is there.
fn options_bytes(bytes: &[u8]) -> Result<usize, Kind> {
    let header = Ipv6ExtHeader::new_checked(bytes).map_err(|_| Kind::Malformed)?;
    Ok((usize::from(header.header_len()) + 1) * 8)
}

/// Length of an authentication header; all of it is there.
fn authentication_bytes(bytes: &[u8]) -> Result<usize, Kind> {
    let header = IpSecAuthHeaderPacket::new_checked(bytes).map_err(|_| Kind::Malformed)?;
    Ok((usize::from(header.payload_len()) + 2) * 4)
}

fn fragment(bytes: &[u8]) -> Result<Part, Kind> {
    let fields = bytes.get(2..EXTENSION_BYTES).ok_or(Kind::Malformed)?;
    let header = Ipv6FragmentHeader::new_checked(fields).map_err(|_| Kind::Malformed)?;
    Ok(match (header.frag_offset(), header.more_frags()) {
        (0, false) => Part::Whole,
        (0, true) => Part::First(header.ident()),
        _ => Part::Later(header.ident()),
    })
}

/// A whole UDP datagram.
#[inline]
pub(super) fn udp(payload: &[u8]) -> Result<Ports, Kind> {
    let udp = UdpPacket::new_checked(payload).map_err(|_| Kind::Malformed)?;
    udp_ports(&udp)
}

/// The beginning of a UDP datagram whose length field covers all fragments.
pub(super) fn udp_first(payload: &[u8]) -> Result<Ports, Kind> {
    if payload.len() < UDP_HEADER_LEN {
        return Err(Kind::Fragment);
    }
    let udp = UdpPacket::new_unchecked(payload);
    if usize::from(udp.len()) < UDP_HEADER_LEN {
        return Err(Kind::Malformed);
    }
    udp_ports(&udp)
}

fn udp_ports(udp: &UdpPacket<&[u8]>) -> Result<Ports, Kind> {
    let ports = Ports {
        source: udp.src_port(),
        destination: udp.dst_port(),
    };
    if ports.destination == 0 {
        return Err(Kind::Malformed);
    }
    Ok(ports)
}

/// Ports of a TCP segment, and whether it asks for a new connection: SYN
/// without ACK, RST and FIN.
#[inline]
pub(super) fn tcp(payload: &[u8]) -> Result<(Ports, bool), Kind> {
    let tcp = TcpPacket::new_checked(payload).map_err(|_| Kind::Malformed)?;
    let ports = Ports {
        source: tcp.src_port(),
        destination: tcp.dst_port(),
    };
    Ok((ports, tcp.syn() && !tcp.ack() && !tcp.rst() && !tcp.fin()))
}

/// ICMP (RFC 792).
pub(super) fn icmpv4(payload: &[u8]) -> Kind {
    if payload.len() < ICMPV4_HEADER_BYTES {
        Kind::Malformed
    } else {
        Kind::Icmp
    }
}

/// ICMPv6 (RFC 4443), in which neighbour discovery (RFC 4861) is types 133 to 137.
pub(super) fn icmpv6(payload: &[u8]) -> Kind {
    if payload.len() < ICMPV6_HEADER_BYTES {
        return Kind::Malformed;
    }
    match u8::from(Icmpv6Packet::new_unchecked(payload).msg_type()) {
        133..=137 => Kind::Neighbour,
        _ => Kind::Icmp,
    }
}
