//! Which receive path, with which parameters.

use serde::{Deserialize, Serialize};

use super::within;
use crate::Error;

/// A receive path, named as in the papers; docs/papers.md lists the `BL` ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum PathConfig {
    /// BL-01: each interrupt takes one packet. Protocol work in a software
    /// interrupt.
    InterruptPerPacket {},
    /// BL-02 to 05, 07: an interrupt takes packets until there are none;
    /// protocol work in a software interrupt (4.4BSD) behind the shared IP queue.
    BatchedInterrupts {
        /// Completions are looked for only when no packet waits: transmit
        /// starvation (MR-14). Default false.
        #[serde(default)]
        receive_first: bool,
        /// Protocol work in a kernel thread of its own instead of a software
        /// interrupt (Digital UNIX, MR-05). Default false.
        #[serde(default)]
        protocol_thread: bool,
    },
    /// BL-06: as batched interrupts, with the vendor's kernel and driver. Published are
    /// sums at light load, so that it differs in the cost of a packet only.
    VendorDriver {},
    /// BL-09: as batched interrupts, but they are switched off for a while when
    /// packets take too much of the CPU.
    OverloadDisable {
        /// The part of the CPU that packets may take.
        share_pct: f64,
        /// Time over which it is measured. Default 10 ms.
        #[serde(default = "period_ms")]
        period_ms: f64,
        /// Judged from what the clock interrupt finds running, as on hosts
        /// without a fine clock (MR-25): off after this many samples in a row.
        #[serde(default)]
        samples: Option<u32>,
    },
    /// BL-10: interrupts wait for a fixed time after a packet.
    FixedHoldoff {
        /// That time.
        holdoff_us: f64,
        /// Buffers go back to the device only when the handler returns, so that it
        /// takes no more packets than the device had buffers (MH-22). Default
        /// false: each as its packet is taken.
        #[serde(default)]
        free_late: bool,
    },
    /// BL-11: holdoff from the load, receive buffers from drops.
    AdaptiveHoldoff {
        /// The handler's share of the CPU. Default 25, as the core's; the paper's is
        /// not published.
        #[serde(default = "load_pct")]
        load_pct: f64,
        /// Drop-free interrupts until a buffer is given back. Default 8.
        #[serde(default = "backoff")]
        backoff: u32,
        /// Steps of the device's holdoff. Default 100 µs.
        #[serde(default = "granularity_us")]
        granularity_us: f64,
        /// Loss that does not count as overload. Default 0, as in the paper.
        #[serde(default)]
        tolerated_loss_pct: f64,
        /// An idle CPU excuses drops. Default false, as in the paper.
        #[serde(default)]
        idle_excuses: bool,
        /// Each buffer is freed as its packet is taken instead of at the end of
        /// the handler. Default false.
        #[serde(default)]
        free_early: bool,
    },
    /// BL-12: a loop that does nothing but look at the adapters.
    BusyPolling {},
    /// BL-13: the scheduler looks at the adapters at fixed intervals.
    PeriodicPolling {
        /// The interval.
        interval_us: f64,
        /// Packets taken per look. Default: all.
        #[serde(default)]
        quota: Option<u32>,
    },
    /// BL-14: the adapters are looked at in system calls and traps, when an
    /// interval has passed.
    CodePointPolling {
        /// The interval.
        interval_us: f64,
    },
    /// BL-15: the adapter interrupts only if it has not been looked at in time.
    PollingWatchdog {
        /// Time from a packet's arrival to the interrupt.
        interval_us: f64,
        /// Interval of the software's own polling.
        poll_us: f64,
    },
    /// BL-16: a timer interrupts at a fixed rate and its handler polls.
    ClockedInterrupts {
        /// Rate of the timer.
        rate_hz: f64,
    },
    /// BL-17: no interrupts; polling at clock ticks, system calls and in the idle
    /// loop.
    FreebsdPolling {
        /// Packets taken per poll. Default 150.
        #[serde(default = "freebsd_burst")]
        burst: u32,
    },
    /// BL-18: interrupts below a rate, polling above it at an interval that
    /// follows the packets'.
    Hip {
        /// Polling begins above this rate.
        threshold_pps: f64,
        /// The shortest polling interval.
        interval_min_us: f64,
        /// The receive buffers the adapter may have: the repair MH-30 proposes.
        /// Default all.
        #[serde(default)]
        buffers: Option<u32>,
    },
    /// BL-19: interrupts while few packets come, a clock while many do.
    RateSwitched {
        /// Clocked above this rate.
        threshold_pps: f64,
        /// Interval of the clock.
        interval_us: f64,
    },
    /// BL-20: a soft timer event polls the adapters at trigger states, as often
    /// as finds the wanted number of packets.
    SoftTimerPolling {
        /// That number.
        quota: u32,
    },
    /// BL-21: everything is done to completion at device level.
    HighLevel {},
    /// BL-22 to 27, 30: interrupts start a polling thread, which shares the CPU
    /// between all directions of all adapters.
    PollingThread {
        /// Packets per turn. Default: no quota.
        #[serde(default)]
        quota: Option<u32>,
        /// Queues stop the input that fills them.
        #[serde(default)]
        feedback: Option<Feedback>,
        /// The part of the CPU that packets may take.
        #[serde(default)]
        cycle_limit: Option<CycleLimit>,
        /// The quota is found by trying, beginning with `quota`. Default false.
        #[serde(default)]
        tune_quota: bool,
        /// Built in but switched off: works as batched interrupts with a protocol
        /// thread (BL-27). Default false.
        #[serde(default)]
        disabled: bool,
        /// Output may be queued to a device that is transmitting (MR-67).
        /// Default false: an active interface gets nothing new.
        #[serde(default)]
        queue_while_active: bool,
    },
    /// BL-31: demultiplexing and discard in the interrupt handler, then eager
    /// protocol work.
    EarlyDemux {},
    /// BL-32: demultiplexing and discard in the interrupt handler, protocol work
    /// by the receiver.
    SoftLrp {},
    /// BL-33: as SOFT-LRP, but the adapter demultiplexes and discards.
    NiLrp {},
    /// BL-34: demultiplexing and discard in the interrupt handler, by the kernel's
    /// packet filter, or on the adapter; a thread of the application does the protocol
    /// work eagerly. With the scheduler `fixed-priority` it is RT-Mach's (BL-35) and a
    /// Scout path (BL-36).
    UserLevel {
        /// The adapter demultiplexes. Default false.
        #[serde(default)]
        adapter: bool,
    },
    /// Plimsoll: early discard where packets are received, and a governor that
    /// changes from interrupts to an adaptive holdoff or a polling thread.
    GovernedGuard {
        /// What is done about overload. Default: an adaptive holdoff.
        #[serde(default)]
        strategy: GuardStrategy,
        /// The most of each CPU that receiving may take. Default 85, as the
        /// guard's; 100: no limit.
        #[serde(default = "guard_share_pct")]
        share_pct: f64,
        /// Packets per turn. Default 64.
        #[serde(default = "guard_quota")]
        quota: u32,
        /// The governor looks this often while overload begins or lasts. Default
        /// 10 ms.
        #[serde(default = "period_ms")]
        interval_ms: f64,
        /// The host's own holdoff, which is all there is while there is no
        /// overload. Default 0: none.
        #[serde(default)]
        holdoff_us: f64,
    },
}

