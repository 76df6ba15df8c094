//! What can go wrong, and what to do about it.

use std::io;

use plimsoll_core::config::ConfigError;

/// Why the guard cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The host refused something, or lacks it.
    #[error(transparent)]
    Kernel(#[from] plimsoll_kernel::Error),
    /// A running guard answers root only.
    #[error("the guard of `{interface}` answers root only: run this as root, e.g. with sudo")]
    NotRoot {
        /// As given.
        interface: String,
    },
    /// Nobody guards the interface.
    #[error(
        "no guard runs on `{interface}` in this network namespace: `plimsoll guard {interface}` starts one"
    )]
    NotRunning {
        /// As given.
        interface: String,
    },
    /// Metrics cannot be served at the address asked for.
    #[error("cannot listen at {address}: choose an address of this host and a port that is free")]
    Listen {
        /// As given.
        address: std::net::SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Error {
    /// True if this host lacks something, false if the call or its arguments
    /// were wrong or the work itself failed.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        match self {
            Self::Kernel(error) => error.is_missing(),
            Self::NotRoot { .. } => true,
            _ => false,
        }
    }
}
