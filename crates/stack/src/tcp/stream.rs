//! TCP streams, shaped like [`std::net::TcpStream`].

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_core::demux::Protocol;
use smoltcp::socket::tcp::{RecvError, Socket, State};

use super::Endpoint;
use super::connection::{Connection, Wait, Wanted};
use super::pacing::Pacing;
use crate::clock;
use crate::host::Host;
use crate::socket::addresses::{first_that_works, on_a_free_port};
use crate::socket::options::{Options, Waits, waiting_methods};
use crate::socket::readiness::Readiness;
use crate::stack::Stack;
use crate::wait::Waker;

/// A TCP connection of a [`Stack`]. Dropping it sends what was written and ends
/// the connection, without waiting, while the stack goes on. The drop of the stack's last handle waits a
/// while for the rest ([`Stack`]).
///
/// Where something was received and not read, or comes after the drop, the connection is reset, as with Linux: the
/// peer learns that it was lost, and what was written may be lost as well. Who has more to say than a peer may
/// hear of ends writing ([`shutdown`](Self::shutdown)), and reads to the end before the drop.
///
/// There is no `try_clone`. `&TcpStream` reads and writes, so threads share a stream by reference, or by [`Arc`].
///
/// A peer that is silent for 15 minutes while it owes an acknowledgement is given up: reading and
/// writing return `TimedOut`. After the drop, a peer is given up that acknowledges nothing for a
/// minute, and sooner where a new connection finds no place. Who only reads waits for ever for a peer
/// that is gone, but for [`set_keepalive`](Self::set_keepalive).
pub struct TcpStream {
    stack: Stack,
    connection: Arc<Connection>,
    /// For event loops.
    descriptor: Arc<Waker>,
    options: Options,
    /// It is known that it has come about.
    connected: AtomicBool,
    /// Reading was shut down by us.
    read_shut: AtomicBool,
    /// Why it ended was told.
    error_taken: AtomicBool,
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream")
            .field("local", &self.connection.local)
            .field("remote", &self.connection.remote)
            .finish_non_exhaustive()
    }
}

impl TcpStream {
    /// Of a listener's.
    pub(super) fn accepted(stack: &Stack, connection: Arc<Connection>) -> Self {
        let stream = Self::new(stack, connection);
        stream.connected.store(true, Ordering::Relaxed);
        stream
    }

    fn new(stack: &Stack, connection: Arc<Connection>) -> Self {
        Self {
            stack: stack.clone(),
            descriptor: connection.descriptor(),
            connection,
            options: Options::default(),
            connected: AtomicBool::new(false),
            read_shut: AtomicBool::new(false),
            error_taken: AtomicBool::new(false),
        }
    }

    /// Connects to `to`, waiting up to 20 s.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused`, `TimedOut`. `NetworkUnreachable`: no way there, as far as this stack or
    /// a router knows. `HostUnreachable`: a router says so, the
    /// neighbour there did not answer for three seconds, or the stack has the address itself.
    /// `OutOfMemory`: all channels are in use. `Unsupported` on a device that
    /// shares the kernel's address: what comes back would be the kernel's.
    pub fn connect(stack: &Stack, to: impl ToSocketAddrs) -> io::Result<Self> {
        first_that_works(to, |to| Self::connect_one(stack, to, None))
    }

