//! `plimsoll bench stack`: what the user data path takes, and what it keeps under
//! overload, beside the kernel's sockets and DPDK's testpmd.
//!
//! 64-byte UDP packets over veth to a host with one CPU, which receives in softirq
//! context, as with an adapter's interrupts; AF_XDP in copy mode. Load, prober and
//! whatever takes answers are on the other CPU. All sides take turns, each on hosts made
//! anew, so that a noisy machine treats all alike.
//!
//! - `udp`: the highest rate without loss (MLFRR) of a sink and of an echo that do no work.
//! - `overload`: what a sink that works on each packet gets at multiples of its own MLFRR.
//! - `bystander`: what a client of another endpoint sees meanwhile (LRP's figure 4).
//! - `rpc`: how two servers of calls and a worker share the CPU (LRP's table 2).
//! - `http`: requests beside a flood of SYNs for another port (LRP's figure 5).
//! - `tcp`: bulk over one connection.
//! - `dns`: the answers of our DNS responder beside NSD's.
//! - `round-trip`: one message after the other, with nothing else to do (the 1994 paper).
//! - `idle`: busy connections beside 9,900 idle ones, and the memory that these take.
//!
//! **Limits.** veth, and copies. Generator and whatever drops answers share a CPU, so
//! what can be offered ends at some 4 to 6 million packets a second, with answers below
//! that. A goal about a load that could not be offered stays unmeasured.

mod dns;
mod goals;
pub(crate) mod http;
mod idle;
mod loaded;
mod round_trip;
mod rpc;
mod side;
pub(crate) mod site;
mod table;
mod tcp;
mod turns;
mod udp;

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_kernel::error::with_causes;
use plimsoll_report::{Goal, Machine, SCHEMA};
use plimsoll_testbed::server::Threaded;
use serde::Serialize;

use crate::Error;
use crate::passing::{PassingCase, is_of_all};
pub use dns::Dns;
pub use http::HttpRun;
pub use idle::IdleRun;
pub use loaded::{BystanderRun, ComputingRun, LoadedCase};
pub use rpc::{RpcRun, RpcWork};
pub use side::Side;
pub(crate) use side::{Running, Task};
pub(crate) use site::{Answers, PORT, Site};
pub use tcp::TcpCase;
pub use turns::SideCase;
pub use udp::Udp;

pub use plimsoll_testbed::round_trip::Report as RoundTrip;

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The MLFRR of a sink and of an echo.
    Udp,
    /// Goodput at multiples of the MLFRR.
    Overload,
    /// Latency and loss of another endpoint's client under a flood.
    Bystander,
    /// How servers of calls and a worker share the CPU.
    Rpc,
    /// HTTP requests beside a SYN flood.
    Http,
    /// TCP bulk.
    Tcp,
    /// Answers per second of DNS servers.
    Dns,
    /// Round trips of single messages.
    RoundTrip,
    /// Busy connections beside idle ones.
    Idle,
}

impl Part {
    /// All, in the order in which they run.
    pub const ALL: [Self; 9] = [
        Self::Udp,
        Self::Overload,
        Self::Bystander,
        Self::Rpc,
        Self::Http,
        Self::Tcp,
        Self::Dns,
        Self::RoundTrip,
        Self::Idle,
    ];

    /// Its name on the command line and in its goals' ids.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Overload => "overload",
            Self::Bystander => "bystander",
            Self::Rpc => "rpc",
            Self::Http => "http",
            Self::Tcp => "tcp",
            Self::Dns => "dns",
            Self::RoundTrip => "round-trip",
            Self::Idle => "idle",
        }
    }
}

/// How long, how often and with what is measured.
#[derive(Clone, Debug)]
pub struct Effort {
    /// The `plimsoll` command itself.
    pub program: PathBuf,
    /// How often all sides take their turns.
    pub runs: usize,
    /// How long a rate is offered in a search.
    pub trial: Duration,
    /// How long an overload is measured.
    pub window: Duration,
    /// The MLFRR of all in packets per second, instead of measuring it.
    pub mlfrr_pps: Option<f64>,
    /// Whether the kernel polls for our UDP servers in a thread, instead of in softirq context.
    /// With `auto` not for those on `eager`; `plimsoll serve` has it by default on `ni-lrp` alone.
    pub threaded: Threaded,
}

