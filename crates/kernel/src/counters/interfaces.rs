//! The counters of all interfaces of a network namespace, by rtnetlink(7).

use std::collections::HashMap;
use std::io;
use std::iter;
use std::ops::AddAssign;

use netlink_bindings::rt_link::{Ifinfomsg, IterableLinkAttrs, Request, RtnlLinkStats64};

use crate::netlink;

/// An interface's own counters (`struct rtnl_link_stats64` of
/// `linux/if_link.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adapter {
    /// Frames handed to the stack.
    pub received: u64,
    /// Bad frames.
    pub errors: u64,
    /// Good frames that nobody took.
    pub dropped: u64,
    /// The ring was full. Of this and the next two a driver fills one, or several
    /// with the same losses.
    pub missed: u64,
    /// See `missed`.
    pub fifo_errors: u64,
    /// See `missed`.
    pub over_errors: u64,
    /// Of a protocol that nobody handles, on an inactive device.
    pub no_handler: u64,
    /// Addressed to another host.
    pub other_host: u64,
    /// Frames sent.
    pub sent: u64,
    /// What it could not send.
    pub not_sent: u64,
}

impl From<RtnlLinkStats64> for Adapter {
    fn from(stats: RtnlLinkStats64) -> Self {
        Self {
            received: stats.rx_packets,
            errors: stats.rx_errors,
            dropped: stats.rx_dropped,
            missed: stats.rx_missed_errors,
            fifo_errors: stats.rx_fifo_errors,
            over_errors: stats.rx_over_errors,
            no_handler: stats.rx_nohandler,
            other_host: stats.rx_otherhost_dropped,
            sent: stats.tx_packets,
            not_sent: stats.tx_dropped,
        }
    }
}

impl AddAssign for Adapter {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.errors += other.errors;
        self.dropped += other.dropped;
        self.missed += other.missed;
        self.fifo_errors += other.fifo_errors;
        self.over_errors += other.over_errors;
        self.no_handler += other.no_handler;
        self.other_host += other.other_host;
        self.sent += other.sent;
        self.not_sent += other.not_sent;
    }
}

/// The interfaces of a namespace at one time, from the view of one of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interfaces {
    /// The one.
    pub own: Adapter,
    /// Sums over all others that add to the stack's input: not those that show again what
    /// another one received, nor the members of the one, whose frames it counts.
    pub others: Adapter,
    /// One of these others runs an XDP program, which may take frames that it counts as received.
    pub others_run_xdp: bool,
    /// The one is an end of a veth pair; the other end has this index …
    peer: Option<u32>,
    /// … in the namespace with this id, if not in the same.
    peer_namespace: Option<i32>,
}

/// Kinds of interface that show again what another one of the same namespace
/// received.
const STACKED: [&str; 11] = [
    "bond", "bridge", "hsr", "ipvlan", "ipvtap", "macsec", "macvlan", "macvtap", "team", "vlan",
    "vrf",
];

impl Interfaces {
    /// All of the current network namespace.
    ///
    /// # Errors
    ///
    /// The kernel does not answer.
    pub fn read(ifindex: u32) -> io::Result<Self> {
        let request = Request::new().op_getlink_dump(&Ifinfomsg::default());
        let mut socket = netlink::Socket::new();
        let mut replies = socket.request(&request)?;
        let mut interfaces = Self::default();
        let mut masters = HashMap::new();
        let mut others: Vec<(u32, Adapter, bool)> = Vec::new();
        while let Some(reply) = replies.recv() {
            let (header, attributes) = reply?;
            let index = header.ifi_index.cast_unsigned();
            if let Ok(master) = attributes.get_master() {
                masters.insert(index, master);
            }
            let Ok(counters) = attributes.get_stats64() else {
                continue;
            };
            let kind = kind(&attributes);
            if index == ifindex {
                interfaces.own = counters.into();
                if kind == "veth" {
                    interfaces.peer = attributes.get_link().ok();
                    interfaces.peer_namespace = attributes.get_link_netnsid().ok();
                }
            } else if !STACKED.contains(&kind.as_str()) {
                let xdp = attributes.get_xdp().and_then(|xdp| xdp.get_attached());
                others.push((index, counters.into(), xdp.is_ok_and(|mode| mode != 0)));
            }
        }
        for (_, counters, runs_xdp) in others
            .into_iter()
            .filter(|(index, ..)| !is_below(*index, ifindex, &masters))
        {
            interfaces.others += counters;
            interfaces.others_run_xdp |= runs_xdp;
        }
        Ok(interfaces)
    }