    /// The same for one address, waiting up to `timeout`, and never longer than 20 s.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect). `InvalidInput` for a timeout of zero, as in the standard library.
    pub fn connect_timeout(stack: &Stack, to: SocketAddr, timeout: Duration) -> io::Result<Self> {
        if timeout.is_zero() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Self::connect_one(stack, to, Some(timeout)).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })
    }

    /// Begins to connect to `to`, and does not wait: the stream is non-blocking, and
    /// [`finish_connect`](Self::finish_connect) tells how it went. Its descriptor becomes
    /// readable then. Reading and writing return `WouldBlock` until it is connected.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), for what is known at once.
    pub fn connect_nonblocking(stack: &Stack, to: SocketAddr) -> io::Result<Self> {
        let stream = Self::new(stack, Self::begin(stack.host(), to)?);
        stream.options.set_nonblocking(true);
        match stream.finish_connect() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            known => {
                known?;
                stream.connection.tell();
            }
        }
        Ok(stream)
    }

    /// Whether what [`connect_nonblocking`](Self::connect_nonblocking) began has come about. A
    /// blocking stream waits for it. Once it has, this succeeds for ever, also after the end.
    ///
    /// # Errors
    ///
    /// `WouldBlock`: not yet, and the stream is non-blocking. As
    /// [`connect`](Self::connect): it will not. `BrokenPipe`: the device has failed.
    pub fn finish_connect(&self) -> io::Result<()> {
        if self.connected.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.wait_to_connect(self.options.get(), None)
    }

    fn connect_one(stack: &Stack, to: SocketAddr, timeout: Option<Duration>) -> io::Result<Self> {
        let stream = Self::new(stack, Self::begin(stack.host(), to)?);
        stream.wait_to_connect(Waits::default(), timeout)?;
        Ok(stream)
    }

    fn wait_to_connect(&self, options: Waits, timeout: Option<Duration>) -> io::Result<()> {
        let come_about = |socket: &mut Socket<'static>| match socket.state() {
            State::Closed => Some(false),
            _ => (!is_connecting(socket)).then_some(true),
        };
        if !self.wait_for(
            (&[Wanted::Connection], Wait::Not),
            options,
            timeout,
            come_about,
        )? {
            return Err(self.connection.refusal());
        }
        self.connected.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn begin(host: &Host, to: SocketAddr) -> io::Result<Arc<Connection>> {
        if !host.device.owns_address() {
            let why = "connecting out takes an address that the stack owns alone";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        host.egress.check_route(to.ip())?;
        let wildcard = match to {
            SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let ports = || Ok(host.tcp.ports.next());
        let (ends, bound) = on_a_free_port(ports, |port| {
            let ends = host.ends(SocketAddr::new(wildcard, port), to)?;
            let mut table = host.table.lock();
            let bound = table.open_connection(ends.0, ends.1, &host.tcp.outgoing)?;
            Ok((ends, bound))
        })
        .inspect_err(|error| {
            if error.kind() == io::ErrorKind::OutOfMemory {
                host.tcp.make_places(host, clock::now());
            }
        })?;
        let channel = bound.channel;
        let connection = Connection::connect(host, ends, bound).inspect_err(|_| {
            let mut table = host.table.lock();
            table.close(Protocol::Tcp, ends.0, Some(ends.1), channel);
        })?;
        let connection = Arc::new(connection);
        let endpoint = Endpoint::Connection(Arc::clone(&connection));
        host.tcp.endpoints.lock().insert(channel, endpoint);
        host.tcp.ready.push(channel);
        Ok(connection)
    }

    /// Calls `act` until it has an answer, waiting as the options say. `at_last`: how it is called
    /// when the time is over, or without any.
    fn wait_for<R>(
        &self,
        (wanted, at_last): (&[Wanted], Wait),
        options: Waits,
        timeout: Option<Duration>,
        mut act: impl FnMut(&mut Socket<'static>) -> Option<R>,
    ) -> io::Result<R> {
        let host = self.stack.host();
        let mut now = clock::now();
        let deadline = timeout.map(|timeout| now + timeout);
        loop {
            host.trigger_state(now);
            let over = deadline.is_some_and(|deadline| now >= deadline);
            let wait = match deadline {
                _ if options.nonblocking || over => at_last,
                Some(deadline) => Wait::For(deadline.saturating_since(now)),
                None => Wait::Ever,
            };
            let connection = &self.connection;
            let result = connection.with_or_await(host, now, (wanted, wait), &mut act);
            if let Some(result) = result {
                return Ok(result);
            }
            if host.has_failed() {
                return Err(host.failure());
            }
            if wait == at_last {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            now = clock::now();
        }
    }

    /// Waits until the stream is ready for any of `wanted`, and returns for which; for nothing once
    /// `timeout` is over. `None` waits for ever, zero only looks. Unlike the descriptor this may be
    /// called at any time. At the end, and when a connection has not come about, it is ready for
    /// both.
    ///
    /// # Errors
    ///
    /// `BrokenPipe`: the device has failed.
    pub fn poll(&self, wanted: Readiness, timeout: Option<Duration>) -> io::Result<Readiness> {
        let kinds: &[Wanted] = match (wanted.readable, wanted.writable) {
            (true, true) => &[Wanted::Data, Wanted::Room],
            (true, false) => &[Wanted::Data],
            (false, true) => &[Wanted::Room],
            (false, false) => &[],
        };
        let ready = self.wait_for((kinds, Wait::Look), Waits::default(), timeout, |socket| {
            let shut = self.read_shut.load(Ordering::Relaxed);
            let ready = Readiness {
                readable: wanted.readable && (shut || can_read(socket)),
                writable: wanted.writable && can_write(socket),
            };
            (ready != Readiness::NONE).then_some(ready)
        });
        match ready {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Readiness::NONE),
            ready => ready,
        }
    }

    /// Ends reading, writing (what was written is sent first), or both. Who ends reading reads nothing of what
    /// is there already either; with the kernel's sockets it is read first.
    ///
    /// # Errors
    ///
    /// None, also after the connection has ended, where the standard library returns `NotConnected`.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.read_shut.store(true, Ordering::Relaxed);
            self.connection.wake();
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            let host = self.stack.host();
            self.connection.with(host, clock::now(), Socket::close);
        }
        Ok(())
    }

    /// Whether small segments are sent at once (`TCP_NODELAY`).
    ///
    /// # Errors
    ///
    /// None; as in the standard library.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        let set = |socket: &mut Socket<'static>| socket.set_nagle_enabled(!nodelay);
        self.connection.with(self.stack.host(), clock::now(), set);
        Ok(())
    }

    /// Whether they are.
    ///
    /// # Errors
    ///
    /// None; as in the standard library.
    pub fn nodelay(&self) -> io::Result<bool> {
        let nagle = |socket: &mut Socket<'static>| socket.nagle_enabled();
        let nagle = self.connection.with(self.stack.host(), clock::now(), nagle);
        Ok(!nagle)
    }

    /// Asks a peer that says nothing whether it is there, at once and then each `interval`
    /// (`SO_KEEPALIVE`). An interval after nine questions without an answer calls return `TimedOut`.
    /// `None`, the default: it may be silent for ever; a question that was due may leave yet. While it
    /// owes an acknowledgement it is not asked. Another interval holds from the next question on, which
    /// comes when it was due.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: not from 1 to 32,767 s.
    pub fn set_keepalive(&self, interval: Option<Duration>) -> io::Result<()> {
        let (host, now) = (self.stack.host(), clock::now());
        self.connection.set_keepalive(host, now, interval)
    }

    /// How often it is asked.
    ///
    /// # Errors
    ///
    /// None; as in the standard library.
    pub fn keepalive(&self) -> io::Result<Option<Duration>> {
        Ok(self.connection.keepalive())
    }

    /// As reading; what is read stays, and is read again.
    ///
    /// # Errors
    ///
    /// As reading.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match buffer.is_empty() {
            true => Ok(0),
            false => self.receive(|socket| {
                // Alone it does not tell the end.
                socket.peek(0)?;
                socket.peek_slice(buffer)
            }),
        }
    }

    /// Why the connection has not come about, or was broken off; once.
    ///
    /// # Errors
    ///
    /// None; as in the standard library.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let broken = |socket: &mut Socket<'static>| {
            socket.state() == State::Closed && socket.peek(0) == Err(RecvError::InvalidState)
        };
        let broken = self
            .connection
            .with(self.stack.host(), clock::now(), broken);
        if !broken || self.error_taken.swap(true, Ordering::Relaxed) {
            return Ok(None);
        }
        Ok(Some(match self.connected.load(Ordering::Relaxed) {
            true => self
                .connection
                .reason(io::ErrorKind::ConnectionReset.into()),
            false => self.connection.refusal(),
        }))
    }

    /// Whether segments leave by the clock. Within a transfer a new rate holds at once.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: a rate that cannot be kept; the error says which can.
    pub fn set_pacing(&self, pacing: Pacing) -> io::Result<()> {
        let refused = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        pacing.validate().map_err(refused)?;
        let host = self.stack.host();
        self.connection.set_pacing(host, clock::now(), pacing)
    }

    /// This side's address.
    ///
    /// # Errors
    ///
    /// None; as in the standard library.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.connection.local)
    }

    /// The other side's address.
    ///
    /// # Errors
    ///
    /// None; as in the standard library.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.connection.remote)
    }
}

