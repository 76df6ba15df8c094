//! What processes do with packets.
//!
//! A process is a loop around its receive call. It is asked for its next step
//! whenever the last one is over, and keeps between steps only where it is.

mod process;

pub(crate) use process::{Process, WebCosts};
