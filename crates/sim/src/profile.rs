//! A machine: what everything costs on it, how large its queues are, and where
//! each number comes from.
//!
//! **Intuition.** The papers' curves follow from a few dozen durations. A profile
//! is the list of these durations for one machine. Each is published, or derived
//! from published ones, or chosen so that one published point comes out right (a
//! *calibration*; at most [`CALIBRATIONS_MAX`] per profile, or the profile says why
//! they are more, and never one per curve). All other published points are then a
//! test of the model. A source that is revised keeps its history.
//!
//! **Limits.** Costs are constant: caches are modelled only where a cost says so. A machine
//! whose profile has `input_refill` remembers when it last worked on input
//! (`src/footprint.rs`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Error;

/// The most published points a profile may be calibrated on without saying why.
pub const CALIBRATIONS_MAX: usize = 3;

/// The fastest clock: a period of 1 µs.
const CLOCK_HZ_MAX: u32 = 1_000_000;
/// The longest queue, as in scenarios.
const QUEUE_MAX: u32 = 1_000_000;
/// The longest duration, a thousand seconds: no sum of such ones is too large.
const COST_MAX_NS: u64 = 1_000_000_000_000;

/// Every cost a profile may give, with what it pays for.
pub const COSTS: &[(&str, &str)] = &[
    (
        "interrupt_enter",
        "from the assertion of a device's interrupt to its handler's first instruction, with saved state and cold caches",
    ),
    (
        "interrupt_exit",
        "from a handler's last instruction back to what it interrupted",
    ),
    (
        "driver_receive",
        "device-level and link-layer work on one received packet, into kernel memory",
    ),
    (
        "vendor_driver",
        "what a packet costs in addition with the vendor's own driver and kernel",
    ),
    (
        "queue_packet",
        "appending a packet to the queue between device level and protocol level and taking it off there",
    ),
    (
        "soft_dispatch",
        "one dispatch of the software interrupt, or of the kernel thread in its place",
    ),
    (
        "protocol_input",
        "IP and transport input of one packet in the context of its receiver, up to the socket queue",
    ),
    (
        "protocol_lookup",
        "the part of protocol_input that looks the socket up",
    ),
    (
        "protocol_control",
        "IP input of a packet that has no socket: control messages, corrupted packets",
    ),
    (
        "eager_penalty",
        "what a delivered packet costs in addition when its protocol work was not done by its receiver, and work on other packets came in between: cold caches",
    ),
    (
        "forward",
        "IP input and forwarding of one packet up to the output queue",
    ),
    (
        "forward_filter",
        "IP input of one packet up to the screening queue, with the wake-up of the screening process",
    ),
    (
        "forward_output",
        "what is left to do for a screened packet: IP output up to the output queue",
    ),
    (
        "source_quench",
        "making an ICMP source quench for a packet that was to be forwarded and found the output queue full, without driver_transmit; default 0: none is made",
    ),
    (
        "port_unreachable",
        "making an ICMP error for a datagram whose port nobody has, beside protocol_input and without driver_transmit; default 0",
    ),
    ("driver_transmit", "handing one packet to the adapter"),
    (
        "transmit_complete",
        "releasing one transmitted packet's buffer and descriptor",
    ),
    (
        "context_switch",
        "changing to a process with cold caches: it slept, or something else ran for as long as this takes",
    ),
    (
        "thread_switch",
        "changing to a kernel thread, or back to a process that is not cold yet; default context_switch",
    ),
    ("wakeup", "making a sleeping thread runnable"),
    ("receive_call", "one receive system call with its copy"),
    (
        "send_call",
        "one send system call through protocol output, without driver_transmit",
    ),
    (
        "clock_tick",
        "one clock interrupt with all periodic work of the system",
    ),
    ("poll_pass", "one visit of a polling loop to one interface"),
    ("poll_start", "starting a polling loop that has been asleep"),
    ("demux", "early demultiplexing of one packet by the host"),
    (
        "discard",
        "discarding one packet that was demultiplexed, or that found a full queue",
    ),
    (
        "adapter_demux",
        "early demultiplexing of one packet by the adapter's own processor",
    ),
    (
        "screen_call",
        "one screening decision: the screening process's system call and its own work",
    ),
    ("capture_filter", "the packet filter on one packet"),
    (
        "capture_read",
        "one read by the capturing process, of all packets that wait",
    ),
    (
        "capture_copy",
        "copying the headers of one captured packet to the output",
    ),
    ("capture_disk", "writing one captured packet to a disk file"),
    (
        "tcp_syn",
        "protocol input of a connection request, with its answer",
    ),
    (
        "tcp_ack",
        "protocol input of an acknowledgement without data",
    ),
    ("tcp_data", "protocol input of a segment with data"),
    (
        "tcp_output",
        "protocol output of one segment, without driver_transmit",
    ),
    (
        "web_accept",
        "accepting and closing one connection in the web server, system calls included",
    ),
    (
        "web_request",
        "what the web server spends on one request, system calls included and protocol work excluded",
    ),
    (
        "web_call",
        "what of web_accept and web_request passes until the next system call or trap ends; default all of it",
    ),
    (
        "timer_off_chip",
        "one interrupt of an off-chip timer with an empty handler",
    ),
    (
        "timer_on_chip",
        "one interrupt of an on-chip timer with an empty handler",
    ),
    ("timer_arm", "arming or cancelling the on-chip timer"),
    (
        "timer_check",
        "the check for due soft events in a trigger state",
    ),
    ("timer_event", "calling the handler of one soft event"),
    (
        "handler_pollution",
        "what an interrupt's handler costs the interrupted program in cache and TLB misses, per timer event that is not a soft one",
    ),
    (
        "soft_pollution",
        "what the software interrupt's work on one packet costs the program that it interrupted, in cache misses; default 0",
    ),
    (
        "input_refill",
        "filling the caches with what packet input needs, if others have replaced all of it; default 0: constant costs",
    ),
    (
        "cache_turnover",
        "other work that replaces all but the e-th part of a small footprint in the caches",
    ),
    (
        "pacing_send",
        "transmitting one packet from a rate-based clocking handler",
    ),
    (
        "level_change",
        "raising or lowering the interrupt level once",
    ),
    ("flag_change", "one test-and-set of a protection flag"),
    ("watchdog_set", "starting or stopping the transmit watchdog"),
    (
        "watchdog_check",
        "deciding whether the watchdog must be started or stopped",
    ),
    (
        "round_trip_rest",
        "everything in a round trip between two hosts that no variant of the driver changes",
    ),
    (
        "segment_attach",
        "attaching the adapter's memory to the address space and detaching it, once",
    ),
];

