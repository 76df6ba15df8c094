//! The counters of all interfaces of a network namespace, by rtnetlink(7).

use std::io;
use std::ops::AddAssign;

use netlink_bindings::rt_link::{Ifinfomsg, IterableLinkAttrs, Request, RtnlLinkStats64};
use netlink_socket2::NetlinkSocket;

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
    /// Sums over all others that add to the stack's input.
    pub others: Adapter,
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
        let mut socket = NetlinkSocket::new();
        let mut replies = socket.request(&request)?;
        let mut interfaces = Self::default();
        while let Some(reply) = replies.recv() {
            let (header, attributes) = reply?;
            let Ok(counters) = attributes.get_stats64() else {
                continue;
            };
            let kind = kind(&attributes);
            if header.ifi_index.cast_unsigned() == ifindex {
                interfaces.own = counters.into();
                if kind == "veth" {
                    interfaces.peer = attributes.get_link().ok();
                    interfaces.peer_namespace = attributes.get_link_netnsid().ok();
                }
            } else if !STACKED.contains(&kind.as_str()) {
                interfaces.others += counters.into();
            }
        }
        Ok(interfaces)
    }

    /// True if the one is an end of a veth pair.
    #[must_use]
    pub fn is_veth(&self) -> bool {
        self.peer.is_some()
    }

    /// What the other end of a veth pair could not send, as far as it may be
    /// asked: in another namespace that takes `CAP_NET_ADMIN` over that.
    #[must_use]
    pub fn peer_not_sent(&self) -> Option<u64> {
        let header = Ifinfomsg {
            ifi_index: self.peer?.cast_signed(),
            ..Ifinfomsg::default()
        };
        let mut request = Request::new().op_getlink_do(&header);
        if let Some(namespace) = self.peer_namespace {
            request.encode().push_target_netnsid(namespace);
        }
        let mut socket = NetlinkSocket::new();
        let mut replies = socket.request(&request).ok()?;
        let (_, attributes) = replies.recv_one().ok()?;
        attributes.get_stats64().ok().map(|stats| stats.tx_dropped)
    }
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
