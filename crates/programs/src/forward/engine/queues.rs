//! The receive queues of all interfaces, opened for one thread.

use std::io;
use std::sync::Arc;

use plimsoll_core::poll::SourceId;
use plimsoll_kernel::link;
use plimsoll_stack::device::xdp::{BareQueue, XdpConfig};

use crate::forward::Config;
use crate::forward::error::Error;
use crate::forward::program::QUEUES_MAX;

/// Frames of a ring, and lent for receiving.
const RING_FRAMES: u32 = 512;
/// Of each queue: receiving, its ring, its output, sending.
const CHUNKS: usize = 4 * 512;
/// The same of its protected frames, but for receiving.
const PROTECTED_CHUNKS: usize = 3 * 512;

/// Queues, with the port of each.
pub(super) type Queues = Vec<(usize, Arc<BareQueue>)>;

/// All queues of all interfaces, with one memory; and beside each one for protected frames,
/// if there are any. No frames go there yet.
pub(super) fn open(config: &Config) -> Result<(Queues, Queues), Error> {
    let mut wanted = Vec::new();
    for (port, name) in config.interfaces.iter().enumerate() {
        let link = link::link(link::index(name)?).map_err(Error::os("ask about an interface"))?;
        let queues = link.rx_queues.unwrap_or(1).clamp(1, QUEUES_MAX);
        wanted.extend((0..queues).map(|queue| (port, name, queue)));
    }
    if wanted.len() > SourceId::COUNT_MAX {
        return Err(Error::usage(format!(
            "these interfaces have {} receive queues together, and 64 can be polled: `ethtool -L IFACE combined N` makes them fewer",
            wanted.len()
        )));
    }
    let is_protecting = config.protected.is_some();
    let chunks = CHUNKS + if is_protecting { PROTECTED_CHUNKS } else { 0 };
    let (mut devices, mut protected) = (Queues::new(), Queues::new());
    for &(port, name, queue) in &wanted {
        let xdp = XdpConfig {
            queue,
            chunks: chunks * wanted.len(),
            send_frames: 0,
            ring_frames: RING_FRAMES,
            fill_frames: Some(RING_FRAMES),
            ..XdpConfig::default()
        };
        let beside = devices.first().map(|(_, device)| &**device);
        let device = match BareQueue::open(name, &xdp, beside) {
            Ok(device) => device,
            // A driver may have fewer queues in use than it has room for.
            Err(plimsoll_stack::Error::Io { source, .. })
                if queue > 0 && source.kind() == io::ErrorKind::InvalidInput =>
            {
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if is_protecting {
            protected.push((port, Arc::new(device.beside()?)));
        }
        devices.push((port, Arc::new(device)));
    }
    Ok((devices, protected))
}
