//! What Plimsoll knows about running on Linux. Whoever talks to the kernel
//! stands on this crate: guard, stack, programs, testbed and others.
//!
//! - XDP: [`xdp_link`] attaches a program by a link that vanishes with the
//!   process. [`lasting_link`] attaches it anew where the driver is known to lose it.
//!   [`mapped`] shares its arrays, [`pass_all`] is the program that does nothing.
//! - Settings: [`Knobs`] writes every old value down before it turns one, and
//!   restores it; [`threaded`] moves polling into threads, [`polling_limit`] keeps them
//!   to a part of the CPU.
//! - What the kernel counts: [`meter`] CPU time by the kernel's own [`clock`], [`counters`] packets,
//!   [`link`] the state of an interface, [`ethtool`] that of its adapter,
//!   [`routing`] a mirror of routes and neighbours, [`packet_filter`] what rules look at,
//!   [`traffic_control`] what tc may take, [`ipsec`] whether there are policies,
//!   [`tunnels`] which ones end in the kernel.
//!   Much of it is asked for by [`netlink`].
//! - Processes: [`privileges`], [`scheduling`], [`control_group`], [`process`], [`namespace`],
//!   threads that end with their holder ([`watcher`]), and those that do what a real-time
//!   thread must not wait for ([`errand`]).
//!
//! Decisions about packets, CPU time and interrupts are `plimsoll-core`'s. This crate decides
//! about the means alone: when a lost program is attached again ([`lasting_link`]), when the
//! mirror of routes is read anew ([`routing`]), and how polling threads share their part of a
//! CPU ([`polling_limit`]).

pub mod clock;
pub mod control_group;
pub mod counters;
#[doc(hidden)]
pub mod driven;
pub mod errand;
pub mod error;
pub mod ethtool;
pub mod host;
#[cfg(test)]
mod iproute;
pub mod ipsec;
pub mod knobs;
pub mod lasting_link;
pub mod link;
pub mod mapped;
pub mod meter;
pub mod namespace;
pub mod netlink;
pub mod packet_filter;
pub mod pass_all;
pub mod polling_limit;
pub mod private_file;
pub mod privileges;
pub mod process;
pub mod routing;
pub mod scheduling;
pub mod threaded;
pub mod traffic_control;
pub mod tunnels;
pub mod watcher;
pub mod xdp_link;

pub use error::Error;
pub use knobs::Knobs;
