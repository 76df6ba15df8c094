//! Departures: when which paced connection may send its next segment.
//!
//! All paced connections of a stack are flows of one [`Pacer`]: each has one outstanding
//! soft event at most, however many segments it has to send (ST-27, ST-28). The TCP thread
//! passes a trigger state in each of its turns and sends one segment of every connection
//! whose event is due (ST-33). Between turns a timer descriptor wakes it.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use plimsoll_core::demux::ChannelId;
use plimsoll_core::pacing::{FlowError, FlowId, FlowRates, Pacer, PacerConfig, Rate};
use plimsoll_core::time::Instant;

/// How far behind its rate a connection may be and still catch up. What it sends to catch
/// up waits in the bottleneck's queue, if its rate is the bottleneck's: at 100 Mbit/s
/// these are 83 packets.
const DEFICIT_MAX: Duration = Duration::from_millis(10);

/// The flows of a stack. Takes its memory when the first one comes.
#[derive(Debug)]
pub(super) struct Departures {
    flows_max: u32,
    flows: Mutex<Option<Flows>>,
}

#[derive(Debug)]
struct Flows {
    pacer: Pacer,
    channels: HashMap<FlowId, ChannelId>,
}

impl Departures {
    pub(super) fn new(flows_max: u32) -> Self {
        Self {
            flows_max,
            flows: Mutex::default(),
        }
    }

    /// A flow for the connection with this channel, which has nothing to send and no rate
    /// yet.
    pub(super) fn open(&self, channel: ChannelId) -> Result<FlowId, FlowError> {
        let rates = FlowRates {
            target: Rate::MIN,
            burst: Rate::MIN,
        };
        let mut place = self.flows.lock();
        let flows = match &mut *place {
            Some(flows) => flows,
            none => none.insert(Flows::new(self.flows_max)?),
        };
        let flow = flows.pacer.add_flow(rates)?;
        flows.channels.insert(flow, channel);
        Ok(flow)
    }

    pub(super) fn close(&self, flow: FlowId) {
        self.with(|flows| {
            flows.channels.remove(&flow);
            // It is there until it is closed, which happens once.
            let _ = flows.pacer.remove_flow(flow);
        });
    }

    /// Nothing happens without a flow, or without rates.
    pub(super) fn set_rates(&self, flow: Option<FlowId>, rates: Option<FlowRates>) {
        if let (Some(flow), Some(rates)) = (flow, rates) {
            // As above; and rates are checked where they come from.
            let _ = self.with(|flows| flows.pacer.set_rates(flow, rates));
        }
    }

    /// The connection has something to send. Its channel, if its departure is the next of all:
    /// then whoever waits for the next must be woken.
    pub(super) fn request(&self, flow: FlowId, now: Instant) -> Option<ChannelId> {
        self.with(|flows| {
            let before = flows.pacer.next_departure();
            let _ = flows.pacer.on_backlog(now, flow);
            let after = flows.pacer.next_departure();
            let earlier = after.is_some_and(|after| before.is_none_or(|before| after < before));
            let channel = flows.channels.get(&flow).copied();
            channel.filter(|_| earlier)
        })?
    }

    /// The channel of a connection that may send one segment now.
    pub(super) fn take_due(&self, now: Instant) -> Option<ChannelId> {
        self.with(|flows| {
            let flow = flows.pacer.poll_departure(now)?;
            flows.channels.get(&flow).copied()
        })?
    }

    /// The connection sent a frame of so many bytes.
    pub(super) fn on_sent(&self, flow: FlowId, bytes: usize, now: Instant) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.with(|flows| flows.pacer.on_sent(now, flow, bytes, false));
    }

    /// When the next one may be due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.with(|flows| flows.pacer.next_departure())?
    }

    fn with<R>(&self, act: impl FnOnce(&mut Flows) -> R) -> Option<R> {
        self.flows.lock().as_mut().map(act)
    }
}

impl Flows {
    fn new(flows_max: u32) -> Result<Self, FlowError> {
        let config = PacerConfig {
            flows: flows_max,
            deficit_max: DEFICIT_MAX,
            ..PacerConfig::default()
        };
        Ok(Self {
            pacer: Pacer::new(config)?,
            channels: HashMap::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// 1500 bytes every 120 µs.
    fn open(departures: &Departures, channel: u32) -> FlowId {
        let flow = departures.open(ChannelId(channel)).unwrap();
        let rates = FlowRates {
            target: Rate::clamped(100_000_000),
            burst: Rate::clamped(200_000_000),
        };
        departures.set_rates(Some(flow), Some(rates));
        flow
    }

    /// ST-28, ST-33: one event per connection, and none sends twice in one turn.
    #[test]
    fn each_connection_has_one_departure_however_often_it_asks() {
        let departures = Departures::new(4);
        let flows = [1, 2].map(|channel| open(&departures, channel));
        for _ in 0..3 {
            for flow in flows {
                departures.request(flow, at(10));
            }
        }
        let due = || std::iter::from_fn(|| departures.take_due(at(20)));
        assert_eq!(due().collect::<Vec<_>>(), [ChannelId(1), ChannelId(2)]);
        for flow in flows {
            departures.on_sent(flow, 1500, at(20));
            departures.request(flow, at(20));
        }
        assert_eq!(due().count(), 0);
        assert!(departures.next().unwrap() > at(100));
    }

    #[test]
    fn only_an_earlier_departure_wakes_who_waits() {
        let departures = Departures::new(4);
        let (one, other) = (open(&departures, 1), open(&departures, 2));
        assert_eq!(departures.request(one, at(50)), Some(ChannelId(1)));
        assert_eq!(departures.request(one, at(50)), None);
        assert_eq!(departures.request(other, at(60)), None);
        assert_eq!(departures.take_due(at(70)), Some(ChannelId(1)));
        departures.on_sent(one, 1500, at(70));
        departures.close(other);
        assert_eq!(
            departures.next(),
            None,
            "a closed connection departs no more"
        );
    }
}
