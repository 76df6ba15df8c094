//! The model's addresses and endpoints, added and removed.

use std::net::{IpAddr, SocketAddr};

use plimsoll_core::demux::{ChannelId, EndpointError, Protocol};
use plimsoll_core::time::Instant;

use super::{Connection, Model, Socket, family};

/// The same calls as `Demux` has, for endpoints that are suitable: addresses
/// are unicast, unspecified or groups where they should be, ports are not 0.
impl Model {
    /// Adds a unicast address, or a broadcast address.
    ///
    /// # Errors
    ///
    /// [`EndpointError::Full`].
    pub fn add_address(&mut self, address: IpAddr, local: bool) -> Result<(), EndpointError> {
        let family = |known: &&(IpAddr, bool)| known.0.is_ipv4() == address.is_ipv4();
        let used = self.addresses.iter().filter(family).count();
        if let Some(known) = self.addresses.iter_mut().find(|known| known.0 == address) {
            known.1 = local;
        } else if used == self.config.addresses_max {
            return Err(EndpointError::Full);
        } else {
            self.addresses.push((address, local));
        }
        Ok(())
    }

    /// Removes an address.
    pub fn remove_address(&mut self, address: IpAddr) -> bool {
        let before = self.addresses.len();
        self.addresses.retain(|known| known.0 != address);
        self.addresses.len() < before
    }

    /// Registers a bound socket.
    ///
    /// # Errors
    ///
    /// [`EndpointError::Taken`], [`EndpointError::Full`].
    pub fn bind(
        &mut self,
        protocol: Protocol,
        at: SocketAddr,
        dual_stack: bool,
        channel: ChannelId,
    ) -> Result<(), EndpointError> {
        if self.exact(protocol, at).is_some() {
            return Err(EndpointError::Taken);
        }
        // At a wildcard, both families share the room for one port.
        let mut rivals = self.sockets.clone();
        if at.ip().is_unspecified() {
            rivals.retain(|socket| socket.at.ip().is_unspecified());
            let port = |socket: &Socket| (socket.protocol, socket.at.port());
            rivals.sort_by_key(port);
            rivals.dedup_by_key(|socket| port(socket));
            rivals.retain(|socket| port(socket) != (protocol, at.port()));
        } else {
            rivals.retain(|socket| {
                !socket.at.ip().is_unspecified() && socket.at.is_ipv4() == at.is_ipv4()
            });
        }
        if rivals.len() == self.config.sockets_max {
            return Err(EndpointError::Full);
        }
        self.sockets.push(Socket {
            protocol,
            at,
            dual_stack,
            beyond_backlog: false,
            channel,
        });
        Ok(())
    }

    /// Removes a bound socket.
    pub fn unbind(&mut self, protocol: Protocol, at: SocketAddr) -> Option<ChannelId> {
        let socket = self.sockets.remove(self.exact(protocol, at)?);
        if protocol == Protocol::Udp {
            self.forget(socket.channel);
        }
        Some(socket.channel)
    }

    /// Sets a listener's backlog state.
    pub fn set_beyond_backlog(&mut self, at: SocketAddr, beyond: bool) -> bool {
        let Some(place) = self.exact(Protocol::Tcp, at) else {
            return false;
        };
        self.sockets[place].beyond_backlog = beyond;
        true
    }

    /// Registers a connection.
    ///
    /// # Errors
    ///
    /// [`EndpointError::Taken`], [`EndpointError::Full`].
    pub fn connect(
        &mut self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
        channel: ChannelId,
    ) -> Result<(), EndpointError> {
        let connection = Connection {
            protocol,
            local,
            remote,
        };
        if self.connection(&connection).is_some() {
            return Err(EndpointError::Taken);
        }
        let limit = match protocol {
            Protocol::Udp => self.config.udp_connections_max,
            Protocol::Tcp => self.config.tcp_connections_max,
        };
        let rivals = self.connections.iter().filter(|(known, _)| {
            known.protocol == protocol && known.local.is_ipv4() == local.is_ipv4()
        });
        if rivals.count() == limit {
            return Err(EndpointError::Full);
        }
        self.connections.push((connection, channel));
        self.time_wait[family(local.ip())].remove(&connection);
        Ok(())
    }

    /// Removes a connection.
    pub fn disconnect(
        &mut self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<ChannelId> {
        let connection = Connection {
            protocol,
            local,
            remote,
        };
        let channel = self.connection(&connection)?;
        self.connections.retain(|known| known.0 != connection);
        if protocol == Protocol::Udp {
            self.forget(channel);
        }
        Some(channel)
    }

    /// A connection enters TIME_WAIT.
    pub fn enter_time_wait(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> Option<ChannelId> {
        let channel = self.disconnect(Protocol::Tcp, local, remote)?;
        let connection = Connection {
            protocol: Protocol::Tcp,
            local,
            remote,
        };
        self.time_wait[family(local.ip())].insert(connection, (), now);
        Some(channel)
    }

    /// A socket joins a group.
    ///
    /// # Errors
    ///
    /// [`EndpointError::Full`], or that the address is none of a group.
    pub fn join(
        &mut self,
        group: SocketAddr,
        channel: ChannelId,
    ) -> Result<ChannelId, EndpointError> {
        if self.is_local(group.ip()) != Some(false) {
            return Err(EndpointError::Unsuitable(
                "a group is a multicast or broadcast address",
            ));
        }
        let of_family = self
            .groups
            .iter()
            .filter(|known| known.0.is_ipv4() == group.is_ipv4());
        let used = of_family.count();
        if let Some(known) = self.groups.iter_mut().find(|known| known.0 == group) {
            known.2 += 1;
            return Ok(known.1);
        }
        if used == self.config.groups_max {
            return Err(EndpointError::Full);
        }
        self.groups.push((group, channel, 1));
        Ok(channel)
    }

    /// A socket leaves a group.
    pub fn leave(&mut self, group: SocketAddr) -> Option<ChannelId> {
        let place = self.groups.iter().position(|known| known.0 == group)?;
        self.groups[place].2 -= 1;
        if self.groups[place].2 > 0 {
            return None;
        }
        let channel = self.groups.remove(place).1;
        self.forget(channel);
        Some(channel)
    }

    /// Gives a class of forwarded packets a channel.
    pub fn set_forward_channel(&mut self, dscp: u8, channel: ChannelId) {
        self.forward[usize::from(dscp % 64)] = channel;
    }

    fn exact(&self, protocol: Protocol, at: SocketAddr) -> Option<usize> {
        let mut sockets = self.sockets.iter();
        sockets.position(|socket| socket.protocol == protocol && socket.at == at)
    }

    fn forget(&mut self, channel: ChannelId) {
        for firsts in &mut self.firsts {
            firsts.entries.retain(|first| first.1.1 != channel);
        }
    }
}
