//! Forwarding in user space: one thread that polls all interfaces in turn.
//!
//! Mogul & Ramakrishnan, sections 5 to 7, with real packets. Arrivals only start polling
//! (`core::poll`). A turn takes at most the quota and carries each packet as far as it
//! goes, to the output queue of its interface. An output queue at its high watermark
//! inhibits input (`core::feedback`). The CPU limit (`crate::polling`; there is always one)
//! makes the thread yield: beyond it, it runs only where nobody else wants the CPU (MR-56).
//!
//! AF_XDP has two halves: the kernel's polling puts frames into our ring, and this
//! thread takes them out. In softirq context the first half comes before every process,
//! and a flood of which it copies each frame leaves this thread nothing. So the kernel
//! polls in threads beneath this one (`crate::polling`): it goes on when this thread has
//! worked off what came before, and what it does not poll is lost in the adapter's ring,
//! at no cost.
//!
//! Protected frames have rings and a thread of their own (`protected`). With them the kernel polls
//! before this thread, within half of the limit.
//!
//! **Limits.** One thread for all others, so one CPU. Sending copies in the kernel, about a microsecond
//! per frame.

mod decider;
mod output;
mod protected;
mod queues;
mod tally;

use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwap;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::unistd::gettid;
use parking_lot::Mutex;
use plimsoll_core::feedback::{Change, Feedback, FeedbackConfig, QueueId, Watermarks};
use plimsoll_core::poll::{
    Direction, Directions, Driver, Interrupts, Poller, PollerConfig, SourceId, SourceSet, Turn,
};
use plimsoll_core::time::Instant;
use plimsoll_stack::device::xdp::BareQueue;
use plimsoll_stack::device::{Batch, Device, Frame};

use super::Config;
use super::error::Error;
use super::router::Attached;
use super::table::{Port, Table};
use decider::Decider;
use output::Output;
use protected::Protected;
pub(super) use tally::Tally;
use tally::Told;

/// Completions of one system call in copy mode (`TX_BATCH_SIZE`).
const TRANSMIT_QUOTA: u32 = 32;
/// How soon the end is noticed.
const LOOK: Duration = Duration::from_millis(50);
/// How soon a full transmit ring is tried again.
const AGAIN: Duration = Duration::from_micros(100);

/// The forwarding threads; dropping it ends them.
#[derive(Debug)]
pub(super) struct Engine {
    shared: Arc<Shared>,
    forwarding: Worker,
    /// If anything is protected.
    protecting: Option<Worker>,
    /// By port, frames that nobody took from the rings.
    left: Vec<u64>,
}

/// A thread.
#[derive(Debug)]
struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// What the kernel calls it.
    tid: i32,
}

/// What the threads tell.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    tallies: Told,
    /// The same of protected frames.
    protected_tallies: Told,
    /// Why one ended by itself.
    failure: Mutex<Option<String>>,
    /// With the port of each.
    devices: Vec<(usize, Arc<BareQueue>)>,
    /// Those of protected frames.
    protected: Vec<(usize, Arc<BareQueue>)>,
}

/// One receive queue, and the output queue that it sends from.
#[derive(Debug)]
struct Line {
    port: usize,
    device: Arc<BareQueue>,
    source: SourceId,
    output: Output,
    queue: QueueId,
}

impl Engine {
    /// Opens all queues of the ports, and starts the threads that forward between them.
    pub(super) fn start(
        config: &Config,
        ports: &[Port],
        table: Arc<ArcSwap<Table>>,
        attached: &Arc<Attached>,
    ) -> Result<Self, Error> {
        let (devices, protected) = queues::open(config)?;
        let shared = Arc::new(Shared {
            tallies: Told::of_ports(ports.len()),
            protected_tallies: Told::of_ports(ports.len()),
            devices,
            protected,
            ..Shared::default()
        });
        let mtu = ports.iter().map(|port| port.mtu).max().unwrap_or(1500);
        let decider = Decider::new(config, table, mtu as u32)?;
        let mut work = Work::new(config, &shared, decider.clone())?;
        let mut express = Protected::new(&shared, decider, config.quota);
        let protecting = config.protected.as_ref().map(|_| {
            let run = move |shared: &Shared| express.run(shared);
            Worker::start("protected", config.cpu, &shared, leave(attached), run)
        });
        let run = move |shared: &Shared| work.run(shared);
        Ok(Self {
            protecting: protecting.transpose()?,
            forwarding: Worker::start("forward", config.cpu, &shared, leave(attached), run)?,
            left: vec![0; ports.len()],
            shared,
        })
    }

