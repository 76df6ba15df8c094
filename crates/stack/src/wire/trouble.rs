//! ICMP errors: what the network says about a packet of ours, and which packet it was.
//!
//! An error quotes the beginning of the packet that caused it. Anybody can send one, so this
//! file only reads it; whose it is and whether we sent such a packet is checked by whoever
//! has the socket (`socket::udp`, `tcp`, and `link::paths` for the size of packets).

use std::net::{IpAddr, SocketAddr};

use plimsoll_core::demux::Protocol;
use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv6DstUnreachable, Icmpv6Message,
    Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv6Packet,
};

use super::ETHERNET_BYTES;
use super::emit::FRAGMENT_HEADER_BYTES;
use super::packet::Packet;

/// What the network says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nobody has the port.
    PortUnreachable,
    HostUnreachable,
    NetworkUnreachable,
    /// The packet was longer than the next link takes, which is so many bytes, or is not said
    /// (routers before RFC 1191).
    TooBig(Option<usize>),
}

impl Trouble {
    /// The number of the error that a socket's call returns.
    pub(crate) fn errno(self) -> Option<i32> {
        match self {
            Self::PortUnreachable => Some(libc::ECONNREFUSED),
            Self::HostUnreachable => Some(libc::EHOSTUNREACH),
            Self::NetworkUnreachable => Some(libc::ENETUNREACH),
            Self::TooBig(_) => None,
        }
    }
}

/// The first bytes of a transport header, which every error quotes (RFC 792, RFC 4443).
const QUOTED_BYTES: usize = 8;

/// An error and what it quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) trouble: Trouble,
    pub(crate) protocol: Protocol,
    /// Who sent the packet, which must be us, and whom to.
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// Length of the quoted packet.
    pub(crate) bytes: usize,
    /// What follows the ports: UDP's length and checksum, TCP's sequence number.
    pub(crate) after_ports: u32,
}

/// Reads an ICMP message whose checksum is right; nothing if it is no error that concerns
/// sockets, or quotes too little.
pub(crate) fn parse(bytes: &[u8], packet: &Packet) -> Option<Report> {
    let quoted = bytes.get(8..)?;
    match packet.protocol {
        IpProtocol::Icmp => parse_v4(quoted, trouble_v4(bytes)?),
        IpProtocol::Icmpv6 => parse_v6(quoted, trouble_v6(bytes)?),
        _ => None,
    }
    // An error goes to who sent the packet, or it is about somebody else's.
    .filter(|report| report.local.ip() == packet.destination)
}

/// What is to be said of a frame of ours whose neighbour does not answer.
pub(crate) fn of_unanswered(frame: &[u8]) -> Option<Report> {
    let packet = frame.get(ETHERNET_BYTES..)?;
    match packet.first()? >> 4 {
        4 => parse_v4(packet, Trouble::HostUnreachable),
        6 => parse_v6(packet, Trouble::HostUnreachable),
        _ => None,
    }
}

fn trouble_v4(bytes: &[u8]) -> Option<Trouble> {
    let icmp = Icmpv4Packet::new_checked(bytes).ok()?;
    if icmp.msg_type() != Icmpv4Message::DstUnreachable {
        return None;
    }
    Some(match Icmpv4DstUnreachable::from(icmp.msg_code()) {
        Icmpv4DstUnreachable::PortUnreachable => Trouble::PortUnreachable,
        Icmpv4DstUnreachable::NetUnreachable
        | Icmpv4DstUnreachable::DstNetUnknown
        | Icmpv4DstUnreachable::NetProhibited => Trouble::NetworkUnreachable,
        Icmpv4DstUnreachable::FragRequired => {
            let mtu = u16::from_be_bytes(bytes.get(6..8)?.try_into().ok()?);
            Trouble::TooBig((mtu > 0).then_some(mtu.into()))
        }
        _ => Trouble::HostUnreachable,
    })
}

fn trouble_v6(bytes: &[u8]) -> Option<Trouble> {
    let icmp = Icmpv6Packet::new_checked(bytes).ok()?;
    match icmp.msg_type() {
        Icmpv6Message::PktTooBig => {
            let mtu = bytes.get(4..8)?.try_into().ok()?;
            Some(Trouble::TooBig(
                usize::try_from(u32::from_be_bytes(mtu)).ok(),
            ))
        }
        Icmpv6Message::DstUnreachable => Some(match Icmpv6DstUnreachable::from(icmp.msg_code()) {
            Icmpv6DstUnreachable::PortUnreachable => Trouble::PortUnreachable,
            Icmpv6DstUnreachable::NoRoute => Trouble::NetworkUnreachable,
            _ => Trouble::HostUnreachable,
        }),
        _ => None,
    }
}

fn parse_v4(quoted: &[u8], trouble: Trouble) -> Option<Report> {
    // Not the packet's own length, of which a part is quoted.
    if quoted.len() < smoltcp::wire::IPV4_HEADER_LEN {
        return None;
    }
    let packet = Ipv4Packet::new_unchecked(quoted);
    let sound = packet.version() == 4 && packet.frag_offset() == 0;
    let transport = quoted.get(usize::from(packet.header_len())..)?;
    let ends = (packet.src_addr().into(), packet.dst_addr().into());
    let bytes = usize::from(packet.total_len());
    sound.then(|| report(trouble, ends, packet.next_header(), transport, bytes))?
}

fn parse_v6(quoted: &[u8], trouble: Trouble) -> Option<Report> {
    if quoted.len() < smoltcp::wire::IPV6_HEADER_LEN {
        return None;
    }
    let packet = Ipv6Packet::new_unchecked(quoted);
    let mut protocol = packet.next_header();
    let mut transport = &quoted[smoltcp::wire::IPV6_HEADER_LEN..];
    if protocol == IpProtocol::Ipv6Frag {
        // We send no other extension header. Only the first fragment has ports.
        let first = transport.get(2..4)? == [0, 1] || transport.get(2..4)? == [0, 0];
        protocol = IpProtocol::from(*transport.first()?);
        transport = transport.get(FRAGMENT_HEADER_BYTES..).filter(|_| first)?;
    }
    let ends = (packet.src_addr().into(), packet.dst_addr().into());
    let bytes = smoltcp::wire::IPV6_HEADER_LEN + usize::from(packet.payload_len());
    let sound = packet.version() == 6;
    sound.then(|| report(trouble, ends, protocol, transport, bytes))?
}

fn report(
    trouble: Trouble,
    (source, destination): (IpAddr, IpAddr),
    protocol: IpProtocol,
    transport: &[u8],
    bytes: usize,
) -> Option<Report> {
    let protocol = match protocol {
        IpProtocol::Udp => Protocol::Udp,
        IpProtocol::Tcp => Protocol::Tcp,
        _ => return None,
    };
    let head: &[u8; QUOTED_BYTES] = transport.first_chunk()?;
    let [a, b, c, d, rest @ ..] = *head;
    Some(Report {
        trouble,
        protocol,
        local: SocketAddr::new(source, u16::from_be_bytes([a, b])),
        remote: SocketAddr::new(destination, u16::from_be_bytes([c, d])),
        bytes,
        after_ports: u32::from_be_bytes(rest),
    })
}
