//! This crate's integration tests in one program, since each would take its time to link. `make test`
//! runs each module in a process of its own.

mod common;

mod attach;
mod bound_above;
mod channels;
mod check;
mod closed_ports;
mod connections;
mod cookie_answers;
mod cookies;
mod corpus;
mod jumbo;
mod ledger;
mod listener_queues;
mod listeners;
mod meter;
mod no_harm;
mod old_pressure;
mod owner;
mod programs_above;
mod queues;
mod readers;
mod same_address;
mod steered;
mod taken_by_tc;
mod tracking;