/// What the governed guard does about overload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuardStrategy {
    /// Lengthens the holdoff.
    #[default]
    Holdoff,
    /// Lets threads poll, with the same holdoff.
    Thread,
    /// Nothing: early discard alone.
    Off,
}

/// Queue-state feedback.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feedback {
    /// When input stops and goes on. Default 75 and 25 percent.
    #[serde(default)]
    pub watermark: Watermark,
    /// Input goes on after this even if the queue did not drain. Default one
    /// clock tick.
    #[serde(default)]
    pub timeout_ms: Option<f64>,
}

/// When a queue stops its input.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Watermark {
    /// At parts of its length.
    Fill {
        /// Input stops at this fill.
        high_pct: f64,
        /// Input goes on at this fill.
        low_pct: f64,
    },
    /// When it has room for fewer packets than this; only the timeout lets input
    /// go on (packet filter queues, MR-73, MR-74).
    Room {
        /// Packets.
        packets: u32,
    },
}

impl Default for Watermark {
    fn default() -> Self {
        Self::Fill {
            high_pct: 75.0,
            low_pct: 25.0,
        }
    }
}

/// The CPU cycle limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CycleLimit {
    /// The part of each period that packets may use.
    pub share_pct: f64,
    /// The period. Default 10 ms.
    #[serde(default = "period_ms")]
    pub period_ms: f64,
    /// Interrupt handlers count, and overshoot is carried over; without, as in
    /// the paper. Default false.
    #[serde(default)]
    pub count_interrupts: bool,
    /// With several CPUs: one limit for the host instead of one per CPU. Default
    /// false.
    #[serde(default)]
    pub per_host: bool,
}

