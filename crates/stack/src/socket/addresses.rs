//! Addresses as callers give them, and the ports that they leave open.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::random::unguessable;

/// The ports that are given out (RFC 6335).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49_152..=65_535;
const EPHEMERAL_COUNT: u16 = *EPHEMERAL.end() - *EPHEMERAL.start() + 1;
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

/// A port at random, for who has to be hard to guess.
pub(crate) fn at_random() -> io::Result<u16> {
    // As many as a power of two, so each is as likely.
    let place = unguessable()? % u64::from(EPHEMERAL_COUNT);
    Ok(EPHEMERAL.start() + place as u16)
}

/// Ports in a row, by steps at random (RFC 6056, 3.3.5). So one comes again after some thousand
/// others: the peer of its former connection may be in TIME_WAIT for a minute, and then answers
/// a SYN so that connecting takes a second.
#[derive(Debug)]
pub(crate) struct PortsInARow(AtomicU32);

/// The longest step.
const STEP_MAX: u32 = 8;

impl PortsInARow {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(fastrand::u32(..)))
    }

    pub(crate) fn next(&self) -> u16 {
        let step = fastrand::u32(1..=STEP_MAX);
        // A power of two, so it goes on evenly where the sum wraps.
        let place = self.0.fetch_add(step, Ordering::Relaxed) % u32::from(EPHEMERAL_COUNT);
        EPHEMERAL.start() + u16::try_from(place).unwrap_or_default()
    }
}

/// What `open` gives for the first port that nobody uses; some are tried.
pub(crate) fn on_a_free_port<T>(
    port: impl Fn() -> io::Result<u16>,
    mut open: impl FnMut(u16) -> io::Result<T>,
) -> io::Result<T> {
    for _ in 0..EPHEMERAL_TRIES {
        match open(port()?) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            result => return result,
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_in_a_row_come_again_after_thousands_and_are_not_the_next_one_always() {
        let ports = PortsInARow(AtomicU32::new(u32::MAX - 100));
        let given: Vec<u16> = (0..2_000).map(|_| ports.next()).collect();
        let different: std::collections::BTreeSet<u16> = given.iter().copied().collect();
        assert_eq!(different.len(), given.len(), "none twice");
        assert!(given.iter().all(|port| EPHEMERAL.contains(port)));
        let steps: std::collections::BTreeSet<u16> = given
            .windows(2)
            .map(|two| two[1].wrapping_sub(two[0]) % 16_384)
            .collect();
        assert!((4..=8).contains(&steps.len()), "{steps:?}");
    }
}
