//! Inhibits or allows a source's input from the state of the queues it fills.
//!
//! **Intuition.** A packet that is received and then thrown away at the queue of
//! a consumer which gets no CPU was received at the consumer's expense. So when a
//! queue is nearly full its sources stop receiving; arriving packets wait, and
//! are dropped, in the interface, where that costs nothing, and the consumer gets
//! the CPU. When it has made room, input goes on.
//!
//! **Source.** Mogul & Ramakrishnan, sections 5.1, 6.6.1, 7.1, 9 and 12. Covered:
//! MR-17, MR-19 (only the sources concerned), MR-20 (two of its three signals,
//! queue overflow and no progress; the third is [`cpu_limit`](crate::cpu_limit)),
//! MR-22, MR-44 to MR-47, MR-51, MR-61, MR-72 to MR-75 and MR-83; and LRP-18 for
//! queues whose source can be stopped.
//!
//! **Rules.**
//! - A queue *inhibits* its sources from the moment a packet fills it to the high
//!   watermark until it has been drained to the low one ([`Watermarks`]), but for
//!   no longer than a timeout.
//! - With several queues on one source, [`Policy`] says whether one of them is
//!   enough to stop it or whether all must agree.
//! - With [`FeedbackConfig::stall`], a queue also inhibits when its consumer has taken
//!   nothing for that long although packets wait.
//!
//! **A hung consumer.** The paper's timeout lets input go on after a tick, but
//! the next packet for the full queue stops it again: a hung consumer leaves the
//! others one burst per tick. Here every timeout without any progress in between
//! doubles a reprieve during which the queue may not inhibit (none after the
//! first, as in the paper, then 1, 3, 7, … timeouts long), so that the others
//! lose at most every 2ⁿ-th tick to it. One packet taken from the queue ends the
//! reprieve. It is bounded ([`FeedbackConfig::reprieve_doublings`]) because a consumer
//! that only looks hung, being starved by the input, must get its ticks.
//!
//! **Limits.** Room above the high watermark has to hold a turn's quota, or a
//! burst overflows it. At most 64 sources (those of one poller). Expired timeouts
//! are found by a scan of all queues, at most once per timeout span.
//!
//! **When it loses.** Stopping a source stops the packets of all its consumers:
//! with [`Policy::Any`], a slow one slows the fast ones down. A high watermark
//! leaves less idle capacity, a low one wastes queue. And where the CPU is not
//! what the consumer waits for (a slow link, a disk), stopping input only moves
//! the loss.

use alloc::boxed::Box;
use core::fmt;
use core::time::Duration;

use crate::config::{ConfigError, Field, Fraction, NANOSECOND, TableFull};
use crate::fairness::numbers::PROFILE_ROOM_PARTS;
use crate::poll::{SourceId, SourceSet};
use crate::time::{Instant, NANOS_PER_SECOND};

/// When a queue inhibits its sources and when it lets them go on, in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// High watermark: inhibit when a packet makes the queue this long; at least 1.
    pub inhibit_at: u32,
    /// Low watermark: allow when the queue is this short, below `inhibit_at`.
    /// `None`: only the timeout allows (the monitor of section 9).
    pub allow_at: Option<u32>,
}

impl Watermarks {
    /// 75 and 25 percent of a queue of `capacity` packets (section 6.6.1).
    #[must_use]
    pub fn of_queue(capacity: u32) -> Self {
        Self::at(
            capacity,
            Fraction::from_percent(75),
            Fraction::from_percent(25),
        )
    }

    /// Watermarks at parts of a queue of `capacity` packets, rounded down.
    #[must_use]
    pub fn at(capacity: u32, high: Fraction, low: Fraction) -> Self {
        let part = |fraction: Fraction| fraction.of(capacity.into()) as u32;
        let inhibit_at = part(high).max(1);
        Self {
            inhibit_at,
            allow_at: Some(part(low).min(inhibit_at - 1)),
        }
    }

