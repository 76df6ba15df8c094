//! Whose packet is processed next, so that CPU time is shared by weight.
//!
//! Stride scheduling in two levels, classes and the consumers of a class. Each
//! has a *pass* that advances with the time charged to it, slower the greater its
//! weight; the least pass is next. Who has no work does not take part, so nothing
//! is left idle (work conservation); who comes back starts at the pass of the one
//! in service, so nobody saves up claims (start-time fair queueing), but keeps a
//! pass that is ahead of that: it has been paid in advance.
//!
//! **How exact.** Of two consumers of a class that both have work all the time,
//! neither gets ahead of the other, in time divided by weight, by more than each
//! one's costliest single charge divided by its weight; the same holds for two
//! classes. The preference for the running consumer
//! ([`SharesConfig::running_lead`]) adds itself to that.
//!
//! **Limits.** What is charged must be measured. Work is not preempted: the
//! costliest packet is the grain. Weights are rounded by at most one in 2²⁸.
//! O(log n) in the size of the table.

use alloc::vec::Vec;
use core::time::Duration;

use super::tournament::Tournament;
use super::{Class, ConsumerId, Guarantees, Weight, nanos};
use crate::config::ConfigError;

/// Settings of [`Shares`].
#[derive(Clone, Copy, Debug)]
pub struct SharesConfig {
    /// The classes.
    pub guarantees: Guarantees,
    /// Consumers are numbered below this.
    pub consumers_max: usize,
    /// CPU time by which the consumer that is running may be served ahead of its
    /// turn (MR-90): its packets are taken in batches, at the price of the others'
    /// wait. Default zero: off.
    pub running_lead: Duration,
}

impl SharesConfig {
    /// Up to `consumers_max` best-effort consumers.
    #[must_use]
    pub const fn new(consumers_max: usize) -> Self {
        Self {
            guarantees: Guarantees::none(),
            consumers_max,
            running_lead: Duration::ZERO,
        }
    }
}

/// A pass: nanoseconds times [`stride`]. A charge is below 2⁸⁸, so 128 bits do not
/// run over.
type Pass = u128;

/// A pass as far as it decides the order, in 2⁻³² nanoseconds at weight 1: leaves
/// room for the consumer's number, and runs over after 584 years.
fn rank(pass: Pass) -> u128 {
    pass >> 16
}

/// How far a nanosecond advances the pass of a `weight`.
fn stride(weight: u64) -> u64 {
    (1 << 48) / weight
}

fn advance(nanos: u64, stride: u64) -> Pass {
    Pass::from(nanos) * Pass::from(stride)
}

/// CPU time charged, and the order of service that follows from it.
#[derive(Clone, Debug)]
pub struct Shares {
    guarantees: Guarantees,
    consumers: Vec<Consumer>,
    classes: Vec<ClassState>,
    /// The pass of the class served last.
    virtual_time: Pass,
    running: Option<ConsumerId>,
    running_lead_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Consumer {
    class: u8,
    stride: u64,
    pass: Pass,
    charged_ns: u64,
}

#[derive(Clone, Debug)]
struct ClassState {
    stride: u64,
    pass: Pass,
    /// The least pass of its consumers when it was served last.
    virtual_time: Pass,
    /// The consumers with work.
    ready: Tournament,
}

impl Shares {
    /// Consumers 0 to `consumers_max` − 1, all of weight 1 and best effort.
    #[must_use]
    pub fn new(config: SharesConfig) -> Self {
        let consumer = Consumer {
            class: Class::BEST_EFFORT.0,
            stride: stride(1),
            pass: 0,
            charged_ns: 0,
        };
        let class = |index| ClassState {
            stride: stride(config.guarantees.share(index)),
            pass: 0,
            virtual_time: 0,
            ready: Tournament::new(config.consumers_max),
        };
        Self {
            guarantees: config.guarantees,
            consumers: alloc::vec![consumer; config.consumers_max],
            classes: (0..config.guarantees.classes).map(class).collect(),
            virtual_time: 0,
            running: None,
            running_lead_ns: nanos(config.running_lead),
        }
    }

