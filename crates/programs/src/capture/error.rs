//! Why a capture could not begin, or ended early.

use std::io;
use std::path::PathBuf;

use plimsoll_core::config::ConfigError;
use plimsoll_kernel::error::{FAILED, USED_WRONGLY, file_remedy, remedy};

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
    /// The filter is none.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The interface could not be opened.
    #[error(transparent)]
    Interface(#[from] plimsoll_stack::Error),
    /// A file could not be made.
    #[error("cannot make {path}{}", file_remedy(.source))]
    Create {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Writing failed; what could be written is whole.
    #[error(
        "cannot write {what}{}; {packets} packets are lost there",
        file_remedy(.source)
    )]
    Write {
        /// The file.
        what: String,
        /// The first failure.
        source: io::Error,
        /// Packets that were lost so.
        packets: u64,
    },
    /// A device or a clock failed.
    #[error("cannot {action}{}", remedy(.action, .source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Error {
    /// The exit code of a command that ends by it: 1 failed, 2 used wrongly, 3 this host
    /// lacks something.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config { .. } | Self::Filter(_) => USED_WRONGLY,
            Self::Interface(error) => error.exit_code(),
            Self::Create { .. } | Self::Write { .. } | Self::Io { .. } => FAILED,
        }
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config {
            field: error.field,
            allowed: error.allowed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failed_call_says_its_remedy() {
        let answer = io::Error::from_raw_os_error;
        let what = "a.pcapng".to_owned();
        for (error, remedy) in [
            (
                Error::Create {
                    path: "a.pcapng".into(),
                    source: answer(nix::libc::EROFS),
                },
                "can be written",
            ),
            (
                Error::Write {
                    what,
                    source: answer(nix::libc::ENOSPC),
                    packets: 1,
                },
                "free space",
            ),
            (
                Error::Io {
                    action: "wait",
                    source: answer(nix::libc::EMFILE),
                },
                "`ulimit -n`",
            ),
        ] {
            assert!(error.to_string().contains(remedy), "{error}");
            assert_eq!(error.exit_code(), FAILED);
        }
    }
}
