//! Attachment of an XDP program to an interface by a BPF link.
//!
//! A link lives as long as its file descriptor: when the process ends, however
//! it ends, the kernel detaches the program and the host receives as before.
//! libbpf's own `attach_xdp` passes no flags and would fall back to generic
//! mode; here native mode is demanded.

#![allow(unsafe_code, reason = "libbpf-rs offers no link_create with flags")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use nix::errno::Errno;

use crate::error::Error;
use crate::link;

/// The attachment; dropping it detaches.
#[derive(Debug)]
pub struct XdpLink {
    _fd: OwnedFd,
}

impl XdpLink {
    /// Attaches `program` in native mode to the interface.
    pub fn attach(program: BorrowedFd<'_>, interface: &str, ifindex: u32) -> Result<Self, Error> {
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
            flags: libbpf_sys::XDP_FLAGS_DRV_MODE,
            ..Default::default()
        };
        // SAFETY: `options` is initialised, outlives the call, and states its
        // own size; the other arguments are plain numbers.
        let fd = unsafe {
            libbpf_sys::bpf_link_create(
                program.as_raw_fd(),
                ifindex.cast_signed(),
                libbpf_sys::BPF_XDP,
                ptr::from_ref(&options),
            )
        };
        if fd < 0 {
            return Err(refusal(interface, ifindex, Errno::from_raw(-fd)));
        }
        // SAFETY: bpf_link_create has just returned this descriptor and
        // nothing else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { _fd: fd })
    }
}

fn refusal(interface: &str, ifindex: u32, errno: Errno) -> Error {
    let interface = interface.to_owned();
    match errno {
        Errno::EBUSY | Errno::EEXIST => {
            let attached = link::link(ifindex).ok().and_then(|link| link.xdp);
            let remedy = match &attached {
                Some(attached) => attached.remedy(&interface),
                None => format!("`plimsoll guard check {interface}` tells more"),
            };
            Error::Busy {
                program: attached.map_or_else(String::new, |attached| format!(", {attached}")),
                interface,
                remedy,
            }
        }
        Errno::EOPNOTSUPP => Error::NoNativeXdp { interface },
        Errno::ENODEV => Error::NoSuchInterface { interface },
        errno => Error::Refused {
            interface,
            source: io::Error::from(errno),
        },
    }
}
