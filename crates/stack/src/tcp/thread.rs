//! The thread that processes segments and runs timers, for all connections of a
//! stack.

use std::cmp::Reverse;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_core::channel::{InterruptRequest, PooledConsumer};
use plimsoll_core::demux::{ChannelId, Protocol};
use plimsoll_core::time::Instant;
use plimsoll_kernel::scheduling::Level;
use plimsoll_timers::{Backup, TimerFd};
use smoltcp::wire::TcpSeqNumber;

use super::connection::{Connection, Event, Turned};
use super::cookie::Syn;
use super::follow::{Caller, Follower};
use super::handshake;
use super::listener::Listener;
use super::reset::{self, Resetter};
use super::{Endpoint, Tcp};
use crate::account::{Account, Owner};
use crate::clock;
use crate::device::{Batch, Frame};
use crate::error::Error;
use crate::host::Host;
use crate::outcome::Outcome;
use crate::table::{Arrived, TIME_WAIT};
use crate::wait;
use crate::wire::datagram;
use crate::wire::packet::Packet;

/// Segments of a connection, of a listener or of `TIME_WAIT` that one turn takes.
pub(super) const TURN_SEGMENTS: usize = 64;

/// An owner is woken, and its answer leaves, so long after its segment at most, and one channel's
/// work. Some twenty times what a switch between threads costs.
const HAND_ON_WITHIN: Duration = Duration::from_micros(100);

/// The TCP thread's state.
pub(crate) struct Worker {
    host: Arc<Host>,
    tally: Arc<Account>,
    time_wait: PooledConsumer<Arrived>,
    resetter: Resetter,
    out: Batch,
    /// Wakes the thread for the next departure.
    backup: TimerFd,
    /// Its priority, if it may change that.
    follower: Option<Follower>,
    /// Channels that a turn looks at, the best owner's first, and then as they came.
    round: Vec<(Reverse<Level>, usize, ChannelId)>,
    /// Whose owners are to be woken.
    awaited: Vec<Endpoint>,
    /// When that was done last, or the turn began.
    handed_on_at: Instant,
}

impl Worker {
    pub(crate) fn new(
        host: &Arc<Host>,
        mut time_wait: PooledConsumer<Arrived>,
    ) -> Result<Self, Error> {
        // The first arrival is to wake the thread.
        if time_wait.request_interrupt() == InterruptRequest::Ready {
            host.tcp.ready.push(TIME_WAIT);
        }
        Ok(Self {
            tally: host.book.open(Owner::TcpOther),
            resetter: Resetter::new(host.device.pool(), &host.capabilities),
            host: Arc::clone(host),
            time_wait,
            out: Batch::new(),
            follower: None,
            round: Vec::new(),
            awaited: Vec::new(),
            handed_on_at: Instant::ZERO,
            backup: TimerFd::new().map_err(Error::io("make a timer descriptor"))?,
        })
    }

    /// Works until the stack stops or its device fails.
    pub(crate) fn run(mut self) {
        let host = Arc::clone(&self.host);
        let urgency = &host.tcp.ready.urgency;
        self.follower = Follower::start(urgency, clock::now());
        if let Err(error) = self.work_until_stopped() {
            self.host.fail(&error);
        }
        Follower::stop(urgency);
    }

    fn work_until_stopped(&mut self) -> io::Result<()> {
        let host = Arc::clone(&self.host);
        while !host.is_stopping() {
            host.tcp.ready.waker.clear();
            self.turn(clock::now())?;
            host.trigger_state(clock::now());
            if !host.tcp.ready.is_empty() {
                continue;
            }
            self.sleep()?;
        }
        Ok(())
    }

    /// Until there is something to do; not at all if a departure is near.
    fn sleep(&mut self) -> io::Result<()> {
        let host = Arc::clone(&self.host);
        let now = clock::now();
        let until = host.tcp.next_timer();
        let limit = until.map(|until| until.saturating_since(now));
        let woken = host.tcp.ready.waker.as_fd();
        let Some(departure) = host.tcp.departures.next() else {
            wait::wait_any([woken], limit)?;
            return Ok(());
        };
        let wake_up = host.tcp.config.wake_up;
        let left = departure.saturating_since(now);
        if left > wake_up {
            // Not by the limit, which is in milliseconds.
            self.backup.arm(left - wake_up)?;
            wait::wait_any([woken, self.backup.as_fd()], limit)?;
        }
        Ok(())
    }

