//! Where frames claim to come from: one address, a whole prefix, or so many hosts
//! in so many networks.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{AddrParseError, IpNet};

use crate::Error;
use crate::error::check;

/// The most networks of [`Sources::Hosts`].
pub const NETWORKS_MAX: u32 = 65_536;

/// The source addresses of a blast. Each frame's is drawn uniformly, so that every
/// address has the same mean rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// Any address of a prefix; of one longer than /30 all, otherwise IPv4 without the
    /// network and broadcast address.
    Prefix(IpNet),
    /// A number of hosts in a number of networks.
    Hosts(Hosts),
}

/// So many hosts, dealt out evenly over so many networks.
///
/// Host number `h` of network number `n` has the address `first + n × distance + 1 + h`,
/// where networks are as far apart as their own prefix `apart` is large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The first network. It must hold the hosts of one network; IPv6: /64 or shorter.
    pub first: IpNet,
    /// Networks, 1..=[`NETWORKS_MAX`].
    pub networks: u32,
    /// Networks differ in the bits up to this one: with 16, each IPv4 network lies in a
    /// /16 of its own. At most the prefix length of `first`.
    pub apart: u8,
    /// Hosts in all, at least one in each network.
    pub hosts: u32,
}

impl Sources {
    /// Whether these are IPv4 addresses.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.first().addr().is_ipv4()
    }

    /// The prefix, or the first network.
    #[must_use]
    pub fn first(&self) -> IpNet {
        match self {
            Self::Prefix(net) => *net,
            Self::Hosts(hosts) => hosts.first,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        match self {
            Self::Prefix(_) => Ok(()),
            Self::Hosts(hosts) => hosts.validate(),
        }
    }
}

impl Hosts {
    /// The address of the host with this number, from 0 on, in a network; nothing if there is none such.
    #[must_use]
    pub fn address(&self, network: u32, number: u32) -> Option<IpAddr> {
        if network >= self.networks {
            return None;
        }
        match self.first {
            IpNet::V4(first) => {
                let distance = self.distance_v4().checked_mul(network)?;
                let base = u32::from(first.network()).checked_add(distance)?;
                Some(IpAddr::V4(base.checked_add(1 + number)?.into()))
            }
            IpNet::V6(first) => {
                let distance = (u128::from(self.distance_v6()) * u128::from(network)) << 64;
                let base = first.network().to_bits().checked_add(distance)?;
                Some(IpAddr::V6(base.checked_add(1 + u128::from(number))?.into()))
            }
        }
    }

    /// Between the addresses of two networks.
    pub(super) fn distance_v4(&self) -> u32 {
        1_u32.checked_shl(32 - u32::from(self.apart)).unwrap_or(0)
    }

    /// Between the upper halves of two networks.
    pub(super) fn distance_v6(&self) -> u64 {
        1_u64.checked_shl(64 - u32::from(self.apart)).unwrap_or(0)
    }

    fn validate(&self) -> Result<(), Error> {
        check(
            (1..=NETWORKS_MAX).contains(&self.networks),
            "flow.source.networks",
            &self.networks,
            "1 to 65536",
        )?;
        check(
            self.hosts >= self.networks,
            "flow.source.hosts",
            &self.hosts,
            "at least one in each network",
        )?;
        check(
            (1..=self.first.prefix_len()).contains(&self.apart) && self.apart <= 64,
            "flow.source.apart",
            &self.apart,
            "1 to the first network's prefix length, and at most 64",
        )?;
        let is_v4 = self.first.addr().is_ipv4();
        check(
            is_v4 || self.first.prefix_len() <= 64,
            "flow.source.first",
            &self.first,
            "an IPv6 network of /64 or shorter",
        )?;
        let last = (self.hosts - 1) / self.networks;
        let fits = self
            .address(self.networks - 1, last)
            .zip(self.address(0, last))
            .is_some_and(|(_, address)| self.first.contains(&address));
        check(
            fits,
            "flow.source.hosts",
            &self.hosts,
            "no more than the networks hold",
        )
    }
}

impl From<IpNet> for Sources {
    fn from(net: IpNet) -> Self {
        Self::Prefix(net)
    }
}

impl From<IpAddr> for Sources {
    fn from(address: IpAddr) -> Self {
        Self::Prefix(address.into())
    }
}

impl FromStr for Sources {
    type Err = AddrParseError;

    /// A prefix, as `198.19.0.0/16`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self::Prefix)
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(net) => net.fmt(f),
            Self::Hosts(hosts) => write!(
                f,
                "{} hosts in {} networks from {}",
                hosts.hosts, hosts.networks, hosts.first
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Hosts {
        Hosts {
            first: "24.0.7.0/24".parse().unwrap(),
            networks: 500,
            apart: 16,
            hosts: 90_000,
        }
    }

    #[test]
    fn hosts_are_numbered_in_networks_of_their_own() {
        let hosts = hosts();
        hosts.validate().unwrap();
        let address = |network, number| hosts.address(network, number).unwrap().to_string();
        assert_eq!(address(0, 0), "24.0.7.1");
        assert_eq!(address(257, 179), "25.1.7.180");
        assert_eq!(hosts.address(500, 0), None);
    }

    #[test]
    fn networks_of_ipv6_differ_in_the_upper_half() {
        let hosts = Hosts {
            first: "2001:2:0:5::/64".parse().unwrap(),
            apart: 48,
            ..hosts()
        };
        hosts.validate().unwrap();
        let address = hosts.address(258, 2).unwrap().to_string();
        assert_eq!(address, "2001:2:102:5::3");
    }

    #[test]
    fn more_hosts_than_networks_hold_are_refused() {
        let refusal = |change: fn(&mut Hosts)| {
            let mut hosts = hosts();
            change(&mut hosts);
            hosts.validate().unwrap_err().to_string()
        };
        let refusals = [
            refusal(|hosts| hosts.networks = 0),
            refusal(|hosts| hosts.hosts = 499),
            refusal(|hosts| hosts.apart = 25),
            refusal(|hosts| hosts.hosts = 500 * 260),
            refusal(|hosts| hosts.first = "255.200.0.0/24".parse().unwrap()),
            refusal(|hosts| hosts.first = "2001:2::/120".parse().unwrap()),
        ];
        assert_eq!(
            refusals,
            [
                "flow.source.networks = 0: must be 1 to 65536",
                "flow.source.hosts = 499: must be at least one in each network",
                "flow.source.apart = 25: must be 1 to the first network's prefix length, and at most 64",
                "flow.source.hosts = 130000: must be no more than the networks hold",
                "flow.source.hosts = 90000: must be no more than the networks hold",
                "flow.source.first = 2001:2::/120: must be an IPv6 network of /64 or shorter",
            ]
        );
    }
}
