//! Tests that would leave each other too little of the machine: each has [its turn](turn), and no other
//! test runs in this process. `make test` runs each module in a process of its own.

#[path = "../it/common/mod.rs"]
mod common;

mod guard_fairness;
mod guard_gateway;
mod guard_ledger;
mod guard_queues;
mod guard_shares;
mod guard_stopped;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Until it is dropped, no other test runs.
fn turn() -> MutexGuard<'static, ()> {
    static ONE_BY_ONE: Mutex<()> = Mutex::new(());
    ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