    /// Looks once at every channel that asked for it, at the timers, and at the
    /// departures: a trigger state.
    pub(crate) fn turn(&mut self, now: Instant) -> io::Result<()> {
        self.begin_round();
        self.handed_on_at = now;
        let mut round = std::mem::take(&mut self.round);
        let mut level = None;
        for (at, _, channel) in round.drain(..) {
            // A better owner does not wait for work for others.
            if level.replace(at).is_some_and(|before| before != at) {
                self.hand_on();
            }
            self.look_at(channel, now);
        }
        self.round = round;
        while let Some(channel) = self.tcp().take_due(now) {
            match self.tcp().endpoint(channel) {
                Some(Endpoint::Connection(connection)) => {
                    self.work_for(channel, &connection.owner);
                    let turned = connection.on_timer(&self.host, now);
                    self.settle(&connection, turned, now);
                }
                Some(Endpoint::Listener(listener)) => listener.on_timer(&self.host, now),
                None => {}
            }
        }
        self.send_departures();
        let sent = self.host.egress.transmit_or_drop(&mut self.out);
        self.hand_on();
        if let Some(follower) = &mut self.follower {
            follower.end_turn(&self.host.tcp.ready.urgency, now);
        }
        sent
    }

    /// What waits now; what is put back meanwhile waits for the next turn.
    fn begin_round(&mut self) {
        let ready = &self.host.tcp.ready;
        for place in 0..ready.len() {
            let Some(channel) = ready.pop() else { break };
            let level = ready.urgency.owner(channel);
            self.round.push((Reverse(level), place, channel));
        }
        self.round.sort_unstable();
    }

    /// What follows is work for this channel, at the priority of its owner or better.
    fn work_for(&mut self, channel: ChannelId, owner: &Caller) {
        if let Some(follower) = &mut self.follower {
            follower.work_for(&self.host.tcp.ready.urgency, channel, owner);
        }
    }

    /// Does what others may have to wait for at the thread's usual priority, or a better one.
    fn for_all(&mut self, work: impl FnOnce(&mut Self)) {
        let below = self.follower.as_ref().is_some_and(Follower::to_usual);
        work(self);
        if let (true, Some(follower)) = (below, &self.follower) {
            follower.back();
        }
    }

    /// One segment of every paced connection that may send now.
    fn send_departures(&mut self) {
        if self.tcp().departures.next().is_none() {
            return;
        }
        // Not the turn's time: segments that came since then took some of it.
        let now = clock::now();
        while let Some(channel) = self.tcp().departures.take_due(now) {
            if let Some(Endpoint::Connection(connection)) = self.tcp().endpoint(channel) {
                self.work_for(channel, &connection.owner);
                let turned = connection.on_departure(&self.host, now);
                self.settle(&connection, turned, now);
            }
        }
    }

    fn tcp(&self) -> &Tcp {
        &self.host.tcp
    }

    fn look_at(&mut self, channel: ChannelId, now: Instant) {
        if channel == TIME_WAIT {
            return self.look_at_time_wait(now);
        }
        match self.tcp().endpoint(channel) {
            Some(Endpoint::Connection(connection)) => {
                self.work_for(channel, &connection.owner);
                let (more, turned) = connection.receive(&self.host, now);
                self.settle(&connection, turned, now);
                if more {
                    self.tcp().ready.push(channel);
                }
            }
            Some(Endpoint::Listener(listener)) => {
                self.work_for(channel, &listener.owner);
                self.for_all(|this| this.look_at_listener(&listener, now));
            }
            None => {}
        }
    }

