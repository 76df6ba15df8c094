//! A mirror of the kernel's routing state: links, routes, own addresses, neighbours.
//!
//! Whoever forwards packets beside the kernel must decide as the kernel would, and
//! `ip route`, FRR and BIRD stay in charge. So the mirror subscribes to rtnetlink(7)
//! first and then reads everything: what changes meanwhile waits in the
//! subscription. After an overrun of the subscription everything is read anew. Now
//! and then [`Mirror::compare`] reads it once more and counts entries that differ.
//!
//! Own addresses are routes of type `local`, and broadcast addresses those of type
//! `broadcast`: both are [`Target::Local`].
//!
//! Beside the mirror, [`PacketSizes`] says how large packets routes allow.
//!
//! **Traps.** The kernel flushes IPv4 routes without a word when a link goes down or
//! an address goes, or those of a next hop object that is deleted (`ip nexthop`). So a changed
//! link, address or rule, or next hop object of some route, means that everything is read
//! anew, once at once and once a moment later. An IPv6 route that joins others of the
//! same metric is told without them: also then.
//!
//! **Limits.** Routing by rules beyond the kernel's default ones (sources, marks,
//! VRFs) is told as [`State::has_policy`] and not mirrored. With `net.ipv4.nexthop_compat_mode=0`
//! a next hop object that changes within a group is found by [`Mirror::compare`] only.

mod message;
mod sizes;
mod state;
pub mod switches;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use netlink_bindings::{rt_link, rt_neigh, rt_route, rt_rule};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt,
    socket, sockopt,
};

use crate::netlink;
use message::Event;
pub use sizes::PacketSizes;
pub use state::{Hop, Kind, Link, Neighbour, Route, State, Target};

/// What changed in the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The routes of this prefix.
    Routes(ipnet::IpNet),
    /// This neighbour.
    Neighbour(Neighbour),
    /// Anything: the state was read anew. So it is when one of the [`switches`] is turned, which
    /// the state does not hold.
    Everything,
}

/// How the mirror fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Notifications of the kernel.
    pub notifications: u64,
    /// Notifications that were lost because they came too fast.
    pub overruns: u64,
    /// How often everything was read, the first time included.
    pub readings: u64,
    /// How often the state was compared with the kernel's.
    pub comparisons: u64,
    /// Entries that differed although nothing was on its way.
    pub divergences: u64,
}

/// The subscription's buffer: some ten thousand routes at once.
const BUFFER_BYTES: usize = 8 << 20;
/// Silent flushes are over by then.
const AGAIN: Duration = Duration::from_millis(100);
/// The kernel makes messages of up to 32 KiB.
const MESSAGE_BYTES: usize = 64 << 10;

/// The kernel's routing state of the network namespace it was opened in.
pub struct Mirror {
    subscription: OwnedFd,
    requests: netlink::Socket,
    state: State,
    counters: Counters,
    /// Everything is to be read once more then.
    again_at: Option<Instant>,
    buffer: Box<[u8]>,
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirror")
            .field("state", &self.state)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Mirror {
    /// Subscribes and reads everything of the current network namespace.
    ///
    /// # Errors
    ///
    /// The kernel does not answer.
    pub fn open() -> io::Result<Self> {
        Self::open_with_buffer(BUFFER_BYTES)
    }

    /// As [`Mirror::open`], with another size of the subscription's buffer, in bytes.
    ///
    /// # Errors
    ///
    /// As [`Mirror::open`].
    pub fn open_with_buffer(bytes: usize) -> io::Result<Self> {
        let mut mirror = Self {
            subscription: subscribe(bytes)?,
            requests: netlink::Socket::new(),
            state: State::default(),
            counters: Counters::default(),
            again_at: None,
            buffer: vec![0; MESSAGE_BYTES].into_boxed_slice(),
        };
        mirror.read_everything()?;
        Ok(mirror)
    }

    /// What the kernel told last.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// How the mirror fared.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// When [`Mirror::poll`] has something to do although nothing arrives.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.again_at
    }

    /// Takes in what the kernel has told since the last call, and returns what
    /// changed. Does not wait: the descriptor is readable when there is something.
    ///
    /// # Errors
    ///
    /// The kernel does not answer.
    pub fn poll(&mut self) -> io::Result<Vec<Change>> {
        let mut changes = Vec::new();
        let mut is_known = self.take_in(&mut changes)?;
        if self.again_at.is_some_and(|at| at <= Instant::now()) {
            self.again_at = None;
            is_known = false;
        }
        if is_known {
            return Ok(changes);
        }
        self.read_everything()?;
        Ok(vec![Change::Everything])
    }

    /// Compares the state with the kernel's. Entries that differ although no
    /// notification about them is on its way are counted, and the kernel's are taken.
    /// Returns what changed.
    ///
    /// # Errors
    ///
    /// The kernel does not answer.
    pub fn compare(&mut self) -> io::Result<Vec<Change>> {
        self.counters.comparisons += 1;
        let mut changes = self.poll()?;
        // A change between two readings is no divergence: only what differs twice
        // in the same way is one.
        let first = self.read()?;
        changes.extend(self.poll()?);
        let differing = self.state.differences(&first);
        if differing.is_empty() {
            return Ok(changes);
        }
        let second = self.read()?;
        changes.extend(self.poll()?);
        let again = self.state.differences(&second);
        let lasting = differing.intersection(&again).count();
        if lasting == 0 {
            return Ok(changes);
        }
        self.counters.divergences += lasting as u64;
        self.read_everything()?;
        Ok(vec![Change::Everything])
    }

