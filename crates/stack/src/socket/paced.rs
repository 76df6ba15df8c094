//! Paced UDP: datagrams of many flows that leave by the clock (rate-based clocking; Aron &
//! Druschel, section 4.1: ST-27, ST-28, ST-33, ST-37, ST-42).
//!
//! A [`PacedSender`] belongs to the thread that sends. That thread asks in its trigger states
//! whether a departure is due, and is then asked for one datagram of each flow that is. They
//! are written straight into frames, and all that leave in one trigger state go with one call
//! into the device.
//!
//! **When the device has no room** nothing is taken from flows until it has some. They are
//! late then, and catch up at no more than their burst rates.
//!
//! **Limits.** A datagram must fit one frame. One socket is the source of all flows.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_core::pacing::{FlowError, FlowId, FlowRates, PacerConfig};
use plimsoll_core::time::Instant;
use plimsoll_timers::pacing::Pacer;

use super::udp::UdpSocket;
use crate::clock;
use crate::device::{Batch, Frame, HEADROOM_BYTES, Pool};
use crate::error::{Error, FlowFailed};
use crate::wire::{ETHERNET_BYTES, UDP_BYTES, emit};

/// Bounds of a [`PacedSender`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacedSenderConfig {
    /// Flows at a time, at least 1. Memory is taken for all of them, 164 bytes each. Default
    /// 1024.
    pub flows_max: u32,
    /// How far behind its rate a flow may be and still catch up. What it sends to catch up
    /// waits in a bottleneck's queue. Default 10 ms.
    pub deficit_max: Duration,
}

impl Default for PacedSenderConfig {
    fn default() -> Self {
        Self {
            flows_max: 1024,
            deficit_max: Duration::from_millis(10),
        }
    }
}

/// A datagram that was written into its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Its length.
    pub bytes: usize,
    /// The flow has another one to send.
    pub more: bool,
}

/// Sends datagrams of many flows, each at a rate of its own. Rates count frames with their
/// Ethernet headers.
///
/// ```
/// # use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
/// # use plimsoll_stack::{Stack, StackConfig};
/// use plimsoll_stack::pacing::{FlowRates, Rate};
/// use plimsoll_stack::{Filled, PacedSender, PacedSenderConfig, UdpSocket};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (here, there) = SimulatedDevice::pair(&SimulatedConfig::default())?;
/// # let stack = Stack::start(here, &StackConfig::at("10.0.0.1/24".parse()?))?;
/// # let other = Stack::start(there, &StackConfig::at("10.0.0.2/24".parse()?))?;
/// let socket = UdpSocket::bind(&stack, "10.0.0.1:7")?;
/// let mut sender = PacedSender::new(socket, PacedSenderConfig::default())?;
/// let rates = FlowRates {
///     target: Rate::clamped(100_000_000),
///     burst: Rate::clamped(1_000_000_000), // while it catches up
/// };
/// let flow = sender.add_flow("10.0.0.2:9".parse()?, rates)?;
/// sender.start(flow)?;
/// let mut left = 10;
/// while left > 0 {
///     // ... a turn of the program's own work ...
///     let Some(now) = sender.check() else { continue };
///     sender.send_due(now, |_flow, place| {
///         place[..5].copy_from_slice(b"hello");
///         left -= 1;
///         Some(Filled { bytes: 5, more: left > 0 })
///     })?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct PacedSender {
    socket: UdpSocket,
    pool: Arc<Pool>,
    pacer: Pacer,
    /// From and to, by the flow's place.
    ends: Vec<(SocketAddr, SocketAddr)>,
    batch: Batch,
}

impl fmt::Debug for PacedSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacedSender")
            .field("socket", &self.socket)
            .field("waiting_for_room", &self.batch.len())
            .finish_non_exhaustive()
    }
}

/// Frames that go with one call into the device.
const BATCH: usize = 64;

impl PacedSender {
    /// Takes the memory for all flows.
    ///
    /// # Errors
    ///
    /// [`Error::Config`]: no flows.
    pub fn new(socket: UdpSocket, config: PacedSenderConfig) -> Result<Self, Error> {
        let pacer = Pacer::new(PacerConfig {
            flows: config.flows_max,
            deficit_max: config.deficit_max,
            ..PacerConfig::default()
        })?;
        Ok(Self {
            pool: Arc::clone(socket.host().device.pool()),
            pacer,
            ends: Vec::with_capacity(config.flows_max as usize),
            batch: Batch::with_capacity(BATCH),
            socket,
        })
    }

    /// The socket, to receive what comes back.
    #[must_use]
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// A flow to this address, which has nothing to send yet.
    ///
    /// # Errors
    ///
    /// `InvalidInput` or `ENETUNREACH`: no way there, or a burst rate below the target rate.
    /// `StorageFull`: as many flows as configured exist.
    pub fn add_flow(&mut self, to: SocketAddr, rates: FlowRates) -> io::Result<FlowId> {
        let ends = self.socket.host().ends(self.socket.local_addr()?, to)?;
        let flow = self.pacer.add_flow(rates).map_err(refused)?;
        // Places are given one after the other, or are those of removed flows.
        match self.ends.get_mut(flow.place()) {
            Some(place) => *place = ends,
            None => self.ends.push(ends),
        }
        Ok(flow)
    }

