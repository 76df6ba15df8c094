//! The backup: what wakes a thread that blocks while events are pending.
//!
//! In a kernel the periodic timer interrupt asks for overdue events. A program
//! cannot be interrupted that way, and needs not be: a running thread passes
//! trigger states, and a blocked one is woken by [`TimerFd`] (a descriptor that
//! any event loop can wait for) or by an [`AlarmThread`] (for threads that park).
//!
//! So the paper's upper bound holds for a thread that checks whenever it is
//! woken and blocks only after [`IdleRule::enter`]. What no backup can help:
//! a thread that computes for long without a check, and the time for which the
//! scheduler lets it wait.

mod idle;
mod thread;
mod timer_fd;

use std::io;
use std::time::Duration;

pub use idle::{IdleRule, Until};
pub use thread::{Alarm, AlarmThread};
pub use timer_fd::TimerFd;

/// A timer that wakes a blocked thread once.
pub trait Backup {
    /// Wakes the thread `after` this moment, in place of any earlier order.
    ///
    /// # Errors
    ///
    /// What the kernel answers.
    fn arm(&mut self, after: Duration) -> io::Result<()>;

    /// Takes the order back.
    ///
    /// # Errors
    ///
    /// What the kernel answers.
    fn cancel(&mut self) -> io::Result<()>;

    /// Forgets an expiry that has been acted upon, so that the thread can block
    /// again.
    ///
    /// # Errors
    ///
    /// What the kernel answers.
    fn clear(&mut self) -> io::Result<()>;

    /// Blocks until the timer expires (or sooner, for no reason).
    ///
    /// # Errors
    ///
    /// What the kernel answers.
    fn wait(&mut self) -> io::Result<()>;
}

/// For how long a backup is armed that is to expire `span` from now by the clock of the events. The
/// two clocks differ: NTP alone makes the kernel's faster or slower by up to 500 parts in a million,
/// so a backup armed for 2 s could be late by a period. A long span is armed a thousandth short.
/// Its expiry finds nothing due, and the backup is armed again for the rest.
pub(crate) fn armed_for(span: Duration) -> Duration {
    if span < SHORT {
        return span;
    }
    span - span / 1024
}

/// In a shorter span the clocks differ by a twentieth of a millisecond at most.
const SHORT: Duration = Duration::from_millis(100);