    /// Inhibits when a queue of `capacity` packets has room for fewer than
    /// `packets` more, and lets only the timeout allow input again: with eight,
    /// the packet filter of section 9. Setting [`allow_at`](Self::allow_at) adds
    /// the direct resumption which the paper misses there.
    #[must_use]
    pub fn room_for(capacity: u32, packets: u32) -> Self {
        Self {
            inhibit_at: capacity.saturating_add(1).saturating_sub(packets).max(1),
            allow_at: None,
        }
    }

    /// Watermarks of a queue of `capacity` packets that take `packet_bytes` each, as
    /// the guard has them for sockets (see [`SocketWatermarks`]).
    #[must_use]
    pub fn of_socket(marks: SocketWatermarks, capacity: u32, packet_bytes: u32) -> Self {
        let part = |fraction: Fraction| fraction.of(capacity.into()) as u32;
        let inhibit_at = part(marks.high).max(1);
        let drained = marks.drained_bytes_max / packet_bytes.max(1);
        let low = part(marks.low).max(inhibit_at.saturating_sub(drained));
        Self {
            inhibit_at,
            // Packets are taken below this length, not from it on.
            allow_at: Some(low.min(inhibit_at).saturating_sub(1)),
        }
    }

    fn validate(self) -> Result<(), ConfigError> {
        Field("inhibit_at", self.inhibit_at).must_be_in(1.., "at least 1")?;
        Field("allow_at", self.allow_at.unwrap_or(0))
            .must_be_in(..self.inhibit_at, "below `inhibit_at`")
    }
}

/// When packets for a socket are discarded early that was full a moment ago, by how full
/// its receive buffer is. A socket that was not takes all that fits.
///
/// The guard's BPF program applies them in bytes, its model in packets
/// ([`Watermarks::of_socket`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketWatermarks {
    /// From this part of the buffer on. Higher wastes less buffer; the rest above it
    /// must hold the batch of packets that is on its way (up to 64), or these are
    /// dropped late, at the socket. Default: 70 %.
    pub high: Fraction,
    /// Until less than this part is left. Lower means fewer, longer pauses; too low
    /// lets the consumer run dry before the next poll. Default: 50 %.
    pub low: Fraction,
    /// … or until it has drained by this much, in bytes: what is then admitted at once
    /// has to be taken by the stack in one go, and the receive ring waits meanwhile.
    /// Default: 64 KiB; a fifth of a large buffer let the ring overflow.
    pub drained_bytes_max: u32,
    /// Sources that have not had their share find room up to this part. Default: 85 %.
    pub full: Fraction,
}

impl SocketWatermarks {
    /// The guard's.
    pub const DEFAULT: Self = Self::new(Fraction::from_percent(70), Fraction::from_percent(50));

    /// Between these two. Sources that have not had their share have half of what is left
    /// above.
    #[must_use]
    pub const fn new(high: Fraction, low: Fraction) -> Self {
        let rest = Fraction::WHOLE.as_ppm() - high.as_ppm();
        Self {
            high,
            low,
            full: Fraction::from_ppm(high.as_ppm() + rest / PROFILE_ROOM_PARTS),
            drained_bytes_max: 1 << 16,
        }
    }
}

/// When a source is inhibited that several queues are filled from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// While at least one of them inhibits. Nothing is received that would then
    /// be discarded (section 12); the fast consumers wait for the slow one.
    Any,
    /// While all of them inhibit. The fast consumers go on; packets for full
    /// queues have to be discarded early.
    All,
}

/// Settings of a [`Feedback`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedbackConfig {
    /// Longest time one queue inhibits without a break; above zero. Default one
    /// tick of 1/1024 s (section 6.6.1).
    pub timeout: Duration,
    /// Bound on the reprieve of a hung consumer's queue: 2ⁿ − 1 timeouts, n at
    /// most 16. 0 is the paper's rule. Default 6.
    pub reprieve_doublings: u32,
    /// Time without progress of a consumer with waiting packets after which its
    /// queue inhibits whatever its length. Default none.
    pub stall: Option<Duration>,
    /// See [`Policy`]. Default [`Policy::Any`].
    pub policy: Policy,
}

impl Default for FeedbackConfig {
    fn default() -> Self {
        Self {
            timeout: Duration::from_nanos(NANOS_PER_SECOND / 1024),
            reprieve_doublings: 6,
            stall: None,
            policy: Policy::Any,
        }
    }
}

