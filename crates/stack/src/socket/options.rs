//! Whether and how long a socket's calls wait.

use std::io;
use std::time::Duration;

use parking_lot::RwLock;

/// A socket's options, as its public methods of the same names set them.
#[derive(Debug, Default)]
pub(crate) struct Options(RwLock<Waits>);

/// What is sent to a group stays on the link (RFC 1112, 6.1; RFC 3493, 5.2).
const MULTICAST_TTL: u8 = 1;

/// What calls go by.
#[derive(Clone, Copy, Debug)]
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
    /// How many links what is sent to a group may pass.
    pub(crate) multicast_ttl: u8,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            nonblocking: false,
            read_timeout: None,
            write_timeout: None,
            busy_poll: Duration::ZERO,
            dont_fragment: false,
            multicast_ttl: MULTICAST_TTL,
        }
    }
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

    pub(crate) fn set_multicast_ttl(&self, ttl: u8) {
        self.0.write().multicast_ttl = ttl;
    }
}

/// The methods of a socket with `options` that say whether and how long its calls wait.
macro_rules! waiting_methods {
    ($socket:ty) => {
        impl $socket {
            /// Whether calls wait, or return `WouldBlock`.
            ///
            /// # Errors
            ///
            /// None; as in the standard library.
            pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
                self.options.set_nonblocking(nonblocking);
                Ok(())
            }

            /// How long a receiving call waits; none: for ever.
            ///
            /// # Errors
            ///
            /// `InvalidInput` for zero, as in the standard library.
            pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.options.set_read_timeout(timeout)
            }

            /// How long a sending call waits for room; none: for ever.
            ///
            /// # Errors
            ///
            /// `InvalidInput` for zero, as in the standard library.
            pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.options.set_write_timeout(timeout)
            }

            /// How long a receiving call waits.
            ///
            /// # Errors
            ///
            /// None; as in the standard library.
            pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
                Ok(self.options.get().read_timeout)
            }

            /// How long a sending call waits.
            ///
            /// # Errors
            ///
            /// None; as in the standard library.
            pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
                Ok(self.options.get().write_timeout)
            }
        }
    };
}
pub(crate) use waiting_methods;

/// Refuses a timeout of zero, as the standard library does.
fn nonzero(timeout: Option<Duration>) -> io::Result<Option<Duration>> {
    match timeout {
        Some(Duration::ZERO) => Err(io::ErrorKind::InvalidInput.into()),
        timeout => Ok(timeout),
    }
}
