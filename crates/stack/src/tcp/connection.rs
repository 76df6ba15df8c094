//! A connection: smoltcp's socket with an interface to itself.
//!
//! The TCP thread brings segments in and runs timers, the owner's threads read
//! and write; both hold the connection's lock, and whoever holds it also sends
//! what that makes due.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use plimsoll_core::channel::{InterruptRequest, PooledConsumer};
use plimsoll_core::demux::ChannelId;
use plimsoll_core::time::Instant;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer};
use smoltcp::wire::{HardwareAddress, IpEndpoint, TcpSeqNumber};

use super::follow::Caller;
use super::listener::Listener;
use super::pacing::{Pace, Pacing};
use super::reset::{host_cidr, instant, keep_network_layer, parse};
use super::thread::TURN_SEGMENTS;
use super::wire::{PeerWindow, Sent, Wire, begin_later, reset_at};
use crate::account::Account;
use crate::device::{Channel, Frame, Mac};
use crate::host::Host;
use crate::outcome::Outcome;
use crate::random::unguessable;
use crate::table::{Arrived, Bound};
use crate::wait::Waker;
use crate::wire::packet::Packet;

mod ending;
mod keepalive;
mod missed;
mod paced;
mod path;
mod sending;
mod waiting;

use self::keepalive::Keepalive;
use self::path::Path;
use self::waiting::Waiters;
pub(super) use self::waiting::{Wait, Wanted};

/// How long an unanswered handshake is tried.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// How long a half-open connection keeps a place that others want. Until then its answer was not
/// lost for sure (RFC 6298: the first retransmission).
const HALF_OPEN: Duration = Duration::from_secs(1);

/// A connection, half-open, open or closing.
pub(super) struct Connection {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) channel: ChannelId,
    pub(super) began: Instant,
    /// For whose priority the TCP thread works for it.
    pub(super) owner: Caller,
    account: Arc<Account>,
    /// For calls that wait. Not the descriptor: a call that waits for room would miss its
    /// waking if another one, that waits for data, cleared it in between.
    changed: Condvar,
    inner: Mutex<Inner>,
}

struct Inner {
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    wire: Wire,
    /// `None`: the channel was given back.
    consumer: Option<PooledConsumer<Arrived>>,
    /// The device's half of the channel, where that demultiplexes.
    in_device: Option<Arc<dyn Channel>>,
    /// Where its segments come from on the link.
    via: Option<Mac>,
    /// A timer has fired since.
    doubted: bool,
    /// How often something was sent again since.
    repeats: u32,
    /// The device had no room for all that could be sent.
    held_up: bool,
    /// Segments that the channel had no room for, also in former lives.
    missed: u64,
    /// When the peer is asked next, if data waits for its word alone.
    ask_at: Option<Instant>,
    waiters: Waiters,
    timer: Option<Instant>,
    /// Who is to accept it, while nobody has.
    listener: Option<Arc<Listener>>,
    pace: Pace,
    sent: Sent,
    path: Path,
    /// Why it has ended or did not come about, if that is known.
    trouble: Option<i32>,
    ended_at: Option<Instant>,
    window: PeerWindow,
    /// Since when its owner is gone.
    abandoned_at: Option<Instant>,
    /// Since when an acknowledgement is waited for in vain.
    owed_since: Option<Instant>,
    keepalive: Keepalive,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("local", &self.local)
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}

/// What the TCP thread's work for a connection has led to.
#[derive(Debug)]
pub(super) struct Turned {
    pub(super) event: Event,
    /// Something came about that a call or an event loop waits for: [`Connection::wake`] is to be
    /// called.
    pub(super) is_awaited: bool,
}

/// What has become of a connection.
#[derive(Clone, Debug)]
pub(super) enum Event {
    None,
    /// The handshake is done, and this listener waits for it.
    Established(Arc<Listener>),
    /// It is over; `half_open`: before its handshake was.
    Ended {
        time_wait: bool,
        half_open: Option<Arc<Listener>>,
    },
}

impl From<Event> for Turned {
    /// Of what nobody waits for.
    fn from(event: Event) -> Self {
        Self {
            event,
            is_awaited: false,
        }
    }
}

