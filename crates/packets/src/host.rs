//! The host that the corpus is sent to: its addresses and its open sockets.
//!
//! A test describes its host here, opens the sockets of [`Host::endpoints`] (or
//! registers them with a demultiplexer), and then sends the corpus.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// UDP or TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// The user datagram protocol.
    Udp,
    /// The transmission control protocol.
    Tcp,
}

/// A socket that packets can be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A UDP socket bound to, or a TCP socket that listens at, `at`.
    Bound {
        /// The protocol.
        transport: Transport,
        /// Address, perhaps unspecified, and port.
        at: SocketAddr,
        /// Whether it also takes IPv4; only for the unspecified IPv6 address.
        dual_stack: bool,
    },
    /// A connected socket, UDP or TCP.
    Connected {
        /// The protocol.
        transport: Transport,
        /// The host's end.
        local: SocketAddr,
        /// The other end.
        remote: SocketAddr,
    },
    /// One or more UDP sockets that joined a group; `at` holds the group's
    /// address, or the broadcast address that they take.
    Group {
        /// Group or broadcast address, and port.
        at: SocketAddr,
    },
}

/// A host, its neighbour, and the ports of its sockets.
///
/// The ports must differ from one another, but that connected sockets may share
/// a port with a bound one (then the connection must win).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// A unicast address of the host.
    pub v4: Ipv4Addr,
    /// A unicast address of the host.
    pub v6: Ipv6Addr,
    /// The directed broadcast address of the network of [`Host::v4`].
    pub v4_broadcast: Ipv4Addr,
    /// Who sends.
    pub v4_peer: Ipv4Addr,
    /// Who sends.
    pub v6_peer: Ipv6Addr,
    /// An address that is not the host's.
    pub v4_elsewhere: Ipv4Addr,
    /// An address that is not the host's.
    pub v6_elsewhere: Ipv6Addr,
    /// A multicast group.
    pub v4_group: Ipv4Addr,
    /// A multicast group.
    pub v6_group: Ipv6Addr,
    /// UDP socket and TCP listener at exactly [`Host::v4`], and one of each at [`Host::v6`].
    pub bound: u16,
    /// UDP socket and TCP listener at 0.0.0.0 only.
    pub v4_wildcard: u16,
    /// UDP socket and TCP listener at :: which take no IPv4.
    pub v6_wildcard: u16,
    /// UDP socket and TCP listener at :: which take IPv4 as well.
    pub dual_stack: u16,
    /// UDP sockets and TCP connections of both families, connected to [`Host::remote`].
    pub connected: u16,
    /// The peer's port that these are connected to.
    pub remote: u16,
    /// UDP sockets at the groups and at the broadcast addresses.
    pub group: u16,
    /// A port where nobody listens.
    pub closed: u16,
}

impl Default for Host {
    /// Addresses of the documentation ranges (RFC 5737, RFC 3849).
    fn default() -> Self {
        Self {
            v4: Ipv4Addr::new(192, 0, 2, 1),
            v6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
            v4_broadcast: Ipv4Addr::new(192, 0, 2, 255),
            v4_peer: Ipv4Addr::new(192, 0, 2, 2),
            v6_peer: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
            v4_elsewhere: Ipv4Addr::new(198, 51, 100, 1),
            v6_elsewhere: Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1),
            v4_group: Ipv4Addr::new(233, 252, 0, 1),
            v6_group: Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0xdb8, 1),
            bound: 1001,
            v4_wildcard: 1002,
            v6_wildcard: 1003,
            dual_stack: 1004,
            connected: 1005,
            remote: 2001,
            group: 1006,
            closed: 1007,
        }
    }
}

impl Host {
    /// The host's unicast address of the family of `other`.
    #[must_use]
    pub fn address_like(&self, other: IpAddr) -> IpAddr {
        match other {
            IpAddr::V4(_) => self.v4.into(),
            IpAddr::V6(_) => self.v6.into(),
        }
    }

    /// All sockets, each once. The connected ports are bound as well, at the
    /// wildcard of their family, so that a connection has something to win from.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let mut endpoints = Vec::new();
        for transport in [Transport::Udp, Transport::Tcp] {
            endpoints.extend([
                self.bound_v4(transport),
                self.bound_v6(transport),
                self.wildcard_v4(transport),
                self.wildcard_v6(transport),
                self.dual(transport),
                self.behind_connected_v4(transport),
                self.behind_connected_v6(transport),
                self.connected_v4(transport),
                self.connected_v6(transport),
            ]);
        }
        endpoints.extend(self.groups());
        endpoints
    }

    /// The socket at exactly [`Host::v4`].
    #[must_use]
    pub fn bound_v4(&self, transport: Transport) -> Endpoint {
        bound(transport, (self.v4, self.bound).into())
    }

    /// The socket at exactly [`Host::v6`].
    #[must_use]
    pub fn bound_v6(&self, transport: Transport) -> Endpoint {
        bound(transport, (self.v6, self.bound).into())
    }

    /// The socket at 0.0.0.0.
    #[must_use]
    pub fn wildcard_v4(&self, transport: Transport) -> Endpoint {
        bound(transport, (Ipv4Addr::UNSPECIFIED, self.v4_wildcard).into())
    }

    /// The socket at :: without IPv4.
    #[must_use]
    pub fn wildcard_v6(&self, transport: Transport) -> Endpoint {
        bound(transport, (Ipv6Addr::UNSPECIFIED, self.v6_wildcard).into())
    }

    /// The socket at :: with IPv4.
    #[must_use]
    pub fn dual(&self, transport: Transport) -> Endpoint {
        Endpoint::Bound {
            transport,
            at: (Ipv6Addr::UNSPECIFIED, self.dual_stack).into(),
            dual_stack: true,
        }
    }

    /// The socket at 0.0.0.0 which shares its port with a connection.
    #[must_use]
    pub fn behind_connected_v4(&self, transport: Transport) -> Endpoint {
        bound(transport, (Ipv4Addr::UNSPECIFIED, self.connected).into())
    }

    /// The socket at :: which shares its port with a connection.
    #[must_use]
    pub fn behind_connected_v6(&self, transport: Transport) -> Endpoint {
        bound(transport, (Ipv6Addr::UNSPECIFIED, self.connected).into())
    }

    /// The IPv4 connection.
    #[must_use]
    pub fn connected_v4(&self, transport: Transport) -> Endpoint {
        Endpoint::Connected {
            transport,
            local: (self.v4, self.connected).into(),
            remote: (self.v4_peer, self.remote).into(),
        }
    }

    /// The IPv6 connection.
    #[must_use]
    pub fn connected_v6(&self, transport: Transport) -> Endpoint {
        Endpoint::Connected {
            transport,
            local: (self.v6, self.connected).into(),
            remote: (self.v6_peer, self.remote).into(),
        }
    }

    /// The groups and broadcast addresses that sockets take.
    #[must_use]
    pub fn groups(&self) -> [Endpoint; 4] {
        [
            IpAddr::from(self.v4_group),
            self.v6_group.into(),
            self.v4_broadcast.into(),
            Ipv4Addr::BROADCAST.into(),
        ]
        .map(|address| self.group_at(address))
    }

    /// The group endpoint at one multicast or broadcast address.
    #[must_use]
    pub fn group_at(&self, address: IpAddr) -> Endpoint {
        Endpoint::Group {
            at: SocketAddr::new(address, self.group),
        }
    }
}

fn bound(transport: Transport, at: SocketAddr) -> Endpoint {
    Endpoint::Bound {
        transport,
        at,
        dual_stack: false,
    }
}