    fn look_at_listener(&mut self, listener: &Arc<Listener>, now: Instant) {
        let _work = listener.account.work();
        for _ in 0..TURN_SEGMENTS {
            let Some(frame) = listener.next_segment(now) else {
                break;
            };
            self.on_unconnected(Some(listener), frame, now);
        }
        if listener.has_more() {
            self.tcp().ready.push(listener.channel);
        }
    }

    fn look_at_time_wait(&mut self, now: Instant) {
        let account = Arc::clone(&self.tally);
        let _work = account.work();
        for _ in 0..TURN_SEGMENTS {
            let arrival = self.time_wait.pop(now);
            let Some(frame) = arrival.and_then(|arrival| arrival.item.into_frame()) else {
                break;
            };
            self.on_late(frame, now);
        }
        let request = self.time_wait.request_interrupt();
        if request == InterruptRequest::Ready {
            self.tcp().ready.push(TIME_WAIT);
        }
    }

    /// A segment of a connection in `TIME_WAIT`: the peer ends it, missed our last
    /// acknowledgement, begins a new connection, or sends to an owner who is gone.
    fn on_late(&mut self, frame: Frame, now: Instant) {
        let verified = self.host.capabilities.checksums_verified;
        let parsed = match reset::parse(&frame, verified) {
            Ok(parsed) => parsed,
            Err(outcome) => return self.tally.count(outcome),
        };
        let (packet, source, port) = &parsed;
        let ends = ends(packet, *source, *port);
        // The next connection between the same ends.
        let begins =
            reset::is_syn(&frame, packet) || self.returned(&frame, packet, ends, now).is_some();
        if begins {
            let listener = self.tcp().listener_at(&self.host, ends.0);
            return self.for_all(|this| this.on_whole(listener.as_ref(), frame, parsed, now));
        }
        if reset::is_data(&frame, packet) {
            if let Some(reset) = self.resetter.reset(frame, packet, now) {
                self.answer(reset, packet, now);
            }
            return self.tally.count(Outcome::Control);
        }
        let (mac, pool) = (self.host.egress.mac, self.host.device.pool());
        if let Some(answer) = reset::acknowledge_again(&frame, packet, mac, pool) {
            self.answer(answer, packet, now);
        }
        self.tally.count(Outcome::Control);
    }

    /// A segment that belonged to no connection when it came.
    fn on_unconnected(&mut self, listener: Option<&Arc<Listener>>, frame: Frame, now: Instant) {
        let verified = self.host.capabilities.checksums_verified;
        match reset::parse(&frame, verified) {
            // What is answered would come back (CVE-1999-0016), or go to all.
            Ok((packet, ..)) if !self.host.egress.is_anothers(packet.source) => {
                self.tally.count(Outcome::Malformed);
            }
            Ok(parsed) => self.on_whole(listener, frame, parsed, now),
            Err(outcome) => self.tally.count(outcome),
        }
    }

    fn on_whole(
        &mut self,
        listener: Option<&Arc<Listener>>,
        frame: Frame,
        (packet, source, destination): (Packet, u16, u16),
        now: Instant,
    ) {
        let ends = ends(&packet, source, destination);
        if let Some(connection) = self.connection_between(ends) {
            // A SYN before it has begun it.
            let turned = connection.receive_one(&self.host, frame, &packet, now);
            return self.settle(&connection, turned, now);
        }
        let cookie = listener
            .filter(|listener| listener.has_answered(now))
            .and_then(|_| self.returned(&frame, &packet, ends, now));
        match (listener, cookie) {
            (Some(listener), _) if reset::is_syn(&frame, &packet) => {
                return self.open(listener, ends, (frame, &packet), now);
            }
            (Some(listener), Some(cookie)) => {
                return self.resume(listener, cookie, (frame, &packet), now);
            }
            (Some(listener), None) => listener.account.count(Outcome::Control),
            (None, _) => self.tally.count(Outcome::ClosedPort),
        }
        if let Some(reset) = self.resetter.reset(frame, &packet, now) {
            self.answer(reset, &packet, now);
        }
    }

