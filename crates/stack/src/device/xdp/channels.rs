//! Listeners and connections of TCP, as the XDP program has them.
//!
//! Their frames come by the main socket. A connection's channel in the program is a count: it
//! is given frames as long as its queue in the stack has room (`room`). An AF_XDP socket for
//! each would take two rings, a descriptor and some system calls per connection. A listener has
//! marks: its backlog is full, and whose SYNs it takes nevertheless. On paths without channels of connections
//! they tell whether the program may answer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::numbers::Number;
use super::program::not_added;
use super::room::Room;
use super::{CONNECTIONS_MAX, PLACES_OF_SOCKETS, Shared};
use crate::device::{Channel, Endpoint, Takes};

#[derive(Debug)]
pub(super) struct XdpConnection {
    ends: (SocketAddr, SocketAddr),
    room: Room,
    shared: Arc<Shared>,
    // After the room, which would end the next one's.
    _number: Number,
}

impl XdpConnection {
    /// With room for so many frames. `ends`: here and there.
    pub(super) fn open(
        shared: &Arc<Shared>,
        ends: (SocketAddr, SocketAddr),
        frames: u32,
    ) -> io::Result<Self> {
        let number = shared.channels.take().ok_or_else(|| {
            let why = format!("the XDP program has channels for {CONNECTIONS_MAX} connections");
            io::Error::new(io::ErrorKind::OutOfMemory, why)
        })?;
        let room = shared.program.room(PLACES_OF_SOCKETS + number.get());
        room.tell(|| frames);
        let added = shared.program.add_connection(ends, number.get());
        added.map_err(io::Error::other)?;
        Ok(Self {
            ends,
            room,
            shared: Arc::clone(shared),
            _number: number,
        })
    }
}

impl Channel for XdpConnection {
    fn set_room(&self, frames: u32) {
        self.room.tell(|| frames);
    }

    fn await_last(&self) {
        self.shared.program.add_late(self.ends);
    }

    fn refused(&self) -> u64 {
        self.room.refused()
    }
}

impl Drop for XdpConnection {
    fn drop(&mut self) {
        self.shared.program.remove_connection(self.ends);
    }
}

#[derive(Debug)]
pub(super) struct XdpListener {
    endpoint: Endpoint,
    shared: Arc<Shared>,
}

impl XdpListener {
    pub(super) fn open(shared: &Arc<Shared>, endpoint: Endpoint) -> io::Result<Self> {
        let added = shared.program.add_listener(endpoint);
        added.map_err(|error| not_added(endpoint, error))?;
        Ok(Self {
            endpoint,
            shared: Arc::clone(shared),
        })
    }
}

impl Channel for XdpListener {
    fn set_takes(&self, takes: Takes) {
        // Its entry is there, so this cannot fail; if it did, the stack would discard.
        let _ = self.shared.program.set_takes(self.endpoint, takes);
    }
}

impl Drop for XdpListener {
    fn drop(&mut self) {
        self.shared.program.remove_endpoint(self.endpoint);
    }
}
