//! Thousands of paced flows from one thread: our stack's UDP on AF_XDP, as fast as one core
//! can send them (ST-37).
//!
//! **Limits.** All flows have one rate and go to one host, which drops them in its driver. A
//! datagram counts as sent once the kernel took it from the socket's ring.

use std::net::{IpAddr, SocketAddr, UdpSocket as KernelSocket};
use std::time::Duration;

use plimsoll_core::pacing::{FlowId, FlowRates, Rate};
use plimsoll_core::time::Instant;
use plimsoll_stack::device::xdp::{XdpConfig, XdpInterface};
use plimsoll_stack::{Filled, PacedSender, PacedSenderConfig, Stack, StackConfig, UdpSocket};

use crate::{Config, Error, Testbed, interrupt};

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacedFlows {
    /// At a time.
    pub flows: u32,
    /// Between two datagrams of a flow.
    pub interval: Duration,
    /// Of UDP payload.
    pub payload_bytes: usize,
    /// How long it is measured, after the first interval.
    pub time: Duration,
}

/// What left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Departed {
    /// Datagrams.
    pub departures: u64,
    /// Those that left more than one interval after they should have.
    pub late: u64,
    /// How long it took.
    pub seconds: f64,
}

const PORT: u16 = 4700;
/// Ethernet, IPv4 and UDP.
const HEADERS_BYTES: usize = 42;
/// While a flow catches up it may send so many times faster.
const CATCHING_UP: u32 = 10;
/// No link takes longer.
const SOON: Duration = Duration::from_secs(2);
/// Turns of the sending loop between two looks for a signal that ends all.
const LOOK_TURNS: u32 = 4096;

impl PacedFlows {
    /// Makes two hosts and sends from one to the other.
    ///
    /// # Errors
    ///
    /// As [`Testbed::create`]; [`Error::Stack`] if the stack cannot be started.
    pub fn run(&self) -> Result<Departed, Error> {
        let testbed = Testbed::create(Config::default())?;
        let (load, test) = (testbed.load(), testbed.test());
        load.configure("ethtool", ["-K", load.device(), "tx", "off"])?;
        // The peer's place on the link is learnt from its datagram: no network is needed.
        let config = StackConfig::at(IpAddr::from(test.ipv4()).into());
        let open = || XdpInterface::open(test.device(), &XdpConfig::default());
        let stack = test.run_on_cpu(|| Stack::start(open()?, &config))??;
        let socket = UdpSocket::bind(&stack, (test.ipv4(), PORT)).map_err(sending)?;
        // Whose datagram was received, its place on the link is known.
        let greet = || -> std::io::Result<()> {
            let peer = KernelSocket::bind((load.ipv4(), PORT))?;
            peer.send_to(b"hello", (test.ipv4(), PORT))?;
            Ok(())
        };
        load.run(greet)?.map_err(sending)?;
        socket.set_read_timeout(Some(SOON)).map_err(sending)?;
        socket.recv_from(&mut [0; 16]).map_err(sending)?;
        let dropping = testbed.drop_answers()?;
        let to = SocketAddr::from((load.ipv4(), PORT));
        let departed = test.run_on_cpu(|| self.send(socket, to))??;
        drop((dropping, stack));
        Ok(departed)
    }

    fn send(&self, socket: UdpSocket, to: SocketAddr) -> Result<Departed, Error> {
        let mut sender = PacedSender::new(
            socket,
            PacedSenderConfig {
                flows_max: self.flows,
                // What is late is to be seen, and not forgotten.
                deficit_max: Duration::from_secs(1),
            },
        )?;
        let mut clocks = vec![Clocked::default(); self.flows as usize];
        let flows = self.add(&mut sender, to).map_err(sending)?;
        self.start(&mut sender, &flows, &mut clocks)?;
        let (mut departed, mut turns) = (Departed::NONE, 0_u32);
        let begun = std::time::Instant::now();
        while begun.elapsed() < self.time {
            turns += 1;
            if turns.is_multiple_of(LOOK_TURNS) {
                interrupt::check()?;
            }
            let Some(now) = sender.check() else { continue };
            self.turn(&mut sender, now, &mut clocks, &mut departed)?;
        }
        departed.seconds = begun.elapsed().as_secs_f64();
        Ok(departed)
    }

    fn add(&self, sender: &mut PacedSender, to: SocketAddr) -> std::io::Result<Vec<FlowId>> {
        let frame = (self.payload_bytes + HEADERS_BYTES) as u64;
        let rates = FlowRates {
            target: Rate::from_interval(frame, self.interval),
            burst: Rate::from_interval(frame, self.interval / CATCHING_UP),
        };
        (0..self.flows)
            .map(|_| sender.add_flow(to, rates))
            .collect()
    }

    /// One flow after the other over one interval, so that they do not depart together.
    fn start(
        &self,
        sender: &mut PacedSender,
        flows: &[FlowId],
        clocks: &mut [Clocked],
    ) -> Result<(), Error> {
        let begun = std::time::Instant::now();
        let mut departed = Departed::NONE;
        for (number, flow) in (0..).zip(flows) {
            while begun.elapsed() < self.interval * number / self.flows {
                if let Some(now) = sender.check() {
                    self.turn(sender, now, clocks, &mut departed)?;
                }
            }
            sender.start(*flow).map_err(sending)?;
        }
        Ok(())
    }

    fn turn(
        &self,
        sender: &mut PacedSender,
        now: Instant,
        clocks: &mut [Clocked],
        departed: &mut Departed,
    ) -> Result<(), Error> {
        let (mut late, bytes) = (0, self.payload_bytes);
        let sent = sender.send_due(now, |flow, place| {
            late += u64::from(clocks[flow.place()].is_late(now, self.interval));
            place[..bytes].fill(0);
            Some(Filled { bytes, more: true })
        });
        departed.departures += sent.map_err(sending)? as u64;
        departed.late += late;
        Ok(())
    }
}

impl Departed {
    const NONE: Self = Self {
        departures: 0,
        late: 0,
        seconds: 0.0,
    };

    /// Departures per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.departures as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// The part that was late, in percent.
    #[must_use]
    pub fn late_percent(&self) -> f64 {
        100.0 * self.late as f64 / self.departures.max(1) as f64
    }
}

/// When a flow's datagrams should leave, from its first one on.
#[derive(Clone, Copy, Debug, Default)]
struct Clocked {
    next: Option<Instant>,
}

impl Clocked {
    fn is_late(&mut self, now: Instant, interval: Duration) -> bool {
        let meant = self.next.unwrap_or(now);
        self.next = Some(meant + interval);
        now > meant + interval
    }
}

fn sending(source: std::io::Error) -> Error {
    Error::io("send paced datagrams")(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_an_interval_after_its_time_is_late() {
        let mut flow = Clocked::default();
        let interval = Duration::from_micros(100);
        let at = |micros: u64| Instant::from_nanos(micros * 1000);
        let late = [1000, 1100, 1250, 1401, 1400].map(|now| flow.is_late(at(now), interval));
        assert_eq!(late, [false, false, false, true, false]);
    }

    #[test]
    fn flows_leave_at_their_rate_over_a_link() {
        let flows = PacedFlows {
            flows: 200,
            interval: Duration::from_millis(20),
            payload_bytes: 100,
            time: Duration::from_millis(300),
        };
        let departed = flows.run().unwrap();
        // 10,000 a second. What was late before is caught up, and a busy machine takes long.
        assert!(departed.departures >= 500, "{departed:?}");
        assert!(departed.per_second() < 13_000.0, "{departed:?}");
    }
}
