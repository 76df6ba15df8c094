//! Receive paths: who works on a packet, when, at which level. One file each.
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
mod ni_lrp;
mod overload_disable;
mod point_polling;
mod polling_thread;
mod polling_watchdog;
mod queue_feedback;
mod soft_lrp;
mod soft_timer_polling;
mod stages;
mod timed_polling;

use plimsoll_core::soft_timer::TriggerSource;

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

/// The path that `scenario` names.
pub(crate) fn build(
    profile: &Profile,
    scenario: &Scenario,
    host: &Host,
) -> Result<Box<dyn Path>, Error> {
    let config = &scenario.path;
    let user = config.name();
    let costs = stages::Costs::load(profile, user)?;
    let cost = |name| profile.cost(name, user);
    Ok(match config {
        PathConfig::InterruptPerPacket {}
        | PathConfig::BatchedInterrupts { .. }
        | PathConfig::VendorDriver {}
        | PathConfig::PollingThread { disabled: true, .. } => {
            let options = batched_options(profile, config)?;
            Box::new(batched::Batched::new(costs, options))
        }
        PathConfig::PollingThread { .. } | PathConfig::RateSwitched { .. } => {
            let made = polling_thread::PollingThread::new(profile, config, costs, host)?;
            Box::new(made)
        }
        PathConfig::HighLevel {} => Box::new(high_level::HighLevel::new(costs)),
        PathConfig::EarlyDemux {} => Box::new(early_demux::EarlyDemux::new(
            costs,
            cost("demux")?,
            cost("protocol_lookup")?,
            host,
        )?),
        PathConfig::SoftLrp {} | PathConfig::UserLevel { adapter: false } => {
            let eager = matches!(config, PathConfig::UserLevel { .. });
            let demux = cost("demux")?;
            Box::new(soft_lrp::SoftLrp::new(costs, demux, eager, host)?)
        }
        PathConfig::NiLrp {} | PathConfig::UserLevel { .. } => {
            let eager = matches!(config, PathConfig::UserLevel { .. });
            let demux = cost("adapter_demux")?;
            Box::new(ni_lrp::NiLrp::new(costs, demux, eager, host)?)
        }
        PathConfig::GovernedGuard { .. } => {
            let made = governed_guard::GovernedGuard::new(profile, config, costs, host)?;
            Box::new(made)
        }
        limiting => limiting_interrupts(profile, limiting, costs, host.cpus.len())?,
    })
}

/// The paths that have fewer interrupts, or none.
fn limiting_interrupts(
    profile: &Profile,
    config: &PathConfig,
    costs: stages::Costs,
    cpus: usize,
) -> Result<Box<dyn Path>, Error> {
    let nanos = crate::source::nanos;
    let cost = |name| profile.cost(name, config.name());
    Ok(match *config {
        PathConfig::OverloadDisable {
            share_pct,
            period_ms,
            samples,
        } => {
            let share = (share_pct, period_ms);
            let made = overload_disable::OverloadDisable::new(costs, share, samples, cpus)?;
            Box::new(made)
        }
        PathConfig::FixedHoldoff {
            holdoff_us,
            free_late,
        } => {
            let holdoff = nanos(holdoff_us);
            Box::new(fixed_holdoff::FixedHoldoff::new(costs, holdoff, free_late))
        }
        PathConfig::AdaptiveHoldoff { .. } => {
            Box::new(adaptive_holdoff::AdaptiveHoldoff::new(costs, config)?)
        }
        PathConfig::PeriodicPolling { .. } | PathConfig::ClockedInterrupts { .. } => {
            let options = timed_options(profile, config)?;
            Box::new(timed_polling::TimedPolling::new(costs, options))
        }
        PathConfig::CodePointPolling { .. } | PathConfig::FreebsdPolling { .. } => {
            let options = point_options(profile, config)?;
            Box::new(point_polling::PointPolling::new(costs, options))
        }
        PathConfig::PollingWatchdog {
            interval_us,
            poll_us,
        } => {
            let (interval, poll) = (nanos(interval_us), nanos(poll_us));
            let pass = cost("poll_pass")?;
            Box::new(polling_watchdog::PollingWatchdog::new(
                costs, interval, poll, pass,
            ))
        }
        PathConfig::Hip {
            threshold_pps,
            interval_min_us,
            buffers,
        } => {
            let when = (threshold_pps, nanos(interval_min_us));
            Box::new(hip::Hip::new(costs, when, buffers, cost("poll_pass")?))
        }
        PathConfig::SoftTimerPolling { quota } => {
            let timer_costs = soft_timer_polling::TimerCosts {
                check: cost("timer_check")?,
                event: cost("timer_event")?,
                poll_pass: cost("poll_pass")?,
            };
            let hz = u64::from(profile.clock_hz);
            let made = soft_timer_polling::SoftTimerPolling::new(costs, timer_costs, quota, hz)?;
            Box::new(made)
        }
        _ => Box::new(busy_polling::BusyPolling::new(costs, cost("poll_pass")?)),
    })
}

fn batched_options(profile: &Profile, config: &PathConfig) -> Result<batched::Options, Error> {
    let options = batched::Options {
        batch: u32::MAX,
        receive_first: false,
        protocol_thread: false,
        detour: 0,
        vendor: 0,
    };
    Ok(match *config {
        PathConfig::BatchedInterrupts {
            receive_first,
            protocol_thread,
        } => batched::Options {
            receive_first,
            protocol_thread,
            ..options
        },
        PathConfig::VendorDriver {} => batched::Options {
            vendor: profile.cost("vendor_driver", config.name())?,
            ..options
        },
        PathConfig::PollingThread { .. } => batched::Options {
            protocol_thread: true,
            detour: profile.cost("poll_pass", config.name())?,
            ..options
        },
        _ => batched::Options {
            batch: 1,
            ..options
        },
    })
}

fn timed_options(profile: &Profile, config: &PathConfig) -> Result<timed_polling::Options, Error> {
    let (interval_us, quota, interrupts) = match *config {
        PathConfig::PeriodicPolling { interval_us, quota } => {
            (interval_us, quota.unwrap_or(u32::MAX), false)
        }
        PathConfig::ClockedInterrupts { rate_hz } => (1e6 / rate_hz, u32::MAX, true),
        _ => unreachable!("asked for these two only"),
    };
    Ok(timed_polling::Options {
        interval: crate::source::nanos(interval_us).max(1),
        quota,
        interrupts,
        poll_pass: profile.cost("poll_pass", config.name())?,
    })
}

fn point_options(profile: &Profile, config: &PathConfig) -> Result<point_polling::Options, Error> {
    let (interval_us, burst, ticks) = match *config {
        PathConfig::CodePointPolling { interval_us } => (interval_us, u32::MAX, false),
        PathConfig::FreebsdPolling { burst } => (0.0, burst, true),
        _ => unreachable!("asked for these two only"),
    };
    Ok(point_polling::Options {
        interval: crate::source::nanos(interval_us),
        ticks,
        burst,
        poll_pass: profile.cost("poll_pass", config.name())?,
    })
}
