//! What can go wrong, and what to do about it.

use std::io;
use std::path::PathBuf;

use plimsoll_core::config::ConfigError;

/// Why the guard cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The process may not load BPF programs or attach them.
    #[error("{capability} is missing: run as root, e.g. with sudo")]
    Privilege {
        /// The first capability that is missing.
        capability: &'static str,
    },
    /// The kernel is older than the program needs.
    #[error(
        "Linux {release} is too old: the guard reads socket queues through bpf_rdonly_cast, which needs 6.2 or newer"
    )]
    KernelTooOld {
        /// The running kernel's release.
        release: String,
    },
    /// The kernel carries no description of its types.
    #[error(
        "/sys/kernel/btf/vmlinux is missing: the kernel must be built with CONFIG_DEBUG_INFO_BTF=y"
    )]
    NoBtf,
    /// No interface of that name in this network namespace.
    #[error("no interface `{interface}` in this network namespace: `ip link` lists them")]
    NoSuchInterface {
        /// As given.
        interface: String,
    },
    /// The driver cannot run XDP programs; generic mode costs more than it saves.
    #[error(
        "the driver of `{interface}` has no native XDP, and generic mode, which costs more than it saves, is refused"
    )]
    NoNativeXdp {
        /// As given.
        interface: String,
    },
    /// Another XDP program is attached.
    #[error(
        "`{interface}` already runs an XDP program: detach it first (`ip link show dev {interface}` shows it)"
    )]
    Busy {
        /// As given.
        interface: String,
    },
    /// The driver refuses the program in the interface's present configuration.
    #[error(
        "`{interface}` refuses an XDP program in its present configuration; often its MTU is too large or it has too few queues: see `dmesg`"
    )]
    Refused {
        /// As given.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The interface cannot be switched to threaded polling.
    #[error(
        "`{interface}` has no threaded polling ({path} is missing): Linux 5.12 or newer and a NAPI driver are needed"
    )]
    NoThreadedPolling {
        /// As given.
        interface: String,
        /// The kernel's switch.
        path: PathBuf,
    },
    /// Loading or talking to the BPF program failed.
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

impl Error {
    /// True if this host lacks something, false if the call or its arguments
    /// were wrong or the work itself failed.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(
            self,
            Self::Privilege { .. }
                | Self::KernelTooOld { .. }
                | Self::NoBtf
                | Self::NoNativeXdp { .. }
                | Self::NoThreadedPolling { .. }
        )
    }
}
