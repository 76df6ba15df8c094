//! A passive monitor that writes pcapng, and says in the file what it had to give up.
//!
//! ```text
//! interface ─ ring ─ filter ─ fidelity ─ queue of segments ─ disk
//! ```
//!
//! One thread takes packets, cuts them and makes blocks in memory; another writes. The
//! first never waits for the disk. How full the queue between them is, and what the ring
//! loses, decides how much of each packet is kept ([`plimsoll_core::fidelity`]): full packets, short ones, headers,
//! headers of some flows. Every step stands in the file with the counts of that time, so
//! that rates computed from the counts are right, whatever was kept.
//!
//! Each packet ends in one place ([`Counts`]), and the places add up to the interface's
//! own counters, unless it counts frames that the kernel merges or the adapter cuts (GRO, TSO).
//!
//! What is set of the interface (promiscuous mode; in mode `take` an XDP program) ends with the
//! capture, also by SIGKILL.

mod ahead;
mod arrivals;
mod config;
mod counts;
mod error;
mod pcapng;
mod queue;
mod recorder;
mod source;
mod steps;
mod writer;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use plimsoll_core::time::Instant;
use plimsoll_kernel::clock::monotonic_ns;
use plimsoll_kernel::counters::interfaces::{Adapter, Interfaces};
use serde::Serialize;

pub use ahead::program_ahead;
pub use arrivals::{ARRIVALS_MAX, ArrivalsConfig, ArrivalsError, arrivals};
pub use config::{CaptureConfig, Mode, Output, RingFiles};
pub use counts::Counts;
pub use error::Error;

use self::pcapng::{About, Encoder};
use self::recorder::Recorder;
use self::source::Source;
use self::writer::{Writer, Written};
use crate::clock::utc_ns;
use crate::filter::Filter;

/// Packets that are taken before the clock is read again.
const TURN_PACKETS: usize = 512;
/// A packet takes more of a ring than this: its header alone has as many bytes.
const RING_ENTRY_BYTES_MIN: usize = 48;
/// How often losses at the ring are looked at.
const LOOK: Duration = Duration::from_millis(25);
/// Longest wait for packets: signals and the time's end are noticed so soon.
const WAIT: Duration = Duration::from_millis(20);

/// A change of what is kept.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// Seconds since the capture began.
    pub seconds: f64,
    /// What is kept from then on.
    pub keeps: String,
    /// What led to it.
    pub why: String,
    /// One flow in this many is kept.
    pub one_in: u32,
    /// Packets that had been received by then.
    pub received: u64,
}

/// What the interface counted itself while the capture ran.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct InterfaceCounts {
    /// Frames received.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// Good frames that nobody took.
    pub dropped: u64,
    /// The adapter's ring was full.
    pub missed: u64,
}

/// What a capture came to.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The interface.
    pub interface: String,
    /// How long it ran, in seconds.
    pub seconds: f64,
    /// What became of every packet.
    pub counts: Counts,
    /// Their sum.
    pub received: u64,
    /// What the interface counted in that time; `None` if it is gone, or the kernel does not tell.
    pub interface_counts: Option<InterfaceCounts>,
    /// Changes of what is kept: the first and the last 1,000.
    pub steps: Vec<Step>,
    /// Changes between these.
    pub steps_left_out: u64,
    /// Files that are there.
    pub files: Vec<PathBuf>,
    /// Bytes written.
    pub bytes: u64,
}

/// A capture that has begun: packets wait in the ring.
#[derive(Debug)]
pub struct Capture {
    config: CaptureConfig,
    source: Source,
    recorder: Recorder,
    writing: JoinHandle<Written>,
    /// The first file.
    name: String,
    beginning: Option<Beginning>,
    began_ns: u64,
    /// What it does less well than asked for.
    problems: (Sender<String>, Option<Receiver<String>>),
    /// Packets that came through the ring.
    seen: u64,
    /// When to look next at what the ring lost.
    look_at: Instant,
}

impl Capture {
    /// Opens the interface and the first file.
    ///
    /// # Errors
    ///
    /// A setting, the filter, the interface or the file: see [`Error`].
    pub fn open(config: &CaptureConfig) -> Result<Self, Error> {
        config.validate()?;
        let filter = Filter::for_socket(&config.filter)?;
        let in_kernel = source::filters_in_kernel(config, &filter);
        if !in_kernel {
            filter.check_in_frames()?;
        }
        let about = About::of(config);
        let encoder = || Encoder::new(&about).map_err(failed_to("make a file's beginning"));
        let segment_bytes = writer::segment_bytes(&config.ring);
        let (filler, drainer) = queue::queue(config.queue_bytes, segment_bytes);
        let began = Duration::from_nanos(utc_ns());
        let beginning = Beginning::of(config);
        let source = Source::open(config, in_kernel.then_some(&filter))?;
        let is_left = !in_kernel && !config.filter.is_empty();
        let filter = is_left.then_some(filter);
        let recorder = Recorder::new(config, filter, encoder()?.0, filler, Instant::ZERO)?;
        let writer = Writer::open(config, drainer, encoder()?, began)?;
        let name = writer.name();
        let thread = thread::Builder::new().name("capture-writer".to_owned());
        let writing = thread.spawn(move || writer.run());
        let problems = channel();
        Ok(Self {
            config: config.clone(),
            source,
            recorder,
            writing: writing.map_err(failed_to("start a thread"))?,
            name,
            beginning,
            began_ns: monotonic_ns(),
            problems: (problems.0, Some(problems.1)),
            seen: 0,
            look_at: Instant::ZERO,
        })
    }