impl Connection {
    fn new(
        host: &Host,
        (local, remote): (SocketAddr, SocketAddr),
        bound: Bound,
        listener: Option<Arc<Listener>>,
    ) -> io::Result<Self> {
        let account = listener.as_ref();
        let account = Arc::clone(account.map_or(&host.tcp.outgoing, |one| &one.account));
        // Until somebody accepts it, it is the listener's.
        let owner = listener
            .as_ref()
            .map_or_else(Caller::this_thread, |one| Caller::same_as(&one.owner));
        let mut wire = Wire::new(host.device.pool(), &host.capabilities);
        let began = crate::clock::now();
        let interface = interface_at(local, &mut wire, began)?;
        let buffer = || SocketBuffer::new(vec![0; host.tcp.config.buffer_bytes]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_timeout(Some(smoltcp::time::Duration::from(HANDSHAKE)));
        socket.set_congestion_control(CongestionControl::Cubic);
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        let mut connection = Self {
            local,
            remote,
            channel: bound.channel,
            began,
            owner,
            account,
            changed: Condvar::new(),
            inner: Mutex::new(Inner {
                interface,
                sockets,
                handle,
                wire,
                consumer: Some(bound.consumer),
                in_device: host.open_connection((local, remote))?,
                via: None,
                doubted: false,
                repeats: 0,
                held_up: false,
                missed: 0,
                ask_at: None,
                waiters: Waiters::new(Waker::new()?),
                timer: None,
                listener,
                pace: Pace::default(),
                sent: Sent::default(),
                path: Path::default(),
                trouble: None,
                ended_at: None,
                window: PeerWindow::default(),
                abandoned_at: None,
                owed_since: None,
                keepalive: Keepalive::default(),
            }),
        };
        let inner = connection.inner.get_mut();
        inner.has_missed();
        inner.set_pacing(host, connection.channel, host.tcp.config.pacing)?;
        Ok(connection)
    }

    /// Answers a SYN, of whose addresses the demultiplexer knows already.
    pub(super) fn accept(
        host: &Host,
        ends: (SocketAddr, SocketAddr),
        bound: Bound,
        listener: &Arc<Listener>,
    ) -> io::Result<Self> {
        let connection = Self::new(host, ends, bound, Some(Arc::clone(listener)))?;
        let endpoint = IpEndpoint::from(connection.local);
        let listened = connection.inner.lock().socket().listen(endpoint);
        listened.map_err(io::Error::other)?;
        Ok(connection)
    }

    /// Begins a handshake to whose SYN, which comes `again`, a cookie was the answer. False: there
    /// is no room for it.
    pub(super) fn resume(
        &self,
        again: Frame,
        packet: &Packet,
        cookie: TcpSeqNumber,
        now: Instant,
    ) -> bool {
        let mut inner = self.inner.lock();
        inner.bring_in(again, packet, now);
        let answered = inner.emit(now).and_then(|_| inner.wire.begin_at(cookie));
        answered.inspect(|by| inner.sent.shift(*by)).is_some()
    }

    /// It is over without a reset, before anybody accepted it.
    pub(super) fn give_up(&self) -> Turned {
        self.inner.lock().given_up().into()
    }

    /// Begins to connect; the SYN goes with the first turn.
    pub(super) fn connect(
        host: &Host,
        ends: (SocketAddr, SocketAddr),
        bound: Bound,
    ) -> io::Result<Self> {
        let connection = Self::new(host, ends, bound, None)?;
        let mut inner = connection.inner.lock();
        let Inner {
            interface,
            sockets,
            handle,
            ..
        } = &mut *inner;
        let socket = sockets.get_mut::<Socket<'_>>(*handle);
        let (local, remote) = (
            IpEndpoint::from(connection.local),
            IpEndpoint::from(connection.remote),
        );
        let begun = socket.connect(interface.context(), remote, local);
        begun.map_err(io::Error::other)?;
        drop(inner);
        Ok(connection)
    }

    /// Brings in what waits on the channel. True: there may be more.
    pub(super) fn receive(&self, host: &Host, now: Instant) -> (bool, Turned) {
        let _work = self.account.work();
        let mut inner = self.inner.lock();
        let mut more = true;
        for _ in 0..TURN_SEGMENTS {
            let arrival = inner.consumer.as_mut().and_then(|queue| queue.pop(now));
            let Some(arrival) = arrival else {
                more = false;
                break;
            };
            if let Some(frame) = arrival.item.into_frame() {
                match parse(&frame, host.capabilities.checksums_verified) {
                    Ok((packet, _, _)) => {
                        let unacknowledged = inner.socket().send_queue();
                        self.take(&mut inner, host, frame, &packet, now);
                        inner.release(host, unacknowledged, arrival.arrived);
                        self.account.count(Outcome::Delivered);
                    }
                    Err(outcome) => self.account.count(outcome),
                }
            }
        }
        inner.tell_room(host);
        if !more {
            let request = inner
                .consumer
                .as_mut()
                .map(|queue| queue.request_interrupt());
            more = request == Some(InterruptRequest::Ready);
        }
        let missed = !more && inner.has_missed();
        let before = inner.sent.end();
        let turned = self.turned(&mut inner, host, now);
        if missed && inner.sent.end() == before {
            inner.ask_again(host, (self.local, self.remote), now);
        }
        (more, turned)
    }

    /// One segment that did not come by the channel.
    pub(super) fn receive_one(
        &self,
        host: &Host,
        frame: Frame,
        packet: &Packet,
        now: Instant,
    ) -> Turned {
        let mut inner = self.inner.lock();
        self.take(&mut inner, host, frame, packet, now);
        self.account.count(Outcome::Delivered);
        self.turned(&mut inner, host, now)
    }

    /// Brings in a segment. If the peer's come from elsewhere now, others of its way learn where.
    fn take(&self, inner: &mut Inner, host: &Host, frame: Frame, packet: &Packet, now: Instant) {
        let before = inner.via;
        inner.bring_in(frame, packet, now);
        inner.note_path();
        if let Some(via) = inner.via.filter(|_| inner.via != before) {
            host.egress.on_heard(self.remote.ip(), via, now);
        }
    }

    /// Its time has come.
    pub(super) fn on_timer(&self, host: &Host, now: Instant) -> Turned {
        let _work = self.account.work();
        let mut inner = self.inner.lock();
        inner.timer = None;
        if host.device.owns_address() && !inner.held_up {
            // Perhaps no answer came because the last segment's sender on the
            // link was a wrong one: neighbours are asked.
            inner.doubted = true;
        }
        if inner.given_up_at().is_some_and(|at| now >= at) {
            inner.trouble = Some(libc::ETIMEDOUT);
            inner.socket().abort();
        }
        let wanted = inner.listener.as_ref().is_some_and(|one| one.is_full());
        if wanted && now >= self.began + HALF_OPEN {
            // Without a reset: if only our answer was lost, its peer asks again.
            return inner.given_up().into();
        }
        self.turned(&mut inner, host, now)
    }

    /// It may send one segment: its departure is due.
    pub(super) fn on_departure(&self, host: &Host, now: Instant) -> Turned {
        let _work = self.account.work();
        let mut inner = self.inner.lock();
        inner.depart(host, now);
        self.turned(&mut inner, host, now)
    }

    /// Sends like this from now on.
    pub(super) fn set_pacing(&self, host: &Host, now: Instant, pacing: Pacing) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.set_pacing(host, self.channel, pacing)?;
        self.after(inner, host, now);
        Ok(())
    }

