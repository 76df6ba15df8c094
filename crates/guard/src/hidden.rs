//! Sockets that the program's look-up does not find, although they get packets: those that are bound
//! to a device above the guarded interface, and those of proxies to which a rule diverts. It finds
//! another one in their place, if that has the packet's port.

use std::collections::BTreeSet;
use std::io;

use plimsoll_kernel::link;
use plimsoll_kernel::packet_filter::diverted;

use crate::owner::SOCKETS_MAX;
use crate::owner::diag::{self, Protocol};

/// Ports at which such sockets get packets.
pub(crate) type Ports = BTreeSet<(Protocol, u16)>;

/// Those of the current network namespace, where `ifindex` is guarded.
pub(crate) fn ports(ifindex: u32) -> io::Result<Ports> {
    let above = link::above(ifindex)?;
    let mut ports = diverted_ports(above.iter().copied().chain([ifindex]))?;
    if above.is_empty() {
        return Ok(ports);
    }
    let is_hidden = |socket: &diag::Socket| above.contains(&socket.interface);
    let (hidden, _) = diag::sockets(SOCKETS_MAX, is_hidden)?;
    let port = |socket: &diag::Socket| (socket.protocol, socket.port);
    ports.extend(hidden.iter().map(port));
    Ok(ports)
}

fn diverted_ports(interfaces: impl Iterator<Item = u32>) -> io::Result<Ports> {
    let named = interfaces.filter_map(|index| Some((index, link::name(index)?)));
    let named: Vec<_> = named.collect();
    let mut ports = Ports::new();
    for (protocol, port) in diverted::ports(&named)? {
        for (number, known) in [(6, Protocol::Tcp), (17, Protocol::Udp)] {
            if protocol.is_none_or(|protocol| protocol == number) {
                ports.insert((known, port));
            }
        }
    }
    Ok(ports)
}
