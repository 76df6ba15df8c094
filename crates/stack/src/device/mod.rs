//! Where frames come from and go to: one small trait, and what implements it.
//!
//! | device | memory | what it is for |
//! | --- | --- | --- |
//! | [`xdp`] | shared with the kernel, no copy of ours | real interfaces, also beside the kernel's stack |
//! | [`packet`] | a ring of the kernel, one copy | interfaces without XDP |
//! | [`tap`] (also TUN) | a system call and a copy per frame | this machine alone, tests with ordinary tools |
//! | [`simulated`] | this process | tests, no privileges |
//! | [`vlan`] | that of the device inside | one VLAN of any device |
//! | [`recording`], [`faulty`] | those of the device inside | captures; loss, duplication, reordering, corruption |
//!
//! A device never blocks. Each direction has a lock of its own, held for a
//! batch, so one thread may receive while others send.

pub mod faulty;
pub mod packet;
mod pool;
pub mod recording;
pub mod simulated;
pub mod tap;
pub mod vlan;
mod wrapper;
pub mod xdp;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;

pub use plimsoll_core::demux::Protocol;
pub use pool::{Allocator, Frame, HEADROOM_BYTES, Pool};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Frames on their way. Receivers append at the back, transmitters take from
/// the front. Give it the capacity of a batch once: nothing allocates then.
pub type Batch = VecDeque<Frame>;

/// What a device is and can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its Ethernet address, or the one the stack should take beside it.
    pub mac: Mac,
    /// The longest IP packet a frame carries, in bytes.
    pub mtu: usize,
    /// Transport checksums of received frames are right, or were left to the
    /// adapter by a sender on this machine and must not be checked.
    pub checksums_verified: bool,
    /// The device itself can steer frames to sockets of their own
    /// ([`Device::open_endpoint`]).
    pub steers: bool,
    /// Who is at the other end of a link of two: nobody is asked for Ethernet addresses.
    pub peer: Option<Mac>,
    /// Frames reach our memory, and leave it, without being copied.
    pub zero_copy: bool,
}

impl Capabilities {
    /// Those of a device without a demultiplexer that checks nothing.
    const fn plain(mac: Mac, mtu: usize) -> Self {
        Self {
            mac,
            mtu,
            checksums_verified: false,
            steers: false,
            peer: None,
            zero_copy: false,
        }
    }
}

/// Frames that the device had to drop before anybody here saw them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// The receive ring was full.
    pub ring_full: u64,
    /// The receive ring or the connection's channel had no room, or the listener's backlog was
    /// full, and whoever steers knew it: dropped before a copy was made.
    pub early: u64,
    /// There was no buffer to receive into.
    pub no_buffer: u64,
    /// Not a frame: too long for a buffer, or an entry of a ring that pointed
    /// outside of its frame.
    pub invalid: u64,
    /// For a port of ours that nobody bound, or for a listener and of no connection, beyond as
    /// many as are answered.
    pub stray: u64,
    /// Without the tag of the one VLAN that this is ([`vlan::Vlan`]).
    pub other_vlan: u64,
}

impl Drops {
    /// All of them.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        let Self {
            ring_full,
            early,
            no_buffer,
            invalid,
            stray,
            other_vlan,
        } = self;
        *ring_full + *early + *no_buffer + *invalid + *stray + *other_vlan
    }
}

/// What a device's own demultiplexer steers to a socket of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The transport protocol.
    pub protocol: Protocol,
    /// Address (or wildcard) and port.
    pub local: SocketAddr,
}

/// Whose SYNs a listener takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Everybody's.
    All,
    /// Those of [known sources](Device::know_source) alone, and not without a bound. The device may
    /// [answer](Device::know_cookies) others, or all.
    Known,
    /// Nobody's.
    None,
}

/// How listeners answer SYNs with cookies (`tcp/cookie.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieAnswers {
    /// Of the hash that is in a cookie.
    pub key: [u64; 2],
    /// Listeners do answer.
    pub are_given: bool,
    /// What an answer offers.
    pub window: u16,
    /// The largest segments that the stack takes, of IPv4 and of IPv6.
    pub segments: [u16; 2],
}

/// A channel of TCP's in a device's own demultiplexer: its frames come with the device's
/// others, but only as long as there is room for them. Dropping it ends that.
pub trait Channel: Send + Sync + fmt::Debug {
    /// So many more frames of a connection may come.
    fn set_room(&self, frames: u32) {
        let _ = frames;
    }

