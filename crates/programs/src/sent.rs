//! What became of frames that XDP programs sent on, by tracepoints: a redirect alone says
//! only where a frame should go.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use plimsoll_kernel::error::{self, CallError};

include!(concat!(env!("OUT_DIR"), "/sent.rs")); // mod skeleton

/// What became of the frames that were redirected, by interface.
pub(crate) struct Sent {
    map: MapHandle,
    _links: [Link; 2],
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent").finish_non_exhaustive()
    }
}

/// What an interface sent, and what it did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Transmitted {
    /// Frames that the next link took.
    pub sent: u64,
    /// Frames that it did not take: the receiver's ring was full, or there is none.
    pub dropped: u64,
    /// Frames that came in here and could not be sent on: the other interface was
    /// down, or takes none that long.
    pub failed: u64,
}

impl std::ops::AddAssign for Transmitted {
    fn add_assign(&mut self, more: Self) {
        self.sent += more.sent;
        self.dropped += more.dropped;
        self.failed += more.failed;
    }
}

impl Sent {
    /// Watches these interfaces of the current network namespace.
    pub(crate) fn watch(indices: &[u32]) -> Result<Self, CallError> {
        let bpf = error::bpf("load the tracepoints that see what was sent");
        let netns = plimsoll_kernel::namespace::inode();
        let netns = netns.map_err(error::os("look at the network namespace"))?;
        let mut place = MaybeUninit::uninit();
        let builder = skeleton::SentSkelBuilder::default();
        let mut open = builder.open(&mut place).map_err(&bpf)?;
        if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
            constants.netns_inode = netns;
        }
        let mut loaded = open.load().map_err(&bpf)?;
        let map = MapHandle::try_from(&loaded.maps.sent).map_err(&bpf)?;
        let cpus = libbpf_rs::num_possible_cpus().map_err(&bpf)?;
        let nothing = vec![vec![0; size_of::<skeleton::types::sent>()]; cpus];
        for index in indices {
            let key = index.to_ne_bytes();
            map.update_percpu(&key, &nothing, MapFlags::ANY)
                .map_err(&bpf)?;
        }
        loaded.attach().map_err(&bpf)?;
        let links = &mut loaded.links;
        let taken = [links.on_transmit.take(), links.on_error.take()];
        let [Some(on_transmit), Some(on_error)] = taken else {
            return Err(error::os("attach tracepoints")(io::Error::other(
                "libbpf attached fewer than there are",
            )));
        };
        Ok(Self {
            map,
            _links: [on_transmit, on_error],
        })
    }

    /// What this interface sent so far.
    pub(crate) fn of(&self, index: u32) -> Result<Transmitted, CallError> {
        let cpus = self.map.lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY);
        let mut all = Transmitted::default();
        for cpu in cpus
            .map_err(error::bpf("read counters"))?
            .unwrap_or_default()
        {
            let number = |at: usize| {
                let bytes = cpu.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
                bytes.map_or(0, u64::from_ne_bytes)
            };
            all.sent += number(0);
            all.dropped += number(8);
            all.failed += number(16);
        }
        Ok(all)
    }
}
