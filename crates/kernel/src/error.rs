//! What can go wrong, and what to do about it.

use std::io;
use std::path::PathBuf;

/// Why this host did not do what was asked of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process may not load BPF programs or attach them.
    #[error("{capability} is missing: run as root, e.g. with sudo")]
    Privilege {
        /// The first capability that is missing.
        capability: &'static str,
    },
    /// Root, and still not allowed to: in a container, or a sandbox.
    #[error(
        "root has no {capability} here, as in a container: run the guard on the host, or allow the container what the systemd unit's CapabilityBoundingSet names"
    )]
    PrivilegeWithheld {
        /// The first capability that is missing.
        capability: &'static str,
    },
    /// The capabilities are those of a user namespace only: the kernel loads no
    /// BPF programs for its root.
    #[error(
        "root of a user namespace, as in a rootless container, may not load BPF programs: run the guard on the host"
    )]
    UserNamespace,
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
        "the driver of `{interface}` has no native XDP, and generic mode, which costs more than it saves, is refused: if it is a bridge, bond, VLAN or tunnel, guard the interface below it"
    )]
    NoNativeXdp {
        /// As given.
        interface: String,
    },
    /// Another XDP program is attached.
    #[error(
        "`{interface}` already runs an XDP program{program}, and the guard replaces nobody's: {remedy}"
    )]
    Busy {
        /// As given.
        interface: String,
        /// After a comma, what is known of it; empty if nothing is.
        program: String,
        /// How it may be detached.
        remedy: String,
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
    /// A CPU that is not online, or that this process may not use.
    #[error("CPU {cpu} is not this process's to use: `taskset -p $$` shows those that are")]
    NoSuchCpu {
        /// Its number.
        cpu: usize,
    },
    /// Nothing else gets to run on the CPU.
    #[error(
        "CPU {cpu} has scheduled nothing for seconds: a real-time task holds it (`ps -eLo cls,psr,comm` shows it), end that one first"
    )]
    CpuHeld {
        /// Its number.
        cpu: usize,
    },
    /// The interface has no such receive queue, or none that can be set alone.
    #[error(
        "`{interface}` shows no receive queue {queue} whose settings can be changed alone: that takes Linux 6.13 or newer and a driver that names its queues (`plimsoll guard check {interface}` lists them)"
    )]
    NoSuchQueue {
        /// As given.
        interface: String,
        /// The first queue that is missing.
        queue: u32,
    },
    /// Another process guards the interface.
    #[error("`{interface}` is guarded by process {pid} already: end that one first")]
    InUse {
        /// As given.
        interface: String,
        /// The other process.
        pid: u32,
    },
    /// The record of turned settings makes no sense.
    #[error(
        "{path} is no record of turned settings: compare the interface's settings with what they should be (`plimsoll guard check` shows them), then remove the file"
    )]
    RecordUnusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The record of turned settings cannot be written, so nothing is turned.
    #[error("cannot write {path}, and without it no setting of the host is changed")]
    RecordNotWritten {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A setting could not be put back.
    #[error(
        "a setting of `{interface}` cannot be put back; `plimsoll guard restore {interface}` tries again"
    )]
    NotRestored {
        /// As given.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A setting cannot be put back for now.
    #[error(
        "`{interface}` has no NAPI instances now to put a setting back to (it is down, or its driver makes them only for XDP): the setting stays recorded, and the next guard or `plimsoll guard restore` puts it back"
    )]
    RestoreDeferred {
        /// As given.
        interface: String,
    },
    /// `/sys` shows the devices of another network namespace.
    #[error(
        "/sys/class/net does not show the `{interface}` of this network namespace: enter it with `ip netns exec`, or with nsenter's --net and --mount"
    )]
    ForeignSysfs {
        /// As given.
        interface: String,
    },
    /// A network namespace cannot be made or removed.
    #[error("cannot {action} the network namespace `{name}`")]
    Namespace {
        /// What was being done.
        action: &'static str,
        /// Its name, as ip-netns(8) lists it.
        name: String,
        /// The kernel's answer.
        source: io::Error,
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
    /// The exit code of a command that ends by it: 1 failed, 3 this host lacks
    /// something.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Privilege { .. }
            | Self::PrivilegeWithheld { .. }
            | Self::UserNamespace
            | Self::KernelTooOld { .. }
            | Self::NoBtf
            | Self::NoSuchCpu { .. }
            | Self::NoNativeXdp { .. }
            | Self::NoThreadedPolling { .. } => 3,
            Self::NoSuchInterface { .. }
            | Self::Busy { .. }
            | Self::Refused { .. }
            | Self::CpuHeld { .. }
            | Self::NoSuchQueue { .. }
            | Self::InUse { .. }
            | Self::RecordUnusable { .. }
            | Self::RecordNotWritten { .. }
            | Self::NotRestored { .. }
            | Self::RestoreDeferred { .. }
            | Self::ForeignSysfs { .. }
            | Self::Namespace { .. }
            | Self::Bpf { .. }
            | Self::Os { .. } => 1,
        }
    }

    /// True if this host lacks something, false if the call or its arguments
    /// were wrong or the work itself failed.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        self.exit_code() == 3
    }
}

/// Turns the answer of a system call into [`Error::Os`]; `action` ends the
/// sentence "cannot …".
pub fn os<E: Into<io::Error>>(action: &'static str) -> impl Fn(E) -> Error {
    move |source| Error::Os {
        action,
        source: source.into(),
    }
}

/// Turns a libbpf error into [`Error::Bpf`]; `action` ends the sentence
/// "cannot …".
pub fn bpf(action: &'static str) -> impl Fn(libbpf_rs::Error) -> Error {
    move |source| Error::Bpf { action, source }
}
