//! The thread that forwards: polls its lines in turn, and feeds their output queues.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use plimsoll_core::feedback::{Change, Feedback, FeedbackConfig, QueueId, Watermarks};
use plimsoll_core::poll::{
    Direction, Directions, Driver, Interrupts, Poller, PollerConfig, SourceId, SourceSet, Turn,
};
use plimsoll_core::time::Instant;
use plimsoll_stack::device::xdp::BareQueue;
use plimsoll_stack::device::{Batch, Device, Frame};

use super::decider::Decider;
use super::output::{self, Output};
use super::{AGAIN, LOOK, Shared, Tally, by_port, drop_rest, tend};
use crate::forward::Config;
use crate::forward::error::Error;

/// Completions of one system call in copy mode (`TX_BATCH_SIZE`).
const TRANSMIT_QUOTA: u32 = 32;

/// One receive queue, and the output queue that it sends from.
#[derive(Debug)]
struct Line {
    port: usize,
    device: Arc<BareQueue>,
    source: SourceId,
    output: Output,
    queue: QueueId,
}

/// What the thread works with.
pub(super) struct Work {
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
    pub(super) fn new(config: &Config, shared: &Shared, decider: Decider) -> Result<Self, Error> {
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
    pub(super) fn run(&mut self, shared: &Shared) -> io::Result<()> {
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
