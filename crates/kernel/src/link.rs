//! What the kernel says of an interface: link state, attached XDP program,
//! XDP features of its driver.

use std::ffi::{CStr, CString};
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::thread::sleep;
use std::time::Duration;

use libbpf_rs::query::ProgInfoIter;
use netlink_bindings::{netdev, rt_link};
use nix::errno::Errno;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::{if_indextoname, if_nametoindex};

use crate::error::{FAILED, remedy};
use crate::netlink;
pub use above::{Above, above};

mod above;

/// An interface as rtnetlink(7) describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// `ip link set up` was said.
    pub up: bool,
    /// Kind of a virtual device, as `veth`.
    pub kind: Option<String>,
    /// Bytes.
    pub mtu: Option<u32>,
    /// Its Ethernet address.
    pub mac: Option<[u8; 6]>,
    /// Receive queues that it may have.
    pub rx_queues: Option<u32>,
    /// Index of the bridge or bond it belongs to.
    pub master: Option<u32>,
    /// Index of its other end, or of the interface that it stands on.
    pub peer: Option<u32>,
    /// That one is in another network namespace.
    pub peer_elsewhere: bool,
    /// The root of its queueing disciplines, as `fq_codel`.
    pub queueing: Option<String>,
    /// The program on it, if any.
    pub xdp: Option<AttachedProgram>,
}

/// An XDP program on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedProgram {
    /// As `bpftool prog` shows it.
    pub id: u32,
    /// `None` if the kernel does not tell (it takes privileges).
    pub name: Option<String>,
    /// `native`, `generic`, …
    pub mode: &'static str,
}

impl AttachedProgram {
    /// How it may be detached from `interface`.
    pub fn remedy(&self, interface: &str) -> String {
        match self.name.as_deref() {
            None => "run this as root to see whose it is".to_owned(),
            Some("xdp_dispatcher") => {
                format!("it is libxdp's dispatcher, `xdp-loader unload {interface} --all` ends it")
            }
            Some("screen") => format!(
                "if it is that of a killed `plimsoll screen`, `plimsoll guard restore {interface}` detaches it"
            ),
            Some(_) => {
                // `xdp off` leaves a generic program where the driver has native XDP.
                let mode = match self.mode {
                    "generic" => "xdpgeneric",
                    "offloaded" => "xdpoffload",
                    _ => "xdp",
                };
                format!(
                    "`bpftool link show` finds its owner, `ip link set {interface} {mode} off` detaches it if it has none"
                )
            }
        }
    }
}

impl fmt::Display for AttachedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_deref() {
            None => {}
            Some("") => write!(f, "`unnamed`, ")?,
            Some(name) => write!(f, "`{name}`, ")?,
        }
        write!(f, "id {}, in {} mode", self.id, self.mode)
    }
}

/// No interface of that name is in this network namespace, as far as the kernel tells.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.told())]
pub struct NoSuchInterface {
    /// As given.
    pub interface: String,
    /// Why it does not tell.
    refused: Option<Errno>,
}

impl NoSuchInterface {
    /// There is none called so.
    #[must_use]
    pub fn called(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            refused: None,
        }
    }

    /// It may be that this process could not even ask.
    fn after(interface: &str, error: &io::Error) -> Self {
        let refused = error.raw_os_error().map(Errno::from_raw);
        Self {
            refused: refused.filter(|errno| matches!(errno, Errno::EMFILE | Errno::ENFILE)),
            ..Self::called(interface)
        }
    }

    fn told(&self) -> String {
        let interface = &self.interface;
        match self.refused {
            None => format!(
                "no interface `{interface}` in this network namespace: `ip link` lists them"
            ),
            Some(answer) => {
                let answer = io::Error::from(answer);
                let remedy = remedy("", &answer);
                format!("cannot look for the interface `{interface}`{remedy}: {answer}")
            }
        }
    }

    /// The exit code of a command that ends by it.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        FAILED
    }
}

/// The index of `interface` in the current network namespace, by its name or another one of it
/// (altname).
///
/// # Errors
///
/// There is none.
pub fn index(interface: &str) -> Result<u32, NoSuchInterface> {
    if_nametoindex(interface).or_else(|_| {
        // The C library knows no names of more than 15 bytes, which an altname may have, and does
        // not tell that this process has too many files.
        let found = index_by_netlink(interface);
        found.map_err(|error| NoSuchInterface::after(interface, &error))
    })
}

fn index_by_netlink(interface: &str) -> io::Result<u32> {
    let name = CString::new(interface)?;
    let mut request = rt_link::Request::new().op_getlink_do(&rt_link::Ifinfomsg::default());
    request.encode().push_alt_ifname(&name);
    let mut socket = netlink::Socket::new();
    let mut replies = socket.request(&request)?;
    let (header, _) = replies.recv_one()?;
    Ok(header.ifi_index.cast_unsigned())
}

/// What the interface of this number is called in the current network namespace; `None` if there
/// is none, or the kernel does not tell.
#[must_use]
pub fn name(ifindex: u32) -> Option<String> {
    let name = if_indextoname(ifindex).ok()?.into_string().ok()?;
    // Of a number that nothing has, the name is empty.
    Some(name).filter(|name| !name.is_empty())
}

