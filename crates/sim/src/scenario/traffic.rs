//! When a source sends.

use serde::{Deserialize, Serialize};

use super::within;
use crate::Error;

/// The highest rate a source may have, in packets per second.
const RATE_MAX_PPS: f64 = 1e9;
/// Payload of a full TCP segment on Ethernet.
const SEGMENT_BYTES: u32 = 1460;

/// How a source sends. Open loops send whatever happens; closed loops wait for
/// the host's answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Traffic {
    /// Open loop: evenly spaced packets.
    Constant {
        /// Packets per second; 0 sends nothing.
        rate_pps: f64,
        /// Each gap is stretched or shortened by up to this part of it, at
        /// random: no generator of the papers was precisely paced. Default 0.
        #[serde(default)]
        jitter_pct: f64,
        /// Packets after which it ends. Default: never.
        #[serde(default)]
        packets: Option<u64>,
        /// First packet, in ms after the start of the run. Default 0.
        #[serde(default)]
        start_ms: f64,
        /// Packets that leave together, back to back; the rate stays. Default 1.
        #[serde(default = "one")]
        burst: u32,
    },
    /// Open loop: exponentially distributed gaps.
    Poisson {
        /// Mean packets per second; 0 sends nothing.
        rate_pps: f64,
        /// As of `constant`.
        #[serde(default = "one")]
        burst: u32,
    },
    /// Open loop: bursts of evenly spaced packets.
    Bursts {
        /// Packets per burst.
        burst: u32,
        /// Time between packets of a burst.
        spacing_us: f64,
        /// Time between the first packets of two bursts.
        period_us: f64,
    },
    /// Open loop: a rate that changes.
    Steps {
        /// In order of time.
        steps: Vec<RateStep>,
    },
    /// Open loop: recorded arrival times.
    Replay {
        /// In µs after the start of the run, ascending.
        times_us: Vec<f64>,
    },
    /// Open loop: connection requests, each from another address, never completed.
    SynFlood {
        /// Requests per second; 0 sends nothing.
        rate_pps: f64,
        /// Gaps are exponentially distributed instead of nearly even. Default
        /// false.
        #[serde(default)]
        random: bool,
        /// As of `constant`.
        #[serde(default = "one")]
        burst: u32,
    },
    /// Closed loop: the next packet is sent when the answer to the last has
    /// arrived, or is given up.
    PingPong {
        /// Packets under way at a time. Default 1.
        #[serde(default = "one")]
        outstanding: u32,
        /// Time from an answer to the next packet. Default 0.
        #[serde(default)]
        think_us: f64,
        /// Time after which an answer counts as lost. Default 1000 ms.
        #[serde(default = "timeout_ms")]
        timeout_ms: f64,
        /// Packets leave evenly, at the mean rate of the answers, instead of each
        /// as soon as an answer allows it; half of `outstanding` are under way.
        /// Default false.
        #[serde(default)]
        even: bool,
    },
    /// Closed loop: HTTP clients, each with one transfer at a time.
    Http {
        /// Clients.
        clients: u32,
        /// Requests per connection: 1 is HTTP, more are persistent. Default 1.
        #[serde(default = "one")]
        requests_per_connection: u32,
        /// Bytes per response. Default 1300.
        #[serde(default = "response_bytes")]
        response_bytes: u32,
        /// First retransmission of a lost packet, doubled for each further one.
        /// Default 1000 ms.
        #[serde(default = "timeout_ms")]
        timeout_ms: f64,
        /// What the clients' machine, one for all of them, does for each packet it
        /// receives, and for each that a client sends; reading and acknowledging is part of
        /// receiving. Receiving comes first, and a client acknowledges when it reads two
        /// segments or more. Default 0.
        #[serde(default)]
        client_us: f64,
        /// The server closes a connection when it has answered its last request, as with HTTP/1.0: the
        /// client acknowledges that at once, and then closes its side, which the server acknowledges.
        /// Default false: the client closes, with one packet.
        #[serde(default)]
        server_closes: bool,
    },
}

/// A rate from a point in time on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateStep {
    /// In ms after the start of the run.
    pub at_ms: f64,
    /// Packets per second; 0 sends nothing.
    pub rate_pps: f64,
}

