//! Checks that this host can run the guard, each with its own error.

use std::path::Path;
use std::{fs, io};

use caps::{CapSet, Capability};
use nix::sys::utsname::uname;
use nix::unistd::geteuid;

use crate::error::{CallError, FAILED, LACKS, os};
use crate::scheduling::{Class, Level, set_class};

/// First release with `bpf_rdonly_cast`.
const KERNEL_MIN: (u32, u32) = (6, 2);

/// Why this process or host cannot run the guard.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
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
    /// The guard's thread has to come before all that floods keep busy.
    #[error(
        "the control group of this process may have no real-time threads, and the guard's own is one: say how long they may run there (cpu.rt_runtime_us), or start the guard in the topmost group"
    )]
    NoRealTime,
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
    /// The host cannot be asked.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl HostError {
    /// The exit code of a command that ends by it.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Privilege { .. }
            | Self::PrivilegeWithheld { .. }
            | Self::UserNamespace
            | Self::NoRealTime
            | Self::KernelTooOld { .. }
            | Self::NoBtf => LACKS,
            Self::Call(_) => FAILED,
        }
    }
}

/// Fails with the first thing that this process or host lacks.
///
/// # Errors
///
/// Names what is missing: privileges, a newer kernel, or its types.
pub fn check() -> Result<(), HostError> {
    check_capabilities()?;
    check_release()?;
    check_btf()
}

/// Whether the kernel is new enough for the guard's program.
///
/// # Errors
///
/// [`HostError::KernelTooOld`].
pub fn check_release() -> Result<(), HostError> {
    let release = uname()
        .map_err(os("read the kernel's release"))?
        .release()
        .to_string_lossy()
        .into_owned();
    match parse_release(&release) {
        Some(version) if version >= KERNEL_MIN => Ok(()),
        _ => Err(HostError::KernelTooOld { release }),
    }
}

/// Whether tasks may preempt the kernel's receiving (`PREEMPT_RT`).
#[must_use]
pub fn preempts_receiving() -> bool {
    let version = uname().map(|kernel| kernel.version().to_string_lossy().into_owned());
    version.is_ok_and(|version| version.split(' ').any(|word| word == "PREEMPT_RT"))
}

/// Whether the kernel describes its types.
///
/// # Errors
///
/// [`HostError::NoBtf`].
pub fn check_btf() -> Result<(), HostError> {
    if Path::new("/sys/kernel/btf/vmlinux").exists() {
        Ok(())
    } else {
        Err(HostError::NoBtf)
    }
}

/// Whether the verifier takes this process's programs, if nothing is wrong with them. It refuses both
/// with the same answer.
#[must_use]
pub fn may_load_programs() -> bool {
    let effective = caps::read(None, CapSet::Effective).unwrap_or_default();
    let of_bpf = [Capability::CAP_BPF, Capability::CAP_PERFMON];
    effective.contains(&Capability::CAP_SYS_ADMIN)
        || of_bpf.iter().all(|one| effective.contains(one))
}

/// Whether this process may load and attach programs and turn settings.
///
/// # Errors
///
/// [`HostError::Privilege`], [`HostError::PrivilegeWithheld`] or [`HostError::UserNamespace`].
pub fn check_capabilities() -> Result<(), HostError> {
    let effective = caps::read(None, CapSet::Effective).map_err(io::Error::other);
    let effective = effective.map_err(os("read this process's capabilities"))?;
    // CAP_SYS_ADMIN includes the two of BPF.
    let all_of_bpf = effective.contains(&Capability::CAP_SYS_ADMIN);
    let missing = NEEDED.iter().find(|(capability, _)| {
        let of_bpf = matches!(capability, Capability::CAP_BPF | Capability::CAP_PERFMON);
        !(effective.contains(capability) || of_bpf && all_of_bpf)
    });
    match missing {
        Some(&(_, capability)) if geteuid().is_root() => {
            Err(HostError::PrivilegeWithheld { capability })
        }
        Some(&(_, capability)) => Err(HostError::Privilege { capability }),
        None if is_first_user_namespace() => Ok(()),
        None => Err(HostError::UserNamespace),
    }
}

/// Whether this process may have real-time threads. The calling one is such a thread for a moment.
///
/// # Errors
///
/// [`HostError::NoRealTime`], if it has the capabilities: kernels with `CONFIG_RT_GROUP_SCHED` give
/// a control group no time for such threads unless told to.
pub fn check_real_time() -> Result<(), HostError> {
    let failed = || os("see whether threads may be real-time");
    let own = Level::of(0).map_err(failed())?;
    match set_class(0, Class::Watcher) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err(HostError::NoRealTime),
        Err(error) => Err(failed()(error).into()),
        Ok(()) => {
            own.give_to(0).map_err(failed())?;
            Ok(())
        }
    }
}

