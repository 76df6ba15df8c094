//! `plimsoll demo`: a stock server collapses under a flood, a guarded one does
//! not. Real packets through the real kernel, four minutes.
//!
//! *UDP flood.* A sink with some work per packet is flooded on its own socket,
//! while a bystander, an echo on another port, is probed. First its maximum
//! loss-free receive rate (MLFRR) is found, then floods are multiples of it.
//!
//! *SYN flood.* nginx serves an HTTP client while another listener gets SYNs.
//!
//! *DNS flood.* NSD is flooded on its own port by a thousand sources, while its honest
//! client asks it.
//!
//! Every case runs several times, stock and guarded taking turns; figures are
//! medians of the runs, packet counts their sums. Stock and guarded share
//! everything else: the receive work is on the test host's CPU as an adapter's
//! interrupts would put it, with the same holdoff.
//!
//! Limits: two cores, so prober and HTTP client share the load's CPU, and a
//! veth link, whose figures compare protections but predict no adapter.

mod bars;
mod dns;
mod document;
mod syn;
mod udp;

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_report::{Machine, SCHEMA};
use plimsoll_testbed::{Config as TestbedConfig, Testbed};

pub use document::{Dns, DnsCase, Document, Syn, SynCase, Udp};

use crate::Error;
use crate::protection::{Protection, Stage};

/// In the order in which they take turns.
const PROTECTIONS: [Protection; 2] = [Protection::Stock, Protection::Guard];

/// What the demo does, and how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The `plimsoll` command itself, which the demo starts as server and guard.
    pub program: PathBuf,
    /// How often each case runs; odd, so that a median is a run's own value.
    pub runs: usize,
    /// Measured part of each UDP run.
    pub window: Duration,
    /// Whole seconds of each SYN and DNS run (their clients count in seconds).
    pub http_seconds: u32,
    /// Interrupt holdoff of the test host's interface, stock and guarded.
    pub holdoff: Duration,
    /// Floods on the UDP sink, as multiples of its MLFRR.
    pub flood_multiples: Vec<f64>,
    /// Floods on the other listener, in SYN/s.
    pub syn_rates_pps: Vec<u64>,
    /// Floods on the DNS server's own port, in queries/s.
    pub dns_rates_pps: Vec<u64>,
    /// Further arguments for `plimsoll guard`.
    pub guard_arguments: Vec<String>,
}

impl Plan {
    /// The demo as `make demo` runs it.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            runs: 3,
            window: Duration::from_millis(1200),
            http_seconds: 2,
            holdoff: Duration::from_micros(30),
            flood_multiples: vec![0.0, 1.0, 5.0, 15.0],
            syn_rates_pps: vec![0, 50_000, 150_000],
            dns_rates_pps: vec![0, 200_000, 800_000],
            guard_arguments: Vec::new(),
        }
    }
}

/// Runs the demo. `progress` is told what happens, a line at a time.
///
/// # Errors
///
/// This host lacks something ([`Error::is_missing`]), or a part failed. Missed
/// goals are in the document, not an error.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Document, Error> {
    let testbed = Testbed::create(TestbedConfig::default())?;
    let stage = Stage {
        testbed: &testbed,
        program: &plan.program,
        holdoff: plan.holdoff,
        guard_arguments: &plan.guard_arguments,
    };
    let udp = udp::run(plan, &stage, &mut progress)?;
    let syn = syn::run(plan, &stage, &mut progress)?;
    let dns = dns::run(plan, &stage, &mut progress)?;
    let goals = document::goals(&udp, &syn, &dns);
    Ok(Document {
        schema: SCHEMA,
        machine: Machine::read(Some("veth")),
        udp: udp.summary(),
        syn: syn.summary(),
        dns: dns.summary(),
        goals,
    })
}
