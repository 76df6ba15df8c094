//! `polled`: bounded turns, and input inhibited where it would be wasted.
//!
//! Mogul & Ramakrishnan, sections 5 to 7. An arrival only starts polling
//! (`core::poll`); each turn takes at most the quota and carries every packet as
//! far as it goes, to its socket's queue (MR-32, MR-36: no queue in between).
//! A socket's queue that fills to its high watermark inhibits input
//! (`core::feedback`), and so does a share of the CPU that is used up
//! (`core::cpu_limit`); frames then stay in the device's ring and are lost there,
//! which costs nothing.
//!
//! **Limits.** With input inhibited by one socket's queue all sockets wait,
//! as in the paper; nothing is selected. Whether the CPU is idle is not known
//! here, so a reached limit lasts until the end of its period (MR-56 is left out).

use std::io;
use std::time::Duration;

use parking_lot::MutexGuard;
use plimsoll_core::config::Fraction;
use plimsoll_core::cpu_limit::{self, CpuLimit, CpuLimitConfig};
use plimsoll_core::demux::ChannelId;
use plimsoll_core::feedback::{self, Feedback, FeedbackConfig, QueueId, Watermarks};
use plimsoll_core::poll::{
    Direction, Directions, Driver, Interrupts, Poller, PollerConfig, SourceId, SourceSet,
};
use plimsoll_core::time::Instant;

use super::{Next, Path, Turn, process_and_push};
use crate::clock;
use crate::config::StackConfig;
use crate::error::Error;
use crate::table::{SPECIAL, Table};

/// Settings of the polled receive path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolledConfig {
    /// Packets a turn may take, at least 1. Default 8 (section 6.6.2).
    pub quota: u32,
    /// Longest inhibition by one queue. Default one tick of 1/1024 s.
    pub feedback_timeout: Duration,
    /// The part of a CPU that receiving may use; none: no limit. Default
    /// [`CpuLimitConfig::LIMIT`].
    pub cpu_limit: Option<Fraction>,
}

impl Default for PolledConfig {
    fn default() -> Self {
        Self {
            quota: 8,
            feedback_timeout: FeedbackConfig::default().timeout,
            cpu_limit: Some(CpuLimitConfig::LIMIT),
        }
    }
}

impl PolledConfig {
    pub(crate) fn validate(&self) -> Result<(), Error> {
        self.poller().validate()?;
        self.feedback().validate()?;
        Ok(self.limit().map_or(Ok(()), |limit| limit.validate())?)
    }

    fn poller(&self) -> PollerConfig {
        PollerConfig {
            receive_quota: self.quota,
            ..PollerConfig::default()
        }
    }

    fn feedback(&self) -> FeedbackConfig {
        FeedbackConfig {
            timeout: self.feedback_timeout,
            ..FeedbackConfig::default()
        }
    }

    fn limit(&self) -> Option<CpuLimitConfig> {
        self.cpu_limit.map(|limit| CpuLimitConfig {
            limit,
            ..CpuLimitConfig::default()
        })
    }
}

/// The poller and those who may inhibit its input.
#[derive(Debug)]
pub(super) struct Polled {
    poller: Poller,
    source: SourceId,
    feedback: Feedback,
    limit: Option<CpuLimit>,
    watermarks: Watermarks,
    /// By channel.
    queues: Vec<Option<QueueId>>,
    /// Channels that inhibit now.
    inhibiting: Vec<ChannelId>,
}

/// Our thread is one CPU to the limit.
const THIS_CPU: usize = 0;

impl Polled {
    pub(super) fn new(
        config: &PolledConfig,
        stack: &StackConfig,
        now: Instant,
    ) -> Result<Self, Error> {
        let mut poller = Poller::new(config.poller(), now)?;
        // Completions are found in passing, and when sending asks for them.
        let source = poller
            .register(Driver::Polled(Interrupts::ReceiveOnly))
            .expect("a new poller has no source yet");
        let channels = (stack.channels_max + stack.tcp.connections_max) as usize + SPECIAL;
        let limit = config.limit().map(|limit| CpuLimit::new(limit, now));
        Ok(Self {
            poller,
            source,
            feedback: Feedback::new(config.feedback(), channels)?,
            limit: limit.transpose()?,
            watermarks: Watermarks::of_queue(stack.channel.high_watermark),
            queues: vec![None; channels],
            inhibiting: Vec::with_capacity(channels),
        })
    }

