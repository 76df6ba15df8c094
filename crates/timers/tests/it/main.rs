//! This crate's integration tests in one program, since each would take its time to link. `make test`
//! runs each module in a process of its own.

mod bounds;
mod examples;
mod real_clock;
mod suspended;
mod tokio;
