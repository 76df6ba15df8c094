//! The recorder: BPF programs at all sources, and what they wrote.

#![allow(unsafe_code, reason = "the mapping of the recorder's array")]

use std::fmt;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags};
use memmap2::{Mmap, MmapOptions};
use nix::unistd::getppid;
use plimsoll_kernel::clock::monotonic_ns;
use plimsoll_kernel::error::{bpf_remedy, remedy};

use crate::analysis::State;
use crate::faults::FaultCounts;
use crate::source::Source;

include!(concat!(env!("OUT_DIR"), "/triggers.rs")); // mod skeleton

use skeleton::types;

const ONLINE_CPUS: &str = "/sys/devices/system/cpu/online";
/// Of a state's word: its source.
const SOURCE_BITS: u32 = types::state_word::SOURCE_BITS.0;

// The program and `Source` number sources alike.
const _: () = {
    use types::source as C;

    let in_c = [
        C::SOURCE_SYSTEM_CALL,
        C::SOURCE_IP_OUTPUT,
        C::SOURCE_NETWORK_SOFTIRQ,
        C::SOURCE_OTHER_SOFTIRQ,
        C::SOURCE_DEVICE_INTERRUPT,
        C::SOURCE_TIMER_INTERRUPT,
        C::SOURCE_OTHER_INTERRUPT,
        C::SOURCE_PAGE_FAULT,
        C::SOURCE_IDLE_ENTRY,
        C::SOURCE_IDLE_EXIT,
    ];
    assert!(in_c.len() == C::SOURCES.0 as usize && in_c.len() == Source::ALL.len());
    let mut place = 0;
    while place < in_c.len() {
        assert!(in_c[place].0 as usize == place && Source::ALL[place] as usize == place);
        place += 1;
    }
};

/// Why nothing was recorded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libbpf's or the kernel's answer.
    #[error("cannot {action}{}", bpf_remedy(.action, .source))]
    Bpf {
        /// What was tried.
        action: &'static str,
        /// The answer.
        source: libbpf_rs::Error,
    },
    /// The kernel's answer to another call.
    #[error("cannot {action}{}", remedy(.action, .source))]
    Os {
        /// What was tried.
        action: &'static str,
        /// The answer.
        source: std::io::Error,
    },
    /// More memory than one map can have.
    #[error("{states} states for each of {cpus} CPUs are more than one map holds: record fewer")]
    Room {
        /// Asked for.
        states: u32,
        /// CPUs up to the highest that is online.
        cpus: usize,
    },
}

impl Error {
    /// Whether this host lacks something: the privilege, or a tracepoint.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Bpf { .. })
    }
}

fn bpf(action: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
    move |source| Error::Bpf { action, source }
}

/// What was recorded.
#[derive(Clone, Debug)]
pub struct Record {
    /// Each CPU's states in the order of time.
    pub cpus: Vec<Vec<State>>,
    /// States that found no room, of all CPUs.
    pub lost: u64,
}

/// How many states each CPU had passed ([`Recorder::reached`]).
#[derive(Clone, Debug)]
pub struct Reached(Vec<u64>);