    /// Of what begins a connection with a listener, this may come.
    fn set_takes(&self, takes: Takes) {
        let _ = takes;
    }

    /// Some last segments of a connection may come when this is dropped: they have a limit of their own,
    /// and not that of segments of no connection.
    fn await_last(&self) {}

    /// Frames that were dropped so far since there was no room.
    fn refused(&self) -> u64 {
        0
    }
}

/// How often it is asked whether an interface is still there, where nobody tells.
const PRESENCE_LOOK: Duration = Duration::from_secs(1);

/// There is no interface to the socket any more.
fn gone() -> io::Error {
    let why = "the interface is gone: it was deleted, or moved to another network namespace";
    io::Error::new(io::ErrorKind::NotFound, why)
}

/// Who reads what came for the endpoints that were [claimed](Device::claim).
pub trait Readers: Send + Sync + fmt::Debug {
    /// Frames for the endpoint that were taken off its queue so far; those of all queues where
    /// several share it. `None`: nobody has it.
    fn taken(&self, endpoint: Endpoint) -> Option<u64>;
}

/// A source and sink of Ethernet frames.
pub trait Device: Send + Sync + fmt::Debug {
    /// What it is and can do.
    fn capabilities(&self) -> Capabilities;

    /// The memory that its frames are made of.
    fn pool(&self) -> &Arc<Pool>;

    /// Appends up to `max` received frames to `batch` and returns how many.
    ///
    /// # Errors
    ///
    /// The device is gone or broken. Frames that cannot be taken are drops, no
    /// errors.
    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize>;

    /// Sends frames from the front of `batch` and returns how many; what stays
    /// there found no room now.
    ///
    /// # Errors
    ///
    /// The device is broken, or gone ([`io::ErrorKind::NotFound`]).
    fn transmit(&self, batch: &mut Batch) -> io::Result<usize>;

    /// As [`transmit`](Self::transmit), but frames may wait here until that is called next, with
    /// or without others. For whoever sends more soon, or holds a lock that others want.
    ///
    /// # Errors
    ///
    /// As there.
    fn enqueue(&self, batch: &mut Batch) -> io::Result<usize> {
        self.transmit(batch)
    }

    /// Whether a frame that is to be sent would find room now, as far as the device knows. Asked
    /// after one that found none.
    fn has_room(&self) -> bool {
        true
    }

    /// Readable while received frames wait. To be waited for with poll(2).
    fn readiness(&self) -> BorrowedFd<'_>;

