//! Endpoints come and go: sockets, listeners, connections, and groups.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use plimsoll_core::demux::{ChannelId, EndpointError, Protocol};
use plimsoll_core::time::Instant;

use super::group::{self, Joined};
use super::{Bound, Place, Table};
use crate::account::Account;
use crate::device::Takes;
use crate::error;
use crate::wait::Waker;

impl Table {
    /// Binds an endpoint to a channel of its own.
    pub(crate) fn bind(
        &mut self,
        protocol: Protocol,
        local: SocketAddr,
        account: &Arc<Account>,
    ) -> io::Result<Bound> {
        let tcp = protocol == Protocol::Tcp;
        if !tcp {
            self.check_free(local)?;
        }
        let waker = match tcp {
            true => Arc::clone(&self.ready.waker),
            false => Arc::new(Waker::new()?),
        };
        let bound = self.create(&waker, Place::Socket { tcp }, Some(account))?;
        let result = self
            .demux
            .bind(protocol, local, is_dual(local), bound.channel);
        if let Err(error) = result {
            self.remove(bound.channel);
            return Err(refused(local, &error));
        }
        if !tcp {
            self.read_by(bound.channel, local);
        }
        Ok(bound)
    }

    /// Binds a UDP endpoint to a channel of its own, beside others that were bound so. True:
    /// it is the first.
    pub(crate) fn bind_shared(
        &mut self,
        local: SocketAddr,
        account: &Arc<Account>,
    ) -> io::Result<(Bound, bool)> {
        self.check_free(local)?;
        let place = Place::Socket { tcp: false };
        let bound = self.create(&Arc::new(Waker::new()?), place, Some(account))?;
        let joined = self.groups.join(local, bound.channel);
        let made = match joined {
            Joined::Member => {
                self.read_by(bound.channel, local);
                return Ok((bound, false));
            }
            Joined::Full => Err(error::group_full(local, group::MEMBERS_MAX)),
            Joined::NoGroup => {
                let number = self.groups.next();
                let bound = self
                    .demux
                    .bind(Protocol::Udp, local, is_dual(local), number);
                bound
                    .map(|()| number)
                    .map_err(|error| refused(local, &error))
            }
        };
        match made {
            Ok(number) => self.groups.create(number, local, bound.channel),
            Err(error) => {
                self.remove(bound.channel);
                return Err(error);
            }
        }
        self.read_by(bound.channel, local);
        Ok((bound, true))
    }

    /// A connected socket keeps its address, although it gets what comes from its peer alone.
    fn check_free(&self, local: SocketAddr) -> io::Result<()> {
        match self.held.values().any(|held| *held == local) {
            true => Err(error::address_in_use(local)),
            false => Ok(()),
        }
    }

    /// Whether other sockets go on at the address when this one is closed.
    pub(crate) fn has_others(&self, channel: ChannelId) -> bool {
        self.groups.has_others(channel)
    }

    /// From now on the channel gets what comes to the first of `ends` from the second only. `before`: those that it
    /// is connected between until then.
    pub(crate) fn connect_udp(
        &mut self,
        bound: SocketAddr,
        before: Option<(SocketAddr, SocketAddr)>,
        ends: (SocketAddr, SocketAddr),
        channel: ChannelId,
    ) -> io::Result<()> {
        if self.groups.contains(channel) {
            return Err(error::shared(bound));
        }
        // First: there may be no room for one more.
        if let Some((local, remote)) = before {
            self.demux.disconnect(Protocol::Udp, local, remote);
        }
        let mut connect = |(local, remote)| {
            let connected = self.demux.connect(Protocol::Udp, local, remote, channel);
            connected.map_err(|error| refused(local, &error))
        };
        if let Err(error) = connect(ends) {
            // There was room for it a moment ago.
            before.map(connect).transpose()?;
            return Err(error);
        }
        self.demux.unbind(Protocol::Udp, bound);
        self.held.insert(channel, bound);
        Ok(())
    }

    /// The channel of a connection, which a socket or TCP has made.
    pub(crate) fn connection(
        &self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<ChannelId> {
        self.demux.connection(protocol, local, remote)
    }

    /// The channel of the listener that a SYN to this address is for.
    pub(crate) fn listener(&self, at: SocketAddr) -> Option<ChannelId> {
        self.demux.listener(at)
    }

    /// The next call of the channel's socket is to return this error.
    pub(crate) fn set_trouble(&self, channel: ChannelId, errno: i32) {
        if let Some(slot) = self.slot(channel) {
            slot.trouble.set(errno);
            slot.waker.wake();
        }
    }

    /// The channel also gets what is for a group at a port.
    pub(crate) fn join(&mut self, group: SocketAddr, channel: ChannelId) -> io::Result<()> {
        let joined = self.demux.join(group, channel);
        let of_group = joined.map_err(|error| refused(group, &error))?;
        if of_group != channel {
            // They would share one queue.
            self.demux.leave(group);
            return Err(error::address_in_use(group));
        }
        Ok(())
    }

    pub(crate) fn leave(&mut self, group: SocketAddr) {
        self.demux.leave(group);
    }

    /// A TCP connection with a channel of its own, which may take the place of
    /// one in `TIME_WAIT`.
    pub(crate) fn open_connection(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        account: &Arc<Account>,
    ) -> io::Result<Bound> {
        let waker = Arc::clone(&self.ready.waker);
        let bound = self.create(&waker, Place::Connection, Some(account))?;
        let connected = self
            .demux
            .connect(Protocol::Tcp, local, remote, bound.channel);
        if let Err(error) = connected {
            self.remove(bound.channel);
            return Err(refused(local, &error));
        }
        Ok(bound)
    }

    /// A connection's last packets go to the channel of `TIME_WAIT`; its own is to be
    /// [given back](Self::give_back) once it is empty.
    pub(crate) fn enter_time_wait(&mut self, local: SocketAddr, remote: SocketAddr, now: Instant) {
        self.demux.enter_time_wait(local, remote, now);
    }

    /// The channel of a connection in `TIME_WAIT` is free for the next.
    pub(crate) fn give_back(&mut self, channel: ChannelId) {
        self.remove(channel);
    }

    /// SYNs for a listener are discarded at once, but these.
    pub(crate) fn set_takes(&mut self, listener: SocketAddr, channel: ChannelId, takes: Takes) {
        self.demux.set_beyond_backlog(listener, takes != Takes::All);
        if let Some(Some(slot)) = self.slots.get_mut(channel.0 as usize) {
            slot.takes_known = takes == Takes::Known;
        }
    }

    /// Ends an endpoint, bound or connected, and its channel.
    pub(crate) fn close(
        &mut self,
        protocol: Protocol,
        local: SocketAddr,
        remote: Option<SocketAddr>,
        channel: ChannelId,
    ) {
        match remote {
            Some(remote) => self.demux.disconnect(protocol, local, remote),
            None if self.groups.has_others(channel) => None,
            None => self.demux.unbind(protocol, local),
        };
        self.groups.leave(channel);
        self.held.remove(&channel);
        self.remove(channel);
    }
}

/// Whether an endpoint takes both families.
fn is_dual(local: SocketAddr) -> bool {
    local.ip() == IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)
}

fn refused(at: SocketAddr, error: &EndpointError) -> io::Error {
    match error {
        EndpointError::Taken => error::address_in_use(at),
        EndpointError::Full => {
            let why = format!("no room for {at}: raise `channels_max` of the stack's config");
            io::Error::new(io::ErrorKind::OutOfMemory, why)
        }
        EndpointError::Unsuitable(_) => {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{at}: {error}"))
        }
    }
}
