//! Multicast groups of this host, and the reports that let it be sent their packets:
//! IGMP version 2 (RFC 2236) and MLD version 1 (RFC 2710).
//!
//! Queries are not answered. Instead each group is reported when it is joined and then every
//! minute; routers and switches forget one after more than four.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IgmpPacket, IgmpRepr, IgmpVersion,
    IpProtocol, Ipv4Packet, checksum,
};

use super::egress::group_mac;
use super::resolution::Builder;
use crate::device::{Frame, HEADROOM_BYTES};
use crate::wire::{ETHERNET_BYTES, emit};

/// Between two reports of a group.
pub(crate) const REPORT_EVERY: Duration = Duration::from_secs(60);

/// IPv4's header with the option.
const IPV4_BYTES: usize = 24;
const IGMP_BYTES: usize = 8;
/// Routers look at the packet although it is not for them (RFC 2113, RFC 2711).
const IPV4_ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];
/// A whole hop-by-hop header: ICMPv6 follows, the option, and padding.
const IPV6_ROUTER_ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
const MLD_BYTES: usize = 24;
const MLD_REPORT: u8 = 131;

/// By group, how many sockets are in it.
#[derive(Debug, Default)]
pub(crate) struct Memberships(Mutex<BTreeMap<IpAddr, u32>>);

impl Memberships {
    /// True: it is the first of its group.
    pub(crate) fn join(&self, group: IpAddr) -> bool {
        let mut groups = self.0.lock();
        let members = groups.entry(group).or_default();
        *members += 1;
        *members == 1
    }

    pub(crate) fn leave(&self, group: IpAddr) {
        let mut groups = self.0.lock();
        if let Some(members) = groups.get_mut(&group) {
            *members -= 1;
            if *members == 0 {
                groups.remove(&group);
            }
        }
    }

    pub(crate) fn groups(&self) -> Vec<IpAddr> {
        self.0.lock().keys().copied().collect()
    }
}

impl Builder<'_> {
    /// That this host is in `group`. `ours`: its addresses.
    pub(crate) fn membership(
        self,
        group: IpAddr,
        ours: impl Iterator<Item = IpAddr>,
    ) -> Option<Frame> {
        match group {
            IpAddr::V4(group) => {
                let mut ours = ours.filter_map(|address| match address {
                    IpAddr::V4(address) => Some(address),
                    IpAddr::V6(_) => None,
                });
                self.igmp(group, ours.next()?)
            }
            IpAddr::V6(group) => {
                let mut local = ours.filter_map(|address| match address {
                    IpAddr::V6(address) if address.is_unicast_link_local() => Some(address),
                    _ => None,
                });
                // Without one of the link's own: nobody's, which switches take (RFC 3590).
                self.mld(group, local.next().unwrap_or(Ipv6Addr::UNSPECIFIED))
            }
        }
    }

    fn igmp(self, group_addr: Ipv4Addr, from: Ipv4Addr) -> Option<Frame> {
        let mut frame = self.pool.take()?;
        let end = HEADROOM_BYTES + ETHERNET_BYTES + IPV4_BYTES + IGMP_BYTES;
        frame.set_range(HEADROOM_BYTES..end);
        let mut ethernet = EthernetFrame::new_unchecked(&mut frame[..]);
        ethernet.set_src_addr(EthernetAddress(self.mac));
        ethernet.set_dst_addr(EthernetAddress(group_mac(group_addr.into())));
        ethernet.set_ethertype(EthernetProtocol::Ipv4);
        let bytes = &mut frame[ETHERNET_BYTES..];
        bytes.fill(0);
        bytes[IPV4_BYTES - IPV4_ROUTER_ALERT.len()..IPV4_BYTES].copy_from_slice(&IPV4_ROUTER_ALERT);
        let length = bytes.len() as u16;
        let mut packet = Ipv4Packet::new_unchecked(&mut *bytes);
        packet.set_version(4);
        packet.set_header_len(IPV4_BYTES as u8);
        packet.set_total_len(length);
        packet.set_hop_limit(1);
        packet.set_next_header(IpProtocol::Igmp);
        packet.set_src_addr(from);
        packet.set_dst_addr(group_addr);
        packet.fill_checksum();
        let report = IgmpRepr::MembershipReport {
            group_addr,
            version: IgmpVersion::Version2,
        };
        report.emit(&mut IgmpPacket::new_unchecked(&mut bytes[IPV4_BYTES..]));
        Some(frame)
    }

    fn mld(self, group: Ipv6Addr, from: Ipv6Addr) -> Option<Frame> {
        let mut frame = self.pool.take()?;
        let headers = ETHERNET_BYTES + emit::network_bytes(group.into());
        let message = headers + IPV6_ROUTER_ALERT.len();
        frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + message + MLD_BYTES);
        let ends = (from.into(), group.into());
        emit::write_headers(&mut frame, self.mac, ends, IpProtocol::HopByHop, Some(1));
        emit::set_link_destination(&mut frame, group_mac(group.into()));
        frame[headers..message].copy_from_slice(&IPV6_ROUTER_ALERT);
        let report = &mut frame[message..];
        report.fill(0);
        report[0] = MLD_REPORT;
        report[8..].copy_from_slice(&group.octets());
        let pseudo = checksum::pseudo_header(
            &from.into(),
            &group.into(),
            IpProtocol::Icmpv6,
            MLD_BYTES as u32,
        );
        let sum = !checksum::combine(&[pseudo, checksum::data(report)]);
        report[2..4].copy_from_slice(&sum.to_be_bytes());
        Some(frame)
    }
}
