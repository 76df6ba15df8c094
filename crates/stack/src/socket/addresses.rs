//! Addresses as callers give them, and the ports that they leave open.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// The ports that are given out (RFC 6335).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49_152..=65_535;
const EPHEMERAL_TRIES: usize = 64;

/// The first of `addresses`.
pub(crate) fn first(addresses: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    let mut addresses = addresses.to_socket_addrs()?;
    addresses
        .next()
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// What `open` gives for the first of `addresses` that it succeeds with; otherwise
/// its last error.
pub(crate) fn first_that_works<T>(
    addresses: impl ToSocketAddrs,
    open: impl Fn(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for address in addresses.to_socket_addrs()? {
        match open(address) {
            Ok(opened) => return Ok(opened),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::InvalidInput.into()))
}

/// What `open` gives for the first port that nobody uses: some are tried, at random.
pub(crate) fn on_a_free_port<T>(mut open: impl FnMut(u16) -> io::Result<T>) -> io::Result<T> {
    for _ in 0..EPHEMERAL_TRIES {
        match open(fastrand::u16(EPHEMERAL)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            result => return result,
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}
