//! Listeners: a backlog that is kept at the demultiplexer, and cookies for SYNs beyond it.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use plimsoll_core::channel::{InterruptRequest, PooledConsumer};
use plimsoll_core::demux::{ChannelId, Protocol};
use plimsoll_core::time::Instant;

use super::connection::Connection;
use super::cookie::Answers;
use super::follow::Caller;
use super::stream::TcpStream;
use super::{Endpoint, Tcp};
use crate::account::{Account, Owner};
use crate::clock;
use crate::device::{Channel, Frame, Takes};
use crate::host::Host;
use crate::socket::addresses::{at_random, first_that_works, on_a_free_port};
use crate::socket::readiness::Readiness;
use crate::stack::Stack;
use crate::table::Arrived;
use crate::wait::{self, Waker};

/// Connections that wait for their handshake or for `accept`, by default
/// (`SOMAXCONN` was 128 for decades).
pub const BACKLOG: usize = 128;

/// Who waits for nothing sleeps so long at a time.
const WHILE: Duration = Duration::from_secs(1);

/// What the TCP thread knows of a listener.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) local: SocketAddr,
    pub(super) channel: ChannelId,
    pub(super) account: Arc<Account>,
    /// For whose priority the TCP thread works for it.
    pub(super) owner: Caller,
    backlog: usize,
    /// What the device has of it, where that demultiplexes, until it is closed.
    in_device: Mutex<Option<Arc<dyn Channel>>>,
    consumer: Mutex<PooledConsumer<Arrived>>,
    waiting: Mutex<Waiting>,
    waker: Waker,
}

#[derive(Debug)]
struct Waiting {
    half_open: usize,
    established: VecDeque<Arc<Connection>>,
    /// Whose SYNs the demultiplexer lets pass.
    takes: Takes,
    /// SYNs beyond the backlog that get a cookie; none are where there are no cookies.
    answers: Option<Answers>,
    /// When there will be more of them.
    timer: Option<Instant>,
    /// Nobody will accept any more.
    closed: bool,
}

impl Listener {
    pub(super) fn next_segment(&self, now: Instant) -> Option<Frame> {
        self.consumer.lock().pop(now)?.item.into_frame()
    }

    /// False: the TCP thread will be told of the next arrival.
    pub(super) fn has_more(&self) -> bool {
        self.consumer.lock().request_interrupt() == InterruptRequest::Ready
    }

    /// A place for a half-open connection. False: there is none.
    pub(super) fn reserve(&self, host: &Host) -> bool {
        let mut waiting = self.waiting.lock();
        let room = !waiting.closed && waiting.len() < self.backlog;
        waiting.half_open += usize::from(room);
        self.tell_demultiplexer(&mut waiting, host);
        room
    }

    /// The same for one whose handshake ends, but for its connection: half-open ones do not keep
    /// it out.
    pub(super) fn reserve_returned(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let room = !waiting.closed && waiting.established.len() < self.backlog;
        waiting.half_open += usize::from(room);
        room
    }

    /// Whether a SYN without a place is answered with a cookie. One of a `known` source is, if it got
    /// so far.
    pub(super) fn may_answer(&self, host: &Host, known: bool, now: Instant) -> bool {
        let mut waiting = self.waiting.lock();
        let room = !waiting.closed && waiting.established.len() < self.backlog;
        let answers = waiting.answers.as_mut().filter(|_| room);
        let by_device = host.device.answers_syns();
        let is_answered = answers.is_some_and(|answers| answers.take(now, by_device) || known);
        self.tell_demultiplexer(&mut waiting, host);
        is_answered
    }

    /// Whether somebody may come back with a cookie.
    pub(super) fn has_answered(&self, now: Instant) -> bool {
        let waiting = self.waiting.lock();
        let answers = waiting.answers.as_ref();
        answers.is_some_and(|answers| answers.are_awaited(now))
    }

    /// Its time has come: it may answer again.
    pub(super) fn on_timer(&self, host: &Host, now: Instant) {
        let mut waiting = self.waiting.lock();
        waiting.timer = None;
        if let Some(answers) = &mut waiting.answers {
            answers.renew(now, host.device.answers_syns());
        }
        self.tell_demultiplexer(&mut waiting, host);
    }

