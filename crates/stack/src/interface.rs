//! What the kernel says of an interface, by the ioctls of netdevice(7).

#![allow(unsafe_code, reason = "ioctls on an untagged union")]

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use plimsoll_kernel::error::NoSuchInterface;
use plimsoll_kernel::{link, namespace};

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
        Some(libc::ENODEV) => missing(name),
        _ => Error::io(format!("ask about {name}"))(error),
    })
}

fn missing(name: &str) -> Error {
    NoSuchInterface::called(name).into()
}

/// Its number in this network namespace.
pub(crate) fn index(name: &str) -> Result<u32, Error> {
    request(name)?;
    Ok(link::index(name)?)
}

/// Its MTU in bytes.
pub(crate) fn mtu(name: &str) -> Result<usize, Error> {
    let answer = ask(name, libc::SIOCGIFMTU)?;
    // SAFETY: SIOCGIFMTU fills this member.
    let mtu = unsafe { answer.ifr_ifru.ifru_mtu };
    Ok(usize::try_from(mtu).unwrap_or(0))
}

/// Its kind, and its address of that kind.
fn hardware(name: &str) -> Result<libc::sockaddr, Error> {
    let answer = ask(name, libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR fills this member.
    Ok(unsafe { answer.ifr_ifru.ifru_hwaddr })
}

/// Whether all that it sends comes back to this host.
pub(crate) fn is_loopback(name: &str) -> Result<bool, Error> {
    Ok(hardware(name)?.sa_family == libc::ARPHRD_LOOPBACK)
}

/// Its Ethernet address.
pub(crate) fn mac(name: &str) -> Result<Mac, Error> {
    let address = hardware(name)?;
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

/// Refuses an address that the kernel has in this network namespace. `on_it`: the remedy where the
/// kernel has it on this very interface.
pub(crate) fn refuse_kernels(
    name: &str,
    address: IpAddr,
    on_it: &'static str,
) -> Result<(), Error> {
    let found = link::interface_with(address, name).map_err(Error::io("list addresses"))?;
    let Some(interface) = found else {
        return Ok(());
    };
    let remedy = match interface == name {
        true => on_it,
        false => TAKE_ANOTHER,
    };
    Err(Error::KernelsAddress {
        address,
        interface,
        remedy,
    })
}

const TAKE_ANOTHER: &str = "take another, or remove it there (`ip addr del`)";

/// The kernel beside a device. With one that shares no address with it, of two hosts with the same one
/// each would refuse what is for the other.
#[derive(Debug)]
pub(crate) struct KernelBeside {
    interface: String,
    /// None where `/proc` is missing.
    namespace: Option<u32>,
}

impl KernelBeside {
    /// As seen by this thread, which opens the device.
    pub(crate) fn of(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            namespace: namespace::inode().ok(),
        }
    }

    /// Refuses an address that it has. In another network namespace than the device's nobody can be asked.
    pub(crate) fn refuse(&self, address: IpAddr) -> Result<(), Error> {
        match self.can_be_asked() {
            true => refuse_kernels(&self.interface, address, TAKE_ANOTHER),
            false => Ok(()),
        }
    }

    /// Refuses an address that is to be shared with it and that it has not: nobody would answer who
    /// asks for it on the link.
    pub(crate) fn require(&self, address: IpAddr) -> Result<(), Error> {
        if !self.can_be_asked() || self.takes(address)? {
            return Ok(());
        }
        Err(Error::Config {
            field: "addresses",
            given: address.to_string(),
            allowed: "an address that the kernel has, to be shared by ports, or be named in \
                `XdpConfig::owned`, to be the stack's alone",
        })
    }

    fn can_be_asked(&self) -> bool {
        namespace::inode().ok() == self.namespace
    }

    /// Whether it takes what is for the address: an interface has it, or a route or a setting says so.
    fn takes(&self, address: IpAddr) -> Result<bool, Error> {
        let found = link::interface_with(address, &self.interface);
        if found.map_err(Error::io("list addresses"))?.is_some() {
            return Ok(true);
        }
        let bound = UdpSocket::bind((address, 0));
        Ok(bound.is_ok())
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_kernel::error::FAILED;

    use super::*;

    #[test]
    fn impossible_names_and_missing_interfaces_are_told_apart() {
        for name in ["", "a-name-too-long-for-linux", "a/b", "a b", "a\0b"] {
            assert!(matches!(index(name), Err(Error::Config { .. })), "{name:?}");
        }
        let missing = index("no-such-if0").unwrap_err();
        assert_eq!(
            missing.to_string(),
            super::missing("no-such-if0").to_string()
        );
        assert_eq!(missing.exit_code(), FAILED, "it may come yet");
    }

    #[test]
    fn loopback_is_there_and_is_no_ethernet() {
        assert!(index("lo").unwrap() > 0);
        assert!(mtu("lo").unwrap() > 1500);
        assert!(is_loopback("lo").unwrap());
        assert!(matches!(mac("lo"), Err(Error::Unsupported { .. })));
    }
}
