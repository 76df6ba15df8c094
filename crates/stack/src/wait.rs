//! Waiting for descriptors, and waking who waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// A descriptor that is readable once it was woken, until it is cleared.
#[derive(Debug)]
pub(crate) struct Waker(EventFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self(EventFd::from_value_and_flags(0, flags)?))
    }

    pub(crate) fn wake(&self) {
        // Fails only if it is readable already.
        let _ = self.0.write(1);
    }

    pub(crate) fn clear(&self) {
        // Fails only if there was nothing to clear.
        let _ = self.0.read();
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of the descriptors is readable, at most for `limit` (for
/// ever without one). Returns which are; a signal counts as none.
pub(crate) fn wait_any<const N: usize>(
    descriptors: [BorrowedFd<'_>; N],
    limit: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled = descriptors.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    match poll(&mut polled, timeout(limit)) {
        Ok(_) => Ok(polled.map(|fd| fd.any().unwrap_or(true))),
        Err(Errno::EINTR) => Ok([false; N]),
        Err(error) => Err(error.into()),
    }
}

/// Whether a descriptor says that there is room to send, or an error.
pub(crate) fn is_writable(descriptor: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(descriptor, PollFlags::POLLOUT)];
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// In milliseconds, rounded up, so that nobody wakes before the time.
fn timeout(limit: Option<Duration>) -> PollTimeout {
    limit.map_or(PollTimeout::NONE, |limit| {
        let millis = limit.as_micros().div_ceil(1000);
        PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
    })
}
