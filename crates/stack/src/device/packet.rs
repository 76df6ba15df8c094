//! `AF_PACKET` with a receive ring (`TPACKET_V3`): any interface, without XDP.
//!
//! The kernel's stack sees the same frames, so the stack must have an address of
//! its own that the kernel does not have. The kernel fills blocks of many
//! frames and hands a block over when it is full or 1 ms old; frames are copied
//! out of it, since a block can only be given back as a whole.
//!
//! Frames with a VLAN tag are invalid here: the kernel takes the tag out, and
//! without it they would seem to belong to the untagged network.

#![allow(unsafe_code, reason = "a ring shared with the kernel")]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::socket::{MsgFlags, send};
use parking_lot::Mutex;

use super::simulated::chunk_bytes_for;
use super::{Batch, Capabilities, Device, Drops, Mac, Pool};
use crate::error::Error;
use crate::interface;

const BLOCK_BYTES: usize = 1 << 18;
const BLOCKS: usize = 16;
/// The kernel wants to know; blocks of version 3 are not divided by it.
const FRAME_BYTES: usize = 2048;
/// After this time the kernel hands over a block that is not full.
const BLOCK_TIMEOUT_MS: u32 = 1;
const CHUNKS: usize = 8192;

/// Offsets in a `tpacket_block_desc` (`linux/if_packet.h`).
const BLOCK_STATUS: usize = 8;
const BLOCK_PACKETS: usize = 12;
const BLOCK_FIRST: usize = 16;

/// A socket that receives all frames of an interface.
#[derive(Debug)]
pub struct PacketDevice {
    socket: OwnedFd,
    mac: Mac,
    mtu: usize,
    pool: Arc<Pool>,
    ring: Mutex<Ring>,
    no_buffer: AtomicU64,
    invalid: AtomicU64,
    ring_full: AtomicU64,
}

#[derive(Debug)]
struct Ring {
    memory: MmapRaw,
    block: usize,
    /// Of the block at hand: offset of the next packet, and how many are left.
    next: usize,
    left: u32,
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
        let socket = open_socket()?;
        let ring = Ring::new(&socket)?;
        bind(&socket, index)?;
        let pool = Pool::new(CHUNKS, chunk_bytes_for(mtu));
        Ok(Self {
            socket,
            mac,
            mtu,
            pool: pool.map_err(Error::io("get memory for frames"))?,
            ring: Mutex::new(ring),
            no_buffer: AtomicU64::new(0),
            invalid: AtomicU64::new(0),
            ring_full: AtomicU64::new(0),
        })
    }
}

fn open_socket() -> Result<OwnedFd, Error> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // No protocol yet: nothing is received before the ring is there.
    // SAFETY: takes numbers only.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if socket < 0 {
        let open = Error::privileged("open a packet socket", "CAP_NET_RAW");
        return Err(open(io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> Result<(), Error> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `value`, which lives.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(());
    }
    Err(Error::io("set up a packet socket")(
        io::Error::last_os_error(),
    ))
}

fn bind(socket: &OwnedFd, index: u32) -> Result<(), Error> {
    // SAFETY: a `sockaddr_ll` of zeros is valid: it consists of integers.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index.cast_signed();
    // SAFETY: the kernel reads one `sockaddr_ll`, which lives.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(());
    }
    Err(Error::io("bind a packet socket")(io::Error::last_os_error()))
}

impl Ring {
    fn new(socket: &OwnedFd) -> Result<Self, Error> {
        set(
            socket,
            libc::PACKET_VERSION,
            &libc::tpacket_versions::TPACKET_V3,
        )?;
        // Own transmissions are not to be received.
        set(socket, libc::PACKET_IGNORE_OUTGOING, &1_i32)?;
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: BLOCKS as u32,
            tp_frame_size: FRAME_BYTES as u32,
            tp_frame_nr: (BLOCKS * BLOCK_BYTES / FRAME_BYTES) as u32,
            tp_retire_blk_tov: BLOCK_TIMEOUT_MS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set(socket, libc::PACKET_RX_RING, &request)?;
        let memory = MmapOptions::new()
            .len(BLOCKS * BLOCK_BYTES)
            .map_raw(socket)
            .map_err(Error::io("map a packet socket's ring"))?;
        Ok(Self {
            memory,
            block: 0,
            next: 0,
            left: 0,
        })
    }

    fn status(&self) -> &AtomicU32 {
        let offset = self.block * BLOCK_BYTES + BLOCK_STATUS;
        // SAFETY: `block` is below `BLOCKS`, so the word is inside the mapping,
        // aligned, and accessed atomically by both sides.
        unsafe { &*self.at(offset).cast::<AtomicU32>() }
    }

    /// The block at hand, if the kernel has handed it over.
    fn block(&self) -> Option<&[u8]> {
        if self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: inside the mapping, and the kernel writes nothing there until
        // the block is given back, which takes `&mut self`.
        let block =
            unsafe { std::slice::from_raw_parts(self.at(self.block * BLOCK_BYTES), BLOCK_BYTES) };
        Some(block)
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.memory.as_mut_ptr().wrapping_add(offset)
    }

    fn give_back(&mut self) {
        self.status()
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.block = (self.block + 1) % BLOCKS;
        (self.next, self.left) = (0, 0);
    }
}

