//! Whom the CPU time of receiving is charged to: the consumer whose packets
//! caused it (Druschel & Banga 1996, section 3.4), not whoever was interrupted.
//!
//! The meter knows the time exactly, the program the packets. Each reading's
//! time is divided among all packets since the last one by what an admitted and
//! a discarded packet cost, so that the charges add up to the time measured.
//!
//! Limits: every admitted packet counts as much as every other, and a socket
//! that came and went between two readings is charged under its kind only.

use std::time::Duration;

use plimsoll_core::charge::shedding::PacketCosts;
use plimsoll_core::demux::Kind;

use crate::by_channel::ByChannel;
use crate::counters::{Counters, Outcome, Packets};

/// The accounts.
#[derive(Debug, Default)]
pub(crate) struct Charges {
    network_ns: u64,
    kinds: [Account; Kind::ALL.len()],
    channels: ByChannel<Account>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    packets: Packets,
    charged_ns: u64,
}

impl Account {
    /// What the packets since the last reading weigh.
    fn weight(&mut self, packets: &Packets, costs: PacketCosts) -> f64 {
        let new = packets.saturating_sub(&self.packets);
        self.packets = *packets;
        let admitted = new.count(Outcome::Admitted);
        let discarded = new.offered() - admitted;
        let nanos = |cost: Duration| cost.as_nanos() as f64;
        admitted as f64 * nanos(costs.admitted) + discarded as f64 * nanos(costs.discarded)
    }
}

impl Charges {
    /// Takes a reading of everything: `network_ns` is all time since the start
    /// that receiving has cost, `costs` what packets take. Writes the charges into `counters`.
    pub(crate) fn on_reading(
        &mut self,
        counters: &mut Counters,
        network_ns: u64,
        costs: PacketCosts,
    ) {
        let time = network_ns.saturating_sub(self.network_ns) as f64;
        self.network_ns = network_ns;
        let weights: Vec<f64> = self
            .kinds
            .iter_mut()
            .zip(&counters.totals)
            .map(|(account, packets)| account.weight(packets, costs))
            .collect();
        let all: f64 = weights.iter().sum();
        let for_each = if all > 0.0 { time / all } else { 0.0 };
        for (account, weight) in self.kinds.iter_mut().zip(weights) {
            account.charged_ns += (weight * for_each) as u64;
        }
        counters.charged_ns = self.kinds.map(|account| account.charged_ns);
        self.channels.carry(&mut counters.channels, |channel, old| {
            let mut account = old.unwrap_or_default();
            let weight = account.weight(&channel.packets, costs);
            account.charged_ns += (weight * for_each) as u64;
            channel.charged_ns = account.charged_ns;
            account
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Channel;

    fn reading(flood: (u64, u64), quiet: u64) -> Counters {
        let channels = vec![
            Channel::sample(9, flood.0, flood.1),
            Channel::sample(53, quiet, 0),
        ];
        Counters::sample(channels)
    }

    #[test]
    fn the_flood_is_charged_to_its_consumer_and_all_time_to_somebody() {
        let mut charges = Charges::default();
        let costs = PacketCosts {
            admitted: Duration::from_nanos(2000),
            discarded: Duration::from_nanos(100),
        };
        let mut first = reading((100, 10_000), 100);
        charges.on_reading(&mut first, 1_400_000, costs);
        // 100 × 2000 + 10,000 × 100 against 100 × 2000.
        assert_eq!(first.channels[0].charged_ns, 1_200_000);
        assert_eq!(first.channels[1].charged_ns, 200_000);
        assert_eq!(first.charged_ns[Kind::UdpSocket as usize], 1_400_000);

        let mut second = reading((100, 10_000), 200);
        charges.on_reading(&mut second, 1_500_000, costs);
        assert_eq!(second.channels[0].charged_ns, 1_200_000, "nothing new");
        assert_eq!(second.channels[1].charged_ns, 300_000);
        assert_eq!(second.charged_ns.iter().sum::<u64>(), 1_500_000);
    }
}
