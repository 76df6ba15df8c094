//! This crate's integration tests in one program, since each would take its time to link. `make test`
//! runs each module in a process of its own.

mod common;

mod knobs;
mod routing;
mod turned;
