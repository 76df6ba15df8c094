//! Where packets come from: the kernel's copies, or the interface itself.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use plimsoll_kernel::counters::interfaces::Interfaces;
use plimsoll_stack::device::packet::{Arrival, MonitorConfig, PacketMonitor, Promiscuous};
use plimsoll_stack::device::xdp::{WholeQueue, XdpConfig, arrival_tai, open_whole};
use plimsoll_stack::device::{Batch, Device, Frame};

use super::{CaptureConfig, Counts, Error, Mode};
use crate::clock;
use crate::filter::Filter;
use crate::unserved::{self, Unserved};

/// Frames of one queue that are taken before the next queue has its turn.
const TURN_FRAMES: usize = 64;
/// Frames of a socket's receive ring: a burst that arrives while other queues are served,
/// or while this thread waits for the CPU.
const RING_FRAMES: u32 = 8192;
/// Shortest wait.
const TICK: Duration = Duration::from_millis(1);
/// A stamp farther from now is none: the driver left no room for it.
const STAMP_AGE_MAX_NS: u64 = 10_000_000_000;

/// A packet that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    /// Nanoseconds since 1970.
    pub(super) at_ns: u64,
    pub(super) bytes: &'a [u8],
    pub(super) whole: usize,
}

/// See the variants.
#[derive(Debug)]
pub(super) enum Source {
    /// The stack gets the packets as well.
    Copy(Box<Copied>),
    /// Nobody else gets them.
    Take(Taken),
}

/// Packets that the kernel copies.
#[derive(Debug)]
pub(super) struct Copied {
    monitor: PacketMonitor,
    /// The kernel filters: what it refuses is known from the interface's own counters.
    filtered_by_kernel: Option<Unfiltered>,
    /// A frame with its VLAN tag put back.
    tagged: Vec<u8>,
}

/// What the interface had counted when the capture began.
#[derive(Debug)]
struct Unfiltered {
    ifindex: u32,
    with_sent: bool,
    before: u64,
    filtered: u64,
}

/// Packets taken from the interface.
#[derive(Debug)]
pub(super) struct Taken {
    queues: Vec<WholeQueue>,
    /// The queue whose turn it is.
    next: usize,
    _promiscuous: Option<Promiscuous>,
    batch: Batch,
    unserved: Unserved,
    /// To be added to a stamp of `CLOCK_TAI`, wrapping.
    tai_to_utc_ns: u64,
}

/// Whether the kernel can run the filter. It takes VLAN tags out of frames before.
pub(super) fn filters_in_kernel(config: &CaptureConfig, filter: &Filter) -> bool {
    config.mode == Mode::Copy && !config.filter.is_empty() && !filter.names_vlan()
}

impl Source {
    /// Opens the interface, with the filter that the kernel is to run.
    pub(super) fn open(config: &CaptureConfig, in_kernel: Option<&Filter>) -> Result<Self, Error> {
        Ok(match config.mode {
            Mode::Copy => Self::Copy(Box::new(Copied::open(config, in_kernel)?)),
            Mode::Take => Self::Take(Taken::open(config)?),
        })
    }

    /// Shows packets that wait to `each`, up to `max`; returns how many there were.
    #[inline]
    pub(super) fn visit(&mut self, max: usize, each: impl FnMut(Packet<'_>)) -> io::Result<usize> {
        match self {
            Self::Copy(copied) => Ok(copied.visit(max, each)),
            Self::Take(taken) => taken.visit(max, each),
        }
    }

    /// Waits for packets. Fails if the interface is gone: no more will come than have arrived.
    pub(super) fn wait(&self, timeout: Duration) -> io::Result<()> {
        let descriptors: Vec<BorrowedFd<'_>> = match self {
            Self::Copy(copied) => vec![copied.monitor.as_fd()],
            Self::Take(taken) => taken.queues.iter().map(Device::readiness).collect(),
        };
        let wanted = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
        let mut wanted: Vec<PollFd<'_>> = descriptors.into_iter().map(wanted).collect();
        let tended = self.tend();
        let next = tended.as_ref().ok().copied().flatten();
        let timeout = next.map_or(timeout, |next| next.max(TICK).min(timeout));
        let millis = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
        match poll(&mut wanted, millis) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        tended.map(drop)
    }

    /// Does what is due although nothing arrives; when to do so again.
    fn tend(&self) -> io::Result<Option<Duration>> {
        match self {
            Self::Copy(copied) => copied.monitor.tend().map(|()| None),
            Self::Take(taken) => taken.queues.iter().try_fold(None, |soonest, queue| {
                let next = queue.tend()?;
                Ok(soonest.into_iter().chain(next).min())
            }),
        }
    }

    /// Brings what was lost before the capture saw it up to date.
    pub(super) fn read_losses(&mut self, counts: &mut Counts) {
        match self {
            Self::Copy(copied) => {
                copied.read_losses(counts);
            }
            Self::Take(taken) => taken.read_losses(counts),
        }
    }

