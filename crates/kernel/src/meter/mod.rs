//! Where each CPU's time goes and how full the receive ring gets, by
//! tracepoints (`bpf/meter.bpf.c`): the one meter of the guard, which decides by
//! it, and of the testbed, which measures the guard with it.
//!
//! `/proc/stat` samples at the tick, and on kernels without
//! `CONFIG_IRQ_TIME_ACCOUNTING` a process is charged for softirqs that ran on top
//! of it. A timer that polls every 30 microseconds is over before any tick samples
//! it. Here every nanosecond is booked instead:
//!
//! | account | what |
//! | --- | --- |
//! | app | user processes, their system calls included |
//! | network | `NET_RX` and `NET_TX` softirqs wherever they run, interrupts that raise `NET_RX`, the polling threads (`napi/*`, `backlog_napi/*`) and `ksoftirqd` |
//! | other | softirqs of other kinds and all other kernel threads |
//! | idle | nothing to run |
//!
//! A task that preempts a softirq, as `PREEMPT_RT` lets it, has time of its own. (Shown by steps of
//! a test; no such kernel was measured.) Other interrupts count as what they interrupt. The accounts
//! sum to the time passed, exactly. A system call that sends is the application's, as it is in the
//! kernel's own accounting.
//!
//! An interrupt by which another CPU wakes a network thread is the network's, from the
//! wake-up to the switch, if the switch follows at once. So the scheduler has it, too
//! (`rq_clock_skip_update` in the kernel's `sched/core.c`), and so a process that
//! reads the clock without end sees it (`crates/testbed/tests/cpu_meter.rs`): 3 to
//! 10 µs for each wake-up on a virtual machine, where the hypervisor stops the CPU for it. The way
//! back from the thread to the process, about 0.5 µs, is the process's.
//!
//! # Limits
//!
//! A program runs at each event and so costs the metered CPU time, on the account
//! being booked: some 50 ns for each interrupt and softirq and for switches between
//! accounts. Metering can pause ([`CpuMeter::pause`]); then events cost a look at one word
//! each. The network account holds all interfaces' work of a CPU; frames and
//! runs are one interface's.

#![allow(unsafe_code, reason = "map values are read as C structs")]

mod reading;
#[cfg(test)]
mod steps;

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ErrorKind, Link};

pub use reading::{CpuReading, CpuTime, InstanceReading, ProcessTime};

use crate::clock::monotonic_ns;
use crate::error::{CallError, FAILED, LACKS, bpf, os};
use crate::link::{self, NoSuchInterface};
use crate::mapped::{Mapped, Plain};
use crate::namespace::{self, pin};

include!(concat!(env!("OUT_DIR"), "/meter.rs")); // mod skeleton

use skeleton::types;

// SAFETY: generated from a struct of meter.h that holds integers only.
unsafe impl Plain for types::cpu {}
// SAFETY: as above.
unsafe impl Plain for types::instance {}

/// How many processes can be watched at once.
pub const WATCHED_MAX: usize = types::meter_limit::WATCHED.0 as usize;

/// Reads in a row that may meet a change before one is taken as it is: a CPU's
/// books are open for a small part of the time.
const TRIES: u32 = 64;

/// How long a CPU may schedule nothing at all.
const PATIENCE: Duration = Duration::from_secs(5);

/// Interrupts that do not come through `irq_handler_entry`: the timer of x86, and those
/// by which its CPUs tell each other of work.
#[cfg(target_arch = "x86_64")]
const VECTORS: &[(&str, &str)] = &[
    ("local_timer_entry", "local_timer_exit"),
    ("reschedule_entry", "reschedule_exit"),
    ("call_function_single_entry", "call_function_single_exit"),
    ("call_function_entry", "call_function_exit"),
    ("irq_work_entry", "irq_work_exit"),
];
/// Interrupts that do not come through `irq_handler_entry`: those by which CPUs tell each
/// other of work.
#[cfg(not(target_arch = "x86_64"))]
const VECTORS: &[(&str, &str)] = &[("ipi_entry", "ipi_exit")];

/// What is metered. By default all CPUs' accounts, and no more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Only this CPU.
    pub cpu: Option<usize>,
    /// Frames and polling runs of this interface of the current network namespace.
    pub interface: Option<&'a str>,
    /// Processes can be watched ([`CpuMeter::watch`]).
    pub watches: bool,
}

/// The attached tracepoints. Dropping them ends the metering.
pub struct CpuMeter {
    skeleton: skeleton::MeterSkel<'static>,
    cpus: Mapped<types::cpu>,
    instances: Mapped<types::instance>,
    /// The only CPU that is metered.
    cpu: Option<usize>,
    watches: bool,
    polls: bool,
    /// None while detached.
    links: Vec<Link>,
}

impl fmt::Debug for CpuMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuMeter").finish_non_exhaustive()
    }
}