    /// Gives `consumer` a class and a weight in it. A new owner of the number
    /// should [`reset`](Self::reset) it first. Takes effect for what is charged
    /// from now on.
    ///
    /// # Errors
    ///
    /// Consumer, class or weight is out of range.
    pub fn configure(
        &mut self,
        consumer: ConsumerId,
        class: Class,
        weight: Weight,
    ) -> Result<(), ConfigError> {
        self.guarantees
            .check(consumer, self.consumers.len(), class, weight)?;
        let (had_work, old) = (self.has_work(consumer), self.consumers[consumer.index()]);
        self.consumers[consumer.index()].stride = stride(weight.into());
        if old.class != class.0 {
            self.on_drained(consumer);
            let state = &mut self.consumers[consumer.index()];
            // Passes of different classes cannot be compared.
            (state.class, state.pass) = (class.0, 0);
            if had_work {
                self.on_backlog(consumer);
            }
        }
        Ok(())
    }

    /// Forgets what `consumer` was charged, and its work.
    pub fn reset(&mut self, consumer: ConsumerId) {
        self.on_drained(consumer);
        let state = &mut self.consumers[consumer.index()];
        (state.pass, state.charged_ns) = (0, 0);
        self.running = self.running.filter(|&running| running != consumer);
    }

    /// The process that the CPU is running, for
    /// [`running_lead`](SharesConfig::running_lead).
    pub fn set_running(&mut self, consumer: Option<ConsumerId>) {
        self.running = consumer;
    }

    /// `consumer` has packets to be processed.
    pub fn on_backlog(&mut self, consumer: ConsumerId) {
        let state = &mut self.consumers[consumer.index()];
        let class = &mut self.classes[usize::from(state.class)];
        if class.ready.contains(consumer.0) {
            return;
        }
        if class.ready.is_empty() {
            class.pass = class.pass.max(self.virtual_time);
        }
        state.pass = state.pass.max(class.virtual_time);
        class.ready.set(consumer.0, rank(state.pass));
    }

    /// `consumer` has no packets left.
    pub fn on_drained(&mut self, consumer: ConsumerId) {
        let class = self.consumers[consumer.index()].class;
        self.classes[usize::from(class)].ready.remove(consumer.0);
    }

    /// Whose packet to process next; `None` if nobody has any.
    pub fn poll_next(&mut self) -> Option<ConsumerId> {
        let with_work = self
            .classes
            .iter_mut()
            .filter(|class| !class.ready.is_empty());
        let class = with_work.min_by_key(|class| class.pass)?;
        let first = class.ready.winner()?;
        let least = self.consumers[first as usize].pass;
        self.virtual_time = class.pass;
        class.virtual_time = least;
        let preferred = self.running.filter(|running| {
            let state = &self.consumers[running.index()];
            let bound = least + advance(self.running_lead_ns, state.stride);
            self.running_lead_ns > 0 && class.ready.contains(running.0) && state.pass <= bound
        });
        Some(preferred.unwrap_or(ConsumerId(first)))
    }

    /// Processing for `consumer` took `cost` of CPU time; `more` packets are
    /// waiting for it, or none.
    pub fn on_served(&mut self, consumer: ConsumerId, cost: Duration, more: bool) {
        if !more {
            self.on_drained(consumer);
        }
        self.charge(consumer, cost);
    }

    /// Puts `cost` of CPU time on the account of `consumer`, be it waiting for
    /// packets or not: protocol timers, asynchronous TCP processing, the handler
    /// that took its packet in. Counts as a nanosecond at least.
    pub fn charge(&mut self, consumer: ConsumerId, cost: Duration) {
        let cost_ns = nanos(cost).max(1);
        let state = &mut self.consumers[consumer.index()];
        state.charged_ns = state.charged_ns.saturating_add(cost_ns);
        state.pass += advance(cost_ns, state.stride);
        let class = &mut self.classes[usize::from(state.class)];
        class.pass += advance(cost_ns, class.stride);
        if class.ready.contains(consumer.0) {
            class.ready.set(consumer.0, rank(state.pass));
        }
    }

    /// All CPU time charged to `consumer` so far.
    #[must_use]
    pub fn charged(&self, consumer: ConsumerId) -> Duration {
        Duration::from_nanos(self.consumers[consumer.index()].charged_ns)
    }

    fn has_work(&self, consumer: ConsumerId) -> bool {
        let class = self.consumers[consumer.index()].class;
        self.classes[usize::from(class)].ready.contains(consumer.0)
    }
}

#[cfg(test)]
mod tests;
