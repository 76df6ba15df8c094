//! Where a frame's headers end, and which flow it belongs to.
//!
//! Unlike `demux`, which judges frames, this reads as far as it understands: a monitor
//! also records what is malformed. smoltcp's wire types read the fields, each after a
//! look at the length.
//!
//! **Limits.** Two VLAN tags and eight IPv6 extension headers at most. Fragments after
//! the first have no ports, so they may be sampled apart from their flow. Tunnels count
//! as one flow per pair of outer addresses.

use core::hash::Hasher;
use core::net::Ipv6Addr;

use siphasher::sip::SipHasher13;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket,
};

use crate::demux::{EXTENSIONS_MAX, Seed, VLAN_TAGS_MAX};

const ETHERNET_BYTES: usize = 14;
const ADDRESSES_BYTES: usize = 12;
const VLAN_TAG_BYTES: usize = 4;
const VLAN_ETHERTYPES: [u16; 2] = [0x8100, 0x88a8];
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const TCP_BYTES: usize = 20;
const ICMP_BYTES: usize = 8;
const ARP_BYTES: usize = 28;

/// One end of a flow: an address (IPv4 or Ethernet in the low bits), and a port or 0.
type End = (u128, u16);

/// What a frame says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outline {
    /// Length of all headers that were understood.
    headers: usize,
    ends: [End; 2],
    /// Of IP, else the ethertype.
    protocol: u16,
}

/// How many of the frame's first bytes are headers: Ethernet, VLAN tags, IP, and UDP,
/// TCP or ICMP. Never more than the frame has.
#[must_use]
pub fn headers_bytes(frame: &[u8]) -> usize {
    outline(frame).headers.min(frame.len())
}

/// Chooses 1 flow in 2ⁿ by a keyed hash, so that senders cannot choose for themselves.
///
/// Both directions of a flow get the same answer. What is chosen for some n is also
/// chosen for every smaller one.
#[derive(Clone, Copy, Debug)]
pub struct FlowSampler {
    seed: Seed,
}

impl FlowSampler {
    /// With a secret of this capture's own.
    #[must_use]
    pub const fn new(seed: Seed) -> Self {
        Self { seed }
    }

    /// Whether the frame's flow is among 1 in 2ⁿ; n at most 63.
    #[must_use]
    pub fn keeps(&self, frame: &[u8], one_in_log2: u8) -> bool {
        let Outline { ends, protocol, .. } = outline(frame);
        let [low, high] = if ends[0] <= ends[1] {
            ends
        } else {
            [ends[1], ends[0]]
        };
        let mut hasher = SipHasher13::new_with_keys(self.seed.0[0], self.seed.0[1]);
        for (address, _) in [low, high] {
            hasher.write_u64((address >> 64) as u64);
            hasher.write_u64(address as u64);
        }
        hasher.write_u16(low.1);
        hasher.write_u16(high.1);
        hasher.write_u16(protocol);
        hasher.finish().trailing_zeros() >= u32::from(one_in_log2)
    }
}

fn outline(frame: &[u8]) -> Outline {
    if frame.len() < ETHERNET_BYTES {
        return Outline {
            headers: frame.len(),
            ends: [(0, 0); 2],
            protocol: 0,
        };
    }
    let (ethertype, start) = ethertype(frame);
    let packet = &frame[start..];
    let inner = match EthernetProtocol::from(ethertype) {
        EthernetProtocol::Ipv4 => ipv4(packet),
        EthernetProtocol::Ipv6 => ipv6(packet),
        EthernetProtocol::Arp => Some(by_macs(frame, ethertype, ARP_BYTES)),
        EthernetProtocol::Unknown(_) => None,
    };
    let inner = inner.unwrap_or_else(|| by_macs(frame, ethertype, 0));
    Outline {
        headers: start + inner.headers,
        ..inner
    }
}

/// The ethertype behind the tags, and where its payload begins.
fn ethertype(frame: &[u8]) -> (u16, usize) {
    let at = |start: usize| u16::from_be_bytes([frame[start - 2], frame[start - 1]]);
    let mut start = ETHERNET_BYTES;
    for _ in 0..VLAN_TAGS_MAX {
        if !VLAN_ETHERTYPES.contains(&at(start)) || frame.len() < start + VLAN_TAG_BYTES {
            break;
        }
        start += VLAN_TAG_BYTES;
    }
    (at(start), start)
}

fn by_macs(frame: &[u8], ethertype: u16, headers: usize) -> Outline {
    debug_assert!(frame.len() >= ADDRESSES_BYTES);
    let ethernet = EthernetFrame::new_unchecked(frame);
    let number = |mac: [u8; 6]| mac.iter().fold(0, |sum, &byte| sum << 8 | u128::from(byte));
    Outline {
        headers,
        ends: [
            (number(ethernet.src_addr().0), 0),
            (number(ethernet.dst_addr().0), 0),
        ],
        protocol: ethertype,
    }
}

fn ipv4(packet: &[u8]) -> Option<Outline> {
    if packet.len() < IPV4_BYTES {
        return None;
    }
    let ip = Ipv4Packet::new_unchecked(packet);
    let start = usize::from(ip.header_len()).max(IPV4_BYTES);
    let first = ip.frag_offset() == 0;
    let ends = [ip.src_addr(), ip.dst_addr()].map(|address| u128::from(address.to_bits()));
    Some(transport(packet, start, ip.next_header(), ends, first))
}

