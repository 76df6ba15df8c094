//! TCP: smoltcp's state machine, our demultiplexing, scheduling and bounds.
//!
//! smoltcp's socket set is searched for every packet and every timer, and knows
//! no backlog. So here each connection has an interface and a set of one socket
//! of its own, `core::demux` finds it by its four-tuple, and what is per host
//! (links, addresses, timers, listeners) is outside.
//!
//! * **Who works.** Every receive path leaves segments raw on the channel of
//!   their connection. One thread per stack, at its owners' priority (`follow`), processes
//!   them: received data must be acknowledged also between receive calls (Druschel & Banga, section 3.4: LRP-35, LRP-40). If it
//!   falls behind, channels fill, and segments are discarded there (LRP-38). A peer whose last
//!   acknowledgements may be among them is asked to repeat them.
//!   It wakes who waits for a connection when its turn is over, or its work for that level is, or
//!   after 100 µs.
//!   Sending happens in the sender's call, unless the connection is paced.
//! * **Listeners.** Half-open and unaccepted connections count against the
//!   backlog; beyond it SYNs are discarded at the demultiplexer (LRP-39). Where half-open ones fill
//!   it, so many SYNs are answered with a cookie (`cookie`), and some more of those who have ended a
//!   handshake before (`known`).
//! * **`ni-lrp`.** The device has a channel for each connection, and takes no more than its
//!   queue has room for; it discards what is beyond a listener's backlog, or answers it with the
//!   same cookies.
//! * **Pacing.** A paced connection sends one segment per departure, on the TCP thread
//!   ([`Pacing`]); the others whenever something makes it possible.
//! * **`TIME_WAIT`** gives the channel back (LRP-42), and so does a connection that was closed here
//!   and waits for the peer's end alone (FIN-WAIT-2). Late segments of all such connections are
//!   answered from one channel without any state: data by a reset, the peer's end by an
//!   acknowledgement.
//!
//! **Limits.** smoltcp's: no selective acknowledgements as a sender, and a
//! retransmission timeout of a second at least, so a loss that no later
//! segment shows costs a second.
//! Of more SYNs of strangers than a full listener and its device may answer with cookies, as many are answered as they may, whoever
//! they come from. A listener without places ends what has been half-open for a second. The thread's time is
//! charged to listeners, with all their connections (`account`).

mod connection;
mod cookie;
mod departures;
mod follow;
mod handshake;
mod known;
mod listener;
mod pacing;
mod reset;
mod segmentation;
mod stream;
mod thread;
mod wire;

#[cfg(test)]
mod answered_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use plimsoll_core::demux::{ChannelId, Protocol};
use plimsoll_core::pacing::FlowId;
use plimsoll_core::time::Instant;

use self::connection::Connection;
use self::departures::Departures;
use self::listener::Listener;
use crate::account::Account;
use crate::clock;
use crate::config::TcpConfig;
use crate::device::CookieAnswers;
use crate::host::Host;
use crate::socket::addresses::PortsInARow;
use crate::table::Ready;
use crate::wire::trouble::Report;

pub(crate) use cookie::Cookies;
pub(crate) use follow::Urgency;
pub(crate) use known::Known;
pub use listener::{BACKLOG, Incoming, TcpListener};
pub use pacing::Pacing;
pub(crate) use reset::{Resetter, is_whole};
pub use stream::TcpStream;
pub(crate) use thread::Worker;

/// How often it is looked whether all has been sent.
const FINISH_LOOK: Duration = Duration::from_millis(1);
/// How often places are looked for that nobody needs, where there are no others.
const PLACES_LOOK: Duration = Duration::from_secs(1);

/// What has a channel.
#[derive(Clone, Debug)]
enum Endpoint {
    Listener(Arc<Listener>),
    Connection(Arc<Connection>),
}

impl Endpoint {
    /// Whoever waits is to look again.
    fn wake(&self) {
        match self {
            Self::Listener(listener) => listener.wake(),
            Self::Connection(connection) => connection.wake(),
        }
    }
}

/// What sockets and the TCP thread share.
#[derive(Debug)]
pub(crate) struct Tcp {
    config: TcpConfig,
    cookies: Cookies,
    /// How SYNs are answered with them, also by the device.
    pub(crate) answers: CookieAnswers,
    /// Whose SYNs are not lost among those of a flood, where there are cookies.
    known: Option<Arc<Known>>,
    pub(crate) ready: Arc<Ready>,
    endpoints: Mutex<HashMap<ChannelId, Endpoint>>,
    timers: Mutex<BTreeSet<(Instant, ChannelId)>>,
    departures: Departures,
    /// Of connections to others.
    outgoing: Arc<Account>,
    /// For those.
    ports: PortsInARow,
    /// When places are looked for again.
    places_look_at: Mutex<Instant>,
}

