//! NAPI instances of an interface, asked of and set through the kernel's
//! netdev netlink family.
//!
//! An instance polls one receive queue, sometimes several. Settings per
//! instance exist since Linux 6.13 (threads since 6.17); before, only the
//! device as a whole can be set. Names in /proc would not tell polling threads
//! of different network namespaces apart; this family does (Linux 6.8).

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use netlink_bindings::netdev;
use serde::Serialize;

use crate::host::check_pid_namespace;
use crate::netlink;

/// One instance as the kernel describes it. `None`: it does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Napi {
    /// The kernel's number of it; an instance made anew may have another.
    pub id: u32,
    /// The first receive queue it polls, if the driver says so.
    pub queue: Option<u32>,
    /// Its interrupt's number.
    pub irq: Option<u32>,
    /// Its polling thread, if it is polled by one. Not told in a PID namespace.
    pub thread: Option<i32>,
    /// Empty polls until interrupts come back on.
    pub defer_hard_irqs: Option<u32>,
    /// Holdoff, ns: time until the timer polls again.
    pub gro_flush_timeout: Option<u32>,
    /// How long an application that polls busily may keep its interrupt suspended, ns
    /// (Linux 6.13); 0: none does.
    pub irq_suspend_timeout: Option<u32>,
    /// How it is polled: 0 softirq, 1 thread, 2 busy-polling thread.
    pub threaded: Option<u32>,
}

impl Napi {
    /// Whether an application says when its interrupts come: another holdoff would upset
    /// it (`Documentation/networking/napi.rst`, "IRQ suspension").
    #[must_use]
    pub fn is_suspended_by_application(&self) -> bool {
        self.irq_suspend_timeout.is_some_and(|timeout| timeout > 0)
    }

    /// Whether a thread of the kernel polls it all the time (Linux 6.19): no holdoff matters then, and
    /// at another priority the thread would take the CPU from everybody else.
    #[must_use]
    pub fn is_polled_busily(&self) -> bool {
        self.threaded == Some(BUSY_THREAD)
    }
}

/// `NETDEV_NAPI_THREADED_BUSY_POLL` of `linux/netdev.h`.
const BUSY_THREAD: u32 = 2;

/// A setting of one instance to change; `None` leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) defer_hard_irqs: Option<u32>,
    pub(crate) gro_flush_timeout: Option<u32>,
    pub(crate) irq_suspend_timeout: Option<u32>,
    pub(crate) threaded: Option<u32>,
}

/// Where instances are asked of and set. A trait, so that tests can have drivers of
/// every kind.
pub(crate) trait Family: fmt::Debug + Send {
    /// As [`Netdev::instances`].
    fn instances(&mut self, ifindex: u32) -> io::Result<Vec<Napi>>;
    /// Changes one instance. `None` if the kernel has none of this id now.
    fn set(&mut self, id: u32, change: Change) -> io::Result<Option<()>>;
}

impl Family for Netdev {
    fn instances(&mut self, ifindex: u32) -> io::Result<Vec<Napi>> {
        Self::instances(self, ifindex)
    }

    fn set(&mut self, id: u32, change: Change) -> io::Result<Option<()>> {
        Self::set(self, id, change)
    }
}

/// A socket of the namespace it was first used in.
#[derive(Debug, Default)]
pub struct Netdev {
    socket: netlink::Socket,
}

impl Netdev {
    /// Not used yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The interface's instances by id. Empty if it has none (it is down, or
    /// does not use NAPI) or the kernel does not tell (before 6.8).
    ///
    /// # Errors
    ///
    /// The kernel does not answer.
    pub fn instances(&mut self, ifindex: u32) -> io::Result<Vec<Napi>> {
        let queues = match self.queues(ifindex) {
            Ok(queues) => queues,
            Err(error) if is_unsupported(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut request = netdev::Request::new().op_napi_get_dump();
        request.encode().push_ifindex(ifindex);
        let mut replies = self.socket.request(&request)?;
        let is_named = check_pid_namespace().is_ok();
        let thread = |pid: u32| i32::try_from(pid).ok().filter(|pid| *pid > 0);
        let mut instances = Vec::new();
        while let Some(reply) = replies.recv() {
            let reply = reply?;
            let id = reply.get_id().map_err(io::Error::other)?;
            instances.push(Napi {
                id,
                queue: queues.get(&id).copied(),
                irq: reply.get_irq().ok(),
                thread: reply.get_pid().ok().and_then(thread).filter(|_| is_named),
                defer_hard_irqs: reply.get_defer_hard_irqs().ok(),
                gro_flush_timeout: reply.get_gro_flush_timeout().ok(),
                irq_suspend_timeout: reply.get_irq_suspend_timeout().ok(),
                threaded: reply.get_threaded().ok(),
            });
        }
        instances.sort_by_key(|napi| (napi.queue, napi.id));
        Ok(instances)
    }

    /// Whether the interface takes frames that XDP programs redirect to it, which may
    /// change. `None` if the kernel does not tell (before 6.3).
    ///
    /// # Errors
    ///
    /// There is no such interface, or the kernel does not answer.
    pub fn takes_redirected(&mut self, ifindex: u32) -> io::Result<Option<bool>> {
        let mut request = netdev::Request::new().op_dev_get_do();
        request.encode().push_ifindex(ifindex);
        let mut replies = self.socket.request(&request)?;
        let mut features = None;
        while let Some(reply) = replies.recv() {
            match reply.map_err(io::Error::from) {
                Ok(device) => features = device.get_xdp_features().ok(),
                Err(error) if is_unsupported(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(features.map(|features| features & netdev::XdpAct::NdoXmit as u64 != 0))
    }

    /// The first receive queue of each instance that polls one.
    fn queues(&mut self, ifindex: u32) -> io::Result<BTreeMap<u32, u32>> {
        let mut request = netdev::Request::new().op_queue_get_dump();
        request.encode().push_ifindex(ifindex);
        let mut replies = self.socket.request(&request)?;
        let mut queues = BTreeMap::new();
        while let Some(reply) = replies.recv() {
            let reply = reply?;
            let receives = reply.get_type().ok() == Some(netdev::QueueType::Rx as u32);
            if let (true, Ok(napi), Ok(queue)) = (receives, reply.get_napi_id(), reply.get_id()) {
                let first = queues.entry(napi).or_insert(queue);
                *first = queue.min(*first);
            }
        }
        Ok(queues)
    }

    fn set(&mut self, id: u32, change: Change) -> io::Result<Option<()>> {
        let mut request = netdev::Request::new().op_napi_set_do();
        {
            let mut attributes = request.encode().push_id(id);
            if let Some(count) = change.defer_hard_irqs {
                attributes = attributes.push_defer_hard_irqs(count);
            }
            if let Some(time) = change.gro_flush_timeout {
                attributes = attributes.push_gro_flush_timeout(time);
            }
            if let Some(time) = change.irq_suspend_timeout {
                attributes = attributes.push_irq_suspend_timeout(time);
            }
            if let Some(threaded) = change.threaded {
                attributes.push_threaded(threaded);
            }
        }
        let mut replies = self.socket.request(&request)?;
        while let Some(reply) = replies.recv() {
            match reply.map(drop).map_err(io::Error::from) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(()))
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    // No such family (ENOENT), or no such operation in it.
    error.kind() == io::ErrorKind::NotFound
        || matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}
