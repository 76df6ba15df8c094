//! Receive paths: who works on a packet, when, at which level. Paths that differ little
//! share a file. Ids such as `BL-10` are the papers' architectures (`docs/papers.md`).
//!
//! A path is asked what its handlers and threads do next, and answers with a
//! [`Step`]; the effects of a step take place when it is asked again. Decisions
//! that Plimsoll makes (what to poll next, when to stop input, how long to hold
//! an interrupt off) are made by `plimsoll-core` here as everywhere.

mod adaptive_holdoff;
mod batched;
mod busy_polling;
mod channels;
mod classes;
mod cycle_limits;
mod early_demux;
mod early_discard;
mod fixed_holdoff;
mod governed_guard;
mod governing;
mod high_level;
mod hip;
mod holdoff;
mod lazy;
mod napi;
mod ni_lrp;
mod overload_disable;
mod point_polling;
mod poll_visit;
mod polling_thread;
mod polling_watchdog;
mod queue_feedback;
mod soft_lrp;
mod soft_timer_polling;
mod sources;
mod stages;
mod timed_polling;

use plimsoll_core::soft_timer::TriggerSource;

use adaptive_holdoff::AdaptiveHoldoff;
use batched::Batched;
use busy_polling::BusyPolling;
use early_demux::EarlyDemux;
use fixed_holdoff::FixedHoldoff;
use governed_guard::GovernedGuard;
use high_level::HighLevel;
use hip::Hip;
use lazy::DatagramWork;
use napi::Napi;
use ni_lrp::NiLrp;
use overload_disable::OverloadDisable;
use point_polling::PointPolling;
use polling_thread::PollingThread;
use polling_watchdog::PollingWatchdog;
use soft_lrp::SoftLrp;
use soft_timer_polling::SoftTimerPolling;
use stages::Costs;
use timed_polling::TimedPolling;

use crate::Error;
use crate::host::{Cx, Host, LineKind, Step};
use crate::profile::Profile;
use crate::scenario::{PathConfig, Scenario};

/// What a receive call finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A packet, now in the thread's hand; the call takes so many ns.
    Packet(u64),
    /// Nothing for the caller, but so many ns of protocol work to do.
    Work(u64),
    /// Nothing; the thread sleeps.
    Nothing,
}

/// A receive path.
pub(crate) trait Path {
    /// Creates what it needs on the machine, which is complete otherwise.
    fn start(&mut self, _host: &mut Host) {}

    /// A packet was put on a receive ring.
    fn on_arrival(&mut self, host: &mut Host, adapter: usize, queue: usize) {
        host.interrupt_receive(adapter, queue);
    }

    /// An adapter has transmitted a packet.
    fn on_transmitted(&mut self, host: &mut Host, adapter: usize) {
        host.interrupt_transmit(adapter);
    }

    /// What the handler of a line does next.
    fn line(&mut self, host: &mut Host, cx: Cx, kind: LineKind) -> Step;

    /// What the path's thread number `index` does next.
    fn thread(&mut self, _host: &mut Host, _index: usize, _thread: usize) -> Step {
        Step::Done
    }

    /// `thread` asks for a packet of consumer `endpoint`.
    fn receive(&mut self, host: &mut Host, endpoint: usize, thread: usize) -> Received {
        stages::receive_from_socket(host, endpoint, thread)
    }

    /// What an idle CPU does; [`Step::Done`] sleeps until something happens.
    fn idle(&mut self, _host: &mut Host, _cpu: usize) -> Step {
        Step::Done
    }

    /// The clock ticked on `cpu`.
    fn on_tick(&mut self, _host: &mut Host, _cpu: usize) {}

    /// One of the path's timers expired.
    fn on_timer(&mut self, _host: &mut Host, _timer: usize) {}

    /// `cpu` passes a trigger state.
    fn on_trigger(&mut self, _host: &mut Host, _cpu: usize, _source: TriggerSource) {}

