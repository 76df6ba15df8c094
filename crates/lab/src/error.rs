//! What can go wrong in the lab.

use std::io;
use std::path::PathBuf;

/// Why an experiment could not be read, run or reported.
///
/// A claim that does not hold is a result, not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An experiment file says something that cannot be.
    #[error("{file}: {key}: {problem}; {remedy}")]
    File {
        /// The file, as it was named.
        file: String,
        /// The key at fault, dotted.
        key: String,
        /// What is wrong with it.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
    /// The user asked for something that does not exist, or in a wrong way.
    #[error("{what} {given:?} is not known; {remedy}")]
    Unknown {
        /// The kind of thing, for example `experiment`.
        what: &'static str,
        /// What was asked for.
        given: String,
        /// What there is instead.
        remedy: String,
    },
    /// A name for several experiments means none here.
    #[error("no experiment is meant by {group:?}; {remedy}")]
    Empty {
        /// `all` or `real`.
        group: String,
        /// What there is instead.
        remedy: String,
    },
    /// A file of results could not be read or written.
    #[error("cannot use {}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A point could not be measured with real packets.
    #[error("{what} on the testbed")]
    Testbed {
        /// Curve and value.
        what: String,
        /// Whether nothing else can be measured either.
        fatal: bool,
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Trials of a machine are not complete: a mistake of whoever ran them.
    #[error("trial `{trial}` has no value for each repeat")]
    Calibration {
        /// The trial.
        trial: &'static str,
    },
    /// The model contradicts itself: our own mistake.
    #[error("{what}: the model contradicts itself, please report this")]
    Model {
        /// Experiment, curve and value.
        what: String,
        /// What does not add up.
        source: plimsoll_sim::Error,
    },
    /// A plot could not be drawn: our own mistake.
    #[error(transparent)]
    Plot(#[from] plimsoll_report::plot::PlotError),
}

impl Error {
    /// An error in the experiment file `file` at `key`.
    pub(crate) fn file(
        file: &str,
        key: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::File {
            file: file.to_owned(),
            key: key.into(),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    /// The exit code of a command that ends by it: 1 failed, 2 used wrongly.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::File { .. } | Self::Unknown { .. } | Self::Empty { .. } => 2,
            Self::Io { .. }
            | Self::Testbed { .. }
            | Self::Calibration { .. }
            | Self::Model { .. }
            | Self::Plot { .. } => 1,
        }
    }

    /// This error and its causes in one line.
    #[must_use]
    pub fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }

    /// True if the user, not this program or this host, has to change something.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        self.exit_code() == 2
    }
}
