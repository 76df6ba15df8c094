//! `AF_PACKET` with a receive ring (`TPACKET_V3`): any interface, without XDP.
//!
//! The kernel's stack sees the same frames, so the stack must have an address of
//! its own: one that the kernel has is refused. The kernel fills blocks of many
//! frames and hands a block over when it is full or 1 ms old; frames are copied
//! out of it, since a block can only be given back as a whole.
//!
//! The kernel shows frames as its own stack gets them. So segments of TCP that it merged (GRO), or
//! that a sender on this machine left to its adapter (TSO), are cut here, and their checksums,
//! which nobody wrote, are written. Not so UDP's: where merged datagrams end is not told.
//!
//! The kernel takes VLAN tags out of frames; they are put back, since without them frames
//! would seem to belong to the untagged network. Not so those that name no VLAN, but a priority
//! alone: to the kernel's own stack such frames are untagged as well.

mod hearing;
mod monitor;
mod overhearing;
mod ring;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use parking_lot::Mutex;

pub(in crate::device) use self::hearing::Hearing;
pub use self::hearing::Promiscuous;
pub use self::monitor::{Arrival, Instruction, MonitorConfig, MonitorCounts, PacketMonitor};
pub(in crate::device) use self::overhearing::Overhearing;
use self::ring::{Checksum, Entry, Geometry, Ring};
use super::simulated::chunk_bytes_for;
use super::vlan::{insert_tag, names_vlan};
use super::{
    Batch, Capabilities, Device, Drops, Endpoint, Frame, HEADROOM_BYTES, Mac, PRESENCE_LOOK, Pool,
    gone,
};
use crate::error::Error;
use crate::interface::{self, KernelBeside};
use crate::wait;
use crate::wire::ETHERNET_BYTES;
use crate::wire::segment::{Long, write_checksum};

/// 16 MiB. A block has room for the longest merged frame, and is handed over with one as well: so
/// many blocks bridge as many milliseconds, however little arrives.
const GEOMETRY: Geometry = Geometry {
    block_bytes: 1 << 17,
    blocks: 128,
    block_timeout_ms: 1,
};
const CHUNKS: usize = 8192;

/// A socket that receives all frames of an interface.
#[derive(Debug)]
pub struct PacketDevice {
    socket: OwnedFd,
    mac: Mac,
    mtu: usize,
    pool: Arc<Pool>,
    receiving: Mutex<Receiving>,
    no_buffer: AtomicU64,
    invalid: AtomicU64,
    ring_full: AtomicU64,
    unsent: AtomicU64,
    hearing: Hearing,
    kernel: KernelBeside,
}

#[derive(Debug)]
struct Receiving {
    ring: Ring,
    /// Pieces of the next entry that were received before.
    taken: usize,
}

impl PacketDevice {
    /// Opens `interface` of this network namespace.
    ///
    /// # Errors
    ///
    /// There is no such interface, it is not Ethernet, or this process lacks
    /// `CAP_NET_RAW`.
    pub fn open(interface: &str) -> Result<Self, Error> {
        let index = interface::index(interface)?;
        let (mac, mtu) = (interface::mac(interface)?, interface::mtu(interface)?);
        let socket = ring::open_socket()?;
        // Own transmissions are not to be received.
        ring::set(&socket, libc::PACKET_IGNORE_OUTGOING, &1_i32)?;
        let ring = Ring::new(&socket, GEOMETRY)?;
        ring::bind(&socket, index)?;
        let pool = Pool::new(CHUNKS, chunk_bytes_for(mtu));
        Ok(Self {
            socket,
            mac,
            mtu,
            pool: pool.map_err(Error::io("get memory for frames"))?,
            receiving: Mutex::new(Receiving { ring, taken: 0 }),
            no_buffer: AtomicU64::new(0),
            invalid: AtomicU64::new(0),
            ring_full: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            hearing: Hearing::open(index)?,
            kernel: KernelBeside::of(interface),
        })
    }

