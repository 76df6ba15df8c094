//! What the owner of the channels tells a [`Demux`]: addresses, sockets,
//! connections, groups, and how they change.
//!
//! Each call is made when the host's state changes, not per packet. IPv4-mapped
//! IPv6 addresses (`::ffff:a.b.c.d`) mean the IPv4 address everywhere.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::family::{Family, Flow, Place, Reach, Version};
use super::table::{Full, Table};
use super::{ChannelId, Demux};
use crate::time::Instant;

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// The user datagram protocol (RFC 768).
    Udp,
    /// The transmission control protocol (RFC 9293).
    Tcp,
}

/// Why an address or endpoint cannot be taken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointError {
    /// There is one already, and it keeps its channel. Sockets that share an
    /// address and port (`SO_REUSEPORT`) share a channel: register one of them.
    Taken,
    /// As many are registered as [`DemuxConfig`](super::DemuxConfig) allows.
    Full,
    /// No packet could ever be for it; says what would be accepted.
    Unsuitable(&'static str),
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken => f.write_str("another endpoint is registered there: remove it first"),
            Self::Full => f.write_str("no room: raise the limit in DemuxConfig"),
            Self::Unsuitable(allowed) => write!(f, "not an endpoint: {allowed}"),
        }
    }
}

impl core::error::Error for EndpointError {}

impl From<Full> for EndpointError {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

/// A protocol and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port(u32);

impl Port {
    pub(super) fn new(protocol: Protocol, port: u16) -> Self {
        Self((protocol as u32) << 16 | u32::from(port))
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }
}

/// A bound UDP socket or a listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct Socket {
    pub(super) channel: ChannelId,
    /// Bound to :: and takes IPv4 too.
    pub(super) dual_stack: bool,
    pub(super) beyond_backlog: bool,
}

/// The sockets at one port of the wildcard addresses; one of them at least.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sockets {
    pub(super) v4: Option<Socket>,
    pub(super) v6: Option<Socket>,
}

impl Sockets {
    fn of(&mut self, wildcard: IpAddr) -> &mut Option<Socket> {
        match wildcard {
            IpAddr::V4(_) => &mut self.v4,
            IpAddr::V6(_) => &mut self.v6,
        }
    }
}

/// A multicast group or broadcast address at one port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) channel: ChannelId,
    members: u32,
}

// `Demux::memory_bytes` documents these sizes; the tables add one byte per slot.
const _: () = {
    assert!(size_of::<(Flow<Ipv4Addr>, ChannelId)>() == 16);
    assert!(size_of::<(Flow<Ipv6Addr>, ChannelId)>() == 40);
    assert!(size_of::<(Port, Sockets)>() == 20);
    assert!(size_of::<(Place<Ipv4Addr>, Socket)>() == 16);
    assert!(size_of::<(Place<Ipv6Addr>, Socket)>() == 28);
    assert!(size_of::<(Place<Ipv6Addr>, Group)>() == 28);
};

/// A connection's ends in one family.
enum Ends {
    V4(Flow<Ipv4Addr>),
    V6(Flow<Ipv6Addr>),
}

impl Demux {
    /// Makes `address` one of the host's unicast addresses.
    ///
    /// # Errors
    ///
    /// If it is not a unicast address, or there are
    /// [`DemuxConfig::addresses_max`](super::DemuxConfig::addresses_max).
    pub fn add_local_address(&mut self, address: IpAddr) -> Result<(), EndpointError> {
        match unicast(address)? {
            IpAddr::V4(address) => self.v4.add_address(address, Reach::Local)?,
            IpAddr::V6(address) => self.v6.add_address(address, Reach::Local)?,
        }
        Ok(())
    }

    /// Makes `address` one of the host's directed broadcast addresses.
    /// 255.255.255.255 is one without being told.
    ///
    /// # Errors
    ///
    /// As for [`Demux::add_local_address`].
    pub fn add_broadcast_address(&mut self, address: Ipv4Addr) -> Result<(), EndpointError> {
        unicast(address.into())?;
        Ok(self.v4.add_address(address, Reach::Many)?)
    }