    fn apply(&mut self, change: feedback::Change) {
        if change.inhibit.contains(self.source) {
            let _ = self.poller.inhibit_input(self.source);
        }
        if change.allow.contains(self.source) {
            // This is the poller's thread: it is awake.
            self.poller.allow_input(self.source);
        }
    }

    fn apply_limit(&mut self, change: cpu_limit::Change) {
        match change {
            cpu_limit::Change::None => {}
            cpu_limit::Change::Inhibit => {
                let _ = self.poller.inhibit_all_input();
            }
            cpu_limit::Change::Allow => {
                self.poller.allow_all_input();
            }
        }
    }

    /// Queues that were drained, and times that are up.
    fn look_for_room(&mut self, turn: &Turn<'_>) {
        let now = turn.now;
        if !self.inhibiting.is_empty() {
            let table = turn.host.table.lock();
            let mut inhibiting = std::mem::take(&mut self.inhibiting);
            inhibiting.retain(|&channel| !self.has_room(&table, channel, now));
            self.inhibiting = inhibiting;
            MutexGuard::unlock_fair(table);
        }
        let change = self.feedback.poll_timeout(now);
        self.apply(change);
        if let Some(change) = self.limit.as_mut().map(|limit| limit.poll_timeout(now)) {
            self.apply_limit(change);
        }
    }

    fn has_room(&mut self, table: &Table, channel: ChannelId, now: Instant) -> bool {
        // A channel that is gone holds nothing.
        let occupancy = table.occupancy(channel).unwrap_or(0) as u32;
        if occupancy > self.watermarks.allow_at.unwrap_or(0) {
            return false;
        }
        table.set_inhibiting(channel, false);
        if let Some(queue) = self.queues[channel.0 as usize] {
            let change = self.feedback.on_dequeue(queue, occupancy, now);
            self.apply(change);
        }
        true
    }

    fn receive(&mut self, turn: &mut Turn<'_>, quota: u32) -> io::Result<u32> {
        let received = turn.host.device.receive(turn.batch, quota as usize)?;
        turn.tally.received(received);
        let mut table = turn.host.table.lock();
        while let Some(frame) = turn.batch.pop_front() {
            let Some(to) = table.classify(&frame, turn.tally, turn.now) else {
                continue;
            };
            if let Some(queued) = process_and_push(turn, &mut table, frame, &to) {
                self.on_enqueue(&table, to.channel, queued, turn.now)?;
            }
        }
        table.wake_receivers();
        MutexGuard::unlock_fair(table);
        Ok(received as u32)
    }

    fn on_enqueue(
        &mut self,
        table: &Table,
        channel: ChannelId,
        queued: usize,
        now: Instant,
    ) -> io::Result<()> {
        let place = channel.0 as usize;
        let queue = match self.queues[place] {
            Some(queue) => queue,
            None => {
                let sources = SourceSet::EMPTY.with(self.source);
                let registered = self.feedback.register(self.watermarks, sources);
                let (queue, change) = registered.map_err(io::Error::other)?;
                self.apply(change);
                *self.queues[place].insert(queue)
            }
        };
        let change = self.feedback.on_enqueue(queue, queued as u32, now);
        if !change.inhibit.is_empty() && !self.inhibiting.contains(&channel) {
            self.inhibiting.push(channel);
            table.set_inhibiting(channel, true);
        }
        self.apply(change);
        Ok(())
    }

    /// When something is due although nothing happens.
    fn next_timeout(&self) -> Option<Instant> {
        let limit = self.limit.as_ref().and_then(CpuLimit::next_timeout);
        let times = [
            self.poller.next_wakeup(),
            self.feedback.next_timeout(),
            limit,
        ];
        times.into_iter().flatten().min()
    }
}

impl Path for Polled {
    fn turn(&mut self, turn: &mut Turn<'_>) -> io::Result<Next> {
        self.turn_by(clock::now, turn)
    }
}