impl Tcp {
    pub(crate) fn new(
        config: TcpConfig,
        (cookies, mtu): (Cookies, usize),
        (ready, known): (&Arc<Ready>, Option<&Arc<Known>>),
        outgoing: Arc<Account>,
    ) -> Self {
        Self {
            answers: handshake::answers(&cookies, &config, mtu),
            config,
            cookies,
            known: known.cloned(),
            outgoing,
            ready: Arc::clone(ready),
            endpoints: Mutex::default(),
            timers: Mutex::default(),
            departures: Departures::new(config.connections_max),
            ports: PortsInARow::new(),
            places_look_at: Mutex::new(Instant::ZERO),
        }
    }

    /// Segments that may wait for the TCP thread, per connection.
    pub(crate) fn channel_segments(&self) -> u32 {
        self.config.channel_segments
    }

    fn endpoint(&self, channel: ChannelId) -> Option<Endpoint> {
        self.endpoints.lock().get(&channel).cloned()
    }

    /// Moves a connection's timer. An earlier time than any wakes the thread.
    fn set_timer(&self, channel: ChannelId, old: Option<Instant>, new: Instant) {
        let mut timers = self.timers.lock();
        if let Some(old) = old {
            timers.remove(&(old, channel));
        }
        let first = timers.first().is_none_or(|(first, _)| new < *first);
        timers.insert((new, channel));
        drop(timers);
        if first {
            self.ready.wake_for(channel);
        }
    }

    /// The next connection whose time has come.
    fn take_due(&self, now: Instant) -> Option<ChannelId> {
        let mut timers = self.timers.lock();
        let (at, channel) = *timers.first()?;
        if at > now {
            return None;
        }
        timers.pop_first();
        Some(channel)
    }

    fn next_timer(&self) -> Option<Instant> {
        self.timers.lock().first().map(|(at, _)| *at)
    }

    /// A paced connection has something to send.
    fn request_departure(&self, flow: FlowId, now: Instant) {
        if let Some(channel) = self.departures.request(flow, now) {
            self.ready.wake_for(channel);
        }
    }

    /// Whoever has this address has ended a handshake.
    fn note_source(&self, host: &Host, source: IpAddr, now: Instant) {
        let is_new = self
            .known
            .as_ref()
            .is_some_and(|known| known.note(source, now));
        if is_new && host.device_demultiplexes {
            host.device.know_source(source);
        }
    }

    /// Whether a SYN from there is answered whatever others have taken.
    fn knows(&self, source: IpAddr, now: Instant) -> bool {
        self.known
            .as_ref()
            .is_some_and(|known| known.has(source, now))
    }

    /// The network tells of a segment of ours.
    pub(crate) fn on_trouble(&self, host: &Host, report: &Report, now: Instant) {
        let (local, remote) = (report.local, report.remote);
        let channel = host.table.lock().connection(Protocol::Tcp, local, remote);
        let endpoint = channel.and_then(|channel| self.endpoint(channel));
        if let Some(Endpoint::Connection(connection)) = endpoint {
            connection.on_trouble(host, report, now);
        }
    }

    /// The device has failed: who waits learns of it.
    pub(crate) fn wake_all(&self) {
        let endpoints: Vec<_> = self.endpoints.lock().values().cloned().collect();
        endpoints.iter().for_each(Endpoint::wake);
    }

    /// Waits until all that was written has been taken, or for `limit`, and ends the rest by force.
    pub(crate) fn finish(&self, host: &Host, limit: Duration) {
        let deadline = clock::now() + limit;
        loop {
            let now = clock::now();
            let sending = self.sending(now);
            if sending.is_empty() || host.has_failed() {
                return;
            }
            if now >= deadline {
                return sending.iter().for_each(|one| one.abort(host, now));
            }
            std::thread::sleep(FINISH_LOOK);
        }
    }

    fn sending(&self, now: Instant) -> Vec<Arc<Connection>> {
        let connections = self.connections().into_iter();
        connections.filter(|one| one.is_sending(now)).collect()
    }

    fn connections(&self) -> Vec<Arc<Connection>> {
        let endpoints = self.endpoints.lock();
        let connections = endpoints.values().filter_map(|endpoint| match endpoint {
            Endpoint::Connection(connection) => Some(Arc::clone(connection)),
            Endpoint::Listener(_) => None,
        });
        connections.collect()
    }

    /// There was no place for a connection: those whose owners are gone and whose peers are silent or slow lose
    /// theirs, for who tries again.
    fn make_places(&self, host: &Host, now: Instant) {
        let mut look_at = self.places_look_at.lock();
        if now < *look_at {
            return;
        }
        *look_at = now + PLACES_LOOK;
        drop(look_at);
        let left = self.connections().into_iter();
        let left = left.filter(|one| one.gives_way(now));
        left.for_each(|one| one.abort(host, now));
    }

    /// The endpoint is gone. To be called before the table gives its channel to another one,
    /// whose endpoint it would take away.
    fn forget(&self, channel: ChannelId) {
        self.endpoints.lock().remove(&channel);
    }

    /// What a connection had here beside its endpoint.
    fn give_back(&self, channel: ChannelId, timer: Option<Instant>, flow: Option<FlowId>) {
        if let Some(timer) = timer {
            self.timers.lock().remove(&(timer, channel));
        }
        if let Some(flow) = flow {
            self.departures.close(flow);
        }
    }
}
