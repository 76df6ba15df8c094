//! Work that takes long, for a thread that must not wait for it: a real-time one, which asks
//! now and then what has come of it.
//!
//! Each errand has a thread of its own at nice level 0. What it needs it takes along, and what
//! it brings it leaves in a place. Of that place the thread that asks only tries the lock:
//! whoever holds it may wait for the very CPU on which that thread runs.
//!
//! Limits: a thread is made for each errand, which takes the real-time thread some tens of
//! microseconds. An errand that nobody asks about any more goes on to its end.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::task::Poll;
use std::thread::sleep;
use std::time::Duration;

use crate::error::{CallError, os};
use crate::privileges::start_thread;
use crate::scheduling::Level;

/// How often somebody looks who may wait.
const LOOK: Duration = Duration::from_millis(1);

/// Work under way, or what it has brought.
#[derive(Debug)]
pub struct Errand<T>(Arc<Mutex<Option<T>>>);

impl<T: Send + 'static> Errand<T> {
    /// Has a thread of ordinary priority do `work`, whatever the calling thread's class is.
    ///
    /// # Errors
    ///
    /// There are no more threads.
    pub fn start(work: impl FnOnce() -> T + Send + 'static) -> Result<Self, CallError> {
        let place = Arc::new(Mutex::new(None));
        let left = Arc::clone(&place);
        start_thread(move || {
            // A thread begins in the class of the one that starts it. The kernel lets
            // everybody have this one.
            let _ = Level::nice(0).give_to(0);
            let brought = work();
            *left.lock().unwrap_or_else(PoisonError::into_inner) = Some(brought);
        })?;
        Ok(Self(place))
    }

    /// What it has brought, once. Never waits.
    ///
    /// # Errors
    ///
    /// Its thread has ended without: a panic, which has been printed.
    pub fn poll(&self) -> Poll<Result<T, CallError>> {
        // Before the look: whoever ends leaves something first.
        let has_ended = Arc::strong_count(&self.0) == 1;
        let brought = match self.0.try_lock() {
            Ok(mut place) => place.take(),
            Err(TryLockError::Poisoned(place)) => place.into_inner().take(),
            Err(TryLockError::WouldBlock) => None,
        };
        match brought {
            Some(brought) => Poll::Ready(Ok(brought)),
            None if has_ended => {
                let lost = io::Error::other("the thread that did so has ended");
                Poll::Ready(Err(os("finish what was begun")(lost)))
            }
            None => Poll::Pending,
        }
    }

    /// Waits for what it brings.
    ///
    /// # Errors
    ///
    /// As [`Errand::poll`].
    pub fn wait(self) -> Result<T, CallError> {
        loop {
            match self.poll() {
                Poll::Ready(brought) => return brought,
                Poll::Pending => sleep(LOOK),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::scheduling::set_fifo;

    /// Needs root.
    #[test]
    fn an_errand_of_a_real_time_thread_is_done_by_an_ordinary_one() {
        let real_time = std::thread::spawn(|| {
            set_fifo(1).unwrap();
            let (told, end) = channel();
            let errand = Errand::start(move || {
                end.recv().unwrap();
                Level::of(0).unwrap()
            });
            let errand = errand.unwrap();
            assert!(errand.poll().is_pending());
            told.send(()).unwrap();
            assert_eq!(errand.wait().unwrap(), Level::nice(0));
        });
        real_time.join().unwrap();
    }

    /// The thread that leaves something may be preempted while it does.
    #[test]
    fn who_asks_does_not_wait_for_the_lock() {
        let errand = Errand(Arc::new(Mutex::new(Some(()))));
        let _thread = Errand(Arc::clone(&errand.0));
        let held = errand.0.lock().unwrap();
        assert!(errand.poll().is_pending());
        drop(held);
        assert!(matches!(errand.poll(), Poll::Ready(Ok(()))));
        assert!(errand.poll().is_pending());
    }

    #[test]
    fn an_errand_that_ends_without_a_result_is_an_error() {
        let errand = Errand::<()>::start(|| panic!("as a test wants it"));
        errand.unwrap().wait().unwrap_err();
    }
}
