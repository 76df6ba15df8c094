//! Sockets with the shapes of the standard library's.

pub(crate) mod addresses;
pub(crate) mod options;
mod paced;
mod peers;
mod udp;

pub use paced::{Filled, PacedSender, PacedSenderConfig};
pub use udp::UdpSocket;
