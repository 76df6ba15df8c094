//! Why nobody hears what a running guard does.

use std::io;

use plimsoll_kernel::error::{FAILED, LACKS};

/// Why a running guard cannot be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// The host refused something, or has no such interface.
    #[error(transparent)]
    Kernel(#[from] plimsoll_kernel::Error),
    /// Whether a guard runs is for root to see, and so is what it does.
    #[error(
        "only root can see whether a guard runs here, and ask it: run this as root, e.g. with sudo"
    )]
    NotRoot,
    /// Nobody guards the interface.
    #[error(
        "no guard runs on `{interface}` in this network namespace: `plimsoll guard {interface}` starts one"
    )]
    NotRunning {
        /// Its own name, by which a guard starts there.
        interface: String,
    },
    /// A guard runs, and says nothing.
    #[error("the guard of `{interface}` does not answer: it is ending, or too busy; ask again")]
    NoAnswer {
        /// As given.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

plimsoll_kernel::from_operations!(StatusError::Kernel);

impl StatusError {
    /// The exit code of a command that ends by it: 1 failed, 3 this host lacks
    /// something.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Kernel(error) => error.exit_code(),
            Self::NotRoot => LACKS,
            Self::NotRunning { .. } | Self::NoAnswer { .. } => FAILED,
        }
    }
}
