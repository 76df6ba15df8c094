//! Soft-timer polling (BL-20): a soft event polls the adapters at trigger states.
//!
//! **Rules.** While a CPU is idle interrupts are on and work as usual. While none
//! is, they are off; a soft event polls, at intervals that find the wanted number
//! of packets on average. Trigger states are the ends of system calls and
//! interrupt handlers, and each packet sent. [`SoftTimers`] and [`Aggregation`]
//! decide; the clock is the backup.
//!
//! **Where excess is dropped.** On the rings if they fill between two polls, then
//! on the kernel's queues: this saves interrupts, it does not bound work.

use std::time::Duration;

use plimsoll_core::aggregation::{Aggregation, AggregationConfig, NextPoll};
use plimsoll_core::soft_timer::{
    EventId, SoftTimerConfig, SoftTimers, TriggerCounts, TriggerSource,
};

use super::poll_visit::PollVisit;
use super::stages::{Behind, ReceiveHandler};
use super::{Parts, Path};
use crate::Error;
use crate::host::{Cx, Host, LineKind, Running, Step};
use crate::scenario::SoftTimerPollingConfig;

/// Costs of the facility, in ns.
#[derive(Clone, Copy, Debug)]
struct TimerCosts {
    check: u64,
    event: u64,
    poll_pass: u64,
}

/// The path.
#[derive(Debug)]
pub(super) struct SoftTimerPolling {
    timer_costs: TimerCosts,
    handler: ReceiveHandler,
    behind: Behind,
    visit: PollVisit,
    timers: SoftTimers<()>,
    aggregation: Aggregation,
    counts: TriggerCounts,
    /// Interrupts are off.
    polling: bool,
    /// The next poll.
    planned: Option<EventId>,
    /// The handler of a trigger state: an event is being run.
    event: bool,
    polls: u64,
    found: u64,
}

impl SoftTimerPolling {
    pub(super) fn new(parts: &Parts<'_>, config: &SoftTimerPollingConfig) -> Result<Self, Error> {
        let timers = SoftTimerConfig {
            interrupt_clock_resolution_hz: parts.profile.clock_hz.into(),
            capacity: 4,
            ..SoftTimerConfig::default()
        };
        let aggregation = AggregationConfig {
            quota: config.quota,
            interval_max: Duration::from_millis(1),
            ..AggregationConfig::default()
        };
        Ok(Self {
            timer_costs: TimerCosts {
                check: parts.cost("timer_check")?,
                event: parts.cost("timer_event")?,
                poll_pass: parts.cost("poll_pass")?,
            },
            handler: ReceiveHandler::new(parts.costs),
            behind: Behind::new(parts.costs),
            visit: PollVisit::default(),
            timers: SoftTimers::new(timers).map_err(Error::core("the soft timers"))?,
            aggregation: Aggregation::new(aggregation).map_err(Error::core("the aggregation"))?,
            counts: TriggerCounts::default(),
            polling: false,
            planned: None,
            event: false,
            polls: 0,
            found: 0,
        })
    }

    fn idle_cpus(host: &Host) -> u32 {
        let idle = |cpu: &&crate::host::Cpu| cpu.thread.is_none() && cpu.running == Running::Idle;
        host.cpus.iter().filter(idle).count() as u32
    }

    /// Sets interrupts and the next poll as the core wants them.
    fn apply(&mut self, host: &mut Host, next: NextPoll) {
        // Whatever was planned before is replaced, so that one event is pending.
        if let Some(planned) = self.planned.take() {
            self.timers.cancel(planned);
        }
        match next {
            NextPoll::ByInterrupt => {
                if std::mem::take(&mut self.polling) {
                    for adapter in 0..host.adapters.len() {
                        for queue in 0..host.adapters[adapter].rings.len() {
                            host.enable_receive(adapter, queue);
                        }
                        host.enable_transmit(adapter);
                    }
                }
            }
            NextPoll::At(at) => {
                if !std::mem::replace(&mut self.polling, true) {
                    host.disable_interrupts();
                }
                let wait = at.saturating_since(host.instant());
                let ticks = self.timers.ticks(wait);
                let planned = self.timers.schedule_soft_event(host.instant(), ticks, ());
                debug_assert!(planned.is_ok(), "there is room for one event");
                self.planned = planned.ok();
            }
        }
    }
}

impl Path for SoftTimerPolling {
    fn start(&mut self, host: &mut Host) {
        self.handler.start(host);
        self.behind.start(host);
    }

    fn on_trigger(&mut self, host: &mut Host, cpu: usize, source: TriggerSource) {
        self.counts.on_state(source);
        if !self.polling && Self::idle_cpus(host) == 0 {
            let next = self.aggregation.on_idle_cpus(host.instant(), 0);
            self.apply(host, next);
        }
        host.raise(host.cpus[cpu].trigger);
    }

    fn on_tick(&mut self, host: &mut Host, cpu: usize) {
        self.on_trigger(host, cpu, TriggerSource::BackupInterrupt);
    }

    fn idle(&mut self, host: &mut Host, _cpu: usize) -> Step {
        let next = self.aggregation.on_idle_cpus(host.instant(), 1);
        self.apply(host, next);
        Step::Done
    }

    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step {
        let costs = self.behind.costs;
        match kind {
            LineKind::Trigger if self.event => {
                let pass = self.timer_costs.poll_pass;
                let step = self.visit.step(host, cx, &costs, u32::MAX, pass);
                if step == Step::Done {
                    self.event = false;
                    self.polls += 1;
                    self.found += u64::from(self.visit.found);
                    let next = self.aggregation.on_poll(host.instant(), self.visit.found);
                    self.apply(host, next);
                }
                step
            }
            LineKind::Trigger => {
                if self.timers.poll_event(host.instant()).is_some() && self.polling {
                    self.event = true;
                    self.counts.on_fired(TriggerSource::SystemCall);
                    return Step::Kernel(self.timer_costs.check + self.timer_costs.event);
                }
                // The check has a price, but takes effect with the next state.
                Step::Done
            }
            LineKind::Receive { adapter, queue } => {
                let at = (adapter, queue);
                let step = self.handler.step_queueing(host, cx, at, u32::MAX, |_| ());
                if step == Step::Done {
                    if !self.polling {
                        host.enable_receive(adapter, queue);
                    }
                    self.on_trigger(host, cx.cpu, TriggerSource::NetworkInterrupt);
                }
                step
            }
            LineKind::Transmit { .. } => {
                let step = self.behind.line(host, cx, kind);
                if step == Step::Done {
                    host.adapters
                        .iter_mut()
                        .for_each(|device| device.transmit_enabled &= !self.polling);
                    self.on_trigger(host, cx.cpu, TriggerSource::NetworkInterrupt);
                }
                step
            }
            kind => {
                let step = self.behind.line(host, cx, kind);
                if step == Step::Done {
                    self.on_trigger(host, cx.cpu, TriggerSource::TcpIpOther);
                }
                step
            }
        }
    }

    fn on_measure(&mut self, _host: &Host) {
        self.counts = TriggerCounts::default();
        self.polls = 0;
        self.found = 0;
    }

    fn figures(&self, _host: &Host, list: &mut Vec<(String, f64)>) {
        let states: u64 = self.counts.iter().map(|(_, states, _)| states).sum();
        list.push(("trigger_states".into(), states as f64));
        if self.polls > 0 {
            let found = self.found as f64 / self.polls as f64;
            list.push(("found_per_poll_packets".into(), found));
        }
        let interval = self.aggregation.interval().as_nanos() as f64 / 1e3;
        list.push(("poll_interval_us".into(), interval));
    }
}
