//! A stack without threads, driven by hand: for fuzzing, and for tests that
//! count what a turn costs. Not part of the public interface.

mod input;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

pub use self::input::{IN_VLAN, Reached, TRUSTING, check, run};
use crate::account::{Charged, Owner};
use crate::clock;
use crate::config::{StackConfig, TcpConfig};
use crate::device::simulated::{SimulatedConfig, SimulatedDevice};
pub use crate::device::xdp::completions::measured::Returning;
pub use crate::device::xdp::steering::{Bound, Steering, To, Told};
use crate::device::{Batch, Device};
use crate::outcome::Counts;
use crate::proxy::Proxy;
use crate::receive::{Next, Receiver};
use crate::socket::UdpSocket;
use crate::stack::{Parts, Stack};
use crate::tcp::{TcpListener, Worker};
use crate::wait;
use crate::wire::reassembly::ReassemblyConfig;

/// Connections that wait for their handshake or to be accepted.
const BACKLOG: usize = 2;

/// The stack at 10.0.0.2 and `fd00::2`, with UDP sockets at port 7 of each, a
/// listener at port 80, and the far end of its cable.
#[allow(missing_debug_implementations, reason = "not public in earnest")]
pub struct Driven {
    /// The far end.
    pub cable: SimulatedDevice,
    /// The sockets.
    pub sockets: [UdpSocket; 2],
    /// Where TCP is listened for.
    pub listener: TcpListener,
    stack: Stack,
    receiver: Receiver,
    proxies: Vec<Proxy>,
    tcp: Worker,
    answers: Batch,
}

impl Driven {
    /// With the receive path of that name.
    ///
    /// # Panics
    ///
    /// If there is no memory, or no such path.
    #[must_use]
    pub fn new(path: &str) -> Self {
        Self::with_addresses(path, true)
    }

    /// The same, with addresses that the kernel has as well.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    #[must_use]
    pub fn sharing(path: &str) -> Self {
        Self::with_addresses(path, false)
    }

    /// With a listener that discards what is beyond its backlog.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    #[must_use]
    pub fn without_cookies(path: &str) -> Self {
        let (cable, device) = SimulatedDevice::pair(&link()).expect("memory");
        let mut config = config(path);
        config.tcp.syn_cookies_per_s = 0;
        Self::on(cable, device, &config)
    }

    fn with_addresses(path: &str, owns_address: bool) -> Self {
        let link = SimulatedConfig {
            owns_address,
            ..link()
        };
        let (cable, device) = SimulatedDevice::pair(&link).expect("memory");
        Self::on(cable, device, &config(path))
    }

    fn on(cable: SimulatedDevice, device: impl Device + 'static, config: &StackConfig) -> Self {
        let parts = Parts::assemble(device, config).expect("a stack");
        let bind = |at| {
            let socket = UdpSocket::bind(&parts.stack, at).expect("a free port");
            socket.set_nonblocking(true).expect("it always works");
            socket
        };
        let listener = TcpListener::bind_with_backlog(&parts.stack, "10.0.0.2:80", BACKLOG);
        let listener = listener.expect("a free port");
        listener.set_nonblocking(true).expect("it always works");
        Self {
            cable,
            sockets: [bind("10.0.0.2:7"), bind("[fd00::2]:7")],
            stack: parts.stack,
            receiver: parts.receiver,
            proxies: parts.proxies,
            tcp: parts.tcp,
            listener,
            answers: Batch::with_capacity(256),
        }
    }

    /// Turns of the receiving thread until it waits for the device. Where it waits for a time
    /// (input is inhibited, or polled), so does this while frames are there.
    ///
    /// # Panics
    ///
    /// If the simulated device fails, which it cannot.
    pub fn receive(&mut self) {
        let mut arrived = true;
        loop {
            let next = self.receiver.turn(arrived).expect("no device to fail");
            arrived = false;
            match next {
                Next::Again => {}
                Next::Wait { device: true, .. } | Next::Wait { until: None, .. } => return,
                Next::Wait {
                    until: Some(until), ..
                } if self.are_frames_there() => {
                    std::thread::sleep(until.saturating_since(clock::now()));
                }
                Next::Wait { .. } => return,
            }
        }
    }

    fn are_frames_there(&self) -> bool {
        let device = self.stack.host().device.readiness();
        let there = wait::wait_any([device], Some(Duration::ZERO));
        there.expect("a descriptor") == [true]
    }

    /// What the proxies and TCP have to do, and away with what comes back.
    ///
    /// # Panics
    ///
    /// As [`receive`](Self::receive).
    pub fn settle(&mut self) {
        self.work();
        let received = self.cable.receive(&mut self.answers, 256);
        received.expect("no device to fail");
        self.answers.clear();
    }

    /// What the proxies and TCP have to do.
    ///
    /// # Panics
    ///
    /// As [`receive`](Self::receive).
    pub fn work(&mut self) {
        self.work_in(Duration::ZERO);
    }

    /// The same, so much later.
    ///
    /// # Panics
    ///
    /// As [`receive`](Self::receive).
    pub fn work_in(&mut self, time: Duration) {
        for _ in 0..16 {
            for proxy in &mut self.proxies {
                proxy.turn(clock::now() + time).expect("no device to fail");
            }
            let turned = self.tcp.turn(clock::now() + time);
            turned.expect("no device to fail");
        }
    }

    /// Takes every datagram that is there; returns how many.
    ///
    /// # Panics
    ///
    /// If a socket fails otherwise than by being empty.
    pub fn drain(&mut self) -> usize {
        let mut count = 0;
        for socket in &self.sockets {
            loop {
                match socket.recv_datagram() {
                    Ok(_) => count += 1,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        count
    }

    /// Frames by what became of them.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.stack.counts()
    }

    /// The same and CPU time, by who caused them.
    #[must_use]
    pub fn charged(&self) -> BTreeMap<Owner, Charged> {
        self.stack.charged()
    }
}

/// Little memory: fuzzing makes one for every input.
fn link() -> SimulatedConfig {
    SimulatedConfig {
        chunks: 1024,
        ..SimulatedConfig::default()
    }
}

fn config(path: &str) -> StackConfig {
    let addresses = ["10.0.0.2/24", "fd00::2/64"];
    StackConfig {
        addresses: addresses
            .map(|net| net.parse().expect("a network"))
            .to_vec(),
        path: path.parse().expect("a path"),
        channels_max: 3,
        tcp: TcpConfig {
            connections_max: 3,
            buffer_bytes: 2048,
            ..TcpConfig::default()
        },
        reassembly: ReassemblyConfig {
            datagrams: 2,
            ..ReassemblyConfig::default()
        },
        ..StackConfig::default()
    }
}
