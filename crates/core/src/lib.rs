//! The decisions of Plimsoll, each written once and used by the guard, the
//! user-space stack and the simulated host.
//!
//! Every module is a pure state machine: it is constructed from a documented
//! config that validates itself, fed with `on_*`/`handle_*` (an event and the
//! time) and asked with `poll_*` or a plain getter. Nothing here reads a
//! clock, does I/O, draws random numbers, or allocates after construction.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod aggregation;
pub mod answering;
pub mod channel;
pub mod charge;
pub mod config;
pub mod cpu_limit;
pub mod demux;
pub mod driver;
pub mod feedback;
pub mod governor;
pub mod holdoff;
pub mod pacing;
pub mod poll;
pub mod quota;
pub mod soft_timer;
mod sync;
pub mod time;
