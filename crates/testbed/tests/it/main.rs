//! This crate's integration tests in one program, since each would take its time to link. `make test`
//! runs each module in a process of its own.

mod common;

mod blast;
mod connect;
mod consume;
mod crowd;
mod dns;
mod http;
mod ledger;
mod namespace;
mod pauses;
mod placement;
mod probe;
mod routed;
mod rpc;
mod server;
mod tunnel;
mod wide_area;
