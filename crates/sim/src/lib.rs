//! A modelled host in virtual time: every receive path of the papers, and
//! Plimsoll's own, on machines that can no longer be had.
//!
//! A [`Profile`] is a machine: what everything costs on it. A [`Scenario`] is what
//! happens on it: receive path, adapters, sources, consumers. [`run()`] gives an
//! [`Outcome`], whose figures have names ([`Outcome::measures`]).
//!
//! Every packet ends in exactly one counted outcome and every nanosecond of every
//! CPU in exactly one account; both sums are checked in every run. The same seed
//! gives the same outcome on every machine.
//!
//! Three parts of the papers are no matter of receiving and have models of their
//! own: [`timers`] beside a workload, a [`transfer`] over a wide-area path, and the
//! [`round_trip`] of a driver's variants.

#![forbid(unsafe_code)]

mod consumer;
mod engine;
mod error;
mod footprint;
mod host;
mod intervals;
pub mod outcome;
mod packet;
mod path;
pub mod profile;
pub mod round_trip;
mod run;
pub mod scenario;
mod source;
pub mod timers;
pub mod trace;
pub mod transfer;

pub use error::Error;
pub use outcome::Outcome;
pub use profile::Profile;
pub use run::run;
pub use scenario::Scenario;
pub use trace::Trace;
