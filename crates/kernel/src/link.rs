//! What the kernel says of an interface: link state, attached XDP program,
//! XDP features of its driver.

use std::fmt;
use std::io;

use libbpf_rs::query::ProgInfoIter;
use netlink_bindings::{netdev, rt_link};
use netlink_socket2::NetlinkSocket;
use nix::net::if_::if_nametoindex;

use crate::error::Error;

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
    /// Its other end is in another network namespace.
    pub peer_elsewhere: bool,
    /// The program on it, if any.
    pub xdp: Option<AttachedProgram>,
}

/// An XDP program on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedProgram {
    /// As `bpftool prog` shows it.
    pub id: u32,
    /// Empty if the kernel does not tell (it takes privileges).
    pub name: String,
    /// `native`, `generic`, …
    pub mode: &'static str,
}

impl AttachedProgram {
    /// How it may be detached from `interface`.
    pub fn remedy(&self, interface: &str) -> String {
        if self.name == "xdp_dispatcher" {
            format!("it is libxdp's dispatcher, `xdp-loader unload {interface} --all` ends it")
        } else {
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

impl fmt::Display for AttachedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() {
            "unnamed"
        } else {
            &self.name
        };
        write!(f, "`{name}`, id {}, in {} mode", self.id, self.mode)
    }
}

/// The index of `interface` in the current network namespace.
///
/// # Errors
///
/// [`Error::NoSuchInterface`].
pub fn index(interface: &str) -> Result<u32, Error> {
    if_nametoindex(interface).map_err(|_| Error::NoSuchInterface {
        interface: interface.to_owned(),
    })
}

/// The state of an interface of the current network namespace.
///
/// # Errors
///
/// There is none, or the kernel does not answer.
pub fn link(ifindex: u32) -> io::Result<Link> {
    let header = rt_link::Ifinfomsg {
        ifi_index: ifindex.cast_signed(),
        ..Default::default()
    };
    let request = rt_link::Request::new().op_getlink_do(&header);
    let mut socket = NetlinkSocket::new();
    let mut replies = socket.request(&request)?;
    let (header, attributes) = replies.recv_one()?;
    let kind = attributes
        .get_linkinfo()
        .and_then(|information| information.get_kind())
        .ok();
    Ok(Link {
        up: header.ifi_flags & libc::IFF_UP.cast_unsigned() != 0,
        kind: kind.map(|kind| kind.to_string_lossy().into_owned()),
        mtu: attributes.get_mtu().ok(),
        mac: attributes
            .get_address()
            .ok()
            .and_then(|mac| mac.try_into().ok()),
        rx_queues: attributes.get_num_rx_queues().ok(),
        master: attributes.get_master().ok(),
        peer_elsewhere: attributes.get_link_netnsid().is_ok(),
        xdp: attributes.get_xdp().ok().and_then(|xdp| attached(&xdp)),
    })
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
        name: program.map_or_else(String::new, |program| {
            program.name.to_string_lossy().into_owned()
        }),
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
    let mut request = netdev::Request::new().op_dev_get_do();
    request.encode().push_ifindex(ifindex);
    let mut socket = NetlinkSocket::new();
    let mut replies = match socket.request(&request) {
        Ok(replies) => replies,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let features = replies
        .recv_one()?
        .get_xdp_features()
        .map_err(io::Error::other)?;
    Ok(Some(features & netdev::XdpAct::Basic as u64 != 0))
}
