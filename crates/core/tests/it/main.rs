//! This crate's integration tests in one program, since each would take its time to link. `make test`
//! runs each module in a process of its own.

mod named_test;
mod sources;

mod commit_messages;
mod documents;
mod equal_lines;
mod extremes;
mod hosts;
mod mechanisms;
mod mutations;
mod sizes;
mod unprivileged;
mod users;