    /// No more connections have room.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.lock().len() >= self.backlog
    }

    /// A half-open connection ended.
    pub(super) fn unreserve(&self, host: &Host) {
        let mut waiting = self.waiting.lock();
        waiting.half_open = waiting.half_open.saturating_sub(1);
        self.tell_demultiplexer(&mut waiting, host);
    }

    /// A handshake is done. Whoever accepts is to be [woken](Self::wake).
    pub(super) fn offer(&self, host: &Host, connection: &Arc<Connection>, now: Instant) {
        let mut waiting = self.waiting.lock();
        waiting.half_open = waiting.half_open.saturating_sub(1);
        if waiting.closed {
            drop(waiting);
            return connection.abort(host, now);
        }
        waiting.established.push_back(Arc::clone(connection));
        self.tell_demultiplexer(&mut waiting, host);
    }

    fn take(&self, host: &Host) -> Option<Arc<Connection>> {
        let mut waiting = self.waiting.lock();
        let connection = waiting.established.pop_front();
        // A device that has failed is to be seen by all who wait.
        if waiting.established.is_empty() && !host.has_failed() {
            self.waker.clear();
        }
        self.tell_demultiplexer(&mut waiting, host);
        connection
    }

    fn has_connection(&self) -> bool {
        !self.waiting.lock().established.is_empty()
    }

    /// Whoever waits is to look again.
    pub(super) fn wake(&self) {
        // Whoever has not seen a failure of the device may still clear it, and an event loop has nobody to ask
        // once the listener was dropped.
        let waiting = self.waiting.lock();
        if !waiting.closed {
            self.waker.wake();
        }
    }

    /// Beyond the backlog SYNs end at the demultiplexer, but those that get a cookie. Once strangers have
    /// taken all of these, SYNs of known sources get some more.
    fn tell_demultiplexer(&self, waiting: &mut Waiting, host: &Host) {
        // The address may be another listener's by now.
        if waiting.closed {
            return;
        }
        let is_full = waiting.len() >= self.backlog;
        let answers = waiting.answers.as_ref();
        let answers = answers.filter(|_| waiting.established.len() < self.backlog);
        let by_device = host.device.answers_syns();
        let renewed_at = answers.and_then(|answers| answers.renewed_at(by_device));
        let takes = match (is_full, answers, renewed_at) {
            (true, None, _) => Takes::None,
            (true, Some(_), Some(_)) => Takes::Known,
            _ => Takes::All,
        };
        if let (Takes::Known, Some(at), None) = (takes, renewed_at, waiting.timer) {
            host.tcp.set_timer(self.channel, None, at);
            waiting.timer = Some(at);
        }
        if takes != waiting.takes {
            waiting.takes = takes;
            host.table.lock().set_takes(self.local, self.channel, takes);
            if let Some(in_device) = &*self.in_device.lock() {
                in_device.set_takes(takes);
            }
        }
    }
}

impl Waiting {
    fn len(&self) -> usize {
        self.half_open + self.established.len()
    }
}

impl Tcp {
    /// Who listens at this address of ours.
    pub(super) fn listener_at(&self, host: &Host, local: SocketAddr) -> Option<Arc<Listener>> {
        let channel = host.table.lock().listener(local)?;
        match self.endpoint(channel)? {
            Endpoint::Listener(listener) => Some(listener),
            Endpoint::Connection(_) => None,
        }
    }
}

/// A TCP listener of a [`Stack`], shaped like [`std::net::TcpListener`].
pub struct TcpListener {
    stack: Stack,
    listener: Arc<Listener>,
    nonblocking: AtomicBool,
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener")
            .field("local", &self.listener.local)
            .finish_non_exhaustive()
    }
}

impl TcpListener {
    /// Listens at an address of the stack, or at the wildcard, with a backlog of
    /// [`BACKLOG`]; port 0 takes a free one.
    ///
    /// # Errors
    ///
    /// `AddrInUse`: another listener has it. `AddrNotAvailable`: it is no address
    /// of this stack. `OutOfMemory`: all channels are in use.
    pub fn bind(stack: &Stack, at: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with_backlog(stack, at, BACKLOG)
    }

