//! The load generator: millions of frames per second from one core,
//! each at its scheduled moment.
//!
//! # How
//!
//! An ordinary socket cannot do that, and its frames would be copied at the
//! receiver's cost. So the sender is an XDP program (`src/bpf/blast.bpf.c`) that
//! the kernel runs over and over on frames of its own (`BPF_PROG_TEST_RUN` with
//! live frames, see the kernel's `Documentation/bpf/bpf_prog_run.rst`). Each run
//! waits for the next departure, writes a whole frame, and redirects it to the
//! interface. One blast is one system call, because such a call costs tens of
//! milliseconds at its end.
//!
//! # Sharing a CPU
//!
//! The generator never sleeps, but no run waits longer than 10 µs, and between
//! batches of runs the kernel lets others run. A prober or client on the same
//! CPU comes first if the generator has [`Priority::Idle`]. What it missed
//! meanwhile it makes up for: a small burst at once, the rest at a bounded rate
//! ([`CatchUp`]). How often that was is part of the [`Report`].
//!
//! # What is measured
//!
//! Every departure ends as sent, dropped at the receiver's full ring, or failed;
//! a tracing program sees each group of frames when the link has taken it, so
//! the departure error includes everything up to there.
//!
//! # Limits
//!
//! - It sends only on links of a testbed, unless [`Spec::foreign_interface`].
//! - It is always bounded in time and frames ([`Bound`]).
//! - A frame occupies a page, and a receiving socket is charged for a page.
//! - The payload is written once: a receiver that changes it in place (an XDP
//!   program) changes later frames. Headers are written every time.
//! - Linux 6.2 or newer with BTF, and root.

mod call;
mod departures;
mod frame;
mod interface;
mod lengths;
mod program;
mod report;
mod sources;
mod spec;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::geteuid;

use plimsoll_kernel::clock::monotonic_ns;

pub use departures::{DEPARTURES_MAX, Departures};
pub use lengths::{IMIX_BYTES, imix_payload};
pub use report::{DepartureError, End, Lag, Report};
pub use sources::{Hosts, NETWORKS_MAX, Sources};
pub use spec::{
    BATCH_MAX_RUNS, BURST_MAX_FRAMES, Bound, CatchUp, FRAME_MAX_BYTES, FRAMES_MAX, Flow, Priority,
    RATE_MAX_PPS, Schedule, Spec, TIME_MAX, Transport,
};

use crate::{Error, interrupt};
use call::{Call, Running};
use frame::Template;
use interface::Interface;
use program::Program;
use report::Span;

/// Behind each SYN, before the program cuts it to its length: only these have answers, and a cut costs
/// a tenth of the rate.
const SPARE_BYTES: usize = 4;
/// How often a running blast is looked after. It ends by itself, to the frame;
/// this only decides when the call is told to return.
const LOOK: Duration = Duration::from_millis(5);

/// A call that has not ended this long after its time bound never got its CPU.
const GRACE: Duration = Duration::from_secs(1);

/// Ends a blast early, from any thread: clones stop the same blasts.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Not stopped.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the blasts that run with this handle within some milliseconds, and
    /// later ones at once. Async-signal-safe.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed) || interrupt::requested()
    }
}

/// A generator that is loaded and ready to start.
#[derive(Debug)]
pub struct Blast {
    spec: Spec,
    frame: Vec<u8>,
    program: Program,
}

impl Blast {
    /// Checks the spec, finds the interface in the calling thread's network
    /// namespace, and loads the generator.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for the spec; [`Error::UnfitInterface`] if the
    /// interface may not or cannot be sent on; [`Error::NotRoot`] and
    /// [`Error::MissingKernelFeature`] for the machine; otherwise [`Error::Io`].
    pub fn load(spec: &Spec) -> Result<Self, Error> {
        spec.validate()?;
        if !geteuid().is_root() {
            return Err(Error::NotRoot);
        }
        let interface = Interface::find(spec)?;
        let template = Template::new(&spec.flow, interface.mac, spec.destination_mac);
        let spare_bytes = match spec.flow.transport {
            Transport::TcpSyn => SPARE_BYTES,
            _ => 0,
        };
        let blast = Self {
            program: Program::load(spec, &template, interface.index)?,
            frame: [template.bytes, vec![0; spare_bytes]].concat(),
            spec: spec.clone(),
        };
        blast.probe()?;
        Ok(blast)
    }

    /// Sends, and returns when the blast has ended: by a bound, by `stop`, or
    /// by a signal that [`interrupt`] catches. Must be called in the namespace
    /// that the interface was found in.
    ///
    /// The work is done by a thread of its own, which gets the spec's CPU and
    /// priority; the caller's are left alone. May be called again: each run
    /// starts the seed's sequence anew.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the thread cannot be set up or the kernel refuses.
    ///
    /// # Panics
    ///
    /// If the generator's thread does.
    pub fn run(&mut self, stop: &Stop) -> Result<Report, Error> {
        self.program.arm(self.spec.seed);
        let result = self.send(stop);
        let (progress, errors) = self.program.outcome();
        let report = result.and_then(|span| Report::new(&self.spec, &progress, span, errors));
        self.program.disarm();
        report
    }

    /// Returns when the call began, and when it was told to end.
    fn send(&self, stop: &Stop) -> Result<Span, Error> {
        let began_ns = monotonic_ns();
        let running = Running::start(self.call()?)?;
        let end = Instant::now() + self.spec.bound.time + GRACE;
        let (mut outcome, mut told_ns) = (Ok(()), None);
        while !running.is_finished() {
            let finished = self.program.is_finished().unwrap_or_else(|error| {
                outcome = Err(error);
                true
            });
            if finished || stop.requested() || Instant::now() >= end {
                told_ns.get_or_insert_with(monotonic_ns);
                running.interrupt();
            }
            // The thread unparks this one when it ends.
            thread::park_timeout(LOOK);
        }
        running.join().and(outcome)?;
        let told_ns = told_ns.unwrap_or_else(monotonic_ns);
        Ok(Span { began_ns, told_ns })
    }

    /// One run of the disarmed program tells whether the kernel has live frames.
    fn probe(&self) -> Result<(), Error> {
        self.call()?.probe().map_err(|errno| match errno {
            Errno::EINVAL => Error::MissingKernelFeature {
                feature: "live frames in BPF_PROG_TEST_RUN (Linux 5.18)",
                detail: errno.to_string(),
            },
            _ => Error::io("try the generator")(errno),
        })
    }

    fn call(&self) -> Result<Call, Error> {
        Ok(Call {
            program: self.program.descriptor()?,
            frame: self.frame.clone(),
            batch_runs: program::batch_runs(&self.spec),
            cpu: self.spec.cpu,
            priority: self.spec.priority,
        })
    }
}