/// Every queue a profile may give the length of, and how much is taken from one at a time.
pub const QUEUES: &[(&str, &str)] = &[
    (
        "receive_ring",
        "packets an adapter holds that the host has not taken",
    ),
    (
        "receive_batch",
        "packets that one receive interrupt takes at the most; default all that wait",
    ),
    (
        "transmit_ring",
        "packets an adapter holds that are to be transmitted or whose buffers are to be released",
    ),
    (
        "ip_queue",
        "packets between device level and protocol level",
    ),
    (
        "socket_queue",
        "packets between the protocol, or early demultiplexing, and a consumer",
    ),
    (
        "output_queue",
        "packets between forwarding and an adapter's transmit ring",
    ),
    (
        "screening_queue",
        "packets waiting for the screening process",
    ),
    (
        "filter_queue",
        "packets between the packet filter and the monitoring process",
    ),
    (
        "backlog",
        "connection requests a listening socket holds that are not accepted",
    ),
];

/// One cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// The duration in nanoseconds.
    pub ns: u64,
    /// Where it is from: a paper's section, a derivation, or the calibrated point.
    pub source: String,
}

/// One queue's length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueLength {
    /// The limit in packets.
    pub packets: u32,
    /// Where it is from.
    pub source: String,
}

/// A published point that costs were chosen to meet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The published number, as `MR-E08.peak_forwarding_rate`, or its entry, `MR-E08`;
    /// several are separated by commas.
    pub entry: String,
    /// What was published, with its value and unit.
    pub point: String,
    /// The costs and queues that were chosen by it: `web_request`, or
    /// `flash.web_request` if it is that of a program.
    pub costs: Vec<String>,
}

/// A change of a value or of what is said of its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revision {
    /// The cost or queue.
    pub what: String,
    /// When, as `2026-11-21`.
    pub date: String,
    /// What stood there before.
    pub from: String,
    /// What stands there since.
    pub to: String,
    /// The reason.
    pub why: String,
}