    /// Frames go to the threads from now on. Until then the kernel forwards them.
    pub(super) fn take_over(&self, attached: &Attached) -> Result<(), Error> {
        for (port, device) in &self.shared.protected {
            let instance = attached.instance(*port);
            instance.protect(device.queue(), device.as_fd())?;
        }
        for (port, device) in &self.shared.devices {
            let instance = attached.instance(*port);
            instance.add_socket(device.queue(), device.as_fd())?;
        }
        if !self.is_running() {
            // It may have left all to the kernel before.
            attached.leave_to_kernel();
        }
        Ok(())
    }

    /// It was not ended, and did not end by itself.
    pub(super) fn is_running(&self) -> bool {
        !self.shared.stop.load(Ordering::Relaxed)
    }

    /// Ends the threads. Frames that are in the rings yet count as lost.
    pub(super) fn stop(&mut self) {
        for worker in self.protecting.iter_mut().chain([&mut self.forwarding]) {
            worker.stop();
        }
        let devices = self.shared.devices.iter().chain(&self.shared.protected);
        for (port, device) in devices {
            self.left[*port] += device.take_unread();
        }
    }

    /// Whether the kernel has yet to send some of what it was given, and can.
    pub(super) fn is_sending(&self) -> bool {
        let mut devices = self.shared.devices.iter().chain(&self.shared.protected);
        devices.any(|(_, device)| device.is_sending())
    }

    /// The threads that take frames, and those that the former come before.
    pub(super) fn takers_and_deciders(&self) -> [Vec<i32>; 2] {
        let forwarding = vec![self.forwarding.tid];
        match &self.protecting {
            Some(protecting) => [vec![protecting.tid], forwarding],
            None => [forwarding, Vec::new()],
        }
    }

    /// What became of the frames of the port in this place.
    pub(super) fn tally(&self, port: usize) -> Tally {
        let devices = self.shared.devices.iter().chain(&self.shared.protected);
        let of_port = devices.filter(|(of, _)| *of == port);
        let lost = of_port.map(|(_, device)| device.drops());
        let lost = lost.map(|drops| drops.ring_full + drops.no_buffer + drops.invalid);
        let lost = self.left[port] + lost.sum::<u64>();
        let protected = self.shared.protected_tallies.read(port);
        let mut tally = self.shared.tallies.read(port);
        tally.outcomes += protected.outcomes;
        tally.transmitted += protected.transmitted;
        Tally {
            lost,
            protected: protected.outcomes.total(),
            ..tally
        }
    }

    /// Why it ended by itself, if it did.
    pub(super) fn failure(&self) -> Option<String> {
        self.shared.failure.lock().clone()
    }
}

impl Worker {
    /// Starts a thread on `cpu`, which must be there, or where this process may run. If it ends
    /// by itself, all do, and `leave` is called.
    fn start(
        name: &str,
        cpu: Option<usize>,
        shared: &Arc<Shared>,
        leave: impl FnOnce() + Send + 'static,
        run: impl FnOnce(&Shared) -> io::Result<()> + Send + 'static,
    ) -> Result<Self, Error> {
        let (began, beginning) = channel();
        let seen = Arc::clone(shared);
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            let placed = cpu.map_or(Ok(()), plimsoll_kernel::namespace::pin);
            let is_placed = placed.is_ok();
            // Whoever started this waits for it.
            let _ = began.send(placed.map(|()| gettid().as_raw()));
            if !is_placed {
                return;
            }
            let ended = catch_unwind(AssertUnwindSafe(|| run(&seen)));
            let failure = match ended {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                // It has been printed.
                Err(_) => "a thread panicked".to_owned(),
            };
            seen.stop.store(true, Ordering::Relaxed);
            leave();
            *seen.failure.lock() = Some(failure);
        });
        let thread = thread.map_err(Error::os("start a thread that forwards"))?;
        let tid = beginning.recv().unwrap_or(Ok(0)).map_err(io::Error::from);
        Ok(Self {
            shared: Arc::clone(shared),
            thread: Some(thread),
            tid: tid.map_err(Error::os("keep a thread that forwards to its CPU"))?,
        })
    }

    /// All end together.
    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Has the kernel forward.
fn leave(attached: &Arc<Attached>) -> impl FnOnce() + Send + 'static {
    let attached = Arc::clone(attached);
    move || attached.leave_to_kernel()
}