/// Programs at every source. They record from [`Recorder::start`] on and end
/// with it. Needs root.
pub struct Recorder {
    /// Before the program that they are of.
    _faults: Vec<Link>,
    skeleton: skeleton::TriggersSkel<'static>,
    array: Mmap,
    /// Those that the kernel has counters for.
    possible_cpus: usize,
    /// Those that have room, the first ones.
    cpus: usize,
    room: usize,
    /// On the clock of the states.
    started_ns: u64,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("cpus", &self.cpus)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

impl Recorder {
    /// Attaches the programs, with room for `states` states per CPU (8 bytes
    /// each). A CPU whose room is used up records no more. One that comes online later, with a
    /// higher number than all before, has no room.
    ///
    /// # Errors
    ///
    /// [`Error::Bpf`] without root, or where the kernel lacks a tracepoint.
    pub fn attach(states: u32) -> Result<Self, Error> {
        let possible_cpus = libbpf_rs::num_possible_cpus().map_err(bpf("count the CPUs"))?;
        let online = fs::read_to_string(ONLINE_CPUS).ok();
        let cpus = online.and_then(|list| up_to_highest(&list));
        let cpus = cpus.map_or(possible_cpus, |cpus| cpus.min(possible_cpus));
        let room = Error::Room { states, cpus };
        let places = u32::try_from(cpus)
            .ok()
            .and_then(|cpus| cpus.checked_mul(states));
        let places = places.filter(|&places| places > 0).ok_or(room)?;
        // Never dropped: one per process and measurement.
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = skeleton::TriggersSkelBuilder::default()
            .open(object)
            .map_err(bpf("open the recorder"))?;
        if let Some(constants) = open.maps.rodata_data.as_mut() {
            constants.room = states;
        }
        open.maps
            .states
            .set_max_entries(places)
            .map_err(bpf("make room for the states"))?;
        let faults = FaultCounts::open(cpus).ok();
        enable_what_exists(&mut open, faults.is_some());
        let mut skeleton = open.load().map_err(bpf("load the recorder (as root)"))?;
        skeleton.attach().map_err(bpf("attach the recorder"))?;
        let faults = faults.map_or(Ok(Vec::new()), |faults| {
            faults.attach(&skeleton.progs.on_fault_end)
        });
        let faults = faults.map_err(bpf("attach the recorder to page faults"))?;
        // SAFETY: the descriptor is a map with BPF_F_MMAPABLE, which keeps its
        // memory as long as it is mapped. The programs write whole words.
        let array = unsafe {
            MmapOptions::new()
                .len(places as usize * 8)
                .map(skeleton.maps.states.as_fd().as_raw_fd())
        };
        let array = array.map_err(|source| Error::Os {
            action: "map the recorded states",
            source,
        })?;
        Ok(Self {
            _faults: faults,
            skeleton,
            array,
            possible_cpus,
            cpus,
            room: states as usize,
            started_ns: 0,
        })
    }

    /// Forgets what was recorded and starts.
    ///
    /// # Errors
    ///
    /// The counters cannot be written.
    pub fn start(&mut self) -> Result<(), Error> {
        self.enable(0);
        let zeros = vec![0_u64.to_ne_bytes().to_vec(); self.possible_cpus];
        self.skeleton
            .maps
            .reached
            .update_percpu(&0_u32.to_ne_bytes(), &zeros, MapFlags::ANY)
            .map_err(bpf("reset the counters"))?;
        self.started_ns = monotonic_ns();
        self.enable(1);
        Ok(())
    }

    /// Stops and reads what was recorded.
    ///
    /// # Errors
    ///
    /// The counters cannot be read.
    pub fn stop(&mut self) -> Result<Record, Error> {
        self.enable(0);
        let reached = self.reached()?;
        Ok(self.read(&reached))
    }

    /// How far it has come. The programs go on, as what they cost does, and what they record
    /// from now on is not in [`Recorder::read`] of this.
    ///
    /// # Errors
    ///
    /// The counters cannot be read.
    pub fn reached(&self) -> Result<Reached, Error> {
        let counts = self
            .skeleton
            .maps
            .reached
            .lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf("read the counters"))?
            .unwrap_or_default();
        let counts = counts.iter().map(|count| word(count).unwrap_or(0));
        Ok(Reached(counts.collect()))
    }

    /// What was recorded from the last start up to there.
    #[must_use]
    pub fn read(&self, reached: &Reached) -> Record {
        let mut record = Record {
            cpus: Vec::new(),
            lost: 0,
        };
        for (cpu, &count) in reached.0.iter().enumerate() {
            let count = count as usize;
            let has_room = cpu < self.cpus;
            let kept = if has_room { count.min(self.room) } else { 0 };
            record.lost += (count - kept) as u64;
            if has_room {
                record.cpus.push(self.states(cpu, kept));
            }
        }
        record
    }

    /// The first `kept` states of a CPU. An interrupt's state may have been
    /// written after that of the state it interrupted: order is by time.
    fn states(&self, cpu: usize, kept: usize) -> Vec<State> {
        let start = cpu * self.room * 8;
        let words = self.array[start..start + kept * 8].chunks_exact(8);
        let mut states: Vec<State> = words
            .filter_map(|bytes| state(word(bytes)?, self.started_ns))
            .collect();
        states.sort_by_key(|state| state.at_ns);
        states
    }

    fn enable(&mut self, enabled: u32) {
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.enabled = enabled;
        }
    }
}

/// CPUs from number 0 up to the highest of the kernel's list, for example 8 of `0-3,7`. A virtual
/// machine may have hundreds of possible CPUs that are never there.
fn up_to_highest(list: &str) -> Option<usize> {
    let highest = list.trim().rsplit([',', '-']).next()?;
    highest.parse::<usize>().ok()?.checked_add(1)
}