    /// Takes an address from the host: packets to it are to be forwarded.
    /// Endpoints there stay registered. False: it was none.
    pub fn remove_address(&mut self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => self.v4.remove_address(address),
            IpAddr::V6(address) => self.v6.remove_address(address),
        }
    }

    /// Registers a bound UDP socket, or a listener within its backlog, with its
    /// channel. `dual_stack`: it is bound to :: and takes IPv4 too (on Linux,
    /// unless `IPV6_V6ONLY` is set).
    ///
    /// # Errors
    ///
    /// If the address is multicast or broadcast (see [`Demux::join`]) or the
    /// port 0, if `dual_stack` comes with another address than ::, if a socket
    /// is registered there, or if there is no room.
    pub fn bind(
        &mut self,
        protocol: Protocol,
        at: SocketAddr,
        dual_stack: bool,
        channel: ChannelId,
    ) -> Result<(), EndpointError> {
        let (address, port) = place(protocol, at)?;
        if dual_stack && address != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            return Err(EndpointError::Unsuitable("only :: is dual-stack"));
        }
        if self.socket_mut(address, port).is_some() {
            return Err(EndpointError::Taken);
        }
        let socket = Socket {
            channel,
            dual_stack,
            beyond_backlog: false,
        };
        match address {
            _ if address.is_unspecified() => {
                let wildcards = &mut self.shared.wildcards;
                if let Some(sockets) = wildcards.get_mut(&port) {
                    *sockets.of(address) = Some(socket);
                } else {
                    let mut sockets = Sockets::default();
                    *sockets.of(address) = Some(socket);
                    wildcards.insert(port, sockets)?;
                }
            }
            IpAddr::V4(address) => self.v4.bound.insert(Place { address, port }, socket)?,
            IpAddr::V6(address) => self.v6.bound.insert(Place { address, port }, socket)?,
        }
        Ok(())
    }

    /// Removes a bound socket or listener and gives its channel back. From then
    /// on no frame is classified to it, unless another endpoint has the same.
    pub fn unbind(&mut self, protocol: Protocol, at: SocketAddr) -> Option<ChannelId> {
        let (address, port) = place(protocol, at).ok()?;
        let socket = match address {
            _ if address.is_unspecified() => {
                let sockets = self.shared.wildcards.get_mut(&port)?;
                let socket = sockets.of(address).take();
                if sockets.v4.is_none() && sockets.v6.is_none() {
                    self.shared.wildcards.remove(&port);
                }
                socket
            }
            IpAddr::V4(address) => self.v4.bound.remove(&Place { address, port }),
            IpAddr::V6(address) => self.v6.bound.remove(&Place { address, port }),
        }?;
        if protocol == Protocol::Udp {
            self.forget_fragments(socket.channel);
        }
        Some(socket.channel)
    }

    /// Says whether a listener is beyond its backlog, so that its new SYNs are
    /// [`Demand::Excess`](super::Demand::Excess). False: no such listener.
    pub fn set_beyond_backlog(&mut self, at: SocketAddr, beyond: bool) -> bool {
        let listener = place(Protocol::Tcp, at)
            .ok()
            .and_then(|(address, port)| self.socket_mut(address, port));
        listener.is_some_and(|socket| {
            socket.beyond_backlog = beyond;
            true
        })
    }

    /// Registers a connection with its channel: a TCP connection from the
    /// moment its SYN was taken on, or a connected UDP socket. It may take the
    /// place of one in TIME_WAIT.
    ///
    /// # Errors
    ///
    /// If the ends are of different families, not unicast, or without port, if
    /// the connection is registered, or if there is no room.
    pub fn connect(
        &mut self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
        channel: ChannelId,
    ) -> Result<(), EndpointError> {
        match ends(local, remote)? {
            Ends::V4(flow) => self.v4.connect(protocol, flow, channel),
            Ends::V6(flow) => self.v6.connect(protocol, flow, channel),
        }
    }

    /// Removes a connection and gives its channel back, as [`Demux::unbind`] does.
    pub fn disconnect(
        &mut self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<ChannelId> {
        let channel = match ends(local, remote).ok()? {
            Ends::V4(flow) => self.v4.connections(protocol).remove(&flow),
            Ends::V6(flow) => self.v6.connections(protocol).remove(&flow),
        }?;
        if protocol == Protocol::Udp {
            self.forget_fragments(channel);
        }
        Some(channel)
    }

    /// The channel of a registered connection: whose a network's error about a packet of
    /// ours is.
    #[must_use]
    pub fn connection(
        &self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<ChannelId> {
        match ends(local, remote).ok()? {
            Ends::V4(flow) => self.v4.connection(protocol, &flow),
            Ends::V6(flow) => self.v6.connection(protocol, &flow),
        }
    }

    /// The channel of the listener that a SYN to this address is for.
    #[must_use]
    pub fn listener(&self, at: SocketAddr) -> Option<ChannelId> {
        let (address, port) = place(Protocol::Tcp, at).ok()?;
        let listener = match address {
            IpAddr::V4(address) => self.v4.socket(&self.shared, &Place { address, port }),
            IpAddr::V6(address) => self.v6.socket(&self.shared, &Place { address, port }),
        };
        listener.map(|listener| listener.channel)
    }

    /// A TCP connection enters TIME_WAIT: gives its channel back (LRP-42). Its
    /// late packets are `tcp_connection` on [`Channels::time_wait`] until
    /// [`DemuxConfig::time_wait_lifetime`] is over. Nothing: no such connection.
    ///
    /// [`Channels::time_wait`]: super::Channels::time_wait
    /// [`DemuxConfig::time_wait_lifetime`]: super::DemuxConfig::time_wait_lifetime
    pub fn enter_time_wait(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> Option<ChannelId> {
        match ends(local, remote).ok()? {
            Ends::V4(flow) => self.v4.enter_time_wait(flow, now),
            Ends::V6(flow) => self.v6.enter_time_wait(flow, now),
        }
    }

    /// A UDP socket joins a multicast group, or wants the datagrams to a
    /// broadcast address, at a port. All members share the channel that the
    /// first brought, which is returned (LRP-22).
    ///
    /// # Errors
    ///
    /// If the port is 0, or the address is neither multicast nor 255.255.255.255
    /// nor a registered broadcast address, or if there is no room.
    pub fn join(
        &mut self,
        group: SocketAddr,
        channel: ChannelId,
    ) -> Result<ChannelId, EndpointError> {
        let port = some_port(Protocol::Udp, group)?;
        match group.ip().to_canonical() {
            IpAddr::V4(address) => self.v4.join(Place { address, port }, channel),
            IpAddr::V6(address) => self.v6.join(Place { address, port }, channel),
        }
    }

    /// A member leaves. When it was the last, gives the group's channel back.
    pub fn leave(&mut self, group: SocketAddr) -> Option<ChannelId> {
        let port = some_port(Protocol::Udp, group).ok()?;
        let channel = match group.ip().to_canonical() {
            IpAddr::V4(address) => self.v4.leave(&Place { address, port }),
            IpAddr::V6(address) => self.v6.leave(&Place { address, port }),
        }?;
        self.forget_fragments(channel);
        Some(channel)
    }

    /// Gives packets to be forwarded a channel by their DSCP (RFC 2474, 0 to
    /// 63; the two lower bits of the traffic class do not count), so that a
    /// gateway can serve classes apart (LRP-46). Larger numbers lose their
    /// upper bits.
    pub fn set_forward_channel(&mut self, dscp: u8, channel: ChannelId) {
        self.shared.forward[usize::from(dscp & 63)] = channel;
    }

    fn socket_mut(&mut self, address: IpAddr, port: Port) -> Option<&mut Socket> {
        match address {
            _ if address.is_unspecified() => {
                let sockets = self.shared.wildcards.get_mut(&port)?;
                sockets.of(address).as_mut()
            }
            IpAddr::V4(address) => self.v4.bound.get_mut(&Place { address, port }),
            IpAddr::V6(address) => self.v6.bound.get_mut(&Place { address, port }),
        }
    }

    /// Later fragments must not follow a first one to a channel that was given back.
    fn forget_fragments(&mut self, channel: ChannelId) {
        self.v4.firsts.forget_values(|first| first.1 == channel);
        self.v6.firsts.forget_values(|first| first.1 == channel);
    }
}

impl<A: Version> Family<A> {
    fn connections(&mut self, protocol: Protocol) -> &mut Table<Flow<A>, ChannelId> {
        match protocol {
            Protocol::Udp => &mut self.udp_connections,
            Protocol::Tcp => &mut self.tcp_connections,
        }
    }

    fn connection(&self, protocol: Protocol, flow: &Flow<A>) -> Option<ChannelId> {
        let connections = match protocol {
            Protocol::Udp => &self.udp_connections,
            Protocol::Tcp => &self.tcp_connections,
        };
        connections.get(flow).copied()
    }

    fn connect(
        &mut self,
        protocol: Protocol,
        flow: Flow<A>,
        channel: ChannelId,
    ) -> Result<(), EndpointError> {
        let connections = self.connections(protocol);
        if connections.get(&flow).is_some() {
            return Err(EndpointError::Taken);
        }
        connections.insert(flow, channel)?;
        if protocol == Protocol::Tcp {
            self.time_wait.forget(&flow);
        }
        Ok(())
    }

    fn enter_time_wait(&mut self, flow: Flow<A>, now: Instant) -> Option<ChannelId> {
        let channel = self.tcp_connections.remove(&flow)?;
        self.time_wait.insert(flow, (), now);
        Some(channel)
    }

    fn join(&mut self, place: Place<A>, channel: ChannelId) -> Result<ChannelId, EndpointError> {
        if self.reach(place.address) != Some(Reach::Many) {
            return Err(EndpointError::Unsuitable(
                "a group is a multicast or broadcast address",
            ));
        }
        if let Some(group) = self.groups.get_mut(&place) {
            group.members = group.members.saturating_add(1);
            return Ok(group.channel);
        }
        let group = Group {
            channel,
            members: 1,
        };
        self.groups.insert(place, group)?;
        Ok(channel)
    }

    fn leave(&mut self, place: &Place<A>) -> Option<ChannelId> {
        let group = self.groups.get_mut(place)?;
        group.members -= 1;
        if group.members > 0 {
            return None;
        }
        self.groups.remove(place).map(|group| group.channel)
    }
}

fn unicast(address: IpAddr) -> Result<IpAddr, EndpointError> {
    let address = address.to_canonical();
    let unsuitable = address.is_unspecified()
        || address.is_multicast()
        || address == IpAddr::V4(Ipv4Addr::BROADCAST);
    if unsuitable {
        return Err(EndpointError::Unsuitable("the address must be unicast"));
    }
    Ok(address)
}

fn some_port(protocol: Protocol, at: SocketAddr) -> Result<Port, EndpointError> {
    if at.port() == 0 {
        return Err(EndpointError::Unsuitable("the port must not be 0"));
    }
    Ok(Port::new(protocol, at.port()))
}

/// Where a socket may be bound: a unicast or wildcard address, and a port.
fn place(protocol: Protocol, at: SocketAddr) -> Result<(IpAddr, Port), EndpointError> {
    let port = some_port(protocol, at)?;
    let address = at.ip().to_canonical();
    if !address.is_unspecified() {
        unicast(address)?;
    }
    Ok((address, port))
}

fn ends(local: SocketAddr, remote: SocketAddr) -> Result<Ends, EndpointError> {
    let local_port = local.port();
    let remote_port = remote.port();
    if local_port == 0 || remote_port == 0 {
        return Err(EndpointError::Unsuitable("the ports must not be 0"));
    }
    match (unicast(local.ip())?, unicast(remote.ip())?) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => Ok(Ends::V4(Flow {
            local,
            remote,
            local_port,
            remote_port,
        })),
        (IpAddr::V6(local), IpAddr::V6(remote)) => Ok(Ends::V6(Flow {
            local,
            remote,
            local_port,
            remote_port,
        })),
        _ => Err(EndpointError::Unsuitable("both ends of one family")),
    }
}