    /// As [`bind`](Self::bind); `backlog` connections, at least 1, may wait for
    /// their handshake or to be accepted.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn bind_with_backlog(
        stack: &Stack,
        at: impl ToSocketAddrs,
        backlog: usize,
    ) -> io::Result<Self> {
        first_that_works(at, |at| Self::bind_one(stack, at, backlog.max(1)))
    }

    fn bind_one(stack: &Stack, at: SocketAddr, backlog: usize) -> io::Result<Self> {
        let at = stack.host().bindable(at)?;
        let listen = |port| Self::listen(stack, SocketAddr::new(at.ip(), port), backlog);
        match at.port() {
            0 => on_a_free_port(at_random, listen),
            port => listen(port),
        }
    }

    fn listen(stack: &Stack, local: SocketAddr, backlog: usize) -> io::Result<Self> {
        let host = stack.host();
        let waker = Waker::new()?;
        let mut table = host.table.lock();
        let account = host.book.open(Owner::TcpListener(local));
        let bound = table.bind(Protocol::Tcp, local, &account);
        drop(table);
        let bound = bound?;
        let in_device = host.listen(local).inspect_err(|_| {
            let mut table = host.table.lock();
            table.close(Protocol::Tcp, local, None, bound.channel);
        })?;
        let listener = Arc::new(Listener {
            local,
            channel: bound.channel,
            account,
            owner: Caller::this_thread(),
            backlog,
            in_device: Mutex::new(in_device),
            consumer: Mutex::new(bound.consumer),
            waiting: Mutex::new(Waiting {
                half_open: 0,
                established: VecDeque::new(),
                takes: Takes::All,
                answers: Answers::new(host.tcp.config.syn_cookies_per_s),
                timer: None,
                closed: false,
            }),
            waker,
        });
        let endpoint = Endpoint::Listener(Arc::clone(&listener));
        host.tcp.endpoints.lock().insert(bound.channel, endpoint);
        // What came before the thread could know of it.
        host.tcp.ready.push(bound.channel);
        Ok(Self {
            stack: stack.clone(),
            listener,
            nonblocking: AtomicBool::new(false),
        })
    }

    /// The next connection, and who made it.
    ///
    /// # Errors
    ///
    /// `WouldBlock`: there is none, and the listener is non-blocking.
    /// `BrokenPipe`: the device has failed.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept_until(None)
    }

    /// The same, waiting up to `timeout`.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept). `TimedOut`: nobody came.
    pub fn accept_timeout(&self, timeout: Duration) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept_until(Some(clock::now() + timeout))
    }

    /// Waits until the listener is ready for any of `wanted`, and returns for which; for nothing once
    /// `timeout` is over. `None` waits for ever, zero only looks. It is readable while connections wait
    /// to be accepted, and never writable. Another thread may accept what made it readable.
    ///
    /// # Errors
    ///
    /// `BrokenPipe`: the device has failed.
    pub fn poll(&self, wanted: Readiness, timeout: Option<Duration>) -> io::Result<Readiness> {
        let host = self.stack.host();
        self.listener.owner.set_to_this_thread();
        let mut now = clock::now();
        let deadline = timeout.map(|timeout| now + timeout);
        loop {
            host.trigger_state(now);
            if wanted.readable && self.listener.has_connection() {
                return Ok(Readiness::READABLE);
            }
            if host.has_failed() {
                return Err(host.failure());
            }
            let left = deadline.map(|deadline| deadline.saturating_since(now));
            match (wanted.readable, left) {
                (_, Some(Duration::ZERO)) => return Ok(Readiness::NONE),
                (true, left) => drop(wait::wait_any([self.as_fd()], left)?),
                (false, left) => thread::sleep(left.map_or(WHILE, |left| left.min(WHILE))),
            }
            now = clock::now();
        }
    }

    /// The connections that come, one after the other, without an end. As
    /// [`accept`](Self::accept), each without who made it.
    #[must_use]
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming(self)
    }

    fn accept_until(&self, deadline: Option<Instant>) -> io::Result<(TcpStream, SocketAddr)> {
        let host = self.stack.host();
        self.listener.owner.set_to_this_thread();
        loop {
            let now = clock::now();
            host.trigger_state(now);
            if let Some(connection) = self.listener.take(host) {
                connection.owner.set_to_this_thread();
                let from = connection.remote;
                return Ok((TcpStream::accepted(&self.stack, connection), from));
            }
            if host.has_failed() {
                return Err(host.failure());
            }
            if self.nonblocking.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let left = deadline.map(|deadline| deadline.saturating_since(now));
            wait::wait_any([self.as_fd()], left)?;
        }
    }

    /// Whether [`accept`](Self::accept) waits, or returns `WouldBlock`.
    ///
    /// # Errors
    ///
    /// None; as in the standard library.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// The address it listens at.
    ///
    /// # Errors
    ///
    /// None; as in the standard library.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.listener.local)
    }
}

/// The connections of a [`TcpListener`].
#[derive(Debug)]
pub struct Incoming<'a>(&'a TcpListener);

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.0.accept().map(|(stream, _)| stream))
    }
}

/// Readable while connections wait to be accepted. It is one descriptor, open as long as the listener is there.
impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.waker.as_fd()
    }
}

impl AsRawFd for TcpListener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let host = self.stack.host();
        let listener = &self.listener;
        if listener.in_device.lock().take().is_none() {
            host.release(Protocol::Tcp, listener.local);
        }
        let mut waiting = listener.waiting.lock();
        waiting.closed = true;
        // Half-open connections keep the descriptor open for a while.
        listener.waker.clear();
        let unaccepted = std::mem::take(&mut waiting.established);
        let timer = waiting.timer.take();
        drop(waiting);
        host.tcp.give_back(listener.channel, timer, None);
        let mut table = host.table.lock();
        host.tcp.forget(listener.channel);
        table.close(Protocol::Tcp, listener.local, None, listener.channel);
        drop(table);
        for connection in unaccepted {
            connection.abort(host, clock::now());
        }
    }
}
