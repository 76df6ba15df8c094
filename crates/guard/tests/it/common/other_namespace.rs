//! A host beside the one under test: a network namespace of its own.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use plimsoll_kernel::namespace;

/// Runs in a namespace of its own until dropped.
pub(crate) struct Namespace {
    jobs: Option<Sender<Box<dyn FnOnce() + Send>>>,
    thread: Option<JoinHandle<()>>,
    /// By which `ip` names it.
    pub(crate) tid: i32,
}

impl Namespace {
    pub(crate) fn new() -> Self {
        let (jobs, todo) = channel::<Box<dyn FnOnce() + Send>>();
        let (sender, tid) = channel();
        let thread = thread::spawn(move || {
            let inside = move || {
                sender.send(nix::unistd::gettid().as_raw()).unwrap();
                todo.into_iter().for_each(|job| job());
            };
            namespace::in_new(inside).expect("a network namespace");
        });
        Self {
            jobs: Some(jobs),
            thread: Some(thread),
            tid: tid.recv().unwrap(),
        }
    }

    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, result): (_, Receiver<T>) = channel();
        let job = Box::new(move || drop(sender.send(job())));
        self.jobs.as_ref().unwrap().send(job).unwrap();
        result.recv().expect("the job did not panic")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.jobs.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}
