//! What can go wrong, whose fault it is, and the remedy.

use std::io;
use std::net::{IpAddr, SocketAddr};

use plimsoll_core::config::ConfigError;
use plimsoll_core::pacing::FlowId;
use plimsoll_kernel::error::{FAILED, LACKS, USED_WRONGLY, remedy};

/// Why a device or a stack could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This process may not do that.
    #[error(
        "cannot {action}: this needs {capability}; run as root, or give the program that capability"
    )]
    NotPermitted {
        /// What was tried.
        action: &'static str,
        /// The capabilities it takes.
        capability: &'static str,
    },
    /// The interface has no such receive queue.
    #[error(
        "{interface} has no receive queue {queue}: `ethtool -l {interface}` tells how many it has"
    )]
    NoSuchQueue {
        /// The interface.
        interface: String,
        /// The queue that was asked for.
        queue: u32,
    },
    /// Somebody else uses it.
    #[error("{what} is in use by another program: {remedy}")]
    Busy {
        /// What is in use.
        what: String,
        /// How to find or end the other one.
        remedy: String,
    },
    /// The kernel has the address that the stack is to have for itself.
    #[error(
        "the kernel has {address} on {interface}, so the stack cannot have it for itself: {remedy}"
    )]
    KernelsAddress {
        /// The address.
        address: IpAddr,
        /// Where the kernel has it.
        interface: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The interface or kernel lacks something.
    #[error("{what} does not support {feature}: {remedy}")]
    Unsupported {
        /// Who does not.
        what: String,
        /// What is missing.
        feature: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// Frames of this interface are longer than a buffer.
    #[error(
        "{interface} has an MTU of {mtu} bytes; a frame must fit one buffer (frames of several buffers are not supported), so at most {max} are possible: `ip link set {interface} mtu {max}`"
    )]
    MtuTooLarge {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu: usize,
        /// The largest that works.
        max: usize,
    },
    /// A setting cannot be worked with.
    #[error("{field} = {given}: must be {allowed}")]
    Config {
        /// The setting.
        field: &'static str,
        /// What was given.
        given: String,
        /// What would be accepted.
        allowed: &'static str,
    },
    /// The kernel refuses the XDP program, or what is done with it.
    #[error(transparent)]
    Kernel(#[from] plimsoll_kernel::Error),
    /// A system call failed.
    #[error("cannot {action}{}", remedy(.action, .source))]
    Io {
        /// What was tried.
        action: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Error {
    /// The exit code of a command that ends by it: 1 failed, 2 used wrongly, 3 this
    /// host lacks something (a privilege, a feature).
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config { .. } | Self::KernelsAddress { .. } => USED_WRONGLY,
            Self::NotPermitted { .. } | Self::NoSuchQueue { .. } | Self::Unsupported { .. } => {
                LACKS
            }
            Self::Kernel(error) => error.exit_code(),
            Self::Busy { .. } | Self::MtuTooLarge { .. } | Self::Io { .. } => FAILED,
        }
    }

    /// Whether this host lacks something.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.exit_code() == LACKS
    }

    /// Whether the caller asked for something impossible.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        self.exit_code() == USED_WRONGLY
    }

    /// An [`Error::Io`] maker for `map_err`.
    pub(crate) fn io<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        let action = action.into();
        move |source| Self::Io {
            action,
            source: source.into(),
        }
    }

    /// Like [`io`](Self::io), but a refusal names what it takes.
    pub(crate) fn privileged<E: Into<io::Error>>(
        action: &'static str,
        capability: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |source| {
            let source = source.into();
            match source.kind() {
                io::ErrorKind::PermissionDenied => Self::NotPermitted { action, capability },
                _ => Self::Io {
                    action: action.to_owned(),
                    source,
                },
            }
        }
    }
}

plimsoll_kernel::from_operations!(Error::Kernel);

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config {
            field: error.field,
            given: error.given.to_string(),
            allowed: error.allowed,
        }
    }
}

/// Somebody has that address already.
pub(crate) fn address_in_use(at: SocketAddr) -> io::Error {
    io::Error::new(
        io::ErrorKind::AddrInUse,
        format!("{at} is in use by another socket of this stack"),
    )
}

/// A datagram does not go in one packet, and its socket was told not to cut it
/// ([`UdpSocket::set_dont_fragment`](crate::UdpSocket::set_dont_fragment)). Found inside of an
/// [`io::Error`] of the kind `InvalidInput`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{payload} bytes do not go to {to} in one packet: send at most {payload_max}, or allow fragments (`set_dont_fragment(false)`)"
)]
pub struct TooLong {
    /// Where it was to go.
    pub to: IpAddr,
    /// Its payload, in bytes.
    pub payload: usize,
    /// The longest that goes there.
    pub payload_max: usize,
}

impl From<TooLong> for io::Error {
    fn from(error: TooLong) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// A flow of a [`PacedSender`](crate::PacedSender) could not send. Found inside of an [`io::Error`] of the kind of
/// its cause.
#[derive(Debug, thiserror::Error)]
#[error("a paced flow to {to}: {cause}")]
pub struct FlowFailed {
    /// Which.
    pub flow: FlowId,
    /// Where it sends to.
    pub to: SocketAddr,
    /// Why.
    pub cause: io::Error,
}

impl From<FlowFailed> for io::Error {
    fn from(error: FlowFailed) -> Self {
        Self::new(error.cause.kind(), error)
    }
}

/// No more sockets may share that address.
pub(crate) fn group_full(at: SocketAddr, members_max: usize) -> io::Error {
    let why = format!("{members_max} sockets share {at} already: no more are possible");
    io::Error::new(io::ErrorKind::OutOfMemory, why)
}

/// A socket that shares its address serves everybody there.
pub(crate) fn shared(at: SocketAddr) -> io::Error {
    let why = format!("a socket that shares {at} cannot be connected: bind one of its own");
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_says_its_remedy() {
        for (number, remedy) in [
            (libc::EMFILE, "`ulimit -n`"),
            (libc::ENOMEM, "`ulimit -l`"),
            (libc::ENODEV, "`ip link`"),
        ] {
            let source = io::Error::from_raw_os_error(number);
            let error = Error::io("open a socket")(source);
            assert!(error.to_string().contains(remedy), "{error}");
            assert_eq!(error.exit_code(), FAILED);
        }
    }
}
