//! Comparisons of protections on the testbed: the same overload, with and
//! without the guard, in one run and alternating, so that a noisy machine
//! treats all alike.
//!
//! This is the one room that knows both the testbed and what is compared on it. It
//! knows guard, programs and stack only as an operator does: as the command `plimsoll`
//! that runs in the test host.
//!
//! - [`demo`] shows what Plimsoll is for.
//! - [`guard`] measures every figure that is promised of the guard, and [`no_harm`]
//!   whether any set-up is worse off with it.
//! - [`forward`], [`screen`] and [`capture`] measure the router, the screening firewall
//!   and the monitor beside others; [`stack`] the user data path.
//! - [`triggers`] measures when this kernel could fire soft timers, and [`timers`] what
//!   events cost a server; [`wan`] TCP over a wide-area path.
//! - [`RealPackets`] is a host of the lab's experiments, with the trials of these benches;
//!   [`calibrate()`] measures the costs of a machine profile for its modelled host.
//!
//! Parts that several share: what protects (`protection`, `nftables`, `guard_process`),
//! what loads (`traffic`), who is flooded and asked (`own_port`, `web`), what crosses a
//! host (`passing`), what is measured meanwhile (`udp`, `mlfrr`, `figures`), in which
//! turns (`cases`), whether the load was there that a goal is about (`offered`), and how it
//! is drawn (`page`).

mod calibrate;
pub mod capture;
mod cases;
pub mod demo;
mod error;
mod figures;
pub mod forward;
mod groups;
pub mod guard;
mod guard_process;
mod lab_host;
mod mlfrr;
mod nftables;
pub mod no_harm;
mod offered;
mod own_port;
mod page;
pub mod passing;
mod protection;
pub mod screen;
mod spoken;
pub mod stack;
pub mod timers;
mod traffic;
pub mod triggers;
mod udp;
pub mod wan;
mod web;

pub use calibrate::{CalibrationPlan, calibrate};
pub use error::Error;
pub use figures::{Bystander, HostCpu, Losses};
pub use lab_host::RealPackets;
pub use plimsoll_report::plot::PlotError;
pub use protection::Protection;
pub use udp::UdpCase;
