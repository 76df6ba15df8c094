//! What can go wrong, and what to do about it.
//!
//! Each operation has an error of its own, beside it: each variant says the remedy,
//! and `exit_code` the code of a command that ends by it. [`Error`] is any of them,
//! for who does several. A call that nobody expects to fail ([`CallError`]) says the remedy of
//! those answers that have one.

use std::fs::File;
use std::io;

use nix::errno::Errno;

pub use crate::host::HostError;
pub use crate::knobs::{OpenError, RecordError, RestoreError, SysfsError, TurnError};
pub use crate::link::NoSuchInterface;
pub use crate::meter::MeterError;
pub use crate::namespace::NamespaceError;
pub use crate::xdp_link::AttachError;

/// Exit code of a command: the work failed.
pub const FAILED: u8 = 1;
/// Exit code of a command: it was used wrongly.
pub const USED_WRONGLY: u8 = 2;
/// Exit code of a command: this host lacks something, as a privilege or a feature.
pub const LACKS: u8 = 3;

/// A call that nobody expects to fail did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Loading or talking to a BPF program failed.
    #[error("cannot {action}{}", bpf_remedy(.action, .source))]
    Bpf {
        /// What was being done.
        action: &'static str,
        /// libbpf's answer.
        source: libbpf_rs::Error,
    },
    /// A system call failed.
    #[error("cannot {action}{}", remedy(.action, .source))]
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
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Os { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => LACKS,
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
    move |source| match without_files(action) {
        Some(source) => CallError::Os { action, source },
        None => CallError::Bpf { action, source },
    }
}

/// More files than loading any of our programs and its maps takes at once.
const FILES_OF_A_LOAD: usize = 64;

/// The kernel's answer where a program that was just refused had too few files to be loaded. libbpf
/// takes the kernel for one without some feature then, and the answer for the verifier's.
fn without_files(action: &str) -> Option<io::Error> {
    if !is_load(action) {
        return None;
    }
    let opened: io::Result<Vec<File>> = (0..FILES_OF_A_LOAD)
        .map(|_| File::open("/dev/null"))
        .collect();
    opened.err().filter(|error| {
        let answer = errno(error);
        matches!(answer, Some(Errno::EMFILE | Errno::ENFILE))
    })
}

/// Whether what is done is to load a program.
fn is_load(action: &str) -> bool {
    action.starts_with("load ")
}

/// An error and what caused it, on one line. What an error says does not have its cause in it.
#[must_use]
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// What to do where the kernel answers a system call so, in brackets; nothing where no remedy is
/// known. `action` ends the sentence "cannot …".
#[must_use]
pub fn remedy(action: &str, source: &io::Error) -> String {
    remedy_of(action, errno(source))
}

/// The same where the call was to read a file.
#[must_use]
pub fn read_remedy(source: &io::Error) -> String {
    match errno(source) {
        Some(Errno::ENOENT | Errno::ENOTDIR | Errno::EISDIR) => {
            " (name a file that exists)".to_owned()
        }
        _ => file_remedy(source),
    }
}

/// The same where the call was to make or write a file.
#[must_use]
pub fn file_remedy(source: &io::Error) -> String {
    let remedy = match errno(source) {
        Some(Errno::EPERM | Errno::EACCES) => {
            "give this user the right to it, take another path, or run as root"
        }
        Some(Errno::ENOENT | Errno::ENOTDIR | Errno::EISDIR) => {
            "name a file in a directory that exists"
        }
        Some(Errno::ENOSPC | Errno::EDQUOT) => "free space there, or take another path",
        Some(Errno::EFBIG) => "take shorter files, or raise their limit: `ulimit -f`",
        Some(Errno::EROFS) => "take a path on a file system that can be written",
        Some(Errno::EIO) => "see `dmesg`: the disk may be failing",
        answer => return remedy_of("", answer),
    };
    format!(" ({remedy})")
}

/// Whether a file could not be written for want of room, which there may be later.
#[must_use]
pub fn is_disk_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

pub(crate) fn remedy_of(action: &str, answer: Option<Errno>) -> String {
    let remedy = match answer {
        Some(Errno::EPERM | Errno::EACCES) => {
            "run as root, e.g. with sudo; a container or service needs the capabilities that the systemd unit names"
        }
        Some(Errno::ENOMEM) => {
            "free memory, or raise a limit of it: memory.max of the control group (MemoryMax= of a service), `ulimit -l` (LimitMEMLOCK=)"
        }
        Some(Errno::EMFILE) => {
            "raise the limit of open files: `ulimit -n`, LimitNOFILE= of a service"
        }
        Some(Errno::ENFILE) => {
            "close files of other programs, or raise the host's limit: `sysctl fs.file-max`"
        }
        Some(Errno::EAGAIN) if action.starts_with("start ") => {
            "raise the limit of threads: `ulimit -u`, TasksMax= of a service"
        }
        Some(Errno::ENODEV | Errno::ENXIO) => {
            "the interface has gone: `ip link` lists those that are there"
        }
        _ => return String::new(),
    };
    format!(" ({remedy})")
}

