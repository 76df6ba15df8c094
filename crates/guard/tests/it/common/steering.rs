//! A program of the network namespace that gives the packets of one source port to a socket
//! of its own (`BPF_PROG_TYPE_SK_LOOKUP`).

#![allow(unsafe_code, reason = "libbpf-rs does not attach such programs")]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use libbpf_sys::bpf_insn;

use super::assembled::{self, instruction as at};

/// Ends with it.
pub(crate) struct Steering {
    _link: OwnedFd,
    _sockets: MapHandle,
}

/// Has packets from this port go to `socket`, in the caller's network namespace.
pub(crate) fn steer(source_port: u16, socket: &impl AsRawFd) -> Steering {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
        ..Default::default()
    };
    let sockets = MapHandle::create(MapType::Sockmap, Some("chosen"), 4, 4, 1, &options);
    let sockets = sockets.expect("a map of sockets");
    let fd = socket.as_raw_fd().to_ne_bytes();
    sockets
        .update(&0_u32.to_ne_bytes(), &fd, MapFlags::ANY)
        .expect("the socket is bound");
    let kind = (
        libbpf_sys::BPF_PROG_TYPE_SK_LOOKUP,
        libbpf_sys::BPF_SK_LOOKUP,
        0,
    );
    let instructions = instructions(sockets.as_fd().as_raw_fd(), source_port);
    let program = assembled::load(kind, &instructions);
    let namespace = File::open("/proc/thread-self/ns/net").expect("a network namespace");
    // SAFETY: both descriptors are open, and there are no options.
    let link = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            namespace.as_raw_fd(),
            libbpf_sys::BPF_SK_LOOKUP,
            std::ptr::null(),
        )
    };
    assert!(link >= 0, "the namespace takes the program: {link}");
    Steering {
        // SAFETY: just opened, and nobody else has it.
        _link: unsafe { OwnedFd::from_raw_fd(link) },
        _sockets: sockets,
    }
}

/// `if (remote_port == source_port) assign(sockets[0])`, and all go on.
fn instructions(sockets: i32, source_port: u16) -> Vec<bpf_insn> {
    /// In `struct bpf_sk_lookup`.
    const REMOTE_PORT: i16 = 36;
    let port = i32::from(source_port.to_be());
    vec![
        at(0xbf, (6, 1), 0, 0),           // r6 = r1
        at(0x69, (2, 1), REMOTE_PORT, 0), // r2 = *(u16 *)(r1 + REMOTE_PORT)
        at(0x55, (2, 0), 14, port),       // if r2 != port goto the end
        at(0x62, (10, 0), -4, 0),         // *(u32 *)(r10 - 4) = 0
        at(0x18, (1, 1), 0, sockets),     // r1 = the map
        at(0, (0, 0), 0, 0),
        at(0xbf, (2, 10), 0, 0),  // r2 = r10
        at(0x07, (2, 0), 0, -4),  // r2 += -4
        at(0x85, (0, 0), 0, 1),   // r0 = map_lookup_elem(r1, r2)
        at(0x15, (0, 0), 7, 0),   // if r0 == 0 goto the end
        at(0xbf, (7, 0), 0, 0),   // r7 = r0
        at(0xbf, (1, 6), 0, 0),   // r1 = r6
        at(0xbf, (2, 7), 0, 0),   // r2 = r7
        at(0xb7, (3, 0), 0, 0),   // r3 = 0
        at(0x85, (0, 0), 0, 124), // sk_assign(r1, r2, r3)
        at(0xbf, (1, 7), 0, 0),   // r1 = r7
        at(0x85, (0, 0), 0, 86),  // sk_release(r1)
        at(0xb7, (0, 0), 0, 1),   // the end: r0 = SK_PASS
        at(0x95, (0, 0), 0, 0),   // exit
    ]
}