fn period_ms() -> f64 {
    10.0
}

fn load_pct() -> f64 {
    25.0
}

fn backoff() -> u32 {
    8
}

fn granularity_us() -> f64 {
    100.0
}

fn freebsd_burst() -> u32 {
    150
}

fn guard_share_pct() -> f64 {
    85.0
}

fn guard_quota() -> u32 {
    64
}

impl PathConfig {
    /// The kind's name, as in TOML.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::InterruptPerPacket {} => "interrupt-per-packet",
            Self::BatchedInterrupts { .. } => "batched-interrupts",
            Self::VendorDriver {} => "vendor-driver",
            Self::OverloadDisable { .. } => "overload-disable",
            Self::FixedHoldoff { .. } => "fixed-holdoff",
            Self::AdaptiveHoldoff { .. } => "adaptive-holdoff",
            Self::BusyPolling {} => "busy-polling",
            Self::PeriodicPolling { .. } => "periodic-polling",
            Self::CodePointPolling { .. } => "code-point-polling",
            Self::PollingWatchdog { .. } => "polling-watchdog",
            Self::ClockedInterrupts { .. } => "clocked-interrupts",
            Self::FreebsdPolling { .. } => "freebsd-polling",
            Self::Hip { .. } => "hip",
            Self::RateSwitched { .. } => "rate-switched",
            Self::SoftTimerPolling { .. } => "soft-timer-polling",
            Self::HighLevel {} => "high-level",
            Self::PollingThread { .. } => "polling-thread",
            Self::EarlyDemux {} => "early-demux",
            Self::SoftLrp {} => "soft-lrp",
            Self::NiLrp {} => "ni-lrp",
            Self::UserLevel { .. } => "user-level",
            Self::GovernedGuard { .. } => "governed-guard",
        }
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        self.validate_threads()?;
        self.validate_holdoff()?;
        match self {
            Self::InterruptPerPacket {}
            | Self::BatchedInterrupts { .. }
            | Self::BusyPolling {}
            | Self::HighLevel {}
            | Self::EarlyDemux {}
            | Self::SoftLrp {}
            | Self::NiLrp {}
            | Self::UserLevel { .. }
            | Self::VendorDriver {}
            | Self::FixedHoldoff { .. }
            | Self::AdaptiveHoldoff { .. } => Ok(()),
            Self::OverloadDisable {
                share_pct,
                period_ms,
                samples,
            } => {
                percent("share_pct", *share_pct)?;
                micros("period_ms", *period_ms)?;
                count("samples", samples.unwrap_or(1))
            }
            Self::PeriodicPolling { interval_us, quota } => {
                micros("interval_us", *interval_us)?;
                count("quota", quota.unwrap_or(1))
            }
            Self::CodePointPolling { interval_us } => micros("interval_us", *interval_us),
            Self::PollingWatchdog {
                interval_us,
                poll_us,
            } => {
                micros("interval_us", *interval_us)?;
                micros("poll_us", *poll_us)
            }
            Self::ClockedInterrupts { rate_hz } => within("path.rate_hz", *rate_hz, 1.0, 1e7),
            Self::FreebsdPolling { burst } => count("burst", *burst),
            Self::Hip {
                threshold_pps,
                interval_min_us,
                buffers,
            } => {
                within("path.threshold_pps", *threshold_pps, 0.0, 1e9)?;
                micros("interval_min_us", *interval_min_us)?;
                count("buffers", buffers.unwrap_or(1))
            }
            Self::RateSwitched {
                threshold_pps,
                interval_us,
            } => {
                within("path.threshold_pps", *threshold_pps, 0.0, 1e9)?;
                micros("interval_us", *interval_us)
            }
            Self::SoftTimerPolling { quota } => count("quota", *quota),
            Self::PollingThread { .. } | Self::GovernedGuard { .. } => Ok(()),
        }
    }

    fn validate_threads(&self) -> Result<(), Error> {
        match self {
            Self::PollingThread {
                quota,
                feedback,
                cycle_limit,
                ..
            } => {
                count("quota", quota.unwrap_or(1))?;
                feedback.map_or(Ok(()), Feedback::validate)?;
                cycle_limit.map_or(Ok(()), CycleLimit::validate)
            }
            Self::GovernedGuard {
                share_pct,
                quota,
                interval_ms,
                holdoff_us,
                ..
            } => {
                percent("share_pct", *share_pct)?;
                count("quota", *quota)?;
                within("path.holdoff_us", *holdoff_us, 0.0, 1e7)?;
                within("path.interval_ms", *interval_ms, 1.0, 1000.0)
            }
            _ => Ok(()),
        }
    }

    fn validate_holdoff(&self) -> Result<(), Error> {
        match self {
            Self::FixedHoldoff { holdoff_us, .. } => {
                within("path.holdoff_us", *holdoff_us, 0.0, 1e7)
            }
            Self::AdaptiveHoldoff {
                load_pct,
                granularity_us,
                tolerated_loss_pct,
                ..
            } => {
                percent("load_pct", *load_pct)?;
                within("path.tolerated_loss_pct", *tolerated_loss_pct, 0.0, 100.0)?;
                within("path.granularity_us", *granularity_us, 0.001, 1e6)
            }
            _ => Ok(()),
        }
    }
}

