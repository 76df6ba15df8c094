//! Sockets that the program's look-up does not find: those that are bound to a device above the
//! guarded interface. It finds another one in their place, if that has their port and no device.

use std::collections::BTreeSet;
use std::io;

use plimsoll_kernel::link;

use crate::owner::SOCKETS_MAX;
use crate::owner::diag::{self, Protocol};

/// Ports of such sockets.
pub(crate) type Ports = BTreeSet<(Protocol, u16)>;

/// Those of the current network namespace, where `ifindex` is guarded.
pub(crate) fn ports(ifindex: u32) -> io::Result<Ports> {
    let above = link::above(ifindex)?;
    if above.is_empty() {
        return Ok(Ports::new());
    }
    let is_hidden = |socket: &diag::Socket| above.contains(&socket.interface);
    let (hidden, _) = diag::sockets(SOCKETS_MAX, is_hidden)?;
    let port = |socket: &diag::Socket| (socket.protocol, socket.port);
    Ok(hidden.iter().map(port).collect())
}
