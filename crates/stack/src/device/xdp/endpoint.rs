//! A socket of its own for one endpoint, or for one of several that share it.

use std::io;
use std::sync::Arc;

use super::numbers::Number;
use super::socket::Socket;
use super::{SOCKETS_MAX, Shared};
use crate::device::Endpoint;
use crate::device::wrapper::Wrapper;

/// A socket that gets the frames of one endpoint.
#[derive(Debug)]
pub(super) struct XdpEndpoint {
    socket: Socket,
    endpoint: Endpoint,
    /// One of several of the endpoint.
    member: bool,
    shared: Arc<Shared>,
    // After the socket, which ends what the program is told of its room.
    number: Number,
}

impl XdpEndpoint {
    pub(super) fn open(shared: &Arc<Shared>, endpoint: Endpoint, member: bool) -> io::Result<Self> {
        let number = shared.numbers.take().ok_or_else(|| {
            let why = format!("all {SOCKETS_MAX} sockets of the XDP program are in use");
            io::Error::new(io::ErrorKind::OutOfMemory, why)
        })?;
        let opened = Self {
            socket: Socket::sharing(&shared.queue)?.telling(shared.program.room(number.get())),
            number,
            endpoint,
            member,
            shared: Arc::clone(shared),
        };
        let (program, number) = (&shared.program, opened.number.get());
        let added = program
            .add_socket(number, opened.socket.as_fd())
            .and_then(|()| match member {
                false => program.add_endpoint(endpoint, number),
                true => program.add_member(endpoint, number),
            });
        added.map_err(io::Error::other)?;
        Ok(opened)
    }
}

impl Drop for XdpEndpoint {
    fn drop(&mut self) {
        let (program, number) = (&self.shared.program, self.number.get());
        match self.member {
            false => program.remove_endpoint(self.endpoint),
            true => program.remove_member(self.endpoint, number),
        }
        program.remove_socket(number);
        self.socket.drain();
    }
}

impl Wrapper for XdpEndpoint {
    type Inner = Socket;

    fn inner(&self) -> &Socket {
        &self.socket
    }
}
