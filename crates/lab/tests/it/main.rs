//! This crate's integration tests in one program, since each would take its time to link. `make test`
//! runs each module in a process of its own.

mod arrows;
mod beside;
mod browser;
mod causes;
mod claims;
mod coverage;
mod files;
mod history;
mod parts;
mod score;
mod timelines;
mod trace;
