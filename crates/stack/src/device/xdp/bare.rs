//! One receive queue without a program: whoever opens it attaches a program of its own
//! and puts the socket into that program's map.
//!
//! Queues of several interfaces may share their memory, so that a frame that came in by
//! one is sent by another without a copy (`XDP_SHARED_UMEM` across devices, Linux 5.10).

use std::os::fd::{AsFd, BorrowedFd};

use super::socket::Socket;
use super::{CHUNK_BYTES, ETHERNET_BYTES_MAX};
use super::{XdpConfig, check_queue, chunk_bytes_for, refused};
use crate::device::wrapper::Wrapper;
use crate::device::{Capabilities, Device, HEADROOM_BYTES};
use crate::error::Error;
use crate::interface;

/// A socket on a receive queue.
#[derive(Debug)]
pub struct BareQueue {
    socket: Socket,
}

impl BareQueue {
    /// Opens a queue of an interface of this network namespace, with memory of its own
    /// or that of `beside`. Of `config` the owned addresses and the kernel's settings say
    /// nothing here, and beside another queue neither do the number of chunks and the copy
    /// mode.
    ///
    /// # Errors
    ///
    /// As [`XdpInterface::open`](super::XdpInterface::open), but for the program.
    pub fn open(interface: &str, config: &XdpConfig, beside: Option<&Self>) -> Result<Self, Error> {
        config.validate()?;
        let ifindex = interface::index(interface)?;
        let (mac, mtu) = (interface::mac(interface)?, interface::mtu(interface)?);
        let too_large = |max| Error::MtuTooLarge {
            interface: interface.to_owned(),
            mtu,
            max,
        };
        let room = |chunk_bytes: usize| chunk_bytes - HEADROOM_BYTES - ETHERNET_BYTES_MAX;
        let largest = room(CHUNK_BYTES[1]);
        let chunk_bytes = chunk_bytes_for(mtu).ok_or_else(|| too_large(largest))?;
        check_queue(interface, ifindex, config.queue)?;
        let capabilities = Capabilities {
            checksums_verified: config.trust_checksums,
            ..Capabilities::plain(mac, mtu)
        };
        let socket = match beside {
            None => Socket::first(ifindex, config, capabilities, chunk_bytes),
            Some(other) => {
                let present = other.socket.pool().chunk_bytes();
                if chunk_bytes > present {
                    return Err(too_large(room(present)));
                }
                let queue = other.socket.queue();
                Socket::first_beside(queue, ifindex, config, capabilities)
            }
        };
        let socket = socket.map_err(|error| refused(interface, config, error))?;
        Ok(Self { socket })
    }

    /// Another socket of the same queue, for frames that must not wait behind others or be lost
    /// with them. It has rings of its own, and shares the memory.
    ///
    /// # Errors
    ///
    /// The kernel opens none.
    pub fn beside(&self) -> Result<Self, Error> {
        let socket = Socket::sharing(self.socket.queue());
        let socket = socket.map_err(Error::io("open a second AF_XDP socket of a queue"))?;
        Ok(Self { socket })
    }

    /// Which receive queue of its interface this is.
    #[must_use]
    pub fn queue(&self) -> u32 {
        self.socket.queue().number()
    }

    /// Takes back what the kernel has received and nobody will read; how many frames these are.
    /// To be called when no program knows the socket any more
    /// ([`wait_for_deliveries`](super::wait_for_deliveries)).
    pub fn take_unread(&self) -> u64 {
        self.socket.take_unread()
    }

    /// Whether the kernel has yet to send some of what it was given, and can: the interface is
    /// there and up. It is told of these again.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        self.socket.is_sending()
    }
}

impl AsFd for BareQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Wrapper for BareQueue {
    type Inner = Socket;

    fn inner(&self) -> &Socket {
        &self.socket
    }
}
