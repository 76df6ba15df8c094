//! Who sends to the host, and when.
//!
//! A source has one point in time at which it acts next. Open loops only send;
//! closed loops also hear what the host answers. An open loop draws from random
//! numbers of its own, which depend on the seed and its place alone. So it sends the
//! same packets at the same times on every path, and whoever else sends.

mod address;
mod http;
mod open;
mod ping_pong;

use fastrand::Rng;

use crate::engine::agenda::NEVER;
use crate::host::Host;
use crate::packet::{Kind, Packet};
use crate::scenario::{Source as Config, Traffic};

pub(crate) use address::Claimed;
pub(crate) use http::FIRST_REQUEST;
use http::Http;
use open::Open;
use ping_pong::PingPong;

/// What all sources have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) index: usize,
    pub(crate) adapter: usize,
    pub(crate) to: u16,
    pub(crate) bytes: u16,
    pub(crate) corrupt: bool,
}

impl Origin {
    /// Sends a packet to the host.
    #[inline]
    pub(crate) fn send(&self, host: &mut Host, kind: Kind, tag: u32) {
        let kind = if self.corrupt { Kind::Corrupt } else { kind };
        let packet = Packet {
            arrived: host.now,
            work: 0,
            tag,
            source: self.index as u16,
            to: self.to,
            bytes: self.bytes,
            kind,
        };
        host.inject(self.adapter, packet);
    }

    /// An open loop's packet came back: how long it took, without what it waited for
    /// others on the way there.
    fn answered(&self, host: &mut Host, packet: &Packet) {
        if host.ledger.measuring {
            let there = host.adapters[self.adapter].inbound.alone_ns(packet.bytes);
            let took = there + (host.now - packet.arrived);
            host.ledger.round_trips[self.index].add(took);
        }
    }
}

/// A source.
#[derive(Debug)]
pub(crate) enum Source {
    Open(Origin, Open),
    PingPong(Origin, PingPong),
    Http(Origin, Http),
}

impl Source {
    pub(crate) fn new(config: &Config, origin: Origin, seed: u64) -> Self {
        match &config.traffic {
            Traffic::PingPong {
                outstanding,
                think_us,
                timeout_ms,
                even,
            } => {
                let loops = PingPong::new(*outstanding, *think_us, *timeout_ms);
                Self::PingPong(origin, if *even { loops.evenly() } else { loops })
            }
            Traffic::Http {
                clients,
                requests_per_connection: requests,
                timeout_ms,
                client_us,
                server_closes,
                ..
            } => {
                let segments = config.traffic.response_segments();
                let clients = Http::new(*clients, *requests, segments, *timeout_ms, *client_us);
                Self::Http(origin, clients.with_server_closing(*server_closes))
            }
            open => Self::Open(origin, Open::new(open, stream(seed, origin.index))),
        }
    }

    /// Sets the first point in time.
    pub(crate) fn start(&mut self, host: &mut Host) {
        let (origin, first) = match self {
            Self::Open(origin, open) => (*origin, open.first()),
            Self::PingPong(origin, _) | Self::Http(origin, _) => (*origin, 0),
        };
        host.set_source_timer(origin.index, first);
    }

    /// Its point in time has come.
    #[inline]
    pub(crate) fn on_timer(&mut self, host: &mut Host) {
        match self {
            Self::Open(origin, open) => {
                open.send(host, origin);
                let next = open.next(host.now);
                host.set_source_timer(origin.index, next);
            }
            Self::PingPong(origin, loops) => loops.on_timer(host, origin),
            Self::Http(origin, clients) => clients.on_timer(host, origin),
        }
    }

    /// A packet of the host arrived.
    pub(crate) fn on_reply(&mut self, host: &mut Host, packet: &Packet) {
        match self {
            Self::Open(origin, _) => origin.answered(host, packet),
            Self::PingPong(origin, loops) => loops.on_reply(host, origin, packet),
            Self::Http(origin, clients) => clients.on_reply(host, origin, packet),
        }
    }
}

/// The random numbers of the source at this place.
fn stream(seed: u64, index: usize) -> Rng {
    let mut root = Rng::with_seed(seed);
    (0..index).fold(root.fork(), |_, _| root.fork())
}

/// A duration in µs as ns; far-off ones as never.
pub(crate) fn nanos(us: f64) -> u64 {
    if us >= NEVER as f64 / 1e3 {
        return NEVER;
    }
    libm::round(us * 1e3) as u64
}