    fn connection_between(&self, ends: (SocketAddr, SocketAddr)) -> Option<Arc<Connection>> {
        let table = self.host.table.lock();
        let channel = table.connection(Protocol::Tcp, ends.0, ends.1)?;
        drop(table);
        match self.tcp().endpoint(channel)? {
            Endpoint::Connection(connection) => Some(connection),
            Endpoint::Listener(_) => None,
        }
    }

    /// A new connection if the backlog has room, or an answer of which nothing is kept.
    fn open(
        &mut self,
        listener: &Arc<Listener>,
        ends: (SocketAddr, SocketAddr),
        (frame, packet): (Frame, &Packet),
        now: Instant,
    ) {
        if !listener.reserve(&self.host) {
            return self.answer_with_cookie(listener, ends, (&frame, packet), now);
        }
        if let Some(connection) = self.admit(listener, ends, now) {
            let turned = connection.receive_one(&self.host, frame, packet, now);
            self.begin(&connection, turned, now);
        }
    }

    fn answer_with_cookie(
        &mut self,
        listener: &Arc<Listener>,
        ends: (SocketAddr, SocketAddr),
        (frame, packet): (&Frame, &Packet),
        now: Instant,
    ) {
        let syn = handshake::requested(frame, packet, ends);
        let syn = syn.filter(|_| datagram::is_answerable(packet));
        let Some(syn) = syn.filter(|syn| {
            let known = self.tcp().knows(syn.remote.ip(), now);
            listener.may_answer(&self.host, known, now)
        }) else {
            return listener.account.count(Outcome::Backlog);
        };
        listener.account.count(Outcome::SynCookie);
        let cookie = self.tcp().cookies.cookie(&syn, now);
        let (mac, pool) = (self.host.egress.mac, self.host.device.pool());
        // Without a free frame it is lost, and its client asks again.
        if let Some(answer) = handshake::answer(&syn, cookie, &self.tcp().answers, mac, pool) {
            self.answer(answer, packet, now);
        }
    }

    /// The SYN that a segment's cookie stands for, and the cookie.
    fn returned(
        &self,
        frame: &Frame,
        packet: &Packet,
        ends: (SocketAddr, SocketAddr),
        now: Instant,
    ) -> Option<(Syn, TcpSeqNumber)> {
        let (syn, cookie) = handshake::returned(frame, packet, ends)?;
        let syn = self.tcp().cookies.syn(&syn, cookie, now)?;
        Some((syn, cookie))
    }

    /// A new connection of whose SYN a cookie is all that was kept. Without a place its client
    /// sends again what it has to say.
    fn resume(
        &mut self,
        listener: &Arc<Listener>,
        (syn, cookie): (Syn, TcpSeqNumber),
        (frame, packet): (Frame, &Packet),
        now: Instant,
    ) {
        if !listener.reserve_returned() {
            return listener.account.count(Outcome::Backlog);
        }
        let Some(connection) = self.admit(listener, (syn.local, syn.remote), now) else {
            return;
        };
        let again = handshake::again(&syn, &frame, packet, self.host.device.pool());
        let parsed = again.and_then(|again| Some((reset::parse(&again, true).ok()?.0, again)));
        let is_begun =
            parsed.is_some_and(|(its, again)| connection.resume(again, &its, cookie, now));
        let turned = if is_begun {
            connection.receive_one(&self.host, frame, packet, now)
        } else {
            listener.account.count(Outcome::Backlog);
            connection.give_up()
        };
        self.begin(&connection, turned, now);
    }

    /// A connection for the place that was reserved, unless no channel is left.
    fn admit(
        &mut self,
        listener: &Arc<Listener>,
        ends: (SocketAddr, SocketAddr),
        now: Instant,
    ) -> Option<Arc<Connection>> {
        let Ok(connection) = self.make(listener, ends) else {
            listener.unreserve(&self.host);
            listener.account.count(Outcome::Backlog);
            self.tcp().make_places(&self.host, now);
            return None;
        };
        let connection = Arc::new(connection);
        let endpoint = Endpoint::Connection(Arc::clone(&connection));
        let channel = connection.channel;
        self.tcp().endpoints.lock().insert(channel, endpoint);
        Some(connection)
    }

