//! Plimsoll's early discard: which packets the guard still takes.
//!
//! A packet for a consumer whose queue is nearly full is discarded, with hysteresis
//! ([`QueueFeedback`], one queue per consumer), and so is a connection request for a
//! listener beyond its backlog. While receiving takes more of a CPU than it may,
//! what the limit leaves for work on packets is divided between their consumers
//! ([`Shedder`]), so that nobody's flood takes what others need. When that begins and
//! ends is the guard's rule.

use std::time::Duration;

use plimsoll_core::charge::{Class, ConsumerId, Shedder, ShedderConfig};
use plimsoll_core::feedback::{Change, FeedbackConfig, Watermarks};
use plimsoll_core::poll::{SourceId, SourceSet};

use super::queue_feedback::QueueFeedback;
use crate::Error;
use crate::host::{Host, Queued};
use crate::packet::{Kind, Packet};

/// Which packets are discarded.
#[derive(Debug)]
pub(super) struct EarlyDiscard {
    feedback: QueueFeedback,
    /// Consumers, as sources of the feedback, for whom nothing is taken.
    discarding: SourceSet,
    shedder: Shedder,
    shedding: Shedding,
    /// Work asked for by packets that no queue was too full for, and admitted of
    /// it, in this interval.
    asked_ns: u64,
    admitted_ns: u64,
}

/// What receiving cost in an interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) span: Duration,
    /// Of the CPU that received most, in ns.
    pub(super) network_ns: u64,
    /// Its frames, and those of all CPUs.
    pub(super) frames: u64,
    pub(super) all_frames: u64,
}

/// Whether input is shed.
#[derive(Debug)]
struct Shedding {
    /// The part of a CPU that receiving may take.
    limit: f64,
    /// What each frame costs, admitted or not.
    frame_ns: u64,
    /// What receiving costs beyond that, by the work on admitted packets: runs,
    /// interrupts, what is sent on.
    factor: f64,
    intervals_above: u32,
    calm: Duration,
    active: bool,
}

/// Intervals above the limit before input is shed.
const INTERVALS_ABOVE: u32 = 2;
/// Shedding aims at this part of the limit. At all of it the governor, which keeps the
/// same limit by longer holdoffs, would overflow the ring for nothing.
const AIM: f64 = 0.95;
/// Shedding ends when less than this part of the budget is asked for …
const CALM: f64 = 0.8;
/// … for this long.
const CALM_TIME: Duration = Duration::from_millis(500);
/// The part of the limit that work on admitted packets keeps whatever discarding
/// costs.
const PROGRESS: f64 = 0.1;

/// Part of the newest interval in what work on packets is found to cost …
const NEWEST: f64 = 0.25;
/// … by which it is at most multiplied.
const FACTOR_MAX: f64 = 4.0;

/// Feedback knows this many consumers; further ones are discarded when full.
const CONSUMERS_MAX: usize = SourceId::COUNT_MAX;

impl EarlyDiscard {
    /// Receiving may take the part `limit` of a CPU; each frame costs `frame_ns`
    /// before it is admitted or not.
    pub(super) fn new(host: &Host, limit: f64, frame_ns: u64) -> Result<Self, Error> {
        let consumers = host.endpoints.len();
        let config = FeedbackConfig {
            // A consumer that takes nothing is no reason to receive for it.
            timeout: Duration::from_secs(3600),
            ..FeedbackConfig::default()
        };
        let mut made = Self {
            feedback: QueueFeedback::new(config, host)?,
            discarding: SourceSet::EMPTY,
            shedder: equal_shares(consumers)?,
            shedding: Shedding {
                limit,
                frame_ns,
                factor: 1.0,
                intervals_above: 0,
                calm: Duration::ZERO,
                active: false,
            },
            asked_ns: 0,
            admitted_ns: 0,
        };
        for (to, endpoint) in host.endpoints.iter().enumerate().take(CONSUMERS_MAX) {
            let source = SourceId::from_index(to).map_err(Error::core("the feedback"))?;
            let marks = marks(endpoint.queue.limit() as u32);
            made.feedback
                .watch(to, marks, SourceSet::EMPTY.with(source))?;
        }
        Ok(made)
    }

    /// Whether `packet`, on which work of `work_ns` would be done, is taken.
    pub(super) fn admits(&mut self, host: &Host, packet: &Packet, work_ns: u64) -> bool {
        if self.is_full(host, packet) {
            return false;
        }
        self.asked_ns += work_ns;
        let consumer = ConsumerId(u32::from(packet.to));
        let admitted = self.shedder.admits(consumer, Duration::from_nanos(work_ns));
        self.admitted_ns += if admitted { work_ns } else { 0 };
        admitted
    }