    /// Brings all places that only the kernel knows up to date.
    pub(super) fn read_counts(&mut self, counts: &mut Counts) {
        match self {
            Self::Copy(copied) => copied.read_counts(counts),
            Self::Take(taken) => taken.read_counts(counts),
        }
    }

    /// What it does less well than asked for, told once.
    pub(super) fn take_problem(&mut self, interface: &str) -> Option<String> {
        match self {
            Self::Copy(_) => None,
            Self::Take(taken) => taken.take_problem(interface),
        }
    }
}

impl Copied {
    fn open(config: &CaptureConfig, in_kernel: Option<&Filter>) -> Result<Self, Error> {
        let monitor = MonitorConfig {
            ring_bytes: config.ring_bytes,
            outgoing: config.outgoing,
            promiscuous: config.promiscuous,
            filter: in_kernel.map_or_else(Vec::new, |filter| filter.instructions().to_vec()),
            ..MonitorConfig::default()
        };
        let monitor = PacketMonitor::open(&config.interface, &monitor)?;
        let begin = |_| Unfiltered::begin(&config.interface, monitor.sees_sent());
        let filtered_by_kernel = in_kernel.map(begin).transpose()?;
        Ok(Self {
            monitor,
            filtered_by_kernel,
            tagged: Vec::new(),
        })
    }

    fn visit(&mut self, max: usize, mut each: impl FnMut(Packet<'_>)) -> usize {
        let tagged = &mut self.tagged;
        self.monitor.visit(max, |arrival| {
            each(match arrival.vlan {
                None => Packet {
                    at_ns: arrival.at_ns,
                    bytes: arrival.bytes,
                    whole: arrival.whole_bytes,
                },
                Some(tag) => put_back(tagged, &arrival, tag),
            });
        })
    }

    /// Returns how many packets the filter let pass.
    fn read_losses(&mut self, counts: &mut Counts) -> u64 {
        let kernel = self.monitor.read_counts();
        (counts.ring, counts.invalid) = (kernel.ring_full, kernel.invalid);
        kernel.passed
    }

    fn read_counts(&mut self, counts: &mut Counts) {
        let passed = self.read_losses(counts);
        if let Some(unfiltered) = &mut self.filtered_by_kernel {
            counts.filtered = unfiltered.filtered(passed);
        }
    }
}

/// The frame as it was on the wire. A tag stands behind both addresses.
fn put_back<'a>(
    tagged: &'a mut Vec<u8>,
    arrival: &Arrival<'_>,
    [protocol, tag]: [u16; 2],
) -> Packet<'a> {
    let (addresses, rest) = arrival.bytes.split_at(arrival.bytes.len().min(12));
    tagged.clear();
    tagged.extend(addresses);
    tagged.extend(protocol.to_be_bytes());
    tagged.extend(tag.to_be_bytes());
    tagged.extend(rest);
    Packet {
        at_ns: arrival.at_ns,
        bytes: tagged,
        whole: arrival.whole_bytes + 4,
    }
}

impl Unfiltered {
    fn begin(interface: &str, with_sent: bool) -> Result<Self, Error> {
        let ifindex = plimsoll_kernel::link::index(interface).map_err(|error| Error::Io {
            action: "find the interface",
            source: io::Error::other(error),
        })?;
        let mut begun = Self {
            ifindex,
            with_sent,
            before: 0,
            filtered: 0,
        };
        begun.before = begun.read().map_err(|source| Error::Io {
            action: "read the interface's counters",
            source,
        })?;
        Ok(begun)
    }

    fn read(&self) -> io::Result<u64> {
        let own = Interfaces::read(self.ifindex)?.own;
        Ok(own.received + if self.with_sent { own.sent } else { 0 })
    }

    /// What the interface counted beside what passed, merged frames included. Read at about the
    /// same time, so it never goes back.
    fn filtered(&mut self, passed: u64) -> u64 {
        if let Ok(all) = self.read() {
            let refused = (all - self.before.min(all)).saturating_sub(passed);
            self.filtered = self.filtered.max(refused);
        }
        self.filtered
    }
}

impl Taken {
    fn open(config: &CaptureConfig) -> Result<Self, Error> {
        const CHUNK_BYTES: usize = 2048;
        let chunks = (config.ring_bytes / CHUNK_BYTES).next_power_of_two();
        let xdp = XdpConfig {
            chunks,
            send_frames: 0,
            ring_frames: RING_FRAMES.min(chunks as u32),
            busy_poll: config.busy_poll,
            ..XdpConfig::default()
        };
        let promiscuous = || Promiscuous::begin(&config.interface);
        let mut taken = Self {
            queues: open_whole(&config.interface, &xdp)?,
            next: 0,
            _promiscuous: config.promiscuous.then(promiscuous).transpose()?,
            batch: Batch::with_capacity(TURN_FRAMES),
            unserved: Unserved::default(),
            tai_to_utc_ns: 0,
        };
        taken.set_clock();
        // Until now there was no socket at all for a moment.
        taken.unserved = Unserved::begin(taken.queues[0].unserved()?);
        Ok(taken)
    }