    /// Does something with the socket on the owner's thread, and sends what that
    /// makes due.
    pub(super) fn with<R>(
        &self,
        host: &Host,
        now: Instant,
        act: impl FnOnce(&mut Socket<'static>) -> R,
    ) -> R {
        self.owner.set_to_this_thread();
        let _work = self.account.work();
        let mut inner = self.inner.lock();
        let result = inner.act(host, now, act);
        self.after(inner, host, now);
        result
    }

    /// Sends what is due, sets the timer, wakes the owner. The lock is given back before the
    /// device sends: what that brings about may want it.
    fn after(&self, mut inner: MutexGuard<'_, Inner>, host: &Host, now: Instant) {
        self.prepare(&mut inner, host, now);
        drop(inner);
        host.egress.push_on_if_there();
    }

    /// The same, but that the device is still to be told. True: who waits was woken.
    fn prepare(&self, inner: &mut Inner, host: &Host, now: Instant) -> bool {
        self.go_on(inner, host, now);
        let woken = inner.has_what_is_awaited();
        if woken {
            self.wake_all(inner);
        }
        woken
    }

    /// The same on the TCP thread, which tells the device and wakes owners when its turn is over.
    fn turned(&self, inner: &mut Inner, host: &Host, now: Instant) -> Turned {
        self.go_on(inner, host, now);
        Turned {
            is_awaited: inner.has_what_is_awaited(),
            event: inner.event(),
        }
    }

    /// Gives the device what is due, and sets the timer.
    fn go_on(&self, inner: &mut Inner, host: &Host, now: Instant) {
        inner.reset_if_unread();
        inner.send(host, self.remote, now);
        inner.note_owed(now);
        if inner.consumer.is_some() {
            // A half-open one looks every second whether its place is wanted.
            let first = self.began + HALF_OPEN;
            let look = if now < first { first } else { now + HALF_OPEN };
            let look = inner.listener.is_some().then_some(look);
            let ask = inner.ask_if_stuck(host, (self.local, self.remote), now);
            let look = look.into_iter().chain(ask).min();
            inner.set_timer(host, self.channel, look, now);
        }
    }
}

impl Inner {
    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// The device may fill what was taken from the channel.
    fn tell_room(&self, host: &Host) {
        if let (Some(in_device), Some(queue)) = (&self.in_device, &self.consumer) {
            let waiting = queue.occupancy().try_into().unwrap_or(u32::MAX);
            in_device.set_room(host.tcp.channel_segments().saturating_sub(waiting));
        }
    }

