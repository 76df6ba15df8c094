//! A wide-area path: a near and a far host with a third between them that delays, limits
//! and drops, as the router of Aron & Druschel's section 5.7 did (ST-64).
//!
//! The host in the middle carries whole frames between its two interfaces. It has no
//! address on the path, so the two ends are neighbours on one Ethernet. Each direction is
//! a bottleneck with a bounded queue and a delay of its own. Arrivals are stamped
//! by the kernel (`AF_PACKET`), so that it does not matter when the relay reads its ring.
//! Departures are timed by a real-time thread on a timer descriptor, which waits for the
//! last microseconds itself. Its CPU is kept from halting meanwhile: most late frames were due to
//! slow wake-ups, and those of a halted CPU are the slowest.
//!
//! # Or netem
//!
//! A kernel that has netem does the same by itself ([`By::NetemIfThere`]), at less cost to the
//! CPUs, but stamps nothing. The kernel this is written on has none, so that way was never
//! measured; its bridge and its counts are tested with another queue.
//!
//! # Limits
//!
//! A delay of at least 10 ms: the kernel hands frames over in blocks, up to some
//! milliseconds after their arrival. One CPU carries about 100,000 frames per second; with
//! more, [`Direction::unreceived`] is not 0. The relay takes a part of the near host's CPU:
//! in the milliseconds of a busy path about half of it. That CPU is never idle. No loss but that of the queue, no
//! reordering, no jitter: [`plimsoll_stack::device::faulty`] has those for our stack.

mod awake;
mod line;
mod netem;
mod relay;
mod report;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_core::pacing::Rate;
use plimsoll_kernel::scheduling::{Priority, Scheduling};
use plimsoll_stack::device::packet::PacketDevice;

use self::awake::Awake;
use self::relay::Relay;
use crate::placement::receive_on;
use crate::{Config, Error, Host, INNER_DEVICE, Testbed};

pub use self::report::{Direction, Passage, Report};

/// The near host's address on the path.
pub const NEAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The far host's address on the path: its kernel's.
pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// An address that leads to the far host and is not its kernel's: for a stack of its own.
pub const FAR_STACK: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
/// The length of the path's network prefix.
pub const PREFIX: u8 = 24;

/// What a path does to frames, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathConfig {
    /// What the bottleneck sends, in bits of frames with their Ethernet headers.
    pub rate: Rate,
    /// How long a frame travels besides, 10 ms to 10 s.
    pub delay: Duration,
    /// Frames that wait for the bottleneck, besides the one that it sends.
    pub queue_frames: usize,
    /// Frames of each direction whose times are kept for the report.
    pub passages_max: usize,
    /// Who carries them.
    pub by: By,
}

/// Who carries frames over a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A program of ours, which stamps every frame.
    Relay,
    /// The kernel's netem where it has it, else the relay.
    NetemIfThere,
}

impl PathConfig {
    /// The paper's: 50 ms each way. The queue holds what the bottleneck sends in 50 ms,
    /// in frames of full size, which is half of what fits into the round trip.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        const DELAY: Duration = Duration::from_millis(50);
        let frame = rate.interval(FRAME_BYTES).as_nanos().max(1);
        Self {
            rate,
            delay: DELAY,
            queue_frames: (DELAY.as_nanos() / frame) as usize,
            passages_max: 0,
            by: By::Relay,
        }
    }

    /// The same of so many Mbit/s.
    #[must_use]
    pub fn of_megabits(megabits: u32) -> Self {
        Self::new(Rate::clamped(u64::from(megabits) * 1_000_000))
    }

    fn validate(&self) -> Result<(), Error> {
        let allowed = Duration::from_millis(10)..=Duration::from_secs(10);
        if allowed.contains(&self.delay) {
            return Ok(());
        }
        Err(Error::Config {
            field: "delay",
            given: format!("{:?}", self.delay),
            allowed: "from 10 ms to 10 s",
        })
    }
}

/// A full frame without its check sequence.
pub const FRAME_BYTES: u32 = 1514;

/// Two hosts and the path between them. Dropping it removes them.
#[derive(Debug)]
pub struct WideArea {
    stop: Arc<AtomicBool>,
    carrier: Carrier,
    far: Host,
    testbed: Testbed,
}

#[derive(Debug)]
enum Carrier {
    Relay(JoinHandle<std::io::Result<Report>>),
    Netem,
    Ended,
}

