//! What the kernel says of an interface, by the ioctls of netdevice(7).

#![allow(unsafe_code, reason = "ioctls on an untagged union")]

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use plimsoll_kernel::link;

use crate::device::Mac;
use crate::error::Error;

/// A request about `name`, everything else zero.
pub(crate) fn request(name: &str) -> Result<libc::ifreq, Error> {
    let refused = || Error::Config {
        field: "interface",
        given: name.to_owned(),
        allowed: "1 to 15 bytes without `/`, white space and zeros",
    };
    let unfit = |byte: u8| byte == 0 || byte == b'/' || byte.is_ascii_whitespace();
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.bytes().any(unfit) {
        return Err(refused());
    }
    // SAFETY: an `ifreq` of zeros is a valid one: integers and a union of them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte.cast_signed();
    }
    Ok(request)
}

fn ask(name: &str, what: libc::Ioctl) -> Result<libc::ifreq, Error> {
    let mut request = request(name)?;
    let socket = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .map_err(Error::io("open a socket to ask about interfaces"))?;
    // SAFETY: the SIOCGIF… calls read and write one `ifreq`, which lives here.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut request) };
    if result == 0 {
        return Ok(request);
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::ENODEV) => Error::NoSuchInterface(name.to_owned()),
        _ => Error::io(format!("ask about {name}"))(error),
    })
}

/// Its number in this network namespace.
pub(crate) fn index(name: &str) -> Result<u32, Error> {
    let answer = ask(name, libc::SIOCGIFINDEX)?;
    // SAFETY: SIOCGIFINDEX fills this member.
    let index = unsafe { answer.ifr_ifru.ifru_ifindex };
    Ok(index.cast_unsigned())
}

/// Its MTU in bytes.
pub(crate) fn mtu(name: &str) -> Result<usize, Error> {
    let answer = ask(name, libc::SIOCGIFMTU)?;
    // SAFETY: SIOCGIFMTU fills this member.
    let mtu = unsafe { answer.ifr_ifru.ifru_mtu };
    Ok(usize::try_from(mtu).unwrap_or(0))
}

/// Its Ethernet address.
pub(crate) fn mac(name: &str) -> Result<Mac, Error> {
    let answer = ask(name, libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR fills this member.
    let address = unsafe { answer.ifr_ifru.ifru_hwaddr };
    if address.sa_family != libc::ARPHRD_ETHER {
        return Err(Error::Unsupported {
            what: name.to_owned(),
            feature: "Ethernet",
            remedy: "take an interface with Ethernet frames",
        });
    }
    let mut mac = [0; 6];
    for (place, byte) in mac.iter_mut().zip(address.sa_data) {
        *place = byte.cast_unsigned();
    }
    Ok(mac)
}

/// Refuses addresses that the kernel has: all that is for them would be taken from it.
pub(crate) fn refuse_kernels(name: &str, addresses: &[IpAddr]) -> Result<(), Error> {
    for address in addresses {
        let found = link::interface_with(*address).map_err(Error::io("list addresses"))?;
        let Some(interface) = found else {
            continue;
        };
        let remedy = match interface == name {
            true => {
                "leave it out (`--address`, in a program `XdpConfig::owned`) to share it by ports, or take another"
            }
            false => "take another, or remove it there (`ip addr del`)",
        };
        return Err(Error::KernelsAddress {
            address: *address,
            interface,
            remedy,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_names_and_missing_interfaces_are_told_apart() {
        for name in ["", "a-name-too-long-for-linux", "a/b", "a b", "a\0b"] {
            assert!(matches!(index(name), Err(Error::Config { .. })), "{name:?}");
        }
        let missing = index("no-such-if0").unwrap_err();
        assert!(matches!(missing, Error::NoSuchInterface(_)), "{missing}");
        assert!(missing.is_missing());
    }

    #[test]
    fn loopback_is_there_and_is_no_ethernet() {
        assert!(index("lo").unwrap() > 0);
        assert!(mtu("lo").unwrap() > 1500);
        assert!(matches!(mac("lo"), Err(Error::Unsupported { .. })));
    }
}
