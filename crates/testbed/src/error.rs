//! What can go wrong, and whose fault it is.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use plimsoll_kernel::error::{FAILED, LACKS, USED_WRONGLY, remedy};

/// Why the testbed could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process is not root.
    #[error("the testbed makes network namespaces and BPF programs: run it as root (sudo)")]
    NotRoot,
    /// A program that is run is not installed.
    #[error("{program} is not installed: install the package {package}")]
    MissingProgram {
        /// The program, as it is called.
        program: String,
        /// The Debian package that brings it.
        package: &'static str,
    },
    /// There is no CPU left for one of the hosts.
    #[error(
        "CPU {cpu} is not online (online: {online:?}): load host and test host need one CPU each"
    )]
    MissingCpu {
        /// The CPU that was asked for.
        cpu: usize,
        /// The CPUs this machine has running.
        online: Vec<usize>,
    },
    /// The kernel lacks a feature.
    #[error("this kernel lacks {feature}: {detail}")]
    MissingKernelFeature {
        /// The feature, as the kernel's configuration or documentation calls it.
        feature: &'static str,
        /// What was tried and what came back.
        detail: String,
    },
    /// The caller's configuration cannot be worked with.
    #[error("{field} = {given}: must be {allowed}")]
    Config {
        /// The config's field.
        field: &'static str,
        /// The value that was given.
        given: String,
        /// What would be accepted.
        allowed: &'static str,
    },
    /// The load generator may not or cannot send on an interface.
    #[error("cannot send on {interface}: {why}")]
    UnfitInterface {
        /// The interface's name.
        interface: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// SIGINT or SIGTERM arrived: unwind, so that everything is taken down.
    #[error("interrupted")]
    Interrupted,
    /// Something did not happen in time.
    #[error(
        "{what} did not happen within {after:?}: is the machine busy? Try again when it is idle"
    )]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// Receive work does not happen where the placement should have put it.
    #[error(
        "placement failed: {0}; stop what moves interrupts or receive work (irqbalance, tuned), and try again"
    )]
    Placement(String),
    /// A program of ours ended with a failure.
    #[error("{program} failed ({status}), put right what it says: {output}")]
    Failed {
        /// The program.
        program: String,
        /// Its exit status.
        status: String,
        /// The end of what it said.
        output: String,
    },
    /// The text of a kernel file or a tool was not as documented.
    #[error("cannot understand {what}: {detail}")]
    Parse {
        /// Which text.
        what: &'static str,
        /// Where it departs.
        detail: String,
    },
    /// The kernel refused something, or lacks it.
    #[error(transparent)]
    Kernel(#[from] plimsoll_kernel::Error),
    /// The user-space stack cannot do that here.
    #[error(transparent)]
    Stack(#[from] plimsoll_stack::Error),
    /// A system call failed.
    #[error("cannot {action}{}", remedy(.action, .source))]
    Io {
        /// What was tried, as the end of the sentence "cannot …".
        action: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

plimsoll_kernel::from_operations!(Error::Kernel);

impl Error {
    /// The exit code of a command that ends by it: 1 failed, 2 used wrongly, 3 this
    /// host lacks something.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config { .. } => USED_WRONGLY,
            Self::Kernel(error) => error.exit_code(),
            Self::Stack(error) => error.exit_code(),
            Self::NotRoot
            | Self::MissingProgram { .. }
            | Self::MissingCpu { .. }
            | Self::MissingKernelFeature { .. } => LACKS,
            Self::UnfitInterface { .. }
            | Self::Interrupted
            | Self::Timeout { .. }
            | Self::Placement(_)
            | Self::Failed { .. }
            | Self::Parse { .. }
            | Self::Io { .. } => FAILED,
        }
    }

    /// Whether this machine lacks something the testbed needs (privilege, a
    /// program, a CPU, a kernel feature), as opposed to something having gone
    /// wrong.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.exit_code() == LACKS
    }

    /// An [`Error::Io`] maker for `map_err`.
    pub(crate) fn io<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        let action = action.into();
        move |source| Self::Io {
            action,
            source: source.into(),
        }
    }
}

/// Refuses the value of a config's field that cannot be worked with.
pub(crate) fn check(
    valid: bool,
    field: &'static str,
    given: &dyn Display,
    allowed: &'static str,
) -> Result<(), Error> {
    if valid {
        return Ok(());
    }
    Err(Error::Config {
        field,
        given: given.to_string(),
        allowed,
    })
}

/// Refuses how long a client of ours cannot run, or wait for an answer.
pub(crate) fn check_times(duration: Duration, timeout: Duration) -> Result<(), Error> {
    let millis = Duration::from_millis;
    let valid = (millis(10)..=millis(600_000)).contains(&duration);
    check(
        valid,
        "duration",
        &format_args!("{duration:?}"),
        "10 ms to 600 s",
    )?;
    let valid = (millis(1)..=millis(10_000)).contains(&timeout);
    check(
        valid,
        "timeout",
        &format_args!("{timeout:?}"),
        "1 ms to 10 s",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_says_its_remedy() {
        let source = io::Error::from_raw_os_error(nix::libc::EMFILE);
        let after = Duration::from_secs(1);
        for (error, remedy) in [
            (Error::io("bind")(source), "`ulimit -n`"),
            (
                Error::Timeout {
                    what: "it".to_owned(),
                    after,
                },
                "Try again",
            ),
            (Error::Placement("it".to_owned()), "irqbalance"),
        ] {
            assert!(error.to_string().contains(remedy), "{error}");
            assert_eq!(error.exit_code(), FAILED);
        }
    }
}