    /// An adapter's own processor has demultiplexed a packet.
    fn on_demultiplexed(&mut self, _host: &mut Host, _adapter: usize) {}

    /// Packets that are neither in the machine's queues nor in anybody's hand.
    fn held(&self) -> usize {
        0
    }

    /// Forgets what it counted: the warm-up is over.
    fn on_measure(&mut self, _host: &Host) {}

    /// Its own figures: names with units.
    fn figures(&self, _host: &Host, _list: &mut Vec<(String, f64)>) {}
}

/// What a path is made of, besides its settings.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    profile: &'a Profile,
    host: &'a Host,
    /// The path's name, for errors.
    user: &'static str,
    /// What all drivers pay.
    costs: Costs,
}

impl Parts<'_> {
    /// One of the profile's costs, in ns.
    fn cost(&self, name: &'static str) -> Result<u64, Error> {
        self.profile.cost(name, self.user)
    }
}

/// The path that `scenario` names.
pub(crate) fn build(
    profile: &Profile,
    scenario: &Scenario,
    host: &Host,
) -> Result<Box<dyn Path>, Error> {
    let user = scenario.path.name();
    let parts = &Parts {
        profile,
        host,
        user,
        costs: Costs::load(profile, user)?,
    };
    Ok(match &scenario.path {
        PathConfig::InterruptPerPacket {} => Box::new(Batched::one_by_one(parts)),
        PathConfig::BatchedInterrupts(config) => Box::new(Batched::new(parts, *config)),
        PathConfig::VendorDriver {} => Box::new(Batched::vendor(parts)?),
        PathConfig::OverloadDisable(config) => Box::new(OverloadDisable::new(parts, config)?),
        PathConfig::FixedHoldoff(config) => Box::new(FixedHoldoff::new(parts, config)),
        PathConfig::AdaptiveHoldoff(config) => Box::new(AdaptiveHoldoff::new(parts, *config)?),
        PathConfig::BusyPolling {} => Box::new(BusyPolling::new(parts)?),
        PathConfig::PeriodicPolling(config) => Box::new(TimedPolling::periodic(parts, config)?),
        PathConfig::CodePointPolling(config) => Box::new(PointPolling::in_code(parts, config)?),
        PathConfig::PollingWatchdog(config) => Box::new(PollingWatchdog::new(parts, config)?),
        PathConfig::ClockedInterrupts(config) => Box::new(TimedPolling::clocked(parts, config)?),
        PathConfig::FreebsdPolling(config) => Box::new(PointPolling::freebsd(parts, config)?),
        PathConfig::Hip(config) => Box::new(Hip::new(parts, config)?),
        PathConfig::RateSwitched(config) => Box::new(PollingThread::switched(parts, config)?),
        PathConfig::SoftTimerPolling(config) => Box::new(SoftTimerPolling::new(parts, config)?),
        PathConfig::HighLevel {} => Box::new(HighLevel::new(parts)),
        PathConfig::PollingThread(config) if config.disabled => {
            Box::new(Batched::unused_polling(parts)?)
        }
        PathConfig::PollingThread(config) => Box::new(PollingThread::new(parts, config)?),
        PathConfig::EarlyDemux {} => Box::new(EarlyDemux::new(parts)?),
        PathConfig::SoftLrp {} => Box::new(SoftLrp::path(parts, DatagramWork::Receiver)?),
        PathConfig::NiLrp {} => Box::new(NiLrp::path(parts, DatagramWork::Receiver)?),
        PathConfig::UserLevel(config) if config.adapter => {
            Box::new(NiLrp::path(parts, DatagramWork::Thread)?)
        }
        PathConfig::UserLevel(_) => Box::new(SoftLrp::path(parts, DatagramWork::Thread)?),
        PathConfig::Napi(config) => Box::new(Napi::new(parts, config)?),
        PathConfig::GovernedGuard(config) => Box::new(GovernedGuard::new(parts, config)?),
    })
}
