//! Who caused which work: frames by outcome and CPU time, per endpoint.
//!
//! **CPU time.** Asking the kernel for a thread's time costs more than the work on a frame.
//! So one piece of work in [`EVERY`], drawn at random, is measured and charged as many times.
//! That is right on average, also for connections of a few segments. A piece of work is a
//! receiving or sending call, a turn of the TCP thread for one connection, or a turn of the
//! receiving thread or of a proxy. What a receive path does for a socket at arrival is the socket's.
//!
//! **Limits.** UDP's copying into a caller's buffer (but for `peek`) and what wakes a thread is the
//! caller's own.
//! With `soft-timer-polling` polls in the sockets' calls are charged to nobody.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;

use crate::outcome::{Counts, Tally};

/// Of so many pieces of work one is measured.
const EVERY: u32 = 32;

/// Closed endpoints that keep an account of their own.
const REMEMBERED: usize = 64;

/// Who caused the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The UDP sockets bound to this address.
    Udp(SocketAddr),
    /// The listener at this address, and the connections it accepted.
    TcpListener(SocketAddr),
    /// Connections to others.
    TcpOutgoing,
    /// Segments of TCP that belong to no connection.
    TcpOther,
    /// ARP, neighbour discovery, ICMP, ports that nobody bound.
    Proxies,
    /// Packets for others, which are forwarded.
    Forwarding,
    /// Finding whose a frame is; what ends there.
    Demultiplexer,
    /// Endpoints that are closed, beyond the first 64 addresses.
    Closed,
}

impl Owner {
    /// Its kind, in the words of reports and of the guard.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Udp(_) => "udp_socket",
            Self::TcpListener(_) => "tcp_listener",
            Self::TcpOutgoing => "tcp_connection",
            Self::TcpOther => "tcp_other",
            Self::Proxies => "proxy",
            Self::Forwarding => "forward",
            Self::Demultiplexer => "demultiplexer",
            Self::Closed => "closed",
        }
    }

    /// Its address, if it has one.
    #[must_use]
    pub const fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Udp(address) | Self::TcpListener(address) => Some(address),
            _ => None,
        }
    }
}

/// What an owner has caused. Over all owners the counts add up to those of the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charged {
    /// Frames by what became of them.
    pub counts: Counts,
    /// CPU time of protocol work.
    pub cpu: Duration,
}

/// An owner's account. Its tally is that of the one thread that works for it.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) owner: Owner,
    tally: Tally,
    /// Written under the table's lock.
    pub(crate) at_demultiplexer: Tally,
    /// Datagrams that were processed before anybody asked: queued still.
    ahead: AtomicI64,
    /// Of channels that were given back.
    channels: Mutex<Counts>,
    /// Between two readings it may be below zero: work that turns out to be another's.
    cpu_ns: AtomicI64,
}

impl Deref for Account {
    type Target = Tally;

    fn deref(&self) -> &Tally {
        &self.tally
    }
}

/// A piece of work that is measured; charged when this is dropped.
#[derive(Debug)]
pub(crate) struct Work {
    account: Arc<Account>,
    instead_of: Option<Arc<Account>>,
    began: Duration,
}

impl Account {
    fn new(owner: Owner) -> Arc<Self> {
        Arc::new(Self {
            owner,
            tally: Tally::default(),
            at_demultiplexer: Tally::default(),
            ahead: AtomicI64::new(0),
            channels: Mutex::default(),
            cpu_ns: AtomicI64::new(0),
        })
    }

    /// What this thread does from now on, if it is to be measured.
    #[inline]
    pub(crate) fn work(self: &Arc<Self>) -> Option<Work> {
        (fastrand::u32(..EVERY) == 0).then(|| self.measure(None))
    }

    /// The same within work of `other`, which is not charged with it.
    #[inline]
    pub(crate) fn work_instead_of(self: &Arc<Self>, other: &Arc<Self>) -> Option<Work> {
        (fastrand::u32(..EVERY) == 0).then(|| self.measure(Some(Arc::clone(other))))
    }

    #[cold]
    fn measure(self: &Arc<Self>, instead_of: Option<Arc<Self>>) -> Work {
        Work {
            account: Arc::clone(self),
            instead_of,
            began: thread_time(),
        }
    }

    /// A channel was given back after this became of its frames.
    pub(crate) fn add_channel(&self, counts: Counts) {
        *self.channels.lock() += counts;
    }

    /// So many more datagrams, or less, are processed and not received.
    #[inline]
    pub(crate) fn processed_ahead(&self, change: i64) {
        self.ahead.fetch_add(change, Ordering::Relaxed);
    }

    /// Without what ended in channels.
    fn tallied(&self) -> Counts {
        let mut counts = self.tally.counts();
        counts += self.at_demultiplexer.counts();
        let ahead = self.ahead.load(Ordering::Relaxed);
        counts.queued += u64::try_from(ahead).unwrap_or(0);
        counts
    }