/// Why CPU time is not metered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeterError {
    /// There is no such interface.
    #[error(transparent)]
    Interface(#[from] NoSuchInterface),
    /// A CPU that is not online, or that this process may not use.
    #[error("CPU {cpu} is not this process's to use: `taskset -p $$` shows those that are")]
    NoSuchCpu {
        /// Its number.
        cpu: usize,
    },
    /// Nothing else gets to run on the CPU.
    #[error(
        "CPU {cpu} has scheduled nothing for seconds: a real-time task holds it (`ps -eLo cls,psr,comm` shows it), end that one first"
    )]
    CpuHeld {
        /// Its number.
        cpu: usize,
    },
    /// The meter's program cannot be loaded or read.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl MeterError {
    /// The exit code of a command that ends by it.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::NoSuchCpu { .. } => LACKS,
            Self::Interface(_) | Self::CpuHeld { .. } | Self::Call(_) => FAILED,
        }
    }
}

impl CpuMeter {
    /// Starts metering. A CPU's books begin with its first task switch or softirq, which
    /// tells what has run there since the start; for a single CPU this waits until there
    /// was one.
    ///
    /// # Errors
    ///
    /// No such interface or CPU; libbpf's answer; [`MeterError::CpuHeld`].
    pub fn start(options: Options<'_>) -> Result<Self, MeterError> {
        if let Some(cpu) = options.cpu {
            require_cpu(cpu)?;
        }
        let polled = match options.interface {
            Some(interface) => {
                let namespace = namespace::inode().map_err(os("identify the network namespace"))?;
                Some((link::index(interface)?, namespace))
            }
            None => None,
        };
        let skeleton = load(&options, polled).map_err(bpf("load the CPU meter"))?;
        let mut meter = Self {
            cpus: Mapped::of(&skeleton.maps.cpus)?,
            instances: Mapped::of(&skeleton.maps.instances)?,
            skeleton,
            cpu: options.cpu,
            watches: options.watches,
            polls: polled.is_some(),
            links: Vec::new(),
        };
        meter.attach()?;
        if let Some(cpu) = options.cpu {
            provoke_switch(cpu)?;
        }
        Ok(meter)
    }

    /// Also books the time of process `pid` (all its threads) on its own, from the
    /// next task switch on, which this waits for if a single CPU is metered. It stays
    /// part of the application account.
    ///
    /// # Panics
    ///
    /// If the meter was started to watch none, or beyond [`WATCHED_MAX`].
    pub fn watch(&mut self, pid: u32) {
        assert!(self.watches, "started with Options::watches");
        let watched = &mut self.variables_mut().meter_settings.watched_pids;
        let free = watched.iter_mut().find(|watched| **watched == 0);
        *free.expect("at most WATCHED_MAX processes") = pid;
        if let Some(cpu) = self.cpu {
            // If a real-time process holds the CPU, it is booked later.
            let _ = provoke_switch(cpu);
        }
    }

    /// Meters again after [`CpuMeter::detach`].
    ///
    /// # Errors
    ///
    /// libbpf's answer; then it stays detached.
    pub fn attach(&mut self) -> Result<(), MeterError> {
        if self.links.is_empty() {
            // Time that nobody saw is nobody's: a new window.
            self.pause();
            let links = attach(&self.skeleton, self.polls);
            self.links = links.map_err(bpf("attach the CPU meter"))?;
        }
        self.resume();
        Ok(())
    }

    /// Whether it is attached to the kernel's tracepoints.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        !self.links.is_empty()
    }

    /// Ends at no cost to anybody what is paused at little: nothing is booked or counted until
    /// [`CpuMeter::attach`], which patches the kernel's code on all CPUs.
    pub fn detach(&mut self) {
        self.pause();
        self.links.clear();
    }

    /// Books nothing until [`CpuMeter::resume`]: the accounts stand still. Frames and
    /// polling runs are counted on.
    pub fn pause(&mut self) {
        self.variables_mut().meter_settings.window_ns = 0;
    }

    /// Begins a window of metering, unless one is under way.
    pub fn resume(&mut self) {
        let settings = &mut self.variables_mut().meter_settings;
        if settings.window_ns == 0 {
            settings.window_ns = monotonic_ns();
        }
    }

    /// Reads all CPUs that have had an event, and begins a new `run_frames_max`.
    pub fn read(&mut self) -> Vec<CpuReading> {
        let readings = self.peek();
        let settings = &mut self.variables_mut().meter_settings;
        settings.generation = settings.generation.wrapping_add(1);
        readings
    }

    /// As [`CpuMeter::read`], without a new beginning for `run_frames_max`.
    #[must_use]
    pub fn peek(&self) -> Vec<CpuReading> {
        (0..self.cpus.len())
            .filter_map(|cpu| self.peek_at(cpu))
            .collect()
    }

    /// What each NAPI instance of the interface has brought, also those that are gone.
    /// Instances whose numbers have the same last eight bits hide each other.
    pub fn instances(&self) -> impl Iterator<Item = InstanceReading> {
        let all = (0..self.instances.len()).map(|place| self.instances.get(place));
        all.filter(|instance| instance.napi_id != 0)
            .map(|instance| InstanceReading {
                napi: instance.napi_id,
                cpu: instance.cpu,
                frames: instance.frames,
            })
    }

    /// One CPU's books; `None` if it has had no event.
    #[must_use]
    pub fn peek_at(&self, cpu: usize) -> Option<CpuReading> {
        let (books, now_ns) = self.settled(cpu);
        let settings = &self.variables().meter_settings;
        (books.window_ns != 0).then(|| CpuReading::new(cpu, &books, now_ns, settings))
    }

    /// As [`CpuMeter::peek_at`] the only CPU that is metered.
    ///
    /// # Panics
    ///
    /// If the meter was started for all CPUs.
    #[must_use]
    pub fn snapshot(&self) -> CpuReading {
        let cpu = self.cpu.expect("started with Options::cpu");
        self.peek_at(cpu).expect("the start waited for an event")
    }

    /// A CPU's books between two events, and the time just after they were read.
    fn settled(&self, cpu: usize) -> (types::cpu, u64) {
        for _ in 0..TRIES {
            let before = self.cpus.get(cpu);
            fence(Ordering::Acquire);
            let now_ns = monotonic_ns();
            let after = self.cpus.get(cpu);
            if before.sequence.is_multiple_of(2) && before.sequence == after.sequence {
                return (before, now_ns);
            }
            std::hint::spin_loop();
        }
        let books = self.cpus.get(cpu);
        (books, monotonic_ns())
    }

    fn variables(&self) -> &types::bss {
        let variables = self.skeleton.maps.bss_data.as_deref();
        variables.expect("the program has a .bss section: its settings are in it")
    }

    fn variables_mut(&mut self) -> &mut types::bss {
        let variables = self.skeleton.maps.bss_data.as_deref_mut();
        variables.expect("the program has a .bss section: its settings are in it")
    }
}

