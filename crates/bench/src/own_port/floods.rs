//! Who floods: one source, a thousand, a hundred thousand, or nobody's addresses.
//!
//! Every network is a /24 in a /16 of its own, so that fairness among hosts, among /24s
//! and among /16s sees the same number of them.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use plimsoll_testbed::Testbed;
use plimsoll_testbed::blast::{Hosts, Priority, Schedule, Sources, Spec, Transport};
use plimsoll_testbed::crowd::Client;
use plimsoll_testbed::dns::query;
use serde::Serialize;

use crate::Error;
use crate::protection::Stage;
use crate::traffic::{flood, syn_flood};

/// The first network of every flood that has some.
const FIRST_NETWORK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(24, 0, 7, 0), 24);
/// Networks lie in prefixes of this length.
const APART: u8 = 16;
/// Spoofed addresses are drawn from here.
const SPOOFED: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(32, 0, 0, 0), 3);
/// Networks that [`SPOOFED`] has at the coarsest length that is told apart.
const SPOOFED_NETWORKS: u32 = 1 << (APART - SPOOFED.prefix_len());

/// Of [`SourcesFlood::Many`]: its networks, its fast hosts, and the slow ones, which are
/// honest and live in the upper part of the same networks.
const MANY_NETWORKS: u32 = 500;
const MANY_FAST: u32 = 90_000;
const MANY_SLOW: u32 = 10_000;
/// The first host number of the slow ones; the fast ones have 1 to 180.
const FIRST_SLOW: u32 = 224;
const SLOW_PREFIX: u8 = 27;
/// All slow ones together, queries/s: each asks every five seconds.
const SLOW_QPS: f64 = 2_000.0;

/// Clients of their own networks come from here.
pub(crate) const CLIENTS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(70, 0, 0, 0), 8);

/// Who floods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourcesFlood {
    /// One address.
    One,
    /// 1,000 hosts in 16 networks, at equal rates.
    Networks,
    /// 100,000 hosts in 500 networks, a tenth of them slow and honest.
    Many,
    /// Random addresses; the honest client was there before.
    Known,
    /// Random addresses; the honest client comes during the flood.
    Unknown,
}

impl SourcesFlood {
    pub(crate) const ALL: [Self; 5] = [
        Self::One,
        Self::Networks,
        Self::Many,
        Self::Known,
        Self::Unknown,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Networks => "networks",
            Self::Many => "many",
            Self::Known => "known",
            Self::Unknown => "unknown",
        }
    }

    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::One => "one source",
            Self::Networks => "1,000 sources in 16 networks",
            Self::Many => "100,000 sources, a tenth of them slow",
            Self::Known => "random addresses, the client known from before",
            Self::Unknown => "random addresses, the client unknown",
        }
    }

    /// The part of the honest client's queries that is promised, in percent; for the
    /// unknown client it is a share ([`unknown_share`]).
    pub(crate) const fn promised_percent(self) -> Option<f64> {
        match self {
            Self::One => Some(99.5),
            Self::Networks => Some(99.0),
            Self::Many => Some(95.0),
            Self::Known => Some(98.0),
            Self::Unknown => None,
        }
    }

    fn sources(self) -> Sources {
        let hosts = |networks, hosts| {
            Sources::Hosts(Hosts {
                first: FIRST_NETWORK.into(),
                networks,
                apart: APART,
                hosts,
            })
        };
        match self {
            Self::One => hosts(1, 1),
            Self::Networks => hosts(16, 1_000),
            Self::Many => hosts(MANY_NETWORKS, MANY_FAST),
            Self::Known | Self::Unknown => IpNet::V4(SPOOFED).into(),
        }
    }

    /// Datagrams that a DNS server answers and an echo returns.
    pub(crate) fn queries(self, stage: &Stage<'_>, port: u16, rate_pps: u64) -> Spec {
        let payload = query(0);
        let schedule = Schedule::Fixed { rate_pps };
        let mut spec = flood(stage, port, Transport::Udp { payload }, schedule);
        spec.flow.source = self.sources();
        // The client shares this CPU and must not be what limits the server.
        spec.priority = Priority::Idle;
        spec
    }

    /// Connection requests.
    pub(crate) fn syns(self, stage: &Stage<'_>, port: u16, rate_pps: u64) -> Spec {
        let mut spec = syn_flood(stage, port, rate_pps);
        spec.flow.source = self.sources();
        spec
    }
}

