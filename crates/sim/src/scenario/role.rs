//! What is done with packets, and what else wants the CPU.

use serde::{Deserialize, Serialize};

use super::{Scenario, within};
use crate::Error;

/// What a consumer does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Role {
    /// A process that receives datagrams and does something short with each.
    Sink {
        /// Work per packet beside the receive call. Default 0.
        #[serde(default)]
        work_us: f64,
    },
    /// A process that sends every datagram back.
    Echo {
        /// Work per packet beside both calls. Default 0.
        #[serde(default)]
        work_us: f64,
    },
    /// A process that receives nothing and computes.
    Compute {
        /// How much. Default: for ever.
        #[serde(default)]
        demand: ComputeDemand,
    },
    /// A process that answers each request after computing.
    RpcServer {
        /// CPU time per request beside the calls.
        compute_us: f64,
    },
    /// A process that a remote call made compute; answers when it has done so.
    Worker {
        /// CPU time per request.
        compute_ms: f64,
    },
    /// The kernel forwards packets out of another adapter; no process.
    Forward {
        /// Name of that adapter.
        out: String,
    },
    /// As forwarding, but a user process judges each packet first.
    Screen {
        /// Name of the adapter packets leave by.
        out: String,
    },
    /// A process that reads what a packet filter matches.
    Capture {
        /// Writes to a disk file instead of discarding. Default false.
        #[serde(default)]
        disk: bool,
    },
    /// A web server.
    Web {
        /// Server processes. Default 1.
        #[serde(default = "one")]
        processes: u32,
        /// Name of one of the profile's programs, whose costs it has. Default: the
        /// machine's own.
        #[serde(default)]
        program: Option<String>,
    },
    /// A TCP port that somebody listens at and nobody accepts from.
    Listener {},
    /// A process for which a frame is worth something only if all of its packets
    /// arrive.
    Media {
        /// Packets per frame.
        frame_packets: u32,
        /// Work per packet beside the receive call. Default 0.
        #[serde(default)]
        work_us: f64,
    },
    /// A process that opened a socket and does not read it.
    Deaf {},
    /// A UDP port that nobody has: an ICMP error (port unreachable) answers each datagram.
    Closed {},
}

/// What a computing process wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ComputeDemand {
    /// The CPU, always.
    #[default]
    Endless,
    /// Some of it, periodically.
    Periodic {
        /// Time from one start to the next.
        period_us: f64,
        /// CPU time per period.
        busy_us: f64,
    },
}

fn one() -> u32 {
    1
}

impl Role {
    pub(super) fn validate(&self, name: &str, scenario: &Scenario) -> Result<(), Error> {
        let field = |part: &str| format!("consumer.{name}.role.{part}");
        let work = |given: f64| within(field("work_us"), given, 0.0, 1e9);
        match self {
            Self::Sink { work_us } | Self::Echo { work_us } => work(*work_us),
            Self::RpcServer { compute_us } => within(field("compute_us"), *compute_us, 0.0, 1e9),
            Self::Worker { compute_ms } => within(field("compute_ms"), *compute_ms, 0.001, 1e6),
            Self::Forward { out } | Self::Screen { out } => {
                scenario.adapter(&field("out"), out).map(|_| ())
            }
            Self::Web { processes, .. } => {
                within(field("processes"), f64::from(*processes), 1.0, 256.0)
            }
            Self::Media {
                frame_packets,
                work_us,
            } => {
                within(field("frame_packets"), f64::from(*frame_packets), 1.0, 1e4)?;
                work(*work_us)
            }
            Self::Compute {
                demand: ComputeDemand::Periodic { period_us, busy_us },
            } => {
                within(field("demand.period_us"), *period_us, 0.001, 1e9)?;
                within(field("demand.busy_us"), *busy_us, 0.001, *period_us)
            }
            Self::Compute {
                demand: ComputeDemand::Endless,
            }
            | Self::Capture { .. }
            | Self::Listener {}
            | Self::Deaf {}
            | Self::Closed {} => Ok(()),
        }
    }
}
