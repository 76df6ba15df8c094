//! Attachment of an XDP program to an interface by a BPF link.
//!
//! A link lives at most as long as its file descriptor: when the process ends, however
//! it ends, the kernel detaches the program and the host receives as before.
//! libbpf's own `attach_xdp` passes no flags and would fall back to generic
//! mode; here native mode is demanded.
//!
//! A link may be handed to another process with its descriptor. The other one puts its
//! own program in place of the first one's, at once: no packet passes unseen, and
//! drivers that reset their rings for the first program do not for the second. Or it only
//! keeps the program there when the first one is gone ([`HeldLink`]).

#![allow(unsafe_code, reason = "libbpf-rs offers no link_create with flags")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libbpf_rs::query::LinkInfoIter;
use nix::errno::Errno;
use nix::net::if_::if_indextoname;

use crate::error::{CallError, FAILED, LACKS, os};
use crate::link::{self, NoSuchInterface};

/// Why a program is not attached to an interface.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// There is no such interface.
    #[error(transparent)]
    Interface(#[from] NoSuchInterface),
    /// The driver cannot run XDP programs; generic mode costs more than it saves.
    #[error(
        "the driver of `{interface}` has no native XDP, and generic mode, which costs more than it saves, is refused: if it is a bridge, bond, VLAN or tunnel, guard the interface below it"
    )]
    NoNativeXdp {
        /// As given.
        interface: String,
    },
    /// A veth whose other end has more queues.
    #[error(
        "`{interface}` refuses an XDP program, since its other end sends by more queues than it receives by (`ethtool -l` shows both): `ethtool -L {interface} rx N` for more, or `ethtool -L` with `tx N` at the other end for fewer"
    )]
    FewerQueues {
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
    /// An interface above runs an XDP program, and the kernel takes none below it.
    #[error(
        "`{above}`, which is above `{interface}`, runs an XDP program, and the kernel takes none below it: {remedy}"
    )]
    BusyAbove {
        /// As given.
        interface: String,
        /// Its name.
        above: String,
        /// What program it is, and how it may be detached.
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
    /// The program cannot be loaded.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl AttachError {
    /// The exit code of a command that ends by it.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::NoNativeXdp { .. } => LACKS,
            Self::Interface(_)
            | Self::Busy { .. }
            | Self::BusyAbove { .. }
            | Self::FewerQueues { .. }
            | Self::Refused { .. }
            | Self::Call(_) => FAILED,
        }
    }
}

/// The attachment; dropping it detaches, unless its descriptor was handed on. So it does
/// at once, although a child that another thread is starting may have a copy of the
/// descriptor until it runs its own program.
#[derive(Debug)]
pub struct XdpLink {
    fd: OwnedFd,
    /// When it is dropped.
    stays: Arc<AtomicBool>,
}

