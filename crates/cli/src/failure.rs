//! How a command fails: what is said, and whose fault it is, as an exit code.
//!
//! A [`Failure`] is made only of errors that know their exit code. So an error of a
//! new type does not compile until somebody has decided on its code, and none ends
//! with 1 by accident.

use std::error::Error;
use std::fmt;
use std::io;

use plimsoll_kernel::error::with_causes;
pub(crate) use plimsoll_kernel::error::{FAILED, LACKS, USED_WRONGLY};

/// How a command ends.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// An error that knows its exit code.
pub(crate) trait Fails: Error + Send + Sync + Sized + 'static {
    /// The exit code of a command that ends by it.
    fn exit_code(&self) -> u8;
}

/// An error on its way to the operator.
pub(crate) struct Failure {
    /// What was being done, the innermost first.
    context: Vec<String>,
    error: Box<dyn Error + Send + Sync>,
    exit_code: u8,
}

impl Failure {
    /// The exit code of a command that ends by it.
    pub(crate) const fn exit_code(&self) -> u8 {
        self.exit_code
    }

    /// The error, if it is of this type.
    pub(crate) fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.error.downcast_ref()
    }

    /// Adds what was being done.
    pub(crate) fn context(mut self, text: impl Into<String>) -> Self {
        self.context.push(text.into());
        self
    }

    /// Whether writing failed because whoever reads the output has gone.
    pub(crate) fn reader_is_gone(&self) -> bool {
        if !self.may_be_of_output() {
            return false;
        }
        let mut cause: Option<&(dyn Error + 'static)> = Some(self.error.as_ref());
        while let Some(error) = cause {
            let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
            let json = error.downcast_ref::<serde_json::Error>();
            let kind = io.or_else(|| json.and_then(serde_json::Error::io_error_kind));
            if kind == Some(io::ErrorKind::BrokenPipe) {
                return true;
            }
            cause = error.source();
        }
        false
    }

    /// Whether it came from writing results. A library's broken pipe is its own: a socket of a
    /// stack that has failed says that too.
    fn may_be_of_output(&self) -> bool {
        use plimsoll_guard::session::SessionError;
        use plimsoll_programs::capture;
        let session = self.downcast_ref::<SessionError>();
        let capture = self.downcast_ref::<capture::Error>();
        self.error.is::<io::Error>()
            || self.error.is::<serde_json::Error>()
            || session.is_some_and(|error| matches!(error, SessionError::Console(_)))
            || capture.is_some_and(|error| {
                matches!(
                    error,
                    capture::Error::Create { .. } | capture::Error::Write { .. }
                )
            })
    }
}

impl<E: Fails> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            context: Vec::new(),
            exit_code: error.exit_code(),
            error: Box::new(error),
        }
    }
}

/// The context, the error and its causes on one line.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for text in self.context.iter().rev() {
            write!(f, "{text}: ")?;
        }
        f.write_str(&with_causes(self.error.as_ref()))
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} (exit code {})", self.exit_code)
    }
}

