//! Comparisons of protections on the testbed: the same overload, with and
//! without the guard, in one run and alternating, so that a noisy machine
//! treats both alike.
//!
//! This is the one room that knows both the testbed and the guard, and it
//! knows the guard only as an operator does: as the command `plimsoll guard`
//! running beside the servers in the test host.

pub mod demo;
mod error;
mod guard_process;

pub use error::Error;
