//! Where each CPU's time goes and how full the receive ring gets, by
//! tracepoints (`bpf/meter.bpf.c`): what the governor decides by.
//!
//! Exact to the nanosecond where ticks are blind: a timer that polls every 30
//! microseconds is over before any tick samples it. Costs some 50 ns for each
//! interrupt and softirq and for switches between a process and something else.
//!
//! Limits: the network account holds all interfaces' work of a CPU; frames and
//! runs are the guarded interface's. Whatever a process does in system calls
//! (sending included) is the process's own.

#![allow(unsafe_code, reason = "the reading of map values as C structs")]

use std::fmt;
use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ErrorKind, Link, MapCore, MapFlags};
use nix::time::{ClockId, clock_gettime};

use crate::error::{Error, bpf};
use crate::link;
use crate::mapped::{Plain, read_struct};
use crate::namespace;

include!(concat!(env!("OUT_DIR"), "/meter.rs")); // mod skeleton

use skeleton::types;

// SAFETY: generated from a struct of meter.h that holds integers only.
unsafe impl Plain for types::cpu {}

/// Reads in a row that may meet a change before one is taken as it is. Few: each
/// costs a system call, and a CPU's books are open for a small part of the time.
const TRIES: u32 = 16;

/// Accounts in the program's order (`enum account` in meter.h).
#[derive(Clone, Copy)]
enum Account {
    Network,
    Idle,
    Other,
}

/// One CPU's books since the meter's start. The three times sum to the time
/// since the CPU's first event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuReading {
    /// The CPU's number.
    pub cpu: u32,
    /// Network softirqs, their interrupts, and polling threads, in nanoseconds.
    pub network_ns: u64,
    /// Nothing to run, in nanoseconds.
    pub idle_ns: u64,
    /// Processes, other kernel threads and interrupts, in nanoseconds.
    pub other_ns: u64,
    /// Frames the guarded interface was polled for here.
    pub frames: u64,
    /// Polling runs, each until the receive ring was empty.
    pub runs: u64,
    /// Most frames in one run since the reading before: those found waiting
    /// and those that came meanwhile.
    pub backlog_max: u32,
}

/// One CPU's books as last read.
struct Book {
    cpu: types::cpu,
    at_ns: u64,
    /// It did not change between two reads.
    is_settled: bool,
}

impl Book {
    fn read_again(&mut self, cpu: types::cpu, at_ns: u64) {
        if self.is_settled {
            return;
        }
        self.is_settled = self.cpu.sequence == cpu.sequence && cpu.sequence.is_multiple_of(2);
        self.cpu = cpu;
        self.at_ns = at_ns;
    }
}

/// The attached tracepoints of all CPUs.
pub struct CpuMeter {
    skeleton: skeleton::MeterSkel<'static>,
    _links: Vec<Link>,
}

impl fmt::Debug for CpuMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuMeter").finish_non_exhaustive()
    }
}

impl CpuMeter {
    /// Starts metering; frames and runs are those of `interface` in the current
    /// network namespace.
    ///
    /// # Errors
    ///
    /// No such interface, or libbpf's answer.
    pub fn start(interface: &str) -> Result<Self, Error> {
        let ifindex = link::index(interface)?;
        let namespace = namespace::inode().map_err(|source| Error::Os {
            action: "identify the network namespace",
            source,
        })?;
        let (skeleton, links) = load(ifindex, namespace).map_err(bpf("load the CPU meter"))?;
        Ok(Self {
            skeleton,
            _links: links,
        })
    }

    /// Reads all CPUs that have had an event.
    ///
    /// # Errors
    ///
    /// The map cannot be read.
    pub fn read(&mut self) -> Result<Vec<CpuReading>, Error> {
        let readings = self.peek()?;
        let settings = &mut self.variables_mut().meter_settings;
        settings.generation = settings.generation.wrapping_add(1);
        Ok(readings)
    }

