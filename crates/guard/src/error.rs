//! Why the program cannot be loaded, attached or read.

use plimsoll_core::config::ConfigError;
use plimsoll_kernel::error::{LACKS, USED_WRONGLY};

/// Why a [`Guard`](crate::Guard) cannot start or go on. What is done with a running
/// guard from outside has errors of its own: [`session`](crate::session) and
/// [`status`](crate::status).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The host refused something, or lacks it.
    #[error(transparent)]
    Kernel(#[from] plimsoll_kernel::Error),
}

plimsoll_kernel::from_operations!(Error::Kernel);

impl Error {
    /// The exit code of a command that ends by it: 1 failed, 2 used wrongly, 3 this
    /// host lacks something.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => USED_WRONGLY,
            Self::Kernel(error) => error.exit_code(),
        }
    }

    /// True if this host lacks something.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.exit_code() == LACKS
    }
}
