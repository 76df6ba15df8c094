//! What can go wrong, and what to do about it.
//!
//! Each operation has an error of its own, beside it: each variant says the remedy,
//! and `exit_code` the code of a command that ends by it. [`Error`] is any of them,
//! for who does several.

use std::io;

pub use crate::host::HostError;
pub use crate::knobs::{OpenError, RecordError, RestoreError, SysfsError, TurnError};
pub use crate::link::NoSuchInterface;
pub use crate::meter::MeterError;
pub use crate::namespace::NamespaceError;
pub use crate::xdp_link::AttachError;

/// Exit code: the work failed.
pub(crate) const FAILED: u8 = 1;
/// Exit code: this host lacks something.
pub(crate) const LACKS: u8 = 3;

/// A call that nobody expects to fail did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Loading or talking to a BPF program failed.
    #[error("cannot {action}")]
    Bpf {
        /// What was being done.
        action: &'static str,
        /// libbpf's answer, the verifier's log included.
        source: libbpf_rs::Error,
    },
    /// A system call failed.
    #[error("cannot {action}")]
    Os {
        /// What was being done.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl CallError {
    /// The exit code of a command that ends by it.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Bpf { .. } | Self::Os { .. } => FAILED,
        }
    }
}

/// Turns the answer of a system call into [`CallError::Os`]; `action` ends the
/// sentence "cannot …".
pub fn os<E: Into<io::Error>>(action: &'static str) -> impl Fn(E) -> CallError {
    move |source| CallError::Os {
        action,
        source: source.into(),
    }
}

/// Turns a libbpf error into [`CallError::Bpf`]; `action` ends the sentence
/// "cannot …".
pub fn bpf(action: &'static str) -> impl Fn(libbpf_rs::Error) -> CallError {
    move |source| CallError::Bpf { action, source }
}

/// Defines [`Error`], and the macro by which another crate's error takes any of
/// these operations' errors.
macro_rules! errors {
    ($dollar:tt $($(#[$doc:meta])* $variant:ident($error:ident),)*) => {
        /// Why this host did not do what was asked of it: any operation's error.
        #[derive(Debug, thiserror::Error)]
        #[non_exhaustive]
        pub enum Error {
            $($(#[$doc])* #[error(transparent)] $variant(#[from] $error),)*
        }

        impl Error {
            /// The exit code of a command that ends by it: 1 failed, 3 this host
            /// lacks something.
            #[must_use]
            pub const fn exit_code(&self) -> u8 {
                match self {
                    $(Self::$variant(error) => error.exit_code(),)*
                }
            }
        }

        /// `from_operations!(TheirError::Variant)`: lets `?` turn any operation's error
        /// into a variant that holds an [`Error`].
        #[macro_export]
        macro_rules! from_operations {
            ($dollar theirs:ident::$dollar of_kernel:ident) => {
                $(impl From<$crate::error::$error> for $dollar theirs {
                    fn from(error: $crate::error::$error) -> Self {
                        Self::$dollar of_kernel(error.into())
                    }
                })*
            };
        }
    };
}

errors! { $
    /// Checking the host.
    Host(HostError),
    /// Looking an interface up.
    Interface(NoSuchInterface),
    /// Attaching an XDP program.
    Attach(AttachError),
    /// Metering CPU time.
    Meter(MeterError),
    /// Opening an interface's directory in sysfs.
    Sysfs(SysfsError),
    /// Taking possession of an interface's settings.
    Open(OpenError),
    /// Turning a setting.
    Turn(TurnError),
    /// Putting settings back.
    Restore(RestoreError),
    /// Reading or writing the record of turned settings.
    Record(RecordError),
    /// Making or removing a network namespace.
    Namespace(NamespaceError),
    /// Any other call.
    Call(CallError),
}

impl Error {
    /// True if this host lacks something, false if the call or its arguments
    /// were wrong or the work itself failed.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        self.exit_code() == LACKS
    }
}
