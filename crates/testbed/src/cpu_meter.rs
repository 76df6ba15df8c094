//! Exact CPU time of one CPU by kind: the accounts of a host under overload.
//!
//! `/proc/stat` samples at the tick, and on kernels without
//! `CONFIG_IRQ_TIME_ACCOUNTING` a process is charged for softirqs that ran on
//! top of it. At a holdoff of some microseconds both are useless. A small BPF
//! program books every nanosecond from the scheduler's and the interrupts'
//! tracepoints instead:
//!
//! | account | what |
//! | --- | --- |
//! | network | `NET_RX` and `NET_TX` softirqs wherever they run, interrupts that raise `NET_RX`, the polling threads (`napi/*`) and `ksoftirqd` |
//! | app | user processes, their system calls included |
//! | other | softirqs of other kinds and all other kernel threads |
//! | idle | nothing to run |
//!
//! Other interrupts count as what they interrupt. The accounts sum to the time
//! passed, exactly. A system call that sends is the application's, as it is in
//! the kernel's own accounting.
//!
//! # Limits
//!
//! The meter runs a program at each event and so costs the metered CPU time, on
//! the account being booked. How much has not been measured beyond noise: single
//! runs under floods with threaded polling agreed within about 5 % in most
//! cases, while at a holdoff of 10 µs (100,000 timer interrupts a second) the
//! one comparison made had well under half the goodput with the meter, where
//! runs without it differed threefold among themselves. Leave it off in runs
//! that only count packets.
#![allow(unsafe_code)] // Reads the program's variables through shared memory.

use std::fmt;
use std::mem::MaybeUninit;
use std::thread;
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ErrorKind, Link};
use nix::time::{ClockId, clock_gettime};

use plimsoll_kernel::namespace::pin;

use crate::{Error, interrupt, testbed};

include!(concat!(env!("OUT_DIR"), "/cpu_meter.rs")); // mod skeleton

/// How many processes can be watched at once.
pub const WATCHED_MAX: usize = 8;

/// Index of an account, as in the BPF program.
#[derive(Clone, Copy)]
enum Account {
    App,
    Network,
    Other,
    Idle,
}

/// A running meter. Dropping it detaches the program.
pub struct CpuMeter {
    cpu: usize,
    skeleton: skeleton::CpuMeterSkel<'static>,
    _links: Vec<Link>,
}

impl fmt::Debug for CpuMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuMeter")
            .field("cpu", &self.cpu)
            .finish_non_exhaustive()
    }
}

impl CpuMeter {
    /// Starts metering `cpu`.
    ///
    /// # Errors
    ///
    /// [`Error::MissingCpu`]; [`Error::MissingKernelFeature`] if the kernel
    /// refuses the program, which needs BTF and BPF tracing; [`Error::Timeout`] if the CPU does not
    /// schedule anything for seconds, because a real-time task holds it.
    pub fn start(cpu: usize) -> Result<Self, Error> {
        testbed::require_cpu(cpu)?;
        let (skeleton, links) = load(cpu).map_err(|error| Error::MissingKernelFeature {
            feature: "BTF and BPF tracing (CONFIG_DEBUG_INFO_BTF, CONFIG_BPF_EVENTS)",
            detail: format!("cpu_meter: {error}"),
        })?;
        let meter = Self {
            cpu,
            skeleton,
            _links: links,
        };
        meter.provoke_first_event()?;
        Ok(meter)
    }

    /// The CPU that is metered.
    #[must_use]
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// Also books the time of process `pid` (all its threads) on its own, from
    /// now on. It stays part of the application account.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] beyond [`WATCHED_MAX`] processes.
    pub fn watch(&mut self, pid: u32) -> Result<(), Error> {
        let pids = &mut self.variables_mut().watched_pids;
        let free = pids.iter_mut().find(|watched| **watched == 0);
        let slot = free.ok_or_else(|| Error::Config {
            field: "watched processes",
            given: (WATCHED_MAX + 1).to_string(),
            allowed: "at most 8",
        })?;
        *slot = pid;
        Ok(())
    }

