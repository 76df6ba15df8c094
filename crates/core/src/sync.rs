//! The atomics that two threads share, replaceable by loom's.
//!
//! With `--cfg loom` the same code runs under the loom model checker, which
//! tries every interleaving and every value a weakly ordered load may return
//! (the pattern of `tokio/src/loom`). `make loom` runs those tests.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

pub(crate) use core::sync::atomic::Ordering;

/// Keeps what one thread writes away from what the other writes: 128 bytes,
/// because adjacent 64-byte lines are fetched in pairs on x86.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct OwnLine<T>(pub(crate) T);