impl WideArea {
    /// Makes the hosts and begins to carry frames. The near host's programs, and the relay,
    /// are on the load CPU; the far host is on the other. So is what both ends' kernels do
    /// with the frames that the relay hands to them: it would make the next frames late.
    ///
    /// # Errors
    ///
    /// As [`Testbed::create`]; [`Error::Config`]; [`Error::MissingProgram`] without
    /// `ethtool`; [`Error::Stack`] if the packet sockets cannot be opened.
    pub fn create(config: Config, path: PathConfig) -> Result<Self, Error> {
        path.validate()?;
        let testbed = Testbed::create(config)?;
        let far = testbed.add_host_behind()?;
        make_ends(testbed.load(), &far)?;
        for end in [testbed.load(), &far] {
            receive_on(end, far.cpu())?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let carrier = match path.by {
            By::NetemIfThere if netem::is_there(testbed.test()) => {
                netem::set_up(testbed.test(), &path)?;
                Carrier::Netem
            }
            _ => Carrier::Relay(start_relay(testbed.test(), &path, config.load_cpu, &stop)?),
        };
        Ok(Self {
            stop,
            carrier,
            far,
            testbed,
        })
    }

    /// `netem` or `relay`.
    #[must_use]
    pub fn carried_by(&self) -> &'static str {
        match self.carrier {
            Carrier::Netem => "netem",
            Carrier::Relay(_) | Carrier::Ended => "relay",
        }
    }

    /// The host at [`NEAR`].
    #[must_use]
    pub fn near(&self) -> &Host {
        self.testbed.load()
    }

    /// The host at [`FAR`].
    #[must_use]
    pub fn far(&self) -> &Host {
        &self.far
    }

    /// Ends the path and tells what it did.
    ///
    /// # Errors
    ///
    /// What ended it before; the hosts are removed in any case.
    pub fn stop(mut self) -> Result<Report, Error> {
        self.end().unwrap_or_else(|| {
            Err(Error::Failed {
                program: "the wide-area path".to_owned(),
                status: "panicked".to_owned(),
                output: "see its message above".to_owned(),
            })
        })
    }

    fn end(&mut self) -> Option<Result<Report, Error>> {
        self.stop.store(true, Ordering::Relaxed);
        match std::mem::replace(&mut self.carrier, Carrier::Ended) {
            Carrier::Relay(relay) => {
                let report = relay.join().ok()?;
                Some(report.map_err(Error::io("carry frames over the wide-area path")))
            }
            Carrier::Netem => Some(netem::report(self.testbed.test())),
            Carrier::Ended => None,
        }
    }
}

impl Drop for WideArea {
    fn drop(&mut self) {
        self.end();
    }
}

/// A thread on this CPU that carries frames between the middle host's interfaces.
fn start_relay(
    middle: &Host,
    path: &PathConfig,
    cpu: usize,
    stop: &Arc<AtomicBool>,
) -> Result<JoinHandle<std::io::Result<Report>>, Error> {
    let open = || -> Result<_, Error> {
        let near = PacketDevice::open(middle.device())?;
        Ok((near, PacketDevice::open(INNER_DEVICE)?))
    };
    let (near, behind) = middle.run(open)??;
    let relay = Relay::new(path, near, behind).map_err(Error::io("make a timer"))?;
    let told = Arc::clone(stop);
    let run = move || {
        let _awake = Awake::keep(cpu)?;
        // Before every process: a frame that waits for the scheduler is late.
        let own = Scheduling::of(0)?.with_priority(Priority::RealTime);
        own.with_cpus(&[cpu]).give_to(0)?;
        relay.run(&told)
    };
    let thread = std::thread::Builder::new().name("wide-area".to_owned());
    thread.spawn(run).map_err(Error::io("start a thread"))
}

/// Addresses that are neighbours of each other, and nothing on the wire that nobody sent.
fn make_ends(near: &Host, far: &Host) -> Result<(), Error> {
    for (host, address, others) in [(near, NEAR, vec![FAR, FAR_STACK]), (far, FAR, vec![NEAR])] {
        let device = host.device();
        let other = if address == NEAR { far } else { near };
        let mac = other.mac().map(|byte| format!("{byte:02x}")).join(":");
        // The path carries IPv4 alone, and its counts are of what was sent over it.
        host.sysctl(&format!("net/ipv6/conf/{device}/disable_ipv6"), "1")?;
        if address == FAR {
            host.ip(&format!("link set {device} arp off"))?;
        }
        host.ip(&format!("address add {address}/{PREFIX} dev {device}"))?;
        for neighbour in others {
            host.ip(&format!(
                "neighbour replace {neighbour} lladdr {mac} dev {device} nud permanent"
            ))?;
        }
        // A frame is to be one packet on the wire, with its checksum: the relay is no
        // adapter that would cut it or complete it.
        host.configure(
            "ethtool",
            ["-K", device, "tx", "off", "tso", "off", "gso", "off"],
        )?;
    }
    Ok(())
}
