//! Packets from many addresses for the test-run facility, which knows one frame only: a
//! program that writes another source address into the frame at each run and goes on
//! to the guard's.

#![allow(unsafe_code, reason = "libbpf-rs does not run what it has not loaded")]

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use libbpf_sys::{bpf_insn, bpf_test_run_opts};

use super::common::assembled::{self, instruction as at};

/// Where an IPv4 source address is in an untagged frame, and where it ends.
const SOURCE: i16 = 26;
const SOURCE_END: i32 = 30;

/// Sends each frame on with another source: `first` and any of the bits of `others`.
pub(crate) struct Forger {
    program: OwnedFd,
    _next: MapHandle,
}

impl Forger {
    /// Goes on to this program.
    pub(crate) fn before(guard: BorrowedFd<'_>, first: Ipv4Addr, others: u32) -> Self {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
            ..Default::default()
        };
        let next = MapHandle::create(MapType::ProgArray, Some("next"), 4, 4, 1, &options)
            .expect("a program array");
        let instructions = instructions(next.as_fd().as_raw_fd(), first.to_bits(), others);
        let kind = (
            libbpf_sys::BPF_PROG_TYPE_XDP,
            libbpf_sys::BPF_XDP,
            libbpf_sys::BPF_F_XDP_HAS_FRAGS,
        );
        let program = assembled::load(kind, &instructions);
        let fd = guard.as_raw_fd().to_ne_bytes();
        next.update(&0_u32.to_ne_bytes(), &fd, MapFlags::ANY)
            .expect("the guard's program can be called");
        Self {
            program,
            _next: next,
        }
    }

    /// The mean time of a run.
    pub(crate) fn test_run(&self, frame: &[u8], repeat: u32) -> Duration {
        let mut options = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as u64,
            data_in: frame.as_ptr().cast(),
            data_size_in: u32::try_from(frame.len()).expect("a short frame"),
            repeat: repeat.cast_signed(),
            ..Default::default()
        };
        // SAFETY: `frame` is valid for its length, which is given, and read only.
        let failed = unsafe {
            libbpf_sys::bpf_prog_test_run_opts(self.program.as_raw_fd(), &raw mut options)
        };
        assert_eq!(failed, 0, "test-run");
        Duration::from_nanos(options.duration.into())
    }
}

/// `data[SOURCE] = first | random & others`, then the first program of the array.
fn instructions(next: i32, first: u32, others: u32) -> Vec<bpf_insn> {
    vec![
        at(0xbf, (6, 1), 0, 0),                    // r6 = r1
        at(0x85, (0, 0), 0, 7),                    // r0 = get_prandom_u32()
        at(0x54, (0, 0), 0, others.cast_signed()), // w0 &= others
        at(0x44, (0, 0), 0, first.cast_signed()),  // w0 |= first
        at(0xdc, (0, 0), 0, 32),                   // r0 = be32(r0)
        at(0x61, (1, 6), 0, 0),                    // r1 = data
        at(0x61, (2, 6), 4, 0),                    // r2 = data_end
        at(0xbf, (3, 1), 0, 0),                    // r3 = r1
        at(0x07, (3, 0), 0, SOURCE_END),           // r3 += SOURCE_END
        at(0x2d, (3, 2), 1, 0),                    // if r3 > r2 goto +1
        at(0x63, (1, 0), SOURCE, 0),               // *(u32 *)(r1 + SOURCE) = r0
        at(0xbf, (1, 6), 0, 0),                    // r1 = r6
        at(0x18, (2, 1), 0, next),                 // r2 = the array
        at(0, (0, 0), 0, 0),
        at(0xb7, (3, 0), 0, 0),  // r3 = 0
        at(0x85, (0, 0), 0, 12), // tail_call(r1, r2, r3)
        at(0xb7, (0, 0), 0, 0),  // r0 = XDP_ABORTED
        at(0x95, (0, 0), 0, 0),  // exit
    ]
}
