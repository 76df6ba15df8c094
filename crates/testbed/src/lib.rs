//! Honest overload on one machine: two hosts made of network namespaces, the
//! link between them, and what is needed to load and to measure one of them.
//!
//! # How the overload is made, and why like this
//!
//! A *load host* and a *test host* are network namespaces joined by a veth
//! pair ([`Testbed`], [`link`]). Measured facts shape the rest:
//!
//! - veth delivers a frame on the CPU that *sent* it. A naive test therefore
//!   floods the generator. [`placement`] moves the test host's receive work to
//!   the test host's CPU, either as interrupts do it (softirq, above every
//!   process) or as a polling thread, and proves it with packets. The same
//!   module makes the load CPU pay for receiving the answers.
//! - The veth receive ring holds 256 frames and what does not fit is dropped
//!   at the sender's cost. It behaves as an adapter's ring does, so the
//!   [`ledger`] books it as `receive_ring`.
//! - Softirq time is invisible in `/proc/stat` and in process times on kernels
//!   that sample it by ticks, so [`plimsoll_kernel::meter`] accounts every nanosecond of
//!   the test host's CPU from scheduler and softirq tracepoints.
//! - The prober shares the load's CPU. Its schedule is open loop and its
//!   latency counts from the intended time ([`probe`]), so that a slow sender
//!   makes the figures worse, never better.
//!
//! Everything made here is taken down on every way out: `Drop`, panic, SIGINT,
//! SIGTERM ([`interrupt`]), and the next start after a SIGKILL sweeps what was
//! left ([`Testbed::create`]).
//!
//! # Limits
//!
//! A veth pair is not an adapter: figures from here compare protections on the
//! same link, they do not predict a 100 Gb/s port. Root is needed.

pub mod bare_router;
mod behind;
pub mod bird;
pub mod blast;
pub mod burner;
pub mod connect;
mod consume;
mod control_group;
pub mod crowd;
pub mod dns;
pub mod error;
pub mod fetch;
pub mod http;
pub mod interrupt;
pub mod ledger;
pub mod link;
pub mod namespace;
pub mod paced_flows;
pub mod pauses;
pub mod periodic;
pub mod placement;
pub mod probe;
pub mod process;
mod registry;
pub mod round_trip;
pub mod routed;
pub mod rpc;
pub mod server;
pub mod spaced;
mod spin;
mod testbed;
pub mod tunnel;
pub mod wide_area;

pub use behind::INNER_DEVICE;
pub use control_group::ControlGroup;
pub use error::Error;
pub use namespace::Host;
pub use pauses::Pauses;
pub use placement::Placement;
pub use process::{Command, Process, allow_descriptors, require_program};
pub use testbed::{Config, Testbed};
