//! The frame that the BPF program copies, and the checksums it starts from.
//!
//! The fields that the program draws (source address, ports, sequence number)
//! are zero in the template. An Internet checksum is a one's-complement sum, in
//! which zeros do not count: the complement of the template's checksum is the
//! sum over everything else, to which the program adds what it has drawn.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{Ipv4HeaderSlice, PacketBuilder, TcpOptionElement};

use super::spec::{Flow, Transport};

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
/// With 20 bytes of options.
const TCP_BYTES: usize = 40;
/// Where fields are in their headers.
const ETHER_TYPE_AT: usize = 12;
const IPV4_FRAGMENT_AT: usize = 6;
const IPV4_PROTOCOL_AT: usize = 9;
const IPV6_NEXT_HEADER_AT: usize = 6;
/// "More fragments" in the first byte of flags and offset (RFC 791).
const MORE_FRAGMENTS: u8 = 0x20;
/// 1480 bytes, in units of 8: what follows a full first fragment.
const LATER_OFFSET: u8 = 185;
const UNKNOWN_PROTOCOL: u8 = 253;
const UNKNOWN_ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
/// Where the checksum is in each header.
const IPV4_CHECKSUM_AT: usize = 10;
const UDP_CHECKSUM_AT: usize = 6;
const TCP_CHECKSUM_AT: usize = 16;

const HOP_LIMIT: u8 = 64;
/// What Linux offers on an Ethernet link (`tcp_rmem` default, MTU 1500).
const SYN_WINDOW: u16 = 64_240;
const SYN_WINDOW_SCALE: u8 = 7;

/// A frame without its drawn fields.
#[derive(Debug)]
pub(super) struct Template {
    /// The whole frame.
    pub(super) bytes: Vec<u8>,
    /// Sum over the IPv4 header without the source address, in memory order;
    /// 0 for IPv6.
    pub(super) ip_sum: u16,
    /// Sum over pseudo-header, transport header and payload without the drawn
    /// fields, in memory order.
    pub(super) transport_sum: u16,
}

impl Template {
    /// `flow` must be valid.
    pub(super) fn new(flow: &Flow, source_mac: [u8; 6], destination_mac: [u8; 6]) -> Self {
        let bytes = emit(flow, source_mac, destination_mac);
        let transport_at = ETHERNET_BYTES + ip_bytes(flow);
        let mut template = Self {
            bytes,
            ip_sum: 0,
            transport_sum: 0,
        };
        if flow.destination.is_ipv4() {
            template.ip_sum = template.sum_at(ETHERNET_BYTES + IPV4_CHECKSUM_AT);
        }
        template.transport_sum = template.sum_at(
            transport_at
                + match flow.transport {
                    Transport::TcpSyn => TCP_CHECKSUM_AT,
                    _ => UDP_CHECKSUM_AT,
                },
        );
        template
    }

    /// What the checksum at `offset` is the complement of.
    fn sum_at(&self, offset: usize) -> u16 {
        !u16::from_ne_bytes([self.bytes[offset], self.bytes[offset + 1]])
    }
}

/// Length of the headers of `flow`'s frames, in bytes.
pub(super) fn header_bytes(flow: &Flow) -> usize {
    let transport = match flow.transport {
        Transport::TcpSyn => TCP_BYTES,
        _ => UDP_BYTES,
    };
    ETHERNET_BYTES + ip_bytes(flow) + transport
}

fn ip_bytes(flow: &Flow) -> usize {
    match flow.destination {
        IpAddr::V4(_) => IPV4_BYTES,
        IpAddr::V6(_) => IPV6_BYTES,
    }
}

fn emit(flow: &Flow, source_mac: [u8; 6], destination_mac: [u8; 6]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(source_mac, destination_mac);
    let ip = match flow.destination {
        IpAddr::V6(to) => ethernet.ipv6(Ipv6Addr::UNSPECIFIED.octets(), to.octets(), HOP_LIMIT),
        IpAddr::V4(to) => ethernet.ipv4(Ipv4Addr::UNSPECIFIED.octets(), to.octets(), HOP_LIMIT),
    };
    let mut bytes = Vec::with_capacity(flow.frame_bytes());
    match &flow.transport {
        Transport::TcpSyn => ip
            .tcp(0, 0, 0, SYN_WINDOW)
            .syn()
            .options(&syn_options(flow))
            .expect("five options fit 20 bytes")
            .write(&mut bytes, &[]),
        _ => ip.udp(0, 0).write(&mut bytes, flow.payload()),
    }
    .expect("writing to memory cannot fail, and a valid payload fits an IP packet");
    deviate(&mut bytes, &flow.transport);
    bytes
}

