//! The packets that Plimsoll's demultiplexers are tried on, and a third opinion.
//!
//! Demultiplexing exists twice: `plimsoll_core::demux` in Rust and the guard's
//! BPF program in C, and both must say the same of every frame. This crate
//! holds what decides whether they do:
//!
//! - [`frame`] builds frames, valid in every checksum unless asked otherwise;
//! - [`host`] describes the host they are sent to: addresses and open sockets;
//! - [`corpus`] is the list of frames, each hand-built one with the kind that
//!   it should have, written down by hand;
//! - [`model`] does what `plimsoll_core::demux` does as plainly as can be:
//!   etherparse reads the headers, endpoints stand in lists;
//! - [`agreement`] turns arbitrary bytes into frames and changes of endpoints,
//!   and checks that all opinions agree. Fuzzing and tests call it alike.
//!
//! It is used by tests, benches, fuzzing and `plimsoll-vm` only, so it allocates as it likes,
//! and panics where a builder is asked for something that cannot be encoded.

pub mod agreement;
pub mod corpus;
pub mod frame;
pub mod host;
pub mod model;
