//! Why a firewall could not begin, or ended.

use std::io;
use std::path::PathBuf;

use plimsoll_kernel::error::{FAILED, USED_WRONGLY, read_remedy, remedy};

use super::Counts;
use crate::filter::FilterError;

/// See the variants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting cannot be worked with.
    #[error("{field} must be {allowed}")]
    Config {
        /// The setting.
        field: &'static str,
        /// What would be accepted.
        allowed: &'static str,
    },
    /// A file of rules cannot be read.
    #[error("cannot read {path}{}", read_remedy(.source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file of rules is not one.
    #[error("{path}: {why}")]
    Rules {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        why: String,
    },
    /// A filter is none.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// An interface could not be opened.
    #[error(transparent)]
    Interface(#[from] plimsoll_stack::Error),
    /// The driver's program cannot be loaded or talked to.
    #[error(transparent)]
    Kernel(#[from] plimsoll_kernel::Error),
    /// An interface failed while frames were screened.
    #[error("cannot receive or send frames{}", remedy("receive or send frames", .source))]
    Ended {
        /// The kernel's answer.
        source: io::Error,
        /// What became of all frames until then.
        counts: Box<Counts>,
    },
    /// A device failed.
    #[error("cannot {action}{}", remedy(.action, .source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

plimsoll_kernel::from_operations!(Error::Kernel);

impl Error {
    /// What became of frames until then, if any were screened.
    #[must_use]
    pub fn counts(&self) -> Option<&Counts> {
        match self {
            Self::Ended { counts, .. } => Some(counts),
            _ => None,
        }
    }

    /// The exit code of a command that ends by it: 1 failed, 2 used wrongly, 3 this host
    /// lacks something.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config { .. } | Self::Rules { .. } | Self::Filter(_) => USED_WRONGLY,
            Self::Interface(error) => error.exit_code(),
            Self::Kernel(error) => error.exit_code(),
            Self::Read { .. } | Self::Io { .. } | Self::Ended { .. } => FAILED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failed_call_says_its_remedy() {
        let source = || io::Error::from_raw_os_error(nix::libc::EMFILE);
        let counts = Box::default();
        for error in [
            Error::Read {
                path: "rules".into(),
                source: source(),
            },
            Error::Ended {
                source: source(),
                counts,
            },
            Error::Io {
                action: "wait",
                source: source(),
            },
        ] {
            assert!(error.to_string().contains("`ulimit -n`"), "{error}");
            assert_eq!(error.exit_code(), FAILED);
        }
    }
}