/// Turns a UDP frame into one that is none.
fn deviate(frame: &mut [u8], transport: &Transport) {
    let ip = &mut frame[ETHERNET_BYTES..];
    match transport {
        Transport::Udp { .. } | Transport::TcpSyn => return,
        Transport::FirstFragment { .. } => ip[IPV4_FRAGMENT_AT] |= MORE_FRAGMENTS,
        Transport::LaterFragment { .. } => ip[IPV4_FRAGMENT_AT + 1] = LATER_OFFSET,
        Transport::UnknownProtocol { .. } if ip[0] >> 4 == 6 => {
            ip[IPV6_NEXT_HEADER_AT] = UNKNOWN_PROTOCOL;
        }
        Transport::UnknownProtocol { .. } => ip[IPV4_PROTOCOL_AT] = UNKNOWN_PROTOCOL,
        Transport::UnknownEtherType { .. } => {
            frame[ETHER_TYPE_AT..ETHERNET_BYTES].copy_from_slice(&UNKNOWN_ETHER_TYPE);
            return;
        }
    }
    if let Ok(header) = Ipv4HeaderSlice::from_slice(&frame[ETHERNET_BYTES..]) {
        let checksum = header.to_header().calc_header_checksum().to_be_bytes();
        let at = ETHERNET_BYTES + IPV4_CHECKSUM_AT;
        frame[at..at + 2].copy_from_slice(&checksum);
    }
}

/// In the order Linux sends them.
fn syn_options(flow: &Flow) -> [TcpOptionElement; 5] {
    const MTU: u16 = 1500;
    const TCP_MIN: u16 = 20;
    let segment = MTU - TCP_MIN - if flow.destination.is_ipv4() { 20 } else { 40 };
    [
        TcpOptionElement::MaximumSegmentSize(segment),
        TcpOptionElement::SelectiveAcknowledgementPermitted,
        TcpOptionElement::Timestamp(1, 0),
        TcpOptionElement::Noop,
        TcpOptionElement::WindowScale(SYN_WINDOW_SCALE),
    ]
}

#[cfg(test)]
mod tests {
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{
        EthernetFrame, IpAddress, Ipv4Packet, Ipv6Packet, TcpControl, TcpPacket, TcpRepr, UdpPacket,
    };

    use super::*;

    const FROM_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const TO_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn flow(source: &str, destination: &str, transport: Transport) -> Flow {
        Flow {
            source: source.parse().unwrap(),
            source_ports: 1..=9,
            destination: destination.parse().unwrap(),
            destination_ports: 1..=9,
            transport,
        }
    }

    /// smoltcp is the second opinion: it wrote none of these bytes.
    fn transport_of(template: &Template) -> (IpAddress, IpAddress, &[u8]) {
        let frame = EthernetFrame::new_checked(&template.bytes[..]).unwrap();
        assert_eq!(frame.src_addr().0, FROM_MAC);
        assert_eq!(frame.dst_addr().0, TO_MAC);
        let at = ETHERNET_BYTES;
        if template.bytes[at] >> 4 == 4 {
            let ip = Ipv4Packet::new_checked(&template.bytes[at..]).unwrap();
            assert!(ip.verify_checksum());
            assert!(!ip.more_frags() && ip.frag_offset() == 0);
            assert_eq!(ip.hop_limit(), HOP_LIMIT);
            let transport = &template.bytes[at + IPV4_BYTES..];
            assert_eq!(usize::from(ip.total_len()), IPV4_BYTES + transport.len());
            (ip.src_addr().into(), ip.dst_addr().into(), transport)
        } else {
            let ip = Ipv6Packet::new_checked(&template.bytes[at..]).unwrap();
            let transport = &template.bytes[at + IPV6_BYTES..];
            assert_eq!(usize::from(ip.payload_len()), transport.len());
            (ip.src_addr().into(), ip.dst_addr().into(), transport)
        }
    }