    /// As [`Device::receive`], with the moment at which the kernel saw each frame, in
    /// nanoseconds since 1970: a block is handed over later than that.
    pub fn receive_stamped(&self, max: usize, mut each: impl FnMut(u64, Frame)) {
        let mut left = max;
        let mut receiving = self.receiving.lock();
        let Receiving { ring, taken } = &mut *receiving;
        let (_, invalid) = ring.visit(max, |entry| {
            let merged = self.merged(&entry);
            let pieces = merged.map_or(1, |merged| merged.pieces());
            for piece in *taken..pieces {
                if left == 0 {
                    *taken = piece;
                    return false;
                }
                left -= 1;
                if let Some(frame) = self.copy(&entry, merged, piece) {
                    each(entry.at_ns, frame);
                }
            }
            *taken = 0;
            true
        });
        self.invalid.fetch_add(invalid, Ordering::Relaxed);
    }

    /// Of several segments in one frame; nothing if it is one packet, or nobody vouches for the
    /// checksum, which a piece has anew.
    fn merged(&self, entry: &Entry<'_>) -> Option<Long> {
        let is_long = entry.bytes.len() > ETHERNET_BYTES + self.mtu;
        let is_merged = is_long && entry.checksum != Checksum::Unknown;
        is_merged.then(|| Long::of(entry.bytes, self.mtu))?
    }

    fn copy(&self, entry: &Entry<'_>, merged: Option<Long>, piece: usize) -> Option<Frame> {
        let Some(mut frame) = self.pool.take() else {
            self.no_buffer.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let copied = match merged {
            Some(merged) => {
                frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + merged.bytes_of(piece));
                merged.write(entry.bytes, piece, &mut frame).is_some()
            }
            None => frame.copy_from(entry.bytes),
        };
        if copied && merged.is_none() && entry.checksum == Checksum::Left {
            write_checksum(&mut frame);
        }
        let whole = copied && entry.bytes.len() == entry.whole;
        let vlan = entry.vlan.filter(|tag| names_vlan(*tag));
        if whole && vlan.is_none_or(|tag| insert_tag(&mut frame, tag)) {
            return Some(frame);
        }
        self.invalid.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn send(&self, frame: &Frame) -> nix::Result<usize> {
        let send = || send(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT);
        match send() {
            // It may be what is left of a time when the link was down, and is told once.
            Err(Errno::ENETDOWN) => send(),
            sent => sent,
        }
    }
}

impl Device for PacketDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(self.mac, self.mtu)
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        let before = batch.len();
        self.receive_stamped(max, |_, frame| batch.push_back(frame));
        Ok(batch.len() - before)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        let mut sent = 0;
        while let Some(frame) = batch.front() {
            match self.send(frame) {
                Ok(_) => {}
                Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM) => break,
                // A cable that is not plugged in, or a frame that is too long for the interface as
                // it is now, or too short for any.
                Err(Errno::ENETDOWN | Errno::EMSGSIZE | Errno::EINVAL) => {
                    self.unsent.fetch_add(1, Ordering::Relaxed);
                }
                Err(Errno::ENXIO) => return Err(gone()),
                Err(error) => return Err(error.into()),
            }
            batch.pop_front();
            sent += 1;
        }
        Ok(sent)
    }

    fn has_room(&self) -> bool {
        wait::is_writable(self.socket.as_fd())
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Two system calls beside each that waits, and the kernel wakes once in a millisecond.
    fn tend(&self) -> io::Result<Option<Duration>> {
        ring::tend(&self.socket)?;
        Ok(Some(PRESENCE_LOOK))
    }

    fn add_address(&self, address: IpAddr) -> Result<(), Error> {
        self.kernel.refuse(address)?;
        self.hearing.add_address(address)
    }

    fn claim(&self, endpoint: Endpoint) -> io::Result<()> {
        match endpoint.local.ip() {
            group if group.is_multicast() => self.hearing.join(group),
            _ => Ok(()),
        }
    }

    fn release(&self, endpoint: Endpoint) {
        let group = endpoint.local.ip();
        if group.is_multicast() {
            self.hearing.leave(group);
        }
    }

    fn unsent(&self) -> u64 {
        self.unsent.load(Ordering::Relaxed)
    }

    fn drops(&self) -> Drops {
        let dropped = ring::statistics(&self.socket).dropped;
        self.ring_full.fetch_add(dropped.into(), Ordering::Relaxed);
        Drops {
            ring_full: self.ring_full.load(Ordering::Relaxed),
            no_buffer: self.no_buffer.load(Ordering::Relaxed),
            invalid: self.invalid.load(Ordering::Relaxed),
            ..Drops::default()
        }
    }
}
