//! Whether a socket's calls would have to wait.

use std::ops::BitOr;

/// What a socket is waited for, and what it is ready for: see
/// [`UdpSocket::poll`](crate::UdpSocket::poll), [`TcpStream::poll`](crate::TcpStream::poll) and
/// [`TcpListener::poll`](crate::TcpListener::poll).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Receiving or accepting does not wait: there is something, or an error, or the end.
    pub readable: bool,
    /// Sending does not wait: there is room, or an error.
    pub writable: bool,
}

impl Readiness {
    /// Neither.
    pub const NONE: Self = Self::of(false, false);
    /// To receive.
    pub const READABLE: Self = Self::of(true, false);
    /// To send.
    pub const WRITABLE: Self = Self::of(false, true);
    /// Both.
    pub const BOTH: Self = Self::of(true, true);

    const fn of(readable: bool, writable: bool) -> Self {
        Self { readable, writable }
    }
}

impl BitOr for Readiness {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        let (one, other) = (self, other);
        Self::of(
            one.readable || other.readable,
            one.writable || other.writable,
        )
    }
}
