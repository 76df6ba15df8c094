//! Which address of ours a packet comes from (RFC 6724, kept simple).

use std::cmp::Reverse;
use std::net::IpAddr;

use ipnet::IpNet;

/// To a host on the link, the address of its smallest network; beyond the link, the first one that
/// reaches as far as `destination` does (rule 2), or else the first. `None`: there is none of its family.
pub(super) fn source_for(addresses: &[IpNet], destination: IpAddr) -> Option<IpAddr> {
    let same_family = |net: &&IpNet| net.addr().is_ipv4() == destination.is_ipv4();
    let family = || addresses.iter().filter(same_family);
    let on_link = family().filter(|net| net.contains(&destination));
    let nearest = on_link.min_by_key(|net| Reverse(net.prefix_len()));
    let stays = stays_on_link(destination);
    let as_far = || family().find(|net| stays_on_link(net.addr()) == stays);
    let found = nearest.or_else(as_far).or_else(|| family().next());
    found.map(IpNet::addr)
}

/// Whether it means something on one link only: 169.254.0.0/16 (RFC 3927), `fe80::/10`, and groups
/// of that scope (RFC 4291).
fn stays_on_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => {
            let is_group = address.is_multicast() && address.octets()[1] & 0xf == 2;
            address.is_unicast_link_local() || is_group
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_reaches_as_far_as_its_destination() {
        let addresses = [
            "fe80::2/64",
            "fd00::2/48",
            "fd00::1:0:2/64",
            "169.254.7.2/16",
            "10.0.0.2/8",
            "10.1.0.2/16",
        ];
        let addresses = addresses.map(|net| net.parse().unwrap());
        for (destination, source) in [
            // On the link, by the longest prefix.
            ("fe80::1", "fe80::2"),
            ("fd00::3", "fd00::1:0:2"),
            ("fd00:0:0:9::3", "fd00::2"),
            ("169.254.1.1", "169.254.7.2"),
            ("10.1.2.3", "10.1.0.2"),
            ("10.2.2.3", "10.0.0.2"),
            // Beyond it. An address of the link alone was taken because it is the first.
            ("2001:db8::1", "fd00::2"),
            ("192.0.2.1", "10.0.0.2"),
            ("ff05::1", "fd00::2"),
            ("ff02::1", "fe80::2"),
            ("224.0.0.1", "10.0.0.2"),
        ] {
            let chosen = source_for(&addresses, destination.parse().unwrap());
            assert_eq!(chosen, Some(source.parse().unwrap()), "{destination}");
        }
    }

    #[test]
    fn what_does_not_reach_as_far_is_better_than_nothing() {
        let addresses = ["fe80::2/64", "10.0.0.2/8"].map(|net| net.parse().unwrap());
        for (destination, source) in [
            ("2001:db8::1", Some("fe80::2")),
            ("169.254.1.1", Some("10.0.0.2")),
        ] {
            let source = source.map(|source| source.parse().unwrap());
            assert_eq!(source_for(&addresses, destination.parse().unwrap()), source);
        }
        assert_eq!(
            source_for(&addresses[..1], "192.0.2.1".parse().unwrap()),
            None
        );
    }
}
