//! This crate's integration tests in one program, since each would take its time to link. `make test`
//! runs each module in a process of its own.

mod common;

mod baselines;
mod closed_forms;
mod costs;
mod governor;
mod interrupt_driven;
mod napi;
mod overload_rules;
mod profiles;
mod properties;
mod sources;
