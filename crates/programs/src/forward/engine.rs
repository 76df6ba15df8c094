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
mod work;

use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwap;
use nix::unistd::gettid;
use parking_lot::Mutex;
use plimsoll_stack::device::xdp::BareQueue;
use plimsoll_stack::device::{Device, Frame};

use super::Config;
use super::error::Error;
use super::router::Attached;
use super::table::{Port, Table};
use decider::Decider;
use output::Output;
use protected::Protected;
pub(super) use tally::Tally;
use tally::Told;
use work::Work;

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
