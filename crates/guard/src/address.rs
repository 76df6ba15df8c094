//! The host's own addresses: what the program takes for local.
//!
//! Read from the interfaces of the current network namespace. An address that
//! appears later is unknown until the next refresh, and its packets are
//! admitted as forwarded ones until then. Prefixes made local only by routes
//! (`ip route add local …`) are not seen and stay admitted.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
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
    for entry in interfaces {
        if let Some(broadcast) = entry.broadcast.as_ref().and_then(ip) {
            addresses.entry(broadcast).or_insert(LocalAddress {
                class: Class::Broadcast,
                of_interface: false,
            });
        }
        // An IPv4 address with a label of its own names it: "eth0:1".
        let name = entry.interface_name.split(':').next();
        let of_interface = interface.is_some() && name == interface;
        if let Some(address) = entry.address.as_ref().and_then(ip) {
            let known: Option<&LocalAddress> = addresses.get(&address);
            let known = known.is_some_and(|known| known.of_interface);
            let class = Class::Local;
            let of_interface = of_interface || known;
            addresses.insert(
                address,
                LocalAddress {
                    class,
                    of_interface,
                },
            );
        }
    }
    Ok(addresses)
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
    use super::*;

    #[test]
    fn the_loopback_address_is_local() {
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        for (interface, of_interface) in [(None, false), (Some("lo"), true)] {
            let addresses = local_addresses(interface).unwrap();
            let class = Class::Local;
            let expected = LocalAddress {
                class,
                of_interface,
            };
            assert_eq!(addresses.get(&loopback), Some(&expected));
        }
    }
}