    /// As [`CpuMeter::read`], without a new beginning for `backlog_max`.
    ///
    /// # Errors
    ///
    /// The map cannot be read.
    pub fn peek(&self) -> Result<Vec<CpuReading>, Error> {
        let cpus = self.consistent()?;
        Ok((0..)
            .zip(&cpus)
            .filter(|(_, book)| book.cpu.since_ns != 0)
            .map(|(number, book)| self.reading(number, &book.cpu, book.at_ns))
            .collect())
    }

    fn reading(&self, number: u32, cpu: &types::cpu, now_ns: u64) -> CpuReading {
        let mut account_ns = cpu.account_ns;
        // What runs since the last event has not been booked yet.
        if let Some(running) = account_ns.get_mut(cpu.account as usize) {
            *running += now_ns.saturating_sub(cpu.since_ns);
        }
        let is_current = cpu.generation == self.variables().meter_settings.generation;
        CpuReading {
            cpu: number,
            network_ns: account_ns[Account::Network as usize],
            idle_ns: account_ns[Account::Idle as usize],
            other_ns: account_ns[Account::Other as usize],
            frames: cpu.frames,
            runs: cpu.runs,
            backlog_max: if is_current { cpu.backlog_max } else { 0 },
        }
    }

    /// All CPUs' books, none of them while it is being written: two reads with
    /// the same sequence number. Each CPU is settled by itself, since on some
    /// host some CPU's books always change.
    fn consistent(&self) -> Result<Vec<Book>, Error> {
        let mut books = self.books()?;
        for _ in 0..TRIES {
            let at_ns = monotonic_ns();
            for (book, cpu) in books.iter_mut().zip(self.cpus()?) {
                book.read_again(cpu, at_ns);
            }
            if books.iter().all(|book| book.is_settled) {
                break;
            }
        }
        Ok(books)
    }

    fn books(&self) -> Result<Vec<Book>, Error> {
        let at_ns = monotonic_ns();
        let first = |cpu| Book {
            cpu,
            at_ns,
            is_settled: false,
        };
        Ok(self.cpus()?.into_iter().map(first).collect())
    }

    fn cpus(&self) -> Result<Vec<types::cpu>, Error> {
        let values = self
            .skeleton
            .maps
            .cpus
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf("read the CPU meter"))?
            .unwrap_or_default();
        Ok(values.iter().map(|value| read_struct(value)).collect())
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

fn load(
    ifindex: u32,
    namespace_inode: u32,
) -> libbpf_rs::Result<(skeleton::MeterSkel<'static>, Vec<Link>)> {
    // The skeleton borrows the place its object lives in. A few leaked bytes
    // per meter are the safe way to own both; the object itself is dropped.
    let place = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = skeleton::MeterSkelBuilder::default().open(place)?;
    if let Some(bss) = open.maps.bss_data.as_deref_mut() {
        bss.meter_settings.ifindex = ifindex;
        bss.meter_settings.namespace_inode = namespace_inode;
        // Books start with generation 0, which is nobody's.
        bss.meter_settings.generation = 1;
    }
    let skeleton = open.load()?;
    let progs = &skeleton.progs;
    let mut links = vec![
        progs.on_switch.attach_trace()?,
        progs.on_softirq_entry.attach_trace()?,
        progs.on_softirq_exit.attach_trace()?,
        progs.on_softirq_raise.attach_trace()?,
        progs.on_irq_entry.attach_trace()?,
        progs.on_irq_exit.attach_trace()?,
        progs.on_poll.attach_trace()?,
    ];
    for (program, tracepoint) in [
        (&progs.on_timer_entry, "local_timer_entry"),
        (&progs.on_timer_exit, "local_timer_exit"),
    ] {
        match program.attach_raw_tracepoint(tracepoint) {
            Ok(link) => links.push(link),
            // Only x86 has them; elsewhere the timer is an ordinary interrupt.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok((skeleton, links))
}

/// The time by the clock that `bpf_ktime_get_ns` reads, in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| {
        u64::try_from(std::time::Duration::from(now).as_nanos()).unwrap_or(u64::MAX)
    })
}