/// So long a flood is there before it is looked at, where the kernel's polling waits until it
/// is alone: three times the shortest quiet.
const ALONE: Duration = Duration::from_millis(1500);

impl Effort {
    /// How long a flood is there before it is looked at, of all sides alike.
    pub(crate) fn settling(&self) -> Duration {
        match self.threaded {
            Threaded::Auto => ALONE,
            Threaded::Beneath(_) | Threaded::Off => Duration::ZERO,
        }
    }

    /// As `plimsoll bench stack` runs without arguments.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            runs: 3,
            trial: Duration::from_millis(200),
            window: Duration::from_millis(500),
            mlfrr_pps: None,
            threaded: Threaded::Auto,
        }
    }
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long and how often.
    pub effort: Effort,
    /// Which parts.
    pub parts: Vec<Part>,
    /// Who receives.
    pub sides: Vec<Side>,
}

impl Plan {
    fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}

/// What each part measured; nothing of those that were not asked for.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// MLFRRs without work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp: Option<Udp>,
    /// Sinks that work, by work and side.
    pub loaded: Vec<LoadedCase>,
    /// Servers of calls beside a worker.
    pub rpc: Vec<RpcWork>,
    /// HTTP servers.
    pub http: Vec<SideCase<HttpRun>>,
    /// TCP bulk.
    pub tcp: Vec<TcpCase>,
    /// DNS servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<Dns>,
    /// Round trips of single messages.
    pub round_trip: Vec<SideCase<RoundTrip>>,
    /// Busy connections beside idle ones.
    pub idle: Vec<SideCase<IdleRun>>,
}

/// Everything a run measured.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Version of this form.
    pub schema: u32,
    /// Where it was measured.
    pub machine: Machine,
    /// How frames reach our stack.
    pub device: &'static str,
    /// Nice levels of the kernel's polling thread beneath our UDP servers, or `auto`; `off`:
    /// softirqs.
    pub threaded: String,
    /// How often all sides took their turns.
    pub runs: usize,
    /// What came out.
    #[serde(flatten)]
    pub figures: Figures,
    /// What is promised.
    pub goals: Vec<Goal>,
}

impl Document {
    /// The document as tables.
    #[must_use]
    pub fn table(&self) -> String {
        table::tables(self)
    }
}

/// Measures all sides, in turns.
///
/// # Errors
///
/// The testbed cannot be made. What one side alone lacks, its case says.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Document, Error> {
    let mut figures = Figures::default();
    if plan.has(Part::Udp) {
        figures.udp = Some(udp::measure(plan, &mut progress)?);
    }
    figures.loaded = loaded::measure(plan, &mut progress)?;
    if plan.has(Part::Rpc) {
        figures.rpc = rpc::measure(plan, &mut progress)?;
    }
    if plan.has(Part::Http) {
        figures.http = http::measure(plan, &mut progress)?;
    }
    if plan.has(Part::Tcp) {
        figures.tcp = tcp::measure(plan, &mut progress)?;
    }
    if plan.has(Part::Dns) {
        figures.dns = Some(dns::measure(plan, &mut progress)?);
    }
    if plan.has(Part::RoundTrip) {
        figures.round_trip = round_trip::measure(plan, &mut progress)?;
    }
    if plan.has(Part::Idle) {
        figures.idle = idle::measure(plan, &mut progress)?;
    }
    Ok(Document {
        schema: SCHEMA,
        machine: Machine::read(Some("veth")),
        device: "AF_XDP, copy mode",
        threaded: plan.effort.threaded.to_string(),
        runs: plan.effort.runs,
        goals: goals::goals(plan, &figures),
        figures,
    })
}

/// Keeps what a run of a side gave. What it alone lacks ends its runs, not those of
/// others.
fn keep<T>(
    run: Result<T, Error>,
    case: &mut PassingCase,
    push: impl FnOnce(&mut PassingCase, T),
) -> Result<(), Error> {
    match run {
        Ok(run) => push(case, run),
        Err(error) if is_of_all(&error) => return Err(error),
        Err(error) => case.why = Some(with_causes(&error)),
    }
    Ok(())
}
