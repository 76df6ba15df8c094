//! A socket of its own for one endpoint, or for one of several that share it.

use std::io;
use std::sync::Arc;

use super::closing::Leaving;
use super::program::not_added;
use super::queues::Sockets;
use super::socket::Socket;
use super::{SOCKETS_MAX, Shared};
use crate::device::Endpoint;
use crate::device::wrapper::Wrapper;

/// A socket that gets the frames of one endpoint.
#[derive(Debug)]
pub(super) struct XdpEndpoint {
    /// Taken when it is dropped.
    own: Option<Leaving>,
    endpoint: Endpoint,
    /// One of several of the endpoint.
    member: bool,
    shared: Arc<Shared>,
}

impl XdpEndpoint {
    pub(super) fn open(shared: &Arc<Shared>, endpoint: Endpoint, member: bool) -> io::Result<Self> {
        match Self::open_at_once(shared, endpoint, member) {
            // Those that are being closed have numbers and descriptors still.
            Err(error) if error.kind() != io::ErrorKind::AddrInUse && shared.closing.finish() => {
                Self::open_at_once(shared, endpoint, member)
            }
            opened => opened,
        }
    }

    fn open_at_once(shared: &Arc<Shared>, endpoint: Endpoint, member: bool) -> io::Result<Self> {
        let number = shared.numbers.take().ok_or_else(|| {
            let why = format!("all {SOCKETS_MAX} sockets of the XDP program are in use");
            io::Error::new(io::ErrorKind::OutOfMemory, why)
        })?;
        let (program, place) = (&shared.program, number.get());
        let sockets = shared.queues.iter().map(|queue| {
            let socket = Socket::sharing(queue)?;
            Ok(socket.telling(program.room(shared.place(queue, place))))
        });
        let sockets = Sockets::new(sockets.collect::<io::Result<_>>()?)?;
        let added = shared.give(place, &sockets).and_then(|()| match member {
            false => program.add_endpoint(endpoint, place),
            true => program.add_member(endpoint, place),
        });
        if let Err(error) = added {
            // The endpoint's entry, if there is one, is another's.
            shared.take_back(place);
            return Err(not_added(endpoint, error));
        }
        Ok(Self {
            own: Some(Leaving { sockets, number }),
            endpoint,
            member,
            shared: Arc::clone(shared),
        })
    }
}

impl Drop for XdpEndpoint {
    fn drop(&mut self) {
        let Some(own) = self.own.take() else { return };
        let (program, number) = (&self.shared.program, own.number.get());
        match self.member {
            false => program.remove_endpoint(self.endpoint),
            true => program.remove_member(self.endpoint, number),
        }
        self.shared.take_back(number);
        // What is just being delivered is taken later.
        own.sockets.take_unread();
        self.shared.closing.add(own);
    }
}

impl Wrapper for XdpEndpoint {
    type Inner = Sockets;

    fn inner(&self) -> &Sockets {
        match &self.own {
            Some(own) => &own.sockets,
            None => unreachable!("taken when it is dropped"),
        }
    }
}