    /// False: the state must be read anew.
    fn take_in(&mut self, changes: &mut Vec<Change>) -> io::Result<bool> {
        let mut is_known = true;
        loop {
            let received = recv(
                self.subscription.as_raw_fd(),
                &mut self.buffer,
                MsgFlags::MSG_DONTWAIT,
            );
            let length = match received {
                Ok(length) => length,
                Err(Errno::EAGAIN) => return Ok(is_known),
                Err(Errno::EINTR) => continue,
                Err(Errno::ENOBUFS) => {
                    self.counters.overruns += 1;
                    is_known = false;
                    continue;
                }
                Err(errno) => return Err(errno.into()),
            };
            let events: Vec<Event> = message::events(&self.buffer[..length]).collect();
            for event in events {
                self.counters.notifications += 1;
                is_known &= self.apply(event, changes);
            }
        }
    }

    /// False: everything must be read anew.
    fn apply(&mut self, event: Event, changes: &mut Vec<Change>) -> bool {
        match event {
            Event::Route {
                prefix,
                route,
                place,
            } => {
                let applied = self.state.add_route(prefix, route, place);
                changes.extend((applied == Some(true)).then_some(Change::Routes(prefix)));
                applied.is_some()
            }
            Event::RouteGone { prefix, route } => {
                if self.state.remove_route(prefix, &route) {
                    changes.push(Change::Routes(prefix));
                }
                true
            }
            Event::Neighbour(neighbour, mac) => {
                if self.state.set_neighbour(neighbour, mac) {
                    changes.push(Change::Neighbour(neighbour));
                }
                true
            }
            Event::Link(index, link) if self.state.links.get(&index) == link.as_ref() => true,
            Event::NextHop(id) if !self.state.goes_by(id) => true,
            Event::Link(..) | Event::Address | Event::Rule | Event::NextHop(_) => {
                self.again_at = Some(Instant::now() + AGAIN);
                false
            }
            Event::Unreadable | Event::Switch => false,
            Event::Other => true,
        }
    }

    fn read_everything(&mut self) -> io::Result<()> {
        self.state = self.read()?;
        self.counters.readings += 1;
        Ok(())
    }

    /// The kernel's state now.
    fn read(&mut self) -> io::Result<State> {
        let mut state = State::default();
        self.read_links(&mut state)?;
        self.read_rules(&mut state)?;
        self.read_routes(&mut state)?;
        self.read_neighbours(&mut state)?;
        Ok(state)
    }

    fn read_links(&mut self, state: &mut State) -> io::Result<()> {
        let request = rt_link::Request::new().op_getlink_dump(&rt_link::Ifinfomsg::default());
        let mut replies = self.requests.request(&request)?;
        while let Some(reply) = replies.recv() {
            let (header, attributes) = reply?;
            let (index, link) = message::link(&header, &attributes);
            state.links.insert(index, link);
        }
        Ok(())
    }

    fn read_rules(&mut self, state: &mut State) -> io::Result<()> {
        let request = rt_rule::Request::new().op_getrule_dump(&rt_rule::FibRuleHdr::default());
        let mut replies = self.requests.request(&request)?;
        while let Some(reply) = replies.recv() {
            let (header, attributes) = reply?;
            state.has_policy |= !message::is_default_rule(&header, &attributes);
        }
        Ok(())
    }

    fn read_routes(&mut self, state: &mut State) -> io::Result<()> {
        let request = rt_route::Request::new().op_getroute_dump(&rt_route::Rtmsg::default());
        let mut replies = self.requests.request(&request)?;
        while let Some(reply) = replies.recv() {
            let (header, attributes) = reply?;
            if let Some((prefix, route)) = message::route(&header, &attributes) {
                state.routes.entry(prefix).or_default().push(route);
            }
        }
        Ok(())
    }

    fn read_neighbours(&mut self, state: &mut State) -> io::Result<()> {
        let header = rt_neigh::Ndmsg::default();
        let request = rt_neigh::Request::new().op_getneigh_dump(&header);
        let mut replies = self.requests.request(&request)?;
        while let Some(reply) = replies.recv() {
            let (header, attributes) = reply?;
            if let Some((neighbour, Some(mac))) = message::neighbour(&header, &attributes) {
                state.neighbours.insert(neighbour, mac);
            }
        }
        Ok(())
    }
}

impl AsFd for Mirror {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.subscription.as_fd()
    }
}

/// RTMGRP_* of linux/rtnetlink.h by number.
const GROUPS: [i32; 11] = [
    libc::RTMGRP_LINK,
    libc::RTMGRP_NEIGH,
    libc::RTMGRP_IPV4_IFADDR,
    libc::RTMGRP_IPV4_ROUTE,
    libc::RTMGRP_IPV4_RULE,
    libc::RTMGRP_IPV6_IFADDR,
    libc::RTMGRP_IPV6_ROUTE,
    // RTNLGRP_IPV6_RULE, which has no name in libc.
    1 << (19 - 1),
    // RTNLGRP_IPV4_NETCONF and RTNLGRP_IPV6_NETCONF.
    1 << (24 - 1),
    1 << (25 - 1),
    // RTNLGRP_NEXTHOP, since Linux 5.3.
    1 << (32 - 1),
];

fn subscribe(buffer_bytes: usize) -> io::Result<OwnedFd> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        SockProtocol::NetlinkRoute,
    )?;
    // Beyond the limit of net.core.rmem_max, which takes CAP_NET_ADMIN.
    setsockopt(&socket, sockopt::RcvBufForce, &buffer_bytes)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &buffer_bytes))?;
    let groups = GROUPS.iter().fold(0, |all, group| all | group);
    bind(
        socket.as_raw_fd(),
        &NetlinkAddr::new(0, groups.cast_unsigned()),
    )?;
    Ok(socket)
}