/// What the start takes, for settings, programs, and to outlive overload.
const NEEDED: [(Capability, &str); 5] = [
    (Capability::CAP_NET_ADMIN, "CAP_NET_ADMIN"),
    (Capability::CAP_BPF, "CAP_BPF"),
    (Capability::CAP_PERFMON, "CAP_PERFMON"),
    (Capability::CAP_SYS_NICE, "CAP_SYS_NICE"),
    (Capability::CAP_IPC_LOCK, "CAP_IPC_LOCK"),
];

/// False in a user namespace other than the machine's own.
pub(crate) fn is_first_user_namespace() -> bool {
    /// `PROC_USER_INIT_INO` of `linux/proc_ns.h`.
    const FIRST: u64 = 0xefff_fffd;
    nix::sys::stat::stat("/proc/self/ns/user").is_ok_and(|user| user.st_ino == FIRST)
}

/// Whether the kernel's threads have the numbers here that it tells. In another PID namespace
/// than the machine's own they have none, and other threads have these.
///
/// # Errors
///
/// They have not.
pub(crate) fn check_pid_namespace() -> io::Result<()> {
    /// `PROC_PID_INIT_INO` of `linux/proc_ns.h`.
    const FIRST: u64 = 0xefff_fffc;
    match nix::sys::stat::stat("/proc/self/ns/pid")?.st_ino == FIRST {
        true => Ok(()),
        false => Err(io::Error::other(
            "this is a PID namespace (a container's), where the kernel's threads cannot be named: start it in the machine's own (`--pid=host`)",
        )),
    }
}

/// Whether the kernel tells which threads poll an interface.
///
/// # Errors
///
/// It does not.
pub(crate) fn check_thread_numbers() -> io::Result<()> {
    const TELLS: (u32, u32) = (6, 8);
    let release = uname()?.release().to_string_lossy().into_owned();
    match parse_release(&release) {
        Some(version) if version < TELLS => Err(io::Error::other(format!(
            "Linux {release} does not tell which threads poll, which takes 6.8 or newer"
        ))),
        _ => Ok(()),
    }
}

/// Whether a CPU runs threads. Some cannot be taken offline, and have no file that says so.
pub(crate) fn is_online(cpu: usize) -> bool {
    let directory = format!("/sys/devices/system/cpu/cpu{cpu}");
    match fs::read_to_string(format!("{directory}/online")) {
        Ok(online) => online.trim() != "0",
        Err(_) => Path::new(&directory).exists(),
    }
}

pub(crate) fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Number of NUMA nodes a packet may be received on.
#[must_use]
pub fn numa_nodes() -> u32 {
    fs::read_to_string("/sys/devices/system/node/possible")
        .ok()
        .and_then(|list| parse_nodes(&list))
        .unwrap_or(1)
}

/// "0-1,4" → 5: the kernel indexes by node id.
pub(crate) fn parse_nodes(list: &str) -> Option<u32> {
    let last: u32 = list.trim().rsplit([',', '-']).next()?.parse().ok()?;
    last.checked_add(1)
}

/// Whether connection tracking knows any connection in this network namespace
/// (`nf_conntrack-sysctl.rst`). True if `/proc` does not tell.
#[must_use]
pub fn tracks_connections() -> bool {
    // Without the module there are none.
    let count = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count");
    may_be_so(count, |count| count != "0")
}

/// Why a program that this process loads cannot ask the kernel's connection tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackingUnasked {
    /// It is a module that has not been loaded, or does not describe its types.
    NoTypes,
    /// This process may not read the types of modules: that takes `CAP_SYS_ADMIN`.
    NoPrivilege,
}

/// Why it cannot be asked by a program that this process loads now; `None` if it can.
#[must_use]
pub fn tracking_unasked() -> Option<TrackingUnasked> {
    let may = caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN);
    tracking_unasked_in(Path::new("/sys"), may.unwrap_or(false))
}

fn tracking_unasked_in(sys: &Path, may_read_modules: bool) -> Option<TrackingUnasked> {
    let module = sys.join("module/nf_conntrack");
    // What is built in is described with the kernel, and was never loaded.
    let is_built_in = module.exists() && !module.join("initstate").exists();
    match sys.join("kernel/btf/nf_conntrack").exists() {
        _ if is_built_in => None,
        false => Some(TrackingUnasked::NoTypes),
        true => (!may_read_modules).then_some(TrackingUnasked::NoPrivilege),
    }
}

