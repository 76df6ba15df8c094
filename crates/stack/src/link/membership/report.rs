//! The frames that tell of memberships.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IgmpPacket, IgmpRepr, IgmpVersion,
    IpProtocol, Ipv4Packet, checksum,
};

use super::{Telling, Version, What};
use crate::device::{Batch, Frame, HEADROOM_BYTES};
use crate::link::egress::group_mac;
use crate::link::resolution::Builder;
use crate::wire::{ETHERNET_BYTES, emit};

/// IPv4's header with the option.
const IPV4_BYTES: usize = 24;
/// Routers look at the packet although it is not for them (RFC 2113, RFC 2711).
const IPV4_ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];
/// A whole hop-by-hop header: ICMPv6 follows, the option, and padding.
const IPV6_ROUTER_ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
/// Internetwork control (RFC 3376, 4).
const DSCP: u8 = 48;

const IGMP_BYTES: usize = 8;
const IGMP_THREE_REPORT: u8 = 0x22;
const MLD_BYTES: usize = 24;
const MLD_ONE_REPORT: u8 = 131;
const MLD_ONE_DONE: u8 = 132;
const MLD_TWO_REPORT: u8 = 143;
/// Before the records of IGMPv3 and MLDv2, and of each before its address.
const REPORT_BYTES: usize = 8;
const RECORD_BYTES: usize = 4;

const ALL_ROUTERS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
const ALL_ROUTERS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Those that understand the reports with records.
const RECORDS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
const RECORDS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

/// Of records without sources: all sources are wanted, or none (RFC 3376, 4.2.12).
const fn record_kind(what: What) -> u8 {
    match what {
        What::Is => 2,
        What::Left => 3,
        What::Joined => 4,
    }
}