waiting_methods!(TcpStream);

/// As far as received: nothing at the end, `None` if there is nothing now.
fn received(
    socket: &Socket<'static>,
    received: Result<usize, RecvError>,
) -> Option<io::Result<usize>> {
    match received {
        Ok(0) => None,
        Ok(length) => Some(Ok(length)),
        Err(RecvError::Finished) => Some(Ok(0)),
        Err(RecvError::InvalidState) if is_connecting(socket) => None,
        Err(RecvError::InvalidState) => Some(Err(io::ErrorKind::ConnectionReset.into())),
    }
}

fn write(socket: &mut Socket<'static>, bytes: &[u8]) -> Option<io::Result<usize>> {
    match socket.send_slice(bytes) {
        Ok(0) => None,
        Ok(length) => Some(Ok(length)),
        Err(_) if is_connecting(socket) => None,
        Err(_) => Some(Err(io::ErrorKind::BrokenPipe.into())),
    }
}

fn is_connecting(socket: &Socket<'static>) -> bool {
    matches!(socket.state(), State::SynSent | State::SynReceived)
}

/// Reading does not wait: there is something, or the end.
fn can_read(socket: &Socket<'static>) -> bool {
    socket.can_recv() || !socket.may_recv() && !is_connecting(socket)
}

fn can_write(socket: &Socket<'static>) -> bool {
    socket.can_send() || !socket.may_send() && !is_connecting(socket)
}