/// Says what was being done when an error came.
pub(crate) trait Context<T> {
    /// With a text that is there.
    fn context(self, text: &str) -> Result<T>;
    /// With a text that is made for it.
    fn with_context(self, text: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Failure>> Context<T> for std::result::Result<T, E> {
    fn context(self, text: &str) -> Result<T> {
        self.map_err(|error| error.into().context(text))
    }

    fn with_context(self, text: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| error.into().context(text()))
    }
}

/// A command line that makes no sense beyond what clap tells.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) &'static str);

/// This host lacks something, and what that is has been said.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Lacks(pub(crate) String);

/// What was asked for is not there now.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Absent(pub(crate) &'static str);

/// What was measured is less than what is promised.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Missed(pub(crate) String);

/// Errors of others, and the command's own, by their codes.
macro_rules! fails {
    ($($error:ty => $code:expr,)*) => {
        $(impl Fails for $error {
            fn exit_code(&self) -> u8 {
                $code
            }
        })*
    };
}

fails! {
    Usage => USED_WRONGLY,
    Lacks => LACKS,
    Absent => FAILED,
    Missed => FAILED,
    clap::Error => USED_WRONGLY,
    std::time::TryFromFloatSecsError => USED_WRONGLY,
    io::Error => FAILED,
    serde_json::Error => FAILED,
    plimsoll_metrics::MetricsError => FAILED,
    plimsoll_report::plot::PlotError => FAILED,
}

/// Errors of our libraries: each says its code itself.
macro_rules! fails_as_it_says {
    ($($error:ty,)*) => {
        $(impl Fails for $error {
            fn exit_code(&self) -> u8 {
                <$error>::exit_code(self)
            }
        })*
    };
}

fails_as_it_says! {
    plimsoll_bench::Error,
    plimsoll_guard::Error,
    plimsoll_guard::session::SessionError,
    plimsoll_guard::session::SettingsError,
    plimsoll_guard::status::StatusError,
    plimsoll_kernel::error::CallError,
    plimsoll_kernel::error::OpenError,
    plimsoll_lab::Error,
    plimsoll_programs::capture::ArrivalsError,
    plimsoll_programs::capture::Error,
    plimsoll_programs::forward::Error,
    plimsoll_programs::screen::Error,
    plimsoll_testbed::Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_all_on_one_line_and_keeps_its_code() {
        let error = io::Error::from(io::ErrorKind::NotFound);
        let failed = Err::<(), _>(error).context("cannot read a").unwrap_err();
        let failed = Err::<(), _>(failed).context("cannot start").unwrap_err();
        assert_eq!(
            failed.to_string(),
            "cannot start: cannot read a: entity not found"
        );
        assert_eq!(failed.exit_code(), FAILED);
        assert_eq!(Failure::from(Usage("no")).context("so").exit_code(), 2);
        assert_eq!(Failure::from(Lacks("no".to_owned())).exit_code(), 3);
    }

    #[test]
    fn a_reader_that_is_gone_is_found_among_the_causes() {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let session = plimsoll_guard::session::SessionError::Console(gone());
        assert!(Failure::from(session).reader_is_gone());
        assert!(Failure::from(serde_json::Error::io(gone())).reader_is_gone());
        assert!(!Failure::from(Usage("no")).reader_is_gone());
    }

    /// What an error says ended with its cause, and the cause came again behind it.
    #[test]
    fn no_cause_is_said_twice() {
        use plimsoll_programs::{capture, screen};
        let source = || io::Error::from_raw_os_error(2);
        let testbed = plimsoll_testbed::Error::Io {
            action: "serve".to_owned(),
            source: source(),
        };
        let path = std::path::PathBuf::from("file");
        let failures: [Failure; 8] = [
            testbed.into(),
            plimsoll_kernel::error::os::<io::Error>("wait")(source()).into(),
            capture::Error::Create {
                path: path.clone(),
                source: source(),
            }
            .into(),
            capture::Error::Write {
                what: "file".to_owned(),
                source: source(),
                packets: 1,
            }
            .into(),
            capture::Error::Io {
                action: "wait",
                source: source(),
            }
            .into(),
            screen::Error::Read {
                path,
                source: source(),
            }
            .into(),
            screen::Error::Ended {
                source: source(),
                counts: Box::default(),
            }
            .into(),
            screen::Error::Io {
                action: "wait",
                source: source(),
            }
            .into(),
        ];
        for failure in failures {
            let said = failure.to_string();
            assert_eq!(said.matches("os error 2").count(), 1, "{said}");
        }
    }

    /// It had ended `serve` with success when its interface was deleted.
    #[test]
    fn a_broken_pipe_of_a_library_is_no_reader_that_is_gone() {
        let source = io::Error::new(io::ErrorKind::BrokenPipe, "the interface is gone");
        let action = "serve".to_owned();
        let failed = Failure::from(plimsoll_testbed::Error::Io { action, source });
        assert!(!failed.reader_is_gone());
        assert_eq!(failed.exit_code(), FAILED);
        let failed = failed.to_string();
        assert!(failed.contains("the interface is gone"), "{failed}");
    }
}