impl Polled {
    /// A turn; `clock` tells when it ends.
    fn turn_by(
        &mut self,
        clock: impl FnOnce() -> Instant,
        turn: &mut Turn<'_>,
    ) -> io::Result<Next> {
        self.look_for_room(turn);
        if turn.arrived {
            // Whatever it answers: this is the polling thread, and awake.
            let _ = self.poller.on_interrupt(self.source, Directions::RECEIVE);
        }
        let Some(visit) = self.poller.poll_next(turn.now) else {
            return Ok(Next::Wait {
                device: self.poller.interrupts(self.source).receive,
                until: self.next_timeout(),
            });
        };
        if let Some(limit) = &mut self.limit {
            limit.on_enter(THIS_CPU, turn.now);
        }
        let handled = match visit.direction {
            Direction::Receive => self.receive(turn, visit.quota)?,
            Direction::Transmit => {
                // Nothing to send: the device takes completions in.
                turn.host.device.transmit(turn.batch)?;
                0
            }
        };
        let more = handled == visit.quota;
        let _ = self.poller.on_turn_done(visit, handled, more);
        let change = self
            .limit
            .as_mut()
            .map(|limit| limit.on_exit(THIS_CPU, clock()));
        self.apply_limit(change.unwrap_or(cpu_limit::Change::None));
        Ok(Next::Again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::simulated::{SimulatedConfig, SimulatedDevice};
    use crate::stack::Parts;

    /// A stack that was not started, with twenty frames on its device, and its receiving thread's
    /// state. The clock is moved by hand.
    struct ByHand {
        _cable: SimulatedDevice,
        parts: Parts,
        polled: Polled,
    }

    impl ByHand {
        fn new(cpu_limit: Option<Fraction>, now: Instant) -> Self {
            let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
            for _ in 0..20 {
                assert!(cable.send(&[0xff; 60]));
            }
            let stack = StackConfig::at("10.0.0.2/24".parse().unwrap());
            let config = PolledConfig {
                cpu_limit,
                ..PolledConfig::default()
            };
            Self {
                _cable: cable,
                parts: Parts::assemble(device, &stack).unwrap(),
                polled: Polled::new(&config, &stack, now).unwrap(),
            }
        }

        /// Turns that begin at `now` and take a millisecond each, until one has nothing to do.
        /// Returns what is waited for, and how many frames have been received.
        fn turns_at(&mut self, now: Instant) -> (Next, u64) {
            let receiver = &mut self.parts.receiver;
            let mut arrived = true;
            loop {
                let mut turn = Turn {
                    host: &receiver.host,
                    tally: &receiver.tally,
                    batch: &mut receiver.batch,
                    arrived,
                    now,
                };
                let end = now + Duration::from_millis(1);
                let next = self.polled.turn_by(|| end, &mut turn).unwrap();
                if next != Next::Again {
                    return (next, receiver.host.counts().received);
                }
                arrived = false;
            }
        }
    }

    /// MR-52 to MR-54: in a period of 10 ms a fifth of the CPU is one turn of either direction.
    #[test]
    fn input_stops_when_packets_have_used_their_share_of_a_period() {
        let mut now = Instant::ZERO;
        let mut by_hand = ByHand::new(Some(Fraction::from_percent(20)), now);
        for received in [8, 16] {
            let until = now + Duration::from_millis(10);
            let inhibited = Next::Wait {
                device: false,
                until: Some(until),
            };
            assert_eq!(by_hand.turns_at(now), (inhibited, received));
            let just_before = Instant::from_nanos(until.as_nanos() - 1);
            assert_eq!(by_hand.turns_at(just_before), (inhibited, received));
            now = until;
        }
        let all = by_hand.turns_at(now).1;
        assert_eq!(all, 20);
    }

    #[test]
    fn without_a_limit_input_goes_on() {
        let now = Instant::ZERO;
        let (next, received) = ByHand::new(None, now).turns_at(now);
        assert!(matches!(next, Next::Wait { device: true, .. }), "{next:?}");
        assert_eq!(received, 20);
    }
}