impl FeedbackConfig {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Names the first field that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Field("timeout", self.timeout).must_be_in(NANOSECOND.., "above zero")?;
        Field("reprieve_doublings", self.reprieve_doublings).must_be_in(..=16, "at most 16")?;
        if let Some(stall) = self.stall {
            Field("stall", stall).must_be_in(NANOSECOND.., "above zero, or none")?;
        }
        Ok(())
    }
}

/// A queue between the sources and a consumer, as numbered by
/// [`register`](Feedback::register).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId(u32);

/// Why a queue is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// Its watermarks contradict each other: correct them.
    Watermarks(ConfigError),
    /// As many queues are watched as there is room for: unregister one, or make room
    /// for more from the beginning.
    Full(TableFull),
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Watermarks(error) => error.fmt(f),
            Self::Full(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for RegisterError {}

/// The sources whose input is to be inhibited or allowed now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Change {
    /// Stop receiving from these.
    pub inhibit: SourceSet,
    /// Receive from these again.
    pub allow: SourceSet,
}

impl Change {
    /// Nothing changes.
    pub const NONE: Self = Self {
        inhibit: SourceSet::EMPTY,
        allow: SourceSet::EMPTY,
    };
}

/// Watches the queues filled from the sources of one poller.
#[derive(Clone, Debug)]
pub struct Feedback {
    config: FeedbackConfig,
    queues: Box<[Queue]>,
    counts: [Count; SourceId::COUNT_MAX],
    /// No timeout expires before this.
    next_timeout: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    watermarks: Watermarks,
    sources: SourceSet,
    state: State,
    /// Timeouts since the consumer last took a packet.
    timeouts: u32,
    /// When it last took one, or when the queue last became non-empty; at first, never.
    progress_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unused,
    Flowing,
    Inhibiting { until: Instant },
    Reprieved { until: Instant },
}

/// Queues filled from one source.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    queues: u32,
    inhibiting: u32,
}

impl Count {
    fn inhibited(self, policy: Policy) -> bool {
        match policy {
            Policy::Any => self.inhibiting > 0,
            Policy::All => self.inhibiting > 0 && self.inhibiting == self.queues,
        }
    }
}

impl Feedback {
    /// Room for `queues_max` queues.
    ///
    /// # Errors
    ///
    /// The config is out of range.
    pub fn new(config: FeedbackConfig, queues_max: usize) -> Result<Self, ConfigError> {
        config.validate()?;
        let unused = Queue {
            watermarks: Watermarks::of_queue(1),
            sources: SourceSet::EMPTY,
            state: State::Unused,
            timeouts: 0,
            progress_at: Instant::ZERO,
        };
        Ok(Self {
            config,
            queues: alloc::vec![unused; queues_max].into_boxed_slice(),
            counts: [Count::default(); SourceId::COUNT_MAX],
            next_timeout: Instant::MAX,
        })
    }

    /// Adds an empty queue that is filled from `sources`.
    ///
    /// With [`Policy::All`] its having room may allow input again.
    ///
    /// # Errors
    ///
    /// The watermarks contradict each other, or all queues are in use.
    pub fn register(
        &mut self,
        watermarks: Watermarks,
        sources: SourceSet,
    ) -> Result<(QueueId, Change), RegisterError> {
        watermarks.validate().map_err(RegisterError::Watermarks)?;
        let free = |queue: &Queue| queue.state == State::Unused;
        let index = self.queues.iter().position(free);
        let index = index.ok_or(RegisterError::Full(TableFull {
            entries: "queues",
            places: self.queues.len(),
        }))?;
        self.queues[index] = Queue {
            watermarks,
            sources,
            state: State::Flowing,
            timeouts: 0,
            progress_at: Instant::MAX,
        };
        let change = self.recount(sources, |count| count.queues += 1);
        Ok((QueueId(index as u32), change))
    }