    fn bring_in(&mut self, mut frame: Frame, packet: &Packet, now: Instant) {
        let segment = &mut frame[packet.payload.clone()];
        let from_peer = self.seems_the_peers(segment);
        if from_peer {
            (self.via, self.doubted, self.repeats) = (Some(packet.via), false, 0);
        }
        // As the peer sent it: what is asked about is not.
        self.look_at_window(segment);
        if !self.sent.keep_to_window(segment) || !self.may_change_state(segment, now) {
            return;
        }
        let sent_at_most = self.socket().send_capacity();
        self.window.renew(segment, sent_at_most);
        if let Some(most) = self.pace.window() {
            self.window.lower(segment, most);
        }
        self.wire.renumber(segment);
        let reset = reset_at(segment).map(|_| self.socket().state());
        let queued = self.socket().send_queue();
        let behind = queued > 0 && self.sent.is_behind_a_probe(&frame[packet.payload.clone()]);
        let segment_at = keep_network_layer(&mut frame, packet);
        let later = behind.then(|| later(&frame, segment_at));
        for frame in [Some(frame), later.flatten()].into_iter().flatten() {
            self.wire.inbound = Some(frame);
            let (wire, sockets) = (&mut self.wire, &mut self.sockets);
            let answered = wire.outbound.len();
            self.interface
                .poll_ingress_single(instant(now), wire, sockets);
            let answers = wire.outbound.iter().skip(answered);
            answers.for_each(|answer| self.sent.on_frame(answer));
        }
        self.wire.inbound = None;
        if let Some(before) = reset {
            self.on_reset(before);
        }
        if from_peer {
            let acknowledged = self.socket().send_queue() < queued;
            self.on_heard(acknowledged, now);
        }
    }
}

/// The packet with its segment a byte later. smoltcp does not count the byte by which it probes a
/// closed window, so what it sends after that seems old to whoever took the byte. Where both ends
/// are smoltcp's and probe at a time, neither would learn of the other's window any more, since
/// an old segment is answered and not looked at. It is still answered: it may be a keep-alive.
fn later(packet: &Frame, segment_at: usize) -> Option<Frame> {
    let mut copy = packet.pool().take()?;
    if !copy.copy_from(packet) {
        return None;
    }
    begin_later(&mut copy[segment_at..]);
    Some(copy)
}

/// smoltcp's side of one address.
fn interface_at(local: SocketAddr, wire: &mut Wire, now: Instant) -> io::Result<Interface> {
    let mut config = Config::new(HardwareAddress::Ip);
    // Sequence numbers must not be guessed.
    config.random_seed = unguessable()?;
    let mut interface = Interface::new(config, wire, instant(now));
    interface.update_ip_addrs(|addresses| {
        // There is room for one.
        let _ = addresses.push(host_cidr(local.ip()));
    });
    Ok(interface)
}