/// The max-min share of a client that asks for more, while every spoofed network asks
/// for more as well, in queries/s: one of so many networks. Among single addresses it
/// would be nothing: each of 2^29 asks less than once a minute.
pub(crate) fn unknown_share(capacity_per_s: f64) -> f64 {
    capacity_per_s / f64::from(SPOOFED_NETWORKS + 1)
}

/// The slow hosts of [`SourcesFlood::Many`].
pub(crate) fn slow_clients() -> Vec<Client> {
    let client = |number: u32| {
        let (network, host) = (number % MANY_NETWORKS, number / MANY_NETWORKS);
        Client {
            address: (network_base(network) + FIRST_SLOW + host).into(),
            rate_qps: SLOW_QPS / f64::from(MANY_SLOW),
        }
    };
    (0..MANY_SLOW).map(client).collect()
}

fn network_base(network: u32) -> u32 {
    u32::from(FIRST_NETWORK.network()) + (network << (32 - APART))
}

/// Routes answers to all of these, and makes honest clients' addresses the load host's.
/// Once per testbed.
pub(crate) fn prepare(testbed: &Testbed) -> Result<(), Error> {
    testbed.route_all()?;
    testbed.own(&[CLIENTS])?;
    let slow = |network| {
        let first = Ipv4Addr::from(network_base(network) + FIRST_SLOW);
        Ipv4Net::new_assert(first, SLOW_PREFIX)
    };
    let slow: Vec<Ipv4Net> = (0..MANY_NETWORKS).map(slow).collect();
    Ok(testbed.own(&slow)?)
}

/// The only client of a case that has one.
pub(crate) fn one_client(testbed: &Testbed, rate_qps: f64) -> Vec<Client> {
    let address = testbed.load().ipv4();
    vec![Client { address, rate_qps }]
}

/// A client in a network of its own, by number: a /24 each, 64 of them in a /16.
pub(crate) fn client_address(number: u32) -> Ipv4Addr {
    let base = u32::from(CLIENTS.network()) + 10;
    (base + number * 1024).into()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn the_slow_live_beside_the_fast_and_are_nobody_else() {
        let Sources::Hosts(fast) = SourcesFlood::Many.sources() else {
            panic!("hosts")
        };
        let slow = slow_clients();
        assert_eq!(slow.len() as u32 + fast.hosts, 100_000);
        let rate: f64 = slow.iter().map(|client| client.rate_qps).sum();
        assert!((rate - SLOW_QPS).abs() < 1e-6);
        for client in &slow {
            let [_, _, third, host] = client.address.octets();
            assert!(third == 7 && (224..244).contains(&host), "{client:?}");
        }
        let last = fast.hosts / fast.networks;
        let highest = fast.address(0, last - 1);
        assert_eq!(highest, Some(IpAddr::from([24, 0, 7, 180])));
        let slow_of_last = network_base(MANY_NETWORKS - 1) + FIRST_SLOW;
        assert_eq!(Ipv4Addr::from(slow_of_last).octets(), [25, 243, 7, 224]);
    }

    #[test]
    fn clients_have_networks_of_their_own_and_addresses_that_are_owned() {
        assert_eq!(client_address(0).octets(), [70, 0, 0, 10]);
        assert_eq!(client_address(1).octets(), [70, 0, 4, 10]);
        assert!(CLIENTS.contains(&client_address(9_999)));
        assert!(!SPOOFED.contains(&client_address(0)));
    }

    #[test]
    fn a_spoofed_network_is_one_of_eight_thousand() {
        assert_eq!(SPOOFED_NETWORKS, 8_192);
        assert!((unknown_share(81_930.0) - 10.0).abs() < 1e-9);
    }
}
