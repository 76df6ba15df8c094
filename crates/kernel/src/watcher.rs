//! A thread that looks after something for as long as somebody holds it.
//!
//! It ends when its [`Watcher`] is dropped, which waits for it: what the thread owns is put
//! back by then.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The thread's holder. Dropping it ends the thread.
#[derive(Debug)]
pub struct Watcher {
    /// Dropped to end the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread waits by.
#[derive(Debug)]
pub struct Pauses(Receiver<()>);

impl Watcher {
    /// Starts a thread of this name that watches as long as [`Pauses::wait`] says so.
    ///
    /// # Errors
    ///
    /// There are no more threads.
    pub fn start(name: &str, watch: impl FnOnce(Pauses) + Send + 'static) -> io::Result<Self> {
        let (end, ended) = channel();
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || watch(Pauses(ended)))?;
        Ok(Self {
            end: Some(end),
            thread: Some(thread),
        })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; what the thread owned is dropped in any case.
            let _ = thread.join();
        }
    }
}

impl Pauses {
    /// Waits for so long, and says whether to go on. When the holder is dropped it says no at
    /// once.
    #[must_use]
    pub fn wait(&self, pause: Duration) -> bool {
        matches!(self.0.recv_timeout(pause), Err(RecvTimeoutError::Timeout))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Counts when it is dropped.
    struct Owned(Arc<AtomicU32>);

    impl Drop for Owned {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_thread_that_waits_ends_with_its_holder_and_gives_back_what_it_owns() {
        let given_back = Arc::new(AtomicU32::new(0));
        let owned = Owned(Arc::clone(&given_back));
        let (looked, looks) = channel();
        let watcher = Watcher::start("watching", move |pauses| {
            let _owned = owned;
            for pause in [Duration::ZERO, HOUR, HOUR] {
                looked.send(()).unwrap();
                if !pauses.wait(pause) {
                    return;
                }
            }
        });
        let watcher = watcher.unwrap();
        assert!(
            looks.iter().take(2).count() == 2,
            "it goes on after a pause"
        );
        assert_eq!(given_back.load(Ordering::SeqCst), 0);
        drop(watcher);
        assert_eq!(given_back.load(Ordering::SeqCst), 1);
        assert!(looks.recv().is_err(), "it has not looked again");
    }
}
