//! Groups that an adapter is to hear for the stack. One that filters hears those alone of which the
//! kernel tells it, and the kernel knows nothing of the stack's addresses and groups.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;

use super::ring;
use crate::device::Mac;
use crate::error::Error;
use crate::link::egress::group_mac;

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
    pub(in crate::device) fn add_address(&self, address: IpAddr) -> io::Result<()> {
        match address {
            IpAddr::V4(_) => Ok(()),
            IpAddr::V6(address) => self.join(solicited_node(address).into()),
        }
    }

    /// The group is to be heard. As often as it was joined, it has to be left.
    pub(in crate::device) fn join(&self, group: IpAddr) -> io::Result<()> {
        self.tell(libc::PACKET_ADD_MEMBERSHIP, group_mac(group))
    }

    pub(in crate::device) fn leave(&self, group: IpAddr) {
        // It fails only where the interface is gone.
        let _ = self.tell(libc::PACKET_DROP_MEMBERSHIP, group_mac(group));
    }

    fn tell(&self, what: libc::c_int, mac: Mac) -> io::Result<()> {
        let mut address = [0; 8];
        address[..mac.len()].copy_from_slice(&mac);
        let request = libc::packet_mreq {
            mr_ifindex: self.interface.cast_signed(),
            mr_type: libc::PACKET_MR_MULTICAST as u16,
            mr_alen: mac.len() as u16,
            mr_address: address,
        };
        ring::set(&self.socket, what, &request).map_err(io::Error::other)
    }
}

fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low)
}