/// By port, the places of the lines that are of these ports.
fn by_port(ports: usize, lines: impl Iterator<Item = usize>) -> Vec<Vec<usize>> {
    let mut of_port = vec![Vec::new(); ports];
    for (place, port) in lines.enumerate() {
        of_port[port].push(place);
    }
    of_port
}

/// What the thread works with.
struct Work {
    lines: Vec<Line>,
    /// By port, the places of its lines.
    of_port: Vec<Vec<usize>>,
    decider: Decider,
    poller: Poller,
    feedback: Feedback,
    batch: Batch,
    /// Frames to be forwarded, with the port of each.
    routed: Vec<(usize, Frame)>,
    tallies: Vec<Tally>,
    /// They are what was told last.
    is_told: bool,
    /// Lines whose transmit ring was full, to be tried again then.
    again_at: Option<Instant>,
}

impl Work {
    fn new(config: &Config, shared: &Shared, decider: Decider) -> Result<Self, Error> {
        let poller = PollerConfig {
            receive_quota: config.quota,
            transmit_quota: TRANSMIT_QUOTA,
            ..PollerConfig::default()
        };
        let mut poller = Poller::new(poller, Instant::ZERO)?;
        let mut sources = Vec::new();
        for _ in &shared.devices {
            let source = poller.register(Driver::Polled(Interrupts::ReceiveOnly));
            sources.push(source.map_err(|full| Error::usage(full.to_string()))?);
        }
        let all = sources
            .iter()
            .fold(SourceSet::EMPTY, |all, one| all.with(*one));
        let mut feedback = Feedback::new(FeedbackConfig::default(), sources.len())?;
        let mut lines = Vec::new();
        for ((port, device), source) in shared.devices.iter().zip(sources) {
            let marks = Watermarks::of_queue(output::FRAMES as u32);
            let queue = feedback.register(marks, all);
            let (queue, _) = queue.map_err(|error| Error::usage(error.to_string()))?;
            lines.push(Line {
                port: *port,
                device: Arc::clone(device),
                source,
                output: Output::new(),
                queue,
            });
        }
        let ports = shared.tallies.ports();
        Ok(Self {
            of_port: by_port(ports, lines.iter().map(|line| line.port)),
            lines,
            decider,
            poller,
            feedback,
            batch: Batch::with_capacity(config.quota as usize),
            routed: Vec::with_capacity(config.quota as usize),
            tallies: vec![Tally::default(); ports],
            is_told: true,
            again_at: None,
        })
    }

    /// Forwards until it is told to end. What it has not sent by then is dropped.
    fn run(&mut self, shared: &Shared) -> io::Result<()> {
        let ended = self.forward(shared);
        let lines = self.lines.iter_mut();
        let outputs = lines.map(|line| (line.port, &mut line.output));
        drop_rest(&mut self.routed, outputs, &mut self.tallies);
        shared.tallies.tell_last(&self.tallies);
        ended
    }

    fn forward(&mut self, shared: &Shared) -> io::Result<()> {
        while !shared.stop.load(Ordering::Relaxed) {
            let now = self.decider.now();
            self.look(now);
            match self.poller.poll_next(now) {
                Some(turn) => self.serve(turn, now)?,
                None => self.rest(now)?,
            }
            self.is_told = shared.tallies.tell(&self.tallies);
        }
        Ok(())
    }

    /// Times that are up.
    fn look(&mut self, now: Instant) {
        let change = self.feedback.poll_timeout(now);
        self.apply(change);
        if self.again_at.is_some_and(|at| at <= now) {
            self.again_at = None;
            for line in self.lines.iter().filter(|line| !line.output.is_empty()) {
                self.poller.request(line.source, Directions::TRANSMIT);
            }
        }
    }

    fn apply(&mut self, change: Change) {
        for line in &self.lines {
            if change.inhibit.contains(line.source) {
                // Nobody's interrupts are ours to switch: readiness is not awaited then.
                let _ = self.poller.inhibit_input(line.source);
            }
            if change.allow.contains(line.source) {
                self.poller.allow_input(line.source);
            }
        }
    }

    fn serve(&mut self, turn: Turn, now: Instant) -> io::Result<()> {
        let place = turn.source.index();
        let (handled, more) = match turn.direction {
            Direction::Receive => self.receive(place, turn.quota, now)?,
            Direction::Transmit => self.transmit(place, turn.quota, now)?,
        };
        let _ = self.poller.on_turn_done(turn, handled, more);
        Ok(())
    }

