//! `plimsoll forward`: an IPv4 and IPv6 router that keeps forwarding under overload.
//!
//! The kernel stays the router in every respect but one: packets that take nothing but
//! a look-up and three rewritten fields are sent on without its stack. Routes,
//! neighbours, addresses and links are the kernel's, so `ip route`, FRR and BIRD stay in
//! charge. Whatever is not plain forwarding goes to the kernel.
//!
//! Two data paths make the same decisions:
//!
//! - [`DataPath::Xdp`]: the XDP program asks the kernel's tables and redirects
//!   (`forward.bpf.c`).
//! - [`DataPath::User`]: the XDP program tells plain packets from others; user space
//!   polls all interfaces in turn (`core::poll`), decides by a mirror of the kernel's
//!   tables ([`table`]) and sends (`engine`).
//!
//! `packet` looks at frames, `outcome` names what becomes of them, `program` loads the
//! BPF programs, `follow` keeps the mirror, `crate::polling` has the threads that poll, `router`
//! starts and ends it all.
//!
//! **Limits.** Netfilter does not see packets that are sent on here: a host with filter
//! or translation rules for forwarded traffic must not forward it past them. A
//! neighbour that only forwarded traffic uses is never confirmed: it stays at its last
//! address until it says otherwise. One receive queue of an adapter serves all priorities: a
//! flood that overflows it takes protected packets ([`Config::protected`]) with it.

mod config;
mod engine;
mod error;
mod follow;
#[cfg(test)]
mod frames;
mod limits;
mod metrics;
pub mod outcome;
pub mod packet;
mod passed_by;
mod program;
mod router;
mod status;
pub mod table;
mod tables;
mod to_kernel;

use plimsoll_core::config::Fraction;

pub use crate::sent::Transmitted;
pub use error::Error;
pub use limits::Limits;
pub use passed_by::warnings;
pub use program::DEVICES_MAX;
pub use router::Router;
pub use status::{InterfaceStatus, Live, Status, UserStatus};
pub use table::ReversePath;

/// Where plain packets are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DataPath {
    /// In the driver, by the kernel's tables.
    Xdp,
    /// In this process, over AF_XDP.
    User,
}

/// What to forward, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Interfaces of this network namespace, at least two.
    pub interfaces: Vec<String>,
    /// Default [`DataPath::Xdp`].
    pub path: DataPath,
    /// How much of what the kernel must work on passes.
    pub limits: Limits,
    /// How sources are looked at, of IPv4 and IPv6. Default none: as the kernel's `rp_filter` says,
    /// which is for IPv4 alone.
    pub reverse_path: Option<ReversePath>,
    /// A filter expression of packets that are forwarded before all others in user space, also
    /// while input is inhibited, or the CPU limit is reached and they and polling need no more than
    /// half of it. Then the kernel polls before the thread that
    /// forwards the others, for up to half of the CPU limit: what it discards of a flood takes CPU
    /// time from forwarding. Default: none, and the kernel polls beneath that thread.
    pub protected: Option<String>,
    /// The part of a CPU that forwarding may take where others want it. With it polling moves
    /// into threads. Default none; in user space, where there always is one, that of
    /// [`CpuLimitConfig`](plimsoll_core::cpu_limit::CpuLimitConfig).
    pub cpu_limit: Option<Fraction>,
    /// The only CPU that polling threads may run on, and the program's own. With a limit, or in
    /// user space: else there are none. Default: where this process may.
    pub cpu: Option<usize>,
    /// Threads may poll with any driver, not only with those that were
    /// [tried](plimsoll_kernel::threaded::TRIED). Default false.
    pub any_driver: bool,
    /// Packets that a turn of polling takes in user space. Default 64, an eighth of a ring.
    pub quota: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            interfaces: Vec::new(),
            path: DataPath::Xdp,
            limits: Limits::default(),
            reverse_path: None,
            protected: None,
            cpu_limit: None,
            cpu: None,
            any_driver: false,
            quota: 64,
        }
    }
}
