//! The core's feedback, told of the consumers' queues.

use std::time::Duration;

use plimsoll_core::config::Fraction;
use plimsoll_core::feedback::{
    Change, Feedback, FeedbackConfig, QueueId, RegisterError, Watermarks,
};
use plimsoll_core::poll::{SourceId, SourceSet};

use crate::Error;
use crate::host::{EndpointRole, Host, Queued, or_never};
use crate::scenario::{Feedback as Settings, Watermark};

/// [`Feedback`] of some consumers' queues.
#[derive(Debug)]
pub(super) struct QueueFeedback {
    feedback: Feedback,
    /// By consumer.
    queues: Vec<Option<QueueId>>,
}

impl QueueFeedback {
    pub(super) fn new(config: FeedbackConfig, host: &Host) -> Result<Self, Error> {
        let consumers = host.endpoints.len();
        Ok(Self {
            feedback: Feedback::new(config, consumers).map_err(Error::core("the feedback"))?,
            queues: vec![None; consumers],
        })
    }

    /// Feedback from the queues of all processes; its sources are CPUs.
    pub(super) fn of_processes(settings: Settings, host: &Host) -> Result<Self, Error> {
        let mut config = FeedbackConfig {
            timeout: Duration::from_nanos(host.tick_ns),
            // The paper's rule: input goes on after every timeout.
            reprieve_doublings: 0,
            ..FeedbackConfig::default()
        };
        if let Some(timeout) = settings.timeout_ms {
            config.timeout = Duration::from_nanos((timeout * 1e6) as u64);
        }
        let mut feedback = Self::new(config, host)?;
        let all = source_set(host.cpus.len())?;
        for (to, endpoint) in host.endpoints.iter().enumerate() {
            if matches!(endpoint.role, EndpointRole::Forward { .. }) || endpoint.threads.is_empty()
            {
                continue;
            }
            let length = endpoint.queue.limit() as u32;
            let marks = match settings.watermark {
                Watermark::Fill { high_pct, low_pct } => {
                    let part = |pct: f64| Fraction::from_ppm((pct * 1e4) as u32);
                    Watermarks::at(length, part(high_pct), part(low_pct))
                }
                Watermark::Room { packets } => Watermarks::room_for(length, packets),
            };
            feedback.watch(to, marks, all)?;
        }
        Ok(feedback)
    }

    /// Inhibits `sources` by the queue of consumer `to`.
    pub(super) fn watch(
        &mut self,
        to: usize,
        marks: Watermarks,
        sources: SourceSet,
    ) -> Result<(), Error> {
        let registered = self.feedback.register(marks, sources);
        let (queue, _) = registered.map_err(|error| match error {
            RegisterError::Watermarks(error) => Error::core("the feedback's watermarks")(error),
            RegisterError::Full(source) => Error::TooMany {
                user: "the feedback",
                source,
            },
        })?;
        self.queues[to] = Some(queue);
        Ok(())
    }

    /// A packet is on a consumer's queue, or went elsewhere.
    pub(super) fn on_queued(&mut self, host: &Host, queued: Queued) -> Change {
        let Queued::At(to) = queued else {
            return Change::NONE;
        };
        let Some(queue) = self.queues[to] else {
            return Change::NONE;
        };
        let occupancy = host.endpoints[to].queue.len() as u32;
        self.feedback.on_enqueue(queue, occupancy, host.instant())
    }

    /// Consumer `to` has taken a packet off its queue.
    pub(super) fn on_read(&mut self, host: &Host, to: usize) -> Change {
        let Some(queue) = self.queues[to] else {
            return Change::NONE;
        };
        let occupancy = host.endpoints[to].queue.len() as u32;
        self.feedback.on_dequeue(queue, occupancy, host.instant())
    }

    pub(super) fn poll_timeout(&mut self, host: &Host) -> Change {
        self.feedback.poll_timeout(host.instant())
    }

    /// When [`poll_timeout`](Self::poll_timeout) has something to do.
    pub(super) fn next_timeout(&self) -> u64 {
        or_never(self.feedback.next_timeout())
    }
}

/// Feedback treats each CPU's input as one source.
fn source_set(cpus: usize) -> Result<SourceSet, Error> {
    (0..cpus).try_fold(SourceSet::EMPTY, |set, cpu| {
        let source = SourceId::from_index(cpu).map_err(Error::core("the pollers"))?;
        Ok(set.with(source))
    })
}
