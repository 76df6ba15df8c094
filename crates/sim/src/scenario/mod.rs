//! What is simulated on a machine: receive path, adapters, sources, consumers.
//!
//! A scenario is data: it deserialises from TOML or JSON, and its defaults are
//! the profile's values. Everything is named, and names are how sources find
//! consumers and how results are found afterwards.

mod addresses;
mod path;
mod role;
mod traffic;

pub use addresses::Addresses;
pub use path::{
    AdaptiveHoldoffConfig, BatchedInterruptsConfig, ClockedInterruptsConfig,
    CodePointPollingConfig, CycleLimit, Feedback, FixedHoldoffConfig, FreebsdPollingConfig,
    GovernedGuardConfig, GuardStrategy, HipConfig, NapiConfig, OverloadDisableConfig, PathConfig,
    PeriodicPollingConfig, PollingThreadConfig, PollingWatchdogConfig, RateSwitchedConfig,
    SoftTimerPollingConfig, UserLevelConfig, Watermark,
};
pub use role::{ComputeDemand, Role};
pub use traffic::{RateStep, Traffic};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::profile::Scheduler;

/// Receive queues of all adapters together: with 16 transmit interrupts as many as one
/// CPU has lines for.
pub(crate) const RECEIVE_QUEUES_MAX: u32 = 48;

/// A run of a modelled host.
///
/// ```
/// use plimsoll_sim::{Profile, Scenario, run};
///
/// let scenario = Scenario::from_toml(
///     r#"
///     duration_ms = 500
///     path = { kind = "batched-interrupts" }
///     [[source]]
///     name = "flood"
///     to = "sink"
///     traffic = { kind = "constant", rate_pps = 5000 }
///     [[consumer]]
///     name = "sink"
///     role = { kind = "sink" }
///     "#,
/// )?;
/// let outcome = run(&Profile::named("sparcstation-20")?, &scenario, 1)?;
/// assert_eq!(outcome.measure("lost_pps"), Some(0.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// How the host receives.
    pub path: PathConfig,
    /// CPUs, 1 to 32. Default 1.
    #[serde(default = "one")]
    pub cpus: u32,
    /// Another scheduler than the profile's.
    #[serde(default)]
    pub scheduler: Option<Scheduler>,
    /// Time that is measured, in ms of virtual time.
    pub duration_ms: f64,
    /// Time before that, which is not measured. Default 100 ms.
    #[serde(default = "warmup_ms")]
    pub warmup_ms: f64,
    /// Network interfaces. Default one named `in` with all of the profile's values.
    #[serde(default = "default_adapters", rename = "adapter")]
    pub adapters: Vec<Adapter>,
    /// Who sends to the host.
    #[serde(default, rename = "source")]
    pub sources: Vec<Source>,
    /// What the packets are for, and whatever else wants the CPU.
    #[serde(rename = "consumer")]
    pub consumers: Vec<Consumer>,
    /// What is recorded of single packets.
    #[serde(default)]
    pub trace: Option<TraceConfig>,
}

/// A network interface and its link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// What sources and routes call it.
    pub name: String,
    /// Receive buffers. Default the profile's `receive_ring`.
    #[serde(default)]
    pub receive_ring: Option<u32>,
    /// Transmit descriptors. Default the profile's `transmit_ring`.
    #[serde(default)]
    pub transmit_ring: Option<u32>,
    /// Transmitted packets whose buffers wait until an interrupt releases them all,
    /// as in FreeBSD's `fxp`. Default 1: an interrupt each.
    #[serde(default)]
    pub transmit_batch: Option<u32>,
    /// The transmitter interrupts also when it has sent all that it had. Default false.
    #[serde(default)]
    pub announces_idle: bool,
    /// Receive queues with an interrupt each, on CPUs 0, 1, …: receive-side
    /// scaling by a hash of the flow. At most 48 of all adapters. Default 1.
    #[serde(default)]
    pub queues: Option<u32>,
    /// The wire.
    #[serde(default)]
    pub link: Link,
}

