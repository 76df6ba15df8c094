//! The frames of address resolution: ARP (RFC 826) and the neighbour half of
//! neighbour discovery (RFC 4861), parsed and built.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv6Message, Icmpv6Packet, Icmpv6Repr, IpProtocol, NdiscNeighborFlags, NdiscOption,
    NdiscOptionType, NdiscRepr,
};

use super::membership::ALL_NODES;
use super::neighbours::Word;
use crate::device::{Frame, HEADROOM_BYTES, Mac, Pool};
use crate::wire::packet::Packet;
use crate::wire::{ETHERNET_BYTES, emit};

const ARP_BYTES: usize = 28;
const BROADCAST: Mac = [0xff; 6];
/// Only a neighbour can send with this (RFC 4861, 7.1).
const ND_HOP_LIMIT: u8 = 255;
/// The fixed part of a solicitation or advertisement.
const ND_FIXED_BYTES: usize = 24;
/// An option with an Ethernet address (4.6.1).
const LINK_ADDRESS_BYTES: usize = 8;

/// What a neighbour says or wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// `from` (nobody, if it does not have its address yet) looks for `target`.
    Question {
        target: IpAddr,
        from: Option<(IpAddr, Mac)>,
        /// Where an answer goes.
        answer_to: Mac,
    },
    /// `address` is at `mac`, or where it was.
    Answer {
        address: IpAddr,
        mac: Option<Mac>,
        word: Word,
    },
}

/// Reads an ARP frame, whose Ethernet header has been checked.
pub(crate) fn parse_arp(frame: &[u8]) -> Option<Message> {
    let packet = ArpPacket::new_checked(frame.get(ETHERNET_BYTES..)?).ok()?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_protocol_addr,
        ..
    } = ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    let (mac, from) = (source_hardware_addr.0, IpAddr::V4(source_protocol_addr));
    match operation {
        ArpOperation::Request => Some(Message::Question {
            target: target_protocol_addr.into(),
            from: (!from.is_unspecified()).then_some((from, mac)),
            answer_to: mac,
        }),
        ArpOperation::Reply => Some(Message::Answer {
            address: from,
            mac: Some(mac),
            word: Word::ARP_REPLY,
        }),
        ArpOperation::Unknown(_) => None,
    }
}

/// Reads a neighbour solicitation or advertisement.
pub(crate) fn parse_nd(frame: &[u8], packet: &Packet) -> Option<Message> {
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (packet.source, packet.destination) else {
        return None;
    };
    let bytes = &frame[packet.payload.clone()];
    let icmp = Icmpv6Packet::new_checked(bytes).ok()?;
    let fits = bytes.len() >= ND_FIXED_BYTES && packet.hop_limit == ND_HOP_LIMIT;
    if !fits || icmp.msg_code() != 0 || !icmp.verify_checksum(&source, &destination) {
        return None;
    }
    let target = icmp.target_addr();
    let options = &bytes[ND_FIXED_BYTES..];
    if target.is_multicast() {
        return None;
    }
    match icmp.msg_type() {
        Icmpv6Message::NeighborSolicit => {
            let mac = link_address(options, NdiscOptionType::SourceLinkLayerAddr).ok()?;
            let known = !source.is_unspecified();
            // Who has no address yet asks the group, and names none (7.1.1).
            if !known && (mac.is_some() || destination != solicited_node(target)) {
                return None;
            }
            Some(Message::Question {
                target: target.into(),
                from: mac.map(|mac| (source.into(), mac)),
                answer_to: mac.unwrap_or(packet.via),
            })
        }
        Icmpv6Message::NeighborAdvert => {
            let mac = link_address(options, NdiscOptionType::TargetLinkLayerAddr).ok()?;
            let flags = icmp.neighbor_flags();
            let solicited = flags.contains(NdiscNeighborFlags::SOLICITED);
            // Who answers a question answers who asked (7.1.2).
            if solicited && destination.is_multicast() {
                return None;
            }
            Some(Message::Answer {
                address: target.into(),
                mac,
                word: Word::Answer {
                    solicited,
                    overrides: flags.contains(NdiscNeighborFlags::OVERRIDE),
                },
            })
        }
        _ => None,
    }
}

