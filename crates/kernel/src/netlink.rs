//! Requests by netlink(7). Whoever asks the kernel by it does so through [`Socket`].
//!
//! netlink-socket2 0.3.5 says `EPERM` of each socket that it cannot open. So a process that had
//! used up its descriptors was told to run as root.

use std::fmt;
use std::io;

use netlink_bindings::traits::NetlinkRequest;
use netlink_socket2::{NetlinkReply, NetlinkSocket};
use nix::errno::Errno;

/// A socket of the network namespace that it was first used in.
#[derive(Default)]
pub struct Socket(NetlinkSocket);

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").finish_non_exhaustive()
    }
}

impl Socket {
    /// Not used yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends a request, whose replies are to be received.
    ///
    /// # Errors
    ///
    /// No socket can be opened, and why; the kernel does not take the request, or has no such
    /// family of them (`NotFound`).
    pub fn request<R: NetlinkRequest>(&mut self, request: &R) -> io::Result<NetlinkReply<'_, R>> {
        // What a family's look-up answers is no error of a call.
        Errno::clear();
        self.0
            .request(request)
            .map_err(|error| match Errno::last() {
                Errno::UnknownErrno => error,
                last if error.raw_os_error() == Some(libc::EPERM) => last.into(),
                _ => error,
            })
    }
}

#[cfg(test)]
mod tests {
    use netlink_bindings::traits::Protocol;

    use super::*;

    /// Of a protocol or family that no kernel has.
    struct Unknown(fn() -> Protocol);

    impl NetlinkRequest for Unknown {
        type ReplyType<'buf> = ();

        fn protocol(&self) -> Protocol {
            (self.0)()
        }

        fn flags(&self) -> u16 {
            0
        }

        fn payload(&self) -> &[u8] {
            &[]
        }

        fn decode_reply(_: &[u8]) -> Self::ReplyType<'_> {}
    }

    fn refused(protocol: fn() -> Protocol) -> Option<i32> {
        let mut socket = Socket::new();
        let refused = socket.request(&Unknown(protocol)).err();
        refused.expect("no kernel has it").raw_os_error()
    }

    /// A process without a descriptor left would be told to run as root.
    #[test]
    fn a_socket_that_cannot_be_opened_keeps_the_kernels_answer() {
        let unknown = || Protocol::Raw {
            protonum: u16::MAX,
            request_type: 0,
        };
        assert_eq!(refused(unknown), Some(libc::EPROTONOSUPPORT));
    }

    #[test]
    fn a_family_that_the_kernel_lacks_is_not_found_whatever_failed_before() {
        Errno::EMFILE.set();
        let unknown = || Protocol::Generic(b"plimsoll-none");
        assert_eq!(refused(unknown), Some(libc::ENOENT));
    }
}
