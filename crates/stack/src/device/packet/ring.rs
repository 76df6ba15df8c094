//! The socket and the ring of `AF_PACKET` (`TPACKET_V3`): all that is shared with the
//! kernel, and the checks of what it writes there.

#![allow(unsafe_code, reason = "a ring shared with the kernel")]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::socket::{getsockopt, sockopt};

use crate::device::gone;
use crate::error::Error;

/// The kernel wants to know; blocks of version 3 are not divided by it.
const FRAME_BYTES: usize = 2048;

/// Offsets in a `tpacket_block_desc` (`linux/if_packet.h`).
const BLOCK_STATUS: usize = 8;
const BLOCK_PACKETS: usize = 12;
const BLOCK_FIRST: usize = 16;

/// `TPACKET_ALIGN(sizeof(struct tpacket3_hdr))`: a `sockaddr_ll` follows.
const ADDRESS_AT: usize = 48;
/// `sll_pkttype` in it.
const PACKET_TYPE_AT: usize = ADDRESS_AT + 10;
/// The tag's protocol where the kernel does not tell: 802.1Q.
const VLAN_PROTOCOL: u16 = 0x8100;

/// How large a ring is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    /// A multiple of the page size.
    pub(super) block_bytes: usize,
    pub(super) blocks: usize,
    /// After this time the kernel hands over a block that is not full.
    pub(super) block_timeout_ms: u32,
}

/// Where the next packet is.
#[derive(Debug)]
pub(super) struct Ring {
    memory: MmapRaw,
    geometry: Geometry,
    block: usize,
    /// Of the block at hand: offset of the next packet, and how many are left.
    next: usize,
    left: u32,
}

