//! A timer file descriptor: the backup of programs with an event loop.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{self, ClockId, Expiration, TimerFlags, TimerSetTimeFlags};

use super::Backup;

/// A one-shot timer on the kernel's monotonic clock, readable once expired.
///
/// It rides on a high-resolution timer, so that the timer slack (50 µs for
/// `epoll_wait` with a timeout, by default) does not delay it. Wait for it
/// without a timeout.
#[derive(Debug)]
pub struct TimerFd(timerfd::TimerFd);

impl TimerFd {
    /// A disarmed timer. It does not block when read and is closed on `exec`.
    ///
    /// # Errors
    ///
    /// The process has too many descriptors.
    pub fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = timerfd::TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        Ok(Self(timer))
    }

    /// [`Backup::arm`] for several threads: the kernel keeps them apart.
    pub(crate) fn arm_shared(&self, after: Duration) -> io::Result<()> {
        // Zero would disarm it, and the kernel's seconds are signed.
        let after = after.clamp(Duration::from_nanos(1), Duration::from_nanos(u64::MAX));
        let after = TimeSpec::from_duration(after);
        let relative = TimerSetTimeFlags::empty();
        Ok(self.0.set(Expiration::OneShot(after), relative)?)
    }

    /// [`Backup::clear`] for several threads.
    pub(crate) fn clear_shared(&self) -> io::Result<()> {
        match self.0.wait() {
            // Nothing had expired.
            Ok(()) | Err(Errno::EAGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Backup for TimerFd {
    fn arm(&mut self, after: Duration) -> io::Result<()> {
        self.arm_shared(after)
    }

    fn cancel(&mut self) -> io::Result<()> {
        Ok(self.0.unset()?)
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_shared()
    }

    fn wait(&mut self) -> io::Result<()> {
        let mut ready = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for TimerFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn it_wakes_once_and_not_before_its_time() {
        let mut timer = TimerFd::new().unwrap();
        let start = Instant::now();
        timer.arm(Duration::from_millis(2)).unwrap();
        timer.wait().unwrap();
        assert!(start.elapsed() >= Duration::from_millis(2));
        timer.clear().unwrap();
        let mut ready = [PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut ready, PollTimeout::ZERO).unwrap(), 0);
    }

    #[test]
    fn no_time_at_all_expires_at_once_and_a_cancelled_one_never() {
        let mut timer = TimerFd::new().unwrap();
        timer.arm(Duration::ZERO).unwrap();
        timer.wait().unwrap();
        timer.arm(Duration::from_millis(1)).unwrap();
        timer.cancel().unwrap();
        let mut ready = [PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut ready, PollTimeout::from(5_u8)).unwrap(), 0);
    }

    /// The kernel had refused what its seconds do not hold.
    #[test]
    fn any_time_is_one_to_wait_for() {
        let mut timer = TimerFd::new().unwrap();
        for long in [Duration::MAX, Duration::from_secs(u64::MAX / 2 + 1)] {
            timer.arm(long).unwrap();
            let mut ready = [PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut ready, PollTimeout::ZERO).unwrap(), 0, "{long:?}");
        }
    }
}