    fn visit(&mut self, max: usize, mut each: impl FnMut(Packet<'_>)) -> io::Result<usize> {
        let (now, tai_to_utc_ns) = (clock::utc_ns(), self.tai_to_utc_ns);
        take_turns(
            &self.queues,
            &mut self.next,
            &mut self.batch,
            max,
            |frame| {
                let stamp = arrival_tai(frame).unwrap_or_default().as_nanos() as u64;
                let stamp = stamp.wrapping_add(tai_to_utc_ns);
                let is_one = now.abs_diff(stamp) < STAMP_AGE_MAX_NS;
                each(Packet {
                    at_ns: if is_one { stamp } else { now },
                    bytes: frame,
                    whole: frame.len(),
                });
            },
        )
    }

    fn read_counts(&mut self, counts: &mut Counts) {
        self.set_clock();
        self.read_losses(counts);
        if let Ok(cpus) = self.queues[0].unserved() {
            counts.no_socket = self.unserved.frames(&cpus);
        }
    }

    fn take_problem(&mut self, interface: &str) -> Option<String> {
        let queue = self
            .unserved
            .queue_to_tell(&self.queues[0].unserved().ok()?)?;
        Some(unserved::problem(
            queue,
            interface,
            "left to the kernel",
            "capture",
        ))
    }

    fn read_losses(&self, counts: &mut Counts) {
        (counts.ring, counts.no_buffer, counts.invalid) = (0, 0, 0);
        for drops in self.queues.iter().map(Device::drops) {
            counts.ring += drops.ring_full;
            counts.no_buffer += drops.no_buffer;
            counts.invalid += drops.invalid;
        }
    }

    /// Leap seconds, and an operator who sets the clock.
    fn set_clock(&mut self) {
        let tai = clock::tai_ns();
        self.tai_to_utc_ns = clock::utc_ns().wrapping_sub(tai);
    }
}

/// Shows up to `max` frames that wait; returns how many there were. One turn of each queue at a
/// time, so that none waits for a flooded one. The next call goes on with the queue behind.
fn take_turns(
    queues: &[impl Device],
    next: &mut usize,
    batch: &mut Batch,
    max: usize,
    mut each: impl FnMut(&Frame),
) -> io::Result<usize> {
    let (mut seen, mut empty) = (0, 0);
    while seen < max && empty < queues.len() {
        let turn = TURN_FRAMES.min(max - seen);
        let taken = queues[*next].receive(batch, turn)?;
        *next = (*next + 1) % queues.len();
        empty = if taken == 0 { empty + 1 } else { 0 };
        seen += taken;
        batch.drain(..).for_each(|frame| each(&frame));
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};

    use super::super::TURN_PACKETS;
    use super::*;

    /// Each visit began at the first queue, so those behind the eighth had no turn under a flood.
    #[test]
    fn every_queue_of_a_flooded_interface_has_its_turn() {
        const QUEUES: usize = 16;
        let pair = || SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let (queues, senders): (Vec<_>, Vec<_>) = (0..QUEUES).map(|_| pair()).unzip();
        let (mut next, mut batch) = (0, Batch::new());
        let mut seen = [0_usize; QUEUES];
        for visit in 1..=20 {
            for (queue, sender) in (0..).zip(&senders) {
                while sender.send(&[queue; 60]) {}
            }
            let count = |frame: &Frame| seen[usize::from(frame[0])] += 1;
            let taken = take_turns(&queues, &mut next, &mut batch, TURN_PACKETS, count);
            assert_eq!(taken.unwrap(), TURN_PACKETS, "visit {visit}");
        }
        let each = 20 * TURN_PACKETS / QUEUES;
        assert!(
            seen.iter().all(|seen| seen.abs_diff(each) <= TURN_FRAMES),
            "{seen:?}"
        );
    }

    #[test]
    fn a_visit_takes_all_that_waits_and_no_more_than_it_may() {
        let (first, to_first) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let (second, to_second) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        for (sender, frames) in [(&to_first, 150), (&to_second, 3)] {
            (0..frames).for_each(|_| assert!(sender.send(&[1; 60])));
        }
        let (queues, mut next, mut batch) = ([first, second], 1, Batch::new());
        let mut visit = |max| take_turns(&queues, &mut next, &mut batch, max, |_| {}).unwrap();
        assert_eq!(visit(100), 100);
        assert_eq!(visit(100), 53);
        assert_eq!(visit(100), 0);
    }
}
