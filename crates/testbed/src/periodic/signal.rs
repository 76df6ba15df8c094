//! A POSIX timer whose signal does something on the thread that made it.
//!
//! A signal calls all that wait for it in a process. So there is one such timer at a time:
//! who makes another waits until the first is dropped.

#![allow(unsafe_code, reason = "code that runs inside a signal")]

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::gettid;
use signal_hook::SigId;

/// Dropping it ends the signals.
#[derive(Debug)]
pub(super) struct SignalTimer {
    /// The signal sets it anew. One that finds it locked has interrupted the thread just
    /// while that sets it, so it need not.
    timer: Arc<Mutex<Option<Handle>>>,
    registered: SigId,
    _alone: MutexGuard<'static, ()>,
}

/// The kernel's name of the timer.
#[derive(Debug)]
struct Handle(Timer);

// SAFETY: it is a number that any thread of the process may set or delete the timer by, one
// at a time, which the lock around it sees to.
unsafe impl Send for Handle {}

static ALONE: Mutex<()> = Mutex::new(());

const SIGNAL: Signal = Signal::SIGALRM;

impl SignalTimer {
    /// `act` is called inside of a signal: it may load and store atomics and read clocks,
    /// and nothing that allocates, locks or panics. If it returns a time, the signal comes
    /// again so much later.
    pub(super) fn new(
        act: impl Fn() -> Option<Duration> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let place = Arc::new(Mutex::new(None));
        let timer = Arc::clone(&place);
        let on_signal = move || {
            if let Some(after) = act()
                && let Ok(mut timer) = timer.try_lock()
            {
                // A timer that exists takes any time to expire at.
                let _ = set(&mut timer, Expiration::OneShot(at_least(after)));
            }
        };
        // SAFETY: the callers, all in this module's parent, keep to the rule above: both
        // actions load and store atomics. A lock that is only tried is an atomic as well.
        let registered = unsafe { signal_hook::low_level::register(SIGNAL as i32, on_signal) }?;
        let notify = SigevNotify::SigevThreadId {
            signal: SIGNAL,
            thread_id: gettid().as_raw(),
            si_value: 0,
        };
        let made = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(notify));
        let made = made.inspect_err(|_| {
            signal_hook::low_level::unregister(registered);
        })?;
        *lock(&place) = Some(Handle(made));
        Ok(Self {
            timer: place,
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
        self.set(Expiration::OneShot(at_least(after)))
    }

    /// None.
    pub(super) fn never(&mut self) -> io::Result<()> {
        self.set(Expiration::OneShot(Duration::ZERO.into()))
    }

    fn set(&mut self, expiration: Expiration) -> io::Result<()> {
        set(&mut lock(&self.timer), expiration)
    }
}

impl Drop for SignalTimer {
    fn drop(&mut self) {
        // One that is on its way finds no action, and does nothing.
        signal_hook::low_level::unregister(self.registered);
        lock(&self.timer).take();
    }
}

fn lock(timer: &Mutex<Option<Handle>>) -> MutexGuard<'_, Option<Handle>> {
    timer.lock().unwrap_or_else(PoisonError::into_inner)
}

fn set(timer: &mut Option<Handle>, expiration: Expiration) -> io::Result<()> {
    match timer {
        Some(Handle(timer)) => Ok(timer.set(expiration, TimerSetTimeFlags::empty())?),
        None => Ok(()),
    }
}

fn at_least(after: Duration) -> TimeSpec {
    after.max(Duration::from_nanos(1)).into()
}
