//! Sockets with the shapes of the standard library's.

pub(crate) mod addresses;
pub(crate) mod options;
mod peers;
mod udp;

pub use udp::UdpSocket;