/// As [`remedy`], where libbpf answers. A program that is refused when it is loaded is refused by the
/// verifier, unless for want of rights, memory or descriptors.
#[must_use]
pub fn bpf_remedy(action: &str, source: &libbpf_rs::Error) -> String {
    let answer = bpf_errno(source);
    match answer {
        Some(Errno::EACCES | Errno::EINVAL | Errno::E2BIG) if is_load(action) => {
            " (this kernel's verifier refuses the program: try another kernel, and report this one's `uname -r`)".to_owned()
        }
        _ => remedy_of(action, answer),
    }
}

pub(crate) fn errno(source: &io::Error) -> Option<Errno> {
    source.raw_os_error().map(Errno::from_raw)
}

/// The kernel's answer in libbpf's, which shows its number in the text alone.
#[must_use]
pub fn bpf_errno(source: &libbpf_rs::Error) -> Option<Errno> {
    let text = format!("{source:#}");
    let (_, number) = text.rsplit_once("(os error ")?;
    let (number, _) = number.split_once(')')?;
    number.parse().ok().map(Errno::from_raw)
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
            pub fn exit_code(&self) -> u8 {
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
    pub fn is_missing(&self) -> bool {
        self.exit_code() == LACKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(number: Errno) -> io::Error {
        io::Error::from_raw_os_error(number as i32)
    }

    #[test]
    fn a_failed_call_says_its_remedy() {
        for (action, number, remedy) in [
            ("read it", Errno::EPERM, Some("run as root")),
            ("read it", Errno::EACCES, Some("run as root")),
            ("lock memory", Errno::ENOMEM, Some("`ulimit -l`")),
            ("open it", Errno::EMFILE, Some("`ulimit -n`")),
            ("open it", Errno::ENFILE, Some("fs.file-max")),
            ("start a thread", Errno::EAGAIN, Some("`ulimit -u`")),
            ("read it", Errno::EAGAIN, None),
            ("ask about it", Errno::ENODEV, Some("`ip link`")),
            ("ask about it", Errno::EIO, None),
        ] {
            let refusal: libbpf_rs::Error = answer(number).into();
            let errors = [os(action)(answer(number)), bpf(action)(refusal)];
            for error in errors.map(|error| error.to_string()) {
                let said = error.strip_prefix(&format!("cannot {action}")).unwrap();
                match remedy {
                    Some(remedy) => assert!(said.contains(remedy), "{error}"),
                    None => assert_eq!(said, "", "{error}"),
                }
            }
        }
    }

    /// `guard restore` of an ordinary user had ended as if the work had failed.
    #[test]
    fn a_user_without_the_right_lacks_something() {
        for number in [Errno::EPERM, Errno::EACCES] {
            assert_eq!(os("read it")(answer(number)).exit_code(), LACKS);
        }
        assert_eq!(os("read it")(answer(Errno::EIO)).exit_code(), FAILED);
    }

    /// The verifier answers with the number of a file that may not be opened.
    #[test]
    fn a_refused_program_says_its_remedy_under_any_context() {
        use libbpf_rs::ErrorExt as _;
        let refused = |number| {
            let source: libbpf_rs::Error = answer(number).into();
            bpf("load the XDP program")(source.context("failed to load object")).to_string()
        };
        for number in [Errno::EACCES, Errno::EINVAL, Errno::E2BIG] {
            assert!(refused(number).contains("verifier"), "{number}");
        }
        assert!(refused(Errno::EPERM).contains("run as root"));
        assert!(refused(Errno::ENOMEM).contains("`ulimit -l`"));
        assert!(refused(Errno::EMFILE).contains("`ulimit -n`"));
    }

    #[test]
    fn a_file_that_is_refused_says_its_remedy() {
        for (number, remedy) in [
            (Errno::EACCES, "run as root"),
            (Errno::ENOENT, "a directory that exists"),
            (Errno::ENOSPC, "free space"),
            (Errno::EFBIG, "`ulimit -f`"),
            (Errno::EROFS, "can be written"),
            (Errno::EIO, "`dmesg`"),
            (Errno::EMFILE, "`ulimit -n`"),
        ] {
            let said = file_remedy(&answer(number));
            assert!(said.contains(remedy), "{said}");
        }
        // It had been told that it may name a new one.
        assert_eq!(
            read_remedy(&answer(Errno::ENOENT)),
            " (name a file that exists)"
        );
        assert!(read_remedy(&answer(Errno::EACCES)).contains("run as root"));
    }

    /// Where it is written is a constant: nobody can take another path.
    #[test]
    fn a_record_that_is_not_written_says_its_remedy() {
        for (number, remedy) in [
            (Errno::EACCES, "run as root"),
            (Errno::ENOSPC, "`df /run`"),
            (Errno::EROFS, "/run must be writable"),
            (Errno::EMFILE, "`ulimit -n`"),
        ] {
            let error = RecordError::NotWritten {
                path: "/run/a".into(),
                source: answer(number),
            };
            let said = error.to_string();
            assert!(said.contains(remedy), "{said}");
            assert!(!said.contains("another path"), "{said}");
        }
    }

    #[test]
    fn a_namespace_that_cannot_be_made_says_its_remedy() {
        for (number, remedy) in [
            (Errno::EEXIST, "`ip netns del a`"),
            (Errno::EPERM, "run as root"),
            (Errno::ENOSPC, "user.max_net_namespaces"),
            (Errno::EMFILE, "`ulimit -n`"),
        ] {
            let error = NamespaceError {
                action: "make",
                name: "a".to_owned(),
                source: answer(number),
            };
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }
}