fn percent(field: &str, given: f64) -> Result<(), Error> {
    within(format!("path.{field}"), given, 0.001, 100.0)
}

fn micros(field: &str, given: f64) -> Result<(), Error> {
    within(format!("path.{field}"), given, 0.001, 1e7)
}

fn count(field: &str, given: u32) -> Result<(), Error> {
    within(format!("path.{field}"), f64::from(given), 1.0, 1e9)
}

impl Feedback {
    fn validate(self) -> Result<(), Error> {
        let timeout = self.timeout_ms.unwrap_or(1.0);
        within("path.feedback.timeout_ms", timeout, 0.001, 1e6)?;
        let field = |part: &str| format!("path.feedback.watermark.{part}");
        match self.watermark {
            Watermark::Fill { high_pct, low_pct } => {
                within(field("high_pct"), high_pct, 0.001, 100.0)?;
                within(field("low_pct"), low_pct, 0.0, high_pct)
            }
            Watermark::Room { packets } => within(field("packets"), f64::from(packets), 1.0, 1e6),
        }
    }
}

impl CycleLimit {
    fn validate(self) -> Result<(), Error> {
        let field = |part: &str| format!("path.cycle_limit.{part}");
        within(field("share_pct"), self.share_pct, 0.001, 100.0)?;
        within(field("period_ms"), self.period_ms, 0.001, 1e6)
    }
}
