//! The kernel's own counters of packets: of interfaces, of the stack, and of
//! what waits in sockets.

pub mod interfaces;
pub mod losses;
pub mod sockets;
pub mod stack;
