//! Protected frames, by a thread of their own.
//!
//! The driver puts them in rings of their own (`bpf/classic.h`), so that a flood of others
//! fills none of them. Their thread comes before the one that forwards the others
//! (`crate::polling`). It has output rings of its own as well: a full output queue there does not
//! concern it, nor the CPU limit while it and the kernel's polling need no more than half of that.
//!
//! **Limits.** No feedback here: who protects a flood has it dropped at its output queue.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use plimsoll_stack::device::xdp::BareQueue;
use plimsoll_stack::device::{Batch, Device, Frame};

use super::decider::Decider;
use super::output::{self, Output};
use super::{AGAIN, Shared, Tally};

#[derive(Debug)]
pub(super) struct Protected {
    lines: Vec<Line>,
    /// By port, the places of its lines.
    of_port: Vec<Vec<usize>>,
    decider: Decider,
    quota: usize,
    batch: Batch,
    /// Frames to be forwarded, with the port of each.
    routed: Vec<(usize, Frame)>,
    tallies: Vec<Tally>,
    /// They are what was told last.
    is_told: bool,
}

/// The protected frames of a receive queue, and those that leave by it.
#[derive(Debug)]
struct Line {
    port: usize,
    device: Arc<BareQueue>,
    output: Output,
}

impl Protected {
    pub(super) fn new(shared: &Shared, decider: Decider, quota: u32) -> Self {
        let devices = shared.protected.iter();
        let lines: Vec<Line> = devices
            .map(|(port, device)| Line {
                port: *port,
                device: Arc::clone(device),
                output: Output::new(),
            })
            .collect();
        let ports = shared.protected_tallies.ports();
        let of_port = super::by_port(ports, lines.iter().map(|line| line.port));
        Self {
            lines,
            of_port,
            decider,
            quota: quota as usize,
            batch: Batch::with_capacity(quota as usize),
            routed: Vec::with_capacity(quota as usize),
            tallies: vec![Tally::default(); ports],
            is_told: true,
        }
    }

    /// Forwards until it is told to end. What it has not sent by then is dropped.
    pub(super) fn run(&mut self, shared: &Shared) -> io::Result<()> {
        let ended = self.forward(shared);
        let lines = self.lines.iter_mut();
        let outputs = lines.map(|line| (line.port, &mut line.output));
        super::drop_rest(&mut self.routed, outputs, &mut self.tallies);
        shared.protected_tallies.tell_last(&self.tallies);
        ended
    }

    fn forward(&mut self, shared: &Shared) -> io::Result<()> {
        while !shared.stop.load(Ordering::Relaxed) {
            let mut received = 0;
            for place in 0..self.lines.len() {
                received += self.receive(place)?;
            }
            self.send()?;
            self.is_told = shared.protected_tallies.tell(&self.tallies);
            if received == 0 {
                self.wait()?;
            }
        }
        Ok(())
    }

    /// Takes a quota of frames, and carries each to an output queue.
    fn receive(&mut self, place: usize) -> io::Result<usize> {
        let (device, port) = (
            Arc::clone(&self.lines[place].device),
            self.lines[place].port,
        );
        let mut batch = std::mem::take(&mut self.batch);
        let received = device.receive(&mut batch, self.quota)?;
        let now = self.decider.now();
        let counts = &mut self.tallies[port].outcomes;
        self.decider
            .decide_all(&mut batch, port, now, counts, &mut self.routed)?;
        self.batch = batch;
        for (to, frame) in self.routed.drain(..) {
            let places = &self.of_port[to];
            let output = &mut self.lines[places[place % places.len()]].output;
            output.push(frame, &mut self.tallies[to].transmitted);
        }
        Ok(received)
    }

    fn send(&mut self) -> io::Result<()> {
        let now = self.decider.now();
        for line in self.lines.iter_mut().filter(|line| !line.output.is_empty()) {
            let counts = &mut self.tallies[line.port].transmitted;
            let batch = &mut self.batch;
            line.output
                .send(&*line.device, output::FRAMES, batch, now, counts)?;
        }
        Ok(())
    }

    /// Until there are frames, or what finds no room or was not told is to be tried again.
    fn wait(&self) -> io::Result<()> {
        let all_left = self.lines.iter().all(|line| line.output.is_empty());
        let is_done = all_left && self.is_told;
        let tended = super::tend(self.lines.iter().map(|line| &*line.device));
        let span = if is_done { tended } else { AGAIN.min(tended) };
        let readable = self.lines.iter().map(|line| line.device.readiness());
        let mut polled: Vec<PollFd<'_>> = readable
            .map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN))
            .collect();
        match ppoll(&mut polled, Some(TimeSpec::from_duration(span)), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