    fn charged(&self) -> Charged {
        let mut counts = self.tallied();
        counts += *self.channels.lock();
        let nanos = self.cpu_ns.load(Ordering::Relaxed);
        Charged {
            counts,
            cpu: Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)),
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let took = thread_time().saturating_sub(self.began) * EVERY;
        let nanos = i64::try_from(took.as_nanos()).unwrap_or(i64::MAX);
        self.account.cpu_ns.fetch_add(nanos, Ordering::Relaxed);
        if let Some(other) = &self.instead_of {
            other.cpu_ns.fetch_sub(nanos, Ordering::Relaxed);
        }
    }
}

/// CPU time of this thread so far.
fn thread_time() -> Duration {
    // There is always such a clock on Linux; without it nothing would be charged.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// All accounts, of owners present and past.
#[derive(Debug, Default)]
pub(crate) struct Book(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    open: Vec<Arc<Account>>,
    /// Of those that are closed.
    closed: BTreeMap<Owner, Charged>,
    closed_tallies: Counts,
    /// With so many it is looked which are unused.
    looked_through: usize,
}

impl Pages {
    fn close_unused(&mut self) {
        let Self {
            open,
            closed,
            closed_tallies,
            ..
        } = self;
        open.retain(|account| {
            let used = Arc::strong_count(account) > 1;
            if !used {
                let known = closed.len() < REMEMBERED || closed.contains_key(&account.owner);
                let owner = if known { account.owner } else { Owner::Closed };
                closed.entry(owner).or_default().add(account.charged());
                *closed_tallies += account.tallied();
            }
            used
        });
    }
}

impl Book {
    /// An account for a new thread or endpoint. It is closed once nobody else has it.
    pub(crate) fn open(&self, owner: Owner) -> Arc<Account> {
        let account = Account::new(owner);
        let mut pages = self.0.lock();
        if pages.open.len() >= pages.looked_through {
            pages.close_unused();
            pages.looked_through = 2 * pages.open.len().max(32);
        }
        pages.open.push(Arc::clone(&account));
        account
    }

    /// Frames of all, but for those that ended in channels.
    pub(crate) fn counts(&self) -> Counts {
        let pages = self.0.lock();
        let mut sum = pages.closed_tallies;
        for account in &pages.open {
            sum += account.tallied();
        }
        sum
    }

    /// What each has caused, but for frames that ended in channels which are in use.
    pub(crate) fn charged(&self) -> BTreeMap<Owner, Charged> {
        let mut pages = self.0.lock();
        pages.close_unused();
        let mut all = pages.closed.clone();
        for account in &pages.open {
            let charged: &mut Charged = all.entry(account.owner).or_default();
            charged.add(account.charged());
        }
        all
    }
}

impl Charged {
    fn add(&mut self, other: Self) {
        self.counts += other.counts;
        self.cpu += other.cpu;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;

    #[test]
    fn counts_outlive_their_owners() {
        let book = Book::default();
        let at = Owner::Udp("10.0.0.1:7".parse().unwrap());
        let (one, other) = (book.open(at), book.open(Owner::Proxies));
        one.received(3);
        one.count(Outcome::Full);
        one.at_demultiplexer.count(Outcome::Backlog);
        other.add(Outcome::Delivered, 2);
        drop(one);
        let charged = book.charged();
        let closed = charged[&at].counts;
        assert_eq!((closed.received, closed.ended()), (3, 2));
        assert_eq!(charged[&Owner::Proxies].counts[Outcome::Delivered], 2);
        assert_eq!((book.counts().received, book.counts().ended()), (3, 4));
        for port in 0..200 {
            let at = SocketAddr::from(([10, 0, 0, 2], port));
            book.open(Owner::Udp(at)).count(Outcome::Delivered);
        }
        let charged = book.charged();
        assert!(charged.len() <= REMEMBERED + 2, "{}", charged.len());
        assert!(charged[&Owner::Closed].counts.ended() >= 100);
        assert_eq!(book.counts().ended(), 204);
    }

    /// One piece in 32 is measured, and stands for all.
    #[test]
    fn work_is_charged_to_whom_it_is_for() {
        let book = Book::default();
        let (one, other) = (book.open(Owner::Proxies), book.open(Owner::Demultiplexer));
        let spin = || {
            let begun = thread_time();
            while thread_time() < begun + Duration::from_micros(20) {}
        };
        let begun = thread_time();
        for _ in 0..2000 {
            let _turn = other.work();
            let _piece = one.work_instead_of(&other);
            spin();
        }
        let took = thread_time().saturating_sub(begun);
        let charged = book.charged();
        let (one, other) = (
            charged[&Owner::Proxies].cpu,
            charged[&Owner::Demultiplexer].cpu,
        );
        // 62 are measured on average, and eight times the deviation is allowed.
        assert!(one > took / 10 && one < took * 2, "{one:?} of {took:?}");
        assert!(other < took, "{other:?} of {took:?}");
    }
}