    /// Removes a queue, and its inhibition.
    pub fn unregister(&mut self, queue: QueueId) -> Change {
        let index = queue.0 as usize;
        let state = core::mem::replace(&mut self.queues[index].state, State::Unused);
        let inhibiting = u32::from(matches!(state, State::Inhibiting { .. }));
        let member = u32::from(state != State::Unused);
        self.recount(self.queues[index].sources, |count| {
            count.inhibiting -= inhibiting;
            count.queues -= member;
        })
    }

    /// A packet was put on `queue`, which holds `occupancy` now. Of a packet that
    /// found it full, report the capacity.
    pub fn on_enqueue(&mut self, queue: QueueId, occupancy: u32, now: Instant) -> Change {
        let stall = self.config.stall;
        let state = &mut self.queues[queue.0 as usize];
        if occupancy <= 1 || state.progress_at == Instant::MAX {
            state.progress_at = now;
        }
        let stalled = stall.is_some_and(|stall| now.saturating_since(state.progress_at) >= stall);
        if occupancy < state.watermarks.inhibit_at && !stalled {
            return Change::NONE;
        }
        match state.state {
            State::Flowing => self.inhibit(queue, now),
            State::Reprieved { until } if now >= until => self.inhibit(queue, now),
            _ => Change::NONE,
        }
    }

    /// The consumer took a packet from `queue`, which holds `occupancy` now.
    pub fn on_dequeue(&mut self, queue: QueueId, occupancy: u32, now: Instant) -> Change {
        let state = &mut self.queues[queue.0 as usize];
        state.progress_at = now;
        state.timeouts = 0;
        match state.state {
            State::Reprieved { .. } => {
                state.state = State::Flowing;
                Change::NONE
            }
            State::Inhibiting { .. }
                if state
                    .watermarks
                    .allow_at
                    .is_some_and(|low| occupancy <= low) =>
            {
                state.state = State::Flowing;
                let sources = state.sources;
                self.recount(sources, |count| count.inhibiting -= 1)
            }
            _ => Change::NONE,
        }
    }

    /// When [`poll_timeout`](Self::poll_timeout) has to be called, if at all. May
    /// be too early, never too late.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        (self.next_timeout != Instant::MAX).then_some(self.next_timeout)
    }

    /// Ends the inhibitions whose timeout has expired at `now`.
    pub fn poll_timeout(&mut self, now: Instant) -> Change {
        let mut change = Change::NONE;
        if now < self.next_timeout {
            return change;
        }
        self.next_timeout = Instant::MAX;
        for index in 0..self.queues.len() {
            let State::Inhibiting { until } = self.queues[index].state else {
                continue;
            };
            if until > now {
                self.next_timeout = self.next_timeout.min(until);
                continue;
            }
            let allowed = self.reprieve(index, now).allow;
            change.allow = allowed.iter().fold(change.allow, SourceSet::with);
        }
        change
    }

    fn inhibit(&mut self, queue: QueueId, now: Instant) -> Change {
        let until = now + self.config.timeout;
        let state = &mut self.queues[queue.0 as usize];
        state.state = State::Inhibiting { until };
        let sources = state.sources;
        self.next_timeout = self.next_timeout.min(until);
        self.recount(sources, |count| count.inhibiting += 1)
    }

    fn reprieve(&mut self, index: usize, now: Instant) -> Change {
        let queue = &mut self.queues[index];
        let timeouts = (1 << queue.timeouts.min(self.config.reprieve_doublings)) - 1;
        queue.timeouts = queue.timeouts.saturating_add(1);
        let until = now + self.config.timeout.saturating_mul(timeouts);
        queue.state = State::Reprieved { until };
        let sources = queue.sources;
        self.recount(sources, |count| count.inhibiting -= 1)
    }

    /// Applies `edit` to the counts of `sources` and says what that changes.
    fn recount(&mut self, sources: SourceSet, edit: impl Fn(&mut Count)) -> Change {
        let policy = self.config.policy;
        let mut change = Change::NONE;
        for source in sources.iter() {
            let count = &mut self.counts[source.index()];
            let before = count.inhibited(policy);
            edit(count);
            match (before, count.inhibited(policy)) {
                (false, true) => change.inhibit = change.inhibit.with(source),
                (true, false) => change.allow = change.allow.with(source),
                _ => {}
            }
        }
        change
    }
}

#[cfg(test)]
mod tests;