impl TcpStream {
    /// Calls `receive` until there is something.
    fn receive(
        &self,
        mut receive: impl FnMut(&mut Socket<'static>) -> Result<usize, RecvError>,
    ) -> io::Result<usize> {
        let options = self.options.get();
        let timeout = options.read_timeout;
        self.wait_for((&[Wanted::Data], Wait::Not), options, timeout, |socket| {
            if self.read_shut.load(Ordering::Relaxed) {
                return Some(Ok(0));
            }
            let result = receive(socket);
            received(socket, result)
        })?
        .map_err(|error| self.connection.reason(error))
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.receive(|socket| socket.recv_slice(buffer))
    }
}

impl Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let options = self.options.get();
        let timeout = options.write_timeout;
        self.wait_for((&[Wanted::Room], Wait::Not), options, timeout, |socket| {
            write(socket, bytes)
        })?
        .map_err(|error| self.connection.reason(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Readable when there is something to read as the descriptor is taken, or comes from then on. After a
/// call that returned `WouldBlock`: when what that call waits for has happened. So call until that, then wait
/// for this descriptor, with poll(2) or an event loop, on one thread. Of what nobody takes, as of data where
/// only writing goes on, it tells for a few more such calls. It is one descriptor, open as long as the stream is there.
impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let host = self.stack.host();
        self.connection.await_by_descriptor(host, &self.read_shut);
        self.descriptor.as_fd()
    }
}

impl AsRawFd for TcpStream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.connection.abandon(self.stack.host(), clock::now());
    }
}
