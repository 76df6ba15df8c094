//! Sockets with the shapes of the standard library's.

pub(crate) mod addresses;
mod buffer;
mod message;
pub(crate) mod options;
mod paced;
pub(crate) mod readiness;
mod udp;

pub use buffer::SendBuffer;
pub use message::Message;
pub use paced::{Filled, PacedSender, PacedSenderConfig};
pub use readiness::Readiness;
pub use udp::UdpSocket;
