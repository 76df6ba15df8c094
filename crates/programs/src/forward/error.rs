//! What can go wrong, and what to do about it.

use std::io;

use plimsoll_kernel::error::{FAILED, LACKS, USED_WRONGLY};
use plimsoll_kernel::ipsec::Policies;
use plimsoll_kernel::xdp_link::AttachError;

/// Why this host does not forward as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting makes no sense.
    #[error("{problem}")]
    Usage {
        /// What is wrong with it.
        problem: String,
    },
    /// The filter of protected traffic is none.
    #[error(transparent)]
    Filter(#[from] crate::filter::FilterError),
    /// The kernel forwards nothing.
    #[error(
        "the kernel forwards neither IPv4 nor IPv6 packets that come in by {interfaces}: `sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1` makes this host a router"
    )]
    NoRouter {
        /// The interfaces.
        interfaces: String,
    },
    /// Packets would be forwarded past IPsec.
    #[error(
        "IPsec policies hold here ({} for what leaves, {} for what is forwarded: `ip xfrm policy`), and packets that are forwarded past the kernel's stack would leave in clear and come in unprotected: forward on a host without them",
        .policies.outbound, .policies.forwarded
    )]
    Ipsec {
        /// How many.
        policies: Policies,
    },
    /// The kernel would drop what user space hands to it.
    #[error(
        "net.ipv4.conf.all.rp_filter is set, and the kernel would drop packets that user space hands to it: set rp_filter for each interface and 0 for all, or take --path xdp"
    )]
    ReversePathForAll,
    /// The interface has no Ethernet address.
    #[error("{interface} has no Ethernet address: take an interface with Ethernet frames")]
    NoEthernet {
        /// As given.
        interface: String,
    },
    /// Another XDP program is attached.
    #[error("{interface} already runs an XDP program{program}: {remedy}")]
    Busy {
        /// As given.
        interface: String,
        /// After a comma, what is known of it; empty if nothing is.
        program: String,
        /// How it may be detached.
        remedy: String,
    },
    /// The kernel's side failed.
    #[error(transparent)]
    Kernel(#[from] plimsoll_kernel::Error),
    /// A device in user space failed.
    #[error(transparent)]
    Device(#[from] plimsoll_stack::Error),
    /// A setting of a decision is out of range.
    #[error(transparent)]
    Config(#[from] plimsoll_core::config::ConfigError),
}

plimsoll_kernel::from_operations!(Error::Kernel);

impl Error {
    /// The exit code of a command that ends by it: 1 failed, 2 used wrongly, 3 this
    /// host lacks something.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage { .. } | Self::Config(_) | Self::Filter(_) => USED_WRONGLY,
            Self::NoRouter { .. }
            | Self::Ipsec { .. }
            | Self::NoEthernet { .. }
            | Self::ReversePathForAll => LACKS,
            Self::Busy { .. } => FAILED,
            Self::Kernel(error) => error.exit_code(),
            Self::Device(error) => error.exit_code(),
        }
    }

    pub(super) fn usage(problem: impl Into<String>) -> Self {
        Self::Usage {
            problem: problem.into(),
        }
    }

    /// Turns a libbpf error into ours; `action` ends the sentence "cannot …".
    pub(super) fn bpf(action: &'static str) -> impl Fn(libbpf_rs::Error) -> Self {
        move |error| plimsoll_kernel::error::bpf(action)(error).into()
    }

    /// The same for a system call.
    pub(super) fn os(action: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| plimsoll_kernel::error::os(action)(error).into()
    }

    /// Why an instance is not attached.
    pub(super) fn not_attached(interface: &str, error: AttachError) -> Self {
        match error {
            AttachError::Busy {
                program, remedy, ..
            } => Self::Busy {
                interface: interface.to_owned(),
                program,
                remedy,
            },
            error => error.into(),
        }
    }
}
