//! The kernel data path: early demultiplexing and early discard in XDP, beside
//! unmodified servers on the Linux stack.
//!
//! A packet for a socket that cannot take it should cost next to nothing. The
//! BPF program (`bpf/guard.bpf.c`) runs in the driver before anything is
//! allocated, looks the destination socket up, reads how full its queue is,
//! and lets only pass what fits (lazy receiver processing, Druschel & Banga
//! 1996). [`Guard`] loads it, attaches it by a link that vanishes with the
//! process, keeps its map of the host's addresses fresh, and reads its
//! counters. [`poll_in_threads`] optionally moves the interface's receive work
//! into a thread with a chosen nice level. Every setting of the host is turned
//! through [`Knobs`], which writes the old value down first and restores it.
//!
//! Needs root (or `CAP_BPF`, `CAP_PERFMON` and `CAP_NET_ADMIN`), Linux 6.2 or
//! newer with BTF, and a driver with native XDP; each is checked and named
//! when missing ([`Error::is_missing`]).

mod address;
mod by_channel;
mod charges;
pub mod check;
mod counters;
mod delay;
mod error;
mod events;
pub mod governor;
mod guard;
mod host;
pub mod knobs;
pub mod ledger;
mod link;
mod mapped;
mod meter;
mod owner;
mod privileges;
mod process;
mod program;
mod protection;
mod regulator;
mod shedding;
pub mod status;
mod threaded;
mod xdp_link;

pub use counters::{Channel, Counters, Outcome, Packets};
pub use error::Error;
pub use events::{Event, Events};
pub use guard::{Config, Guard, Regulated, Storage};
pub use host::check as check_host;
pub use knobs::{Keeper, Knobs, PollingThread, Priority, Queues};
pub use meter::{CpuMeter, CpuReading};
pub use owner::{Owner, OwnerProcess, Owners};
pub use plimsoll_core::demux::Kind;
pub use privileges::{Need, drop_capabilities, outlive_overload, start_thread};
pub use protection::{Protection, Transport, parse_port};
pub use shedding::SheddingConfig;
pub use threaded::poll_in_threads;
