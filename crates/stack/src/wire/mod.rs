//! Bytes to packets and back. The formats are smoltcp's; what stands here is the
//! order in which they are taken apart and put together.
//!
//! `packet` takes a frame apart up to the transport header, `datagram` checks
//! UDP and carries it to the application, `reassembly` joins fragments,
//! `emit` builds frames, `fragments` those of long datagrams, `segment` cuts long ones of TCP, `trouble` reads
//! what the network says about them.

pub(crate) mod datagram;
pub(crate) mod emit;
pub(crate) mod fragments;
pub(crate) mod packet;
pub(crate) mod reassembly;
pub(crate) mod segment;
pub(crate) mod trouble;

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET_BYTES: usize = 14;
/// Bytes of a UDP header.
pub(crate) const UDP_BYTES: usize = smoltcp::wire::UDP_HEADER_LEN;