/// `polled`: index of an interface and inode of its network namespace.
fn load(
    options: &Options<'_>,
    polled: Option<(u32, u32)>,
) -> libbpf_rs::Result<skeleton::MeterSkel<'static>> {
    // The skeleton borrows the place its object lives in. A few leaked bytes
    // per meter are the safe way to own both; the object itself is dropped.
    let place = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = skeleton::MeterSkelBuilder::default().open(place)?;
    let constants = open.maps.rodata_data.as_deref_mut();
    let constants = constants.expect("the program has constants");
    if let Some(cpu) = options.cpu {
        constants.metered_cpu = u32::try_from(cpu).unwrap_or(u32::MAX - 1);
    }
    constants.watches_processes = options.watches;
    if let Some((ifindex, namespace_inode)) = polled {
        constants.polled_ifindex = ifindex;
        constants.polled_namespace = namespace_inode;
    }
    if let Some(bss) = open.maps.bss_data.as_deref_mut() {
        // Books start with generation 0, which is nobody's.
        bss.meter_settings.generation = 1;
    }
    let cpus = u32::try_from(libbpf_rs::num_possible_cpus()?).unwrap_or(u32::MAX);
    open.maps.cpus.set_max_entries(cpus)?;
    open.load()
}

fn attach(skeleton: &skeleton::MeterSkel<'static>, polls: bool) -> libbpf_rs::Result<Vec<Link>> {
    let progs = &skeleton.progs;
    let mut links = vec![
        progs.on_softirq_entry.attach_trace()?,
        progs.on_softirq_exit.attach_trace()?,
        progs.on_softirq_raise.attach_trace()?,
        progs.on_waking.attach_trace()?,
        progs.on_wakeup.attach_trace()?,
        progs.on_irq_entry.attach_trace()?,
        progs.on_irq_exit.attach_trace()?,
    ];
    if polls {
        links.push(progs.on_poll.attach_trace()?);
    }
    for (entry, exit) in VECTORS {
        for (program, tracepoint) in [
            (&progs.on_vector_entry, entry),
            (&progs.on_vector_exit, exit),
        ] {
            match program.attach_raw_tracepoint(tracepoint) {
                Ok(link) => links.push(link),
                // The kernel was built without it.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    // Last: it starts the clock.
    links.push(progs.on_switch.attach_trace()?);
    Ok(links)
}

/// Makes a task switch on the CPU.
fn provoke_switch(cpu: usize) -> Result<(), MeterError> {
    let nap = thread::spawn(move || {
        let pinned = pin(cpu);
        thread::sleep(Duration::from_millis(1));
        pinned
    });
    let begun = Instant::now();
    while !nap.is_finished() {
        if begun.elapsed() > PATIENCE {
            return Err(MeterError::CpuHeld { cpu });
        }
        thread::sleep(Duration::from_millis(1));
    }
    let pinned = nap.join();
    let pinned = pinned.unwrap_or_else(|payload| std::panic::resume_unwind(payload));
    Ok(pinned.map_err(os("run on the metered CPU"))?)
}

/// Whether a thread of this process can run there.
fn require_cpu(cpu: usize) -> Result<(), MeterError> {
    let tried = thread::spawn(move || pin(cpu)).join();
    let tried = tried.unwrap_or_else(|payload| std::panic::resume_unwind(payload));
    tried.map_err(|_| MeterError::NoSuchCpu { cpu })
}
