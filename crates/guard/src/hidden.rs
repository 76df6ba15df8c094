//! Sockets that the program's look-up does not find, although they get packets: those that are bound
//! to a device above the guarded interface, and those of proxies to which a rule diverts. It finds
//! another one in their place, if that has the packet's port. Load balancing in the kernel (IPVS)
//! takes packets before sockets in the same way.

use std::collections::BTreeSet;
use std::io;
use std::ops::RangeInclusive;

use plimsoll_kernel::link;
use plimsoll_kernel::packet_filter::{balanced, diverted};

use crate::owner::SOCKETS_MAX;
use crate::owner::diag::{self, Protocol};

/// Of more ports at once it is not told which they are.
const PORTS_MAX: usize = 2048;

/// Ports at which such sockets get packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) some: BTreeSet<(Protocol, u16)>,
    /// All of a protocol's.
    pub(crate) every: BTreeSet<Protocol>,
}

impl Ports {
    fn add(&mut self, protocol: Protocol, ports: RangeInclusive<u16>) {
        if ports.len().max(self.some.len()) > PORTS_MAX {
            self.every.insert(protocol);
        } else {
            self.some.extend(ports.map(|port| (protocol, port)));
        }
    }
}

/// Those of the current network namespace, where `ifindex` is guarded.
pub(crate) fn ports(ifindex: u32) -> io::Result<Ports> {
    let above = link::above(ifindex)?;
    let mut ports = Ports::default();
    let named = above.iter().copied().chain([ifindex]);
    let named = named.filter_map(|index| Some((index, link::name(index)?)));
    let diverted = diverted::ports(&named.collect::<Vec<_>>())?;
    for (protocol, range) in diverted.into_iter().chain(balanced::ports()?) {
        for (number, known) in [(6, Protocol::Tcp), (17, Protocol::Udp)] {
            if protocol.is_none_or(|protocol| protocol == number) {
                ports.add(known, range.clone());
            }
        }
    }
    if above.is_empty() {
        return Ok(ports);
    }
    let is_hidden = |socket: &diag::Socket| above.contains(&socket.interface);
    let (hidden, _) = diag::sockets(SOCKETS_MAX, is_hidden)?;
    let port = |socket: &diag::Socket| (socket.protocol, socket.port);
    ports.some.extend(hidden.iter().map(port));
    Ok(ports)
}