    /// Readable while queries about multicast groups wait that [`receive`](Self::receive) does not
    /// give, since they are the kernel's as well. `None`: it gives all.
    fn queries(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Copies one of them, from the Ethernet header on and without a VLAN tag, and returns its
    /// length. What does not fit is cut.
    fn receive_query(&self, buffer: &mut [u8]) -> Option<usize> {
        let _ = buffer;
        None
    }

    /// Does what is due although nothing arrives. Whoever waits for
    /// [`readiness`](Self::readiness) calls it before, and again after the time that it tells, or
    /// has another thread do it.
    /// `None`: nothing ever is.
    ///
    /// # Errors
    ///
    /// The device is gone.
    fn tend(&self) -> io::Result<Option<Duration>> {
        Ok(None)
    }

    /// Frames dropped so far by the device.
    fn drops(&self) -> Drops;

    /// Frames that [`transmit`](Self::transmit) took and that did not leave: the link was down, or
    /// does not take frames of this length, or the driver gave them back neither within seconds
    /// nor when it was woken again.
    fn unsent(&self) -> u64 {
        0
    }

    /// A socket of its own for what arrives for `endpoint`. Dropping it ends
    /// the steering.
    ///
    /// # Errors
    ///
    /// `Unsupported` unless [`Capabilities::steers`]; otherwise why not.
    fn open_endpoint(&self, endpoint: Endpoint) -> io::Result<Arc<dyn Device>> {
        let _ = endpoint;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// As [`open_endpoint`](Self::open_endpoint), beside other sockets that were opened so for
    /// the same endpoint: each flow's frames go to one of them.
    ///
    /// # Errors
    ///
    /// As there.
    fn open_member(&self, endpoint: Endpoint) -> io::Result<Arc<dyn Device>> {
        let _ = endpoint;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// A channel for a TCP connection, `ends` being here and there, with room for so many frames.
    ///
    /// # Errors
    ///
    /// `Unsupported` unless [`Capabilities::steers`]. `OutOfMemory`: there are no more.
    fn open_connection(
        &self,
        ends: (SocketAddr, SocketAddr),
        frames: u32,
    ) -> io::Result<Arc<dyn Channel>> {
        let _ = (ends, frames);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// A channel for a TCP listener, in place of [`claim`](Self::claim). If not all connections
    /// [have one](Self::open_all_connections), what it does not [answer](Self::know_cookies) itself comes here.
    ///
    /// # Errors
    ///
    /// `Unsupported` unless [`Capabilities::steers`]; otherwise why not.
    fn open_listener(&self, endpoint: Endpoint) -> io::Result<Arc<dyn Channel>> {
        let _ = endpoint;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whoever has this address has ended a handshake. Listeners may take its SYNs before those of others
    /// ([`Takes::Known`]).
    fn know_source(&self, source: IpAddr) {
        let _ = source;
    }

    /// From now on at most so many frames are lent to be received into. Those that are lent
    /// already stay so until they are filled. False: this device lends none.
    fn set_credit(&self, frames: u32) -> bool {
        let _ = frames;
        false
    }

    /// From now on only frames of this VLAN are asked for; they come with their tags. A device
    /// that shares its interface with the kernel leaves it the others.
    ///
    /// # Errors
    ///
    /// The device cannot do it.
    fn select_vlan(&self, id: u16) -> io::Result<()> {
        let _ = id;
        Ok(())
    }

    /// `address` is one of the stack's from now on: a device that shares its interface with the
    /// kernel takes over what is for it and for an endpoint at any address.
    ///
    /// # Errors
    ///
    /// There is no room. [`Error::KernelsAddress`]: the kernel has it, and the device shares none.
    /// [`Error::Config`]: the device shares the kernel's, and it has it not.
    fn add_address(&self, address: IpAddr) -> Result<(), Error> {
        let _ = address;
        Ok(())
    }

    /// `address` is that of all hosts of one of the stack's networks. Told after its own addresses: a device
    /// that answers SYNs by itself answers none from there.
    ///
    /// # Errors
    ///
    /// There is no room.
    fn add_broadcast(&self, address: Ipv4Addr) -> Result<(), Error> {
        let _ = address;
        Ok(())
    }

    /// From now on each TCP connection is [opened](Self::open_connection), so a segment of none
    /// and for no listener is for nobody, or of a connection in TIME_WAIT or one that was closed
    /// here and waits for the peer's end alone.
    ///
    /// # Errors
    ///
    /// The device cannot do it.
    fn open_all_connections(&self) -> io::Result<()> {
        Ok(())
    }

    /// This is how listeners answer SYNs with cookies. Whoever limits what comes for a
    /// [listener](Self::open_listener) and belongs to no connection may let pass what brings one back. And
    /// it may answer SYNs itself where a listener takes those of [known sources](Takes::Known) alone.
    ///
    /// # Errors
    ///
    /// The device cannot do it.
    fn know_cookies(&self, answers: &CookieAnswers) -> io::Result<()> {
        let _ = answers;
        Ok(())
    }

    /// Whether it [answers](Self::know_cookies) SYNs itself now, as far as it knows.
    fn answers_syns(&self) -> bool {
        false
    }

    /// SYNs that it has answered so far.
    fn answered_syns(&self) -> u64 {
        0
    }

    /// `endpoint` is served here from now on: a device that shares its
    /// interface with the kernel takes over its frames.
    ///
    /// # Errors
    ///
    /// Another program has the endpoint, or there is no room.
    fn claim(&self, endpoint: Endpoint) -> io::Result<()> {
        let _ = endpoint;
        Ok(())
    }

    /// Who reads what is [claimed](Self::claim): a device that steers may ask how much of it is taken.
    fn know_readers(&self, readers: Arc<dyn Readers>) {
        drop(readers);
    }

    /// Whether all frames for the stack's addresses come here, also those to
    /// ports that nobody claimed.
    fn owns_address(&self) -> bool {
        true
    }

    /// Ends what [`claim`](Self::claim) began.
    fn release(&self, endpoint: Endpoint) {
        let _ = endpoint;
    }
}
