//! A guarded host, and a flood of a port of it where nobody listens.

use std::time::{Duration, Instant};

use plimsoll_guard::{Config, Guard, Storage};
use plimsoll_kernel::namespace;
use plimsoll_packets::frame::Packet;

use super::{HOST_MAC, HOST_V4, PEER_MAC, PEER_V4, Wire};

pub(crate) const CLOSED: u16 = 9;
/// Many times what a tick of 4 ms may bring to closed ports.
pub(crate) const FRAMES: u16 = 4000;

pub(crate) fn guarded(test: impl FnOnce(&mut Guard<'_>, &Wire)) {
    let mut storage = Storage::default();
    let mut guard = Guard::attach(&mut storage, &Config::default(), "v0").unwrap();
    test(&mut guard, &Wire::open());
}

pub(crate) fn frame(source_port: u16, port: u16) -> Vec<u8> {
    Packet::new(PEER_V4.into(), HOST_V4.into())
        .macs(PEER_MAC, HOST_MAC)
        .udp(source_port, port, &[0; 64])
}

/// Floods a port where nobody listens, as long as it takes to be known on a machine that does
/// nothing else. Each CPU has a share, so all is sent on one: a thread that moved had two
/// shares of one tick.
pub(crate) fn flood_closed_port(guard: &mut Guard<'_>, wire: &Wire) {
    namespace::pin(nix::sched::sched_getcpu().unwrap()).unwrap();
    guard.regulate().unwrap();
    let frame = frame(4000, CLOSED);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(200) {
        wire.send(&frame);
    }
}
