//! This crate's integration tests in one program, since each would take its time to link. `make test`
//! runs each module in a process of its own.

mod common;

mod capture;
mod capture_link;
mod forward;
mod forward_changes;
mod forward_ends;
mod forward_hops;
mod forward_lengths;
mod forward_options;
mod forward_protected;
mod input;