/// The options cannot be told apart.
struct Malformed;

/// The Ethernet address in an option of type `wanted`, if there is one.
fn link_address(mut options: &[u8], wanted: NdiscOptionType) -> Result<Option<Mac>, Malformed> {
    let mut found = None;
    while !options.is_empty() {
        let option = NdiscOption::new_checked(options).map_err(|_| Malformed)?;
        let length = usize::from(option.data_len()) * 8;
        let (option, others) = options.split_at_checked(length).ok_or(Malformed)?;
        if length == LINK_ADDRESS_BYTES && option[0] == u8::from(wanted) {
            found = found.or(option[2..].first_chunk().copied());
        }
        options = others;
    }
    Ok(found)
}

/// Who builds: this host on its link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Builder<'a> {
    pub(crate) pool: &'a Arc<Pool>,
    pub(crate) mac: Mac,
}

impl Builder<'_> {
    /// Who has `target`? `from` is an address of ours of the same family.
    pub(crate) fn question(self, from: IpAddr, target: IpAddr) -> Option<Frame> {
        match (from, target) {
            (IpAddr::V4(from), IpAddr::V4(target)) => {
                self.arp(ArpOperation::Request, from, BROADCAST, target)
            }
            (IpAddr::V6(from), IpAddr::V6(target_addr)) => {
                let group = solicited_node(target_addr);
                let solicitation = NdiscRepr::NeighborSolicit {
                    target_addr,
                    lladdr: Some(EthernetAddress(self.mac).into()),
                };
                self.nd(
                    from,
                    group,
                    super::egress::group_mac(group.into()),
                    solicitation,
                )
            }
            _ => None,
        }
    }

    /// `target` is here.
    pub(crate) fn answer(
        self,
        target: IpAddr,
        from: Option<IpAddr>,
        answer_to: Mac,
    ) -> Option<Frame> {
        match target {
            IpAddr::V4(target) => {
                let to = match from {
                    Some(IpAddr::V4(from)) => from,
                    _ => Ipv4Addr::UNSPECIFIED,
                };
                self.arp(ArpOperation::Reply, target, answer_to, to)
            }
            IpAddr::V6(target_addr) => {
                let mut flags = NdiscNeighborFlags::OVERRIDE;
                let (to, link) = match from {
                    Some(IpAddr::V6(from)) => {
                        flags |= NdiscNeighborFlags::SOLICITED;
                        (from, answer_to)
                    }
                    // Somebody tries whether the address is taken.
                    _ => (ALL_NODES, super::egress::group_mac(ALL_NODES.into())),
                };
                let advertisement = NdiscRepr::NeighborAdvert {
                    flags,
                    target_addr,
                    lladdr: Some(EthernetAddress(self.mac).into()),
                };
                self.nd(target_addr, to, link, advertisement)
            }
        }
    }

    /// `address` is here, whatever was known (RFC 5227, 3; RFC 4861, 7.2.6).
    pub(crate) fn announcement(self, address: IpAddr) -> Option<Frame> {
        match address {
            IpAddr::V4(address) => self.arp(ArpOperation::Request, address, BROADCAST, address),
            IpAddr::V6(_) => self.answer(address, None, BROADCAST),
        }
    }

    fn arp(
        self,
        operation: ArpOperation,
        from: Ipv4Addr,
        to_mac: Mac,
        to: Ipv4Addr,
    ) -> Option<Frame> {
        let mut frame = self.pool.take()?;
        frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + ETHERNET_BYTES + ARP_BYTES);
        let mut ethernet = EthernetFrame::new_unchecked(&mut frame[..]);
        ethernet.set_src_addr(EthernetAddress(self.mac));
        ethernet.set_dst_addr(EthernetAddress(to_mac));
        ethernet.set_ethertype(EthernetProtocol::Arp);
        let target = if to_mac == BROADCAST { [0; 6] } else { to_mac };
        let message = ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: EthernetAddress(self.mac),
            source_protocol_addr: from,
            target_hardware_addr: EthernetAddress(target),
            target_protocol_addr: to,
        };
        message.emit(&mut ArpPacket::new_unchecked(&mut frame[ETHERNET_BYTES..]));
        Some(frame)
    }

    fn nd(self, from: Ipv6Addr, to: Ipv6Addr, link: Mac, message: NdiscRepr<'_>) -> Option<Frame> {
        let message = Icmpv6Repr::Ndisc(message);
        let headers = ETHERNET_BYTES + emit::network_bytes(to.into());
        let mut frame = self.pool.take()?;
        frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + headers + message.buffer_len());
        let ends = (from.into(), to.into());
        let protocol = IpProtocol::Icmpv6;
        emit::write_headers(&mut frame, self.mac, ends, protocol, Some(ND_HOP_LIMIT));
        emit::set_link_destination(&mut frame, link);
        let mut packet = Icmpv6Packet::new_unchecked(&mut frame[headers..]);
        message.emit(&from, &to, &mut packet, &ChecksumCapabilities::default());
        Some(frame)
    }
}

