//! A POSIX timer whose signal does something on the thread that made it.
//!
//! A signal calls all that wait for it in a process. So there is one such timer at a time:
//! who makes another waits until the first is dropped.

#![allow(unsafe_code, reason = "code that runs inside a signal")]

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::gettid;
use signal_hook::SigId;

/// Dropping it ends the signals.
#[derive(Debug)]
pub(super) struct SignalTimer {
    timer: Timer,
    registered: SigId,
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

const SIGNAL: Signal = Signal::SIGALRM;

impl SignalTimer {
    /// `act` is called inside of a signal: it may load and store atomics, and nothing
    /// that allocates, locks or panics.
    pub(super) fn new(act: impl Fn() + Send + Sync + 'static) -> io::Result<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the callers, all in this module's parent, keep to the rule above: both
        // actions load and store atomics.
        let registered = unsafe { signal_hook::low_level::register(SIGNAL as i32, act) }?;
        let notify = SigevNotify::SigevThreadId {
            signal: SIGNAL,
            thread_id: gettid().as_raw(),
            si_value: 0,
        };
        let timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(notify));
        let timer = timer.inspect_err(|_| {
            signal_hook::low_level::unregister(registered);
        })?;
        Ok(Self {
            timer,
            registered,
            _alone: alone,
        })
    }

    /// A signal again and again.
    pub(super) fn repeat(&mut self, every: Duration) -> io::Result<()> {
        self.set(Expiration::Interval(every.into()))
    }

    /// One signal, in place of any ordered before. At least one nanosecond: zero would
    /// mean never.
    pub(super) fn once(&mut self, after: Duration) -> io::Result<()> {
        let after = after.max(Duration::from_nanos(1));
        self.set(Expiration::OneShot(after.into()))
    }

    /// None.
    pub(super) fn never(&mut self) -> io::Result<()> {
        self.set(Expiration::OneShot(Duration::ZERO.into()))
    }

    fn set(&mut self, expiration: Expiration) -> io::Result<()> {
        Ok(self.timer.set(expiration, TimerSetTimeFlags::empty())?)
    }
}

impl Drop for SignalTimer {
    fn drop(&mut self) {
        // One that is on its way finds no action, and does nothing.
        signal_hook::low_level::unregister(self.registered);
    }
}
