//! Sockets with the shapes of the standard library's.

mod peers;
mod udp;

pub use udp::UdpSocket;
