//! What a router looks at in a frame, and what it writes there.
//!
//! [`examine`] tells a plain packet from all others. [`rewrite`] does what
//! forwarding a plain packet takes: new Ethernet addresses, a TTL that is one less, and
//! the IPv4 header's checksum (RFC 1624).
//!
//! A fragment is plain: routers do not reassemble. So is a packet with IPv6 extension
//! headers other than hop-by-hop options, which alone concern routers on the way
//! (RFC 8200, section 4).
//!
//! **Limits.** No VLAN tags: such frames are another protocol.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet,
};

use crate::device::Mac;

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV4_CHECKSUM_AT: usize = ETHERNET_BYTES + 10;
const IPV4_TTL_AT: usize = ETHERNET_BYTES + 8;
const IPV6_BYTES: usize = 40;
const IPV6_HOP_LIMIT_AT: usize = ETHERNET_BYTES + 7;

/// A valid packet for one host, without anything special.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Whom it is from.
    pub source: IpAddr,
    /// Whom it is for.
    pub destination: IpAddr,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Length of the IP packet in bytes.
    pub bytes: usize,
}

impl Plain {
    /// A number that all packets between two hosts share, to choose one of several
    /// next hops by. Ports do not count, so that fragments take the same way.
    #[must_use]
    pub fn flow(&self) -> u32 {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                (bits as u64) ^ ((bits >> 64) as u64)
            }
        };
        // Fibonacci hashing (Knuth 6.4): the high bits depend on all.
        let mixed = bits(self.source).rotate_left(32) ^ bits(self.destination);
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }
}

/// Why a frame is no plain packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotPlain {
    /// No valid frame with a valid IP packet.
    Malformed,
    /// ARP.
    AddressResolution,
    /// Neither IP nor ARP.
    OtherProtocol,
    /// To many, by Ethernet or IP.
    Multicast,
    /// To another station's Ethernet address.
    OtherHost,
    /// With IPv4 options or IPv6 hop-by-hop options.
    Options,
    /// A source or destination that no packet may have.
    Martian,
    /// From or to an IPv6 link-local address.
    LinkLocal,
}

/// A plain packet. `station` is the Ethernet address of the interface that it came in by.
///
/// # Errors
///
/// Why it is none.
#[inline]
pub fn examine(frame: &[u8], station: Mac) -> Result<Plain, NotPlain> {
    let ethernet = EthernetFrame::new_checked(frame).map_err(|_| NotPlain::Malformed)?;
    let protocol = ethernet.ethertype();
    match protocol {
        EthernetProtocol::Arp => return Err(NotPlain::AddressResolution),
        EthernetProtocol::Ipv4 | EthernetProtocol::Ipv6 => {}
        _ => return Err(NotPlain::OtherProtocol),
    }
    // The group bit: broadcast has it as well.
    if ethernet.dst_addr().0[0] & 1 != 0 {
        return Err(NotPlain::Multicast);
    }
    if ethernet.dst_addr() != EthernetAddress(station) {
        return Err(NotPlain::OtherHost);
    }
    let packet = &frame[ETHERNET_BYTES..];
    match protocol {
        EthernetProtocol::Ipv4 => examine_v4(packet),
        _ => examine_v6(packet),
    }
}

#[inline]
fn examine_v4(packet: &[u8]) -> Result<Plain, NotPlain> {
    let ip = Ipv4Packet::new_unchecked(packet);
    if packet.len() < IPV4_BYTES || ip.version() != 4 || usize::from(ip.header_len()) < IPV4_BYTES {
        return Err(NotPlain::Malformed);
    }
    let (header, bytes) = (usize::from(ip.header_len()), usize::from(ip.total_len()));
    if bytes < header || bytes > packet.len() {
        return Err(NotPlain::Malformed);
    }
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    if destination.is_multicast() || destination.is_broadcast() {
        return Err(NotPlain::Multicast);
    }
    if header > IPV4_BYTES {
        return Err(NotPlain::Options);
    }
    if !ip.verify_checksum() {
        return Err(NotPlain::Malformed);
    }
    // As the kernel has it, which forwards 240.0.0.0/4.
    let is_nobody = |address: Ipv4Addr| address.is_unspecified() || address.is_loopback();
    if is_nobody(source) || source.is_multicast() || source.is_broadcast() || is_nobody(destination)
    {
        return Err(NotPlain::Martian);
    }
    Ok(Plain {
        source: source.into(),
        destination: destination.into(),
        ttl: ip.hop_limit(),
        bytes,
    })
}

