//! Protected frames, by a thread of their own.
//!
//! The driver puts them in rings of their own (`bpf/classic.h`), so that a flood of others
//! fills none of them. Their thread comes before the one that forwards the others
//! (`crate::polling`). It has output rings of its own as well: what inhibits input there, a
//! full output queue or the CPU limit, does not concern it.
//!
//! **Limits.** No feedback here: who protects a flood has it dropped at its output queue.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use plimsoll_stack::device::xdp::BareQueue;
use plimsoll_stack::device::{Batch, Device};

use super::decider::Decider;
use super::{AGAIN, LOOK, OUTPUT_FRAMES, Shared, Tally};
use crate::forward::outcome::{Fate, Outcome};

#[derive(Debug)]
pub(super) struct Protected {
    lines: Vec<Line>,
    /// By port, the places of its lines.
    of_port: Vec<Vec<usize>>,
    decider: Decider,
    quota: usize,
    batch: Batch,
    tallies: Vec<Tally>,
}

/// The protected frames of a receive queue, and those that leave by it.
#[derive(Debug)]
struct Line {
    port: usize,
    device: Arc<BareQueue>,
    output: Batch,
}

impl Protected {
    pub(super) fn new(shared: &Shared, decider: Decider, quota: u32) -> Self {
        let devices = shared.protected.iter();
        let lines: Vec<Line> = devices
            .map(|(port, device)| Line {
                port: *port,
                device: Arc::clone(device),
                output: VecDeque::with_capacity(OUTPUT_FRAMES),
            })
            .collect();
        let ports = shared.tallies.lock().len();
        let of_port = super::by_port(ports, lines.iter().map(|line| line.port));
        Self {
            lines,
            of_port,
            decider,
            quota: quota as usize,
            batch: Batch::with_capacity(quota as usize),
            tallies: vec![Tally::default(); ports],
        }
    }

    pub(super) fn run(&mut self, shared: &Shared) -> io::Result<()> {
        while !shared.stop.load(Ordering::Relaxed) {
            let mut received = 0;
            for place in 0..self.lines.len() {
                received += self.receive(place)?;
            }
            self.send()?;
            shared
                .protected_tallies
                .lock()
                .copy_from_slice(&self.tallies);
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
        let table = Arc::clone(&self.decider.table);
        // Whoever waits to write may wait for a thread that this one keeps from the CPU.
        let table = table.read_recursive();
        let now = self.decider.now();
        let mut kernel_has_work = false;
        for frame in batch.drain(..) {
            let outcome = match self.decider.decide(&table, frame, port, now) {
                Ok((to, frame)) => {
                    let places = &self.of_port[to];
                    let output = &mut self.lines[places[place % places.len()]].output;
                    match output.len() < OUTPUT_FRAMES {
                        true => output.push_back(frame),
                        false => self.tallies[to].transmitted.dropped += 1,
                    }
                    Outcome::Forwarded
                }
                Err(outcome) => outcome,
            };
            kernel_has_work |= outcome.fate() == Fate::Kernel;
            self.tallies[port].outcomes.count(outcome);
        }
        drop(table);
        self.batch = batch;
        self.decider.flush(kernel_has_work)?;
        Ok(received)
    }

    fn send(&mut self) -> io::Result<()> {
        for line in self.lines.iter_mut().filter(|line| !line.output.is_empty()) {
            let sent = line.device.transmit(&mut line.output)?;
            self.tallies[line.port].transmitted.sent += sent as u64;
        }
        Ok(())
    }

    /// Until there are frames, or what finds no room is to be tried again.
    fn wait(&self) -> io::Result<()> {
        let all_left = self.lines.iter().all(|line| line.output.is_empty());
        let span = if all_left { LOOK } else { AGAIN };
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