    fn is_full(&self, host: &Host, packet: &Packet) -> bool {
        let to = usize::from(packet.to);
        let endpoint = &host.endpoints[to];
        match packet.kind {
            Kind::Syn => endpoint.is_beyond_backlog(),
            Kind::Datagram | Kind::Request if endpoint.threads.is_empty() => {
                // Forwarded, or read by nobody.
                endpoint.queue.is_full()
            }
            Kind::Datagram | Kind::Request => match SourceId::from_index(to) {
                Ok(source) => self.discarding.contains(source),
                Err(_) => endpoint.queue.is_full(),
            },
            _ => false,
        }
    }

    /// A packet is on a consumer's queue, or went elsewhere.
    pub(super) fn on_queued(&mut self, host: &Host, queued: Queued) {
        let change = self.feedback.on_queued(host, queued);
        self.note(change);
    }

    /// Consumer `to` has taken a packet off its queue.
    pub(super) fn on_read(&mut self, host: &Host, to: usize) {
        let change = self.feedback.on_read(host, to);
        self.note(change);
    }

    /// An interval was like `load`; another one begins, of length `next`.
    pub(super) fn on_interval(&mut self, load: &Load, next: Duration) {
        let asked_ns = std::mem::take(&mut self.asked_ns) as f64;
        let admitted_ns = std::mem::take(&mut self.admitted_ns) as f64;
        let budget_ns = self.shedding.budget_ns(load, asked_ns, admitted_ns);
        let part = next.as_secs_f64() / load.span.as_secs_f64();
        let budget = budget_ns.map(|ns| Duration::from_nanos((ns * part) as u64));
        self.shedder.on_interval(budget);
    }

    fn note(&mut self, change: Change) {
        if change == Change::NONE {
            return;
        }
        for source in change.inhibit.iter() {
            self.discarding = self.discarding.with(source);
        }
        if !change.allow.is_empty() {
            let left = self.discarding.iter();
            let left = left.filter(|&source| !change.allow.contains(source));
            self.discarding = left.fold(SourceSet::EMPTY, SourceSet::with);
        }
    }
}

impl Shedding {
    /// The work on packets that all CPUs may do in an interval like this one, while
    /// input is shed. What was asked for and admitted is all CPUs'.
    fn budget_ns(&mut self, load: &Load, asked_ns: f64, admitted_ns: f64) -> Option<f64> {
        let limit_ns = load.span.as_nanos() as f64 * self.limit;
        let network_ns = load.network_ns as f64;
        let cpus = load.all_frames as f64 / load.frames.max(1) as f64;
        if !self.active {
            // Fewer packets help only where the work on them is what takes the time.
            let above = network_ns > limit_ns && admitted_ns > cpus * network_ns / 2.0;
            self.intervals_above = if above { self.intervals_above + 1 } else { 0 };
            if self.intervals_above < INTERVALS_ABOVE {
                return None;
            }
            self.active = true;
            self.calm = Duration::ZERO;
        }
        let frames_ns = (load.frames * self.frame_ns) as f64;
        let left_ns = (limit_ns * AIM - frames_ns).max(limit_ns * PROGRESS);
        self.learn((network_ns - frames_ns) * cpus / admitted_ns.max(1.0));
        let budget_ns = left_ns * cpus / self.factor;
        let is_calm = asked_ns < budget_ns * CALM;
        self.calm = if is_calm {
            self.calm + load.span
        } else {
            Duration::ZERO
        };
        if self.calm >= CALM_TIME {
            self.active = false;
            self.intervals_above = 0;
            return None;
        }
        Some(budget_ns)
    }

    fn learn(&mut self, factor: f64) {
        self.factor += (factor.clamp(1.0, FACTOR_MAX) - self.factor) * NEWEST;
    }
}

/// Nearly full; of a short queue every place is needed.
fn marks(length: u32) -> Watermarks {
    let high = (length - length / 8).max(1);
    Watermarks {
        inhibit_at: high,
        allow_at: Some(high - 1 - (length / 8).min(high - 1)),
    }
}

fn equal_shares(consumers: usize) -> Result<Shedder, Error> {
    let mut shedder = Shedder::new(ShedderConfig::new(consumers));
    for consumer in 0..consumers {
        shedder
            .configure(ConsumerId(consumer as u32), Class::BEST_EFFORT, 1)
            .map_err(Error::core("the shedder"))?;
    }
    Ok(shedder)
}