fn one() -> u32 {
    1
}

fn timeout_ms() -> f64 {
    1000.0
}

fn response_bytes() -> u32 {
    1300
}

impl Traffic {
    /// How many segments an answer to a request has.
    pub(crate) fn response_segments(&self) -> u32 {
        match self {
            Self::Http { response_bytes, .. } => response_bytes.div_ceil(SEGMENT_BYTES),
            _ => 1,
        }
    }

    pub(super) fn validate(&self, name: &str) -> Result<(), Error> {
        let field = |part: &str| format!("source.{name}.traffic.{part}");
        let rate = |given: f64| within(field("rate_pps"), given, 0.0, RATE_MAX_PPS);
        let packets = |given: u32| within(field("burst"), f64::from(given), 1.0, 1e6);
        match self {
            Self::Constant {
                rate_pps,
                jitter_pct,
                start_ms,
                burst,
                ..
            } => {
                packets(*burst)?;
                rate(*rate_pps)?;
                within(field("start_ms"), *start_ms, 0.0, 1e7)?;
                within(field("jitter_pct"), *jitter_pct, 0.0, 100.0)
            }
            Self::Poisson { rate_pps, burst }
            | Self::SynFlood {
                rate_pps, burst, ..
            } => {
                packets(*burst)?;
                rate(*rate_pps)
            }
            Self::Bursts {
                burst,
                spacing_us,
                period_us,
            } => {
                packets(*burst)?;
                within(field("spacing_us"), *spacing_us, 0.0, 1e9)?;
                let length = spacing_us * f64::from(burst - 1);
                within(field("period_us"), *period_us, length.max(0.001), 1e10)
            }
            Self::Steps { .. } | Self::Replay { .. } => self.validate_times(name),
            Self::PingPong {
                outstanding,
                think_us,
                timeout_ms,
                ..
            } => {
                within(field("outstanding"), f64::from(*outstanding), 1.0, 4096.0)?;
                within(field("think_us"), *think_us, 0.0, 1e9)?;
                within(field("timeout_ms"), *timeout_ms, 0.001, 1e6)
            }
            Self::Http { .. } => self.validate_http(name),
        }
    }

    fn validate_http(&self, name: &str) -> Result<(), Error> {
        let Self::Http {
            clients,
            requests_per_connection,
            response_bytes,
            timeout_ms,
            client_us,
            ..
        } = self
        else {
            return Ok(());
        };
        let field = |part: &str| format!("source.{name}.traffic.{part}");
        let whole = |part: &str, given: u32, most| within(field(part), given.into(), 1.0, most);
        whole("clients", *clients, 4096.0)?;
        whole("requests_per_connection", *requests_per_connection, 1e6)?;
        whole("response_bytes", *response_bytes, 1e6)?;
        within(field("client_us"), *client_us, 0.0, 1e6)?;
        within(field("timeout_ms"), *timeout_ms, 0.001, 1e6)
    }

    fn validate_times(&self, name: &str) -> Result<(), Error> {
        let field = |part: &str| format!("source.{name}.traffic.{part}");
        let rate = |given: f64| within(field("rate_pps"), given, 0.0, RATE_MAX_PPS);
        match self {
            Self::Steps { steps } => {
                let sorted = steps.is_sorted_by(|a, b| a.at_ms <= b.at_ms);
                if !sorted || steps.is_empty() {
                    let allowed = "a list of at least one step in ascending order of at_ms";
                    return Err(Error::scenario(field("steps"), steps.len(), allowed));
                }
                steps.iter().try_for_each(|step| {
                    within(field("steps.at_ms"), step.at_ms, 0.0, 1e7)?;
                    rate(step.rate_pps)
                })
            }
            Self::Replay { times_us } => {
                let sane = times_us.iter().all(|time| (0.0..1e10).contains(time));
                if times_us.is_sorted() && sane {
                    return Ok(());
                }
                let allowed = "a list of ascending times from 0 to 1e10";
                Err(Error::scenario(field("times_us"), times_us.len(), allowed))
            }
            _ => Ok(()),
        }
    }
}
