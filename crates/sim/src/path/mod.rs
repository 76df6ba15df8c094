//! Receive paths: who works on a packet, when, at which level. One file each.
//!
//! A path is asked what its handlers and threads do next, and answers with a
//! [`Step`]; the effects of a step take place when it is asked again. Decisions
//! that Plimsoll makes (what to poll next, when to stop input, how long to hold
//! an interrupt off) are made by `plimsoll-core` here as everywhere.

mod batched;
mod channels;
mod early_demux;
mod lazy;
mod ni_lrp;
mod polling_thread;
mod soft_lrp;
mod stages;

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
    let user = scenario.path.name();
    let costs = stages::Costs::load(profile, user)?;
    let cost = |name| profile.cost(name, user);
    let options = batched::Options {
        batch: u32::MAX,
        receive_first: false,
        protocol_thread: false,
        detour: 0,
    };
    Ok(match &scenario.path {
        PathConfig::InterruptPerPacket {} => Box::new(batched::Batched::new(
            costs,
            batched::Options {
                batch: 1,
                ..options
            },
        )),
        PathConfig::BatchedInterrupts {
            receive_first,
            protocol_thread,
        } => Box::new(batched::Batched::new(
            costs,
            batched::Options {
                receive_first: *receive_first,
                protocol_thread: *protocol_thread,
                ..options
            },
        )),
        PathConfig::PollingThread { disabled: true, .. } => Box::new(batched::Batched::new(
            costs,
            batched::Options {
                protocol_thread: true,
                detour: cost("poll_pass")?,
                ..options
            },
        )),
        PathConfig::PollingThread { .. } => Box::new(polling_thread::PollingThread::new(
            profile,
            &scenario.path,
            costs,
            host,
        )?),
        PathConfig::EarlyDemux {} => Box::new(early_demux::EarlyDemux::new(
            costs,
            cost("demux")?,
            cost("protocol_lookup")?,
        )),
        PathConfig::SoftLrp {} => Box::new(soft_lrp::SoftLrp::new(costs, cost("demux")?, host)?),
        PathConfig::NiLrp {} => Box::new(ni_lrp::NiLrp::new(costs, cost("adapter_demux")?, host)?),
        other => {
            let allowed = "a path that is built in";
            return Err(Error::scenario("path.kind", other.name(), allowed));
        }
    })
}