/// Whether connections of this network namespace may be translated: the module that does it is there,
/// and some are tracked. Of a kernel that has it built in this is not told, nor needed: there programs
/// can always ask.
#[must_use]
pub fn translates() -> bool {
    Path::new("/sys/module/nf_nat").exists() && tracks_connections()
}

/// Whether it is so by what a file of `/proc` holds. Also if that cannot be read, but not where there
/// is none: then nobody has what it would tell of.
pub fn may_be_so(held: io::Result<String>, is_so: impl FnOnce(&str) -> bool) -> bool {
    match held {
        Ok(text) => is_so(text.trim()),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Whether somebody in this network namespace reads UDP packets beside the stack's
/// UDP sockets: through a packet socket or a raw one. True if `/proc` does not tell.
#[must_use]
pub fn has_packet_readers() -> bool {
    let has = |table: &str, reads: fn(&str) -> bool| {
        let path = format!("/proc/thread-self/net/{table}");
        match fs::read_to_string(path) {
            Ok(sockets) => sockets.lines().skip(1).any(reads),
            // Without the module there are none.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    };
    has("packet", is_packet_reader) || has("raw", is_raw_reader) || has("raw6", is_raw_reader)
}

/// A line of /proc/net/packet: the fourth word is the ethertype, 0 for a socket
/// that only sends.
pub(crate) fn is_packet_reader(line: &str) -> bool {
    matches!(
        line.split_whitespace().nth(3),
        Some("0003" | "0800" | "86dd")
    )
}

/// A line of /proc/net/raw: the second word is an address and the protocol.
pub(crate) fn is_raw_reader(line: &str) -> bool {
    let local = line.split_whitespace().nth(1);
    local.is_some_and(|local| local.ends_with(":0011"))
}

/// Whether the stack takes SYN cookies: `net.ipv4.tcp_syncookies` of this network
/// namespace, for both families. True if `/proc` does not tell: SYNs are the stack's then.
#[must_use]
pub fn takes_syn_cookies() -> bool {
    let setting = fs::read_to_string("/proc/sys/net/ipv4/tcp_syncookies");
    may_be_so(setting, |setting| setting != "0")
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_read_whatever_follows(text in ".{0,30}", major: u32, minor: u32, last: u32) {
            let release = format!("{major}.{minor}.9-{text}");
            prop_assert_eq!(parse_release(&release), Some((major, minor)));
            let nodes = format!("0-2,{last}\n");
            prop_assert_eq!(parse_nodes(&nodes), last.checked_add(1));
        }
    }

    /// A guard that had no descriptor left took SYN cookies for switched off, and discarded SYNs
    /// that the stack would have answered, and the packet filter for harmless.
    #[test]
    fn what_cannot_be_read_may_be_so() {
        let refused = |errno| Err(io::Error::from_raw_os_error(errno));
        for (held, expected) in [
            (Ok("0\n"), false),
            (Ok("1\n"), true),
            (refused(libc::ENOENT), false),
            (refused(libc::EMFILE), true),
            (refused(libc::EACCES), true),
        ] {
            let told = format!("{held:?}");
            let is_on = may_be_so(held.map(str::to_owned), |setting| setting != "0");
            assert_eq!(is_on, expected, "{told}");
        }
    }

    /// A module without a description of its types was taken for one that can be asked. So was each for
    /// a process that may not read such descriptions.
    #[test]
    fn connection_tracking_can_be_asked_where_its_types_are_known() {
        use TrackingUnasked::{NoPrivilege, NoTypes};
        let loaded = "module/nf_conntrack/initstate";
        let described = "kernel/btf/nf_conntrack";
        for (files, by_all, by_few) in [
            (&[][..], Some(NoTypes), Some(NoTypes)),
            (&["module/nf_conntrack/parameters/hashsize"][..], None, None),
            (&[loaded][..], Some(NoTypes), Some(NoTypes)),
            (&[loaded, described][..], None, Some(NoPrivilege)),
        ] {
            let sys = tempfile::tempdir().unwrap();
            for file in files {
                let file = sys.path().join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, "").unwrap();
            }
            let told = [true, false].map(|may| tracking_unasked_in(sys.path(), may));
            assert_eq!(told, [by_all, by_few], "{files:?}");
        }
    }

    #[test]
    fn releases_compare_by_number() {
        assert_eq!(parse_release("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(parse_release("6.1.0-13-amd64"), Some((6, 1)));
        assert!(parse_release("6.1.0").unwrap() < KERNEL_MIN);
        assert!(parse_release("10.0.1").unwrap() > KERNEL_MIN);
        assert_eq!(parse_release("unknown"), None);
    }
}