/// A wire: both directions are alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Transmission rate. Default: packets take no time.
    #[serde(default)]
    pub rate_mbps: Option<f64>,
    /// Time from end to end, one way. Default 0.
    #[serde(default)]
    pub delay_us: f64,
    /// Bytes per packet on the wire in addition to its own (preamble, gap,
    /// checksum). Default 0.
    #[serde(default)]
    pub overhead_bytes: u32,
    /// Packets that may wait for the wire in each direction before one is
    /// dropped. Default 1000.
    #[serde(default)]
    pub queue: Option<u32>,
}

/// Somebody who sends to the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Name for results.
    pub name: String,
    /// The adapter its packets arrive at. Default the first.
    #[serde(default)]
    pub adapter: Option<String>,
    /// The consumer they are for.
    pub to: String,
    /// Length of its packets in bytes, headers included. Default 64.
    #[serde(default = "packet_bytes")]
    pub bytes: u32,
    /// Fails the protocol's checks in the host, as control messages or corrupted
    /// packets do that belong to no socket queue. Default false.
    #[serde(default)]
    pub corrupt: bool,
    /// Where its packets say that they are from. Default one address.
    #[serde(default)]
    pub from: Addresses,
    /// The server took its packets before there was overload. Default false.
    #[serde(default)]
    pub known: bool,
    /// When it sends.
    pub traffic: Traffic,
}

/// Somebody on the host: a process, or the kernel's forwarding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Consumer {
    /// Name for sources and results.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// −20 (favoured) to 20. Default 0.
    #[serde(default)]
    pub nice: i32,
    /// Under fixed priority scheduling: larger runs first. Default 0.
    #[serde(default)]
    pub priority: u32,
    /// The only CPU it may run on. Default any.
    #[serde(default)]
    pub cpu: Option<u32>,
    /// Length of its socket queue or channel. Default the profile's.
    #[serde(default)]
    pub queue: Option<u32>,
}

/// What is recorded of single packets and of the CPUs' life.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceConfig {
    /// When recording begins, in ms after the start of the run.
    #[serde(default)]
    pub start_ms: f64,
    /// For how long, in ms.
    pub duration_ms: f64,
    /// The most events kept. Default 10,000.
    #[serde(default = "trace_events")]
    pub events_max: u32,
}

fn one() -> u32 {
    1
}

fn warmup_ms() -> f64 {
    100.0
}

fn packet_bytes() -> u32 {
    64
}

fn trace_events() -> u32 {
    10_000
}

fn default_adapters() -> Vec<Adapter> {
    vec![Adapter {
        name: "in".into(),
        ..Adapter::default()
    }]
}

