//! What an adapter is to hear. One that filters hears its own address and those groups alone of which
//! the kernel tells it. The kernel knows nothing of the stack's groups, nor of programs that want
//! the frames of others.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use super::ring;
use crate::device::Mac;
use crate::error::Error;
use crate::interface;
use crate::link::egress::group_mac;
use crate::link::membership::{ALL_NODES, ALL_SYSTEMS};
use crate::link::resolution::solicited_node;

/// A packet socket that receives nothing. What it asked for ends with it, also after a kill.
#[derive(Debug)]
pub(in crate::device) struct Hearing {
    socket: OwnedFd,
    interface: u32,
}

impl Hearing {
    /// By the index of the interface.
    pub(in crate::device) fn open(interface: u32) -> Result<Self, Error> {
        let socket = ring::open_socket()?;
        Ok(Self { socket, interface })
    }

    /// `address` is the stack's: neighbours ask for it at its solicited-node group (RFC 4291,
    /// 2.7.1). Those of IPv4 ask everybody.
    pub(in crate::device) fn add_address(&self, address: IpAddr) -> Result<(), Error> {
        match address {
            IpAddr::V4(_) => Ok(()),
            IpAddr::V6(address) => {
                let heard = self.join(solicited_node(address).into());
                heard.map_err(Error::io("have the adapter hear who asks for the address"))
            }
        }
    }

    /// The group is to be heard, and who asks for its members. As often as it was joined, it has to
    /// be left.
    pub(in crate::device) fn join(&self, group: IpAddr) -> io::Result<()> {
        self.tell(libc::PACKET_ADD_MEMBERSHIP, group_mac(group))?;
        let asked = self.tell(libc::PACKET_ADD_MEMBERSHIP, group_mac(everybody(group)));
        asked.inspect_err(|_| {
            let _ = self.tell(libc::PACKET_DROP_MEMBERSHIP, group_mac(group));
        })
    }

    pub(in crate::device) fn leave(&self, group: IpAddr) {
        for group in [group, everybody(group)] {
            // It fails only where the interface is gone.
            let _ = self.tell(libc::PACKET_DROP_MEMBERSHIP, group_mac(group));
        }
    }

    fn tell(&self, what: libc::c_int, mac: Mac) -> io::Result<()> {
        let kind = libc::PACKET_MR_MULTICAST;
        let told = ring::tell_adapter(&self.socket, what, self.interface, kind, &mac);
        told.map_err(io::Error::other)
    }
}

/// As long as this is there the adapter of an interface receives frames for others, too. A kill
/// ends it as well.
#[derive(Debug)]
pub struct Promiscuous {
    _socket: OwnedFd,
}

impl Promiscuous {
    /// Begins on `interface` of this network namespace.
    ///
    /// # Errors
    ///
    /// There is no such interface, or this process lacks `CAP_NET_RAW`.
    pub fn begin(interface: &str) -> Result<Self, Error> {
        let index = interface::index(interface)?;
        let socket = ring::open_socket()?;
        make_promiscuous(&socket, index)?;
        Ok(Self { _socket: socket })
    }
}

pub(super) fn make_promiscuous(socket: &OwnedFd, interface: u32) -> Result<(), Error> {
    let (what, kind) = (libc::PACKET_ADD_MEMBERSHIP, libc::PACKET_MR_PROMISC);
    ring::tell_adapter(socket, what, interface, kind, &[])
}

/// The group that all hosts of a link are in: where all groups are asked for.
fn everybody(group: IpAddr) -> IpAddr {
    match group {
        IpAddr::V4(_) => ALL_SYSTEMS.into(),
        IpAddr::V6(_) => ALL_NODES.into(),
    }
}
