//! Whose a socket is: the process that has it open and its control group.
//!
//! The kernel lists sockets with their inode and control group
//! (`sock_diag(7)`); which process holds an inode is only to be found by
//! reading `/proc/*/fd`. Both are bounded per refresh and what was found is
//! kept, so that looking costs little while nothing changes.
//!
//! Limits: a socket that several processes have open is shown as the one with
//! the lowest id, mostly the parent of workers. Processes of other pid
//! namespaces above this one are not seen. Naming processes of other users
//! takes `CAP_SYS_PTRACE` and `CAP_DAC_READ_SEARCH`; without them, their
//! sockets still have a control group. Where processes have tens of thousands
//! of descriptors, it takes seconds until a new socket's process is known. All
//! sockets are listed at once: 20,000 take the kernel 10 to 15 ms. A report shows owners of the
//! first 20,000.

pub(crate) mod control_group;
pub(crate) mod diag;
mod holder;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use plimsoll_core::demux::Kind;
use serde::{Deserialize, Serialize};

use plimsoll_kernel::error::os;

use crate::error::Error;
use control_group::ControlGroups;
use diag::{Place, Protocol, Socket};
use holder::Holders;

/// Sockets listed at most; more than channels can be.
pub(crate) const SOCKETS_MAX: usize = 20_000;

/// Who has a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The process, if one is found.
    pub process: Option<OwnerProcess>,
    /// Path of the socket's control group in the unified hierarchy (cgroup v2).
    pub control_group: Option<String>,
    /// The user that made the socket.
    pub user: u32,
    /// Sockets bound to the same address: more than one is a group of
    /// `SO_REUSEPORT`, or shares the address otherwise.
    pub sockets: u32,
}

/// A process by id and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerProcess {
    /// Process id.
    pub pid: u32,
    /// `comm` of it: up to 15 bytes.
    pub name: String,
}

/// All bound UDP sockets and TCP listeners of a network namespace with their
/// owners.
#[derive(Debug, Default)]
pub struct Owners {
    sockets: HashMap<Place, Vec<Socket>>,
    cookies: HashMap<u64, Socket>,
    holders: Holders,
    control_groups: ControlGroups,
    truncated: bool,
}

impl Owners {
    /// Knows nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the current network namespace's sockets, and looks for the
    /// processes of new ones: at most 20,000 sockets are listed and 2,000
    /// descriptors looked at. What was not found goes on at the next refresh.
    /// Besides, each process that has one of them is asked whether it lives.
    ///
    /// # Errors
    ///
    /// The kernel does not list sockets.
    pub fn refresh(&mut self) -> Result<(), Error> {
        self.refresh_where(|_| true)
    }

    /// The same of the sockets of these channels alone: however many others anybody opens, these
    /// are found.
    ///
    /// # Errors
    ///
    /// As [`Owners::refresh`].
    pub(crate) fn refresh_channels(
        &mut self,
        channels: impl Iterator<Item = (Kind, IpAddr, u16)>,
    ) -> Result<(), Error> {
        let places = channels.flat_map(|(kind, address, port)| places_of(kind, address, port));
        let places: HashSet<Place> = places.collect();
        self.refresh_where(|socket| places.contains(&socket.place()))
    }

    fn refresh_where(&mut self, is_meant: impl Fn(&Socket) -> bool) -> Result<(), Error> {
        let (sockets, truncated) =
            diag::sockets(SOCKETS_MAX, is_meant).map_err(os("list the host's sockets"))?;
        self.truncated = truncated;
        let inodes: HashSet<u32> = sockets.iter().map(|socket| socket.inode).collect();
        self.holders.refresh(&inodes);
        self.control_groups
            .refresh(sockets.iter().filter_map(|socket| socket.control_group));
        self.cookies = sockets
            .iter()
            .map(|socket| (socket.cookie, *socket))
            .collect();
        self.sockets.clear();
        for socket in sockets {
            self.sockets.entry(socket.place()).or_default().push(socket);
        }
        Ok(())
    }

    /// True if there were more sockets than are listed.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Who has the sockets of a channel: of a kind, bound to `address` and
    /// `port`.
    #[must_use]
    pub fn of_channel(&self, kind: Kind, address: IpAddr, port: u16) -> Option<Owner> {
        let sockets = places_of(kind, address, port)
            .filter_map(|place| self.sockets.get(&place))
            .find(|sockets| !sockets.is_empty())?;
        let first = sockets
            .iter()
            .find(|socket| self.holders.of(socket.inode).is_some())
            .unwrap_or(&sockets[0]);
        let count = u32::try_from(sockets.len()).unwrap_or(u32::MAX);
        Some(self.owner(first, count))
    }

    /// Who has the socket of a cookie (`SO_COOKIE`).
    #[must_use]
    pub fn of_cookie(&self, cookie: u64) -> Option<Owner> {
        self.cookies
            .get(&cookie)
            .map(|socket| self.owner(socket, 1))
    }

    fn owner(&self, socket: &Socket, sockets: u32) -> Owner {
        let path = |id| self.control_groups.path(id).map(str::to_owned);
        Owner {
            process: self.holders.of(socket.inode).cloned(),
            control_group: socket.control_group.and_then(path),
            user: socket.user,
            sockets,
        }
    }
}

/// Where the sockets of a channel may be bound; those that are nearest come first.
fn places_of(kind: Kind, address: IpAddr, port: u16) -> impl Iterator<Item = Place> {
    let protocol = match kind {
        Kind::UdpSocket | Kind::Multicast => Some(Protocol::Udp),
        Kind::TcpListener => Some(Protocol::Tcp),
        _ => None,
    };
    let any = [
        IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    ];
    let addresses = std::iter::once(address).chain(any);
    addresses.filter_map(move |address| Some((protocol?, address, port)))
}
