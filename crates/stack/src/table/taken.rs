//! What was taken off the channels of UDP sockets: for a device that asks who is flooded.

use std::collections::HashMap;
use std::net::SocketAddr;

use parking_lot::Mutex;
use plimsoll_core::channel::{Monitor, Outcome};
use plimsoll_core::demux::{ChannelId, Protocol};

use crate::device::{Endpoint, Readers};

/// By channel, where its socket was bound.
#[derive(Debug, Default)]
pub(super) struct Taken(Mutex<HashMap<ChannelId, (SocketAddr, Monitor)>>);

impl Taken {
    pub(super) fn add(&self, channel: ChannelId, bound: SocketAddr, monitor: Monitor) {
        self.0.lock().insert(channel, (bound, monitor));
    }

    pub(super) fn remove(&self, channel: ChannelId) {
        self.0.lock().remove(&channel);
    }
}

impl Readers for Taken {
    fn taken(&self, endpoint: Endpoint) -> Option<u64> {
        if endpoint.protocol != Protocol::Udp {
            return None;
        }
        let channels = self.0.lock();
        let of_endpoint = channels
            .values()
            .filter(|(bound, _)| *bound == endpoint.local);
        let counts = of_endpoint.map(|(_, monitor)| monitor.counts()[Outcome::Delivered]);
        counts.reduce(|sum, one| sum + one)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::channel::{ChannelConfig, channel};
    use plimsoll_core::time::Instant;

    use super::*;

    #[test]
    fn sockets_that_share_an_endpoint_are_one_reader() {
        let taken = Taken::default();
        let (port_7, port_8) = ("10.0.0.2:7", "10.0.0.2:8");
        let bound = [port_7, port_7, port_8].map(|text| text.parse().unwrap());
        let mut channels = bound.map(|_| channel(&ChannelConfig::drop_tail(4)).unwrap());
        for (number, (producer, _)) in channels.iter().enumerate() {
            taken.add(ChannelId(number as u32), bound[number], producer.monitor());
        }
        let at = |protocol, local| taken.taken(Endpoint { protocol, local });
        assert_eq!(at(Protocol::Udp, bound[0]), Some(0));
        for (producer, consumer) in &mut channels {
            let _ = producer.push(1, Instant::ZERO);
            let _ = producer.push(2, Instant::ZERO);
            consumer.pop(Instant::ZERO);
        }
        assert_eq!(at(Protocol::Udp, bound[0]), Some(2), "of two queues");
        assert_eq!(at(Protocol::Udp, bound[2]), Some(1));
        assert_eq!(at(Protocol::Tcp, bound[0]), None);
        taken.remove(ChannelId(2));
        assert_eq!(at(Protocol::Udp, bound[2]), None, "nobody has it");
    }
}