    /// True if the one is an end of a veth pair.
    #[must_use]
    pub fn is_veth(&self) -> bool {
        self.peer.is_some()
    }

    /// What the other end of a veth pair could not send, as far as it may be
    /// asked: in another namespace that takes `CAP_NET_ADMIN` over that. `socket` is of the
    /// namespace that this is a reading of.
    #[must_use]
    pub fn peer_not_sent(&self, socket: &mut netlink::Socket) -> Option<u64> {
        let header = Ifinfomsg {
            ifi_index: self.peer?.cast_signed(),
            ..Ifinfomsg::default()
        };
        let mut request = Request::new().op_getlink_do(&header);
        if let Some(namespace) = self.peer_namespace {
            request.encode().push_target_netnsid(namespace);
        }
        let mut replies = socket.request(&request).ok()?;
        let (_, attributes) = replies.recv_one().ok()?;
        attributes.get_stats64().ok().map(|stats| stats.tx_dropped)
    }
}

/// Whether an interface is a member of another one, or of a member of it, by who is
/// whose master.
fn is_below(index: u32, of: u32, masters: &HashMap<u32, u32>) -> bool {
    // Masters may change while they are listed, so that they could seem to form a ring.
    iter::successors(Some(index), |index| masters.get(index).copied())
        .take(masters.len() + 1)
        .any(|index| index == of)
}

fn kind(attributes: &IterableLinkAttrs<'_>) -> String {
    let kind = attributes
        .get_linkinfo()
        .and_then(|information| information.get_kind());
    kind.map_or_else(
        |_| String::new(),
        |kind| kind.to_string_lossy().into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use nix::net::if_::if_nametoindex;

    use super::*;
    use crate::iproute::ip;
    use crate::namespace;

    fn read(interface: &str) -> Interfaces {
        Interfaces::read(if_nametoindex(interface).unwrap()).unwrap()
    }

    #[test]
    fn a_member_of_a_member_is_below_and_a_ring_of_masters_ends() {
        let masters = HashMap::from([(1, 2), (2, 3), (7, 8), (8, 7)]);
        assert!(is_below(1, 2, &masters) && is_below(1, 3, &masters));
        for (index, of) in [(3, 1), (4, 3), (7, 3)] {
            assert!(!is_below(index, of, &masters), "{index} below {of}");
        }
    }

    /// A bridge stands for a bond, which many kernels lack. Needs root.
    #[test]
    fn frames_of_members_count_once() {
        namespace::in_new(|| {
            for words in [
                "link add br0 type bridge",
                "link add v0 type veth peer name w0",
                "link add v1 type veth peer name w1",
                "link set v0 master br0",
            ] {
                ip(words);
            }
            for interface in ["br0", "v0", "w0", "v1", "w1"] {
                ip(&format!("link set {interface} up"));
            }
            let end = Instant::now() + Duration::from_secs(20);
            // Neighbour discovery sends by itself.
            while ["v0", "v1"].iter().any(|name| read(name).own.received == 0) {
                assert!(Instant::now() < end, "{:?}", read("br0"));
                sleep(Duration::from_millis(10));
            }
            for interface in ["w0", "w1", "br0"] {
                ip(&format!("link set {interface} down"));
            }
            let sum =
                |names: &[&str]| -> u64 { names.iter().map(|name| read(name).own.received).sum() };
            assert_eq!(read("br0").others.received, sum(&["w0", "v1", "w1"]));
            assert_eq!(read("v0").others.received, sum(&["w0", "v1", "w1"]));
            assert_eq!(read("v1").others.received, sum(&["v0", "w0", "w1"]));
        })
        .unwrap();
    }
}