impl XdpLink {
    /// Attaches `program` in native mode to the interface.
    pub fn attach(
        program: BorrowedFd<'_>,
        interface: &str,
        ifindex: u32,
    ) -> Result<Self, AttachError> {
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
            flags: libbpf_sys::XDP_FLAGS_DRV_MODE,
            ..Default::default()
        };
        // SAFETY: `options` is initialised, outlives the call, and states its
        // own size; the other arguments are plain numbers.
        let fd = unsafe {
            libbpf_sys::bpf_link_create(
                program.as_raw_fd(),
                ifindex.cast_signed(),
                libbpf_sys::BPF_XDP,
                ptr::from_ref(&options),
            )
        };
        if fd < 0 {
            return Err(refusal(interface, ifindex, Errno::from_raw(-fd)));
        }
        // SAFETY: bpf_link_create has just returned this descriptor and
        // nothing else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self::of(fd))
    }

    /// Refuses what [`XdpLink::attach`] would, as far as that is known beforehand.
    ///
    /// # Errors
    ///
    /// Another program is attached, or the driver has no native XDP.
    pub fn require_free(interface: &str, ifindex: u32) -> Result<(), AttachError> {
        Self::require_unused(interface, ifindex)?;
        match link::native_xdp(ifindex) {
            Ok(Some(false)) => Err(lacks_native_xdp(interface, ifindex)),
            // What is not known is tried.
            _ => Ok(()),
        }
    }

    /// Refuses an interface that has another program, or is directly below one.
    ///
    /// # Errors
    ///
    /// There is one, or the kernel does not tell.
    pub fn require_unused(interface: &str, ifindex: u32) -> Result<(), AttachError> {
        let link = link::link(ifindex).map_err(os("ask for the interface's state"))?;
        match link.xdp {
            Some(_) => Err(refusal(interface, ifindex, Errno::EBUSY)),
            None => refused_by_above(interface, ifindex).map_or(Ok(()), Err),
        }
    }

    fn of(fd: OwnedFd) -> Self {
        Self {
            fd,
            stays: Arc::default(),
        }
    }

    /// Takes over a link that was handed on, and puts `program` in its program's
    /// place. `None` if `fd` is no XDP link of the interface, or takes no other program
    /// (it was detached meanwhile): then it is closed.
    #[must_use]
    pub fn take_over(fd: OwnedFd, program: BorrowedFd<'_>, ifindex: u32) -> Option<Self> {
        if Target::of(fd.as_fd())?.ifindex != ifindex {
            return None;
        }
        // SAFETY: two valid descriptors; the options may be null.
        let updated = unsafe {
            libbpf_sys::bpf_link_update(fd.as_raw_fd(), program.as_raw_fd(), ptr::null())
        };
        (updated == 0).then(|| Self::of(fd))
    }

    /// The descriptor, to hand the link on. As long as any copy of it is open, the
    /// program stays attached, also when this link is dropped.
    #[must_use]
    pub fn hand_on(&mut self) -> BorrowedFd<'_> {
        self.stays.store(true, Ordering::Relaxed);
        self.fd.as_fd()
    }

    /// Whether dropping it leaves the program attached, as long as somebody else holds it.
    pub(crate) fn stays(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stays)
    }
}

impl Drop for XdpLink {
    fn drop(&mut self) {
        if !self.stays.load(Ordering::Relaxed) {
            // SAFETY: a descriptor of a link, still open. If the kernel refuses, the last
            // copy that is closed detaches.
            unsafe { libbpf_sys::bpf_link_detach(self.fd.as_raw_fd()) };
        }
    }
}

/// A second hold on an attachment: the program stays although the process is gone that
/// attached it, until whoever attached it detaches it, or this is dropped as the last one.
#[derive(Debug)]
pub struct HeldLink {
    fd: OwnedFd,
    target: Target,
}

impl HeldLink {
    /// Of the program with this number, on this interface. It takes `CAP_SYS_ADMIN`.
    #[must_use]
    pub fn of(program: u32, ifindex: u32) -> Option<Self> {
        Self::all(program).find(|held| held.target.ifindex == ifindex)
    }

    /// The same, on whatever interface that is.
    pub(crate) fn of_program(program: u32) -> Option<Self> {
        Self::all(program).find(|held| held.target.ifindex != 0)
    }

    fn all(program: u32) -> impl Iterator<Item = Self> {
        let links = LinkInfoIter::default().filter(move |link| link.prog_id == program);
        links.filter_map(move |link| {
            // SAFETY: takes a number, returns a descriptor or an error.
            let fd = unsafe { libbpf_sys::bpf_link_get_fd_by_id(link.id) };
            if fd < 0 {
                return None;
            }
            // SAFETY: the kernel has just returned this descriptor and nothing else knows it.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            let target = Target::of(fd.as_fd()).filter(|target| target.program == program)?;
            Some(Self { fd, target })
        })
    }

    /// The interface's name in this network namespace; `None` if it is in another one.
    pub(crate) fn interface(&self) -> Option<String> {
        let Target { program, ifindex } = self.target;
        let attached = link::link(ifindex).ok()?.xdp?;
        let name = if_indextoname(ifindex).ok()?.into_string().ok()?;
        (attached.id == program).then_some(name)
    }

