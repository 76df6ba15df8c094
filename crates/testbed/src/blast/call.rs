//! The one system call of a blast, and the thread that makes it.
//!
//! `BPF_PROG_TEST_RUN` returns when its repetitions are used up or a signal is
//! pending, and it looks for both between batches only. So the call gets more
//! repetitions than a blast can use, and SIGURG ends it: ignored by default,
//! and used by nobody else for years, it does no harm if it comes late.
#![allow(unsafe_code)] // libbpf-rs' wrapper of this call lacks the batch size.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, Thread};

use libbpf_rs::libbpf_sys;
use nix::errno::Errno;
use nix::sys::pthread::pthread_kill;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use rustix::process::setpriority_process;

use super::spec::Priority;
use plimsoll_kernel::namespace::pin;
use plimsoll_kernel::scheduling::{Class, set_class};

use crate::Error;

/// Runs of the program in one call: enough for 600 s at 7 million per second,
/// and then there is another call.
const REPEAT_MAX: u32 = u32::MAX;

/// What a call needs; everything is owned, because the caller may unwind.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) program: OwnedFd,
    pub(super) frame: Vec<u8>,
    pub(super) batch_runs: u32,
    pub(super) cpu: Option<usize>,
    pub(super) priority: Priority,
}

impl Call {
    /// One run of the program, to find out whether the kernel can do it.
    pub(super) fn probe(&self) -> Result<(), Errno> {
        self.enter_kernel(1)
    }

    fn enter_kernel(&self, repeat: u32) -> Result<(), Errno> {
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
            data_in: self.frame.as_ptr().cast(),
            data_size_in: self.frame.len() as u32,
            // The kernel reads it as unsigned.
            repeat: repeat as i32,
            flags: libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES,
            batch_size: self.batch_runs,
            ..Default::default()
        };
        // SAFETY: `options` and the frame it points to outlive the call, which
        // reads the frame and writes only to `options`.
        let result = unsafe {
            libbpf_sys::bpf_prog_test_run_opts(self.program.as_raw_fd(), &raw mut options)
        };
        if result == 0 {
            Ok(())
        } else {
            Err(Errno::from_raw(-result))
        }
    }

    /// Sets the calling thread up and calls until `ending`.
    fn run(&self, ending: &AtomicBool) -> Result<(), Error> {
        leave_signals_to_others().map_err(Error::io("block signals"))?;
        if let Some(cpu) = self.cpu {
            pin(cpu).map_err(Error::io(format!("run on CPU {cpu}")))?;
        }
        match self.priority {
            Priority::Nice(0) => Ok(()),
            Priority::Nice(nice) => setpriority_process(None, nice.into()).map_err(Into::into),
            Priority::Idle => set_class(0, Class::Idle),
        }
        .map_err(Error::io(format!("run at {:?}", self.priority)))?;
        while !ending.load(Ordering::Acquire) {
            match self.enter_kernel(REPEAT_MAX) {
                // Out of repetitions, or somebody else's SIGURG.
                Ok(()) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::io("run the generator")(errno)),
            }
        }
        Ok(())
    }
}

/// A thread in the kernel, sending.
#[derive(Debug)]
pub(super) struct Running {
    thread: JoinHandle<Result<(), Error>>,
    ending: Arc<AtomicBool>,
}

impl Running {
    /// Starts `call` on a thread of its own, which wakes the calling one (see
    /// [`thread::park`]) when it is done.
    pub(super) fn start(call: Call) -> Result<Self, Error> {
        // A handler that does nothing visible: without one the kernel would
        // drop the signal instead of interrupting the call.
        signal_hook::flag::register(Signal::SIGURG as i32, Arc::new(AtomicBool::new(false)))
            .map_err(Error::io("handle SIGURG"))?;
        let ending = Arc::new(AtomicBool::new(false));
        let waker = Waker(thread::current());
        let thread = thread::Builder::new()
            .name("blast".to_owned())
            .spawn({
                let ending = Arc::clone(&ending);
                move || {
                    let _waker = waker;
                    call.run(&ending)
                }
            })
            .map_err(Error::io("start the generator's thread"))?;
        Ok(Self { thread, ending })
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Asks the call to return. To be repeated until [`Running::is_finished`]:
    /// a signal that arrives just before the call interrupts nothing.
    pub(super) fn interrupt(&self) {
        self.ending.store(true, Ordering::Release);
        // Fails only if the thread has ended meanwhile, which is what we want.
        let _ = pthread_kill(self.thread.as_pthread_t(), Signal::SIGURG);
    }

    pub(super) fn join(self) -> Result<(), Error> {
        self.thread
            .join()
            .unwrap_or_else(|payload| std::panic::resume_unwind(payload))
    }
}

/// Wakes a thread at the end of its scope, also when unwinding.
struct Waker(Thread);

impl Drop for Waker {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

/// Blocks every signal but SIGURG in this thread, so that handlers of others
/// run elsewhere and do not end the call.
fn leave_signals_to_others() -> io::Result<()> {
    let mut blocked = SigSet::all();
    blocked.remove(Signal::SIGURG);
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&blocked), None)?;
    Ok(())
}
