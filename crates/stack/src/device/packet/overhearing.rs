//! What an interface receives for the kernel and for the stack alike: queries about multicast
//! groups. An XDP program cannot give a frame to both, so these stay the kernel's, and a packet
//! socket of their own sees them on their way.
//!
//! Its cost: from [`begin`](Overhearing::begin) on the kernel runs a filter of up to twenty instructions
//! on each frame of the interface that is left to it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, getsockopt, recv, sockopt};

use super::monitor::{Instruction, attach};
use super::ring;
use crate::error::Error;

/// A packet socket that receives nothing before it begins.
#[derive(Debug)]
pub(in crate::device) struct Overhearing {
    socket: OwnedFd,
    interface: u32,
    /// 0: none.
    vlan: AtomicU16,
    begun: OnceLock<()>,
}

impl Overhearing {
    /// By the index of the interface.
    pub(in crate::device) fn open(interface: u32) -> Result<Self, Error> {
        let socket = ring::open_socket()?;
        // Own transmissions are not to be received.
        ring::set(&socket, libc::PACKET_IGNORE_OUTGOING, &1_i32)?;
        Ok(Self {
            socket,
            interface,
            vlan: AtomicU16::new(0),
            begun: OnceLock::new(),
        })
    }

    /// Queries with this VLAN's tag are wanted, in place of those without any.
    pub(in crate::device) fn select_vlan(&self, id: u16) -> Result<(), Error> {
        self.vlan.store(id, Ordering::Relaxed);
        match self.begun.get() {
            Some(()) => attach(&self.socket, &queries_of(id)),
            None => Ok(()),
        }
    }

    /// Queries are received from now on.
    pub(in crate::device) fn begin(&self) -> Result<(), Error> {
        if self.begun.get().is_some() {
            return Ok(());
        }
        attach(&self.socket, &queries_of(self.vlan.load(Ordering::Relaxed)))?;
        ring::bind(&self.socket, self.interface)?;
        let _ = self.begun.set(());
        Ok(())
    }

    /// Copies one that waits, without a VLAN tag, and returns its length. What does not fit is cut.
    pub(in crate::device) fn receive(&self, buffer: &mut [u8]) -> Option<usize> {
        self.begun.get()?;
        match recv(self.socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(bytes) => Some(bytes),
            Err(Errno::EAGAIN) => None,
            Err(_) => {
                // What a link that goes down leaves: until then the socket counts as ready.
                let _ = getsockopt(&self.socket, sockopt::SocketError);
                None
            }
        }
    }
}

impl AsFd for Overhearing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

// Codes of instructions, and what the kernel knows beside the packet (`linux/filter.h`).
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE_AT_X: u16 = 0x50;
const LOAD_X_IPV4_HEADER: u16 = 0xb1;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const VLAN_TAG: u32 = 0xffff_f000 + 44;
const VLAN_TAG_PRESENT: u32 = 0xffff_f000 + 48;
/// Places in [`QUERIES`]: where IPv6 begins, "yes" and "no".
const IPV6: usize = 12;
const YES: usize = 19;
const NO: usize = 20;

const fn step(code: u16, operand: u32) -> Instruction {
    Instruction {
        code,
        jump_true: 0,
        jump_false: 0,
        operand,
    }
}

/// Of the instruction at `place`, which goes on with the next if the value is this.
const fn must_be(place: usize, value: u32, otherwise: usize) -> Instruction {
    Instruction {
        code: IF_EQUAL,
        jump_true: 0,
        jump_false: (otherwise - place - 1) as u8,
        operand: value,
    }
}

/// An IGMP query, or MLD behind options, to a group and with a hop limit of 1: what exactly it is its
/// reader finds out.
const QUERIES: [Instruction; NO + 1] = [
    step(LOAD_HALF, 12),
    must_be(1, libc::ETH_P_IP as u32, IPV6),
    step(LOAD_BYTE, 14 + 9),
    must_be(3, libc::IPPROTO_IGMP as u32, NO),
    step(LOAD_BYTE, 14 + 8),
    must_be(5, 1, NO),
    step(LOAD_BYTE, 14 + 16),
    step(AND, 0xf0),
    must_be(8, 0xe0, NO),
    step(LOAD_X_IPV4_HEADER, 14),
    step(LOAD_BYTE_AT_X, 14),
    Instruction {
        jump_true: (YES - 11 - 1) as u8,
        ..must_be(11, 0x11, NO)
    },
    must_be(IPV6, libc::ETH_P_IPV6 as u32, NO),
    // The next header and the hop limit.
    step(LOAD_HALF, 14 + 6),
    must_be(14, (libc::IPPROTO_HOPOPTS as u32) << 8 | 1, NO),
    step(LOAD_BYTE, 14 + 24),
    must_be(16, 0xff, NO),
    step(LOAD_BYTE, 14 + 40),
    must_be(18, libc::IPPROTO_ICMPV6 as u32, NO),
    step(RETURN, u32::MAX),
    step(RETURN, 0),
];