    /// Acts on a connection's first segment.
    fn begin(&mut self, connection: &Arc<Connection>, turned: Turned, now: Instant) {
        self.settle(connection, turned, now);
        // Its first arrival is to be noticed.
        self.tcp().ready.push(connection.channel);
    }

    fn make(
        &self,
        listener: &Arc<Listener>,
        ends: (SocketAddr, SocketAddr),
    ) -> io::Result<Connection> {
        let mut table = self.host.table.lock();
        let bound = table.open_connection(ends.0, ends.1, &listener.account)?;
        drop(table);
        let channel = bound.channel;
        Connection::accept(&self.host, ends, bound, listener).inspect_err(|_| {
            let mut table = self.host.table.lock();
            table.close(Protocol::Tcp, ends.0, Some(ends.1), channel);
        })
    }

    fn answer(&mut self, frame: Frame, packet: &Packet, now: Instant) {
        let (to, via) = (packet.source, Some(packet.via));
        // Without a way back the question was asked in vain.
        let _ = self.host.egress.push(frame, to, via, &mut self.out, now);
    }

    /// Acts on what a connection's turn has led to.
    fn settle(&mut self, connection: &Arc<Connection>, turned: Turned, now: Instant) {
        if turned.is_awaited {
            let endpoint = Endpoint::Connection(Arc::clone(connection));
            self.awaited.push(endpoint);
        }
        let event = turned.event;
        if !matches!(event, Event::None) {
            self.for_all(|this| this.act_on(connection, event, now));
        }
        self.hand_on_what_has_waited();
    }

    /// What the connections answer leaves, and their owners are woken, when others' segments were
    /// looked at as well, or soon. At once a system call would send one segment where it could
    /// send many, and an owner may take the CPU to find one connection ready.
    fn hand_on(&mut self) {
        self.host.egress.push_on_if_there();
        for endpoint in self.awaited.drain(..) {
            endpoint.wake();
        }
    }

    fn hand_on_what_has_waited(&mut self) {
        let now = clock::now();
        if now.saturating_since(self.handed_on_at) >= HAND_ON_WITHIN {
            self.handed_on_at = now;
            self.hand_on();
        }
    }

    fn act_on(&mut self, connection: &Arc<Connection>, event: Event, now: Instant) {
        match event {
            Event::None => {}
            Event::Established(listener) => {
                let source = connection.remote.ip();
                self.tcp().note_source(&self.host, source, now);
                listener.offer(&self.host, connection, now);
                self.awaited.push(Endpoint::Listener(listener));
            }
            Event::Ended {
                time_wait,
                half_open,
            } => {
                self.end(connection, time_wait, now);
                if let Some(listener) = half_open {
                    listener.unreserve(&self.host);
                }
            }
        }
    }

    fn end(&mut self, connection: &Connection, time_wait: bool, now: Instant) {
        let (local, remote) = (connection.local, connection.remote);
        let channel = connection.channel;
        connection.leave_device(time_wait);
        let mut table = self.host.table.lock();
        self.tcp().forget(channel);
        if time_wait {
            table.enter_time_wait(local, remote, now);
        } else {
            table.close(Protocol::Tcp, local, Some(remote), channel);
        }
        drop(table);
        let detached = connection.detach();
        self.tcp().give_back(channel, detached.timer, detached.flow);
        let Some(mut rest) = detached.consumer.filter(|_| time_wait) else {
            return;
        };
        // What came since the channel was looked at: the peer's end, as a rule.
        while let Some(arrival) = rest.pop(now) {
            if let Some(frame) = arrival.item.into_frame() {
                self.on_late(frame, now);
            }
        }
        self.host.table.lock().give_back(channel);
    }
}

/// A segment's ends, ours first.
fn ends(packet: &Packet, source: u16, destination: u16) -> (SocketAddr, SocketAddr) {
    (
        SocketAddr::new(packet.destination, destination),
        SocketAddr::new(packet.source, source),
    )
}