/// Waits until the kernel takes packets for an IPv6 address that was just added to
/// the current network namespace.
///
/// The kernel adds the route to an address of its own by a work queue, also without
/// duplicate address detection. Until then a packet for it goes out on the link, and
/// for seconds on, because nobody there answers. On a busy machine, tests and
/// measurements that began at once failed with `EHOSTUNREACH`.
///
/// # Errors
///
/// `TimedOut`: no interface that is up has the address.
pub fn wait_until_local(address: Ipv6Addr) -> io::Result<()> {
    wait_until(
        || {
            let routes = fs::read_to_string("/proc/thread-self/net/ipv6_route")?;
            Ok(is_local(&routes, address))
        },
        || format!("no interface that is up has the address {address}"),
    )
}

/// Waits until one end of a veth pair, in the current network namespace, sends.
///
/// The kernel gives a device its transmit queue by a work queue, some time after the other end of
/// the link came up. What is sent before is dropped, and the sender is not told.
///
/// # Errors
///
/// `TimedOut`: the interface or its other end is down. Or there is none, or the kernel does not answer.
pub fn wait_until_sending(interface: &str) -> io::Result<()> {
    let ifindex = index(interface).map_err(io::Error::other)?;
    wait_until(
        || is_sending(ifindex),
        || format!("`{interface}` or its other end is down"),
    )
}

/// Whether it does: the work queue sets the operational state as well (`operstates.rst` of the
/// kernel's documentation).
fn is_sending(ifindex: u32) -> io::Result<bool> {
    let request = rt_link::Request::new().op_getlink_do(&header_of(ifindex));
    let mut socket = netlink::Socket::new();
    let mut replies = socket.request(&request)?;
    let (_, attributes) = replies.recv_one()?;
    Ok(attributes.get_operstate().map_err(io::Error::other)? == OPERATIONAL)
}

fn wait_until(
    mut is_so: impl FnMut() -> io::Result<bool>,
    otherwise: impl Fn() -> String,
) -> io::Result<()> {
    for _ in 0..LOOKS {
        if is_so()? {
            return Ok(());
        }
        sleep(PAUSE);
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, otherwise()))
}

/// The interface of the current network namespace on which the kernel has `address`, if it does. A
/// link-local one of IPv6 is looked for on `link` alone: on another it is another host's.
///
/// # Errors
///
/// The kernel does not list its addresses.
pub fn interface_with(address: IpAddr, link: &str) -> io::Result<Option<String>> {
    let of_one_link = matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
    let is_it = |entry: &InterfaceAddress| {
        if of_one_link && entry.interface_name != link {
            return false;
        }
        let found = entry.address.as_ref();
        let four = found.and_then(|found| found.as_sockaddr_in());
        let six = found.and_then(|found| found.as_sockaddr_in6());
        let found = four.map(|four| four.ip().into());
        found.or_else(|| six.map(|six| six.ip().into())) == Some(address)
    };
    let found = getifaddrs()?.find(is_it);
    Ok(found.map(|entry| entry.interface_name))
}

/// `IF_OPER_UP` of `linux/if.h`.
const OPERATIONAL: u8 = 6;

const PAUSE: Duration = Duration::from_millis(1);
/// Ten seconds: a real-time task may hold work queues back that long.
const LOOKS: u32 = 10_000;

/// `RTF_LOCAL` of `linux/ipv6_route.h`.
const LOCAL_ROUTE: u32 = 0x8000_0000;

/// Whether a line of `/proc/net/ipv6_route` is a route to this address of the host's
/// own. First column: destination, ninth: flags, both in hexadecimal.
pub(crate) fn is_local(routes: &str, address: Ipv6Addr) -> bool {
    let wanted = format!("{:032x}", address.to_bits());
    routes.lines().any(|line| {
        let mut columns = line.split_whitespace();
        let is_wanted = columns.next() == Some(wanted.as_str());
        let flags = columns.nth(7).map(|flags| u32::from_str_radix(flags, 16));
        is_wanted && matches!(flags, Some(Ok(flags)) if flags & LOCAL_ROUTE != 0)
    })
}

/// The state of an interface of the current network namespace.
///
/// # Errors
///
/// There is none, or the kernel does not answer.
pub fn link(ifindex: u32) -> io::Result<Link> {
    let request = rt_link::Request::new().op_getlink_do(&header_of(ifindex));
    let mut socket = netlink::Socket::new();
    let mut replies = socket.request(&request)?;
    let (header, attributes) = replies.recv_one()?;
    let kind = attributes
        .get_linkinfo()
        .and_then(|information| information.get_kind())
        .ok();
    let text = |words: &CStr| words.to_string_lossy().into_owned();
    Ok(Link {
        up: header.ifi_flags & libc::IFF_UP.cast_unsigned() != 0,
        kind: kind.map(text),
        mtu: attributes.get_mtu().ok(),
        mac: attributes
            .get_address()
            .ok()
            .and_then(|mac| mac.try_into().ok()),
        rx_queues: attributes.get_num_rx_queues().ok(),
        master: attributes.get_master().ok(),
        peer: attributes.get_link().ok(),
        peer_elsewhere: attributes.get_link_netnsid().is_ok(),
        queueing: attributes.get_qdisc().ok().map(text),
        xdp: attributes.get_xdp().ok().and_then(|xdp| attached(&xdp)),
    })
}