    /// Removes a flow; what it has not sent it never sends.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: it was removed before.
    pub fn remove_flow(&mut self, flow: FlowId) -> io::Result<()> {
        self.pacer.remove_flow(flow).map_err(refused)
    }

    /// Changes a flow's rates, from the next datagram on.
    ///
    /// # Errors
    ///
    /// As [`add_flow`](Self::add_flow), and if it was removed.
    pub fn set_rates(&mut self, flow: FlowId, rates: FlowRates) -> io::Result<()> {
        self.pacer.set_rates(flow, rates).map_err(refused)
    }

    /// The flow has something to send. Nothing changes if it waits for a departure already.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: it was removed.
    pub fn start(&mut self, flow: FlowId) -> io::Result<()> {
        self.pacer.on_backlog(flow).map_err(refused)
    }

    /// The check of a trigger state: the present time if a departure may be due, or if frames
    /// wait for room in the device.
    #[inline]
    #[must_use]
    pub fn check(&self) -> Option<Instant> {
        if self.batch.is_empty() {
            return self.pacer.check();
        }
        Some(self.pacer.now())
    }

    /// Sends one datagram of each flow whose departure is due. `next` is asked to write it
    /// into the place that it is given, which holds what fits one frame; `None` if the flow
    /// has none after all. Returns how many left.
    ///
    /// # Errors
    ///
    /// [`FlowFailed`], which names the flow: `next` wrote more than its place holds (`InvalidInput`), or there
    /// is no way to the flow's receiver, as with [`UdpSocket::send_to`] (`NetworkUnreachable`,
    /// `HostUnreachable`). What others had to send by then has left. That flow waits for
    /// [`start`](Self::start), and others go on with the next call. `BrokenPipe`: the device has failed.
    pub fn send_due(
        &mut self,
        now: Instant,
        mut next: impl FnMut(FlowId, &mut [u8]) -> Option<Filled>,
    ) -> io::Result<usize> {
        let mut sent = self.transmit()?;
        let arrived = clock::now();
        while self.batch.is_empty() {
            let filled = self.fill_batch(now, arrived, &mut next);
            sent += self.transmit()?;
            if !filled? {
                break;
            }
        }
        Ok(sent)
    }

    /// False: no more departures are due, or there are no buffers now.
    fn fill_batch(
        &mut self,
        now: Instant,
        arrived: Instant,
        next: &mut impl FnMut(FlowId, &mut [u8]) -> Option<Filled>,
    ) -> io::Result<bool> {
        while self.batch.len() < BATCH {
            let Some(frame) = self.pool.take() else {
                // All are in the device: it is to send them, and give them back.
                self.socket.egress().push_on()?;
                return Ok(false);
            };
            let Some(flow) = self.pacer.poll_departure(now) else {
                return Ok(false);
            };
            let departed = self.depart(flow, frame, (now, arrived), next);
            departed.map_err(|cause| FlowFailed {
                flow,
                to: self.ends[flow.place()].1,
                cause,
            })?;
        }
        Ok(true)
    }

    /// `now` is of the pacer's clock, `arrived` of the stack's.
    fn depart(
        &mut self,
        flow: FlowId,
        mut frame: Frame,
        (now, arrived): (Instant, Instant),
        next: &mut impl FnMut(FlowId, &mut [u8]) -> Option<Filled>,
    ) -> io::Result<()> {
        let (source, destination) = self.ends[flow.place()];
        let headers = emit::network_bytes(destination.ip()) + UDP_BYTES;
        let egress = self.socket.egress();
        let mtu = egress.mtu_to(destination.ip(), arrived);
        let room = mtu.saturating_sub(headers);
        frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + room);
        let Some(filled) = next(flow, &mut frame) else {
            return Ok(());
        };
        if filled.bytes > room {
            let problem = format!("a datagram of {} bytes, where {room} fit", filled.bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + filled.bytes);
        egress.wrap_udp(&mut frame, source, destination);
        let length = ETHERNET_BYTES + headers + filled.bytes;
        let to = destination.ip();
        let via = self.socket.via(to, arrived);
        let push = |out: &mut Batch| egress.push(frame, to, via, out, arrived);
        self.socket.within_ttl(to, &mut self.batch, push)?;
        // Its id came from the pacer just now, and frames are shorter than 4 GiB.
        let _ = self.pacer.on_sent(now, flow, length as u32, filled.more);
        Ok(())
    }

    /// Sends what waits; what finds no room goes on waiting. Returns how many left.
    fn transmit(&mut self) -> io::Result<usize> {
        let before = self.batch.len();
        self.socket.egress().transmit(&mut self.batch)?;
        Ok(before - self.batch.len())
    }

    /// The time until the next departure, for a [`TimerFd`](plimsoll_timers::TimerFd) that
    /// wakes a thread with nothing else to do; `None` if no flow waits.
    #[must_use]
    pub fn until_departure(&self) -> Option<Duration> {
        match self.batch.is_empty() {
            true => self.pacer.until_departure(),
            false => Some(ROOM_SOON),
        }
    }
}

/// When the device may have room again.
const ROOM_SOON: Duration = Duration::from_micros(50);

fn refused(error: FlowError) -> io::Error {
    let kind = match error {
        FlowError::Full => io::ErrorKind::StorageFull,
        FlowError::Rates(_) | FlowError::Unknown => io::ErrorKind::InvalidInput,
    };
    io::Error::new(kind, error)
}
