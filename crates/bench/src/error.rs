//! What can go wrong in a comparison.

use plimsoll_kernel::error::{FAILED, LACKS};

/// Why a comparison could not be made. Missing a goal is no error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The testbed, a server or a tool failed.
    #[error(transparent)]
    Testbed(#[from] plimsoll_testbed::Error),
    /// The recorder of trigger states failed.
    #[error(transparent)]
    Triggers(#[from] plimsoll_timers_bpf::Error),
    /// `plimsoll guard` did not start or did not say what it should.
    #[error("plimsoll guard {problem}")]
    Guard {
        /// What it did instead.
        problem: String,
    },
    /// This host lacks something that the guard needs, by its own check.
    #[error("the guard cannot run on this host: {missing}")]
    GuardLacks {
        /// What is missing.
        missing: String,
    },
    /// A program that is measured did not do what it is there for.
    #[error("{tool} {problem}")]
    Tool {
        /// The program.
        tool: &'static str,
        /// What it did instead.
        problem: String,
    },
    /// This guard cannot do what is to be measured.
    #[error("this guard has no option {option}")]
    MissingOption {
        /// The option that it would need.
        option: &'static str,
    },
    /// A document of another bench, which is read and not measured here.
    #[error("{file}: {problem}")]
    Document {
        /// The file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Our own traffic could not be sent or received.
    #[error("cannot {action}")]
    Traffic {
        /// What was being done.
        action: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// Packets are lost at any rate, so that nothing can be compared.
    #[error("packets are lost at {rate_pps} packets/s already: is the machine busy?")]
    NoLossFreeRate {
        /// The lowest rate tried.
        rate_pps: u64,
    },
}

impl Error {
    /// True if nothing else can be measured either: this host lacks something,
    /// the plan is wrong, or somebody ended the run.
    pub(crate) fn is_fatal(&self) -> bool {
        use plimsoll_testbed::Error as Testbed;
        self.is_missing()
            || matches!(
                self,
                Self::Testbed(Testbed::Interrupted | Testbed::Config { .. })
            )
    }

    /// The exit code of a command that ends by it: 1 failed, 2 used wrongly, 3 this
    /// host lacks something.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Testbed(error) => error.exit_code(),
            Self::Triggers(error) if error.is_missing() => LACKS,
            Self::GuardLacks { .. } => LACKS,
            Self::Triggers(_)
            | Self::Guard { .. }
            | Self::Tool { .. }
            | Self::MissingOption { .. }
            | Self::Document { .. }
            | Self::Traffic { .. }
            | Self::NoLossFreeRate { .. } => FAILED,
        }
    }

    /// True if that is a program, which can be installed.
    #[must_use]
    pub fn is_missing_program(&self) -> bool {
        use plimsoll_testbed::Error as Testbed;
        matches!(self, Self::Testbed(Testbed::MissingProgram { .. }))
    }

    /// True if this host lacks something that the comparison needs.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.exit_code() == LACKS
    }
}