/// The group that a neighbour with this address listens to (RFC 4291, 2.7.1).
pub(crate) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let low = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | low[6] & 0xff, low[7])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];

    fn message(frame: &[u8]) -> Option<Message> {
        match packet::parse(frame) {
            Ok(packet) => parse_nd(frame, &packet),
            Err(_) => parse_arp(frame),
        }
    }

    #[test]
    fn questions_and_answers_are_understood_by_the_other_side() {
        let pool = Pool::new(8, 2048).unwrap();
        let builder = Builder {
            pool: &pool,
            mac: MAC,
        };
        for (from, target) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::1234:5678")] {
            let (from, target): (IpAddr, IpAddr) = (from.parse().unwrap(), target.parse().unwrap());
            let question = builder.question(from, target).unwrap();
            let expected = Message::Question {
                target,
                from: Some((from, MAC)),
                answer_to: MAC,
            };
            assert_eq!(message(&question), Some(expected));
            let answer = builder.answer(target, Some(from), [2; 6]).unwrap();
            let expected = Message::Answer {
                address: target,
                mac: Some(MAC),
                word: Word::ARP_REPLY,
            };
            assert_eq!(message(&answer), Some(expected));
            assert_eq!(answer[..6], [2; 6]);
        }
    }

    #[test]
    fn discovery_from_beyond_a_router_is_ignored() {
        let pool = Pool::new(8, 2048).unwrap();
        let builder = Builder {
            pool: &pool,
            mac: MAC,
        };
        let (from, to) = ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
        let mut frame = builder.question(from, to).unwrap();
        frame[ETHERNET_BYTES + 7] = 254;
        assert_eq!(message(&frame), None);
    }

    /// RFC 4861, 4.6: it was taken for one without an address.
    #[test]
    fn a_message_with_an_option_of_no_length_says_nothing() {
        let pool = Pool::new(8, 2048).unwrap();
        let builder = Builder {
            pool: &pool,
            mac: MAC,
        };
        let (from, to): (Ipv6Addr, Ipv6Addr) =
            ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
        let question = builder.question(from.into(), to.into()).unwrap();
        let answer = builder
            .answer(to.into(), Some(from.into()), [2; 6])
            .unwrap();
        for (mut frame, ends) in [(question, (from, solicited_node(to))), (answer, (to, from))] {
            let packet = packet::parse(&frame).unwrap();
            let mut said = |units| {
                frame[packet.payload.start + ND_FIXED_BYTES + 1] = units;
                let icmp = &mut frame[packet.payload.clone()];
                Icmpv6Packet::new_unchecked(icmp).fill_checksum(&ends.0, &ends.1);
                message(&frame)
            };
            assert_ne!(said(1), None);
            assert_eq!(said(0), None);
        }
    }

    #[test]
    fn cut_frames_say_nothing() {
        let pool = Pool::new(8, 2048).unwrap();
        let builder = Builder {
            pool: &pool,
            mac: MAC,
        };
        for (from, to) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")] {
            let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let frame = builder.question(from, to).unwrap();
            for length in 0..frame.len() {
                assert_eq!(message(&frame[..length]), None, "{length}");
            }
        }
    }
}
