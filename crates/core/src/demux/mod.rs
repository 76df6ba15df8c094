//! Packet to channel: early demultiplexing.

mod kind;

pub use kind::Kind;