fn ipv6(packet: &[u8]) -> Option<Outline> {
    if packet.len() < IPV6_BYTES {
        return None;
    }
    let ip = Ipv6Packet::new_unchecked(packet);
    let ends = [ip.src_addr(), ip.dst_addr()].map(Ipv6Addr::to_bits);
    let (mut protocol, mut start, mut first) = (ip.next_header(), IPV6_BYTES, true);
    for _ in 0..EXTENSIONS_MAX {
        let Some(&[next, units, offset_high, offset_low]) = packet
            .get(start..)
            .and_then(|header| header.first_chunk::<4>())
        else {
            break;
        };
        let bytes = match protocol {
            IpProtocol::HopByHop | IpProtocol::Ipv6Route | IpProtocol::Ipv6Opts => {
                (usize::from(units) + 1) * 8
            }
            IpProtocol::IpSecAh => (usize::from(units) + 2) * 4,
            IpProtocol::Ipv6Frag => {
                first = u16::from_be_bytes([offset_high, offset_low]) >> 3 == 0;
                8
            }
            _ => break,
        };
        protocol = IpProtocol::from(next);
        start += bytes;
        if !first {
            break;
        }
    }
    Some(transport(packet, start, protocol, ends, first))
}

/// `first`: not a later fragment, which has no transport header.
fn transport(
    packet: &[u8],
    start: usize,
    protocol: IpProtocol,
    addresses: [u128; 2],
    first: bool,
) -> Outline {
    let payload = packet.get(start..).filter(|_| first).unwrap_or(&[]);
    let (bytes, has_ports) = match protocol {
        IpProtocol::Tcp if payload.len() >= TCP_BYTES => {
            let header = TcpPacket::new_unchecked(payload).header_len();
            (usize::from(header).max(TCP_BYTES), true)
        }
        IpProtocol::Udp => (UDP_BYTES, payload.len() >= UDP_BYTES),
        IpProtocol::Icmp | IpProtocol::Icmpv6 => (ICMP_BYTES, false),
        _ => (0, false),
    };
    let port = |at: usize| match has_ports {
        true => u16::from_be_bytes([payload[at], payload[at + 1]]),
        false => 0,
    };
    Outline {
        headers: start + if first { bytes } else { 0 },
        ends: [(addresses[0], port(0)), (addresses[1], port(2))],
        protocol: u8::from(protocol).into(),
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::net::SocketAddr;
    use std::vec::Vec;

    use plimsoll_packets::frame::{Extension, Fragment, Packet};
    use proptest::prelude::*;

    use super::*;

    const SAMPLER: FlowSampler = FlowSampler::new(Seed([1, 2]));

    fn udp(from: &str, to: &str, payload: usize) -> Vec<u8> {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        Packet::new(from.ip(), to.ip()).udp(from.port(), to.port(), &std::vec![0; payload])
    }

    #[test]
    fn headers_end_behind_the_transport_header() {
        let v4 = udp("10.0.0.1:1", "10.0.0.2:2", 100);
        assert_eq!(headers_bytes(&v4), 14 + 20 + 8);
        let v6 = udp("[2001:db8::1]:1", "[2001:db8::2]:2", 100);
        assert_eq!(headers_bytes(&v6), 14 + 40 + 8);
        let mut tagged = v4.clone();
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        assert_eq!(headers_bytes(&tagged), 14 + 4 + 20 + 8);
        assert_eq!(headers_bytes(&v4[..30]), 14, "an incomplete header is none");
    }

    /// Its payload looked like headers.
    #[test]
    fn a_later_fragment_has_no_headers_behind_the_fragment_s() {
        let later = Fragment {
            id: 7,
            offset: 1480,
            more: false,
        };
        let [from, to] = ["2001:db8::1", "2001:db8::2"].map(|address| address.parse().unwrap());
        let options = Extension::Options {
            number: 0,
            units: 0,
        };
        let packet = Packet::new(from, to).fragment(later).extension(options);
        assert_eq!(headers_bytes(&packet.udp(1, 2, &[0; 100])), 14 + 40 + 8);
    }

    #[test]
    fn both_directions_of_a_flow_are_kept_or_neither() {
        for port in 1..200 {
            let (here, there) = (std::format!("10.0.0.1:{port}"), "10.0.0.2:53");
            let there_and_back = [udp(&here, there, 9), udp(there, &here, 900)];
            let [kept, answered] = there_and_back.map(|frame| SAMPLER.keeps(&frame, 2));
            assert_eq!(kept, answered);
        }
    }

    #[test]
    fn about_one_flow_in_n_is_kept_and_it_was_kept_before() {
        let frames = (0..40_000_u32).map(|flow| {
            let from = std::format!("10.1.{}.{}:{}", flow >> 8 & 255, flow & 255, 1 + flow);
            udp(&from, "10.0.0.2:53", 9)
        });
        let frames: Vec<_> = frames.collect();
        for one_in_log2 in 1..6 {
            let kept = |n| frames.iter().filter(move |frame| SAMPLER.keeps(frame, n));
            let (here, expected) = (kept(one_in_log2).count(), frames.len() >> one_in_log2);
            // Five standard deviations of a binomial distribution at most.
            let spread = 5.0 * (expected as f64).sqrt();
            assert!((here as f64 - expected as f64).abs() < spread, "{here}");
            assert!(kept(one_in_log2).all(|frame| SAMPLER.keeps(frame, one_in_log2 - 1)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_have_headers_within_them(frame in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(headers_bytes(&frame) <= frame.len());
            prop_assert!(SAMPLER.keeps(&frame, 0));
        }

        #[test]
        fn hostile_packets_have_headers_within_them(
            rest in prop::collection::vec(any::<u8>(), 0..120),
            six in any::<bool>(),
        ) {
            let mut frame = std::vec![0; 12];
            frame.extend(if six { [0x86, 0xdd] } else { [0x08, 0x00] });
            frame.extend(rest);
            prop_assert!(headers_bytes(&frame) <= frame.len());
        }
    }
}
