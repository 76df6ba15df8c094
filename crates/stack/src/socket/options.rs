//! Whether and how long a socket's calls wait.

use std::io;
use std::time::Duration;

use parking_lot::RwLock;

/// A socket's options, as its public methods of the same names set them.
#[derive(Debug, Default)]
pub(crate) struct Options(RwLock<Waits>);

/// What calls go by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waits {
    pub(crate) nonblocking: bool,
    /// None: for ever.
    pub(crate) read_timeout: Option<Duration>,
    /// None: for ever.
    pub(crate) write_timeout: Option<Duration>,
    /// How long a call looks again before it sleeps.
    pub(crate) busy_poll: Duration,
    /// Datagrams go in one packet or not at all.
    pub(crate) dont_fragment: bool,
}

impl Options {
    pub(crate) fn get(&self) -> Waits {
        *self.0.read()
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.0.write().nonblocking = nonblocking;
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.write().read_timeout = nonzero(timeout)?;
        Ok(())
    }

    pub(crate) fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.write().write_timeout = nonzero(timeout)?;
        Ok(())
    }
}

/// Sockets of datagrams only: those of streams are served by a thread that must run.
impl Options {
    pub(crate) fn set_busy_poll(&self, busy_poll: Duration) {
        self.0.write().busy_poll = busy_poll;
    }

    pub(crate) fn set_dont_fragment(&self, dont_fragment: bool) {
        self.0.write().dont_fragment = dont_fragment;
    }
}

/// Refuses a timeout of zero, as the standard library does.
fn nonzero(timeout: Option<Duration>) -> io::Result<Option<Duration>> {
    match timeout {
        Some(Duration::ZERO) => Err(io::ErrorKind::InvalidInput.into()),
        timeout => Ok(timeout),
    }
}