/// A packet in a block, checked against the block's bounds.
#[derive(Debug, PartialEq, Eq)]
struct Entry<'a> {
    /// `None`: not a frame that can be received here.
    frame: Option<&'a [u8]>,
    next: usize,
}

impl<'a> Entry<'a> {
    /// The `tpacket3_hdr` at `at`; nothing if it, or its packet, leaves the block.
    fn at(block: &'a [u8], at: usize) -> Option<Self> {
        let header = block.get(at..)?;
        let next = word(header, 0)? as usize;
        let (present, whole) = (word(header, 12)? as usize, word(header, 16)? as usize);
        let status = word(header, 20)?;
        let mac = usize::from(u16::from_ne_bytes(header.get(24..26)?.try_into().ok()?));
        let bytes = header.get(mac..mac.checked_add(present)?)?;
        let receivable = present == whole && status & libc::TP_STATUS_VLAN_VALID == 0;
        Some(Self {
            frame: receivable.then_some(bytes),
            next: at.checked_add(next)?,
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?))
}

impl PacketDevice {
    /// Copies the next packet; false if there is none now.
    fn receive_one(&self, ring: &mut Ring, batch: &mut Batch) -> bool {
        let Some(block) = ring.block() else {
            return false;
        };
        let (mut next, mut left) = (ring.next, ring.left);
        if next == 0 {
            next = word(block, BLOCK_FIRST).map_or(0, |first| first as usize);
            left = word(block, BLOCK_PACKETS).unwrap_or(0);
        }
        let entry = Entry::at(block, next).filter(|_| left > 0);
        if let Some(entry) = &entry {
            self.copy(entry.frame, batch);
            (next, left) = (entry.next, left - 1);
        } else if left > 0 {
            self.invalid.fetch_add(left.into(), Ordering::Relaxed);
            left = 0;
        }
        (ring.next, ring.left) = (next, left);
        if left == 0 {
            ring.give_back();
        }
        true
    }

    fn copy(&self, bytes: Option<&[u8]>, batch: &mut Batch) {
        let Some(mut frame) = self.pool.take() else {
            self.no_buffer.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if bytes.is_some_and(|bytes| frame.copy_from(bytes)) {
            batch.push_back(frame);
        } else {
            self.invalid.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The kernel's count starts anew each time it is read.
    fn read_statistics(&self) {
        // SAFETY: a `tpacket_stats_v3` of zeros is valid: it consists of integers.
        let mut statistics: libc::tpacket_stats_v3 = unsafe { mem::zeroed() };
        let mut length = size_of::<libc::tpacket_stats_v3>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes there.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        if result == 0 {
            self.ring_full
                .fetch_add(statistics.tp_drops.into(), Ordering::Relaxed);
        }
    }
}

impl Device for PacketDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            mac: self.mac,
            mtu: self.mtu,
            checksums_verified: false,
            steers: false,
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        let mut ring = self.ring.lock();
        let before = batch.len();
        // Bounded also where nothing can be received.
        for _ in 0..max {
            if !self.receive_one(&mut ring, batch) {
                break;
            }
        }
        Ok(batch.len() - before)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        let mut sent = 0;
        while let Some(frame) = batch.front() {
            match send(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT) {
                Ok(_) => {}
                Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::ENOBUFS) => break,
                Err(nix::errno::Errno::ENETDOWN) => {}
                Err(error) => return Err(error.into()),
            }
            batch.pop_front();
            sent += 1;
        }
        Ok(sent)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn drops(&self) -> Drops {
        self.read_statistics();
        Drops {
            ring_full: self.ring_full.load(Ordering::Relaxed),
            no_buffer: self.no_buffer.load(Ordering::Relaxed),
            invalid: self.invalid.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block with one header at 48 and these fields.
    fn block(next: u32, present: u32, whole: u32, status: u32, mac: u16) -> Vec<u8> {
        let mut block = vec![0; 256];
        for (at, value) in [(0, next), (12, present), (16, whole), (20, status)] {
            block[48 + at..52 + at].copy_from_slice(&value.to_ne_bytes());
        }
        block[72..74].copy_from_slice(&mac.to_ne_bytes());
        block
    }

    #[test]
    fn an_entry_within_its_block_is_a_frame() {
        let block = block(100, 60, 60, libc::TP_STATUS_USER, 80);
        let entry = Entry::at(&block, 48).unwrap();
        assert_eq!((entry.frame.unwrap().len(), entry.next), (60, 148));
    }

    #[test]
    fn entries_that_leave_their_block_are_none() {
        for (at, hostile) in [
            (48, block(0, 200, 200, 1, 80)),
            (48, block(0, u32::MAX, u32::MAX, 1, 80)),
            (48, block(0, 60, 60, 1, u16::MAX)),
            (250, block(0, 0, 0, 1, 0)),
            (usize::MAX, block(0, 0, 0, 1, 0)),
        ] {
            assert_eq!(Entry::at(&hostile, at), None);
        }
    }

    #[test]
    fn cut_and_tagged_frames_are_not_received() {
        for block in [
            block(0, 60, 1514, 1, 80),
            block(0, 60, 60, 1 | libc::TP_STATUS_VLAN_VALID, 80),
        ] {
            assert_eq!(Entry::at(&block, 48).unwrap().frame, None);
        }
    }
}
