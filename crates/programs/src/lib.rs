//! The three hosts of the livelock paper (Mogul and Ramakrishnan 1997) as programs: an IP
//! router, a firewall that screens packets in a user process, and a passive monitor.
//!
//! They stand on the devices of `plimsoll-stack` and on what `plimsoll-kernel` knows about
//! this host. The decisions (which source next, how much, when input is inhibited) are
//! `plimsoll-core`'s.
//!
//! - [`capture`]: the monitor.
//! - [`forward`]: the router.
//! - [`screen`]: the screening firewall.
//!
//! [`vlan_tags`] tells where frames may come to them without their tags, and [`checksums`] where
//! without their checksums.

pub mod capture;
pub mod checksums;
mod clock;
pub mod driven;
pub mod filter;
pub mod forward;
mod polling;
pub mod screen;
mod sent;
mod unserved;
pub mod vlan_tags;