    /// What it does less well than asked for, as it happens: a receive queue has no socket. It ends
    /// with the capture.
    ///
    /// # Panics
    ///
    /// If it is asked for twice.
    pub fn problems(&mut self) -> Receiver<String> {
        self.problems.1.take().expect("asked for once")
    }

    /// Captures until `stop` is set, a bound of the config is reached, standard output takes no
    /// more, or the interface is gone. Then gives the interface back, and returns when what
    /// waits in the queue was written, however long that takes.
    ///
    /// # Errors
    ///
    /// A device failed or is gone, or writing did. In both cases the rest was done nevertheless, and
    /// the summary tells what it came to.
    pub fn run(mut self, stop: &AtomicBool) -> (Summary, Result<(), Error>) {
        let captured = self.turns(stop);
        let seconds = self.now().saturating_since(Instant::ZERO).as_secs_f64();
        // Also of an interface that is gone: what had arrived is in the ring.
        let captured = captured.and(self.drain());
        let interface_counts = self.beginning.and_then(|beginning| beginning.until_now());
        self.source.read_counts(&mut self.recorder.counts);
        // The rest of the queue may take long, and needs no interface.
        drop(self.source);
        self.recorder.finish();
        let seen = self.recorder.counts;
        let (steps, steps_left_out) = self.recorder.take_steps().into_parts();
        drop(self.recorder);
        let written = self.writing.join();
        let written = written.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let counts = written.standing.map_or(seen, |standing| standing.counts);
        let summary = Summary {
            interface: self.config.interface,
            seconds,
            counts,
            received: counts.received(),
            interface_counts,
            steps,
            steps_left_out,
            files: written.files,
            bytes: written.bytes,
        };
        let told = written.failure.map_or(Ok(()), |source| {
            Err(Error::Write {
                what: self.name,
                source,
                packets: counts.disk,
            })
        });
        (summary, captured.and(told))
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(monotonic_ns() - self.began_ns)
    }

    fn turns(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        loop {
            let now = self.now();
            let turn = self.turn_packets();
            if turn == 0 || stop.load(Ordering::Relaxed) || self.is_over(now) {
                return Ok(());
            }
            let seen = self.turn(turn)?;
            self.seen += seen as u64;
            self.recorder.on_turn(now);
            if now >= self.look_at {
                self.look_at = now + LOOK;
                self.source.read_losses(&mut self.recorder.counts);
                self.recorder.on_losses(self.seen, now);
            }
            if self.recorder.is_due(now) {
                self.source.read_counts(&mut self.recorder.counts);
                self.recorder.on_counts(now);
                if let Some(problem) = self.source.take_problem(&self.config.interface) {
                    // Nobody may want to know.
                    let _ = self.problems.0.send(problem);
                }
            }
            if seen == 0 {
                self.source.wait(WAIT).map_err(failed_to("receive"))?;
            }
        }
    }

    fn turn(&mut self, max: usize) -> Result<usize, Error> {
        let Self {
            source, recorder, ..
        } = self;
        let seen = source.visit(max, |packet| recorder.on_packet(packet));
        seen.map_err(failed_to("receive"))
    }

    /// Takes what had arrived when the end came: as much as a ring can hold, and no more,
    /// since more may go on arriving.
    fn drain(&mut self) -> Result<(), Error> {
        let waited = self.source.wait(WAIT);
        self.source.read_losses(&mut self.recorder.counts);
        self.recorder.tell_losses();
        let mut left = self.config.ring_bytes / RING_ENTRY_BYTES_MIN;
        while left > 0 {
            let turn = self.turn_packets();
            let seen = if turn == 0 { 0 } else { self.turn(turn)? };
            if seen == 0 {
                break;
            }
            left = left.saturating_sub(seen);
        }
        waited.map_err(failed_to("receive"))
    }

    fn is_over(&self, now: Instant) -> bool {
        let passed = now.saturating_since(Instant::ZERO);
        let too_long = self.config.time_max.is_some_and(|most| passed >= most);
        too_long || self.recorder.writing_is_over()
    }

    /// Packets that may be taken at once: 0 when there were enough.
    fn turn_packets(&self) -> usize {
        let recorded = self.recorder.counts.recorded;
        let left = |most: u64| most.saturating_sub(recorded);
        let left = self.config.packets_max.map_or(u64::MAX, left);
        TURN_PACKETS.min(usize::try_from(left).unwrap_or(usize::MAX))
    }
}

fn failed_to(action: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { action, source }
}

/// The interface when the capture began. It may have another name by the end.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    ifindex: u32,
    counted: Adapter,
}

impl Beginning {
    /// None where the kernel does not tell.
    fn of(config: &CaptureConfig) -> Option<Self> {
        let ifindex = plimsoll_kernel::link::index(&config.interface).ok()?;
        let counted = counted(ifindex)?;
        Some(Self { ifindex, counted })
    }

    /// What the interface has counted since, if it is there still.
    fn until_now(&self) -> Option<InterfaceCounts> {
        let (after, before) = (counted(self.ifindex)?, &self.counted);
        Some(InterfaceCounts {
            received: after.received.saturating_sub(before.received),
            sent: after.sent.saturating_sub(before.sent),
            dropped: after.dropped.saturating_sub(before.dropped),
            missed: after.missed.saturating_sub(before.missed),
        })
    }
}

fn counted(ifindex: u32) -> Option<Adapter> {
    // Of an interface that is gone the kernel lists the others.
    plimsoll_kernel::link::name(ifindex)?;
    Interfaces::read(ifindex).ok().map(|all| all.own)
}
