//! Sockets of endpoints on their way out.
//!
//! Two grace periods of the kernel's go by until such a socket is gone. What was just being
//! delivered to it as it was dropped is awaited and taken back, and close(2) waits until nobody
//! looks at the socket any more. That is nothing for one, but a thousand that were dropped one after
//! the other took 25 s. Threads that wait at a time share a grace period. So some close what is
//! dropped, beside the owner.
//!
//! Frames go to such a socket no more, and its endpoint is free for another. Its descriptor is
//! still open, so the owner waits when there are [`OPEN_MAX`] of them. The interface's drop waits
//! for all.

use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::numbers::Number;
use super::queues::Sockets;
use super::sys;

/// Sockets that were dropped and are not closed yet, at most.
const OPEN_MAX: usize = 64;
/// Threads that close.
const THREADS_MAX: usize = 16;
/// Sockets for which one of them waits together.
const TOGETHER: usize = OPEN_MAX / THREADS_MAX;

/// The sockets of one endpoint, which the program knows no more.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) sockets: Sockets,
    // After the sockets, which end what the program is told of its room.
    pub(super) number: Number,
}

/// Those of an interface. Dropping it waits until they are closed.
#[derive(Debug, Default)]
pub(super) struct Closing(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    /// Some were closed.
    closed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Leaving>,
    /// With those that a thread has.
    open: usize,
    threads: usize,
}

impl Closing {
    pub(super) fn add(&self, leaving: Leaving) {
        let inner = &self.0;
        let mut state = inner.state.lock();
        while state.open >= OPEN_MAX {
            inner.closed.wait(&mut state);
        }
        state.waiting.push(leaving);
        state.open += 1;
        if state.threads == THREADS_MAX {
            return;
        }
        state.threads += 1;
        drop(state);
        let closer = Arc::clone(inner);
        let thread = thread::Builder::new().name("plimsoll-close".to_owned());
        if thread.spawn(move || closer.work()).is_err() {
            // Without another thread the owner waits.
            inner.work();
        }
    }

    /// Waits until all are closed. False: none was left.
    pub(super) fn finish(&self) -> bool {
        let inner = &self.0;
        let mut state = inner.state.lock();
        let any = state.open > 0;
        while state.open > 0 {
            inner.closed.wait(&mut state);
        }
        any
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Inner {
    /// Closes what waits, until nothing does.
    fn work(&self) {
        let mut state = self.state.lock();
        while !state.waiting.is_empty() {
            let count = state.waiting.len().min(TOGETHER);
            let batch: Vec<_> = state.waiting.drain(..count).collect();
            drop(state);
            sys::wait_for_deliveries();
            batch.iter().for_each(|one| one.sockets.take_unread());
            drop(batch);
            state = self.state.lock();
            state.open -= count;
            self.closed.notify_all();
        }
        state.threads -= 1;
    }
}