#[inline]
fn examine_v6(packet: &[u8]) -> Result<Plain, NotPlain> {
    let ip = Ipv6Packet::new_unchecked(packet);
    if packet.len() < IPV6_BYTES || ip.version() != 6 {
        return Err(NotPlain::Malformed);
    }
    let bytes = IPV6_BYTES + usize::from(ip.payload_len());
    if bytes > packet.len() {
        return Err(NotPlain::Malformed);
    }
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    if destination.is_multicast() {
        return Err(NotPlain::Multicast);
    }
    if ip.next_header() == IpProtocol::HopByHop {
        return Err(NotPlain::Options);
    }
    let is_nobody = |address: Ipv6Addr| address.is_unspecified() || address.is_loopback();
    if source.is_multicast() || is_nobody(source) || is_nobody(destination) {
        return Err(NotPlain::Martian);
    }
    if source.is_unicast_link_local() || destination.is_unicast_link_local() {
        return Err(NotPlain::LinkLocal);
    }
    Ok(Plain {
        source: source.into(),
        destination: destination.into(),
        ttl: ip.hop_limit(),
        bytes,
    })
}

/// Makes the frame of a plain packet, whose TTL is above 1, the one that is sent on.
#[inline]
pub fn rewrite(frame: &mut [u8], is_ipv4: bool, from: Mac, to: Mac) {
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    if !is_ipv4 {
        frame[IPV6_HOP_LIMIT_AT] -= 1;
        return;
    }
    frame[IPV4_TTL_AT] -= 1;
    let check = [frame[IPV4_CHECKSUM_AT], frame[IPV4_CHECKSUM_AT + 1]];
    let check = after_ttl(u16::from_be_bytes(check)).to_be_bytes();
    frame[IPV4_CHECKSUM_AT..IPV4_CHECKSUM_AT + 2].copy_from_slice(&check);
}

/// The checksum of a header whose TTL is one less than before. RFC 1624, equation 3:
/// `HC' = ~(~HC + ~m + m')`. The word that holds the TTL is less by 0x0100, so this is
/// adding 0x0100 with the carry around the end.
#[inline]
fn after_ttl(check: u16) -> u16 {
    let sum = u32::from(check) + 0x0100;
    (sum + u32::from(sum >= 0xffff)) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::any;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        /// The checksum that is adjusted is the one that is computed anew.
        #[test]
        fn checksums_are_adjusted_as_if_computed(
            source in any::<u32>(), destination in any::<u32>(), ttl in 2u8.., tos in any::<u8>(),
            ident in any::<u16>(), protocol in any::<u8>(), length in 0u16..1480,
        ) {
            let mut header = [0u8; 34];
            header[14] = 0x45;
            header[15] = tos;
            header[16..18].copy_from_slice(&(20 + length).to_be_bytes());
            header[18..20].copy_from_slice(&ident.to_be_bytes());
            header[22] = ttl;
            header[23] = protocol;
            header[26..30].copy_from_slice(&source.to_be_bytes());
            header[30..34].copy_from_slice(&destination.to_be_bytes());
            Ipv4Packet::new_unchecked(&mut header[14..]).fill_checksum();
            rewrite(&mut header, true, [0; 6], [0; 6]);
            let mut anew = header;
            Ipv4Packet::new_unchecked(&mut anew[14..]).fill_checksum();
            prop_assert_eq!(&anew[24..26], &header[24..26]);
            prop_assert!(Ipv4Packet::new_unchecked(&header[14..]).verify_checksum());
        }
    }
}