/// How a host chooses the thread that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// 4.4BSD: priority falls with recent CPU use, which decays each second.
    DecayUsage,
    /// The highest fixed priority runs, equal ones in turn.
    FixedPriority,
    /// Weighted virtual run time, as in Linux.
    FairShare,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Short name, as used in experiments.
    pub name: String,
    /// What the machine is.
    pub title: String,
    /// Where its numbers are from.
    pub paper: String,
    /// Rate of the clock interrupt.
    pub clock_hz: u32,
    /// Time after which threads of equal priority take turns.
    pub quantum_ms: f64,
    /// How threads are chosen.
    pub scheduler: Scheduler,
    /// By name, see [`COSTS`].
    pub costs: BTreeMap<String, Cost>,
    /// By name, see [`QUEUES`].
    pub queues: BTreeMap<String, QueueLength>,
    /// Programs of this machine that do the same work at other costs.
    #[serde(default)]
    pub program: Vec<Program>,
    /// What was calibrated, and on what.
    #[serde(default)]
    pub calibration: Vec<Calibration>,
    /// Why it is calibrated on more points than [`CALIBRATIONS_MAX`].
    #[serde(default)]
    pub more_than_three: Option<String>,
    /// What was changed, and why.
    #[serde(default)]
    pub revised: Vec<Revision>,
    /// The distributions of this machine's workloads, where they were published
    /// rather than made of costs.
    #[serde(default)]
    pub workload: Vec<Workload>,
}

/// A program whose work costs something else than the machine's default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// As in the paper.
    pub name: String,
    /// The costs that differ, by name, see [`COSTS`].
    pub costs: BTreeMap<String, Cost>,
}

/// How often a workload passes a trigger state (Soft Timers, Table IV).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// As in the paper.
    pub name: String,
    /// Mean time between trigger states.
    pub mean_us: f64,
    /// Half of the times are shorter.
    pub median_us: f64,
    /// No time is longer.
    pub max_us: f64,
    /// The part of the times above 100 µs.
    pub above_100us_pct: f64,
    /// The part of the times above 150 µs.
    pub above_150us_pct: f64,
    /// Trigger states that one request passes, where the workload answers the same
    /// request again and again. Default 0: it does not.
    #[serde(default)]
    pub per_request: u32,
    /// Part of the trigger states by source: name and percent.
    #[serde(default)]
    pub sources: BTreeMap<String, f64>,
    /// Part of the intervals that are spent where software interrupts have to wait.
    /// Default 0.
    #[serde(default)]
    pub raised_pct: f64,
    /// Packets that the host sends per request, on average. Default 0: it answers none.
    #[serde(default)]
    pub sent_per_request: f64,
    /// Where the numbers are from.
    pub source: String,
}

macro_rules! built_in {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../profiles/", $name, ".toml")))),*]
    };
}

const BUILT_IN: &[(&str, &str)] = built_in![
    "decstation-3000-300",
    "decstation-3000-300-traced",
    "decstation-3100",
    "modern-veth",
    "pentium2-300",
    "pentium2-333",
    "pentium3-500",
    "pentium3-550",
    "rs6000-530",
    "sparcstation-20",
    "xeon-2660",
];

impl Profile {
    /// The names of the profiles that are built in.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// The built-in profile of this name.
    ///
    /// # Errors
    ///
    /// There is none; the error lists all.
    pub fn named(name: &str) -> Result<Self, Error> {
        let found = BUILT_IN.iter().find(|(known, _)| *known == name);
        let (_, text) = found.ok_or_else(|| Error::UnknownProfile {
            name: name.to_owned(),
            known: Self::names().collect::<Vec<_>>().join(", "),
        })?;
        Self::from_toml(name, text)
    }

    /// Reads a profile from TOML. `name` is for error messages.
    ///
    /// # Errors
    ///
    /// Not TOML, a key is missing or unknown, a cost or queue is unknown, or
    /// there are too many calibrations.
    pub fn from_toml(name: &str, text: &str) -> Result<Self, Error> {
        let profile: Self = toml::from_str(text).map_err(|source| Error::ProfileSyntax {
            name: name.to_owned(),
            source: Box::new(source),
        })?;
        profile.validate()?;
        Ok(profile)
    }

    /// The length of queue `name`, in packets.
    pub(crate) fn queue(&self, name: &'static str) -> Result<u32, Error> {
        debug_assert!(QUEUES.iter().any(|(known, _)| *known == name));
        let found = self.queues.get(name).map(|queue| queue.packets);
        found.ok_or_else(|| self.problem(format!("no queue `{name}`, which the scenario needs")))
    }

    /// The most packets that one receive interrupt of this machine takes.
    pub(crate) fn receive_batch(&self) -> u32 {
        let given = self.queues.get("receive_batch");
        given.map_or(u32::MAX, |batch| batch.packets)
    }

    /// The duration of cost `name` in ns, for `user`.
    pub(crate) fn cost(&self, name: &'static str, user: &str) -> Result<u64, Error> {
        debug_assert!(COSTS.iter().any(|(known, _)| *known == name), "{name}");
        let found = self.costs.get(name).map(|cost| cost.ns);
        found.ok_or_else(|| Error::MissingCost {
            profile: self.name.clone(),
            cost: name,
            user: user.to_owned(),
        })
    }