impl Scenario {
    /// Reads a scenario from TOML. [`run`](fn@crate::run) checks its values.
    ///
    /// Callers that only have text need no parser of their own, which would be compiled
    /// once for each of them.
    ///
    /// # Errors
    ///
    /// Not TOML, or a key is missing or unknown.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        toml::from_str(text).map_err(|source| Error::ScenarioSyntax(Box::new(source)))
    }

    /// Checks everything that can be checked without a profile.
    ///
    /// # Errors
    ///
    /// Names the first field that is out of range, or a name that is not there.
    pub fn validate(&self) -> Result<(), Error> {
        within("cpus", f64::from(self.cpus), 1.0, 32.0)?;
        within("duration_ms", self.duration_ms, 0.001, 1e7)?;
        within("warmup_ms", self.warmup_ms, 0.0, 1e7)?;
        within("adapter", self.adapters.len() as f64, 1.0, 16.0)?;
        within("source", self.sources.len() as f64, 0.0, 1000.0)?;
        within("consumer", self.consumers.len() as f64, 1.0, 1000.0)?;
        self.validate_names()?;
        for adapter in &self.adapters {
            adapter.validate()?;
        }
        let queues = self.adapters.iter().map(|item| item.queues.unwrap_or(1));
        let most = f64::from(RECEIVE_QUEUES_MAX);
        within(
            "adapter.queues of all adapters",
            f64::from(queues.sum::<u32>()),
            1.0,
            most,
        )?;
        for source in &self.sources {
            source.validate(self)?;
        }
        for consumer in &self.consumers {
            consumer.validate(self)?;
        }
        if let Some(trace) = &self.trace {
            within("trace.start_ms", trace.start_ms, 0.0, 1e7)?;
            within("trace.duration_ms", trace.duration_ms, 0.0, 1e7)?;
            within("trace.events_max", f64::from(trace.events_max), 1.0, 1e7)?;
        }
        self.path.validate()
    }

    fn validate_names(&self) -> Result<(), Error> {
        let adapters = self.adapters.iter().map(|item| ("adapter", &item.name));
        let sources = self.sources.iter().map(|item| ("source", &item.name));
        let consumers = self.consumers.iter().map(|item| ("consumer", &item.name));
        let mut seen = std::collections::BTreeSet::new();
        for (list, name) in adapters.chain(sources).chain(consumers) {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
            if name.is_empty() || !name.chars().all(plain) {
                let allowed = "letters, digits, `-` and `_`";
                return Err(Error::scenario(format!("{list}.name"), name, allowed));
            }
            if !seen.insert((list, name)) {
                return Err(Error::scenario(format!("{list}.name"), name, "unique"));
            }
        }
        Ok(())
    }

    pub(crate) fn adapter(&self, field: &str, name: &str) -> Result<usize, Error> {
        let found = self.adapters.iter().position(|item| item.name == name);
        found.ok_or_else(|| Error::scenario(field, name, "the name of an adapter"))
    }

    pub(crate) fn consumer(&self, field: &str, name: &str) -> Result<usize, Error> {
        let found = self.consumers.iter().position(|item| item.name == name);
        found.ok_or_else(|| Error::scenario(field, name, "the name of a consumer"))
    }
}

impl Adapter {
    fn validate(&self) -> Result<(), Error> {
        let field = |name: &str| format!("adapter.{}.{name}", self.name);
        let ring = |given: Option<u32>| f64::from(given.unwrap_or(1));
        within(field("receive_ring"), ring(self.receive_ring), 1.0, 1e6)?;
        within(field("transmit_ring"), ring(self.transmit_ring), 1.0, 1e6)?;
        within(field("transmit_batch"), ring(self.transmit_batch), 1.0, 1e6)?;
        within(field("queues"), ring(self.queues), 1.0, 32.0)?;
        let rate = self.link.rate_mbps.unwrap_or(1.0);
        within(field("link.rate_mbps"), rate, 1e-3, 1e7)?;
        within(field("link.delay_us"), self.link.delay_us, 0.0, 1e8)?;
        within(field("link.queue"), ring(self.link.queue), 1.0, 1e6)
    }
}

impl Source {
    fn validate(&self, scenario: &Scenario) -> Result<(), Error> {
        let field = |name: &str| format!("source.{}.{name}", self.name);
        scenario.consumer(&field("to"), &self.to)?;
        if let Some(adapter) = &self.adapter {
            scenario.adapter(&field("adapter"), adapter)?;
        }
        within(field("bytes"), f64::from(self.bytes), 1.0, 65_535.0)?;
        self.from.validate(self)?;
        self.traffic.validate(&self.name)
    }
}

impl Consumer {
    fn validate(&self, scenario: &Scenario) -> Result<(), Error> {
        let field = |name: &str| format!("consumer.{}.{name}", self.name);
        within(field("nice"), f64::from(self.nice), -20.0, 20.0)?;
        within(field("priority"), f64::from(self.priority), 0.0, 1000.0)?;
        within(field("queue"), f64::from(self.queue.unwrap_or(1)), 1.0, 1e6)?;
        if let Some(cpu) = self.cpu {
            let last = f64::from(scenario.cpus) - 1.0;
            within(field("cpu"), f64::from(cpu), 0.0, last)?;
        }
        self.role.validate(&self.name, scenario)
    }
}

/// `given` must be a number from `low` to `high`.
pub(crate) fn within(
    field: impl Into<String>,
    given: f64,
    low: f64,
    high: f64,
) -> Result<(), Error> {
    if given >= low && given <= high {
        return Ok(());
    }
    Err(Error::scenario(field, given, format!("{low} to {high}")))
}