fn header_of(ifindex: u32) -> rt_link::Ifinfomsg {
    rt_link::Ifinfomsg {
        ifi_index: ifindex.cast_signed(),
        ..Default::default()
    }
}

/// Sets an interface up, with this MTU in bytes.
///
/// # Errors
///
/// The kernel refuses.
pub fn set_up(ifindex: u32, mtu: u32) -> io::Result<()> {
    let header = rt_link::Ifinfomsg {
        ifi_flags: libc::IFF_UP.cast_unsigned(),
        ifi_change: libc::IFF_UP.cast_unsigned(),
        ..header_of(ifindex)
    };
    let mut request = rt_link::Request::new().op_setlink_do(&header);
    request.encode().push_mtu(mtu);
    let mut socket = netlink::Socket::new();
    Ok(socket.request(&request)?.recv_ack()?)
}

fn attached(xdp: &rt_link::IterableXdpAttrs<'_>) -> Option<AttachedProgram> {
    // XDP_ATTACHED_* of linux/if_link.h.
    let mode = match xdp.get_attached().ok()? {
        1 => "native",
        2 => "generic",
        3 => "offloaded",
        4 => "several modes",
        _ => return None,
    };
    let id = xdp.get_prog_id().or_else(|_| xdp.get_drv_prog_id()).ok()?;
    let program = ProgInfoIter::default().find(|program| program.id == id);
    Some(AttachedProgram {
        id,
        name: program.map(|program| program.name.to_string_lossy().into_owned()),
        mode,
    })
}

/// Whether the driver says it has native XDP; `None` if the kernel does not
/// tell (before 6.3).
///
/// # Errors
///
/// The kernel does not answer.
pub fn native_xdp(ifindex: u32) -> io::Result<Option<bool>> {
    has_xdp_feature(ifindex, netdev::XdpAct::Basic)
}

/// Whether the driver takes frames that an XDP program redirects to it; `None` as
/// in [`native_xdp`]. An end of a veth pair does while the other receives by NAPI.
///
/// # Errors
///
/// The kernel does not answer.
pub fn takes_redirected(ifindex: u32) -> io::Result<Option<bool>> {
    has_xdp_feature(ifindex, netdev::XdpAct::NdoXmit)
}

/// Whether the driver says that AF_XDP sockets may do without copies; `None` as in
/// [`native_xdp`]. Some drivers say so and can not, as virtio-net without an IOMMU's addresses:
/// the kernel copies then.
///
/// # Errors
///
/// The kernel does not answer.
pub fn zero_copy(ifindex: u32) -> io::Result<Option<bool>> {
    has_xdp_feature(ifindex, netdev::XdpAct::XskZerocopy)
}

fn has_xdp_feature(ifindex: u32, feature: netdev::XdpAct) -> io::Result<Option<bool>> {
    let mut request = netdev::Request::new().op_dev_get_do();
    request.encode().push_ifindex(ifindex);
    let mut socket = netlink::Socket::new();
    let mut replies = match socket.request(&request) {
        Ok(replies) => replies,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let features = replies
        .recv_one()?
        .get_xdp_features()
        .map_err(io::Error::other)?;
    Ok(Some(features & feature as u64 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iproute::ip;
    use crate::namespace;

    #[test]
    fn an_address_is_local_once_its_own_route_is_there() {
        let added = "20010db8000000000000000000000000 40 00000000000000000000000000000000 00 \
                     00000000000000000000000000000000 00000100 00000001 00000000 00000001       v0\n";
        let routed = "20010db8000000000000000000000001 80 00000000000000000000000000000000 00 \
                      00000000000000000000000000000000 00000000 00000002 00000000 80200001       v0\n";
        let address = "2001:db8::1".parse().unwrap();
        assert!(!is_local(added, address));
        assert!(is_local(&(added.to_owned() + routed), address));
        assert!(!is_local(&routed.replace("80200001", "00200001"), address));
        assert!(!is_local(routed, "2001:db8::2".parse().unwrap()));
    }

    /// Needs root.
    #[test]
    fn an_end_of_a_link_sends_once_the_other_is_up() {
        namespace::in_new(|| {
            ip("link add v0 type veth peer name v1");
            ip("link set v0 up");
            assert!(!is_sending(index("v0").unwrap()).unwrap());
            ip("link set v1 up");
            wait_until_sending("v0").unwrap();
            assert!(is_sending(index("v0").unwrap()).unwrap());
            let error = wait_until_sending("v2").unwrap_err().to_string();
            assert!(error.contains("no interface `v2`"), "{error}");
        })
        .expect("this test makes a network namespace and needs root: run `sudo make test`");
    }
}