    /// The duration of cost `name` in ns if `program` does it, or the machine's own
    /// default program.
    pub(crate) fn program_cost(
        &self,
        program: Option<&str>,
        name: &'static str,
        user: &str,
    ) -> Result<u64, Error> {
        let Some(wanted) = program else {
            return self.cost(name, user);
        };
        let mut programs = self.program.iter();
        let found = programs.find(|program| program.name == wanted);
        let program = found.ok_or_else(|| {
            let known: Vec<&str> = self.program.iter().map(|one| one.name.as_str()).collect();
            let known = known.join(", ");
            self.problem(format!("no program `{wanted}`, only: {known}"))
        })?;
        let own = program.costs.get(name).map(|cost| cost.ns);
        own.map_or_else(|| self.cost(name, user), Ok)
    }

    /// The duration of cost `name` in ns; 0 on a machine that does not give it.
    pub(crate) fn cost_or_zero(&self, name: &'static str) -> u64 {
        debug_assert!(COSTS.iter().any(|(known, _)| *known == name), "{name}");
        self.costs.get(name).map_or(0, |cost| cost.ns)
    }

    /// As [`program_cost`](Self::program_cost); 0 if neither the program nor the machine
    /// gives it.
    pub(crate) fn program_cost_or_zero(&self, program: Option<&str>, name: &'static str) -> u64 {
        let mut programs = self.program.iter();
        let found = programs.find(|one| program == Some(one.name.as_str()));
        let own = found.and_then(|program| program.costs.get(name));
        own.map_or_else(|| self.cost_or_zero(name), |cost| cost.ns)
    }

    /// Every cost with its name: the machine's own, and those of programs.
    fn all_costs(&self) -> impl Iterator<Item = (String, &str, &Cost)> {
        let own = self.costs.iter();
        let own = own.map(|(name, cost)| (name.clone(), name.as_str(), cost));
        let programs = self.program.iter().flat_map(|program| {
            let costs = program.costs.iter();
            costs.map(|(name, cost)| (format!("{}.{name}", program.name), name.as_str(), cost))
        });
        own.chain(programs)
    }

    fn validate(&self) -> Result<(), Error> {
        let unknown =
            |given: &str, known: &[(&str, &str)]| !known.iter().any(|(name, _)| *name == given);
        let mut costs = self.all_costs();
        if let Some((_, cost, _)) = costs.find(|(_, cost, _)| unknown(cost, COSTS)) {
            return Err(self.problem(format!("no such cost as `{cost}`")));
        }
        if let Some(queue) = self.queues.keys().find(|queue| unknown(queue, QUEUES)) {
            return Err(self.problem(format!("no such queue as `{queue}`")));
        }
        let length = |queue: &QueueLength| (1..=QUEUE_MAX).contains(&queue.packets);
        if let Some((name, _)) = self.queues.iter().find(|(_, queue)| !length(queue)) {
            let problem =
                format!("queue `{name}` must hold at least 1 packet, at most {QUEUE_MAX}");
            return Err(self.problem(problem));
        }
        let mut costs = self.all_costs();
        if let Some((name, ..)) = costs.find(|(.., cost)| cost.ns > COST_MAX_NS) {
            let problem = format!("cost `{name}` must be at most {COST_MAX_NS} ns");
            return Err(self.problem(problem));
        }
        let untold = |source: &str| source.trim().is_empty();
        let mut costs = self.all_costs();
        if let Some((name, ..)) = costs.find(|(.., cost)| untold(&cost.source)) {
            return Err(self.problem(format!("cost `{name}` does not say where it is from")));
        }
        let given = self.calibration.len();
        if (given > CALIBRATIONS_MAX) != self.more_than_three.is_some() {
            return Err(self.problem(format!(
                "calibrated on {given} points: more than {CALIBRATIONS_MAX}, and no fewer, \
                 give their reason in `more_than_three`"
            )));
        }
        let mut chosen = self.calibration.iter().flat_map(|point| &point.costs);
        let given = |cost: &String| {
            self.queues.contains_key(cost) || self.all_costs().any(|(name, ..)| name == *cost)
        };
        if let Some(cost) = chosen.find(|cost| !given(cost)) {
            return Err(self.problem(format!("calibrates `{cost}`, which it does not give")));
        }
        let clock = (1..=CLOCK_HZ_MAX).contains(&self.clock_hz);
        if !(clock && self.quantum_ms > 0.0 && self.quantum_ms <= 10_000.0) {
            return Err(self.problem(format!(
                "clock_hz must be at least 1, at most {CLOCK_HZ_MAX}, and quantum_ms in (0, 10000]"
            )));
        }
        Ok(())
    }

    fn problem(&self, problem: String) -> Error {
        Error::Profile {
            name: self.name.clone(),
            problem,
        }
    }
}
