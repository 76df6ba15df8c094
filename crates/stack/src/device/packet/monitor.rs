//! All packets of an interface, both ways, shown in place: for programs that record.
//!
//! The stack gets the packets as well. A filter of classic BPF runs in the kernel, so
//! only what passes it is copied into the ring. The interface stays as it is; also
//! promiscuous mode ends with the socket.

#![allow(unsafe_code, reason = "a socket option that nix offers no way to set")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::hearing;
use super::ring::{self, Geometry, Ring};
use crate::error::Error;
use crate::interface;

/// An instruction of classic BPF, as `struct sock_filter` (`linux/filter.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip if the condition holds.
    pub jump_true: u8,
    /// … and if it does not.
    pub jump_false: u8,
    /// Operand.
    pub operand: u32,
}

/// How an interface is watched.
#[derive(Clone, Debug)]
pub struct MonitorConfig {
    /// Memory of the ring in bytes; rounded up to blocks of 256 KiB, which bridge as many
    /// `block_timeout_ms` however little arrives. Default 64 MiB.
    pub ring_bytes: usize,
    /// Time after which the kernel hands packets over although the block has room, in
    /// milliseconds. Default 10.
    pub block_timeout_ms: u32,
    /// Also see what this host sends. Default true.
    pub outgoing: bool,
    /// Have the adapter receive frames for others. Default true.
    pub promiscuous: bool,
    /// What to see; empty is all. Default empty.
    pub filter: Vec<Instruction>,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        Self {
            ring_bytes: 64 << 20,
            block_timeout_ms: 10,
            outgoing: true,
            promiscuous: true,
            filter: Vec::new(),
        }
    }
}

/// The kernel hands over a block that has one packet as well as a full one. So a ring of large blocks
/// is used up by time, and nearly empty. Each has room for several of the longest merged frames.
const BLOCK_BYTES: usize = 1 << 18;

/// A packet in the ring.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// When the kernel saw it: nanoseconds since 1970.
    pub at_ns: u64,
    /// As much of the frame as there is, without the VLAN tag in `vlan`.
    pub bytes: &'a [u8],
    /// Length of the frame.
    pub whole_bytes: usize,
    /// Protocol and tag that the kernel has taken out of the frame: they stood behind
    /// both Ethernet addresses.
    pub vlan: Option<[u16; 2]>,
    /// This host has sent it.
    pub outgoing: bool,
}

/// What became of packets, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MonitorCounts {
    /// They passed the filter, also those that were dropped then.
    pub passed: u64,
    /// The ring was full.
    pub ring_full: u64,
    /// The ring made no sense.
    pub invalid: u64,
}

/// Watches an interface.
#[derive(Debug)]
pub struct PacketMonitor {
    ring: Ring,
    socket: OwnedFd,
    sees_sent: bool,
    counts: MonitorCounts,
}

impl PacketMonitor {
    /// Begins to watch `interface` of this network namespace.
    ///
    /// # Errors
    ///
    /// There is no such interface, it is neither Ethernet nor loopback, this process lacks
    /// `CAP_NET_RAW`, or the kernel refuses the filter or so large a ring.
    pub fn open(name: &str, config: &MonitorConfig) -> Result<Self, Error> {
        let index = interface::index(name)?;
        // Its frames have Ethernet's header too. Each is sent and received: once is enough.
        let is_loopback = interface::is_loopback(name)?;
        if !is_loopback {
            interface::mac(name)?;
        }
        let sees_sent = config.outgoing && !is_loopback;
        let socket = ring::open_socket()?;
        if !sees_sent {
            ring::set(&socket, libc::PACKET_IGNORE_OUTGOING, &1_i32)?;
        }
        let geometry = Geometry {
            block_bytes: BLOCK_BYTES,
            blocks: config.ring_bytes.div_ceil(BLOCK_BYTES).max(2),
            block_timeout_ms: config.block_timeout_ms,
        };
        let ring = Ring::new(&socket, geometry)?;
        attach(&socket, &config.filter)?;
        ring::bind(&socket, index)?;
        if config.promiscuous {
            hearing::make_promiscuous(&socket, index)?;
        }
        Ok(Self {
            ring,
            socket,
            sees_sent,
            counts: MonitorCounts::default(),
        })
    }

    /// Whether it sees what this host sends: if that was asked for, but for loopback, where all
    /// that is sent is received.
    #[must_use]
    pub const fn sees_sent(&self) -> bool {
        self.sees_sent
    }

    /// Shows up to `max` packets to `each`; returns how many there were.
    pub fn visit(&mut self, max: usize, mut each: impl FnMut(Arrival<'_>)) -> usize {
        let (seen, invalid) = self.ring.visit(max, |entry| {
            each(Arrival {
                at_ns: entry.at_ns,
                bytes: entry.bytes,
                whole_bytes: entry.whole,
                vlan: entry.vlan,
                outgoing: entry.packet_type == libc::PACKET_OUTGOING,
            });
            true
        });
        self.counts.invalid += invalid;
        seen
    }

    /// To be called after waiting, and at least once in a second: poll(2) does not wait any more
    /// after the link went down until this was called.
    ///
    /// # Errors
    ///
    /// The interface is gone. What it had received may still be in the ring.
    pub fn tend(&self) -> io::Result<()> {
        ring::tend(&self.socket)
    }

    /// Asks the kernel for its counts.
    pub fn read_counts(&mut self) -> MonitorCounts {
        let since = ring::statistics(&self.socket);
        self.counts.passed += u64::from(since.passed);
        self.counts.ring_full += u64::from(since.dropped);
        self.counts
    }
}

/// Readable while packets wait.
impl AsFd for PacketMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Has the kernel keep back what the filter does not let through.
pub(super) fn attach(socket: &OwnedFd, filter: &[Instruction]) -> Result<(), Error> {
    if filter.is_empty() {
        return Ok(());
    }
    let program: Vec<libc::sock_filter> = filter
        .iter()
        .map(|instruction| libc::sock_filter {
            code: instruction.code,
            jt: instruction.jump_true,
            jf: instruction.jump_false,
            k: instruction.operand,
        })
        .collect();
    let too_long = |_| Error::Config {
        field: "filter",
        given: format!("{} instructions", program.len()),
        allowed: "at most 4096 instructions",
    };
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(too_long)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads the program, which lives until the call ends, and
    // verifies it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(());
    }
    Err(not_attached(io::Error::last_os_error()))
}

/// What the kernel's answers to a filter mean.
fn not_attached(error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => Error::Unsupported {
            what: "this host's limit of memory for a socket's filter".to_owned(),
            feature: "one of this length",
            remedy: "raise it (`sysctl net.core.optmem_max`), or take a shorter filter",
        },
        _ => Error::io("attach the filter to a packet socket")(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_too_long_for_the_kernel_says_its_remedy() {
        let refused = |number| not_attached(io::Error::from_raw_os_error(number)).to_string();
        let too_long = refused(libc::ENOMEM);
        assert!(
            too_long.contains("`sysctl net.core.optmem_max`"),
            "{too_long}"
        );
        assert!(!too_long.contains("ulimit"), "{too_long}");
        assert!(refused(libc::EINVAL).starts_with("cannot attach"));
    }
}