impl Builder<'_> {
    /// Appends the frames of a telling. `ours`: this host's addresses. Without a free buffer some are
    /// missing, as if lost.
    pub(crate) fn tell(
        self,
        telling: &Telling,
        ours: impl Iterator<Item = IpAddr>,
        mtu: usize,
        out: &mut Batch,
    ) {
        let Telling {
            version,
            what,
            groups,
        } = telling;
        let is_ipv6 = groups.first().is_some_and(IpAddr::is_ipv6);
        let source = source(is_ipv6, ours);
        match (version, source) {
            (Version::Three, source) => {
                let address = if is_ipv6 { 16 } else { 4 };
                let headers = emit::network_bytes(source) + IPV6_ROUTER_ALERT.len() + REPORT_BYTES;
                let fit = mtu.saturating_sub(headers) / (RECORD_BYTES + address);
                for groups in groups.chunks(fit.max(1)) {
                    out.extend(self.records(groups, record_kind(*what), source));
                }
            }
            (_, IpAddr::V4(from)) => {
                let v4 = groups.iter().filter_map(|group| match group {
                    IpAddr::V4(group) => Some(*group),
                    IpAddr::V6(_) => None,
                });
                out.extend(v4.filter_map(|group| self.igmp(group, *version, *what, from)));
            }
            (_, IpAddr::V6(from)) => {
                let v6 = groups.iter().filter_map(|group| match group {
                    IpAddr::V6(group) => Some(*group),
                    IpAddr::V4(_) => None,
                });
                out.extend(v6.filter_map(|group| self.mld(group, *what, from)));
            }
        }
    }

    /// A message of IGMP's first two versions. Nothing is told there of a leave in the first.
    fn igmp(
        self,
        group_addr: Ipv4Addr,
        version: Version,
        what: What,
        from: Ipv4Addr,
    ) -> Option<Frame> {
        let (to, message) = match (what, version) {
            (What::Left, Version::One) => return None,
            (What::Left, _) => (ALL_ROUTERS_V4, IgmpRepr::LeaveGroup { group_addr }),
            (What::Is | What::Joined, _) => {
                let version = match version {
                    Version::One => IgmpVersion::Version1,
                    Version::Two | Version::Three => IgmpVersion::Version2,
                };
                let report = IgmpRepr::MembershipReport {
                    group_addr,
                    version,
                };
                (group_addr, report)
            }
        };
        let mut frame = self.ipv4(from, to, IGMP_BYTES)?;
        let bytes = &mut frame[ETHERNET_BYTES + IPV4_BYTES..];
        message.emit(&mut IgmpPacket::new_unchecked(bytes));
        Some(frame)
    }

    /// A message of MLD's first version.
    fn mld(self, group: Ipv6Addr, what: What, from: Ipv6Addr) -> Option<Frame> {
        let (to, kind) = match what {
            What::Left => (ALL_ROUTERS_V6, MLD_ONE_DONE),
            What::Is | What::Joined => (group, MLD_ONE_REPORT),
        };
        let mut frame = self.ipv6(from, to, MLD_BYTES)?;
        let message = message_at(true);
        frame[message] = kind;
        frame[message + REPORT_BYTES..].copy_from_slice(&group.octets());
        fill_checksum_v6(&mut frame[message..], from, to);
        Some(frame)
    }

    /// A report of IGMPv3 or MLDv2, which differ in the length of addresses alone.
    fn records(self, groups: &[IpAddr], kind: u8, from: IpAddr) -> Option<Frame> {
        let address = if from.is_ipv6() { 16 } else { 4 };
        let bytes = REPORT_BYTES + groups.len() * (RECORD_BYTES + address);
        let mut frame = match from {
            IpAddr::V4(from) => self.ipv4(from, RECORDS_V4, bytes)?,
            IpAddr::V6(from) => self.ipv6(from, RECORDS_V6, bytes)?,
        };
        let message = &mut frame[message_at(from.is_ipv6())..];
        message[0] = match from {
            IpAddr::V4(_) => IGMP_THREE_REPORT,
            IpAddr::V6(_) => MLD_TWO_REPORT,
        };
        message[6..8].copy_from_slice(&(groups.len() as u16).to_be_bytes());
        let records = message[REPORT_BYTES..].chunks_exact_mut(RECORD_BYTES + address);
        for (record, group) in records.zip(groups) {
            record[0] = kind;
            match group {
                IpAddr::V4(group) => record[RECORD_BYTES..].copy_from_slice(&group.octets()),
                IpAddr::V6(group) => record[RECORD_BYTES..].copy_from_slice(&group.octets()),
            }
        }
        match from {
            IpAddr::V4(_) => IgmpPacket::new_unchecked(message).fill_checksum(),
            IpAddr::V6(from) => fill_checksum_v6(message, from, RECORDS_V6),
        }
        Some(frame)
    }

    /// Headers before a message of zeros.
    fn ipv4(self, from: Ipv4Addr, to: Ipv4Addr, message_bytes: usize) -> Option<Frame> {
        let mut frame = self.pool.take()?;
        let end = HEADROOM_BYTES + message_at(false) + message_bytes;
        frame.set_range(HEADROOM_BYTES..end);
        let mut ethernet = EthernetFrame::new_unchecked(&mut frame[..]);
        ethernet.set_src_addr(EthernetAddress(self.mac));
        ethernet.set_dst_addr(EthernetAddress(group_mac(to.into())));
        ethernet.set_ethertype(EthernetProtocol::Ipv4);
        let bytes = &mut frame[ETHERNET_BYTES..];
        bytes.fill(0);
        bytes[IPV4_BYTES - IPV4_ROUTER_ALERT.len()..IPV4_BYTES].copy_from_slice(&IPV4_ROUTER_ALERT);
        let length = bytes.len() as u16;
        let mut packet = Ipv4Packet::new_unchecked(&mut *bytes);
        packet.set_version(4);
        packet.set_header_len(IPV4_BYTES as u8);
        packet.set_dscp(DSCP);
        packet.set_total_len(length);
        packet.set_hop_limit(1);
        packet.set_next_header(IpProtocol::Igmp);
        packet.set_src_addr(from);
        packet.set_dst_addr(to);
        packet.fill_checksum();
        Some(frame)
    }

    /// The same.
    fn ipv6(self, from: Ipv6Addr, to: Ipv6Addr, message_bytes: usize) -> Option<Frame> {
        let mut frame = self.pool.take()?;
        let message = message_at(true);
        frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + message + message_bytes);
        let ends = (from.into(), to.into());
        emit::write_headers(&mut frame, self.mac, ends, IpProtocol::HopByHop, Some(1));
        emit::set_link_destination(&mut frame, group_mac(to.into()));
        let options = message - IPV6_ROUTER_ALERT.len();
        frame[options..message].copy_from_slice(&IPV6_ROUTER_ALERT);
        frame[message..].fill(0);
        Some(frame)
    }
}

/// Where in the frame a message begins.
fn message_at(is_ipv6: bool) -> usize {
    let v6 = emit::network_bytes(Ipv6Addr::UNSPECIFIED.into()) + IPV6_ROUTER_ALERT.len();
    ETHERNET_BYTES + if is_ipv6 { v6 } else { IPV4_BYTES }
}

/// Whom a message is from. Without a fitting address it is nobody's, which switches take (RFC 3376,
/// 4.2.13; RFC 3590), and routers of IPv6 do not.
fn source(is_ipv6: bool, mut ours: impl Iterator<Item = IpAddr>) -> IpAddr {
    let fits = |address: &IpAddr| match address {
        IpAddr::V4(_) => !is_ipv6,
        IpAddr::V6(address) => is_ipv6 && address.is_unicast_link_local(),
    };
    ours.find(fits).unwrap_or(match is_ipv6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    })
}

fn fill_checksum_v6(message: &mut [u8], from: Ipv6Addr, to: Ipv6Addr) {
    message[2..4].fill(0);
    let length = message.len() as u32;
    let pseudo = checksum::pseudo_header(&from.into(), &to.into(), IpProtocol::Icmpv6, length);
    let sum = !checksum::combine(&[pseudo, checksum::data(message)]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}