    /// The accounts so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let (state, now_ns) = self.read();
        let mut snapshot = Snapshot {
            at_ns: now_ns,
            account_ns: state.account_ns,
            watched_pids: self.variables().watched_pids,
            watched_ns: state.watched_ns,
        };
        // What runs since the last event has not been booked yet.
        let running_ns = now_ns.saturating_sub(state.since_ns);
        snapshot.at_ns = state.since_ns + running_ns;
        snapshot.account_ns[state.account as usize] += running_ns;
        if state.account == Account::App as u32
            && let Some(watched_ns) = snapshot.watched_ns.get_mut(state.watched as usize)
        {
            *watched_ns += running_ns;
        }
        snapshot
    }

    /// A state between two events, and the time just after it was read.
    fn read(&self) -> (skeleton::types::state, u64) {
        let shared = &raw const self.variables().state;
        loop {
            // SAFETY: `shared` points into the program's variables, mapped for
            // as long as the skeleton lives. The program may write meanwhile;
            // the sequence number tells, and then the copy is thrown away.
            let before = unsafe { shared.read_volatile() };
            let now_ns = monotonic_ns();
            // SAFETY: as above.
            let after = unsafe { shared.read_volatile() };
            if before.sequence % 2 == 0 && before.sequence == after.sequence {
                return (before, now_ns);
            }
            std::hint::spin_loop();
        }
    }

    /// The first event is a task switch: makes one on the metered CPU.
    fn provoke_first_event(&self) -> Result<(), Error> {
        let cpu = self.cpu;
        let nap = move || -> nix::Result<()> {
            pin(cpu)?;
            thread::sleep(Duration::from_millis(1));
            Ok(())
        };
        let nap = thread::spawn(nap);
        let what = format!("a task switch on CPU {cpu}");
        interrupt::wait_for(&what, Duration::from_secs(5), || {
            Ok((self.read().0.since_ns != 0).then_some(()))
        })?;
        nap.join()
            .unwrap_or_else(|payload| std::panic::resume_unwind(payload))
            .map_err(Error::io(format!("run on CPU {cpu}")))
    }

    fn variables(&self) -> &skeleton::types::bss {
        let variables = self.skeleton.maps.bss_data.as_deref();
        variables.expect("the program has variables")
    }

    fn variables_mut(&mut self) -> &mut skeleton::types::bss {
        let variables = self.skeleton.maps.bss_data.as_deref_mut();
        variables.expect("the program has variables")
    }
}

fn load(cpu: usize) -> libbpf_rs::Result<(skeleton::CpuMeterSkel<'static>, Vec<Link>)> {
    // The skeleton borrows the place its object lives in. A few leaked bytes
    // per meter are the safe way to own both; the object itself is dropped.
    let place = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = skeleton::CpuMeterSkelBuilder::default().open(place)?;
    let constants = open.maps.rodata_data.as_deref_mut();
    constants.expect("the program has constants").metered_cpu =
        u32::try_from(cpu).unwrap_or(u32::MAX);
    let skeleton = open.load()?;
    let progs = &skeleton.progs;
    let mut links = vec![
        progs.on_softirq_entry.attach_trace()?,
        progs.on_softirq_exit.attach_trace()?,
        progs.on_softirq_raise.attach_trace()?,
        progs.on_irq_entry.attach_trace()?,
        progs.on_irq_exit.attach_trace()?,
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
    // Last: it starts the clock.
    links.push(progs.on_switch.attach_trace()?);
    Ok((skeleton, links))
}

/// The clock that `bpf_ktime_get_ns` reads.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    u64::try_from(Duration::from(now).as_nanos()).expect("584 years")
}

/// The accounts of a CPU since its meter was started.
#[derive(Clone, Debug)]
pub struct Snapshot {
    at_ns: u64,
    account_ns: [u64; 4],
    watched_pids: [u32; WATCHED_MAX],
    watched_ns: [u64; WATCHED_MAX],
}

impl Snapshot {
    /// What was booked between `earlier` and this snapshot of the same meter.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> CpuTime {
        let account = |account: Account| {
            let index = account as usize;
            Duration::from_nanos(self.account_ns[index].saturating_sub(earlier.account_ns[index]))
        };
        let watched = (0..WATCHED_MAX).filter(|&slot| self.watched_pids[slot] != 0);
        CpuTime {
            elapsed: Duration::from_nanos(self.at_ns.saturating_sub(earlier.at_ns)),
            app: account(Account::App),
            network: account(Account::Network),
            other: account(Account::Other),
            idle: account(Account::Idle),
            processes: watched
                .map(|slot| ProcessTime {
                    pid: self.watched_pids[slot],
                    cpu: Duration::from_nanos(
                        self.watched_ns[slot].saturating_sub(earlier.watched_ns[slot]),
                    ),
                })
                .collect(),
        }
    }
}

/// How a CPU spent some time. The four kinds sum to `elapsed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuTime {
    /// The time between the two snapshots.
    pub elapsed: Duration,
    /// User processes.
    pub app: Duration,
    /// Network softirqs and polling threads.
    pub network: Duration,
    /// Other softirqs and kernel threads.
    pub other: Duration,
    /// Nothing to run.
    pub idle: Duration,
    /// The watched processes' parts of `app`.
    pub processes: Vec<ProcessTime>,
}

/// The CPU time of one watched process on the metered CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessTime {
    /// Its process id.
    pub pid: u32,
    /// Its time, without the softirqs and interrupts that ran on top of it.
    pub cpu: Duration,
}

impl CpuTime {
    /// `part` as a fraction of the elapsed time.
    #[must_use]
    pub fn share(&self, part: Duration) -> f64 {
        part.as_secs_f64() / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}