    #[test]
    fn udp_templates_parse_with_valid_checksums() {
        for (source, destination) in [
            ("198.18.0.0/24", "198.18.0.2"),
            ("2001:2::/64", "2001:2::2"),
        ] {
            let payload = vec![0xa5; 19];
            let flow = flow(source, destination, Transport::Udp { payload });
            let template = Template::new(&flow, FROM_MAC, TO_MAC);
            let (from, to, transport) = transport_of(&template);
            assert_eq!(to.to_string(), destination);
            let udp = UdpPacket::new_checked(transport).unwrap();
            assert!(udp.verify_checksum(&from, &to));
            assert_eq!(udp.payload(), [0xa5; 19]);
            assert_eq!(template.bytes.len(), flow.frame_bytes());
            assert_eq!(template.bytes.len(), header_bytes(&flow) + 19);
        }
    }

    #[test]
    fn fragments_and_unknown_kinds_differ_in_one_field() {
        let payload = || vec![0xa5; 19];
        let template = |transport| {
            let flow = flow("198.18.0.0/24", "198.18.0.2", transport);
            Template::new(&flow, FROM_MAC, TO_MAC)
        };
        let ip = |template: &Template| {
            let ip = Ipv4Packet::new_checked(template.bytes[ETHERNET_BYTES..].to_vec()).unwrap();
            assert!(ip.verify_checksum());
            (
                ip.more_frags(),
                ip.frag_offset(),
                u8::from(ip.next_header()),
            )
        };
        let first = template(Transport::FirstFragment { payload: payload() });
        assert_eq!(ip(&first), (true, 0, 17));
        let later = template(Transport::LaterFragment { payload: payload() });
        assert_eq!(ip(&later), (false, 1480, 17));
        let unknown = template(Transport::UnknownProtocol { payload: payload() });
        assert_eq!(ip(&unknown), (false, 0, 253));
        let foreign = template(Transport::UnknownEtherType { payload: payload() });
        assert_eq!(&foreign.bytes[12..14], &[0x88, 0xb5]);
        let plain = template(Transport::Udp { payload: payload() });
        assert_eq!(foreign.bytes[14..], plain.bytes[14..]);
        assert_eq!(foreign.bytes.len(), plain.bytes.len());
    }

    #[test]
    fn syn_templates_carry_the_options_of_linux() {
        for (source, destination, segment) in [
            ("198.18.0.0/24", "198.18.0.2", 1460),
            ("2001:2::/64", "2001:2::2", 1440),
        ] {
            let flow = flow(source, destination, Transport::TcpSyn);
            let template = Template::new(&flow, FROM_MAC, TO_MAC);
            let (from, to, transport) = transport_of(&template);
            let tcp = TcpPacket::new_checked(transport).unwrap();
            assert!(tcp.verify_checksum(&from, &to));
            let mut tcp = transport.to_vec();
            // smoltcp refuses port 0, which is what the program draws.
            tcp[1] = 1;
            tcp[3] = 1;
            let repr = TcpRepr::parse(
                &TcpPacket::new_unchecked(&tcp[..]),
                &from,
                &to,
                &ChecksumCapabilities::ignored(),
            )
            .unwrap();
            assert_eq!(repr.control, TcpControl::Syn);
            assert_eq!(repr.ack_number, None);
            assert_eq!(repr.max_seg_size, Some(segment));
            assert_eq!(repr.window_scale, Some(7));
            assert_eq!(repr.window_len, 64_240);
            assert!(repr.sack_permitted);
            assert_eq!(repr.timestamp.unwrap().tsval, 1);
            assert_eq!(template.bytes.len(), flow.frame_bytes());
        }
    }

    #[test]
    fn a_checksum_is_the_complement_of_its_sum() {
        let flow = flow("10.0.0.0/8", "10.0.0.1", Transport::TcpSyn);
        let template = Template::new(&flow, FROM_MAC, TO_MAC);
        let header = &template.bytes[ETHERNET_BYTES..ETHERNET_BYTES + IPV4_BYTES];
        let sum = header
            .chunks(2)
            .enumerate()
            .filter(|(word, _)| word * 2 != IPV4_CHECKSUM_AT)
            .map(|(_, word)| u32::from(u16::from_ne_bytes([word[0], word[1]])))
            .sum::<u32>();
        let folded = (sum & 0xffff) + (sum >> 16);
        assert_eq!(folded, u32::from(template.ip_sum));
    }
}
