//! How many datagrams wait in the receive queues of all UDP sockets, from the
//! kernel's table of them (`bpf/sockets.bpf.c`).

use std::fmt;
use std::io::Read;
use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link};

include!(concat!(env!("OUT_DIR"), "/sockets.rs")); // mod skeleton

/// The iterator, loaded. Reading it takes no privileges.
pub struct UdpSockets {
    link: Link,
}

impl fmt::Debug for UdpSockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpSockets").finish_non_exhaustive()
    }
}

impl UdpSockets {
    /// Loads it. Kernels without such iterators refuse (before 5.9).
    pub fn load() -> libbpf_rs::Result<Self> {
        let mut place = MaybeUninit::uninit();
        let open = skeleton::SocketsSkelBuilder::default().open(&mut place)?;
        let skeleton = open.load()?;
        // The link keeps the program when its object goes.
        let link = skeleton.progs.waiting.attach()?;
        Ok(Self { link })
    }

    /// Datagrams in all queues of the current network namespace.
    pub fn waiting(&self) -> Option<u64> {
        let mut counts = Vec::new();
        Iter::new(&self.link).ok()?.read_to_end(&mut counts).ok()?;
        let counts = counts.chunks_exact(size_of::<u32>());
        Some(
            counts
                .filter_map(|bytes| bytes.try_into().ok())
                .map(|bytes| u64::from(u32::from_ne_bytes(bytes)))
                .sum(),
        )
    }
}