    fn receive(&mut self, place: usize, quota: u32, now: Instant) -> io::Result<(u32, bool)> {
        let device = Arc::clone(&self.lines[place].device);
        let mut batch = std::mem::take(&mut self.batch);
        let received = device.receive(&mut batch, quota as usize)?;
        let port = self.lines[place].port;
        let counts = &mut self.tallies[port].outcomes;
        self.decider
            .decide_all(&mut batch, port, now, counts, &mut self.routed)?;
        self.batch = batch;
        let mut routed = std::mem::take(&mut self.routed);
        for (to, frame) in routed.drain(..) {
            self.enqueue(to, place, frame, now);
        }
        self.routed = routed;
        Ok((received as u32, received == quota as usize))
    }

    /// Puts a frame on an output queue of `port`. Queues of a port are taken by the
    /// place that frames come in at, so that none is reordered.
    fn enqueue(&mut self, port: usize, place: usize, frame: Frame, now: Instant) {
        let places = &self.of_port[port];
        let line = &mut self.lines[places[place % places.len()]];
        let counts = &mut self.tallies[port].transmitted;
        if !line.output.push(frame, counts) {
            return;
        }
        let (queue, source) = (line.queue, line.source);
        let occupancy = line.output.len() as u32;
        self.poller.request(source, Directions::TRANSMIT);
        let change = self.feedback.on_enqueue(queue, occupancy, now);
        self.apply(change);
    }

    fn transmit(&mut self, place: usize, quota: u32, now: Instant) -> io::Result<(u32, bool)> {
        let line = &mut self.lines[place];
        let waiting = line.output.len().min(quota as usize);
        let counts = &mut self.tallies[line.port].transmitted;
        let batch = &mut self.batch;
        let sent = line
            .output
            .send(&*line.device, quota as usize, batch, now, counts)?;
        let (queue, occupancy) = (line.queue, line.output.len() as u32);
        if sent < waiting && occupancy > 0 {
            self.again_at = Some(now + AGAIN);
        }
        let change = self.feedback.on_dequeue(queue, occupancy, now);
        self.apply(change);
        Ok((sent as u32, sent > 0 && occupancy > 0))
    }

    /// Nothing to do: frames are waited for.
    fn rest(&mut self, now: Instant) -> io::Result<()> {
        let awaited: Vec<SourceId> = self
            .lines
            .iter()
            .map(|line| line.source)
            .filter(|source| self.poller.interrupts(*source).receive)
            .collect();
        for source in self.wait(&awaited, now)? {
            // Whatever it answers: this is the polling thread, and awake.
            let _ = self.poller.on_interrupt(source, Directions::RECEIVE);
        }
        Ok(())
    }

    /// Which of the sources have frames, once one has or a time is up.
    fn wait(&self, awaited: &[SourceId], now: Instant) -> io::Result<Vec<SourceId>> {
        let tended = tend(self.lines.iter().map(|line| &*line.device));
        let times = [
            self.poller.next_wakeup(),
            self.feedback.next_timeout(),
            self.again_at,
        ];
        let next = times.into_iter().flatten().min();
        let span = next.map_or(LOOK, |next| next.saturating_since(now).min(LOOK));
        let span = span.min(if self.is_told { tended } else { AGAIN });
        let mut polled: Vec<PollFd<'_>> = awaited
            .iter()
            .map(|source| &self.lines[source.index()].device)
            .map(|device| PollFd::new(device.readiness(), PollFlags::POLLIN))
            .collect();
        match ppoll(&mut polled, Some(TimeSpec::from_duration(span)), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready = awaited.iter().zip(&polled);
        let ready = ready.filter(|(_, fd)| fd.any().unwrap_or(true));
        Ok(ready.map(|(source, _)| *source).collect())
    }
}

/// What was not sent when a thread ends goes nowhere, and counts so.
fn drop_rest<'a>(
    routed: &mut Vec<(usize, Frame)>,
    outputs: impl Iterator<Item = (usize, &'a mut Output)>,
    tallies: &mut [Tally],
) {
    for (port, _) in routed.drain(..) {
        tallies[port].transmitted.dropped += 1;
    }
    for (port, output) in outputs {
        output.drop_all(&mut tallies[port].transmitted);
    }
}

/// Does what is due although nothing arrives; when to do so again at the latest. An interface
/// that is gone does not end forwarding between the others.
fn tend<'a>(devices: impl Iterator<Item = &'a BareQueue>) -> Duration {
    let next = devices.filter_map(|device| device.tend().ok().flatten());
    next.fold(LOOK, Duration::min)
}

#[cfg(test)]
mod tests;
