//! The host's own addresses: what the program takes for local.
//!
//! Read from the interfaces of the current network namespace. An address that
//! appears later is unknown until the next refresh, and its packets are
//! admitted as forwarded ones until then. Prefixes made local only by routes
//! (`ip route add local …`) are not seen and stay admitted.
//!
//! Limits: a broadcast address that is not the last one of its network counts as forwarded.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::sys::socket::{SockaddrLike, SockaddrStorage};

use plimsoll_kernel::error::os;

use crate::error::Error;
use crate::program::types::{destination, local_address};

/// Class of an address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Class {
    Local = destination::DESTINATION_LOCAL.0 as u8,
    Broadcast = destination::DESTINATION_BROADCAST.0 as u8,
}

/// An address as the program's map has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalAddress {
    pub(crate) class: Class,
    /// It is one of the guarded interface itself.
    pub(crate) of_interface: bool,
    /// So many addresses of its own interface come before it.
    pub(crate) place: u32,
}

impl LocalAddress {
    /// As the program wants it (`enum local_address`).
    pub(crate) fn value(self) -> u8 {
        const OF_INTERFACE: u8 = local_address::ADDRESS_OF_INTERFACE.0 as u8;
        self.class as u8 | if self.of_interface { OF_INTERFACE } else { 0 }
    }
}

/// All addresses of the current network namespace; those of `interface` are marked.
pub(crate) fn local_addresses(
    interface: Option<&str>,
) -> Result<BTreeMap<IpAddr, LocalAddress>, Error> {
    let interfaces = getifaddrs().map_err(os("list the host's addresses"))?;
    let mut addresses = BTreeMap::new();
    let mut places: HashMap<String, u32> = HashMap::new();
    for entry in interfaces {
        // An IPv4 address with a label of its own names it: "eth0:1".
        let name = entry.interface_name.split(':').next().unwrap_or_default();
        let of_interface = interface == Some(name);
        let next = places.entry(name.to_owned()).or_default();
        let place = *next;
        if let Some(broadcast) = broadcast_of(&entry) {
            addresses.entry(broadcast).or_insert(LocalAddress {
                class: Class::Broadcast,
                of_interface: false,
                place,
            });
        }
        if let Some(address) = entry.address.as_ref().and_then(ip) {
            *next += 1;
            let known: Option<LocalAddress> = addresses.get(&address).copied();
            let local = LocalAddress {
                class: Class::Local,
                of_interface: of_interface || known.is_some_and(|known| known.of_interface),
                place: known.map_or(place, |known| known.place.min(place)),
            };
            addresses.insert(address, local);
        }
    }
    Ok(addresses)
}

/// The broadcast address of the entry's network. Where none was set, the C library has in its place
/// what the kernel calls the address of the link: that of a peer, which is another host, or the
/// entry's own once more.
fn broadcast_of(entry: &InterfaceAddress) -> Option<IpAddr> {
    let bits = |address: &Option<SockaddrStorage>| {
        let address = address.as_ref()?.as_sockaddr_in()?;
        Some(address.ip().to_bits())
    };
    let told = bits(&entry.broadcast)?;
    let last = bits(&entry.address)? | !bits(&entry.netmask)?;
    (told == last).then(|| Ipv4Addr::from_bits(told).into())
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    debug_assert!(address.family().is_some());
    address
        .as_sockaddr_in()
        .map(|v4| IpAddr::V4(v4.ip()))
        .or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

#[cfg(test)]
mod tests {
    use plimsoll_kernel::namespace;

    use super::*;
    use crate::program::test_host::ip;

    #[test]
    fn the_loopback_address_is_local() {
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        for (interface, of_interface) in [(None, false), (Some("lo"), true)] {
            let addresses = local_addresses(interface).unwrap();
            let class = Class::Local;
            let expected = LocalAddress {
                class,
                of_interface,
                place: 0,
            };
            assert_eq!(addresses.get(&loopback), Some(&expected));
        }
    }

    /// A peer's address was taken for a broadcast address of this host. So what was routed to it,
    /// a virtual machine's packets for one, did not count as forwarded, and was shed beyond the CPU
    /// limit although nobody wanted the CPU. Needs root.
    #[test]
    fn a_peer_is_another_host() {
        namespace::in_new(|| {
            ip("link add d0 type veth peer name d1");
            ip("address add 10.0.0.1 peer 10.0.0.2/32 dev d0");
            ip("address add 10.1.0.1 peer 10.1.0.2/24 dev d0");
            ip("address add 2001:db8::1 peer 2001:db8::2/128 dev d0");
            ip("address add 192.168.1.1/24 broadcast + dev d1");
            let addresses = local_addresses(None).unwrap();
            let seen: Vec<_> = addresses
                .iter()
                .map(|(address, local)| (address.to_string(), local.class))
                .collect();
            let expected = [
                ("10.0.0.1", Class::Local),
                ("10.1.0.1", Class::Local),
                ("192.168.1.1", Class::Local),
                ("192.168.1.255", Class::Broadcast),
                ("2001:db8::1", Class::Local),
            ];
            let expected = expected.map(|(address, class)| (address.to_owned(), class));
            assert_eq!(seen, expected);
        })
        .expect("this test makes a network namespace and needs root: run `sudo make test`");
    }

    /// Needs root.
    #[test]
    fn each_interface_counts_its_own_addresses() {
        namespace::in_new(|| {
            ip("link add d0 type veth peer name d1");
            for number in 1..=3 {
                ip(&format!("address add 10.0.0.{number}/32 dev d0"));
            }
            ip("address add 192.168.1.1/24 dev d1");
            ip("address add 192.168.1.2/24 label d1:2 dev d1");
            ip("address add 10.0.0.3/32 dev d1");
            let addresses = local_addresses(Some("d1")).unwrap();
            let seen: Vec<_> = addresses
                .iter()
                .map(|(address, local)| (address.to_string(), local.of_interface, local.place))
                .collect();
            let expected = [
                ("10.0.0.1", false, 0),
                ("10.0.0.2", false, 1),
                ("10.0.0.3", true, 1),
                ("192.168.1.1", true, 0),
                // The kernel has secondary addresses after all others.
                ("192.168.1.2", true, 2),
            ];
            let expected = expected.map(|(address, own, place)| (address.to_owned(), own, place));
            assert_eq!(seen, expected);
        })
        .expect("this test makes a network namespace and needs root: run `sudo make test`");
    }
}
