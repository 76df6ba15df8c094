//! The proxies: who does the work that belongs to no socket.
//!
//! ARP and neighbour discovery, ICMP, answers to closed ports, and forwarding have channels
//! of their own and threads of their own, which the scheduler treats as any other (Druschel &
//! Banga, section 3.5: LRP-45). A flood of pings thus fills the pings' channel
//! and takes the time of that thread, nobody else's. Each has a priority of its own
//! ([`ProxyConfig`]): that is how much of a busy CPU its work may take.
//!
//! **Limit.** All send by one device and ask one table of neighbours. So a thread at a worse level
//! may be interrupted while it has one of these locks, and a sender waits for it then.

mod closed_port;
mod forward;
mod icmp;
mod neighbour;
mod trouble;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use plimsoll_core::channel::{InterruptRequest, PooledConsumer};
use plimsoll_core::time::Instant;

use self::closed_port::ClosedPorts;
use self::forward::Forward;
use self::icmp::Icmp;
use self::neighbour::Neighbours;
use crate::account::{Account, Owner};
use crate::clock;
use crate::config::ProxyConfig;
use crate::device::{Batch, Frame, Mac};
use crate::host::Host;
use crate::table::{Arrived, Bound, ProxyChannels};
use crate::wait::{self, Waker};

/// Frames that are dealt with before what they lead to is sent.
const TURN_FRAMES: usize = 32;

/// What one proxy does with the frames of its channel.
trait Task: Send {
    /// Deals with a frame.
    fn on_frame(&mut self, frame: Frame, desk: &mut Desk, now: Instant);

    /// Whether it may deal with one now.
    fn is_open(&mut self, now: Instant) -> bool {
        let _ = now;
        true
    }

    /// What else wakes it, beside its channel.
    fn also_waits_for<'a>(&self, host: &'a Host) -> Option<BorrowedFd<'a>> {
        let _ = host;
        None
    }

    /// Does what is due beside frames; when there is more of that.
    fn on_time(&mut self, desk: &mut Desk, now: Instant) -> Option<Instant> {
        let _ = (desk, now);
        None
    }
}

/// What each proxy works with.
struct Desk {
    host: Arc<Host>,
    tally: Arc<Account>,
    out: Batch,
}

impl Desk {
    /// Sends an answer. Without room or route the question was one asked in vain.
    fn answer(&mut self, answer: Answer, now: Instant) {
        let Answer { frame, to, via } = answer;
        let egress = &self.host.egress;
        let _ = egress.push(frame, to, Some(via), &mut self.out, now);
    }
}

/// A frame that is complete but for its link destination.
#[derive(Debug)]
struct Answer {
    frame: Frame,
    to: std::net::IpAddr,
    /// Who asked, on the link.
    via: Mac,
}

/// One of the proxies of a stack.
pub(crate) struct Proxy {
    name: &'static str,
    nice: Option<i8>,
    channel: PooledConsumer<Arrived>,
    waker: Arc<Waker>,
    desk: Desk,
    task: Box<dyn Task>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Proxy").field(&self.name).finish()
    }
}

impl Proxy {
    /// Those that the config wants.
    pub(crate) fn all(
        host: &Arc<Host>,
        channels: ProxyChannels,
        config: &ProxyConfig,
    ) -> Vec<Self> {
        let make = |place: (_, _, Owner), bound: Bound, task: Box<dyn Task>| Self {
            name: place.0,
            nice: place.1,
            channel: bound.consumer,
            waker: bound.waker,
            desk: Desk {
                host: Arc::clone(host),
                tally: host.book.open(place.2),
                out: Batch::new(),
            },
            task,
        };
        let owner = Owner::Proxies;
        let neighbour = ("plimsoll-neigh", config.neighbour_nice, owner);
        let icmp = ("plimsoll-icmp", config.icmp_nice, owner);
        let closed_port = ("plimsoll-closed", config.closed_port_nice, owner);
        let closed_ports = ClosedPorts::new(host);
        let mut all = vec![
            make(
                neighbour,
                channels.neighbour,
                Box::new(Neighbours::new(config.announce)),
            ),
            make(icmp, channels.icmp, Box::new(Icmp)),
            make(closed_port, channels.closed_port, Box::new(closed_ports)),
        ];
        if let (Some(wanted), Some(channel)) = (config.forward, channels.forward) {
            let forward = ("plimsoll-route", wanted.nice, Owner::Forwarding);
            all.push(make(forward, channel, Box::new(Forward::new())));
        }
        all
    }

    /// The thread's.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// The thread's nice level, if it has one of its own.
    pub(crate) const fn nice(&self) -> Option<i8> {
        self.nice
    }

    /// What ends its sleep.
    pub(crate) const fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }

    /// Works until the stack stops or its device fails.
    pub(crate) fn run(mut self) {
        if let Err(error) = self.work_until_stopped() {
            self.desk.host.fail(&error);
        }
    }

    fn work_until_stopped(&mut self) -> io::Result<()> {
        while !self.desk.host.is_stopping() {
            let until = self.turn(clock::now())?;
            if !self.may_sleep() {
                continue;
            }
            let limit = until.map(|until| until.saturating_since(clock::now()));
            let waker = self.waker.as_fd();
            let woken = match self.task.also_waits_for(&self.desk.host) {
                Some(other) => wait::wait_any([waker, other], limit)?[0],
                None => wait::wait_any([waker], limit)?[0],
            };
            if woken {
                self.waker.clear();
            }
        }
        Ok(())
    }

    /// Deals with some of what waits; returns when something else is due.
    pub(crate) fn turn(&mut self, now: Instant) -> io::Result<Option<Instant>> {
        let _work = self.desk.tally.work();
        for _ in 0..TURN_FRAMES {
            if !self.task.is_open(now) {
                break;
            }
            let Some(arrival) = self.channel.pop(now) else {
                break;
            };
            if let Some(frame) = arrival.item.into_frame() {
                self.task.on_frame(frame, &mut self.desk, now);
            }
        }
        let due = self.task.on_time(&mut self.desk, now);
        let egress = &self.desk.host.egress;
        egress.transmit_or_drop(&mut self.desk.out)?;
        Ok(due)
    }

    /// Asks to be woken; false if something came meanwhile that it may deal with. What it may
    /// not has its time.
    fn may_sleep(&mut self) -> bool {
        !self.task.is_open(clock::now())
            || self.channel.request_interrupt() != InterruptRequest::Ready
    }
}
