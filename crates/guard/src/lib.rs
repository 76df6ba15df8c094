//! The kernel data path: early demultiplexing and early discard in XDP, beside
//! unmodified servers on the Linux stack.
//!
//! A packet for a socket that cannot take it should cost next to nothing. The
//! BPF program (`bpf/guard.bpf.c`) runs in the driver before anything is
//! allocated, finds the destination socket, reads how full its queue is,
//! and discards what does not fit (lazy receiver processing, Druschel & Banga
//! 1996). Packets for which it finds no socket pass as a rule. [`Guard`] loads it, attaches it by a
//! link that ends with the process (only a restart by systemd hands it on), keeps its map of the
//! host's addresses fresh, and reads its counters. What talks to the kernel for others, too, is
//! `plimsoll-kernel`'s.
//!
//! Needs root (or `CAP_NET_ADMIN`, `CAP_BPF`, `CAP_PERFMON`, `CAP_SYS_NICE` and
//! `CAP_IPC_LOCK`; where connection tracking is a module, to ask it takes `CAP_SYS_ADMIN`), Linux
//! 6.2 or newer with BTF, and a driver with native XDP; each is checked and named when missing
//! ([`Error::is_missing`]).

mod address;
mod by_channel;
mod charges;
pub mod check;
mod company;
mod cookies;
mod counters;
mod delay;
#[doc(hidden)]
pub mod driven;
mod error;
mod events;
mod filter;
pub mod governor;
mod guard;
mod hidden;
mod known;
pub mod ledger;
mod looks;
mod owner;
mod presence;
mod program;
mod protection;
mod regulator;
pub mod session;
mod sources;
pub mod status;
mod syn_cookies;
mod tracking;

pub use counters::{Channel, Counters, Outcome, Packets};
pub use error::Error;
pub use events::{Event, Events};
pub use guard::{Config, Guard, Regulated, Storage};
pub use hidden::Unguarded;
pub use known::KnownError;
#[doc(hidden)]
pub use known::check_known_sources;
pub use owner::{Owner, OwnerProcess, Owners};
pub use plimsoll_core::demux::Kind;
pub use program::SourcesReader;
pub use protection::{ProtectedPort, Protection, Transport, parse_port};
pub use sources::{Class, Heaviest, Judged, Level, Sources, culprit};
pub use syn_cookies::SynCookies;