pub(super) fn open_socket() -> Result<OwnedFd, Error> {
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

pub(super) fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> Result<(), Error> {
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

pub(super) fn bind(socket: &OwnedFd, index: u32) -> Result<(), Error> {
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

/// Tells the adapter of interface `index` what it is to receive (`what`: `PACKET_ADD_MEMBERSHIP` or
/// `PACKET_DROP_MEMBERSHIP`) as long as the socket is there: `kind` of frames, to `mac` if that
/// needs one.
pub(super) fn tell_adapter(
    socket: &OwnedFd,
    what: libc::c_int,
    index: u32,
    kind: libc::c_int,
    mac: &[u8],
) -> Result<(), Error> {
    let mut address = [0; 8];
    address[..mac.len()].copy_from_slice(mac);
    let request = libc::packet_mreq {
        mr_ifindex: index.cast_signed(),
        mr_type: kind as u16,
        mr_alen: mac.len() as u16,
        mr_address: address,
    };
    set(socket, what, &request)
}

/// Takes the error that a link leaves when it goes down: until then the socket counts as ready.
/// Fails if there is no interface any more.
pub(super) fn tend(socket: &OwnedFd) -> io::Result<()> {
    // Of a link that is down nothing arrives, which is no failure.
    let _ = getsockopt(socket, sockopt::SocketError);
    // SAFETY: a `sockaddr_ll` of zeros is valid: it consists of integers.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes there.
    let result = unsafe {
        let address = (&raw mut address).cast();
        libc::getsockname(socket.as_raw_fd(), address, &raw mut length)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // `packet_notifier`: the socket of a deleted interface belongs to none.
    if address.sll_ifindex < 0 {
        return Err(gone());
    }
    Ok(())
}

/// What the kernel has counted since the last reading.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Statistics {
    /// Packets that passed the socket's filter, also those that were dropped.
    pub(super) passed: u32,
    /// The ring was full.
    pub(super) dropped: u32,
}

/// Reads the kernel's counters, which start anew each time.
pub(super) fn statistics(socket: &OwnedFd) -> Statistics {
    // SAFETY: a `tpacket_stats_v3` of zeros is valid: it consists of integers.
    let mut statistics: libc::tpacket_stats_v3 = unsafe { mem::zeroed() };
    let mut length = size_of::<libc::tpacket_stats_v3>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes there.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut statistics).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Statistics::default();
    }
    Statistics {
        passed: statistics.tp_packets,
        dropped: statistics.tp_drops,
    }
}

impl Ring {
    /// Gives `socket` a ring. It fills from the time the socket is bound.
    pub(super) fn new(socket: &OwnedFd, geometry: Geometry) -> Result<Self, Error> {
        set(
            socket,
            libc::PACKET_VERSION,
            &libc::tpacket_versions::TPACKET_V3,
        )?;
        let bytes = geometry.blocks * geometry.block_bytes;
        let request = libc::tpacket_req3 {
            tp_block_size: geometry.block_bytes as u32,
            tp_block_nr: geometry.blocks as u32,
            tp_frame_size: FRAME_BYTES as u32,
            tp_frame_nr: (bytes / FRAME_BYTES) as u32,
            tp_retire_blk_tov: geometry.block_timeout_ms,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set(socket, libc::PACKET_RX_RING, &request)?;
        let memory = MmapOptions::new()
            .len(bytes)
            .map_raw(socket)
            .map_err(Error::io("map a packet socket's ring"))?;
        Ok(Self::over(memory, geometry))
    }

    /// The ring that fills `memory`.
    fn over(memory: MmapRaw, geometry: Geometry) -> Self {
        assert!(memory.len() >= geometry.blocks * geometry.block_bytes);
        Self {
            memory,
            geometry,
            block: 0,
            next: 0,
            left: 0,
        }
    }

    /// Shows up to `max` packets to `each`, and one that it has not done with (false) again at
    /// the next visit. Returns how many were done with, and how many more were given up because
    /// the ring made no sense.
    pub(super) fn visit(
        &mut self,
        max: usize,
        mut each: impl FnMut(Entry<'_>) -> bool,
    ) -> (usize, u64) {
        let (mut budget, mut seen, mut invalid) = (max, 0, 0);
        while budget > 0 {
            let Some(block) = self.block() else { break };
            let (mut next, mut left) = (self.next, self.left);
            if next == 0 {
                next = word(block, BLOCK_FIRST).map_or(0, |first| first as usize);
                left = word(block, BLOCK_PACKETS).unwrap_or(0);
                // Bounded also where blocks are empty.
                budget -= usize::from(left == 0);
            }
            while budget > 0 && left > 0 {
                let Some(entry) = Entry::at(block, next) else {
                    invalid += u64::from(left);
                    left = 0;
                    break;
                };
                let after = entry.next;
                if !each(entry) {
                    budget = 0;
                    break;
                }
                (next, left) = (after, left - 1);
                (budget, seen) = (budget - 1, seen + 1);
            }
            (self.next, self.left) = (next, left);
            if left == 0 {
                self.give_back();
            }
        }
        (seen, invalid)
    }

    fn status(&self) -> &AtomicU32 {
        let offset = self.block * self.geometry.block_bytes + BLOCK_STATUS;
        // SAFETY: `block` is below the number of blocks, so the word is inside the
        // mapping, aligned, and accessed atomically by both sides.
        unsafe { &*self.at(offset).cast::<AtomicU32>() }
    }

    /// The block at hand, if the kernel has handed it over.
    fn block(&self) -> Option<&[u8]> {
        if self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let bytes = self.geometry.block_bytes;
        // SAFETY: inside the mapping, and the kernel writes nothing there until
        // the block is given back, which takes `&mut self`.
        let block = unsafe { std::slice::from_raw_parts(self.at(self.block * bytes), bytes) };
        Some(block)
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.memory.as_mut_ptr().wrapping_add(offset)
    }

    fn give_back(&mut self) {
        self.status()
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.block = (self.block + 1) % self.geometry.blocks;
        (self.next, self.left) = (0, 0);
    }
}

/// What the kernel says of a packet's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checksum {
    /// Nothing.
    Unknown,
    /// It was right, before the kernel or the adapter changed the packet.
    Checked,
    /// It was right, or of a sender on this machine, and has to be written.
    Left,
}

impl Checksum {
    const fn of(status: u32) -> Self {
        match status {
            left if left & libc::TP_STATUS_CSUMNOTREADY != 0 => Self::Left,
            checked if checked & libc::TP_STATUS_CSUM_VALID != 0 => Self::Checked,
            _ => Self::Unknown,
        }
    }
}

/// A packet in a block, checked against the block's bounds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    /// Nanoseconds since 1970.
    pub(super) at_ns: u64,
    /// As much of the frame as the socket's filter let through.
    pub(super) bytes: &'a [u8],
    /// Length of the frame.
    pub(super) whole: usize,
    /// Protocol and tag that the kernel has taken out of the frame.
    pub(super) vlan: Option<[u16; 2]>,
    /// `PACKET_OUTGOING` and the like.
    pub(super) packet_type: u8,
    pub(super) checksum: Checksum,
    next: usize,
}

impl<'a> Entry<'a> {
    /// The `tpacket3_hdr` at `at`; nothing if it, or its packet, leaves the block.
    fn at(block: &'a [u8], at: usize) -> Option<Self> {
        let header = block.get(at..)?;
        let next = word(header, 0)? as usize;
        let (seconds, nanos) = (word(header, 4)?, word(header, 8)?);
        let (present, whole) = (word(header, 12)? as usize, word(header, 16)? as usize);
        let status = word(header, 20)?;
        let mac = usize::from(half(header, 24)?);
        let tag = half(header, 32)?;
        let protocol = match status & libc::TP_STATUS_VLAN_TPID_VALID {
            0 => VLAN_PROTOCOL,
            _ => half(header, 36)?,
        };
        Some(Self {
            at_ns: u64::from(seconds) * 1_000_000_000 + u64::from(nanos),
            bytes: header.get(mac..mac.checked_add(present)?)?,
            whole,
            vlan: (status & libc::TP_STATUS_VLAN_VALID != 0).then_some([protocol, tag]),
            packet_type: *header.get(PACKET_TYPE_AT)?,
            checksum: Checksum::of(status),
            next: at.checked_add(next)?,
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let half = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(half.try_into().ok()?))
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
    fn an_entry_within_its_block_is_a_packet() {
        let mut block = block(100, 60, 90, libc::TP_STATUS_USER, 80);
        block[52..56].copy_from_slice(&7_u32.to_ne_bytes());
        block[56..60].copy_from_slice(&9_u32.to_ne_bytes());
        let entry = Entry::at(&block, 48).unwrap();
        assert_eq!((entry.bytes.len(), entry.whole, entry.next), (60, 90, 148));
        assert_eq!((entry.at_ns, entry.vlan), (7_000_000_009, None));
    }

    /// Two blocks in memory of this process, which Miri can follow; what the kernel would do.
    struct Trial(Ring);

    impl Trial {
        fn new() -> Self {
            let geometry = Geometry {
                block_bytes: 256,
                blocks: 2,
                block_timeout_ms: 1,
            };
            let memory = MmapOptions::new().len(2 * 256).map_anon().unwrap();
            Self(Ring::over(memory.into(), geometry))
        }

        /// Hands `block` over with so many packets in this place.
        fn fill(&self, place: usize, block: &[u8], packets: u32) {
            let mut block = block.to_vec();
            for (at, value) in [(BLOCK_PACKETS, packets), (BLOCK_FIRST, 48)] {
                block[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            }
            block[BLOCK_STATUS..BLOCK_STATUS + 4]
                .copy_from_slice(&libc::TP_STATUS_USER.to_ne_bytes());
            let to = self.0.at(place * 256);
            // SAFETY: a block within the mapping, of which nobody has a reference.
            unsafe { to.copy_from_nonoverlapping(block.as_ptr(), block.len()) };
        }

        /// Lengths of the frames that are seen, and how many were given up.
        fn see(&mut self, max: usize) -> (Vec<usize>, u64) {
            let mut seen = Vec::new();
            let (done, invalid) = self.0.visit(max, |entry| {
                seen.push(entry.whole);
                true
            });
            assert_eq!(done, seen.len());
            (seen, invalid)
        }
    }

    #[test]
    fn blocks_are_seen_in_turn_and_go_back_when_they_are_done_with() {
        let mut trial = Trial::new();
        assert_eq!(trial.see(9), (vec![], 0), "nothing was handed over");
        for lap in 0..3 {
            // Of two packets in a block both are the one at 48: the next one's offset is 0.
            trial.fill(0, &block(0, 60, 90 + lap, 0, 80), 2);
            trial.fill(1, &block(0, 60, 80 + lap, 0, 80), 1);
            let (one, other) = (90 + lap as usize, 80 + lap as usize);
            assert_eq!(trial.see(1), (vec![one], 0));
            assert_eq!(trial.see(9), (vec![one, other], 0));
            assert_eq!(trial.see(9), (vec![], 0), "both are the kernel's again");
        }
    }

    #[test]
    fn the_rest_of_a_block_that_makes_no_sense_is_given_up() {
        let mut trial = Trial::new();
        trial.fill(0, &block(u32::MAX, 60, 90, 0, 80), 3);
        trial.fill(1, &block(0, u32::MAX, 90, 0, 80), 4);
        assert_eq!(trial.see(9), (vec![90], 2 + 4));
        assert_eq!(trial.see(9), (vec![], 0));
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
    fn a_tag_is_told_with_its_protocol() {
        let status = libc::TP_STATUS_VLAN_VALID;
        let mut tagged = block(0, 60, 60, status, 80);
        tagged[80..82].copy_from_slice(&7_u16.to_ne_bytes());
        tagged[84..86].copy_from_slice(&0x88a8_u16.to_ne_bytes());
        let vlan = |block: &[u8]| Entry::at(block, 48).unwrap().vlan;
        assert_eq!(vlan(&tagged), Some([0x8100, 7]));
        let status = status | libc::TP_STATUS_VLAN_TPID_VALID;
        tagged[68..72].copy_from_slice(&status.to_ne_bytes());
        assert_eq!(vlan(&tagged), Some([0x88a8, 7]));
    }
}
