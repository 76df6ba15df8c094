//! How large packets may be, as routes say it: a host tells its peers to send no larger ones.

use std::io;

use netlink_bindings::rt_route::{IterableRouteAttrs, Request, Rtmsg};

use super::message::CLONED;
use crate::netlink;

/// The largest packets, in bytes, that all routes through an interface ask peers for; `None`:
/// no route names a size, so the interface's own counts.
///
/// What was learnt of the path to a single peer is not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketSizes {
    /// Of routes of IPv4.
    pub ipv4: Option<u32>,
    /// Of routes of IPv6.
    pub ipv6: Option<u32>,
}

/// Bytes of a segment's headers without options, of IPv4 and of IPv6.
const HEADERS: [u32; 2] = [40, 60];
/// The smallest segments that the kernel derives from a route's MTU (`min_adv_mss`,
/// ip-sysctl.rst).
const MSS_MIN: [u32; 2] = [256, 1220];

impl PacketSizes {
    /// The largest segments of TCP that fit, of IPv4 and of IPv6, on a link with an MTU of so
    /// many bytes; 0: none does.
    #[must_use]
    pub fn mss(&self, mtu: u32) -> [u16; 2] {
        let mss = |size: Option<u32>, headers| {
            let size = size.map_or(mtu, |size| size.min(mtu));
            u16::try_from(size.saturating_sub(headers)).unwrap_or(u16::MAX)
        };
        [mss(self.ipv4, HEADERS[0]), mss(self.ipv6, HEADERS[1])]
    }

    /// Asks the kernel for all routes of the current network namespace. Takes as long as
    /// there are many.
    ///
    /// # Errors
    ///
    /// The kernel does not answer.
    pub fn read(interface: u32) -> io::Result<Self> {
        let mut socket = netlink::Socket::new();
        let request = Request::new().op_getroute_dump(&Rtmsg::default());
        let mut replies = socket.request(&request)?;
        let mut sizes = Self::default();
        while let Some(reply) = replies.recv() {
            let (header, attributes) = reply?;
            // Of several next hops one may be there.
            if attributes.get_oif().map_or(true, |own| own == interface) {
                sizes.add(&header, &attributes);
            }
        }
        Ok(sizes)
    }

    fn add(&mut self, header: &Rtmsg, attributes: &IterableRouteAttrs<'_>) {
        let Ok(metrics) = attributes.get_metrics() else {
            return;
        };
        if header.rtm_type != libc::RTN_UNICAST || header.rtm_flags & CLONED != 0 {
            return;
        }
        let (least, family) = match i32::from(header.rtm_family) {
            libc::AF_INET => (&mut self.ipv4, 0),
            libc::AF_INET6 => (&mut self.ipv6, 1),
            _ => return,
        };
        let headers = HEADERS[family];
        let by_mss = metrics.get_advmss().map(|mss| mss.saturating_add(headers));
        let by_mtu = metrics
            .get_mtu()
            .map(|mtu| mtu.max(MSS_MIN[family] + headers));
        if let Ok(size) = by_mss.or(by_mtu) {
            *least = Some(least.map_or(size, |least| least.min(size)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iproute::ip;
    use crate::{link, namespace};

    #[test]
    fn a_segment_fits_into_the_link_and_into_every_route() {
        let sizes = PacketSizes {
            ipv4: Some(1400),
            ipv6: None,
        };
        assert_eq!(sizes.mss(1500), [1360, 1440]);
        assert_eq!(sizes.mss(1300), [1260, 1240]);
        assert_eq!(PacketSizes::default().mss(65_536), [65_496, 65_476]);
        assert_eq!(PacketSizes::default().mss(1 << 20), [u16::MAX; 2]);
        assert_eq!(sizes.mss(0), [0; 2], "it is not known");
    }

    /// Needs root.
    #[test]
    fn the_smallest_size_that_a_route_through_the_interface_names_counts() {
        namespace::in_new(|| {
            ip("link set lo up");
            for own in ["d0", "d1"] {
                ip(&format!("link add {own} type veth peer name {own}p"));
                ip(&format!("link set {own}p up"));
                ip(&format!("link set {own} up"));
            }
            ip("address add 10.0.0.1/24 dev d0");
            ip("address add 10.0.1.1/24 dev d1");
            ip("address add fd00::1/64 dev d0 nodad");
            let interface = link::index("d0").unwrap();
            let read = || PacketSizes::read(interface).unwrap();
            assert_eq!(read(), PacketSizes::default());
            ip("route add 10.1.0.0/16 via 10.0.1.2 mtu 1000");
            assert_eq!(read(), PacketSizes::default(), "through another one");
            ip("route add 10.2.0.0/16 via 10.0.0.2 mtu 1400");
            assert_eq!(read().ipv4, Some(1400));
            ip("route add 10.3.0.0/16 via 10.0.0.2 mtu 1300 advmss 1340");
            assert_eq!(read().ipv4, Some(1380), "who names an MSS means it");
            ip("route add 10.4.0.0/16 table 7 via 10.0.0.2 mtu 100");
            assert_eq!(read().ipv4, Some(296), "no smaller one is derived");
            assert_eq!(read().ipv6, None);
            ip("-6 route add fd01::/64 via fd00::2 mtu 1280");
            assert_eq!(read().ipv6, Some(1280));
        })
        .expect("this test makes a network namespace and needs root: run `sudo make test`");
    }
}