    /// Whether this very program is still attached to the interface.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        Target::of(self.fd.as_fd()) == Some(self.target)
    }

    /// Puts another program in its place: no packet passes unseen. `None` if it was detached
    /// meanwhile.
    #[must_use]
    pub fn replace(self, program: BorrowedFd<'_>) -> Option<XdpLink> {
        XdpLink::take_over(self.fd, program, self.target.ifindex)
    }

    /// Detaches the program, whoever else holds it.
    pub fn detach(self) {
        drop(XdpLink::of(self.fd));
    }
}

/// What an XDP link joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    program: u32,
    /// 0 once it is detached.
    ifindex: u32,
}

impl Target {
    /// `None` if `fd` is no XDP link.
    fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        // SAFETY: all-zero bytes are a valid bpf_link_info.
        let mut info: libbpf_sys::bpf_link_info = unsafe { std::mem::zeroed() };
        let mut length = u32::try_from(size_of_val(&info)).ok()?;
        // SAFETY: `info` is as long as `length` says and outlives the call.
        let answer = unsafe {
            libbpf_sys::bpf_link_get_info_by_fd(fd.as_raw_fd(), &raw mut info, &raw mut length)
        };
        if answer != 0 || info.type_ != libbpf_sys::BPF_LINK_TYPE_XDP {
            return None;
        }
        Some(Self {
            program: info.prog_id,
            // SAFETY: of a link of this type the kernel fills in this part.
            ifindex: unsafe { info.__bindgen_anon_1.xdp.ifindex },
        })
    }
}

fn refusal(interface: &str, ifindex: u32, errno: Errno) -> AttachError {
    let interface = interface.to_owned();
    match errno {
        Errno::EBUSY | Errno::EEXIST => {
            let attached = link::link(ifindex).ok().and_then(|link| link.xdp);
            if attached.is_none()
                && let Some(refusal) = refused_by_above(&interface, ifindex)
            {
                return refusal;
            }
            let remedy = match &attached {
                Some(attached) => attached.remedy(&interface),
                None => format!("`plimsoll guard check {interface}` tells more"),
            };
            AttachError::Busy {
                program: attached.map_or_else(String::new, |attached| format!(", {attached}")),
                interface,
                remedy,
            }
        }
        Errno::EOPNOTSUPP | Errno::ENOSPC if has_fewer_queues(ifindex) => {
            AttachError::FewerQueues { interface }
        }
        Errno::EOPNOTSUPP => AttachError::NoNativeXdp { interface },
        Errno::ENODEV => NoSuchInterface::called(&interface).into(),
        Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM => os("attach the XDP program")(errno).into(),
        errno => AttachError::Refused {
            interface,
            source: io::Error::from(errno),
        },
    }
}

/// Why an interface takes no program whose driver says that it has no native XDP.
#[must_use]
pub fn lacks_native_xdp(interface: &str, ifindex: u32) -> AttachError {
    refusal(interface, ifindex, Errno::EOPNOTSUPP)
}

/// A veth says that it has no native XDP while its other end has more queues.
fn has_fewer_queues(ifindex: u32) -> bool {
    let is_veth = link::link(ifindex).is_ok_and(|link| link.kind.as_deref() == Some("veth"));
    is_veth && matches!(link::native_xdp(ifindex), Ok(Some(false)))
}

/// Why the kernel takes no program on an interface that has none, if the cause is above.
#[must_use]
pub fn refused_by_above(interface: &str, ifindex: u32) -> Option<AttachError> {
    let index = link::above(ifindex).ok()?.refusing?;
    let above = link::name(index)?;
    let program = link::link(index).ok()?.xdp?;
    Some(AttachError::BusyAbove {
        interface: interface.to_owned(),
        remedy: format!("{program}; {}", program.remedy(&above)),
        above,
    })
}
