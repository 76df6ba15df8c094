//! The sockets of one endpoint, or of all the rest: one for each receive queue.
//!
//! The kernel lets an AF_XDP socket receive from the queue alone that it is bound to. So there is
//! a socket per queue, and together they are one device. All queues share one memory, and each
//! lends its part of it. What is sent leaves by the first.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::socket::Socket;
use super::{QUEUES_MAX, XdpConfig, refused};
use crate::device::{Batch, Capabilities, Device, Drops, Pool};
use crate::error::Error;
use crate::wait;

/// The first sockets of the queues that are to be served.
pub(super) fn open(
    interface: &str,
    ifindex: u32,
    config: &XdpConfig,
    capabilities: Capabilities,
    chunk_bytes: usize,
) -> Result<Vec<Socket>, Error> {
    let known = match config.all_queues {
        true => in_use(interface, ifindex)?,
        false => 1,
    };
    if known > QUEUES_MAX {
        return Err(Error::Unsupported {
            what: format!("{interface} with {known} receive queues"),
            feature: "a stack on all of them",
            remedy: "use at most 16 (`ethtool -L IFACE combined 16`), or serve one alone",
        });
    }
    let others = (0..known).filter(|queue| *queue != config.queue);
    let others = others.take(known as usize - 1);
    let of_queue = |queue| XdpConfig {
        queue,
        fill_frames: config.fill_frames.or_else(|| part_of(config, known)),
        ..config.clone()
    };
    let first = Socket::first(ifindex, &of_queue(config.queue), capabilities, chunk_bytes);
    let mut all = vec![first.map_err(|error| refused(interface, config, error))?];
    for queue in others {
        let config = of_queue(queue);
        match Socket::first_beside(all[0].queue(), ifindex, &config, capabilities) {
            Ok(socket) => all.push(socket),
            // A driver may have fewer queues in use than it has room for.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(refused(interface, &config, error)),
        }
    }
    Ok(all)
}

/// Receive queues in use, or as many as there may be where the driver does not tell.
fn in_use(interface: &str, ifindex: u32) -> Result<u32, Error> {
    if let Ok(Some((in_use, _))) = plimsoll_kernel::ethtool::receive_channels(ifindex) {
        return Ok(in_use.max(1));
    }
    let link = plimsoll_kernel::link::link(ifindex);
    let link = link.map_err(Error::io(format!("ask about {interface}")))?;
    // Most are not in use, as a rule: no reason to refuse.
    Ok(link.rx_queues.unwrap_or(1).clamp(1, QUEUES_MAX))
}

/// Frames that each of several queues may lend: the first would take all.
fn part_of(config: &XdpConfig, queues: u32) -> Option<u32> {
    let part = (config.chunks - config.send_frames) as u32 / queues;
    (queues > 1).then(|| 1 << part.max(1).ilog2())
}

#[derive(Debug)]
pub(super) struct Sockets {
    /// The first queue's first; never none.
    all: Vec<Socket>,
    /// Who is asked first next time.
    turn: AtomicUsize,
    /// Readable while one of several is.
    readable: Option<Epoll>,
}

impl Sockets {
    pub(super) fn new(all: Vec<Socket>) -> io::Result<Self> {
        let readable = match &all[..] {
            [_] => None,
            several => Some(watch(several)?),
        };
        let turn = AtomicUsize::new(0);
        Ok(Self {
            all,
            turn,
            readable,
        })
    }

    pub(super) fn all(&self) -> &[Socket] {
        &self.all
    }

    fn first(&self) -> &Socket {
        &self.all[0]
    }

    /// Takes back what the kernel has received and nobody will read.
    pub(super) fn take_unread(&self) {
        for socket in &self.all {
            socket.take_unread();
        }
    }
}

fn watch(sockets: &[Socket]) -> io::Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for socket in sockets {
        epoll.add(socket.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    }
    Ok(epoll)
}

impl Device for Sockets {
    fn capabilities(&self) -> Capabilities {
        self.first().capabilities()
    }

    fn pool(&self) -> &Arc<Pool> {
        self.first().pool()
    }

    fn receive(&self, batch: &mut Batch, max: usize) -> io::Result<usize> {
        if let [only] = &self.all[..] {
            return only.receive(batch, max);
        }
        let (before, first) = (batch.len(), self.turn.fetch_add(1, Ordering::Relaxed));
        for place in 0..self.all.len() {
            // Also where there is no room left in the batch: each looks after its fill ring.
            let left = max - (batch.len() - before);
            self.all[first.wrapping_add(place) % self.all.len()].receive(batch, left)?;
        }
        Ok(batch.len() - before)
    }

    fn transmit(&self, batch: &mut Batch) -> io::Result<usize> {
        self.first().transmit(batch)
    }

    fn enqueue(&self, batch: &mut Batch) -> io::Result<usize> {
        self.first().enqueue(batch)
    }

    fn has_room(&self) -> bool {
        wait::is_writable(self.first().as_fd())
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        match &self.readable {
            Some(epoll) => epoll.0.as_fd(),
            None => self.first().as_fd(),
        }
    }

    fn tend(&self) -> io::Result<Option<Duration>> {
        let mut soonest = None;
        for socket in &self.all {
            let next = socket.tend()?;
            soonest = soonest.into_iter().chain(next).min();
        }
        Ok(soonest)
    }

    fn unsent(&self) -> u64 {
        self.all.iter().map(Socket::unsent).sum()
    }

    fn drops(&self) -> Drops {
        let all = self.all.iter().map(Socket::drops);
        all.fold(Drops::default(), |sum, one| Drops {
            ring_full: sum.ring_full + one.ring_full,
            early: sum.early + one.early,
            no_buffer: sum.no_buffer + one.no_buffer,
            invalid: sum.invalid + one.invalid,
            ..sum
        })
    }
}