/// Those with the tag of a VLAN, or without any (0). The kernel has taken tags out of the frame.
fn queries_of(vlan: u16) -> Vec<Instruction> {
    let mut program = match vlan {
        0 => vec![step(LOAD_BYTE, VLAN_TAG_PRESENT), must_be(1, 0, 2 + NO)],
        vlan => vec![
            step(LOAD_BYTE, VLAN_TAG_PRESENT),
            must_be(1, 1, 5 + NO),
            step(LOAD_HALF, VLAN_TAG),
            step(AND, 0xfff),
            must_be(4, vlan.into(), 5 + NO),
        ],
    };
    program.extend(QUERIES);
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::membership::is_query;

    /// What the kernel makes of a filter and a frame, with the tag of a VLAN or without (0).
    fn passes(program: &[Instruction], frame: &[u8], vlan: u16) -> bool {
        let (mut place, mut a, mut x) = (0, 0_u32, 0);
        let byte = |place: usize| frame.get(place).copied();
        loop {
            let Instruction {
                code,
                jump_true,
                jump_false,
                operand,
            } = program[place];
            place += 1;
            let at = operand as usize;
            let loaded = match code {
                LOAD_BYTE if operand == VLAN_TAG_PRESENT => Some(u32::from(vlan > 0)),
                LOAD_HALF if operand == VLAN_TAG => Some(u32::from(vlan)),
                LOAD_BYTE => byte(at).map(u32::from),
                LOAD_BYTE_AT_X => byte(at + x).map(u32::from),
                LOAD_HALF => byte(at)
                    .zip(byte(at + 1))
                    .map(|(high, low)| u32::from(high) << 8 | u32::from(low)),
                LOAD_X_IPV4_HEADER => {
                    x = byte(at).map_or(0, |first| usize::from(first & 0xf) * 4);
                    Some(a)
                }
                AND => Some(a & operand),
                IF_EQUAL => {
                    place += usize::from(if a == operand { jump_true } else { jump_false });
                    Some(a)
                }
                RETURN => return operand > 0,
                _ => panic!("unknown: {code:#x}"),
            };
            match loaded {
                Some(loaded) => a = loaded,
                // Behind the end of the frame.
                None => return false,
            }
        }
    }

    fn igmp() -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12..15].copy_from_slice(&[0x08, 0, 0x46]);
        frame[14 + 8..14 + 10].copy_from_slice(&[1, 2]);
        frame[14 + 16..14 + 20].copy_from_slice(&[224, 0, 0, 1]);
        frame[14 + 24] = 0x11;
        frame
    }

    fn mld() -> Vec<u8> {
        let mut frame = vec![0; 90];
        frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
        frame[14 + 6..14 + 8].copy_from_slice(&[0, 1]);
        frame[14 + 24..14 + 26].copy_from_slice(&[0xff, 2]);
        frame[14 + 40..14 + 44].copy_from_slice(&[58, 0, 5, 2]);
        frame[14 + 48] = 130;
        frame
    }

    /// Each byte has each value: whatever is a query passes, and of IGMP nothing else does.
    #[test]
    fn the_filter_passes_queries() {
        let filter = queries_of(0);
        for good in [igmp(), mld()] {
            assert!(is_query(&good) && passes(&filter, &good, 0));
            let (mut passed, mut stopped) = (0, 0);
            for place in 0..good.len() {
                for value in 0..=255 {
                    let mut frame = good.clone();
                    frame[place] = value;
                    let (query, passes) = (is_query(&frame), passes(&filter, &frame, 0));
                    assert!(passes || !query, "{frame:02x?}");
                    assert!(query || !passes || good[12] == 0x86, "{frame:02x?}");
                    *(if passes { &mut passed } else { &mut stopped }) += 1;
                }
            }
            assert!(passed > 0 && stopped > 1000, "{passed}, {stopped}");
        }
        let far_away = |place: usize, value| {
            let mut frame = mld();
            frame[place] = value;
            passes(&filter, &frame, 0)
        };
        assert!(!far_away(14 + 7, 64) && !far_away(14 + 24, 0xfe));
    }

    #[test]
    fn the_filter_passes_its_vlan_alone() {
        for frame in [igmp(), mld()] {
            for (selected, tag, expected) in [
                (0, 0, true),
                (0, 7, false),
                (7, 7, true),
                (7, 0x2007, true),
                (7, 8, false),
                (7, 0, false),
            ] {
                let passed = passes(&queries_of(selected), &frame, tag);
                assert_eq!(passed, expected, "{selected}, {tag:#x}");
            }
        }
    }
}
