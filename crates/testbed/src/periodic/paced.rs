//! One paced stream of datagrams that leave in a program's trigger states (section 5.6:
//! ST-63), by the paper's rule for catching up.
//!
//! **Limits.** An interval is that between two decisions to send. What the kernel adds to a
//! datagram on its way is not in it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use plimsoll_timers::Instant;
use plimsoll_timers::pacing::{CatchUp, FlowRates, Pacer, PacerConfig, Rate};

use crate::Error;
use crate::server::Passing;

/// The stream. It sends as long as it is told of trigger states.
#[derive(Debug)]
pub struct PacedStream {
    socket: UdpSocket,
    pacer: Pacer,
    last: Option<Instant>,
    /// Of the intervals in nanoseconds.
    count: u64,
    sum: f64,
    squares: f64,
}

/// Its intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spacing {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean_us: f64,
    /// Their standard deviation.
    pub stddev_us: f64,
}

/// Of UDP payload; rates count these bytes.
const BYTES: u32 = 1458;

/// Where datagrams end.
#[derive(Debug)]
pub struct Sink {
    _socket: UdpSocket,
    address: SocketAddr,
}

impl Sink {
    /// Where it is bound.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl PacedStream {
    /// A socket that nobody reads, so that nobody answers that there is none.
    ///
    /// # Errors
    ///
    /// There are no more descriptors.
    pub fn sink() -> Result<Sink, Error> {
        let bind = || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            let address = socket.local_addr()?;
            Ok::<_, io::Error>(Sink {
                _socket: socket,
                address,
            })
        };
        bind().map_err(Error::io("bind a sink"))
    }

    /// One datagram every `target`, and every `burst` while it catches up.
    ///
    /// # Errors
    ///
    /// The socket cannot be made, or `burst` is longer than `target`.
    pub fn start(to: SocketAddr, target: Duration, burst: Duration) -> Result<Self, Error> {
        let start = || -> io::Result<Self> {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(to)?;
            let config = PacerConfig {
                flows: 1,
                catch_up: CatchUp::TwoIntervals,
                ..PacerConfig::default()
            };
            let mut pacer = Pacer::new(config).map_err(io::Error::other)?;
            let rates = FlowRates {
                target: Rate::from_interval(BYTES.into(), target),
                burst: Rate::from_interval(BYTES.into(), burst),
            };
            let flow = pacer.add_flow(rates).map_err(io::Error::other)?;
            pacer.on_backlog(flow).map_err(io::Error::other)?;
            Ok(Self {
                socket,
                pacer,
                last: None,
                count: 0,
                sum: 0.0,
                squares: 0.0,
            })
        };
        start().map_err(Error::io("start a paced stream"))
    }

    /// The intervals so far.
    #[must_use]
    pub fn spacing(&self) -> Spacing {
        let count = self.count.max(1) as f64;
        let mean = self.sum / count;
        Spacing {
            count: self.count,
            mean_us: mean / 1e3,
            stddev_us: (self.squares / count - mean * mean).max(0.0).sqrt() / 1e3,
        }
    }

    fn on_departure(&mut self, now: Instant) {
        if let Some(last) = self.last.replace(now) {
            let interval = now.saturating_since(last).as_nanos() as f64;
            self.count += 1;
            self.sum += interval;
            self.squares += interval * interval;
        }
    }
}

impl Passing for PacedStream {
    #[inline]
    fn pass(&mut self) {
        let Some(now) = self.pacer.check() else {
            return;
        };
        while let Some(flow) = self.pacer.poll_departure(now) {
            // What finds no room is lost on the way.
            let _ = self.socket.send(&[0; BYTES as usize]);
            self.on_departure(now);
            let counted = self.pacer.on_sent(now, flow, BYTES, true);
            debug_assert!(counted.is_ok(), "{counted:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_never_shorter_than_the_burst_allows() {
        let sink = PacedStream::sink().unwrap();
        let to = (Ipv4Addr::LOCALHOST, sink.port()).into();
        let (target, burst) = (Duration::from_micros(200), Duration::from_micros(100));
        let begun = std::time::Instant::now();
        let mut stream = PacedStream::start(to, target, burst).unwrap();
        while stream.spacing().count < 200 {
            stream.pass();
            assert!(begun.elapsed() < Duration::from_secs(10), "{stream:?}");
        }
        let spacing = stream.spacing();
        assert!(spacing.mean_us >= 100.0, "{spacing:?}");
        assert!(begun.elapsed() >= 200 * burst);
        let backwards = PacedStream::start(to, burst, target);
        assert!(backwards.is_err());
    }
}