/// A state's word; nothing if what stands there is older than the record. A place is taken before
/// it is written, and a program that was interrupted between the two has not written its own yet.
fn state(word: u64, started_ns: u64) -> Option<State> {
    let source = (word & ((1 << SOURCE_BITS) - 1)) as usize;
    let state = State {
        at_ns: word >> SOURCE_BITS,
        source: *Source::ALL.get(source)?,
    };
    (state.at_ns >= started_ns).then_some(state)
}

/// The word at the start of `bytes`.
fn word(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.first_chunk()?))
}

/// Tracepoints of page faults and of interrupts without a handler of a device's
/// do not exist on every machine. Those of faults are not wanted where their ends are
/// counted.
fn enable_what_exists(open: &mut skeleton::OpenTriggersSkel<'_>, fault_ends: bool) {
    let kernel = libbpf_rs::btf::Btf::from_vmlinux();
    let exists = |tracepoint: &str| {
        kernel.as_ref().is_ok_and(|btf| {
            let name = format!("btf_trace_{tracepoint}");
            btf.type_by_name::<libbpf_rs::btf::types::Typedef<'_>>(&name)
                .is_some()
        })
    };
    let programs = &mut open.progs;
    for (program, tracepoint) in [
        (&mut programs.on_timer_interrupt, "local_timer_exit"),
        (&mut programs.on_reschedule, "reschedule_exit"),
        (&mut programs.on_call_function, "call_function_exit"),
        (
            &mut programs.on_call_function_single,
            "call_function_single_exit",
        ),
    ] {
        program.set_autoload(exists(tracepoint));
    }
    for (program, tracepoint) in [
        (&mut programs.on_user_fault, "page_fault_user"),
        (&mut programs.on_kernel_fault, "page_fault_kernel"),
    ] {
        program.set_autoload(!fault_ends && exists(tracepoint));
    }
}

/// What the probes cost: system calls that do nothing, timed without the
/// recorder and with it, in turns.
#[derive(Clone, Copy, Debug)]
pub struct ProbeCost {
    /// Of one system call, in ns.
    pub without_ns: f64,
    /// Of one system call that is recorded, in ns.
    pub with_ns: f64,
}

impl ProbeCost {
    /// Measures for some tens of milliseconds. The least of several rounds
    /// counts, since everything else only adds.
    ///
    /// # Errors
    ///
    /// As [`Recorder::attach`].
    pub fn measure() -> Result<Self, Error> {
        const ROUNDS: u32 = 8;
        let mut cost = Self {
            without_ns: f64::INFINITY,
            with_ns: f64::INFINITY,
        };
        for _ in 0..ROUNDS {
            cost.without_ns = cost.without_ns.min(system_call_ns());
            let mut recorder = Recorder::attach(1 << 16)?;
            recorder.start()?;
            cost.with_ns = cost.with_ns.min(system_call_ns());
        }
        Ok(cost)
    }

    /// What one recorded state costs, in ns.
    #[must_use]
    pub fn per_state_ns(self) -> f64 {
        (self.with_ns - self.without_ns).max(0.0)
    }
}

fn system_call_ns() -> f64 {
    const CALLS: u32 = 10_000;
    let start = Instant::now();
    for _ in 0..CALLS {
        std::hint::black_box(getppid());
    }
    nanos(start.elapsed()) / f64::from(CALLS)
}

fn nanos(span: Duration) -> f64 {
    span.as_secs_f64() * 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It had been a state at the machine's start, and an interval as long as the machine was up.
    #[test]
    fn a_place_that_was_taken_and_not_written_is_no_state() {
        let word = |at_ns: u64, source: Source| at_ns << SOURCE_BITS | source as u64;
        let written = state(word(5_000, Source::IpOutput), 4_000).unwrap();
        assert_eq!((written.at_ns, written.source), (5_000, Source::IpOutput));
        assert_eq!(state(0, 4_000), None, "never written");
        assert_eq!(
            state(word(3_999, Source::IpOutput), 4_000),
            None,
            "of before"
        );
        assert_eq!(state(word(5_000, Source::SystemCall) | 15, 4_000), None);
    }

    #[test]
    fn memory_is_for_cpus_up_to_the_highest_that_is_online() {
        for (list, cpus) in [("0\n", 1), ("0-1\n", 2), ("0-3,7\n", 8), ("0,2-4,9", 10)] {
            assert_eq!(up_to_highest(list), Some(cpus), "{list}");
        }
        assert_eq!(up_to_highest("\n"), None);
        assert_eq!(up_to_highest("none"), None);
    }
}
