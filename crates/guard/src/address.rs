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
use crate::program::types::destination;

/// Class of an address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Class {
    Local = destination::DESTINATION_LOCAL.0 as u8,
    Broadcast = destination::DESTINATION_BROADCAST.0 as u8,
}

/// All addresses of the current network namespace, with their class.
pub(crate) fn local_addresses() -> Result<BTreeMap<IpAddr, Class>, Error> {
    let interfaces = getifaddrs().map_err(os("list the host's addresses"))?;
    let mut addresses = BTreeMap::new();
    for interface in interfaces {
        if let Some(address) = interface.broadcast.as_ref().and_then(ip) {
            addresses.entry(address).or_insert(Class::Broadcast);
        }
        if let Some(address) = interface.address.as_ref().and_then(ip) {
            addresses.insert(address, Class::Local);
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
        let addresses = local_addresses().unwrap();
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        assert_eq!(addresses.get(&loopback), Some(&Class::Local));
    }
}
